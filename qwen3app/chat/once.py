"""One question, one answer: `chat --once` and `echo question | chat`.

Owns the streams' meaning: stdout gets the answer and nothing else, byte for byte when it is not a terminal; stderr gets
what was asked for (thoughts, numbers) and what went wrong. Runs on the event loop's thread.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import BinaryIO, TextIO

from qwen3app.chat.errors import ChatError
from qwen3app.chat.render import cut_sentence, stats_line
from qwen3app.chat.sanitize import sanitize
from qwen3app.chat.session import ChatSession


def read_question(stream: BinaryIO) -> str:
    """The question on stdin, as UTF-8 text without NUL."""
    data = stream.read()
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ChatError(
            f"The question on stdin is not UTF-8: byte {error.start} is 0x{data[error.start]:02x}."
        ) from None
    if (position := text.find("\0")) >= 0:
        raise ChatError(f"The question on stdin holds a NUL character at position {position}; is it a text?")
    if not text.strip():
        raise ChatError('The question on stdin is empty: pipe a text, or give it with --once "question".')
    return text.strip("\n")


async def ask_once(
    session: ChatSession,
    question: str,
    stdout: TextIO,
    stderr: TextIO,
    *,
    show_thinking: bool = False,
    show_stats: bool = False,
) -> None:
    """Streams the answer to stdout and ends it with a newline."""
    for_terminal = stdout.isatty()
    last = ""
    async with aclosing(session.ask(question)) as pieces:
        async for piece in pieces:
            if piece.kind == "answer":
                stdout.write(sanitize(piece.text) if for_terminal else piece.text)
                stdout.flush()
                last = piece.text
            elif show_thinking:
                stderr.write(sanitize(piece.text))
                stderr.flush()
        if show_thinking and session.stats.thought_tokens:
            stderr.write("\n")
    if last and not last.endswith("\n"):
        stdout.write("\n")
        stdout.flush()
    if sentence := cut_sentence(session.stats, "--max-tokens N"):
        stderr.write(f"{sentence}\n")
    if show_stats:
        stderr.write(f"{stats_line(session.stats)}\n")
