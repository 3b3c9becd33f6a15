"""The functions of a file: schemas, consent, calls, interrupts. The process is real."""

from __future__ import annotations

import asyncio
import io
import json
import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from patience import until

from qwen3app.chat.backend import Call, Piece
from qwen3app.chat.errors import ChatError
from qwen3app.chat.render import Renderer
from qwen3app.chat.session import MAX_ROUNDS, ChatSession
from qwen3app.chat.tools import Consent, Tools
from qwen3app.text.tool_calls import ToolCall

FILE = '''
"""Tools of a test."""
import asyncio, enum, os, sys, time
from dataclasses import dataclass
from typing import Annotated, Literal, Optional, Union

class Unit(enum.Enum):
    C = "celsius"
    F = "fahrenheit"

def weather(city: str, unit: Unit = Unit.C, days: "Optional[int]" = None) -> dict:
    """Tells the weather.

    It is made up.

    Args:
        city (str): where, a name
            in English
        unit: of the temperature

    Returns:
        a dict
    """
    print("asked for", city)
    print("as well", file=sys.stderr)
    os.write(1, b"not between the lines\\n")
    return {"city": city, "unit": unit.name, "é": days}

def kinds(
    a: float, b: list[int], c: dict[str, bool], d: Literal["x", "y"], e: Union[int, str],
    f: Annotated[str, "about f"], g: tuple[int, ...] = (), h=None,
):
    """Takes many kinds.

    :param a: a number
    """
    return [type(g).__name__, a]

def text() -> str:
    """Gives a text."""
    return "plain"

def fails():
    """Fails."""
    raise ValueError("no luck")

def leaves():
    """Leaves."""
    sys.exit(3)

def dies():
    """Dies."""
    os._exit(1)

def half() -> str:
    """Gives half a character."""
    return "a\\ud800"

def long():
    """Gives much."""
    return "x" * 300_000

async def later():
    """Awaits."""
    await asyncio.sleep(0)
    return 7

def sleeps(path: str, stubborn: bool = False):
    """Sleeps."""
    open(path, "w").close()
    while True:
        try:
            time.sleep(1000)
        except KeyboardInterrupt:
            if not stubborn:
                raise

def process() -> int:
    """Its number."""
    return os.getpid()

def _private(): ...
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my_tools.py"
    path.write_text(FILE)
    return path


class Consents:
    """Answers in order, "yes" when there are no more; remembers what was asked."""

    def __init__(self) -> None:
        self.answers: list[Consent] = []
        self.asked: list[Call] = []

    async def __call__(self, call: Call) -> Consent:
        self.asked.append(call)
        return self.answers.pop(0) if self.answers else "yes"


@pytest.fixture
def consents() -> Consents:
    return Consents()


@pytest.fixture
async def tools(session: ChatSession, renderer: Renderer, consents: Consents) -> AsyncIterator[Tools]:
    made = Tools(session, renderer, consents)
    yield made
    await made.close()


async def run(tools: Tools, name: str, **arguments: Any) -> Any:
    return await tools.run(Call("c", name, json.dumps(arguments)))


async def test_functions_become_schemas(tools: Tools, session: ChatSession, file: Path) -> None:
    names = await tools.load(file)
    assert names == [
        "dies",
        "fails",
        "half",
        "kinds",
        "later",
        "leaves",
        "long",
        "process",
        "sleeps",
        "text",
        "weather",
    ]
    assert session.tools is not None
    by_name = {tool["function"]["name"]: tool["function"] for tool in session.tools}
    assert by_name["weather"] == {
        "name": "weather",
        "description": "Tells the weather.\n\nIt is made up.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "where, a name in English"},
                "unit": {"enum": ["celsius", "fahrenheit"], "type": "string", "description": "of the temperature"},
                "days": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            },
            "required": ["city"],
        },
    }
    assert by_name["kinds"]["parameters"]["properties"] == {
        "a": {"type": "number", "description": "a number"},
        "b": {"type": "array", "items": {"type": "integer"}},
        "c": {"type": "object", "additionalProperties": {"type": "boolean"}},
        "d": {"enum": ["x", "y"], "type": "string"},
        "e": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "f": {"type": "string", "description": "about f"},
        "g": {"type": "array", "items": {"type": "integer"}},
        "h": {},
    }


async def test_calls_and_their_results(tools: Tools, file: Path, screen: io.StringIO) -> None:
    await tools.load(file)
    result = await run(tools, "weather", city="Oslo", unit="fahrenheit")
    assert json.loads(result) == {"city": "Oslo", "unit": "F", "é": None} and "é" in result
    assert screen.getvalue().startswith("│ asked for Oslo\n│ as well\n→ {")
    assert await run(tools, "text") == "plain"
    assert await run(tools, "later") == "7" and await run(tools, "half") == "a?"
    given: dict[str, Any] = {"a": 1, "b": [1], "c": {"k": True}, "d": "y", "e": "s", "f": ""}
    assert await run(tools, "kinds", **given, g=[1]) == '["tuple", 1]'
    assert json.loads(await run(tools, "fails")) == {"error": "ValueError: no luck"}
    assert json.loads(await run(tools, "leaves")) == {"error": "SystemExit: 3"}
    long = await run(tools, "long")
    assert long.endswith("... (cut, 300000 characters)") and len(long) < 201_000


@pytest.mark.parametrize(
    ("name", "arguments", "sentence"),
    [
        ("nope", "{}", "There is no function nope; there are dies, "),
        ("text", "{", "The arguments are no JSON."),
        ("text", "[]", "must be a JSON object"),
        ("text", '{"x": 1}', "there is no argument x; the arguments are none"),
        ("weather", "{}", "the argument city is missing"),
        ("weather", '{"city": 1}', 'the argument city must fit {"type": "string"'),
        ("weather", '{"city": "a", "unit": "kelvin"}', "the argument unit must fit"),
        ("weather", '{"city": "a", "days": true}', "the argument days must fit"),
        ("weather", '{"city": "a", "days": 1.5}', "the argument days must fit"),
    ],
)
async def test_a_wrong_call_is_an_error_for_the_model_and_nobody_is_asked(
    tools: Tools, file: Path, consents: Consents, screen: io.StringIO, name: str, arguments: str, sentence: str
) -> None:
    await tools.load(file)
    result = await tools.run(Call("c", name, arguments))
    found = json.loads(result)
    assert list(found) == ["error"] and sentence in found["error"]
    assert consents.asked == [] and screen.getvalue() == f"→ {result}\n"


async def test_nothing_runs_without_consent(tools: Tools, file: Path, consents: Consents, session: ChatSession) -> None:
    await tools.load(file)
    consents.answers = ["no", "always"]
    assert json.loads(await run(tools, "text")) == {"error": "permission denied by user"}
    assert await run(tools, "text") == "plain" and await run(tools, "text") == "plain"
    assert len(consents.asked) == 2
    await run(tools, "later")
    assert len(consents.asked) == 3  # `always` is for one function
    await tools.load(file)
    await run(tools, "text")
    assert len(consents.asked) == 4  # and for one file
    await tools.close()
    assert session.tools is None and session.run_call is None


async def test_a_process_that_dies_is_replaced(tools: Tools, file: Path) -> None:
    await tools.load(file)
    before = await run(tools, "process")
    assert "ended during the call" in await run(tools, "dies")
    after = await run(tools, "process")
    assert before.isdigit() and after.isdigit() and before != after


@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_call_can_be_stopped(tools: Tools, file: Path, tmp_path: Path, stubborn: bool) -> None:
    await tools.load(file)
    started = tmp_path / "started"
    running = asyncio.ensure_future(run(tools, "sleeps", path=str(started), stubborn=stubborn))
    await until(started.exists)
    tools.stop()
    result = json.loads(await running)
    assert result["error"] == "The user stopped this call."
    assert await run(tools, "text") == "plain"


@pytest.mark.parametrize("stopped", [False, True])
async def test_a_call_that_is_left_has_no_part_in_the_next(
    tools: Tools, file: Path, tmp_path: Path, screen: io.StringIO, stopped: bool
) -> None:
    """What the chat does where a stopped call does not end in time."""
    await tools.load(file)
    started = tmp_path / "started"
    running = asyncio.ensure_future(run(tools, "sleeps", path=str(started), stubborn=True))
    await until(started.exists)
    if stopped:
        tools.stop()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert screen.getvalue().endswith('→ {"error": "The user stopped this call."}\n')
    assert await run(tools, "text") == "plain"


async def test_stopping_a_call_does_not_kill_the_next(
    tools: Tools, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qwen3app.chat.tools._STOP_SECONDS", 0.3)
    await tools.load(file)
    number = await run(tools, "process")
    started = tmp_path / "started"
    running = asyncio.ensure_future(run(tools, "sleeps", path=str(started)))
    await until(started.exists)
    tools.stop()
    assert "The user stopped this call" in await running
    again = tmp_path / "again"
    running = asyncio.ensure_future(run(tools, "sleeps", path=str(again)))
    await asyncio.sleep(0.6)
    tools.stop()
    assert "The user stopped this call" in await running
    assert await run(tools, "process") == number


async def test_decorated_functions_have_the_names_of_the_file(tools: Tools, tmp_path: Path) -> None:
    path = tmp_path / "decorated.py"
    path.write_text(
        "def _twice(f):\n def wrapper(x: int) -> int:\n  'Doubles.'\n  return 2 * f(x)\n return wrapper\n"
        "@_twice\ndef a(x): return x\n@_twice\ndef b(x): return x + 1\n"
    )
    assert await tools.load(path) == ["a", "b"]
    assert (await run(tools, "a", x=1), await run(tools, "b", x=1)) == ("2", "4")


async def test_a_name_that_no_file_can_have(tools: Tools) -> None:
    with pytest.raises(ChatError, match="There is no file"):
        await tools.load(Path("a" * 300))


async def test_arguments_of_any_depth_are_a_result(tools: Tools, file: Path) -> None:
    await tools.load(file)
    for depth in range(900, 1000):
        assert "error" in json.loads(await tools.run(Call("c", "text", "[" * depth + "]" * depth)))


async def test_the_process_ends_with_the_chat(tools: Tools, file: Path) -> None:
    await tools.load(file)
    number = int(await run(tools, "process"))
    await tools.close()
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("x = 1", "it defines no public function"),
        ("def f(: pass", "SyntaxError"),
        ("def f(): pass", "f has no docstring"),
        ("def f(*a):\n '''x'''", r"f takes \*a; a tool's parameters have names"),
        ("def f(a: bytes):\n '''x'''", r"f\(a\): the type bytes has no JSON form"),
        ("def f(a: 'Nope'):\n '''x'''", "f has a type hint that cannot be read"),
        ("raise RuntimeError('no')", "RuntimeError: no"),
        ("import os; os._exit(0)", "Python ended while it loaded the file"),
        ("import sys; sys.exit()", r"SystemExit\.$"),
        ("raise KeyboardInterrupt", r"Loading was stopped\.$"),
    ],
)
async def test_a_wrong_file_is_one_sentence(
    tools: Tools, session: ChatSession, tmp_path: Path, text: str, sentence: str
) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(text)
    with pytest.raises(ChatError, match=sentence) as caught:
        await tools.load(path)
    assert "\n" not in str(caught.value) and session.tools is None
    with pytest.raises(ChatError, match="There is no file"):
        await tools.load(tmp_path / "none.py")
    with pytest.raises(ChatError, match=r"must end with \.py"):
        (tmp_path / "x.txt").write_text("")
        await tools.load(tmp_path / "x.txt")


# ------------------------------------------------------------------------------------------------- in a conversation


def wants(name: str, arguments: str = "{}") -> tuple[str, str, ToolCall]:
    return ("", "", ToolCall(name, arguments, ""))


async def test_a_turn_with_a_call(session: ChatSession, runtime: Any, model: Any, tools: Tools, file: Path) -> None:
    await tools.load(file)
    runtime.script = [("hm", ""), wants("text")]

    def next_round(generation: Any) -> None:
        runtime.script = [("", "It is plain.")]

    runtime.on_generate = next_round
    async with aclosing(session.ask("Do it")) as pieces:
        seen = [piece async for piece in pieces]
    call = session.messages[1]["tool_calls"][0]
    assert seen == [Piece("thought", "hm"), Call(call["id"], "text", "{}"), Piece("answer", "It is plain.")]
    assert session.messages == [
        {"role": "user", "content": "Do it"},
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "plain"},
        {"role": "assistant", "content": "It is plain."},
    ]
    assert session.n_turns == 1 and session.stats.tokens == 3 and session.stats.rounds == 2
    assert [params.calls is not None for params in runtime.params] == [True, True]


async def test_a_model_that_goes_round_in_circles_is_stopped(
    session: ChatSession, runtime: Any, tools: Tools, file: Path
) -> None:
    await tools.load(file)
    runtime.script = [wants("text")]
    with pytest.raises(ChatError, match=f"{MAX_ROUNDS} times in a row"):
        async with aclosing(session.ask("Do it")) as pieces:
            async for _ in pieces:
                pass
    assert len(session.messages) == 1 + 2 * MAX_ROUNDS and session.messages[-1]["role"] == "tool"
