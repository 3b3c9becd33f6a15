"""What the chat writes to the terminal.

Owns the look: dimmed thoughts, the line of numbers, notices and errors. Refuses to know the session, keys and
commands. Everything a model, file or user wrote passes sanitize() here and nowhere else. Answers are written as they
are, unwrapped: the terminal breaks lines itself and knows how wide its characters are. Runs on the event loop's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.segment import Segment, Segments
from rich.style import Style

from qwen3app.chat.sanitize import sanitize, sanitize_line
from qwen3app.chat.session import Piece, TurnStats

if TYPE_CHECKING:
    from rich.console import Console

_THOUGHT_STYLE = "dim italic"
_NOTE_STYLE = "dim"
_ERROR_STYLE = "red"


def format_seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"


def stats_line(stats: TurnStats) -> str:
    """Tokens, seconds, tokens per second, time to first token, cached tokens, and why it ended if not by itself."""
    parts = [f"{stats.tokens} token{'' if stats.tokens == 1 else 's'}", format_seconds(stats.seconds)]
    if stats.tokens_per_second is not None:
        parts.append(f"{stats.tokens_per_second:.1f} tok/s")
    if stats.first_seconds is not None:
        parts.append(f"first after {format_seconds(stats.first_seconds)}")
    parts.append(f"cached {stats.cached_tokens} of {stats.prompt_tokens}")
    if stats.finish == "abort":
        parts.append("stopped")
    return "[" + " · ".join(parts) + "]"


def cut_sentence(stats: TurnStats, how: str) -> str | None:
    """Why an answer is incomplete, or None. how: what raises max_tokens here, a command or a flag."""
    if stats.finish != "length":
        return None
    if stats.context_full:
        return (
            "The context is full and the answer is cut: /reset begins a new conversation, "
            f"{stats.more_context} makes room."
        )
    return f"The answer is cut after {stats.tokens} tokens: raise max_tokens for longer ones ({how})."


class Renderer:
    """Writes one chat to a rich console. The answer's pieces come between begin() and end()."""

    def __init__(self, console: Console, *, show_thinking: bool = True) -> None:
        self.show_thinking = show_thinking
        self._console = console
        self._kind: str | None = None  # kind of the piece written last in this answer
        self._at_line_start = True

    def begin(self) -> None:
        self._kind = None
        self._at_line_start = True

    def piece(self, piece: Piece) -> None:
        text = sanitize(piece.text)
        if piece.kind == "thought" and not self.show_thinking:
            if self._kind is None:
                self._write("Thinking...", _NOTE_STYLE)
                self._kind = "thought"
            return
        if piece.kind != self._kind:
            if self._kind is not None:  # between the thought and the answer
                self._end_line()
                self._write("\n", None)
            elif piece.kind == "thought":
                self._write("Thinking:\n", _NOTE_STYLE)
            self._kind = piece.kind
        self._write(text, _THOUGHT_STYLE if piece.kind == "thought" else None)

    def end(self, stats: TurnStats) -> None:
        """Ends the answer with its line of numbers, and says why it is incomplete if it is."""
        self._end_line()
        self._kind = None
        if sentence := cut_sentence(stats, "/set max_tokens N"):
            self.notice(sentence)
        self.notice(stats_line(stats))

    def notice(self, text: str) -> None:
        self._line(text, _NOTE_STYLE)

    def error(self, text: str) -> None:
        """One sentence about what went wrong."""
        self._line(sanitize_line(text), _ERROR_STYLE)

    def plain(self, text: str) -> None:
        self._line(text, None)

    def _line(self, text: str, style: str | None) -> None:
        self._end_line()
        self._write(sanitize(text) + "\n", style)

    def _end_line(self) -> None:
        if not self._at_line_start:
            self._write("\n", None)

    def _write(self, text: str, style: str | None) -> None:
        if text:
            # Segments pass through rich as they are: no markup, no wrapping, no expanded tabs.
            segment = Segment(text, Style.parse(style) if style else None)
            self._console.print(Segments([segment]), end="", soft_wrap=True)
            self._console.file.flush()
            self._at_line_start = text.endswith("\n")
