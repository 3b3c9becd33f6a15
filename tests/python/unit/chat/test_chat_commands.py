"""The commands and their completion."""

from __future__ import annotations

import io
from typing import Any

import pytest

from qwen3app.chat.backend import Call
from qwen3app.chat.commands import Commands, Leave
from qwen3app.chat.errors import ChatError
from qwen3app.chat.render import Renderer
from qwen3app.chat.session import ChatSession
from qwen3app.chat.tools import Consent, Tools

ALL = ["copy", "edit", "exit", "help", "history", "load", "quit", "reset", "retry", "save", "set", "show"]
ALL += ["think", "thought", "tools", "undo"]


@pytest.fixture
def commands(session: ChatSession, renderer: Renderer) -> Commands:
    return Commands(session, renderer, Tools(session, renderer, _never))


async def _never(call: Call) -> Consent:
    raise AssertionError("no command asks")


@pytest.mark.parametrize("line", ["/exit", "/quit", "  /exit now "])
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
    assert "context             0 of 1000 tokens, 0 turns" in text
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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("/", [f"/{name}" for name in ALL]),
        ("/s", ["/save", "/set", "/show"]),
        ("/think ", ["on", "off", "show", "hide"]),
        ("/think o", ["on", "off"]),
        ("/think on ", []),
        ("/set t", ["temp", "top_p", "top_k", "think"]),
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
    assert "7 of 1000 tokens, 1 turn\n" in screen.getvalue()
