"""Colours for code, line by line.

Owns which colours (the terminal's own sixteen, so that they suit its background) and how much of a block is read again
for a line: lexers begin at the start of a text, and a line of a long comment is known by the lines before it. Refuses
to know markdown. One code block, one thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pygments.lexer import Lexer

# Reading it takes up to 10 ms, once per line. A longer block goes on as if a new one began.
_MOST_READ = 4096


class Highlighter:
    def __init__(self, language: str) -> None:
        self._lexer = _find_lexer(language)
        self._read = ""  # what came before the line

    def line(self, line: str) -> list[tuple[str, str]]:
        """The line as (text, style)s, which together are the line to the letter."""
        if self._lexer is None:
            return [(line, "")]
        from rich.syntax import ANSI_DARK, ANSISyntaxTheme

        theme = ANSISyntaxTheme(ANSI_DARK)
        if len(self._read) + len(line) > _MOST_READ:
            self._read = ""
        begin = len(self._read)
        self._read += line
        if len(self._read) > _MOST_READ:  # one very long line
            return [(line, "")]
        spans: list[tuple[str, str]] = []
        position = 0
        for kind, text in self._lexer.get_tokens(self._read):
            position += len(text)
            if shown := text[max(0, len(text) - (position - begin)) :]:
                spans.append((shown, str(theme.get_style_for_token(kind)).replace("none", "")))
        # Some lexers end every text with a line's end, or drop one.
        whole = "".join(text for text, _ in spans)
        if whole == line + "\n":
            spans[-1] = (spans[-1][0].removesuffix("\n"), spans[-1][1])
            return spans
        return spans if whole == line else [(line, "")]


def _find_lexer(language: str) -> Lexer | None:
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound

    words = language.replace("{", " ").replace(",", " ").split()
    if not words:
        return None
    try:
        return get_lexer_by_name(words[0].lower(), stripnl=False, ensurenl=False)
    except (ClassNotFound, ImportError):
        return None
