"""Lines broken between words while a text comes: styled spans in, the same spans with line ends between words out.

Owns where a line ends and what stands before its next part: the indent of the line or of the list's text, or the mark
of a quotation. A word with half a line before it is written as it comes. Nearer to the edge it waits until it ends (and
fits) or grows over the edge (and goes to the next line). So much of a text does not wait, what has been written stays,
and only a very long word can meet the edge: that one the terminal breaks, and it is still one to whoever copies it.
Of a text that is here as a whole every word waits, and what stands between backticks, a command to copy, is one word.
Chinese and Japanese, and emoji, break between characters, but not before closing nor after opening punctuation. Refuses
to know what a mark means (markdown.py says which spans may break), colours, and the terminal's lines above.

Invariant: while the width stays, the output is the same text in the same styles however the input is cut. Blanks where
a line is broken go; nothing else is lost, and nothing but line ends and indents is added. A new width counts for what
comes after it.
One part of an answer, one thread.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

from rich.cells import cell_len

# text: may be broken. mark: begins a line, whose next parts are indented to where it ends. quote: the same, and they
# begin with it. fixed: as it is, such as code.
Flow = Literal["text", "mark", "quote", "fixed"]


class Span(NamedTuple):
    text: str
    style: str  # rich's words, "" for none
    flow: Flow = "text"


_PARTS = re.compile(r"[!-~]+|.", re.DOTALL)  # what is looked at together: nothing parts such letters
_TAB = 8
_LONG = 30  # columns; where half a line is less, words of that length are kept whole all the same
_COMMAND = re.compile(r"`[^`\n]+`")
_KEPT_BLANK = "\ue000"  # stands for a blank of a command meanwhile; a private character
_JOINED = "\ufe0f"  # belongs to the character before it, and may widen it; others that do have no width
# Small kana; with closing marks, punctuation and marks of repetition they begin no line.
_SMALL_KANA = frozenset("ぁぃぅぇぉっゃゅょゎゕゖァィゥェォッャュョヮヵヶ")
_BEGINS_NO_LINE = ("Pe", "Pf", "Po", "Lm")
_ENDS_NO_LINE = ("Ps", "Pi")
_HANGUL = ((0x1100, 0x11FF), (0x3130, 0x318F), (0xA960, 0xA97F), (0xAC00, 0xD7FF))  # words with blanks between them


def line_width(columns: int) -> int:
    """Of a window, what is used: some terminals break after a line as wide as they are."""
    return max(columns - 1, 1)


class WordWrap:
    """feed() it spans and write what it returns; finish() returns the rest. columns: the width of the window, now.
    waits: every word is held until it ends, not only those near the edge."""

    def __init__(self, columns: Callable[[], int], *, waits: bool = False) -> None:
        self._get_columns = columns
        self._always_waits = waits
        self._columns = 0
        self._out: list[tuple[list[str], str]] = []  # of this call: texts of one style
        self._column = 0  # behind what has been written
        self._ahead = 0  # behind what is held as well
        self._space: list[Span] = []  # blanks held, then
        self._word: list[tuple[Span, int]] = []  # the word held, in parts with their widths
        self._in_word = False
        self._waits = False  # the word begun is held
        self._has_word = False  # the line has one
        self._hang = Span("", "")  # what the line's next parts begin with
        self._tail = ""  # the last two characters: those that join need them
        self._base = ""  # the last character that joins none

    def feed(self, spans: Iterable[Span]) -> list[Span]:
        self._see_width()
        for span in spans:
            if span.flow == "text":
                for part in _PARTS.findall(span.text):
                    self._part(part, span.style)
            else:
                self._whole(span)
        return self._taken()

    def finish(self) -> list[Span]:
        self._see_width()
        self._release()
        return self._taken()

    # ---------------------------------------------------------------------------------------------- what is written

    def _taken(self) -> list[Span]:
        out, self._out = self._out, []
        return [Span("".join(texts), style) for texts, style in out]

    def _write(self, span: Span) -> None:
        if not self._out or self._out[-1][1] != span.style:
            self._out.append(([], span.style))
        self._out[-1][0].append(span.text)

    def _release(self) -> None:
        """Writes what is held where it stands; blanks over the edge go."""
        if self._word or self._ahead <= line_width(self._columns) or not self._has_word:
            for span in (*self._space, *(part for part, _ in self._word)):
                self._write(span)
            self._column = self._ahead
        self._forget()

    def _forget(self) -> None:
        self._ahead = self._column
        self._space, self._word, self._waits = [], [], False

    def _see_width(self) -> None:
        columns = max(self._get_columns(), 1)
        if columns < self._column:  # the terminal has broken the line
            moved = self._column - self._column % columns
            self._column -= moved
            self._ahead -= moved
        self._columns = columns

    # ------------------------------------------------------------------------------------------------ what is read

    def _whole(self, span: Span) -> None:
        self._release()
        self._write(span)
        _, newline, last = span.text.rpartition("\n")
        if newline:
            self._end_line()
        self._column = self._ahead = self._column + cell_len(last)
        if span.flow == "quote":
            self._hang = span
        elif span.flow == "mark":
            self._hang = Span(" " * self._column, "")

    def _end_line(self) -> None:
        self._column = self._ahead = 0
        self._in_word = self._has_word = False
        self._hang = Span("", "")
        self._tail = self._base = ""

    def _part(self, part: str, style: str) -> None:
        """One character, or several ASCII letters and marks."""
        if part == "\n":
            self._release()
            self._write(Span(part, ""))
            self._end_line()
            return
        width = len(part) if part.isascii() else cell_len(self._tail + part) - cell_len(self._tail)
        joins = width <= 0 or part == _JOINED
        if part in " \t":
            if self._word:
                self._release()
            self._in_word = False
            self._space.append(Span(part, style))
            self._ahead += _TAB - self._ahead % _TAB if part == "\t" else 1
        else:
            if not self._in_word or (not joins and _may_part(self._base, part[0])):
                self._begin_word()
            self._word_part(Span(part, style), width)
        self._tail = (self._tail + part)[-2:]
        if not joins:
            self._base = part[-1]

    def _begin_word(self) -> None:
        if self._word:
            self._release()
        line = line_width(self._columns)
        self._in_word = True
        self._waits = self._has_word and (self._always_waits or line - self._ahead < max(line // 2, _LONG))
        if not self._waits:
            self._release()
        if not self._has_word and not self._hang.text:
            self._hang = Span(" " * self._column, "")
        self._has_word = True

    def _word_part(self, part: Span, width: int) -> None:
        if not self._waits:
            self._write_part(part, width)
            return
        self._word.append((part, width))
        self._ahead += width
        if self._ahead > line_width(self._columns):
            self._next_line()

    def _write_part(self, part: Span, width: int) -> None:
        self._write(part)
        end = self._column + width
        if end > self._columns:  # the terminal begins a line; a wide character goes there whole
            end = width if len(part.text) == 1 else (end - 1) % self._columns + 1
        self._column = self._ahead = end

    def _next_line(self) -> None:
        """The word held goes to the next line, and is no longer held."""
        word = self._word
        self._write(Span("\n", ""))
        self._column = cell_len(self._hang.text)
        if self._column > self._columns // 2:
            self._column = 0
        elif self._hang.text:
            self._write(self._hang)
        for part, width in word:
            self._write_part(part, width)
        self._forget()


def break_lines(text: str, columns: int) -> str:
    """A whole text with its lines broken for a window of that width."""
    wrap = WordWrap(lambda: columns, waits=True)
    kept = _COMMAND.sub(lambda command: command[0].replace(" ", _KEPT_BLANK), text)
    spans = wrap.feed([Span(kept, "")]) + wrap.finish()
    return "".join(span.text for span in spans).replace(_KEPT_BLANK, " ")


def _may_part(before: str, after: str) -> bool:
    """Whether a line may end between these two, which no blank parts."""
    if not (_is_ideographic(before) or _is_ideographic(after)):
        return False
    if unicodedata.category(after) in _BEGINS_NO_LINE or after in _SMALL_KANA:
        return False
    return unicodedata.category(before) not in _ENDS_NO_LINE and before not in "\"'"


def _is_ideographic(char: str) -> bool:
    """Written without blanks; emoji, too."""
    return cell_len(char) == 2 and not any(first <= ord(char) <= last for first, last in _HANGUL)
