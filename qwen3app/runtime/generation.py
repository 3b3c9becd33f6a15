"""`Generation`: one or more prompts being continued, read as an async stream of lists of deltas.

Owns: the mailbox between the engine's events and one reader, the choices' text streams, usage and timings.
Refuses to know: threads, HTTP. Everything here runs on the event loop's thread.

How it flows: the runtime puts events into the choices' `pending` lists (`_post`); the reader takes everything that
waits in one go. There is no queue and no lock, one list and one future, because this runs for each token of each
stream. A choice is an (engine request, sample) pair; several prompts are several requests with one mailbox.

Rules
- The text of the id that ends a choice (EOS, stop_token_ids) is never shown, nor listed among its tokens, but it
  counts in completion_tokens, as the engine counts it.
- A thought that has used its budget (params.thinking_budget) is closed by tokens that the runtime puts in; the engine
  goes on behind them in a request of its own. To a reader they are tokens like others, with log-probability 0.
- A choice with tool calls ends with "tool_calls", whether the model ended it or a limit did.
- With stop strings or a policy of one call, tokens are looked at one by one, so that usage does not depend on how
  they arrived.
- After the last visible delta the iterator still waits for the engine's FINISHED events (at most one step), so that
  usage and timings are complete when it ends.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, overload

from qwen3app.abi.types import Event, EventKind, FinishCode
from qwen3app.errors import BROKEN_OUTPUT, AppError, GenerationError
from qwen3app.text.call_stream import CallPolicy
from qwen3app.text.output import OutputStream

if TYPE_CHECKING:
    from qwen3app.runtime.masks import ConstrainedSample
    from qwen3app.runtime.observations import Observations
    from qwen3app.runtime.params import GenerationParams
    from qwen3app.runtime.thought_budget import ThoughtBudget
    from qwen3app.text.tool_calls import ToolCall

_TOKEN = int(EventKind.TOKEN)
_FINISHED = int(EventKind.FINISHED)
_REASONS = {
    FinishCode.STOP: "stop",
    FinishCode.LENGTH: "length",
    FinishCode.CANCELLED: "abort",
    FinishCode.ERROR: "error",
}


class TokenInfo(NamedTuple):
    """One token with its log-probability (NaN: none) and alternatives, best first."""

    id: int
    logprob: float
    top: Sequence[tuple[int, float]]


class Alternatives(Sequence[tuple[int, float]]):
    """A sequence of (id, log-probability) in two arrays. As tuples, those of a prompt of 30,000 tokens with 20 each
    are 600,000 objects, which take 27 ms to be freed, and nothing else runs meanwhile."""

    __slots__ = ("_ids", "_logprobs")

    def __init__(self, pairs: Sequence[tuple[int, float]]) -> None:
        self._ids = array("q", [token for token, _ in pairs])
        self._logprobs = array("d", [logprob for _, logprob in pairs])

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[tuple[int, float]]:
        return zip(self._ids, self._logprobs, strict=True)

    @overload
    def __getitem__(self, index: int) -> tuple[int, float]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[int, float]]: ...
    def __getitem__(self, index: int | slice) -> tuple[int, float] | list[tuple[int, float]]:
        if isinstance(index, slice):
            return list(zip(self._ids[index], self._logprobs[index], strict=True))
        return self._ids[index], self._logprobs[index]


class ChoiceDelta(NamedTuple):
    """What is new in one choice."""

    choice: int
    content: str
    reasoning: str
    tokens: list[TokenInfo] | None  # only with logprobs or return_tokens
    finish_reason: str | None  # "stop", "length", "tool_calls", "abort" (cancelled), "error"; then the choice is over
    matched_stop: str | int | None  # the stop string, or the id of stop_token_ids, that ended the choice
    calls: Sequence[ToolCall] = ()  # complete ones


@dataclass(slots=True)
class Usage:
    """Token counts of all choices together; each prompt counts once."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(slots=True)
class Timings:
    """Seconds by the engine's clock. None: did not happen (yet)."""

    queue: float | None = None  # submitted -> first slot
    prefill: float | None = None  # first slot -> first token
    time_to_first_token: float | None = None  # submitted -> first token
    decode: float | None = None  # first token -> last event
    total: float | None = None  # submitted -> last event


class _Choice:
    """State of one sample. Does not know its generation: a cycle would live until Python's collector comes by."""

    __slots__ = (
        "budget",
        "called",
        "constrained",
        "cut_event",
        "finish_event",
        "finish_reason",
        "index",
        "last_ns",
        "n_earlier",
        "n_tokens",
        "output",
        "pending",
        "request",
        "sample",
        "tops",
    )

    def __init__(self, index: int, sample: int, output: OutputStream) -> None:
        self.index = index
        self.request = 0  # engine request, set once it is submitted
        self.sample = sample
        self.output = output
        self.pending: list[Event] = []
        self.tops: dict[tuple[int, int], Sequence[tuple[int, float]]] = {}  # (request, output index) -> alternatives
        self.finish_reason: str | None = None  # set when the reader has been told
        self.finish_event: Event | None = None
        self.budget: ThoughtBudget | None = None  # while the thought may have to be closed
        self.constrained: ConstrainedSample | None = None
        self.n_earlier = 0  # output tokens before `request`: a closed thought with its closing words
        self.cut_event: Event | None = None  # FINISHED of the request whose thought was closed
        self.called = False  # the answer has tool calls
        self.n_tokens = 0
        self.last_ns = 0

    def end_reason(self, event: Event) -> str:
        """What a FINISHED event means: a constraint may be why the sample was cancelled."""
        constrained = self.constrained
        if event.finish_reason == FinishCode.CANCELLED and constrained is not None:
            if constrained.error is not None:
                return "error"
            if constrained.ended:
                return "stop"
        return _REASONS.get(FinishCode(event.finish_reason), "error")


class Generation:
    """Made by Runtime.generate. Iterate it to the end, or `aclose` it (or use `async with`): both free the engine."""

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        params: GenerationParams,
        make_output: Callable[[], OutputStream],
        stop_ids: frozenset[int],
        cancel: Callable[[int, int], None],
        observations: Observations,
    ) -> None:
        self.prompts = prompts
        self.params = params
        self.n_choices = len(prompts) * params.n
        self.error: AppError | None = None
        self._choices = [
            _Choice(prompt * params.n + sample, sample, make_output())
            for prompt in range(len(prompts))
            for sample in range(params.n)
        ]
        self._prompt_logprobs: list[list[TokenInfo]] = [[] for _ in prompts]
        self._stop_ids = stop_ids
        self._cancel = cancel
        self._observations = observations
        self._inter_token = observations.inter_token
        self._want_tokens = params.logprobs or params.top_logprobs > 0 or params.return_tokens
        self._one_by_one = bool(params.stop) or params.calls == CallPolicy.ONE
        self._ready: list[_Choice] = []
        self._waiter: asyncio.Future[None] | None = None
        self._woken = False
        self.handed_ns = 0  # engine's time of the oldest event of the deltas that were handed over last
        self._n_open = self.n_choices  # choices whose FINISHED event has not come
        self._cancelled = False
        self._books_open = True

    # ---------------------------------------------------------------------------------------------- the reader's side

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> list[ChoiceDelta]:
        """Everything that waits, at least one delta; an empty list only after `wake`."""
        while True:
            if self._ready:
                deltas = self._collect()
                if deltas:
                    return deltas
                continue
            if self.error is not None:
                self.cancel()
                raise self.error
            if self._n_open == 0:
                self._close_books()
                raise StopAsyncIteration
            if self._woken:
                self._woken = False
                return []
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            except asyncio.CancelledError:
                self.cancel()
                raise
            finally:
                self._waiter = None

    def wake(self) -> None:
        """Makes a waiting reader return an empty list: a chance to send a sign of life."""
        self._woken = True
        self._notify()

    def cancel(self) -> None:
        """Ends all choices that still run; a reader sees "abort". Calling it late or twice is harmless."""
        if self._n_open == 0:
            self._close_books()
        if self._cancelled or self._n_open == 0:
            return
        self._cancelled = True
        for request in dict.fromkeys(choice.request for choice in self._choices if choice.finish_event is None):
            self._cancel(request, -1)

    def give_up(self, error: AppError) -> None:
        """Ends what still runs; the reader gets what has been made, then meets `error`."""
        if self._n_open and self.error is None:
            self.error = error
            self.cancel()

    async def aclose(self) -> None:
        """Leaves the stream: cancels what still runs."""
        self.cancel()

    async def __aenter__(self) -> Generation:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()

    @property
    def prompt_logprobs(self) -> list[TokenInfo] | None:
        """Of the first prompt, with params.prompt_logprobs: complete before the first delta comes."""
        return self._prompt_logprobs[0] if self.params.prompt_logprobs else None

    def prompt_logprobs_of(self, prompt: int) -> list[TokenInfo]:
        """As `prompt_logprobs`, for one of several prompts."""
        return self._prompt_logprobs[prompt]

    @property
    def usage(self) -> Usage:
        """So far; cached_tokens is known once a prompt's first choice has finished."""
        cached = 0
        for first in range(0, self.n_choices, self.params.n):
            choice = self._choices[first]
            event = choice.cut_event if choice.n_earlier else choice.finish_event
            cached += event.n_cached if event is not None else 0
        return Usage(
            prompt_tokens=sum(map(len, self.prompts)),
            completion_tokens=sum(choice.n_tokens for choice in self._choices),
            cached_tokens=cached,
            reasoning_tokens=sum(choice.output.reasoning_tokens for choice in self._choices),
        )

    @property
    def timings(self) -> Timings:
        """From the FINISHED events that have come."""
        return self.timings_of(self._choices)

    @staticmethod
    def timings_of(choices: Sequence[_Choice]) -> Timings:
        """As `timings`, of some choices."""
        ends = [(choice.cut_event, choice.finish_event) for choice in choices]
        events = [event for both in ends for event in both if event is not None and event.queued_ns]
        if not events:
            return Timings()
        queued = min(event.queued_ns for event in events)
        started = min((event.started_ns for event in events if event.started_ns), default=0)
        first = min((event.first_token_ns for event in events if event.first_token_ns), default=0)
        last = max(event.time_ns for event in events)
        return Timings(
            queue=(started - queued) * 1e-9 if started else None,
            prefill=(first - started) * 1e-9 if first and started else None,
            time_to_first_token=(first - queued) * 1e-9 if first else None,
            decode=(last - first) * 1e-9 if first else None,
            total=(last - queued) * 1e-9,
        )

    @property
    def tokens_per_second(self) -> float | None:
        """Of all choices together, from the first token on; None where there is no second one."""
        n_tokens, seconds = self.usage.completion_tokens - self.n_choices, self.timings.decode
        return n_tokens / seconds if seconds and n_tokens > 0 else None

    @property
    def finish_reasons(self) -> list[str | None]:
        """By choice; None while it runs."""
        return [choice.finish_reason for choice in self._choices]

    @property
    def tokens_by_choice(self) -> list[int]:
        """Completion tokens of each choice so far."""
        return [choice.n_tokens for choice in self._choices]

    @property
    def n_logprobs(self) -> int:
        """About how many log-probabilities the deltas so far and the prompt have, alternatives included."""
        if not self._want_tokens:
            return 0
        n_tokens = sum(map(len, self._prompt_logprobs)) + sum(choice.n_tokens for choice in self._choices)
        return n_tokens * (1 + self.params.top_logprobs)

    def note_written(self) -> None:
        """The deltas that were handed over last have been given to the reader's socket."""
        self._observations.write_delay.observe((time.monotonic_ns() - self.handed_ns) * 1e-9)

    # --------------------------------------------------------------------------------------------- the runtime's side

    def _notify(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _post_prompt_token(self, choice: _Choice, event: Event, top: Sequence[tuple[int, float]]) -> None:
        self._prompt_logprobs[choice.index // self.params.n].append(
            TokenInfo(event.token, event.logprob, Alternatives(top))
        )

    def _post_finished(self, choice: _Choice, event: Event) -> bool:
        """Notes a FINISHED event (the caller has put it into `pending` too). True: it was the last of all choices."""
        choice.finish_event = event
        self._n_open -= 1
        return self._n_open == 0

    def _post_cut(self, choice: _Choice, event: Event) -> bool:
        """As _post_finished, for the request that a closed thought has ended; a reader does not see it."""
        choice.cut_event = event
        self._n_open -= 1
        self._notify()
        return self._n_open == 0

    def _fail(self, error: AppError) -> None:
        """The engine is gone: no further events will come."""
        self.error = error
        self._n_open = 0
        self._books_open = False
        self._observations.fail(self)
        self._notify()

    def _close_books(self) -> None:
        """When engine and reader are through: only the reader knows where a stop string ended an answer."""
        if self._books_open:
            self._books_open = False
            self._observations.close(self)

    # --------------------------------------------------------------------------------------------------- events to text

    def _collect(self) -> list[ChoiceDelta]:
        ready, self._ready = self._ready, []
        self.handed_ns = next((choice.pending[0][11] for choice in ready if choice.pending), self.handed_ns)
        deltas = []
        for choice in ready:
            pending, choice.pending = choice.pending, []
            if choice.finish_reason is None:
                delta = self._advance(choice, pending)
                if delta is not None:
                    deltas.append(delta)
        return deltas

    def _advance(self, choice: _Choice, pending: list[Event]) -> ChoiceDelta | None:
        """Turns one choice's events into at most one delta."""
        output = choice.output
        stop_ids = self._stop_ids
        ids: list[int] = []
        infos: list[TokenInfo] | None = [] if self._want_tokens else None
        content = reasoning = ""
        calls: Sequence[ToolCall] = ()
        finish_reason: str | None = None
        matched: str | int | None = None
        for event in pending:
            if event.kind == _TOKEN:
                now = event.time_ns
                if now:  # 0: closing words, which took no time
                    if choice.last_ns:
                        self._inter_token.observe((now - choice.last_ns) * 1e-9)
                    choice.last_ns = now
                choice.n_tokens += 1
                token = event.token
                if token in stop_ids:
                    if token in self.params.stop_token_ids:
                        matched = token
                    continue
                if infos is not None:
                    infos.append(TokenInfo(token, event.logprob, choice.tops.pop((event.request, event.index), ())))
                if not self._one_by_one:
                    ids.append(token)
                    continue
                delta = output.push((token,))
                content += delta.content
                reasoning += delta.reasoning
                if delta.calls:
                    calls = [*calls, *delta.calls]
                if delta.stopped:
                    finish_reason, matched = "stop", output.matched_stop
                    if choice.finish_event is None:
                        self._cancel(choice.request, choice.sample)
                    break
            elif event.kind == _FINISHED:
                finish_reason = choice.end_reason(event)
                if self.error is None and choice.constrained is not None:
                    self.error = choice.constrained.error
                if finish_reason == "abort" and self.error is not None:
                    finish_reason = "error"  # given up
        if ids:
            delta = output.push(ids)
            content, reasoning, calls = delta.content, delta.reasoning, delta.calls
        if finish_reason is not None:
            if output.matched_stop is None:
                tail = output.finish(ended=finish_reason == "stop")
                content += tail.content
                reasoning += tail.reasoning
                if tail.calls:
                    calls = [*calls, *tail.calls]
                if tail.stopped:
                    finish_reason, matched = "stop", output.matched_stop
            if (calls or choice.called) and finish_reason in ("stop", "length"):
                finish_reason = "tool_calls"
            choice.finish_reason = finish_reason
            self._observations.reasoning_tokens += output.reasoning_tokens
            if finish_reason == "error" and self.error is None:
                self.error = GenerationError(BROKEN_OUTPUT)
            if finish_reason != "stop":
                matched = None
        elif not content and not reasoning and not infos and not calls:
            return None
        if calls:
            choice.called = True
        return ChoiceDelta(choice.index, content, reasoning, infos, finish_reason, matched, calls)
