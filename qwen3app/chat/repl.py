"""The interactive chat: reads lines with prompt_toolkit, runs commands, shows answers.

Owns the keys and what an interrupt means: at the prompt Ctrl-C clears the line or hints how to leave, during an answer
it stops the answer, and where that does not end in time the answer is left where it is. Owns the question whether a
tool may run. Refuses to know sampling, tokens and looks.
Runs on the event loop's thread, which must be the main thread (signals).
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import re
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import aclosing
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import DummyHistory, History
from prompt_toolkit.input import Input
from prompt_toolkit.input.typeahead import clear_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output

from qwen3app.chat.attachments import with_files
from qwen3app.chat.backend import Call
from qwen3app.chat.commands import Commands, Leave
from qwen3app.chat.render import Renderer
from qwen3app.chat.session import ChatSession
from qwen3app.chat.status_bar import status_line
from qwen3app.chat.tools import Consent, Tools
from qwen3app.chat.wrap import break_lines
from qwen3app.errors import AppError
from qwen3app.text.errors import TextError

_BLOCK = '"""'
_PATH_TO_COMPLETE = re.compile(r"(?:^/(?:save|load|tools)\s+|(?<!\S)@)(\S*)$")
_CONSENTS: dict[str, Consent] = {"y": "yes", "yes": "yes", "n": "no", "no": "no", "a": "always", "always": "always"}
_CONSENT_QUESTION = "Run it? [y]es, [n]o, [a]lways this function:"
_STOP_SECONDS = 1.0  # how long a stopped answer may take to end before it is left; a step of a small CPU can be longer


class _CommandCompleter(Completer):
    """Commands and what they take; paths behind /save, /load, /tools and @."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        for word, meaning, length in self._commands.complete(text):
            yield Completion(word, start_position=-length, display=word.rstrip(), display_meta=meaning)
        if match := _PATH_TO_COMPLETE.search(text):
            yield from self._paths.get_completions(Document(match.group(1)), complete_event)


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
        self._tools = Tools(session, renderer, self._consent)
        self._commands = Commands(session, renderer, self._tools)
        self._input, self._output = input, output
        self._terminal = _QuietTerminal()
        self._prompt: PromptSession[str] = PromptSession(
            "> ",
            multiline=True,
            prompt_continuation=lambda width, line, wrapped: "" if wrapped else "." * (width - 1) + " ",
            history=history,
            completer=_CommandCompleter(self._commands),
            complete_while_typing=False,
            key_bindings=key_bindings(),
            enable_open_in_editor=True,  # Ctrl-X Ctrl-E, as in a shell
            enable_suspend=True,
            tempfile_suffix=".md",
            bottom_toolbar=self._status,
            input=input,
            output=output,
        )

    async def run(self) -> None:
        """Reads and answers until the user leaves."""
        try:
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
        finally:
            await self._tools.close()

    async def _handle(self, typed: str) -> bool:
        """Does one typed text; True: leave."""
        line = typed.strip()
        question: str | None = None
        if self._commands.is_command(line):
            with _interrupt_calls(self._tools.stop):
                try:
                    outcome = self._commands.run(line)
                except Leave:
                    return True
                if inspect.isawaitable(outcome):
                    await outcome
                else:
                    question = outcome
        elif line.startswith(_BLOCK):
            question = unwrap(typed)  # pasted perhaps: an @path in it is nobody's wish
        elif unwrapped := unwrap(typed):
            attached = with_files(unwrapped)
            for note in attached.notes:
                self._renderer.notice(note)
            question = attached.text
        if question:
            with _interrupt_calls(self._interrupt), self._terminal:
                await self._answer(question)
        with _interrupt_calls(lambda: None), self._terminal:
            await self._session.recount()
        return False

    def _status(self) -> str:
        return status_line(self._session, get_app().output.get_size().columns)

    async def _consent(self, call: Call) -> Consent:
        """Asks whether this call may run, until a whole line is an answer: a stray key or word approves nothing. What
        was typed before the question, and behind a line that was no answer, is no answer to it."""
        bindings = KeyBindings()
        for key in ("c-c", "c-d"):
            bindings.add(key)(lambda event: event.app.exit(result="no"))
        prompt: PromptSession[str] = PromptSession(
            lambda: break_lines(_CONSENT_QUESTION, get_app().output.get_size().columns - 1) + " ",
            key_bindings=bindings,
            history=DummyHistory(),
            enable_suspend=True,
            input=self._input,
            output=self._output,
        )
        while True:
            clear_typeahead(self._prompt.app.input)  # keys that were read with the question
            _forget_typed_keys()
            # The interrupt handler of the answer stays: prompt_toolkit would remove it.
            with self._terminal.paused():
                typed = await prompt.prompt_async(handle_sigint=False)
            if consent := _CONSENTS.get(typed.strip().lower()):
                return consent
            self._renderer.notice("Only y, n or a and Enter is an answer; nothing runs before it.")

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
        session = self._session
        self._renderer.end(session.stats, think=session.think, has_earlier=session.n_turns > 1)

    async def _show(self, question: str) -> None:
        async with aclosing(self._session.ask(question)) as pieces:
            async for piece in pieces:
                if isinstance(piece, Call):
                    self._renderer.call(piece)
                else:
                    self._renderer.piece(piece)

    def _interrupt(self) -> None:
        self._session.stop()
        self._tools.stop()
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


def _forget_typed_keys() -> None:
    with contextlib.suppress(ImportError, OSError, ValueError):
        import termios

        with contextlib.suppress(termios.error):
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


class _QuietTerminal:
    """While entered, keys typed during an answer do not show inside it; the terminal keeps them for the next prompt.
    Ctrl-Z gives the shell a terminal as it was, and `fg` goes on with a quiet one."""

    def __init__(self) -> None:
        self._before: list[Any] | None = None  # the terminal's modes; None: there is no terminal

    def __enter__(self) -> None:
        with contextlib.suppress(ImportError, OSError, ValueError):
            import termios

            with contextlib.suppress(termios.error):
                self._before = termios.tcgetattr(sys.stdin.fileno())
        self._hush()

    def __exit__(self, *_: object) -> None:
        self._restore()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """For a question in between, whose prompt does all this by itself."""
        self._restore()
        try:
            yield
        finally:
            self._hush()

    def _hush(self) -> None:
        if self._before is not None:
            import termios

            quiet = list(self._before)
            quiet[3] &= ~termios.ECHO
            asyncio.get_running_loop().add_signal_handler(signal.SIGTSTP, self._suspend)
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, quiet)

    def _restore(self) -> None:
        if self._before is not None:
            import termios

            termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, self._before)
            asyncio.get_running_loop().remove_signal_handler(signal.SIGTSTP)

    def _suspend(self) -> None:
        with self.paused():
            # The signal itself, not SIGSTOP: where no shell would wake this process, it does nothing.
            os.kill(os.getpid(), signal.SIGTSTP)
