"""Makes text of a model safe to write to a terminal.

Owns the one rule: no control character but newline and tab reaches the terminal, and none that changes the direction of
writing, so that a model can neither move the cursor, retitle the window, write the clipboard nor hide text. Words of
scripts that run from right to left need none: their letters have a direction. Refuses to know what an escape sequence
means: when its first character is gone the rest is plain letters, whatever the sequence was and wherever the stream was
cut. Each character is therefore treated alone, which makes the function stateless: cleaning pieces equals cleaning the
whole.
Any thread.
"""

from __future__ import annotations


def _table() -> dict[int, str | None]:
    table: dict[int, str | None] = {code: chr(0x2400 + code) for code in range(0x20)}  # ESC becomes the picture of ESC
    table[0x7F] = "\u2421"
    for code in range(0x80, 0xA0):  # C1: U+009B alone is a CSI for some terminals
        table[code] = "\ufffd"
    for code in range(0xD800, 0xE000):  # lone surrogates cannot be written as UTF-8
        table[code] = "\ufffd"
    for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A)):  # they show a text in another order than it has
        table[code] = "\ufffd"
    for code in (0x2028, 0x2029):  # line and paragraph separators
        table[code] = "\n"
    del table[0x09], table[0x0A]
    table[0x0D] = None  # half of a CRLF, or a way to overwrite the line
    return table


_TABLE = _table()


def sanitize(text: str) -> str:
    """Returns `text` with every character that steers a terminal replaced by a visible one."""
    return text if text.isascii() and text.isprintable() else text.translate(_TABLE)


def sanitize_line(text: str) -> str:
    """As sanitize, on one line: for sentences that quote a model, a file or a user."""
    return sanitize(text).replace("\n", " ").replace("\t", " ")
