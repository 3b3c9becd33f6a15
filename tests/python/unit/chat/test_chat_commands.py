"""The commands and their completion."""

from __future__ import annotations

import inspect
import io
import json
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from qwen3app.chat import commands as commands_module
from qwen3app.chat.backend import Call
from qwen3app.chat.commands import Commands, Leave
from qwen3app.chat.errors import ChatError
from qwen3app.chat.render import Renderer
from qwen3app.chat.session import ChatSession
from qwen3app.chat.tools import Consent, Tools
from qwen3app.text.errors import TextError

ALL = ["copy", "edit", "exit", "help", "history", "load", "quit", "reset", "retry", "save", "set", "show"]
ALL += ["think", "thought", "tools", "undo"]


@pytest.fixture
def commands(session: ChatSession, renderer: Renderer) -> Commands:
    return Commands(session, renderer, Tools(session, renderer, _never))


async def _never(call: Call) -> Consent:
    raise AssertionError("no command asks")


@pytest.mark.parametrize("line", ["/exit", "/quit", "  /exit  "])
def test_leaving(commands: Commands, line: str) -> None:
    with pytest.raises(Leave):
        commands.run(line)


def test_reset(commands: Commands, session: ChatSession, screen: io.StringIO) -> None:
    session.messages.append({"role": "user", "content": "x"})
    commands.run("/reset")
    assert session.messages == [] and "empty" in screen.getvalue()


def test_think(commands: Commands, session: ChatSession, renderer: Renderer) -> None:
    commands.run("/think off")
    assert not session.think
    commands.run("/think on")
    assert session.think
    commands.run("/think hide")
    assert not renderer.show_thinking
    commands.run("/think  show ")
    assert renderer.show_thinking
    for line in ("/think", "/think maybe"):
        with pytest.raises(ChatError, match="on, off, show, hide"):
            commands.run(line)


def test_set_and_show(commands: Commands, session: ChatSession, screen: io.StringIO) -> None:
    commands.run("/set temp 0.25")
    commands.run("/set system You are  a cat.")
    commands.run("/set seed 7")
    assert session.settings.system == "You are  a cat."
    commands.run("/show")
    text = screen.getvalue()
    assert "temp = 0.25" in text and "seed = 7" in text
    assert "top_p               0.95 (the model's default)" in text
    assert "min_p               off" in text and "max_tokens          what the context holds" in text
    assert "model               tiny on cpu (avx2)" in text
    assert "context             0 of 1,000 tokens, 0 turns" in text
    commands.run("/set temp default")
    assert screen.getvalue().endswith("temp = 0.6 (the model's default)\n")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("/set", "takes a name and a value"),
        ("/set temp", "/set temp needs a value"),
        ("/set tmep 1", "did you mean temp"),
        ("/set temp hot", "temp must be"),
        ("/exi", "did you mean /exit"),
        ("/zzzz", "/help lists"),
        ("/", "Unknown command /;"),
        ("/temp 1", "did you mean /set temp?"),
        ("/usr/bin/x is what?", "Begin with //"),
        ("/set thnk on", "did you mean think"),
        ("/set foo", "there are temp, top_p, .*, frequency_penalty, think, verbose, markdown"),
        ("/Temperature 1", "did you mean /set Temperature?"),
        ("/undo 3", r"/undo takes nothing; leave out '3'\."),
        ("/exit now", "/exit takes nothing; leave out 'now'"),
        ("/run", "Unknown command"),  # methods without cmd_ are no commands
    ],
)
def test_a_wrong_line_gives_one_sentence(commands: Commands, line: str, sentence: str) -> None:
    with pytest.raises(ChatError, match=sentence) as caught:
        commands.run(line)
    assert "\n" not in str(caught.value)


def test_help_names_every_command(commands: Commands, screen: io.StringIO) -> None:
    commands.run("/help")
    for name in ("/exit", "/quit", "/reset", "/think on|off|show|hide", "/set NAME VALUE", "/show", "/help", "Ctrl-D"):
        assert name in screen.getvalue()


@pytest.mark.parametrize("name", ALL)
def test_words_that_a_command_does_not_take_are_refused(commands: Commands, name: str) -> None:
    takes = {"copy", "edit", "load", "save", "set", "think", "tools"}
    if name not in takes:
        with pytest.raises(ChatError, match=f"/{name} takes nothing; leave out 'a b'"):
            commands.run(f"/{name}  a b ")


@pytest.mark.parametrize("columns", [30, 54, 55, 80, 200])
def test_help_is_broken_between_words(session: ChatSession, columns: int) -> None:
    screen = io.StringIO()
    renderer = Renderer(Console(file=screen, width=columns, color_system=None))
    commands = Commands(session, renderer, Tools(session, renderer, _never))
    commands.run("/help")
    commands.run("/show")
    lines = screen.getvalue().splitlines()
    words = {word for name in ALL for word in (getattr(commands, f"cmd_{name}").__doc__ or "").split()}
    words = {word.removesuffix(":") for word in words}
    assert words <= {word.removesuffix(":") for line in lines for word in line.split()}
    assert all(len(line) < columns for line in lines if " " in line.strip())
    beside = any(line.startswith("/undo ") for line in lines)
    assert beside == (columns >= 55)
    if columns == 200:
        assert "/undo                    take back the last question and its answer." in lines


TAKES_NOTHING = {"exit", "help", "history", "quit", "reset", "retry", "show", "thought", "undo"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("/", [f"/{name}" + " " * (name not in TAKES_NOTHING) for name in ALL]),
        ("/s", ["/save ", "/set ", "/show"]),
        ("/to", ["/tools "]),
        ("/think ", ["on", "off", "show", "hide"]),
        ("/think o", ["on", "off"]),
        ("/think on ", []),
        ("/set t", ["temp ", "top_p ", "top_k ", "think "]),
        ("/set verbose ", ["on", "off"]),
        ("/copy ", ["code"]),
        ("/edit ", ["last"]),
        ("/tools ", ["off"]),
        ("/set temp ", ["default"]),
        ("/set temp 1 ", []),
        ("/nothing x", []),
        ("hello", []),
        ("//s", []),
        ("/s\n", []),
        ("", []),
    ],
)
def test_completion(commands: Commands, text: str, words: list[str]) -> None:
    offered = list(commands.complete(text))
    assert [word for word, _, _ in offered] == words
    assert all(meaning for _, meaning, _ in offered)
    assert all(length == len(text.rpartition(" ")[2]) for _, _, length in offered)


async def test_show_tells_how_full_the_context_is(commands: Commands, session: ChatSession, screen: Any) -> None:
    _ = [piece async for piece in session.ask("Hello")]
    commands.run("/show")
    assert "7 of 1,000 tokens, 1 turn\n" in screen.getvalue()


async def ask(session: ChatSession, text: str) -> None:
    async with aclosing(session.ask(text)) as pieces:
        async for _ in pieces:
            pass


def test_switches(commands: Commands, session: ChatSession, renderer: Renderer, screen: io.StringIO) -> None:
    commands.run("/set verbose off")
    commands.run("/set markdown on")
    commands.run("/set Think off")
    assert not renderer.verbose and renderer.markdown and not session.think
    assert screen.getvalue() == "verbose = off\nmarkdown = on\nthink = off\n"
    for line in ("/set verbose", "/set think maybe"):
        with pytest.raises(ChatError, match="takes on or off"):
            commands.run(line)
    commands.run("/show")
    assert "verbose             off\nmarkdown            on\ntools               none" in screen.getvalue()


async def test_undo_and_retry(commands: Commands, session: ChatSession, screen: io.StringIO) -> None:
    for line, sentence in (("/undo", "nothing to take back"), ("/retry", "no question to ask again")):
        with pytest.raises(ChatError, match=sentence):
            commands.run(line)
    await ask(session, "one")
    await ask(session, "two " * 30)
    commands.run("/undo")
    assert session.n_turns == 1 and f"Taken back: {'two ' * 14}t...\n" in screen.getvalue()
    assert commands.run("/retry") == "one" and session.messages == []
    assert commands.run("/retry") == "two " * 30  # the question that was asked last had no answer


async def test_the_question_that_is_meant(
    commands: Commands, session: ChatSession, runtime: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun: list[str] = []
    monkeypatch.setattr(commands_module, "edit_text", lambda text, environ: begun.append(text) or f"{text}!")

    async def fail(question: Any) -> None:
        with pytest.raises(TextError):
            await ask(session, question)

    await ask(session, "one")
    await fail("two broken")
    assert commands.run("/retry") == "two broken" and session.n_turns == 1  # and not the one before it, which stays
    await fail("two broken")
    assert commands.run("/edit last") == "two broken!" and session.n_turns == 1 and begun == ["two broken"]
    await ask(session, "two")
    assert commands.run("/edit last") == "two!" and session.n_turns == 1
    await fail("2 broken")  # in place of it, which comes back
    assert session.n_turns == 2
    assert commands.run("/retry") == "2 broken" and session.n_turns == 1
    await ask(session, "2")
    assert [message["content"] for message in session.messages[::2]] == ["one", "2"]
    commands.run("/undo")
    assert commands.run("/edit last") == "one!" and session.n_turns == 0  # of what is left
    path = tmp_path / "chat.json"
    path.write_text('[{"role": "user", "content": "loaded"}, {"role": "assistant", "content": "b"}]')
    session.reset()
    commands.run(f"/load {path}")
    assert commands.run("/edit last") == "loaded!" and session.n_turns == 0


async def test_a_saved_chat(commands: Commands, session: ChatSession, screen: io.StringIO, tmp_path: Path) -> None:
    commands.run("/history")
    await ask(session, "one\ntwo")
    session.messages += [{"role": "tool", "content": "5"}]
    session.settings.temperature = 0.5
    commands.run(f"/save {tmp_path}/a b.json")
    session.messages.pop()
    commands.run("/reset")
    session.settings.temperature = None
    commands.run(f'/load "{tmp_path}/a b.json"')
    commands.run("/history")
    text = screen.getvalue()
    assert f"1 turn read from {tmp_path}/a b.json; /history shows it.\nThe file sets temp = 0.5.\n" in text
    assert text.startswith("The conversation is empty.\n1 turn written to ")
    assert text.endswith("temp = 0.5.\n> one\n. two\nHello there\n→ 5\n")
    for line in ("/save", "/load", '/load "a" "b"', "/load 'a", "/tools a\0b"):
        with pytest.raises(ChatError, match="takes the name of a file"):
            outcome = commands.run(line)
            assert inspect.isawaitable(outcome)
            await outcome


def test_history_shows_calls_and_what_came_of_them(
    commands: Commands, session: ChatSession, screen: io.StringIO, tmp_path: Path
) -> None:
    calls = [
        {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}},
        {"id": "2", "function": {"name": "city", "arguments": {"name": "Köln"}}},
        {"id": "3", "name": "now", "arguments": None},
    ]
    path = tmp_path / "calls.json"
    results = [{"role": "tool", "tool_call_id": str(number), "content": f"r{number}"} for number in (1, 2, 3)]
    turn = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "Let me see.", "tool_calls": calls}]
    path.write_text(json.dumps([*turn, *results, {"role": "assistant", "content": "2."}]))
    commands.run(f"/load {path}")
    commands.run("/history")
    shown = screen.getvalue().partition("shows it.\n")[2]
    assert shown == '> q\nLet me see.\nadd(a=2)\ncity(name="Köln")\nnow()\n→ r1\n→ r2\n→ r3\n2.\n'
    path.write_text(json.dumps([*turn, *results, {"role": "assistant", "content": "2."}] * 2))
    commands.run(f"/load {path}")
    assert screen.getvalue().endswith(f"2 turns read from {path}; /history shows them.\n")


def test_a_server_tells_of_the_context_with_its_answers_alone(
    commands: Commands, session: ChatSession, screen: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session.backend, "count", lambda messages, tools, think: None)
    session.replace([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    commands.run("/show")
    assert "context             ? of 1,000 tokens until the next answer, 1 turn\n" in screen.getvalue()


async def test_the_editor(
    commands: Commands, session: ChatSession, monkeypatch: pytest.MonkeyPatch, screen: io.StringIO
) -> None:
    texts = ["a\nb", " "]
    begun: list[str] = []

    def edit(text: str, environ: object) -> str:
        begun.append(text)
        return texts.pop(0) if texts else text

    monkeypatch.setattr(commands_module, "edit_text", edit)
    with pytest.raises(ChatError, match="no last question"):
        commands.run("/edit last")
    with pytest.raises(ChatError, match="takes nothing"):
        commands.run("/edit it")
    assert commands.run("/edit") == "a\nb" and screen.getvalue() == "> a\n. b\n"
    await ask(session, "one")
    with pytest.raises(ChatError, match="nothing is sent"):
        commands.run("/edit last")
    assert session.n_turns == 1  # nothing is taken back for an empty text
    assert commands.run("/edit last") == "one" and session.n_turns == 0 and begun == ["", "one", "one"]


async def test_copy_and_thought(
    commands: Commands, session: ChatSession, runtime: Any, monkeypatch: pytest.MonkeyPatch, screen: io.StringIO
) -> None:
    copied: list[str] = []
    monkeypatch.setattr(commands_module, "copy_text", lambda text, environ: copied.append(text) or "\x1b]52;c;x\x07")
    for line, sentence in (
        ("/copy", "no answer to copy"),
        ("/copy code", "no code in the last answer"),
        ("/copy all", "takes nothing, or `code`"),
        ("/thought", "has no thought"),
    ):
        with pytest.raises(ChatError, match=sentence):
            commands.run(line)
    answer = "```\na\n```\n~~~py\nx\n```\ny\n~~~\n"
    runtime.script = [("hm", ""), ("", answer)]
    await ask(session, "one")
    commands.run("/copy")
    commands.run("/copy code")
    assert copied == [answer, "x\n```\ny\n"]
    commands.run("/thought")
    assert screen.getvalue() == f"{len(answer)} characters copied.\n8 characters copied.\nhm\n"
    runtime.script = [("", "```\nnot closed")]
    await ask(session, "two")
    commands.run("/copy code")
    assert copied[-1] == "not closed"


async def test_tools(commands: Commands, session: ChatSession, tmp_path: Path, screen: io.StringIO) -> None:
    path = tmp_path / "t.py"
    path.write_text("def f():\n '''F.'''\n")

    async def run(line: str) -> None:
        outcome = commands.run(line)
        assert inspect.isawaitable(outcome)
        await outcome

    with pytest.raises(ChatError, match=r"/tools FILE\.py offers"):
        await run("/tools")
    await run(f"/tools {path}")
    await run("/tools")
    commands.run("/show")
    assert "The model may ask for: f. You are asked before each call.\nf\n" in screen.getvalue()
    assert "tools               f" in screen.getvalue()
    await run("/tools off")
    assert session.tools is None and screen.getvalue().endswith("No tools are offered.\n")
