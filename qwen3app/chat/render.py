"""What the chat writes to the terminal.

Owns the look: dimmed thoughts, markdown, tool calls, the line of numbers, notices and errors. Refuses to know the
session, keys and commands. Everything a model, file, tool or user wrote passes sanitize() here and nowhere else.
Nothing that has been written is written again. On a terminal all lines are broken between words (wrap.py), so that
paths, and commands between backticks, stay whole for who copies them. Runs on the event loop's thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import textwrap
import time
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.segment import Segment, Segments
from rich.style import Style

from qwen3app.chat.backend import Call, Piece, TurnStats
from qwen3app.chat.markdown import Markdown
from qwen3app.chat.sanitize import sanitize, sanitize_line
from qwen3app.chat.wrap import Span, WordWrap, break_lines, line_width

if TYPE_CHECKING:
    from rich.console import Console

_THOUGHT_STYLE = "dim italic"
_NOTE_STYLE = "dim"
_ERROR_STYLE = "red"
_CALL_STYLE = "bold"
_MOST_SHOWN = 600  # characters of a tool's result
_LEAST_MEANING = 30  # columns beside a name; with fewer it stands below


def format_seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"


def stats_line(stats: TurnStats) -> str:
    """Tokens, seconds, tokens per second, time to first token, cached tokens, and why it ended if not by itself; of all
    that what is known."""
    parts = [f"{stats.tokens} token{'' if stats.tokens == 1 else 's'}"] if stats.has_usage else []
    parts.append(format_seconds(stats.seconds))
    if stats.tokens_per_second is not None:
        parts.append(f"{stats.tokens_per_second:.1f} tok/s")
    if stats.first_seconds is not None:
        parts.append(f"first after {format_seconds(stats.first_seconds)}")
    if stats.has_usage:
        cached = "prompt" if stats.cached_tokens is None else f"cached {stats.cached_tokens} of"
        parts.append(f"{cached} {stats.prompt_tokens}")
    if stats.finish == "abort":
        parts.append("stopped")
    return "[" + " · ".join(parts) + "]"


def cut_sentence(stats: TurnStats, how: str, *, no_thought: str | None, has_earlier: bool) -> str | None:
    """Why an answer is incomplete, or None. how, no_thought: what raises max_tokens and what turns thoughts off here, a
    command or a flag; no_thought is None where they are off. has_earlier: turns before this one take room, too."""
    if stats.is_empty:
        return "The model ended its answer without a word; ask in other words."
    if stats.finish != "length":
        return None
    if stats.context_full:
        ways = ["/reset begins a new conversation"] if has_earlier else []
        ways += [f"{stats.more_context} makes room"] if stats.more_context else []
        if stats.cut_in_thought and no_thought:
            ways.append(f"{no_thought} asks without thinking")
        what = "thought used up the context" if stats.cut_in_thought else "context is full"
        result = "there is no answer" if stats.cut_in_thought else "the answer is cut"
        return f"The {what} and {result}: {', '.join(ways) or 'ask for something shorter'}."
    if stats.cut_in_thought:
        limit = f" ({stats.last_round_tokens})" if stats.has_usage else ""
        without = f", or ask without thinking ({no_thought})" if no_thought else ""
        return f"The thought used up max_tokens{limit} and there is no answer: raise it ({how}){without}."
    place = f"after {stats.tokens} token{'' if stats.tokens == 1 else 's'}" if stats.has_usage else "at max_tokens"
    return f"The answer is cut {place}: raise max_tokens for longer ones ({how})."


def _arguments(text: str) -> str:
    """A call's JSON as Python would write the arguments, or as it is where it is no object."""
    try:
        found = json.loads(text or "{}")
        if isinstance(found, dict):
            text = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in found.items())
    except (ValueError, RecursionError):
        pass
    # Characters that show nothing, or change the order of others, would hide what the user says yes to.
    text = "".join(
        char.encode("unicode_escape").decode() if unicodedata.category(char) == "Cf" else char for char in text
    )
    return sanitize_line(text)


class Renderer:
    """Writes one chat to a rich console. What an answer consists of comes between begin() and end()."""

    def __init__(self, console: Console, *, show_thinking: bool = True) -> None:
        self.show_thinking = show_thinking
        self._can_draw = console.is_terminal and not console.is_dumb_terminal
        self.markdown = self._can_draw  # where nothing can be bold, the marks are all there is
        self.verbose = True  # a line of numbers under each answer
        self._console = console
        self._kind: str | None = None  # kind of the piece written last in this answer
        self._thought_began = 0.0
        self._answer: Markdown | None = None  # while an answer is being written as markdown
        self._wrap: WordWrap | None = None  # of the part that is being written, if its lines are broken between words
        self._at_line_start = True

    def begin(self) -> None:
        self._kind = None
        self._answer = self._wrap = None
        self._at_line_start = True

    def piece(self, piece: Piece) -> None:
        if piece.kind != self._kind:
            self._change(piece.kind)
        text = sanitize(piece.text)
        if piece.kind == "thought":
            if self.show_thinking:
                self._flow([Span(text, _THOUGHT_STYLE)])
        elif self.markdown:
            if self._answer is None:
                self._answer = Markdown()
            self._flow(self._answer.feed(text))
        else:
            self._write(text, None)

    def _change(self, kind: str) -> None:
        """Sets thought and answer apart."""
        if self._kind is not None:
            self.end_part()
            self._write("\n", None)
        if kind == "thought":
            self._thought_began = time.monotonic()
            self._write("Thinking:\n" if self.show_thinking else "Thinking...", _NOTE_STYLE)
        self._kind = kind

    def call(self, call: Call) -> None:
        """The model wants a tool to be run, with these arguments: all of them, as the user decides by them."""
        self.end_part()
        self._kind = None
        self._line(f"{sanitize_line(call.name)}({_arguments(call.arguments)})", _CALL_STYLE)

    def tool_result(self, result: str, printed: str = "") -> None:
        """What a tool has printed and returned, a long text cut: the model gets all of it."""
        for text, mark in ((printed.rstrip("\n"), "│ "), (result, "→ ")):
            if text:
                shown = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}... ({len(text)} characters)"
                self._line(mark + sanitize(shown).replace("\n", f"\n{mark}"), _NOTE_STYLE)

    def end(self, stats: TurnStats, *, think: bool = True, has_earlier: bool = False) -> None:
        """Ends the answer with its line of numbers, and says why it is incomplete if it is: see cut_sentence."""
        self.end_part()
        self._kind = None
        no_thought = "/think off" if think else None
        if sentence := cut_sentence(stats, "/set max_tokens N", no_thought=no_thought, has_earlier=has_earlier):
            self._prose(sentence, _NOTE_STYLE)
        if self.verbose:
            self._prose(stats_line(stats), _NOTE_STYLE)
        elif stats.finish == "abort":
            self.notice("[stopped]")

    def answer(self, text: str) -> None:
        """A whole text, as an answer is shown."""
        self.begin()
        self.piece(Piece("answer", text))
        self.end_part()

    def thought(self, text: str) -> None:
        self._prose(text, _THOUGHT_STYLE)

    def end_part(self) -> None:
        """Ends the thought or the answer that is being written, and its line."""
        if self._kind == "thought" and not self.show_thinking and not self._at_line_start:
            self._write(f" {format_seconds(time.monotonic() - self._thought_began)}", _NOTE_STYLE)
        if self._answer is not None:
            self._flow(self._answer.finish())
            self._answer = None
        if self._wrap is not None:
            self._put(self._wrap.finish())
            self._wrap = None
        self._end_line()

    def control(self, sequence: str) -> None:
        """A sequence of ours for the terminal, which shows nothing."""
        if self._can_draw:
            self._console.file.write(sequence)
            self._console.file.flush()

    def notice(self, text: str) -> None:
        self._line(text, _NOTE_STYLE)

    def error(self, text: str) -> None:
        """One sentence about what went wrong."""
        self._line(sanitize_line(text), _ERROR_STYLE)

    def plain(self, text: str) -> None:
        self._line(text, None)

    def table(self, rows: Sequence[tuple[str, str]]) -> None:
        """Names and what they stand for, side by side where the window has room for that."""
        width = max(len(name) for name, _ in rows)
        indent = " " * (width + 2)
        lines = []
        for name, meaning in rows:
            if self._columns() < len(indent) + _LEAST_MEANING:
                lines += [name, *self._wrapped(meaning, "  ")]
            else:
                first, *others = self._wrapped(meaning, indent)
                lines += [f"{name:{width}}  {first.lstrip()}", *others]
        self.plain("\n".join(lines))

    def paragraphs(self, text: str) -> None:
        self.plain("\n".join(line for each in text.rstrip("\n").split("\n") for line in self._wrapped(each, "")))

    def _wrapped(self, text: str, indent: str) -> list[str]:
        """At least one line."""
        lines = textwrap.wrap(
            sanitize(text),
            max(line_width(self._columns()), len(indent) + 1),
            initial_indent=indent,
            subsequent_indent=indent,
            break_on_hyphens=False,
            replace_whitespace=False,
        )
        return lines or [""]

    def _columns(self) -> int:
        """The window's width, now. An exported COLUMNS, which rich believes, does not know of a change."""
        if self._can_draw:
            with contextlib.suppress(OSError, ValueError):  # no file of the system, or no terminal behind it
                return os.get_terminal_size(self._console.file.fileno()).columns or self._console.width
        return self._console.width

    def _line(self, text: str, style: str | None) -> None:
        self.end_part()
        text = sanitize(text)
        self._write((break_lines(text, self._columns()) if self._can_draw else text) + "\n", style)

    def _end_line(self) -> None:
        if not self._at_line_start:
            self._write("\n", None)

    def _flow(self, spans: list[Span]) -> None:
        """Writes a part's text, on a terminal with its lines broken between words."""
        if self._can_draw:
            if self._wrap is None:
                self._wrap = WordWrap(self._columns)
            spans = self._wrap.feed(spans)
        self._put(spans)

    def _prose(self, text: str, style: str) -> None:
        """A line of its own, broken as answers are."""
        self.end_part()
        self._flow([Span(sanitize(text), style)])
        self.end_part()

    def _write(self, text: str, style: str | None) -> None:
        self._put([Span(text, style or "")])

    def _put(self, spans: Sequence[Span]) -> None:
        # Segments pass through rich as they are: no markup, no wrapping, no expanded tabs.
        segments = [Segment(span.text, Style.parse(span.style) if span.style else None) for span in spans if span.text]
        if segments:
            self._console.print(Segments(segments), end="", soft_wrap=True)
            self._console.file.flush()
            self._at_line_start = segments[-1].text.endswith("\n")
