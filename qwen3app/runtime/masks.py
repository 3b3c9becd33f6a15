"""`Masks`: leads each constrained sample to its grammar, from where on the engine asks the matcher by itself.

Owns: the samples that are constrained now. Refuses to know: grammars, readers.

How it flows: before a grammar begins, in a thought, each token is answered with the mask of the next one, before the
batch of events goes to its readers: on a thread beside the event loop that would wait for Python's lock. Where the
grammar begins, the sample gets a matcher of its own, a large one on a thread of a pool, since that takes milliseconds;
then its tokens need nothing of Python.
A sample that has said all that its grammar allows ends by EOS. Where EOS cannot end it (ignore_eos, min_tokens) it ends
by itself. A sample whose grammar has become too complex ends with an error: an answer is never continued without its
constraint.

Threads: the methods on the event loop's; large matchers on threads of the pool. A sample's next token cannot come
before its mask, so no sample is ever in two hands.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from qwen3app.abi.types import EventKind, FinishCode
from qwen3app.errors import AppError, EngineError, GenerationError, RequestError, Status
from qwen3app.runtime.constraints import Phase

if TYPE_CHECKING:
    from qwen3app.abi import Engine
    from qwen3app.abi.types import Event
    from qwen3app.runtime.constraints import SampleConstraint

_TOKEN = int(EventKind.TOKEN)
_FINISHED = int(EventKind.FINISHED)
_THREADS = 2

_log = logging.getLogger(__name__)


class ConstrainedSample:
    """One sample of the engine under a constraint. ended, error: why it ended, set before its FINISHED is handed on."""

    __slots__ = ("constraint", "ended", "eos_ends_from", "error", "request", "sample")

    def __init__(self, constraint: SampleConstraint, eos_ends_from: int | None) -> None:
        """eos_ends_from: the first output index at which EOS ends the sample; None: it never does."""
        self.constraint = constraint
        self.eos_ends_from = eos_ends_from
        self.request = self.sample = 0
        self.ended = False
        self.error: AppError | None = None


class Masks:
    """See the file's head."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._samples: dict[tuple[int, int], ConstrainedSample] = {}  # by request and sample
        self._led: dict[tuple[int, int], ConstrainedSample] = {}  # those whose grammar has not begun
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="matchers")

    def add(self, sample: ConstrainedSample, request: int, index: int) -> None:
        """A sample that has just been submitted: it gets its first mask."""
        sample.request, sample.sample = request, index
        self._samples[request, index] = sample
        if sample.constraint.phase is not Phase.ANSWER:
            self._led[request, index] = sample
        self._give(sample, 0)

    def take(self, events: Sequence[Event]) -> None:
        """A batch of events. Cheap where nothing is constrained."""
        if not self._samples:
            return
        led = self._led
        for event in events:
            kind = event.kind
            if kind == _TOKEN:
                if led and (sample := led.get((event.request, event.sample))) is not None:
                    sample.constraint.push(event.token)
                    if sample.constraint.phase is Phase.ANSWER:
                        del led[event.request, event.sample]
                    self._give(sample, event.index + 1)
            elif kind == _FINISHED:
                led.pop((event.request, event.sample), None)
                ended = self._samples.pop((event.request, event.sample), None)
                if ended is not None and event.finish_reason == FinishCode.MATCHER:
                    ended.error = _too_complex(ended.constraint.constraint.param)

    def close(self) -> None:
        """Ends the pool. No events may come any more."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    # ------------------------------------------------------------------------------------------------ on any thread

    def _give(self, sample: ConstrainedSample, index: int) -> None:
        """Gives what output token `index` may be, or lets the grammar begin there."""
        constraint = sample.constraint
        if constraint.phase is Phase.ANSWER and not constraint.empty:
            if constraint.constraint.light:
                self._tell(sample, lambda: self._begin(sample, index))
            else:
                self._pool.submit(self._tell, sample, lambda: self._begin(sample, index))
        elif constraint.empty and (sample.eos_ends_from is None or index < sample.eos_ends_from):
            sample.ended = True
            self._cancel(sample)
        else:
            self._tell(sample, lambda: self._engine.set_mask(sample.request, sample.sample, index, constraint.mask))

    def _begin(self, sample: ConstrainedSample, index: int) -> None:
        constraint = sample.constraint
        slow = constraint.constraint.slow
        self._engine.set_matcher(sample.request, sample.sample, index, constraint.matcher(), slow=slow)

    def _tell(self, sample: ConstrainedSample, tell: Callable[[], None]) -> None:
        try:
            tell()
        except EngineError as error:
            if error.status in (Status.NOT_FOUND, Status.CLOSED, Status.DEVICE_ERROR):
                return  # it has ended meanwhile, or everything has
            sample.error = error
            self._cancel(sample)
        except Exception as error:
            _log.exception("a constraint failed: %r", error)
            sample.error = GenerationError("The constraint failed, which is a fault of the server; its log says more.")
            self._cancel(sample)

    def _cancel(self, sample: ConstrainedSample) -> None:
        try:
            self._engine.cancel(sample.request, sample.sample)
        except EngineError:
            return  # the engine has failed or is closed: the reader is told elsewhere


def _too_complex(param: str) -> RequestError:
    return RequestError(
        f"The constraint in {param} became too complex behind what the model has said; make it simpler.",
        param,
        "constraint_too_complex",
    )
