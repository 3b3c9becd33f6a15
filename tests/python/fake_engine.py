"""A stand-in for qwen3app.abi.Engine: scripted tokens, errors and slowness, with the same methods and no library.

Events have a time at which they are due; `poll` hands over those that are. Cancel drops a sample's future events and
ends it at once, as the real engine does. Thread-safe like the real one. `reply` decides what a sample says; without
it nothing comes until the test calls `emit` and `finish`.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from qwen3app.abi.types import EngineInfo, EngineRequest, EngineStats, Event, EventBatch, EventKind, FinishCode
from qwen3app.errors import EngineError, Status

Reply = Callable[[EngineRequest, int], Sequence[int]]


def make_info(**changes: object) -> EngineInfo:
    info = EngineInfo(
        hidden=256,
        intermediate=512,
        n_layers=2,
        n_heads=4,
        n_kv_heads=2,
        head_dim=128,
        vocab=1536,
        tied=True,
        n_token_ids=1536,
        eos_ids=(),
        n_parameters=1_967_872,
        max_context=512,
        model_max_context=40_960,
        block_size=32,
        n_blocks=64,
        max_slots=32,
        token_budget=512,
        threads=2,
        prefix_cache=True,
        weight_bytes=3_935_744,
        kv_bytes=4_194_304,
        workspace_bytes=1_000_000,
        free_bytes=1 << 34,
        open_seconds=0.01,
        device="cpu",
        device_name="fake",
        kernels="none",
        graph_bytes=0,
        total_bytes=0,
        coded_bytes=0,
    )
    return replace(info, **changes)  # type: ignore[arg-type]


def endless(step: float = 0.02) -> FakeEngine:
    """An engine that says the same token on and on, for far longer than any test takes."""
    return FakeEngine(lambda request, sample: [70] * 10_000, make_info(max_context=20_000), step=step)


class FakeEngine:
    """See the file's head. step: seconds between two tokens; delay: seconds before the first."""

    def __init__(
        self, reply: Reply | None = None, info: EngineInfo | None = None, *, step: float = 0.0, delay: float = 0.0
    ) -> None:
        self.reply = reply
        self.step = step
        self.delay = delay
        self.requests: dict[int, EngineRequest] = {}
        self.cancelled: list[tuple[int, int]] = []
        self.open_samples: set[tuple[int, int]] = set()
        self.submit_error: EngineError | None = None
        self.max_queue: int | None = None
        self.closed = False
        self.failed = False
        self._info = info or make_info()
        self._ids = itertools.count(1)
        self._order = itertools.count()
        self._due: list[tuple[float, int, Event, list[tuple[int, float]]]] = []
        self._counts: dict[tuple[int, int], int] = {}
        self._queued: dict[int, int] = {}
        self._first: dict[tuple[int, int], int] = {}
        self._poll_error: EngineError | None = None
        self._changed = threading.Condition()
        self._event_fd = -1

    # ------------------------------------------------------------------------------------------- the engine's interface

    def info(self) -> EngineInfo:
        return self._info

    def stats(self) -> EngineStats:
        values: dict[str, object] = dict.fromkeys(EngineStats.__annotations__, 0)
        n_used = len(self.open_samples)
        values |= {
            "n_running": n_used,
            "blocks_total": self._info.n_blocks,
            "blocks_free": self._info.n_blocks - n_used,
            "blocks_used": n_used,
            "generated_tokens": sum(self._counts.values()),
            "step_ns": 5_000_000,
            "step_sizes": (2, 1, *[0] * 15),
        }
        return EngineStats(**{**values, "failed": self.failed})  # type: ignore[arg-type]

    def submit(self, request: EngineRequest) -> int:
        if self.submit_error is not None:
            raise self.submit_error
        if self.max_queue is not None and len(self.open_samples) >= self.max_queue:
            raise EngineError(Status.QUEUE_FULL, f"{self.max_queue} requests are waiting already; try again later.")
        with self._changed:
            identity = next(self._ids)
            self.requests[identity] = request
            now = time.monotonic()
            self._queued[identity] = int(now * 1e9)
            if request.prompt_logprobs:
                self._prompt_logprobs(identity, request, now)
            for sample in range(request.n):
                self.open_samples.add((identity, sample))
                self._counts[identity, sample] = 0
                if request.max_tokens == 0:
                    self._finish(identity, sample, FinishCode.LENGTH, now)
                elif self.reply is not None:
                    self._script(identity, sample, request, now + self.delay)
            self._changed.notify_all()
        return identity

    def cancel(self, request: int, sample: int = -1) -> bool:
        with self._changed:
            self.cancelled.append((request, sample))
            open_now = [key for key in self.open_samples if key[0] == request and sample in (-1, key[1])]
            if not open_now:
                return False
            self._due = [
                item for item in self._due if (item[2][0], item[2][3]) not in open_now or item[0] <= time.monotonic()
            ]
            heapq.heapify(self._due)
            for key in open_now:
                if not any((item[2][0], item[2][3]) == key and item[2][2] == EventKind.FINISHED for item in self._due):
                    self._finish(*key, FinishCode.CANCELLED, time.monotonic())
            self._changed.notify_all()
        return True

    def poll(self, timeout_ms: int) -> EventBatch:
        deadline = time.monotonic() + timeout_ms / 1000
        with self._changed:
            while True:
                if self._poll_error is not None:
                    raise self._poll_error
                if self.closed:
                    raise EngineError(Status.CLOSED, "The engine is being closed.")
                now = time.monotonic()
                events: list[Event] = []
                logprobs: list[tuple[int, float]] = []
                while self._due and self._due[0][0] <= now and len(events) < 4096:
                    event, tops = heapq.heappop(self._due)[2:]
                    events.append(event._replace(n_logprobs=len(tops), first_logprob=len(logprobs)))
                    logprobs += tops
                    if event.kind == EventKind.FINISHED:
                        self.open_samples.discard((event.request, event.sample))
                if events:
                    if self._event_fd >= 0:
                        with contextlib.suppress(BlockingIOError):
                            os.eventfd_read(self._event_fd)
                        self._changed.notify_all()  # for what is left
                    return EventBatch(events, logprobs)
                if now >= deadline:
                    return EventBatch([], [])
                next_due = self._due[0][0] if self._due else deadline
                self._changed.wait(max(0.0, min(next_due, deadline) - now))

    def event_fd(self) -> int:
        """Readable while `poll` has something to say. A thread looks after that, as events fall due by the clock."""
        with self._changed:
            if self._event_fd < 0:
                self._event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
                threading.Thread(target=self._signal, name="fake-engine", daemon=True).start()
            return self._event_fd

    def close(self) -> None:
        with self._changed:
            self.closed = True
            if self._event_fd >= 0:
                os.eventfd_write(self._event_fd, 1)
            self._changed.notify_all()

    # ----------------------------------------------------------------------------------------------- the test's levers

    def emit(self, request: int, sample: int, tokens: Sequence[int]) -> None:
        """Tokens that come now, in one batch."""
        with self._changed:
            now = time.monotonic()
            for token in tokens:
                self._token(request, sample, token, now)
            self._changed.notify_all()

    def finish(self, request: int, sample: int, reason: FinishCode) -> None:
        """The end of a sample, now."""
        with self._changed:
            self._finish(request, sample, reason, time.monotonic())
            self._changed.notify_all()

    def fail(self, message: str = "the device is gone") -> None:
        """From now on everything fails."""
        with self._changed:
            self.failed = True
            self._poll_error = EngineError(Status.DEVICE_ERROR, message)
            self.submit_error = self._poll_error
            self._changed.notify_all()

    # --------------------------------------------------------------------------------------------------------- inside

    def _signal(self) -> None:
        while not self.closed:
            with self._changed:
                now = time.monotonic()
                due = self._due[0][0] - now if self._due else None
                if self._poll_error is not None or (due is not None and due <= 0):
                    os.eventfd_write(self._event_fd, 1)
                    self._changed.wait()  # until somebody takes them
                else:
                    self._changed.wait(due)

    def _script(self, identity: int, sample: int, request: EngineRequest, due: float) -> None:
        assert self.reply is not None
        limit = request.max_tokens if request.max_tokens >= 0 else self._info.max_context - len(request.prompt)
        stops = set(request.stop_ids) | (set() if request.ignore_eos else set(self._info.eos_ids))
        last = due
        reason = FinishCode.STOP  # a reply that is over has ended by itself
        for count, token in enumerate(self.reply(request, sample), 1):
            last = due
            self._token(identity, sample, token, due)
            due += self.step
            if token in stops:
                break
            if count == limit:
                reason = FinishCode.LENGTH
                break
        self._finish(identity, sample, reason, last)  # with the last token, as the engine does it

    def _push(self, due: float, event: Event, tops: list[tuple[int, float]]) -> None:
        heapq.heappush(self._due, (due, next(self._order), event, tops))

    def _tops(self, request: EngineRequest, token: int) -> list[tuple[int, float]]:
        """The token itself first, then its neighbours."""
        return [((token + i) % self._info.vocab, -0.5 - i) for i in range(request.top_logprobs)]

    def _token(self, identity: int, sample: int, token: int, due: float) -> None:
        request = self.requests[identity]
        index = self._counts[identity, sample]
        self._counts[identity, sample] += 1
        now = int(due * 1e9)
        self._first.setdefault((identity, sample), now)
        logprob = -0.5 if request.logprobs or request.top_logprobs else math.nan
        event = Event(identity, request.tag, EventKind.TOKEN, sample, token, logprob, index=index, time_ns=now)
        self._push(due, event, self._tops(request, token))

    def _prompt_logprobs(self, identity: int, request: EngineRequest, now: float) -> None:
        for index, token in enumerate(request.prompt):
            logprob = -1.5 if index else math.nan
            stamp = int(now * 1e9)
            event = Event(identity, request.tag, EventKind.PROMPT_TOKEN, 0, token, logprob, index=index, time_ns=stamp)
            self._push(now, event, self._tops(request, token) if index else [])

    def _finish(self, identity: int, sample: int, reason: FinishCode, due: float) -> None:
        request = self.requests[identity]
        now = int(due * 1e9)
        event = Event(
            identity,
            request.tag,
            EventKind.FINISHED,
            sample,
            finish_reason=reason,
            time_ns=now,
            n_prompt=len(request.prompt),
            n_cached=3,
            n_generated=self._counts[identity, sample],
            queued_ns=self._queued[identity],
            started_ns=self._queued[identity],
            first_token_ns=self._first.get((identity, sample), 0),
        )
        self._push(due, event, [])
