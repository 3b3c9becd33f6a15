"""What the runtime counts while it runs: histograms over requests and tokens, for server/metrics.py to expose.

Knows no Prometheus. All on the event loop's thread; a reader on another thread sees figures that are a moment old.
`Histogram.observe` costs 0.3 us because one is made per token, which is why prometheus-client's own is not used.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qwen3app.runtime.generation import Generation, _Choice

# vLLM's bounds, so that its dashboards' queries give smooth quantiles here too.
TTFT_BOUNDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
TOKEN_BOUNDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_BOUNDS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
    120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
LENGTH_BOUNDS = (
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5,
)  # fmt: skip
WRITE_BOUNDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0,
)  # fmt: skip
N_BOUNDS = (1.0, 2.0, 5.0, 10.0, 20.0)


class Histogram:
    """Counts per bucket; a value equal to a bound lies in that bound's bucket, as Prometheus wants it."""

    __slots__ = ("_counts", "bounds", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound, cumulative count), with "+Inf" last."""
        names = [repr(float(bound)) for bound in self.bounds] + ["+Inf"]
        return list(zip(names, map(float, accumulate(self._counts)), strict=True))

    @property
    def count(self) -> int:
        return sum(self._counts)


class Observations:
    """One per runtime."""

    def __init__(self) -> None:
        self.time_to_first_token = Histogram(TTFT_BOUNDS)
        self.inter_token = Histogram(TOKEN_BOUNDS)
        self.time_per_output_token = Histogram(TOKEN_BOUNDS)  # per request: decode time / (tokens - 1)
        self.write_delay = Histogram(WRITE_BOUNDS)  # by write: the oldest event in it
        self.e2e = Histogram(REQUEST_BOUNDS)
        self.queue = Histogram(REQUEST_BOUNDS)
        self.prefill = Histogram(REQUEST_BOUNDS)
        self.decode = Histogram(REQUEST_BOUNDS)
        self.inference = Histogram(REQUEST_BOUNDS)
        self.prompt_tokens = Histogram(LENGTH_BOUNDS)
        self.generation_tokens = Histogram(LENGTH_BOUNDS)
        self.max_generation_tokens = Histogram(LENGTH_BOUNDS)
        self.params_n = Histogram(N_BOUNDS)
        self.params_max_tokens = Histogram(LENGTH_BOUNDS)
        self.finished: Counter[str] = Counter()  # samples by finish reason
        self.reasoning_tokens = 0

    def close(self, generation: Generation) -> None:
        """A generation has ended, in the engine and for its reader: its books are closed. Each prompt is a request."""
        n = generation.params.n
        for prompt, ids in enumerate(generation.prompts):
            self._close_prompt(generation, generation._choices[prompt * n : (prompt + 1) * n], len(ids))

    def fail(self, generation: Generation) -> None:
        """The engine is gone. What a sample has not ended with is an error."""
        for choice in generation._choices:
            event = choice.finish_event
            reason = choice.finish_reason or ("error" if event is None else choice.end_reason(event))
            self.finished[_four(reason)] += 1

    def _close_prompt(self, generation: Generation, choices: Sequence[_Choice], n_prompt: int) -> None:
        params, timings = generation.params, generation.timings_of(choices)
        if timings.total is not None:
            self.e2e.observe(timings.total)
        if timings.queue is not None:
            self.queue.observe(timings.queue)
        if timings.prefill is not None:
            self.prefill.observe(timings.prefill)
        if timings.time_to_first_token is not None:
            self.time_to_first_token.observe(timings.time_to_first_token)
        if timings.decode is not None:
            self.decode.observe(timings.decode)
            self.inference.observe((timings.prefill or 0.0) + timings.decode)
        self.prompt_tokens.observe(n_prompt)
        self.params_n.observe(params.n)
        if params.max_tokens is not None:
            self.params_max_tokens.observe(params.max_tokens)
        longest = 0
        for choice in choices:
            event = choice.finish_event
            assert event is not None
            n_generated = choice.n_earlier + event.n_generated
            first = choice.cut_event.first_token_ns if choice.cut_event is not None else event.first_token_ns
            if n_generated > 1 and 0 < first < event.time_ns:
                self.time_per_output_token.observe((event.time_ns - first) * 1e-9 / (n_generated - 1))
            # A stop string is seen by the reader, when the engine may be some tokens further.
            n_answered = n_generated if choice.finish_reason is None else choice.n_tokens
            longest = max(longest, n_answered)
            self.generation_tokens.observe(n_answered)
            told = choice.finish_reason
            self.finished[_four(choice.end_reason(event) if told in (None, "error") else told)] += 1
        self.max_generation_tokens.observe(longest)


def _four(reason: str) -> str:
    """Dashboards know four reasons."""
    return "stop" if reason == "tool_calls" else reason
