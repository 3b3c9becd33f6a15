"""Markdown that is written while it comes: text in, styled text out, nothing ever redrawn.

Owns what the marks mean and how long text is held back: inside a line, from an opening mark to the mark that closes it;
at the start of a line, until it is clear what the line is; code and rules line by line; a table until it ends, as its
columns are as wide as their widest cells, or has _ROWS_HELD rows, by which later ones go. What has been written stays,
so nothing flickers. Each span says whether it may be broken between words; wrap.py does that. Refuses to know colours
(styles are words), the window, and how code is highlighted (highlight.py).

Invariant: what `feed` returns over all pieces and `finish` is the same text in the same styles however the text is
cut. Every decision is made on the text alone: an opening mark waits until it is closed, its line ends, or _MOST_HELD
characters have come.

Where it leaves CommonMark, for the sake of what models write: `2*3*4` is no emphasis; `\\(`, `\\[` and `\\\\` stay, as
they are LaTeX; emphasis ends with its line; a line under a text makes no heading; HTML is text.
One answer, one thread.
"""

from __future__ import annotations

import re

from rich.cells import cell_len

from qwen3app.chat.highlight import Highlighter
from qwen3app.chat.wrap import Span

_MOST_HELD = 600  # characters behind an opening mark
_MOST_LINE = 2000  # characters of a line that is read as a whole; a longer one is text, a longer line of code two
_ROWS_HELD = 24

_FENCE = re.compile(r"([ \t]*)(`{3,}|~{3,})([^`\n]*)$")
_RULE = re.compile(r"[ \t]*([-*_])[ \t]*(?:\1[ \t]*){2,}$")
_HEADING = re.compile(r"( {0,3})(#{1,6})[ \t]+")
_BULLET = re.compile(r"([ \t]*)[-*+][ \t]+")
_NUMBER = re.compile(r"([ \t]*\d{1,9}[.)])[ \t]+")
_QUOTE = re.compile(r"([ \t]*)>[ \t]?")
_TABLE_ROW = re.compile(r"[ \t]*\|")
_TABLE_LINE = re.compile(r"[ \t]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$")
# Starts of lines of which more has to come before it is clear what they are.
_UNCLEAR = re.compile(r"[ \t]*(?:#{1,6}|[-*_][-*_ \t]*|[+]|\d{1,9}[.)]?|`{1,2}|~{1,2}|>)?[ \t]*$")
_WHOLE_LINE = re.compile(r"[ \t]*(?:`{3}|~{3}|\|)")  # lines that are read as a whole

_SPECIAL = re.compile(r"[\\`*_~\[\n]")
_LINK = re.compile(r"\[([^\[\]\n]+)\]\(([^()\s]+)\)")
_LINK_BEGUN = re.compile(r"\[(?:[^\[\]\n]*|[^\[\]\n]+\](?:\((?:[^()\s]*)?)?)$")
_ESCAPABLE = "*_`#~|>+-!."


class Markdown:
    """One answer. feed() it the text as it comes and write what it returns; finish() returns the rest."""

    def __init__(self) -> None:
        self._held = ""  # not written yet
        self._at_start = True  # _held begins a line
        self._base = ""  # style of the line
        self._before = ""  # the character before _held, for _ inside words
        self._fence = ""  # the mark that opened the code block
        self._code: Highlighter | None = None
        self._header: str | None = None  # a row that may be a table's first
        self._row_ended = False  # the row that came last had its line's end
        self._rows: list[list[str]] | None = None  # of the table, header first, that are not written yet
        self._widths: list[int] | None = None  # columns of the table, once rows have been written

    def feed(self, text: str) -> list[Span]:
        self._held += text
        return self._drain(final=False)

    def finish(self) -> list[Span]:
        spans = self._drain(final=True)
        self._end_table(spans)
        return spans

    def _drain(self, *, final: bool) -> list[Span]:
        spans: list[Span] = []
        while self._held:
            if self._fence:
                done = self._code_line(spans, final)
            elif self._at_start:
                done = self._line_start(spans, final)
            else:
                done = self._inline(spans, final)
            if not done:
                break
        return spans

    # ------------------------------------------------------------------------------------------------ whole lines

    def _take_line(self, final: bool) -> str | None:
        """The next line with its end, or as much of it as is read at once, if that has come."""
        end = self._held.find("\n", 0, _MOST_LINE) + 1
        if end == 0:
            if not final and len(self._held) < _MOST_LINE:
                return None
            end = min(len(self._held), _MOST_LINE)
        line, self._held = self._held[:end], self._held[end:]
        return line

    def _code_line(self, spans: list[Span], final: bool) -> bool:
        line = self._take_line(final)
        if line is None:
            return False
        bare = line.strip()
        if self._at_start and len(bare) >= len(self._fence) and set(bare) == {self._fence[0]}:
            spans.append(Span(line, "dim", "fixed"))
            self._fence, self._code = "", None
        else:
            assert self._code is not None
            spans += [Span(text, style, "fixed") for text, style in self._code.line(line)]
        self._at_start = line.endswith("\n")
        return True

    def _line_start(self, spans: list[Span], final: bool) -> bool:
        held = self._held
        end = held.find("\n", 0, _MOST_LINE)
        first = held[: end if end >= 0 else _MOST_LINE]
        if end < 0 and len(held) >= _MOST_LINE:
            self._end_table(spans)
            self._begin_text(spans, first)
            return True
        complete = end >= 0 or final
        if not complete and (_UNCLEAR.match(first) or _WHOLE_LINE.match(first)):
            return False
        if _TABLE_ROW.match(first) or self._header is not None:
            if not complete:
                return False
            if self._table_line(spans, first):
                self._row_ended = end >= 0
                self._take_line(final)
                return True
        self._end_table(spans)
        if match := _FENCE.match(first):
            line = self._take_line(final)
            assert line is not None
            self._fence = match.group(2)
            self._code = Highlighter(match.group(3).strip())
            spans.append(Span(line, "dim", "fixed"))
            return True
        if _RULE.match(first):
            self._take_line(final)
            spans.append(Span("─" * 24 + ("\n" if end >= 0 else ""), "dim", "fixed"))
            return True
        self._begin_text(spans, first)
        return True

    def _begin_text(self, spans: list[Span], first: str) -> None:
        """Writes the line's marks; its text is read by _inline."""
        self._base = ""
        self._before = ""
        self._at_start = False
        if match := _HEADING.match(first):
            self._base = "bold underline" if len(match.group(2)) <= 2 else "bold"
            spans.append(Span(match.group(1), ""))
        elif match := _BULLET.match(first):
            spans.append(Span(f"{match.group(1)}• ", "", "mark"))
        elif match := _NUMBER.match(first):
            spans.append(Span(f"{match.group(1)} ", "", "mark"))
        elif match := _QUOTE.match(first):
            self._base = "italic"
            spans.append(Span(f"{match.group(1)}│ ", "dim", "quote"))
        if match:
            self._held = self._held[match.end() :]

    # ----------------------------------------------------------------------------------------------------- tables

    def _table_line(self, spans: list[Span], line: str) -> bool:
        """Takes a row of a table; False: it is none, and a row that waited has been written as text."""
        row = bool(_TABLE_ROW.match(line))
        if self._rows is not None:
            if row:
                self._rows.append(_cells(line))
                if len(self._rows) > _ROWS_HELD or self._widths is not None:
                    self._write_rows(spans)
            return row
        if self._header is None:
            self._header = line
            return True
        header, self._header = self._header, None
        if _TABLE_LINE.match(line) and "-" in line:
            self._rows = [_cells(header)]
            return True
        spans += [*inline(header, ""), Span("\n", "")]
        if row:
            self._header = line
        return row

    def _write_rows(self, spans: list[Span]) -> None:
        rows = self._rows or []
        self._rows = []
        begins = self._widths is None
        if self._widths is None:
            columns = max(len(row) for row in rows)
            self._widths = [max(_width(row[i]) for row in rows if i < len(row)) for i in range(columns)]
        for number, row in enumerate(rows):
            header = begins and number == 0
            for i, cell in enumerate(row):
                if i:
                    spans.append(Span(" │ ", "dim", "fixed"))
                spans += [span._replace(flow="fixed") for span in inline(cell, "bold" if header else "")]
                if i < min(len(row), len(self._widths)) - 1:
                    spans.append(Span(" " * (self._widths[i] - _width(cell)), "", "fixed"))
            spans.append(Span("\n", "", "fixed"))
            if header:
                spans.append(Span("─┼─".join("─" * width for width in self._widths) + "\n", "dim", "fixed"))

    def _end_table(self, spans: list[Span]) -> None:
        """Writes what waits of a table, and a row that never became one."""
        if self._rows:
            self._write_rows(spans)
        self._rows = self._widths = None
        if self._header is not None:
            spans += inline(self._header, "")
            if self._row_ended:
                spans.append(Span("\n", ""))
            self._header = None

    # ------------------------------------------------------------------------------------------------ inside lines

    def _inline(self, spans: list[Span], final: bool) -> bool:
        held = self._held
        taken = _next_inline(held, self._before, self._base, final, spans)
        if taken == 0:
            return False
        self._before = held[taken - 1]
        self._held = held[taken:]
        if self._before == "\n":
            self._at_start = True
        return True


def inline(text: str, style: str) -> list[Span]:
    """Text without line ends, whole, with the marks inside it read."""
    spans: list[Span] = []
    before = ""
    while text:
        taken = _next_inline(text, before, style, True, spans)
        before = text[taken - 1]
        text = text[taken:]
    return spans


def _next_inline(held: str, before: str, style: str, final: bool, spans: list[Span]) -> int:
    """Writes the next part of a line's text and returns how much of `held` that was; 0: more has to come first."""
    special = _SPECIAL.search(held)
    start = special.start() if special else len(held)
    if start > 0:
        spans.append(Span(held[:start], style))
        return start
    mark = held[0]
    if mark == "\n":
        spans.append(Span("\n", ""))
        return 1
    # Nothing behind the line, and nothing too far away, takes part in a decision.
    end = held.find("\n", 0, _MOST_HELD)
    known = end >= 0 or final or len(held) >= _MOST_HELD  # `line` is all that will ever be looked at
    line = held[:end] if end >= 0 else held[:_MOST_HELD]
    if mark == "\\":
        if len(line) == 1 and not known:
            return 0
        if len(line) > 1 and line[1] in _ESCAPABLE:
            spans.append(Span(line[1], style))
            return 2
        spans.append(Span(line[:2], style))
        return len(line[:2])
    if mark == "[":
        if link := _LINK.match(line):
            label, address = link.groups()
            spans += inline(label, f"{style} underline".strip())
            if label != address:
                spans.append(Span(f" ({address})", "dim"))
            return link.end()
        if not known and _LINK_BEGUN.match(line):
            return 0
        spans.append(Span("[", style))
        return 1
    return _marked(line, before, style, known, spans)


def _marked(line: str, before: str, style: str, known: bool, spans: list[Span]) -> int:
    """As _next_inline, for code, emphasis and text struck out: from a mark to the same mark."""
    mark = line[0]
    size = len(line) - len(line.lstrip(mark))
    if size == len(line) and not known:
        return 0
    run = mark * size
    if _opens(mark, size, before, line[size : size + 1]):
        close = _closing(mark, size).search(line, size)
        # What follows the closing mark belongs to the decision.
        if close and (close.end() < len(line) or known):
            inner = line[size : close.start()]
            if mark == "`":
                spans.append(Span(inner.strip() or inner, f"{style} cyan".strip()))
            else:
                spans += inline(inner, f"{style} {_emphasis(mark, size)}".strip())
            return close.end()
        if not known:
            return 0
    spans.append(Span(run, style))
    return size


def _opens(mark: str, size: int, before: str, after: str) -> bool:
    if mark == "`":
        return True
    if mark == "~":
        return size == 2 and bool(after.strip())
    if not after.strip() or size > 3:
        return False
    return not (before.isalnum() and (mark == "_" or size == 1))


def _closing(mark: str, size: int) -> re.Pattern[str]:
    escaped = re.escape(mark)
    body = rf"(?<!{escaped}){escaped}{{{size}}}(?!{escaped})"
    if mark == "`":
        return re.compile(body)
    return re.compile(rf"(?<![\s\\]){body}" + (r"(?!\w)" if mark == "_" else ""))


def _emphasis(mark: str, size: int) -> str:
    if mark == "~":
        return "strike"
    return ("", "italic", "bold", "bold italic")[size]


def _cells(row: str) -> list[str]:
    """A row's cells. A bar inside code or behind a backslash is part of its cell."""
    parts = re.findall(r"(?:`[^`]*`|\\\||[^|`]|`)+|(?<=\|)(?=\|)", row.strip().strip("|") if "|" in row else row)
    return [part.strip().replace("\\|", "|") for part in parts]


def _width(cell: str) -> int:
    return cell_len("".join(span.text for span in inline(cell, "")))
