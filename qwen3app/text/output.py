"""One choice of a reply: token ids in, reasoning, content and tool calls out.

Owns: the order of the stages (detokenizer, think split, tool calls, stop strings) and the hot path through them.
Refuses to know: requests, streams on the wire, why a generation ends.
The rules:
- Think tags are recognised by token id when the tokenizer has both as control tokens, else by text (reasoning.py).
- Stop strings apply to content only: a stop string that turns up in a thought does not end it. With split_reasoning
  False there is no thought, and they apply to all text. After a match nothing is shown any more, not even of the same
  push, and push need not be called again.
- Tool calls are looked for only when a policy is given (call_stream.py has the rules).
- finish() flushes through all stages: what was held back at the end is split and matched like any other text.
Invariants: pushes and finish together give the same text, field by field, however the ids are cut into pushes; linear
in ids and text. One push of one token takes 1 to 2 us.
Threads: one stream, one thread at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qwen3app.text.call_stream import CallPolicy, CallStream
from qwen3app.text.detokenizer import Detokenizer
from qwen3app.text.reasoning import ReasoningSplitter
from qwen3app.text.stop import StopMatcher
from qwen3app.text.tokenizer import Tokenizer
from qwen3app.text.tool_calls import ToolCall


@dataclass(slots=True)
class Delta:
    """What one push adds. stopped: the answer is over, by a stop string or the only call that is wanted."""

    reasoning: str
    content: str
    stopped: bool
    calls: Sequence[ToolCall] = ()


class OutputStream:
    """See the file's head."""

    __slots__ = ("_calls", "_close", "_detokenizer", "_open", "_splitter", "_stop", "_thinking", "reasoning_tokens")

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        thinking: bool,
        split_reasoning: bool,
        stops: Sequence[str] = (),
        skip_special: bool = True,
        include_stop: bool = False,
        calls: CallPolicy | None = None,
    ) -> None:
        """thinking: RenderedPrompt.thinking. include_stop: content keeps the matched stop string. calls: which tool
        calls are wanted; None: `<tool_call>` is text like any other."""
        self._detokenizer = Detokenizer(tokenizer, skip_special=skip_special)
        self._open = tokenizer.think_open_id
        self._close = tokenizer.think_close_id
        by_text = self._open is None or self._close is None
        self._splitter = ReasoningSplitter(thinking, by_text=by_text) if split_reasoning else None
        self._stop = StopMatcher(stops, include_stop=include_stop) if stops else None
        self._calls = CallStream(calls, self._stop) if calls is not None else None
        self._thinking = split_reasoning  # what comes may still be a thought; looked at for tool calls only
        self.reasoning_tokens = 0  # tokens inside the thought, its tags not counted

    @property
    def matched_stop(self) -> str | None:
        """The stop string that matched."""
        return None if self._stop is None else self._stop.matched

    @property
    def in_thought(self) -> bool:
        """The next token belongs to a thought."""
        return self._splitter is not None and self._splitter.in_thought

    @property
    def answering(self) -> bool:
        """No think tag can change anything any more."""
        return self._splitter is None or self._splitter.answering

    @property
    def in_character(self) -> bool:
        """The last token has left a character unfinished."""
        return self._detokenizer.in_character

    def push(self, ids: Sequence[int]) -> Delta:
        """What these ids make certain."""
        splitter, reasoning = self._splitter, ""
        if splitter is None:
            content = self._detokenizer.push(ids)
        elif splitter.answering:
            content = splitter.push(self._detokenizer.push(ids))[1]
        else:
            reasoning, content = self._push_undecided(splitter, ids)
        if self._calls is not None:
            return self._with_calls(self._calls, reasoning, content)
        if self._stop is None:
            return Delta(reasoning, content, False)
        if content:
            content = self._stop.push(content)
        return Delta(reasoning, content, self._stop.matched is not None)

    def finish(self, *, ended: bool = True) -> Delta:
        """What was held back, at the end of the stream. ended: the model ended its turn, no limit did."""
        reasoning, content = "", self._detokenizer.finish()
        if self._splitter is not None:
            reasoning, content = self._splitter.push(content)
            more_reasoning, more_content = self._splitter.finish()
            reasoning += more_reasoning
            content += more_content
        if self._calls is not None:
            thinking = self._splitter is not None and self._splitter.in_thought
            delta = self._with_calls(self._calls, reasoning, content)
            reasoning, content, calls = self._calls.finish(thinking=thinking, ended=ended)
            return Delta(
                delta.reasoning + reasoning, delta.content + content, self._calls.stopped, [*delta.calls, *calls]
            )
        if self._stop is None:
            return Delta(reasoning, content, False)
        content = self._stop.push(content) + self._stop.finish()
        return Delta(reasoning, content, self._stop.matched is not None)

    def _with_calls(self, stream: CallStream, reasoning: str, content: str) -> Delta:
        """The rest of a push that looks for tool calls."""
        if stream.stopped:
            return Delta("", "", True)
        if self._thinking:
            if reasoning:
                reasoning = stream.thought(reasoning)
            if content or (self._splitter is not None and self._splitter.answering):
                self._thinking = False
                reasoning += stream.close_thought()
        content, calls = stream.answer(content)
        return Delta(reasoning, content, stream.stopped, calls)

    def _push_undecided(self, splitter: ReasoningSplitter, ids: Sequence[int]) -> tuple[str, str]:
        """push while a think tag may still change something."""
        opening, closing = self._open, self._close
        if opening is None or closing is None:
            return self._push_by_text(splitter, ids)
        if opening not in ids and closing not in ids:
            if splitter.in_thought:
                self.reasoning_tokens += len(ids)
            return splitter.push(self._detokenizer.push(ids))
        reasoning, content, begin = "", "", 0
        for index, token in enumerate(ids):
            if token != opening and token != closing:
                continue
            # A tag ends what stands before it: an unfinished character can no longer be completed.
            text = self._detokenizer.push(ids[begin:index]) + self._detokenizer.finish()
            if splitter.in_thought:
                self.reasoning_tokens += index - begin
            more_reasoning, more_content = splitter.push(text)
            reasoning += more_reasoning
            content += more_content
            is_tag = splitter.open_tag() if token == opening else splitter.close_tag()
            begin = index + 1 if is_tag else index
            if splitter.answering:
                break
        if splitter.in_thought:
            self.reasoning_tokens += len(ids) - begin
        more_reasoning, more_content = splitter.push(self._detokenizer.push(ids[begin:]))
        return reasoning + more_reasoning, content + more_content

    def _push_by_text(self, splitter: ReasoningSplitter, ids: Sequence[int]) -> tuple[str, str]:
        reasoning, content = [], []
        for index, token in enumerate(ids):
            if splitter.answering:
                content.append(splitter.push(self._detokenizer.push(ids[index:]))[1])
                break
            was_inside = splitter.in_thought
            more_reasoning, more_content = splitter.push(self._detokenizer.push((token,)))
            self.reasoning_tokens += was_inside and splitter.in_thought
            reasoning.append(more_reasoning)
            content.append(more_content)
        return "".join(reasoning), "".join(content)
