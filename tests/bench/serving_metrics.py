"""What the serving benchmark measures: the definitions of `vllm bench serve`, so that its numbers can be compared.

For each request, by the client's clock:
- start: just before the request is written, its connection being open already or not. Waiting for a place under the
  concurrency limit, or for the time of arrival, is not part of a request.
- chunk: one event with a non-empty `choices`, whatever its text (none for a special token, several tokens' after a
  delay). A server that holds back unfinished characters sends fewer chunks than tokens.
- TTFT, time to first token: start to the first chunk.
- E2E, end-to-end latency: start to the last chunk. The usage event and [DONE] behind it do not count.
- TPOT, time per output token: (E2E - TTFT) / (output tokens - 1), for requests with at least two output tokens.
- ITL, inter-token latency: the time between successive chunks; all of all requests are one population.
- output tokens: usage.completion_tokens, counted by the server; so are prompt tokens.
For a row, over requests that succeeded:
- duration: start of the row's first request to the end of its last reply, failed ones too.
- throughputs: requests, output tokens, or prompt plus output tokens, over the duration.
- mean, median, standard deviation (of the population), percentiles with linear interpolation, as numpy's.
A request fails when the status is not 200, the stream breaks off, no chunk or no usage comes, or an error event does.
Failures are counted and their sentences shown; they enter no other number. A request with fewer output tokens than
asked for is a success and counted as short: with ignore_eos there should be none.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

PERCENTILES = (90, 99)


@dataclass(slots=True)
class RequestResult:
    """One request, times in seconds of one clock that all client processes share."""

    index: int
    start: float = 0.0
    first: float = 0.0  # first chunk
    last: float = 0.0  # last chunk
    end: float = 0.0  # the reply's end, or the failure's time
    gaps: list[float] = field(default_factory=list)  # between chunks
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    error: str = ""

    @property
    def ttft(self) -> float:
        return self.first - self.start

    @property
    def latency(self) -> float:
        return self.last - self.start

    @property
    def tpot(self) -> float | None:
        return (self.latency - self.ttft) / (self.output_tokens - 1) if self.output_tokens > 1 else None


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Of values in ascending order, interpolated."""
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def distribution(seconds: Sequence[float]) -> dict[str, float] | None:
    """Milliseconds: mean, median, std and the percentiles. None of nothing."""
    if not seconds:
        return None
    ordered = sorted(1e3 * value for value in seconds)
    result = {
        "mean": statistics.fmean(ordered),
        "median": percentile(ordered, 50),
        "std": statistics.pstdev(ordered),
    }
    result |= {f"p{percent}": percentile(ordered, percent) for percent in PERCENTILES}
    return {name: round(value, 4) for name, value in result.items()}


def summarize(results: Sequence[RequestResult], expected_output: int) -> dict[str, Any]:
    """The numbers of one row."""
    good = [result for result in results if not result.error]
    duration = max(result.end for result in results) - min(result.start for result in results)
    prompt_tokens = sum(result.prompt_tokens for result in good)
    output_tokens = sum(result.output_tokens for result in good)
    return {
        "completed": len(good),
        "failed": len(results) - len(good),
        "errors": dict(Counter(result.error for result in results if result.error).most_common(5)),
        "short": sum(result.output_tokens < expected_output for result in good),
        "duration_s": round(duration, 4),
        "prompt_tokens": prompt_tokens,
        "cached_prompt_tokens": sum(result.cached_tokens for result in good),
        "output_tokens": output_tokens,
        "requests_per_s": round(len(good) / duration, 4),
        "output_tokens_per_s": round(output_tokens / duration, 2),
        "total_tokens_per_s": round((prompt_tokens + output_tokens) / duration, 2),
        "ttft_ms": distribution([result.ttft for result in good]),
        "tpot_ms": distribution([tpot for result in good if (tpot := result.tpot) is not None]),
        "itl_ms": distribution([gap for result in good for gap in result.gaps]),
        "e2e_ms": distribution([result.latency for result in good]),
    }
