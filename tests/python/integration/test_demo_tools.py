"""The functions that the documents show to a newcomer, with the model in the box and the real chat."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from qwen3app.abi.types import EngineOptions
from qwen3app.chat.backend import Call
from qwen3app.chat.local import LocalBackend
from qwen3app.chat.render import Renderer
from qwen3app.chat.session import ChatSession
from qwen3app.chat.settings import ChatSettings
from qwen3app.chat.tools import Consent, Tools
from qwen3app.runtime.loaded_model import LoadedModel
from qwen3app.runtime.runtime import Runtime
from qwen3app.settings import DEMO_MODEL

DOCS = Path(__file__).resolve().parents[3] / "docs"
EXAMPLES = DOCS / "example_tools.py"
# question -> (the function, the answer). The value in the answer must be that of the result.
ASKED = {
    "What time is it in Tokyo?": ("get_time", r"In Tokyo it is \d\d:\d\d\."),
    "Roll 3 dice with 6 sides.": ("roll_dice", r"The dice show \d+\."),
    "Use the calculator for 17 * 24.": ("calculator", r"The result is 408\."),
    "Convert 10 miles to kilometers.": ("convert_units", r"10 miles are 16\.1 kilometers\."),
}
Said = tuple[list[tuple[str, str]], str]  # (functions that were called with their results, the answer)
Say = Callable[..., Awaitable[Said]]


@pytest.fixture(scope="module")
def demo() -> Iterator[LoadedModel]:
    model = LoadedModel.load(DEMO_MODEL, EngineOptions(device="cpu", max_slots=1, threads=2, kv_bytes=64 << 20))
    yield model
    model.close()


@pytest.fixture
async def say(demo: LoadedModel) -> AsyncIterator[Say]:
    """say(file, question): what comes of it in a fresh conversation with the file's functions. before: questions of
    before, and then a /reset."""
    runtime = Runtime(demo)
    await runtime.start()
    opened: list[Tools] = []

    async def ask(
        file: Path, question: str, *, think: bool = True, consent: Consent = "yes", before: Sequence[str] = ()
    ) -> Said:
        async def answer(_: Call) -> Consent:
            return consent

        session = ChatSession(LocalBackend(demo, runtime), ChatSettings(), think=think)
        tools = Tools(session, Renderer(Console(file=StringIO())), answer)
        opened.append(tools)
        await tools.load(file)
        for each in (*before, question):
            if each == question:
                session.reset()
            async with aclosing(session.ask(each)) as pieces:
                async for _ in pieces:
                    pass
        results = iter(message["content"] for message in session.messages if message["role"] == "tool")
        calls = [call for message in session.messages for call in message.get("tool_calls", ())]
        return [(call["function"]["name"], next(results)) for call in calls], session.messages[-1]["content"]

    yield ask
    for tools in opened:
        await tools.close()
    await runtime.stop()


@pytest.mark.parametrize("think", [True, False])
@pytest.mark.parametrize("question", ASKED)
async def test_each_example_is_called_and_its_result_is_told(say: Say, question: str, think: bool) -> None:
    name, answer = ASKED[question]
    calls, content = await say(EXAMPLES, question, think=think)
    ((called, result),) = calls
    assert called == name and re.fullmatch(answer, content), content
    (value,) = re.findall(r'^\{"\w+": "?([\d:.]+)"?\}$', result)
    assert value in content


@pytest.mark.parametrize("think", [True, False])
@pytest.mark.parametrize("time", ["00:07", "04:58", "06:41", "13:29", "17:02", "19:53", "21:44", "23:36"])
async def test_a_time_is_told_to_the_minute(say: Say, tmp_path: Path, time: str, think: bool) -> None:
    file = tmp_path / "clock.py"
    file.write_text(
        'def get_time(city: str) -> dict[str, str]:\n    """Get the local time of a city.\n\n    Args:\n        '
        f'city: The city\n    """\n    return {{"time": "{time}"}}\n'
    )
    calls, content = await say(file, "What time is it in Tokyo?", think=think)
    assert calls == [("get_time", f'{{"time": "{time}"}}')]
    assert content == f"In Tokyo it is {time}."


@pytest.mark.parametrize("think", [True, False])
async def test_after_other_questions_a_reset_brings_the_functions_back(say: Say, think: bool) -> None:
    """As `make demo` says."""
    before = (
        "What is 57 + 38?",
        "Hello",
        "What is the capital of France?",
        "Tell me a story.",
        "Roll 3 dice with 6 sides.",
    )
    ((called, _),), content = await say(EXAMPLES, "What time is it in Tokyo?", think=think, before=before)
    assert called == "get_time" and re.fullmatch(r"In Tokyo it is \d\d:\d\d\.", content)


def test_the_questions_of_the_file_are_these() -> None:
    head = EXAMPLES.read_text(encoding="utf-8").split('"""')[1]
    assert [line.strip() for line in head.splitlines() if line.startswith("    ")] == list(ASKED)


@pytest.mark.parametrize("think", [True, False])
@pytest.mark.parametrize("question", ASKED)
async def test_a_no_is_told_as_one(say: Say, question: str, think: bool) -> None:
    calls, content = await say(EXAMPLES, question, think=think, consent="no")
    name = ASKED[question][0]
    assert calls == [(name, '{"error": "permission denied by user"}')]
    assert content == f"The function {name} reports an error: permission denied."


@pytest.mark.parametrize("think", [True, False])
@pytest.mark.parametrize(
    ("question", "name", "error"),
    [
        ("What time is it in Atlantis?", "get_time", "not found"),
        ("Use the calculator for 12 / 0.", "calculator", "invalid request"),
        ("Convert 3 miles to liters.", "convert_units", "invalid request"),
    ],
)
async def test_an_error_of_an_example_is_told(say: Say, question: str, name: str, error: str, think: bool) -> None:
    calls, content = await say(EXAMPLES, question, think=think)
    assert calls == [(name, f'{{"error": "{error}"}}')]
    assert content == f"The function {name} reports an error: {error}."


@pytest.mark.parametrize("think", [True, False])
async def test_the_file_of_the_terminal_guide_works(say: Say, tmp_path: Path, think: bool) -> None:
    (code,) = re.findall(r"```python\n(# weather\.py\n.*?)```", (DOCS / "terminal.md").read_text("utf-8"), re.DOTALL)
    file = tmp_path / "weather.py"
    file.write_text(code)
    question, answer = "What is the weather in Paris?", "It is sunny in Paris, with 21 degrees."
    assert await say(file, question, think=think) == (
        [("get_weather", '{"temperature": 21, "condition": "sunny"}')],
        answer,
    )
