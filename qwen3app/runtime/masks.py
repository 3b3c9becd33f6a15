"""`Masks`: answers each token of a constrained sample with the mask of the next one, while the model computes it.

Owns: the samples that are constrained now, and the threads that work out masks. Refuses to know: grammars, readers.

How it flows: the poll thread, before it hands a batch of events to the event loop, works out mask after mask (some 3 us
each where a grammar's states are known) and gives them to the engine, which computes the next step meanwhile. Before,
because the event loop then has nothing to do yet: beside it, each mask would wait for Python's lock. Samples whose last
mask took long, and what is left after INLINE_SECONDS, go to a pool, so that they delay nobody else.
A sample that has said all that its grammar allows ends by EOS. Where EOS cannot end it (ignore_eos, min_tokens) it is
cancelled and counts as stopped. A sample whose grammar has become too complex is cancelled with an error: an answer is
never continued without its constraint.

Threads: `add` and `close` on the event loop; `take` on the poll thread; slow masks on threads of the pool. A sample's
next token cannot come before its mask, so no sample is ever in two hands.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from qwen3app.abi.types import EventKind
from qwen3app.errors import AppError, EngineError, GenerationError, Status

if TYPE_CHECKING:
    from qwen3app.abi import Engine
    from qwen3app.abi.types import Event
    from qwen3app.runtime.constraints import SampleConstraint

_TOKEN = int(EventKind.TOKEN)
_FINISHED = int(EventKind.FINISHED)
# How long the events of a batch may wait for the masks that they ask for.
INLINE_SECONDS = 0.002
# A mask that takes longer than this sends its sample to the pool.
_SLOW_SECONDS = 0.001
_SLOW_THREADS = 2


class ConstrainedSample:
    """One sample of the engine under a constraint. ended, error: why it was cancelled from here, set before that."""

    __slots__ = ("constraint", "ended", "eos_ends_from", "error", "request", "sample", "slow")

    def __init__(self, constraint: SampleConstraint, eos_ends_from: int | None) -> None:
        """eos_ends_from: the first output index at which EOS ends the sample; None: it never does."""
        self.constraint = constraint
        self.eos_ends_from = eos_ends_from
        self.request = self.sample = 0
        self.slow = False
        self.ended = False
        self.error: AppError | None = None


class Masks:
    """See the file's head."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._samples: dict[tuple[int, int], ConstrainedSample] = {}
        self._pool: ThreadPoolExecutor | None = None

    def add(self, sample: ConstrainedSample, request: int, index: int) -> None:
        """A sample that has just been submitted: it gets its first mask."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_SLOW_THREADS, thread_name_prefix="slow-masks")
        sample.request, sample.sample = request, index
        self._samples[request, index] = sample
        self._give(sample, 0)

    def take(self, events: Sequence[Event]) -> None:
        """A batch of events. Cheap where nothing is constrained."""
        samples = self._samples
        if not samples:
            return
        due = []
        for event in events:
            sample = samples.get((event[0], event[3]))
            if sample is None:
                continue
            if event[2] == _TOKEN:
                due.append((sample, event[4], event[10] + 1))
            elif event[2] == _FINISHED:
                del samples[event[0], event[3]]
        begin = now = time.perf_counter()
        for sample, token, index in due:
            if sample.slow or now - begin > INLINE_SECONDS:
                assert self._pool is not None  # `add` made it
                self._pool.submit(self._push, sample, token, index)
            else:
                now = self._push(sample, token, index)

    def close(self) -> None:
        """Ends the pool. No events may come any more."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    # ---------------------------------------------------------------------------- the poll thread's and the pool's side

    def _push(self, sample: ConstrainedSample, token: int, index: int) -> float:
        """Works out and gives the mask behind `token`. Returns the time."""
        begin = time.perf_counter()
        if (sample.request, sample.sample) not in self._samples:
            return begin  # it has ended with this token
        try:
            sample.constraint.push(token)
        except AppError as error:
            sample.error = error
        except Exception as error:
            sample.error = GenerationError(f"The constraint failed: {error!r}.")
        if sample.error is not None:
            self._cancel(sample)
        else:
            self._give(sample, index)
        now = time.perf_counter()
        sample.slow = now - begin > _SLOW_SECONDS
        return now

    def _give(self, sample: ConstrainedSample, index: int) -> None:
        constraint = sample.constraint
        if constraint.over and (sample.eos_ends_from is None or index < sample.eos_ends_from):
            sample.ended = True
            self._cancel(sample)
            return
        try:
            self._engine.set_mask(sample.request, sample.sample, index, constraint.mask)
        except EngineError as error:
            if error.status in (Status.NOT_FOUND, Status.CLOSED, Status.DEVICE_ERROR):
                return  # it has ended meanwhile, or everything has
            sample.error = error
            self._cancel(sample)

    def _cancel(self, sample: ConstrainedSample) -> None:
        try:
            self._engine.cancel(sample.request, sample.sample)
        except EngineError:
            return  # the engine has failed or is closed: the reader is told elsewhere
