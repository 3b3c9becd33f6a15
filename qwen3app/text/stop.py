"""Stop strings in a stream of text.

Owns: which part of a text may be shown while a stop string may still be under way. Refuses to know: tokens.
The match that ends first wins; of those that end together, the longest (so the earliest start). That is what a reader
of single characters sees, hence the result does not depend on how the text is cut into pushes.
Held back is only the longest end of the text that is a true beginning of a stop string.
Each stop string is followed by a Knuth-Morris-Pratt automaton: linear in the text, whatever text and stop string are
(a push also copies what is held back, which is shorter than the longest stop string).
Invariants: the concatenated output is a prefix of the input; after a match nothing comes out any more.
Threads: one stream, one thread at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from qwen3app.text.errors import TextError

# From this length on str.find looks for whole matches first and the automaton runs over the end only: about 30 times
# the speed on a long text, while on a token's few characters the automaton alone is quicker.
_LONG_TEXT = 64


@functools.lru_cache(maxsize=256)
def _fallback(stop: str) -> Sequence[int]:
    """[i]: length of the longest true prefix of stop that is also a suffix of stop[:i+1]. Kept, since all answers of a
    request, and a client's next ones, have the same stop strings."""
    fallback = [0] * len(stop)
    length = 0
    for i in range(1, len(stop)):
        while length and stop[i] != stop[length]:
            length = fallback[length - 1]
        if stop[i] == stop[length]:
            length += 1
        fallback[i] = length
    return fallback


class _Automaton:
    """One stop string. state: how many of its characters the text so far ends with."""

    __slots__ = ("_fallback", "state", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.state = 0
        self._fallback = _fallback(stop)

    def feed(self, text: str) -> int:
        """Index in text just behind the first match, or -1. The state is of no use after a match."""
        stop, state, position, end = self.stop, self.state, 0, len(text)
        if end - position >= _LONG_TEXT + len(stop):
            # A match is either begun in earlier text, within the first len(stop) - 1 characters, or wholly in here.
            match = self._walk(text, 0, len(stop) - 1)
            if match >= 0:
                return match
            match = text.find(stop)
            if match >= 0:
                return match + len(stop)
            position, self.state = end - len(stop) + 1, 0
            return self._walk(text, position, end)
        if not state:
            position = text.find(stop[0])
            if position < 0:
                return -1
        return self._walk(text, position, end)

    def _walk(self, text: str, position: int, end: int) -> int:
        stop, fallback, state, last = self.stop, self._fallback, self.state, len(self.stop) - 1
        while position < end:
            if not state:
                position = text.find(stop[0], position, end)
                if position < 0:
                    break
            character = text[position]
            while state and stop[state] != character:
                state = fallback[state - 1]
            if stop[state] == character:
                if state == last:
                    return position + 1
                state += 1
            position += 1
        self.state = state
        return -1


class StopMatcher:
    """See the file's head."""

    __slots__ = ("_automata", "_held", "_include_stop", "_stops", "matched", "rest")

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        """include_stop: the matched stop string itself is shown too."""
        for index, stop in enumerate(stops):
            if not stop:
                raise TextError(f"stop[{index}] is empty; a stop string needs at least one character.", "stop")
        self._stops = stops
        self._automata: list[_Automaton] = []  # made with the first text: most answers of a crowd have none yet
        self._include_stop = include_stop
        self._held = ""
        self.matched: str | None = None
        self.rest = ""  # after a match: the text of that push behind the stop string

    def push(self, text: str) -> str:
        """The text that can be shown now."""
        if self.matched is not None:
            return ""
        if not self._automata:
            self._automata = [_Automaton(stop) for stop in dict.fromkeys(self._stops)]
        first, matched = -1, ""
        hold = 0
        for automaton in self._automata:
            end = automaton.feed(text)
            if end < 0:
                hold = max(hold, automaton.state)
            elif first < 0 or end < first or (end == first and len(automaton.stop) > len(matched)):
                first, matched = end, automaton.stop
        shown = self._held + text if self._held else text
        if first >= 0:
            self.matched = matched
            self.rest = text[first:]
            end = len(self._held) + first
            self._held = ""
            return shown[: end if self._include_stop else end - len(matched)]
        if not hold:
            self._held = ""
            return shown
        self._held = shown[-hold:]
        return shown[:-hold]

    def finish(self) -> str:
        """What was held back: the stop string did not come. The next push begins anew."""
        held, self._held = self._held, ""
        for automaton in self._automata:
            automaton.state = 0
        return held
