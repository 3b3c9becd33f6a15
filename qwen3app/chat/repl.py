"""The interactive chat: reads lines with prompt_toolkit, runs commands, shows answers.

Owns the keys and what an interrupt means: at the prompt Ctrl-C clears the line or hints how to leave, during an answer
it stops the answer, and a second one leaves the answer where it is. Refuses to know sampling, tokens and looks.
Runs on the event loop's thread, which must be the main thread (signals).
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import aclosing
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import History
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output

from qwen3app.chat.commands import Commands, Leave
from qwen3app.chat.render import Renderer
from qwen3app.chat.session import ChatSession
from qwen3app.errors import AppError
from qwen3app.text.errors import TextError

_BLOCK = '"""'
_STOP_SECONDS = 1.0  # how long a stopped answer may take to end before it is left; a step of a small CPU can be longer


class _CommandCompleter(Completer):
    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        for word, meaning, length in self._commands.complete(document.text_before_cursor):
            yield Completion(word, start_position=-length, display_meta=meaning)


def block_is_open(text: str) -> bool:
    """True while a block that \"\"\" opened waits for the \"\"\" that closes it."""
    stripped = text.strip()
    return stripped.startswith(_BLOCK) and (len(stripped) < 2 * len(_BLOCK) or not stripped.endswith(_BLOCK))


def unwrap(text: str) -> str:
    """The question in a typed text: without the \"\"\" of a block, without the slash that escapes a slash."""
    stripped = text.strip()
    if stripped.startswith(_BLOCK) and not block_is_open(stripped):
        return stripped[len(_BLOCK) : -len(_BLOCK)].strip("\n")
    return stripped[1:] if stripped.startswith("//") else stripped


def key_bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter", eager=True)
    def _enter(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if block_is_open(buffer.text):
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @bindings.add("escape", "enter")  # Alt-Enter arrives as these two
    def _newline(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return bindings


class Repl:
    def __init__(
        self,
        session: ChatSession,
        renderer: Renderer,
        history: History,
        *,
        input: Input | None = None,
        output: Output | None = None,
    ) -> None:
        self._session = session
        self._renderer = renderer
        self._commands = Commands(session, renderer)
        self._prompt: PromptSession[str] = PromptSession(
            "> ",
            multiline=True,
            prompt_continuation=lambda width, line, wrapped: "" if wrapped else "." * (width - 1) + " ",
            history=history,
            completer=_CommandCompleter(self._commands),
            complete_while_typing=False,
            key_bindings=key_bindings(),
            enable_open_in_editor=False,
            input=input,
            output=output,
        )

    async def run(self) -> None:
        """Reads and answers until the user leaves."""
        while True:
            try:
                typed = await self._prompt.prompt_async()
            except KeyboardInterrupt:
                if not self._prompt.default_buffer.text:
                    self._renderer.notice("Ctrl-D or /exit leaves the chat.")
                continue
            except EOFError:
                return
            try:
                if await self._handle(typed):
                    return
            except (AppError, TextError) as error:
                self._renderer.error(str(error))

    async def _handle(self, typed: str) -> bool:
        """Does one typed text; True: leave."""
        line = typed.strip()
        if self._commands.is_command(line):
            try:
                self._commands.run(line)
            except Leave:
                return True
        elif question := unwrap(typed):
            with _interrupt_calls(self._interrupt), _no_echo():
                await self._answer(question)
        return False

    async def _answer(self, question: str) -> None:
        self._renderer.begin()
        self._left = False
        self._answering = asyncio.ensure_future(self._show(question))
        try:
            await self._answering
        except asyncio.CancelledError:
            if not self._left:  # the whole chat is being cancelled
                raise
            self._session.stats.finish = "abort"
        self._renderer.end(self._session.stats)

    async def _show(self, question: str) -> None:
        async with aclosing(self._session.ask(question)) as pieces:
            async for piece in pieces:
                self._renderer.piece(piece)

    def _interrupt(self) -> None:
        self._session.stop()
        asyncio.get_running_loop().call_later(_STOP_SECONDS, self._leave, self._answering)

    def _leave(self, answering: asyncio.Future[None]) -> None:
        """The answer did not end within its time: goes on without it."""
        if answering is self._answering:
            self._left = answering.cancel()


@contextlib.contextmanager
def _interrupt_calls(function: Any) -> Iterator[None]:
    """Ctrl-C calls `function` on the event loop for as long as this lasts."""
    loop = asyncio.get_running_loop()
    before = signal.getsignal(signal.SIGINT)
    loop.add_signal_handler(signal.SIGINT, function)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _no_echo() -> Iterator[None]:
    """Keys typed during an answer do not show inside it; the terminal keeps them for the next prompt."""
    try:
        import termios

        descriptor = sys.stdin.fileno()
        before = termios.tcgetattr(descriptor)
    except (ImportError, OSError, ValueError, termios.error):  # no terminal
        yield
        return
    quiet = list(before)
    quiet[3] &= ~termios.ECHO
    termios.tcsetattr(descriptor, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)
