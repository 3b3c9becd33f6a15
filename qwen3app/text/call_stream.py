"""Which tool calls in a model's text count, and what is left as reasoning and content.

Owns: the rules on drafts, layout, stop strings beside calls, and how many calls are wanted. Refuses to know: tokens,
how a call is spelled (tool_calls.py), think tags (reasoning.py).
The rules:
- A call inside a thought is a draft, hence text of the thought, if anything but white space and calls follows: more
  thought, the closing tag, or a cut (max_tokens). Only when the model itself ends the turn right behind it is it a
  call: then the model has forgotten to close the thought. Until one of these comes, the call is held back.
- White space around calls is layout. Before the first word and behind the last call it is dropped; between words that
  a call divides stays what stood before the call (or, with none there, behind it).
- Stop strings apply to content only and do not reach across a call. A call that the end of the text leaves unfinished
  is content to the letter: what it would have been is no matter of stop strings, and a limit that cut it is the reason
  why the answer ends.
- ONE: the first call ends the answer (parallel_tool_calls false). NONE: nothing is a call (tool_choice "none"); the
  tags of what would be one are dropped, its text is content.
Invariants: reasoning, content and calls do not depend on how the text is cut into pushes; linear.
Threads: one stream, one thread at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from qwen3app.text.stop import StopMatcher
from qwen3app.text.tool_calls import CallScanner, Item, ToolCall


class CallPolicy(Enum):
    """How many calls are wanted."""

    MANY = "many"
    ONE = "one"
    NONE = "none"


class CallStream:
    """See the file's head. `thought` while the model thinks, `close_thought` once, then `answer`, then `finish`."""

    __slots__ = ("_blank", "_called", "_drafts", "_gap", "_held", "_policy", "_scanner", "_shown", "_stop", "stopped")

    def __init__(self, policy: CallPolicy, stop: StopMatcher | None) -> None:
        self._policy = policy
        self._stop = stop
        self._scanner = CallScanner()
        self._held: list[str] = []  # of a thought: white space and drafts at its end
        self._drafts: list[ToolCall] = []
        self._blank: list[str] = []  # of the answer: white space that may be layout
        self._called = False  # the last thing in the answer but white space was a call
        self._gap = False  # white space stood between the words and those calls
        self._shown = False  # the answer has words
        self.stopped = False  # a stop string has matched, or all calls that are wanted have come

    def thought(self, text: str) -> str:
        """Text of the thought; what can be shown of it."""
        return self._think(self._scanner.push(text))

    def close_thought(self) -> str:
        """The thought is over: what was held back is text of it."""
        items, unfinished = self._scanner.finish()
        shown = self._think([*items, unfinished]) + "".join(self._held)
        self._held.clear()
        self._drafts.clear()
        return shown

    def answer(self, text: str) -> tuple[str, list[ToolCall]]:
        """Text of the answer; (content, calls) that it makes certain."""
        return self._answer(self._scanner.push(text)) if text else ("", [])

    def finish(self, *, thinking: bool, ended: bool) -> tuple[str, str, list[ToolCall]]:
        """The end: (reasoning, content, calls) held back so far. thinking: the thought has not been closed.
        ended: by the model itself, not by a limit."""
        if self.stopped:
            return "", "", []
        items, unfinished = self._scanner.finish()
        if not thinking:
            content, calls = self._answer(items)
            if not self.stopped:
                if self._stop is not None:
                    content += self._words(self._stop.finish())
                content += self._words(unfinished)
            return "", content + self._end(), calls
        reasoning = self._think([*items, unfinished])
        if not (ended and self._drafts and self._policy != CallPolicy.NONE):
            return reasoning + self.close_thought(), "", []
        self.stopped = True
        return reasoning, "", self._drafts if self._policy == CallPolicy.MANY else self._drafts[:1]

    def _think(self, items: Sequence[Item]) -> str:
        shown = []
        for item in items:
            if isinstance(item, ToolCall):
                self._drafts.append(item)
                self._held.append(item.raw)
                continue
            body = item.rstrip()
            if body:
                shown += self._held
                shown.append(body)
                self._held.clear()
                self._drafts.clear()
            if len(body) < len(item):
                self._held.append(item[len(body) :])
        return "".join(shown)

    def _answer(self, items: Sequence[Item]) -> tuple[str, list[ToolCall]]:
        content, calls = [], []
        stop = self._stop
        for item in items:
            if isinstance(item, ToolCall) and self._policy != CallPolicy.NONE:
                if stop is not None:
                    content.append(self._words(stop.finish()))
                calls.append(item)
                if not self._shown:
                    self._blank.clear()
                if not self._called:
                    self._called, self._gap = True, bool(self._blank)
                if self._policy == CallPolicy.ONE:
                    self.stopped = True
                    break
                continue
            text = item.body if isinstance(item, ToolCall) else item
            if stop is None:
                content.append(self._words(text))
                continue
            content.append(self._words(stop.push(text)))
            if stop.matched is not None:
                content.append(self._end())
                self.stopped = True
                break
        return "".join(content), calls

    def _words(self, text: str) -> str:
        """Content; white space at its end is held back."""
        if not text:
            return ""
        if self._called:
            words = text.lstrip()
            if self._shown and not self._gap:
                self._blank.append(text[: len(text) - len(words)])
            if not words:
                return ""
            self._called = False
            text = words
        body = text.rstrip()
        if not body:
            self._blank.append(text)
            return ""
        self._shown = True
        shown = "".join(self._blank) + body if self._blank else body
        self._blank.clear()
        if len(body) < len(text):
            self._blank.append(text[len(body) :])
        return shown

    def _end(self) -> str:
        """The white space at the end of the content."""
        blank = "" if self._called else "".join(self._blank)
        self._blank.clear()
        return blank
