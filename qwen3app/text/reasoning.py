r"""Model output split into thought (reasoning) and answer (content).

Owns: where a thought begins and ends, and the newlines around its tags. Refuses to know: tokens, stop strings.
The rule:
- The start is what the rendered prompt says: inside a thought, or not. No flag of a request counts.
- Not inside: if the first thing the model writes, white space aside, is an opening tag, a thought begins; that white
  space is dropped. A closing tag there closes what the prompt closed already and is dropped. Anything else, or 256
  characters of white space, is content, to the letter, for good: later think tags are text.
- Inside: opening tags at the very start of the thought (the prompt may have written one already) are dropped; the
  thought ends at the first closing tag. A thought without end is all reasoning, never content.
- Newlines between a tag and what it encloses or precedes are dropped, as the chat template writes `<think>\n`,
  `\n</think>\n\n` and strips them from history.

Tags are recognised in one of two ways. A tokenizer with think tokens (all official ones): only the control token is a
tag, told by open_tag() and close_tag(); a `</think>` spelled with ordinary tokens is a word of the thought. Otherwise
(by_text): by the text of the tags, wherever tokens cut it; at most a tag's length is held back.
Invariants: linear in the text; the result does not depend on how the text is cut into pushes.
Threads: one stream, one thread at a time.
"""

from __future__ import annotations

import re

from qwen3app.text.stop import StopMatcher
from qwen3app.text.tokenizer import THINK_CLOSE, THINK_OPEN

_START = 0  # outside, nothing but white space so far
_THOUGHT_START = 1  # inside, nothing but newlines so far
_THOUGHT = 2
_ANSWER_START = 3  # behind the closing tag, nothing but newlines so far
_ANSWER = 4

_MAX_BLANK = 256
_OPENINGS = re.compile(rf"\n*(?:{THINK_OPEN}\n*)*")


class ReasoningSplitter:
    """See the file's head. push and finish give (reasoning, content)."""

    __slots__ = ("_by_text", "_closing", "_newlines", "_pending", "_state")

    def __init__(self, thinking: bool, *, by_text: bool = True) -> None:
        self._state = _THOUGHT_START if thinking else _START
        self._by_text = by_text
        self._closing = StopMatcher([THINK_CLOSE])  # used by_text only
        self._pending = ""  # at a start: white space, or what may become a tag
        self._newlines = 0  # in a thought: newlines at its end, shown only when more text follows

    @property
    def answering(self) -> bool:
        """True once no tag can change anything any more."""
        return self._state >= _ANSWER_START

    @property
    def in_thought(self) -> bool:
        return self._state in (_THOUGHT_START, _THOUGHT)

    def open_tag(self) -> bool:
        """The model wrote the opening control token. False: it is text here and has to be pushed as such."""
        if self._state > _THOUGHT_START:
            return False
        self._state, self._pending = _THOUGHT_START, ""
        return True

    def close_tag(self) -> bool:
        """The model wrote the closing control token. False: it is text here and has to be pushed as such."""
        if self._state >= _ANSWER_START:
            return False
        self._state, self._pending = _ANSWER_START, ""
        return True

    def push(self, text: str) -> tuple[str, str]:
        state = self._state
        if state == _ANSWER:
            return "", text
        if not text:
            return "", ""
        if state == _ANSWER_START:
            return "", self._answer_start(text)
        if state == _START:
            return self._start(self._pending + text)
        return self._inside_by_text(text) if self._by_text else (self._inside(text), "")

    def finish(self) -> tuple[str, str]:
        """What was held back, at the end of the stream. Newlines at the end of a thought are dropped."""
        pending, self._pending = self._pending, ""
        if self._state == _START:
            self._state = _ANSWER
            return "", pending
        if not self.in_thought:
            return "", ""
        # An unfinished tag is text of the thought.
        return self._inside(self._closing.push(pending)) + self._inside(self._closing.finish()), ""

    def _start(self, text: str) -> tuple[str, str]:
        body = text.lstrip()
        blank = len(text) - len(body)
        self._pending = ""
        if blank < _MAX_BLANK:
            if not body:
                self._pending = text
                return "", ""
            if self._by_text:
                if body.startswith(THINK_OPEN):
                    self._state = _THOUGHT_START
                    return self._inside_by_text(body)
                if body.startswith(THINK_CLOSE):
                    self._state = _ANSWER_START
                    return "", self._answer_start(body[len(THINK_CLOSE) :])
                if THINK_OPEN.startswith(body) or THINK_CLOSE.startswith(body):
                    self._pending = text
                    return "", ""
        self._state = _ANSWER
        return "", text

    def _answer_start(self, text: str) -> str:
        text = text.lstrip("\n")
        if text:
            self._state = _ANSWER
        return text

    def _inside(self, text: str) -> str:
        """Text of the thought, known to hold no tag."""
        if self._state == _THOUGHT_START:
            text = text.lstrip("\n")
            if text:
                self._state = _THOUGHT
        body = text.rstrip("\n")
        if not body:
            self._newlines += len(text)
            return ""
        shown = "\n" * self._newlines + body if self._newlines else body
        self._newlines = len(text) - len(body)
        return shown

    def _inside_by_text(self, text: str) -> tuple[str, str]:
        if self._state == _THOUGHT_START:
            text = self._pending + text
            match = _OPENINGS.match(text)
            assert match is not None  # every part of the pattern is optional
            text = text[match.end() :]
            if THINK_OPEN.startswith(text):  # also ""
                self._pending = text
                return "", ""
            self._pending = ""
            self._state = _THOUGHT  # the text does not begin with a newline, so nothing is left to drop
        reasoning = self._inside(self._closing.push(text))
        if self._closing.matched is None:
            return reasoning, ""
        self._state = _ANSWER_START
        return reasoning, self._answer_start(self._closing.rest)
