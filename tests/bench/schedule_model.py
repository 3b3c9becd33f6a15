"""A model of the engine's scheduler under a closed loop: what a rule for prefill does to throughput, TTFT and TPOT.

    python tests/bench/schedule_model.py --row 128x512:512 --row 32x1024:256 --budget 512 --budget 8192 --spread 48
    python tests/bench/schedule_model.py --steps steps.json ...        # step times of another device or day

Answers in a second what a run on the device answers in minutes; docs/decisions.md says how well the two agree. Rows are
serve_bench.py's. A rule is a fixed token budget (--budget), or the scheduler's own (--spread n, with the budget 8,192).
What it knows of a step: milliseconds by the number of rows, in tiles of 128, and the time to read the KV of what
decodes. Steps are planned as the engine does it: step n + 1 while step n runs, so a request that arrives during step n
is in step n + 2 at the earliest.
"""

from __future__ import annotations

import argparse
import bisect
import json
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from serving_load import Row, within
from serving_metrics import RequestResult, summarize

# One H200, 8B, kernels of 2026-11-29 (the runs in docs/decisions.md): rows of a step and its milliseconds without KV.
STEPS = {
    "rows": [1, 8, 32, 64, 128, 256, 512, 1024, 2048, 8192],
    "ms": [3.9, 4.0, 4.9, 5.1, 6.35, 9.4, 14.1, 26.1, 52.0, 214.0],
    "kv_bytes_per_token": 147_456,
    "kv_bytes_per_ms": 3.7e9,
}
TILE = 128
MOST_MIXED = 5  # kMostMixed of the scheduler
MOST_ROWS = 8192
ARRIVAL_MS = 0.35  # the server's work per request: the distance of requests that are sent at once
REPLY_MS = 3.0  # from a request's last token to its successor's arrival

Rule = Callable[[int, int], int]  # (sequences that decode, prompt tokens that could run) -> rows of the step at most


def fixed(budget: int) -> Rule:
    return lambda _n_decodes, _n_prompt: budget


class _Spread:
    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._n_mixed = 0

    def __call__(self, n_decodes: int, n_prompt: int) -> int:
        wanted = n_decodes + max(TILE // 2, n_prompt // self._steps)
        rows = min(MOST_ROWS, max(2, -(-wanted // TILE)) * TILE)
        if n_decodes == 0:
            rows = MOST_ROWS
        elif n_decodes < TILE // 2 and self._n_mixed == MOST_MIXED:
            rows = n_decodes
        self._n_mixed = self._n_mixed + 1 if n_decodes and n_prompt and rows > n_decodes else 0
        return rows


def spread(steps: int) -> Rule:
    """Scheduler::budget_beside_decodes, asked once per step; 0 steps: no spreading."""
    return _Spread(steps) if steps else fixed(MOST_ROWS)


class StepTimes:
    """Milliseconds of a step."""

    def __init__(self, table: dict[str, object]) -> None:
        self._rows: list[int] = list(table["rows"])  # type: ignore[call-overload]
        self._ms: list[float] = list(table["ms"])  # type: ignore[call-overload]
        self._kv = float(table["kv_bytes_per_token"]) / float(table["kv_bytes_per_ms"])  # type: ignore[arg-type]

    def __call__(self, n_rows: int, n_kv_tokens: int) -> float:
        rows = -(-n_rows // TILE) * TILE if n_rows > TILE else n_rows
        i = min(max(bisect.bisect_left(self._rows, rows), 1), len(self._rows) - 1)
        low, high = self._rows[i - 1], self._rows[i]
        share = (rows - low) / (high - low)
        return self._ms[i - 1] + (self._ms[i] - self._ms[i - 1]) * share + n_kv_tokens * self._kv


@dataclass(eq=False)
class _Sequence:
    result: RequestResult
    n_left: int  # prompt tokens that no step has taken
    n_planned: int = 0  # output tokens of planned steps
    n_landed: int = 0


@dataclass
class _Loop:
    """The state of one run; all times in ms."""

    row: Row
    n_sent: int = 0
    coming: deque[_Sequence] = field(default_factory=deque)  # by time of arrival
    waiting: deque[_Sequence] = field(default_factory=deque)
    running: list[_Sequence] = field(default_factory=list)
    done: list[RequestResult] = field(default_factory=list)

    def send(self, now: float) -> None:
        if self.n_sent < self.row.n_prompts:
            self.coming.append(_Sequence(RequestResult(self.n_sent, start=now * 1e-3), self.row.n_input))
            self.n_sent += 1

    def arrive(self, now: float) -> None:
        while self.coming and self.coming[0].result.start * 1e3 <= now:
            self.waiting.append(self.coming.popleft())

    def plan(self, rule: Rule) -> tuple[list[_Sequence], int, int]:
        """(sequences that get a token, rows, KV tokens read) of the next step."""
        decodes = [s for s in self.running if s.n_left == 0 and s.n_planned < self.row.n_output]
        fresh = list(self.waiting)[: self.row.concurrency - len(self.running)]
        prompts = [s for s in self.running if s.n_left] + fresh
        rows = rule(len(decodes), sum(s.n_left for s in prompts))
        room = rows - len(decodes)
        sampling = list(decodes)
        n_kv = sum(self.row.n_input + s.n_planned for s in decodes)
        n_rows = len(decodes)
        for sequence in prompts:
            n = min(room, sequence.n_left)
            if n <= 0:
                break
            if sequence in fresh:
                self.waiting.popleft()
                self.running.append(sequence)
            room -= n
            n_rows += n
            sequence.n_left -= n
            if sequence.n_left == 0:
                sampling.append(sequence)
        for sequence in sampling:
            sequence.n_planned += 1
        return sampling, n_rows, n_kv

    def land(self, sampling: list[_Sequence], now: float) -> None:
        for sequence in sampling:
            result = sequence.result
            if sequence.n_landed == 0:
                result.first = now * 1e-3
            else:
                result.gaps.append(now * 1e-3 - result.last)
            result.last = result.end = now * 1e-3
            sequence.n_landed += 1
            if sequence.n_landed == self.row.n_output:
                result.prompt_tokens, result.output_tokens = self.row.n_input, self.row.n_output
                self.running.remove(sequence)
                self.done.append(result)
                self.send(now + REPLY_MS)


def play(row: Row, rule: Rule, step_ms: StepTimes) -> list[RequestResult]:
    """Runs a closed loop to its end."""
    loop = _Loop(row)
    for i in range(row.concurrency):
        loop.send(i * ARRIVAL_MS)
    now = free_at = 0.0  # when the host plans, and when the device has done all that was planned
    flying: deque[tuple[float, list[_Sequence]]] = deque()
    while len(loop.done) < row.n_prompts:
        loop.arrive(now)
        sampling, n_rows, n_kv = loop.plan(rule)
        if n_rows:
            free_at = max(free_at, now) + step_ms(n_rows, n_kv)
            flying.append((free_at, sampling))
        elif not flying:
            now = loop.coming[0].result.start * 1e3
            continue
        if len(flying) == 2 or not n_rows:
            now, landed = flying.popleft()
            loop.land(landed, now)
    return loop.done


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", type=Row.parse, action="append", required=True, metavar="CxI[xO][:N]")
    parser.add_argument(
        "--budget", type=within(int, 16, 65536), action="append", default=[], help="a fixed token budget"
    )
    parser.add_argument(
        "--spread", type=within(int, 0, 4096), action="append", default=[], help="--prefill-spread of serve"
    )
    parser.add_argument("--steps", type=Path, metavar="FILE", help="step times as JSON, in the form of STEPS")
    options = parser.parse_args(arguments)
    if not (options.budget or options.spread):
        parser.error("no rule to compare: give --budget or --spread")
    if any(row.concurrency == 0 for row in options.row):
        parser.error("a closed loop has a concurrency above 0")
    step_ms = StepTimes(json.loads(options.steps.read_text()) if options.steps else STEPS)
    rules = {f"budget {n}": fixed(n) for n in options.budget} | {f"spread {n}": spread(n) for n in options.spread}
    print(f"{'row':>18} {'rule':>12} {'out tok/s':>9} {'ttft':>8} {'ttft p99':>8} {'tpot':>7} {'itl p99':>7}  (ms)")
    for row in options.row:
        for name, rule in rules.items():
            found = summarize(play(row, rule, step_ms), row.n_output)
            ttft, tpot, itl = found["ttft_ms"], found["tpot_ms"], found["itl_ms"]
            print(
                f"{row!s:>18} {name:>12} {found['output_tokens_per_s']:>9.0f} {ttft['mean']:>8.1f} {ttft['p99']:>8.1f} "
                f"{tpot['mean']:>7.2f} {itl['p99']:>7.2f}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
