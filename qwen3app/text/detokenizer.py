"""Token ids to text, a few at a time.

Owns: bytes at the end that may still become a character. Refuses to know: thoughts, stop strings, requests.
Works on bytes: each token's true bytes are appended and decoded up to the last whole character, so the cost of a push
is that of its own bytes, and a character split over tokens is held back, never shown as U+FFFD.
Invariants: the text only grows; all pushes and finish() together equal Tokenizer.decode of all ids. At most three
bytes are held back.
Threads: one stream, one thread at a time.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence

from qwen3app.text.tokenizer import Tokenizer


class Detokenizer:
    """See the file's head."""

    __slots__ = ("_piece", "_tail")

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        self._piece = tokenizer.pieces(skip_special=skip_special).__getitem__
        self._tail = b""

    @property
    def in_character(self) -> bool:
        """The last token has left a character unfinished."""
        return bool(self._tail)

    def push(self, ids: Sequence[int]) -> str:
        """The text that these ids make certain."""
        data = self._piece(ids[0]) if len(ids) == 1 else b"".join(map(self._piece, ids))
        if self._tail:
            data = self._tail + data
        text, used = utf_8_decode(data, "replace", False)
        self._tail = data[used:]
        return text

    def finish(self) -> str:
        """What was held back, as U+FFFD when it never became a character. The next push begins anew."""
        if not self._tail:
            return ""
        text = self._tail.decode("utf-8", "replace")
        self._tail = b""
        return text
