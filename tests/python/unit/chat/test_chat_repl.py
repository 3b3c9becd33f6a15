"""Keys, interrupts and blocks, through prompt_toolkit's pipe input instead of a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import pty
import signal
import sys
import termios
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE, until
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from qwen3app.chat import repl as repl_module
from qwen3app.chat.commands import Commands
from qwen3app.chat.render import Renderer
from qwen3app.chat.repl import Repl, _CommandCompleter, _QuietTerminal, block_is_open, unwrap
from qwen3app.chat.session import ChatSession
from qwen3app.text.tool_calls import ToolCall

ENTER, ALT_ENTER, CTRL_C, CTRL_D, TAB = "\r", "\x1b\r", "\x03", "\x04", "\t"


class Terminal:
    """A Repl that reads keys from a pipe."""

    def __init__(self, session: ChatSession, renderer: Renderer, keys: PipeInput) -> None:
        self.repl = Repl(session, renderer, InMemoryHistory(), input=keys, output=DummyOutput())
        self.keys = keys

    async def type(self, text: str) -> None:
        """Sends keys and runs until the user has left."""
        self.keys.send_text(text)
        await asyncio.wait_for(self.repl.run(), PATIENCE)


@pytest.fixture
async def terminal(session: ChatSession, renderer: Renderer) -> AsyncIterator[Terminal]:
    with create_pipe_input() as keys:
        yield Terminal(session, renderer, keys)


async def test_ask_and_leave(terminal: Terminal, session: ChatSession, screen: io.StringIO) -> None:
    await terminal.type(f"Hi{ENTER}{CTRL_D}")
    assert session.messages[0]["content"] == "Hi"
    assert screen.getvalue().startswith("Hello there\n[2 tokens")


async def test_commands_and_errors(terminal: Terminal, session: ChatSession, screen: io.StringIO) -> None:
    await terminal.type(f"/set seed 9{ENTER}/nope{ENTER}broken{ENTER}{ENTER}  {ENTER}/exit{ENTER}")
    assert session.settings.seed == 9 and session.messages == []
    assert "Unknown command /nope" in screen.getvalue()
    assert "messages[0].content holds" in screen.getvalue()


async def test_alt_enter_begins_a_new_line(terminal: Terminal, session: ChatSession) -> None:
    await terminal.type(f"a{ALT_ENTER}b{ENTER}{CTRL_D}")
    assert session.messages[0]["content"] == "a\nb"


async def test_a_block_takes_lines_until_it_is_closed(terminal: Terminal, session: ChatSession) -> None:
    await terminal.type(f'"""{ENTER}a{ENTER}/exit{ENTER}"""{ENTER}{CTRL_D}')
    assert session.messages[0]["content"] == "a\n/exit"


async def test_a_pasted_text_is_one_question(terminal: Terminal, session: ChatSession) -> None:
    await terminal.type(f"\x1b[200~one\ntwo\x1b[201~{ENTER}{CTRL_D}")
    assert session.messages[0]["content"] == "one\ntwo"


async def test_two_slashes_send_a_slash(terminal: Terminal, session: ChatSession) -> None:
    await terminal.type(f"//exit{ENTER}{CTRL_D}")
    assert session.messages[0]["content"] == "/exit"


async def test_ctrl_c_at_the_prompt(terminal: Terminal, session: ChatSession, screen: io.StringIO) -> None:
    await terminal.type(f"abc{CTRL_C}{CTRL_C}Hi{ENTER}{CTRL_D}")
    assert session.messages[0]["content"] == "Hi"
    assert screen.getvalue().count("Ctrl-D or /exit leaves") == 1  # only where there was nothing to clear


async def test_tab_completes(terminal: Terminal, session: ChatSession) -> None:
    terminal.keys.send_text(f"/res{TAB}")
    running = asyncio.ensure_future(terminal.repl.run())
    await until(lambda: terminal.repl._prompt.default_buffer.text == "/reset")  # completion runs beside the keys
    session.messages.append({"role": "user", "content": "x"})
    terminal.keys.send_text(f"{ENTER}{CTRL_D}")
    await asyncio.wait_for(running, PATIENCE)
    assert session.messages == []


async def test_ctrl_c_stops_the_answer_and_keeps_the_chat(
    terminal: Terminal, session: ChatSession, runtime: Any, screen: io.StringIO
) -> None:
    runtime.hang = True

    def interrupt(generation: object) -> None:
        runtime.hang = False
        asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), signal.SIGINT)

    runtime.on_generate = interrupt
    before = signal.getsignal(signal.SIGINT)
    terminal.keys.send_text(f"Hi{ENTER}")
    running = asyncio.ensure_future(terminal.repl.run())
    while not session.messages:
        await asyncio.sleep(0.01)
    runtime.on_generate = lambda generation: None
    terminal.keys.send_text(f"More{ENTER}{CTRL_D}")
    await asyncio.wait_for(running, PATIENCE)
    assert [message["content"] for message in session.messages] == ["Hi", "Hello there", "More", "Hello there"]
    assert "· stopped]" in screen.getvalue()
    assert signal.getsignal(signal.SIGINT) is before


async def test_an_answer_that_does_not_stop_is_left(
    terminal: Terminal, session: ChatSession, runtime: Any, screen: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repl_module, "_STOP_SECONDS", 0.05)
    runtime.hang = runtime.stuck = True
    runtime.on_generate = lambda generation: asyncio.get_running_loop().call_later(
        0.05, os.kill, os.getpid(), signal.SIGINT
    )
    await terminal.type(f"Hi{ENTER}{CTRL_D}")
    assert session.messages[-1]["content"] == "Hello there"
    assert "· stopped]" in screen.getvalue()
    assert runtime.generations[0].closed


async def test_a_cancelled_chat_does_not_swallow_its_cancellation(terminal: Terminal, runtime: Any) -> None:
    runtime.hang = runtime.stuck = True
    terminal.keys.send_text(f"Hi{ENTER}")
    running = asyncio.ensure_future(terminal.repl.run())
    while not runtime.generations:
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_failing_engine_is_one_sentence(terminal: Terminal, runtime: Any, screen: io.StringIO) -> None:
    runtime.fails = True
    await terminal.type(f"Hi{ENTER}{CTRL_D}")
    assert screen.getvalue() == "Hello there\nThe engine failed.\n"


@pytest.mark.parametrize(
    ("text", "is_open"),
    [
        ('"""', True),
        ('"""a', True),
        ('"""a"""', False),
        ('""""""', False),
        ('"""""', True),
        ('a"""', False),
        ("", False),
        (' """a\n"', True),
    ],
)
def test_open_blocks(text: str, is_open: bool) -> None:
    assert block_is_open(text) is is_open


@pytest.mark.parametrize(
    ("typed", "question"),
    [('"""\na\n  b\n"""', "a\n  b"), ("  a ", "a"), ("//x", "/x"), ('""""""', ""), ('"""//x"""', "//x")],
)
def test_unwrapping(typed: str, question: str) -> None:
    assert unwrap(typed) == question


def test_completer_replaces_the_word(session: ChatSession, renderer: Renderer) -> None:
    completer = _CommandCompleter(Commands(session, renderer, None))  # type: ignore[arg-type]
    found = list(completer.get_completions(Document("/think o"), None))  # type: ignore[arg-type]
    assert [(completion.text, completion.start_position) for completion in found] == [("on", -1), ("off", -1)]


@contextlib.contextmanager
def stdin_is(descriptor: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with os.fdopen(descriptor, "r", closefd=False) as file, monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", file)
        yield


async def test_keys_do_not_show_during_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = pty.openpty()
    try:
        with stdin_is(slave, monkeypatch):
            before = termios.tcgetattr(slave)
            assert before[3] & termios.ECHO
            quiet = _QuietTerminal()
            with quiet:
                assert not termios.tcgetattr(slave)[3] & termios.ECHO
                with quiet.paused():
                    assert termios.tcgetattr(slave) == before
                assert not termios.tcgetattr(slave)[3] & termios.ECHO
            assert termios.tcgetattr(slave) == before
    finally:
        os.close(master)
        os.close(slave)


ASKS_AGAIN = "Only y, n or a and Enter is an answer; nothing runs before it."


@pytest.fixture
def wants_a_call(runtime: Any, tmp_path: Path) -> Path:
    """A file whose function the model asks for once."""
    path = tmp_path / "t.py"
    path.write_text("def f():\n '''F.'''\n return 5\n")
    runtime.script = [("", "", ToolCall("f", "{}", ""))]

    def next_round(generation: object) -> None:
        runtime.script = [("", "Done.")]

    runtime.on_generate = next_round
    return path


@pytest.mark.parametrize(
    ("lines", "result"),
    [
        ([f"y{ENTER}"], "5"),
        ([f" YES {ENTER}"], "5"),
        ([f"a{ENTER}"], "5"),
        ([f"Always{ENTER}"], "5"),
        ([f"n{ENTER}"], "permission denied"),
        ([f"No{ENTER}"], "permission denied"),
        ([CTRL_C], "permission denied"),
        ([CTRL_D], "permission denied"),
        ([f"y{CTRL_C}"], "permission denied"),
        ([f"y{CTRL_D}"], "permission denied"),
        ([f"why?{ENTER}", f"n{ENTER}"], "permission denied"),
        ([f"/retry{ENTER}", f"{ENTER}", f"yy{ENTER}", f"y{ENTER}"], "5"),
        ([f"\x1b[200~y\ny\x1b[201~{ENTER}", CTRL_C], "permission denied"),
        # What stands behind a line that was no answer belongs to it: a pasted text, of which a line is "y".
        ([f"what{ENTER}y{ENTER}", f"n{ENTER}"], "permission denied"),
    ],
)
async def test_a_call_waits_for_a_line(
    terminal: Terminal, session: ChatSession, wants_a_call: Path, screen: io.StringIO, lines: list[str], result: str
) -> None:
    terminal.keys.send_text(f"/tools {wants_a_call}{ENTER}Do it{ENTER}")
    running = asyncio.ensure_future(terminal.repl.run())
    await until(lambda: "f()\n" in screen.getvalue())
    for number, line in enumerate(lines):
        while screen.getvalue().count(ASKS_AGAIN) < number:
            await asyncio.sleep(0.01)
        assert "→" not in screen.getvalue()
        terminal.keys.send_text(line)
    await until(lambda: "tok" in screen.getvalue())
    terminal.keys.send_text(CTRL_D)
    await asyncio.wait_for(running, PATIENCE)
    assert result in session.messages[2]["content"] and session.messages[-1]["content"] == "Done."
    assert screen.getvalue().count(ASKS_AGAIN) == len(lines) - 1


@pytest.mark.parametrize("early", ["y", f"y{ENTER}"])
async def test_keys_typed_before_the_question_do_not_answer_it(
    terminal: Terminal, session: ChatSession, wants_a_call: Path, screen: io.StringIO, early: str
) -> None:
    running = asyncio.ensure_future(terminal.repl.run())
    terminal.keys.send_text(f"/tools {wants_a_call}{ENTER}")
    await until(lambda: session.tools)
    terminal.keys.send_text(f"Do it{ENTER}{early}")  # one read of the terminal gives all of it
    await until(lambda: "f()\n" in screen.getvalue())
    terminal.keys.send_text(f"n{ENTER}")
    await until(lambda: "tok" in screen.getvalue())
    terminal.keys.send_text(CTRL_D)
    await asyncio.wait_for(running, PATIENCE)
    assert "permission denied" in session.messages[2]["content"] and ASKS_AGAIN not in screen.getvalue()


async def test_a_file_goes_along(terminal: Terminal, session: ChatSession, tmp_path: Path, screen: io.StringIO) -> None:
    (tmp_path / "a.txt").write_text("inside")
    await terminal.type(f"Read @{tmp_path}/a.txt{ENTER}{CTRL_D}")
    assert "inside" in session.messages[0]["content"] and "1 line added." in screen.getvalue()


async def test_a_block_takes_no_files_along(terminal: Terminal, session: ChatSession, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("inside")
    await terminal.type(f'"""{ENTER}see @{tmp_path}/a.txt{ENTER}"""{ENTER}{CTRL_D}')
    assert session.messages[0]["content"] == f"see @{tmp_path}/a.txt"


def test_paths_are_completed(session: ChatSession, renderer: Renderer, tmp_path: Path) -> None:
    (tmp_path / "a-file.txt").write_text("")
    completer = _CommandCompleter(Commands(session, renderer, None))  # type: ignore[arg-type]
    for text in (f"see @{tmp_path}/a-", f"/save {tmp_path}/a-", f"/tools {tmp_path}/a-"):
        found = list(completer.get_completions(Document(text), CompleteEvent()))
        assert [completion.text for completion in found] == ["file.txt"], text
    assert not list(completer.get_completions(Document(f"mail@{tmp_path}/a-"), CompleteEvent()))
