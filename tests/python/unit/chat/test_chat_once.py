"""One question: what goes to stdout, what to stderr."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest

from qwen3app.chat import once
from qwen3app.chat.errors import ChatError
from qwen3app.chat.once import ask_once, read_question, with_piped_text
from qwen3app.chat.session import ChatSession
from qwen3app.errors import GenerationError


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


async def test_the_answer_alone(session: ChatSession, runtime: Any) -> None:
    runtime.script = [("secret", ""), ("", "A\x1b"), ("", "B")]
    out, err = io.StringIO(), io.StringIO()
    await ask_once(session, "Hi", out, err)
    assert out.getvalue() == "A\x1bB\n"  # to a pipe: byte for byte
    assert err.getvalue() == ""


class Stream(io.StringIO):
    """Writes to a terminal that gets the other stream, too."""

    def __init__(self, terminal: io.StringIO) -> None:
        super().__init__()
        self._terminal = terminal

    def write(self, text: str) -> int:
        self._terminal.write(text)
        return super().write(text)


@pytest.mark.parametrize(
    ("script", "shown", "said"),
    [
        ([("So 95.", ""), ("", "95"), ("", ".")], "So 95.\n95.\n", "So 95.\n"),
        ([("So ", ""), ("95.\n", ""), ("", "95.")], "So 95.\n95.\n", "So 95.\n"),
        ([("So", ""), ("", "95\n"), ("Hm", ""), ("", "96")], "So\n95\nHm\n96\n", "So\nHm\n"),
        ([("So", "")], "So\n", "So\n"),
        ([("", "95.")], "95.\n", ""),
    ],
)
async def test_thought_and_answer_are_not_on_one_line(
    session: ChatSession, runtime: Any, screen: io.StringIO, script: list[tuple[str, str]], shown: str, said: str
) -> None:
    runtime.script, runtime.finish = script, "abort"
    out, err = Stream(screen), Stream(screen)
    await ask_once(session, "Hi", out, err, show_thinking=True)
    assert screen.getvalue() == shown and err.getvalue() == said
    answer = "".join(words for _, words in script)
    assert out.getvalue() == (f"{answer}\n" if answer else "")


class FullDisk(io.StringIO):
    def flush(self) -> None:
        raise OSError(28, "No space left on device")


async def test_notes_that_nobody_takes_do_not_cost_the_answer(session: ChatSession, runtime: Any) -> None:
    runtime.script, runtime.finish = [("So ", ""), ("95.", ""), ("", "9"), ("", "5.")], "length"
    out, err = io.StringIO(), FullDisk()
    await ask_once(session, "Hi", out, err, show_thinking=True, show_stats=True)
    assert (out.getvalue(), err.getvalue()) == ("95.\n", "So ")


async def test_no_thought_is_shown_unasked(session: ChatSession, runtime: Any) -> None:
    runtime.script = [("So 95.", ""), ("", "95.")]
    out, err = io.StringIO(), io.StringIO()
    await ask_once(session, "Hi", out, err)
    assert (out.getvalue(), err.getvalue()) == ("95.\n", "")


async def test_a_failure_in_a_thought_has_a_line_of_its_own(session: ChatSession, runtime: Any) -> None:
    runtime.script, runtime.fails = [("So 95", "")], True
    err = io.StringIO()
    with pytest.raises(GenerationError):
        await ask_once(session, "Hi", io.StringIO(), err, show_thinking=True)
    assert err.getvalue() == "So 95\n"


async def test_an_empty_answer_is_said(session: ChatSession, runtime: Any) -> None:
    runtime.script = [("secret", "")]
    out, err = io.StringIO(), io.StringIO()
    await ask_once(session, "Hi", out, err)
    assert out.getvalue() == ""
    assert err.getvalue() == "The model ended its answer without a word; ask in other words.\n"


async def test_a_terminal_is_never_steered(session: ChatSession, runtime: Any) -> None:
    runtime.script = [("\x1b", ""), ("", "A\x1b\n")]
    out, err = Tty(), io.StringIO()
    await ask_once(session, "Hi", out, err, show_thinking=True, show_stats=True)
    assert out.getvalue() == "A\u241b\n"
    assert err.getvalue().startswith("\u241b\n[2 tokens")


async def test_a_terminal_gets_markdown(session: ChatSession, runtime: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    runtime.script = [("", "- a *"), ("", "*b*"), ("", "*")]
    terminal, pipe = Tty(), io.StringIO()
    await ask_once(session, "Hi", terminal, io.StringIO())
    await ask_once(session, "Hi", pipe, io.StringIO())
    assert terminal.getvalue() == "• a \x1b[1mb\x1b[0m\n" and pipe.getvalue() == "- a **b**\n"


async def test_a_cut_answer_says_so(session: ChatSession, runtime: Any) -> None:
    runtime.script, runtime.finish = [("long thought", "")], "length"
    session.settings.max_tokens = 1
    out, err = io.StringIO(), io.StringIO()
    await ask_once(session, "Hi", out, err)
    assert out.getvalue() == ""
    sentence = "The thought used up max_tokens (1) and there is no answer: raise it (--max-tokens N)"
    assert err.getvalue() == f"{sentence}, or ask without thinking (--no-think).\n"
    session.settings.max_tokens = None
    err = io.StringIO()
    session.think = False
    await ask_once(session, "x" * 990, out, err)
    assert err.getvalue() == "The thought used up the context and there is no answer: ask for something shorter.\n"
    session.reset()
    runtime.script, err = [("", "long answer")], io.StringIO()
    await ask_once(session, "x" * 990, out, err)  # there is no conversation to /reset
    assert err.getvalue() == "The context is full and the answer is cut: ask for something shorter.\n"


def test_question_from_stdin() -> None:
    assert read_question(io.BytesIO("日本\n".encode())) == "日本"
    for data, sentence in (
        (b"a\0b", "NUL character at position 1"),
        (b"ab\xff", "not UTF-8: byte 2 is 0xff"),
        (b" \n", "is empty"),
        (b"", "is empty"),
    ):
        with pytest.raises(ChatError, match=sentence):
            read_question(io.BytesIO(data))
    with (
        Path("/dev/zero").open("rb") as endless,
        pytest.raises(ChatError, match="longer than 4 MiB, more than a context"),
    ):
        read_question(endless)
    assert len(read_question(io.BytesIO(b"x" * (4 << 20)))) == 4 << 20


@pytest.mark.parametrize(
    ("data", "question"),
    [(b"a text\n", "a text\n\nSum up"), (b"", "Sum up"), (b" \n", "Sum up")],
)
def test_a_piped_text_stands_before_the_question(data: bytes, question: str, tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(data)
    with path.open() as stdin:
        assert with_piped_text("Sum up", stdin, io.StringIO()) == question
    read, write = os.pipe()
    os.write(write, data)
    os.close(write)
    with os.fdopen(read) as stdin:
        assert with_piped_text("Sum up", stdin, io.StringIO()) == question


def test_what_is_no_text_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path(os.devnull).open() as stdin:
        assert with_piped_text("Sum up", stdin, io.StringIO()) == "Sum up"
    assert with_piped_text("Sum up", io.StringIO("not asked"), io.StringIO()) == "Sum up"
    master, slave = os.openpty()
    with os.fdopen(slave) as stdin:
        assert with_piped_text("Sum up", stdin, io.StringIO()) == "Sum up"
    os.close(master)


def test_a_pipe_that_stays_silent_is_waited_for_aloud(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(once, "_HINT_SECONDS", 0.01)
    read, write = os.pipe()

    class Stderr(io.StringIO):
        def flush(self) -> None:
            os.write(write, b"late")
            os.close(write)

    stderr = Stderr()
    with os.fdopen(read) as stdin:
        assert with_piped_text("Sum up", stdin, stderr) == "late\n\nSum up"
    assert "Waiting for the end of the text on standard input" in stderr.getvalue()
