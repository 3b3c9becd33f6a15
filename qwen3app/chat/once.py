"""One question, one answer: `chat --once`, `echo question | chat`, and both together.

Owns the streams' meaning: stdout gets the answer and nothing else, byte for byte when it is not a terminal and as a
conversation shows it when it is; stderr gets what was asked for (thoughts, numbers) and what went wrong. Runs on the
event loop's thread.
"""

from __future__ import annotations

import os
import select
import stat
from contextlib import aclosing
from typing import BinaryIO, TextIO

from rich.console import Console

from qwen3app.chat.attachments import MAX_BYTES
from qwen3app.chat.backend import Piece
from qwen3app.chat.errors import ChatError
from qwen3app.chat.render import Renderer, cut_sentence, stats_line
from qwen3app.chat.sanitize import sanitize
from qwen3app.chat.session import ChatSession

_HINT_SECONDS = 2.0


def read_question(stream: BinaryIO) -> str:
    """The question on stdin, as UTF-8 text without NUL."""
    text = _read_text(stream, "The question on stdin")
    if not text.strip():
        raise ChatError('The question on stdin is empty: pipe a text, or give it with --once "question".')
    return text.strip("\n")


def with_piped_text(question: str, stdin: TextIO, stderr: TextIO) -> str:
    """The question behind the text that is piped to stdin, if any: `cat notes | chat --once "Sum this up."`

    Only a pipe, a socket or a file holds such a text. A pipe that nobody writes to is waited for, since a slow program
    may be behind it; stderr says so."""
    try:
        mode = os.fstat(stdin.fileno()).st_mode
    except (OSError, ValueError):  # no stdin
        return question
    if not (stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)):
        return question
    if not select.select([stdin], [], [], _HINT_SECONDS)[0]:
        stderr.write("Waiting for the end of the text on standard input (< /dev/null: there is none).\n")
        stderr.flush()
    text = _read_text(stdin.buffer, "The text on stdin").strip("\n")
    return f"{text}\n\n{question}" if text.strip() else question


def _read_text(stream: BinaryIO, what: str) -> str:
    data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:  # `yes | ...` has no end
        raise ChatError(f"{what} is longer than {MAX_BYTES >> 20} MiB, more than a context holds.")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ChatError(f"{what} is not UTF-8: byte {error.start} is 0x{data[error.start]:02x}.") from None
    if (position := text.find("\0")) >= 0:
        raise ChatError(f"{what} holds a NUL character at position {position}; is it a text?")
    return text


class _Notes:
    """What goes to stderr. Where that takes nothing any more (a full disk, a reader who has gone), notes are lost: the
    answer must not be."""

    def __init__(self, stderr: TextIO) -> None:
        self._stderr: TextIO | None = stderr
        self._in_line = False

    def write(self, text: str) -> None:
        if self._stderr is None:
            return
        try:
            self._stderr.write(text)
            self._stderr.flush()
        except OSError:
            self._stderr = None
        self._in_line = not text.endswith("\n")

    def end_line(self) -> None:
        if self._in_line:
            self.write("\n")


async def ask_once(
    session: ChatSession,
    question: str,
    stdout: TextIO,
    stderr: TextIO,
    *,
    show_thinking: bool = False,
    show_stats: bool = False,
) -> None:
    """Streams the answer to stdout and ends it with a newline. A thought's line on stderr ends before the answer goes
    on, so that where both go to one screen the answer does not continue it."""
    terminal = Renderer(Console(file=stdout, highlight=False)) if stdout.isatty() else None
    last = ""
    notes = _Notes(stderr)
    try:
        async with aclosing(session.ask(question)) as pieces:
            async for piece in pieces:
                assert isinstance(piece, Piece)  # without tools there are no calls
                if piece.kind == "thought":
                    if show_thinking:
                        notes.write(sanitize(piece.text))
                    continue
                notes.end_line()
                if terminal is not None:
                    terminal.piece(piece)
                else:
                    stdout.write(piece.text)
                    stdout.flush()
                    last = piece.text
    finally:
        notes.end_line()
    if terminal is not None:
        terminal.end_part()
    if last and not last.endswith("\n"):
        stdout.write("\n")
        stdout.flush()
    no_thought = "--no-think" if session.think else None
    if sentence := cut_sentence(session.stats, "--max-tokens N", no_thought=no_thought, has_earlier=False):
        notes.write(f"{sentence}\n")
    if show_stats:
        notes.write(f"{stats_line(session.stats)}\n")
