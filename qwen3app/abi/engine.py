"""`Engine`: the calls of qwen3.h as methods. Token ids in, events out; no text, no asyncio, no policy.

Threads: every method may be called from any thread; cffi releases Python's lock during each call into the library.
`poll` reuses one pair of buffers and so belongs to one thread at a time. Nothing may be called after `close`.
Callbacks: `on_progress` runs on the thread that opens, `on_log` on that and on the library's worker thread.
"""

from __future__ import annotations

import math
import os
import threading
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from qwen3app.abi.header import LibraryFiles, declarations, find_library, integer_macros
from qwen3app.abi.matchers import Matcher, call_addresses
from qwen3app.abi.types import (
    EVENT_STRUCT,
    LOGPROB_STRUCT,
    EngineInfo,
    EngineOptions,
    EnginePeaks,
    EngineRequest,
    EngineStats,
    Event,
    EventBatch,
    OpTime,
    ProfileSpec,
    StepProfile,
)
from qwen3app.errors import EngineError, Status, UsageError

Progress = Callable[[str, int, int], bool | None]  # phase, done, total; False stops the loading
Log = Callable[[int, str], None]  # level, line

# One poll takes at most this many events: 1,024 slots in one step fill a quarter of it (459 KB of buffer).
_POLL_EVENTS = 4096
_POLL_LOGPROBS = 4096 * 4
# Ops of a step: 9 a layer and some outside; 64 layers of the largest model fill a seventeenth.
_PROFILE_OPS = 10_000

_load_lock = threading.Lock()
_loaded: tuple[Any, Any] | None = None  # the FFI and the library; one per process


def _library() -> tuple[Any, Any]:
    """The FFI and the opened library. Raises UsageError with one sentence where it cannot be loaded."""
    global _loaded
    with _load_lock:
        if _loaded is None:
            _loaded = _open_library(find_library())
        return _loaded


def _open_library(files: LibraryFiles) -> tuple[Any, Any]:
    import cffi  # type: ignore[import-untyped]

    header = files.header.read_text(encoding="utf-8")
    ffi = cffi.FFI()
    ffi.cdef(declarations(header))
    try:
        lib = ffi.dlopen(str(files.library))
        version = lib.qwen3_abi_version()
    except (OSError, AttributeError) as error:
        raise UsageError(f"The engine's library {files.library} cannot be loaded: {error}.") from None
    expected = integer_macros(header)["QWEN3_ABI_VERSION"]
    if version != expected:
        raise UsageError(
            f"The engine's library {files.library} has ABI version {version}, but {files.header} describes version "
            f"{expected}; build or install both together."
        )
    if ffi.sizeof("qwen3_event") != EVENT_STRUCT.size or ffi.sizeof("qwen3_logprob") != LOGPROB_STRUCT.size:
        raise UsageError(f"{files.header} lays out qwen3_event in a way that this program does not know; update both.")
    return ffi, lib


def library_version() -> str:
    """The release of libqwen3, like "0.1.0"."""
    ffi, lib = _library()
    return str(ffi.string(lib.qwen3_version()).decode())


def check_config(model_dir: Path | str) -> None:
    """EngineError with one sentence if no engine could run a model with this directory's config.json. Its weights need
    not be there."""
    ffi, lib = _library()
    _check(ffi, lib, lib.qwen3_config_check(os.fsencode(model_dir)))


def _token_array(ffi: Any, tokens: Sequence[int]) -> tuple[Any, array[int]]:
    """`tokens` as int32_t[n] without a copy per element; the array must outlive the pointer."""
    try:
        data = tokens if isinstance(tokens, array) and tokens.typecode == "i" else array("i", tokens)
    except OverflowError:
        raise EngineError(Status.INVALID_ARGUMENT, "A token id does not fit into 32 bits.") from None
    return ffi.cast("int32_t *", ffi.from_buffer(data)), data


class Engine:
    """One loaded model with its worker thread."""

    def __init__(self, ffi: Any, lib: Any, handle: Any, keep: list[Any]) -> None:
        """Use `open`."""
        self._ffi = ffi
        self._lib = lib
        self._handle = handle
        self._keep = keep  # callbacks, alive as long as the library may call them
        self._events = ffi.new("qwen3_event[]", _POLL_EVENTS)
        self._logprobs = ffi.new("qwen3_logprob[]", _POLL_LOGPROBS)
        self._event_bytes = memoryview(ffi.buffer(self._events))
        self._logprob_bytes = memoryview(ffi.buffer(self._logprobs))
        self._n_events = ffi.new("size_t *")
        self._vocab = 0
        self._last_bias: tuple[Sequence[tuple[int, float]] | None, Any] = (None, None)

    @classmethod
    def open(
        cls,
        model_dir: Path | str,
        options: EngineOptions | None = None,
        on_progress: Progress | None = None,
        on_log: Log | None = None,
    ) -> Engine:
        """Loads the model directory and starts the worker. Blocks for as long as that takes."""
        ffi, lib = _library()
        options = options or EngineOptions()
        native = ffi.new("qwen3_options *")
        _check(ffi, lib, lib.qwen3_options_init(native, ffi.sizeof("qwen3_options")))
        device = ffi.new("char[]", options.device.encode())
        kernels = ffi.new("char[]", os.fsencode(options.kernels))
        native.device = device
        native.kernels = kernels
        try:
            native.max_context = options.max_context
            native.max_slots = options.max_slots
            native.token_budget = options.token_budget
            native.max_queue = options.max_queue
            native.threads = options.threads
            native.kv_bytes = options.kv_bytes
            native.prefix_cache = 1 if options.prefix_cache else 0
            native.n_token_ids = options.n_token_ids
            native.yarn_factor = options.yarn_factor
            native.log_level = options.log_level
            native.prefill_spread = options.prefill_spread
            native.gpu_memory_fraction = options.gpu_memory_fraction
        except OverflowError as error:
            raise EngineError(Status.INVALID_ARGUMENT, f"An engine option is out of range: {error}.") from None
        keep: list[Any] = []
        if on_progress is not None:
            progress = on_progress

            def progress_callback(_user: Any, phase: Any, done: int, total: int) -> int:
                return 1 if progress(ffi.string(phase).decode(), done, total) is False else 0

            keep.append(ffi.callback("qwen3_progress_callback", progress_callback, error=1))
            native.progress = keep[-1]
        if on_log is not None:
            log = on_log

            def log_callback(_user: Any, level: int, line: Any) -> None:
                log(level, ffi.string(line).decode("utf-8", "replace"))

            keep.append(ffi.callback("qwen3_log_callback", log_callback))
            native.log = keep[-1]
        out = ffi.new("qwen3_engine **")
        _check(ffi, lib, lib.qwen3_engine_open(os.fsencode(model_dir), native, out))
        engine = cls(ffi, lib, out[0], keep)
        engine._vocab = engine.info().vocab
        return engine

    def info(self) -> EngineInfo:
        """What was loaded and what it got."""
        native = self._ffi.new("qwen3_info *")
        native.struct_size = self._ffi.sizeof("qwen3_info")
        self._check(self._lib.qwen3_engine_info(self._alive(), native))
        values: dict[str, Any] = {}
        for name, kind in EngineInfo.__annotations__.items():
            if name == "eos_ids":
                values[name] = tuple(native.eos_ids[0 : native.n_eos_ids])
            elif kind == "str":
                values[name] = self._ffi.string(getattr(native, name)).decode("utf-8", "replace")
            elif kind == "bool":
                values[name] = bool(getattr(native, name))
            else:
                values[name] = getattr(native, name)
        return EngineInfo(**values)

    def stats(self) -> EngineStats:
        """Counters and gauges; they may be one step old."""
        native = self._ffi.new("qwen3_stats *")
        native.struct_size = self._ffi.sizeof("qwen3_stats")
        self._check(self._lib.qwen3_engine_stats(self._alive(), native))
        values = {name: getattr(native, name) for name in EngineStats.__annotations__}
        values["failed"] = bool(values["failed"])
        values["step_sizes"] = tuple(values["step_sizes"])
        return EngineStats(**values)

    def submit(self, request: EngineRequest) -> int:
        """Queues a request and returns its id."""
        ffi = self._ffi
        native = ffi.new("qwen3_request *")
        self._check(self._lib.qwen3_request_init(native, ffi.sizeof("qwen3_request")))
        native.prompt, _prompt = _token_array(ffi, request.prompt)
        native.n_prompt = len(request.prompt)
        native.stop_ids, _stop_ids = _token_array(ffi, request.stop_ids)
        native.n_stop_ids = len(request.stop_ids)
        _bias = self._native_bias(request.logit_bias)
        native.logit_bias = _bias
        native.n_logit_bias = len(request.logit_bias)
        _salt = ffi.new("char[]", request.cache_salt.encode())
        native.cache_salt = _salt
        try:
            native.max_tokens = request.max_tokens
            native.min_tokens = request.min_tokens
            native.n = request.n
            native.priority = request.priority
            native.repetition_penalty = request.repetition_penalty
            native.presence_penalty = request.presence_penalty
            native.frequency_penalty = request.frequency_penalty
            native.temperature = request.temperature
            native.min_p = request.min_p
            native.top_p = request.top_p
            native.top_k = request.top_k
            native.ignore_eos = 1 if request.ignore_eos else 0
            native.seed = request.seed
            native.logprobs = 1 if request.logprobs else 0
            native.top_logprobs = request.top_logprobs
            native.prompt_logprobs = 1 if request.prompt_logprobs else 0
            native.constrained = 1 if request.constrained else 0
            native.tag = request.tag
        except OverflowError as error:
            raise EngineError(Status.INVALID_ARGUMENT, f"A number of the request is out of range: {error}.") from None
        out = ffi.new("uint64_t *")
        self._check(self._lib.qwen3_submit(self._alive(), native, out))
        return int(out[0])

    def _native_bias(self, bias: Sequence[tuple[int, float]]) -> Any:
        """The requests of one batch share a tuple, which is turned once: 10 ms for the longest."""
        known, native = self._last_bias
        if known is not bias or not isinstance(bias, tuple):
            native = self._ffi.new("qwen3_logit_bias[]", [(token, value) for token, value in bias])
            self._last_bias = bias, native
        return native

    def cancel(self, request: int, sample: int = -1) -> bool:
        """Ends a request or one of its samples. False: it had ended already."""
        status = self._lib.qwen3_cancel(self._alive(), request, sample)
        if status == Status.NOT_FOUND:
            return False
        self._check(status)
        return True

    def poll(self, timeout_ms: int) -> EventBatch:
        """Takes what has happened, waiting up to timeout_ms (-1: without limit). An empty batch: nothing came."""
        status = self._lib.qwen3_poll(
            self._alive(),
            self._events,
            EVENT_STRUCT.size,
            _POLL_EVENTS,
            self._logprobs,
            _POLL_LOGPROBS,
            timeout_ms,
            self._n_events,
        )
        if status == Status.TIMEOUT:
            return EventBatch([], [])
        self._check(status)
        n_events = self._n_events[0]
        events = list(map(Event._make, EVENT_STRUCT.iter_unpack(self._event_bytes[: n_events * EVENT_STRUCT.size])))
        n_logprobs = max((event.n_logprobs + event.first_logprob for event in events if event.n_logprobs), default=0)
        if not n_logprobs:
            return EventBatch(events, [])
        used = self._logprob_bytes[: n_logprobs * LOGPROB_STRUCT.size]
        return EventBatch(events, list(LOGPROB_STRUCT.iter_unpack(used)))

    def event_fd(self) -> int:
        """A descriptor that is readable while `poll` has something to say. The library's; it goes with `close`."""
        out = self._ffi.new("int32_t *")
        self._check(self._lib.qwen3_event_fd(self._alive(), out))
        return int(out[0])

    def set_mask(self, request: int, sample: int, index: int, mask: bytes | bytearray | memoryview) -> None:
        """Gives a constrained sample the ids it may choose from for output token `index`: one bit per id."""
        pointer = self._ffi.from_buffer("uint32_t[]", mask)
        self._check(self._lib.qwen3_request_mask(self._alive(), request, sample, index, pointer, len(pointer)))

    def set_matcher(self, request: int, sample: int, index: int, matcher: Matcher, *, slow: bool = False) -> None:
        """From output token `index` on a matcher gives all masks of a constrained sample. Unless this raises, the
        matcher belongs to the engine. slow: it is known to take long."""
        native = self._ffi.new("qwen3_matcher *")
        native.struct_size = self._ffi.sizeof("qwen3_matcher")
        native.slow = 1 if slow else 0
        for name, address in call_addresses().items():
            setattr(native, name, self._ffi.cast(self._ffi.typeof(getattr(native, name)), address))

        def take(address: int) -> None:
            native.matcher = self._ffi.cast("void *", address)
            self._check(self._lib.qwen3_request_matcher(self._alive(), request, sample, index, native))

        matcher.hand_over(take)

    def score_logits(self, tokens: Sequence[int], first: int = 0) -> array[float]:
        """Raw logits of positions first..n-1, row-major [(n - first) * vocab] float32."""
        pointer, data = _token_array(self._ffi, tokens)
        out = array("f", bytes(4 * max(len(data) - first, 0) * self._vocab))
        target = self._ffi.cast("float *", self._ffi.from_buffer(out))
        self._check(self._lib.qwen3_score_logits(self._alive(), pointer, len(data), first, target, len(out)))
        return out

    def score_logprobs(self, tokens: Sequence[int]) -> array[float]:
        """The log-probability of each token given those before it; the first is NaN."""
        pointer, data = _token_array(self._ffi, tokens)
        out = array("f", [math.nan]) * len(data)
        target = self._ffi.cast("float *", self._ffi.from_buffer(out))
        self._check(self._lib.qwen3_score_logprobs(self._alive(), pointer, len(data), target))
        return out

    def open_sequence(self) -> EngineSequence:
        """One sequence advanced by hand. Close it before the engine."""
        out = self._ffi.new("qwen3_sequence **")
        self._check(self._lib.qwen3_sequence_open(self._alive(), out))
        return EngineSequence(self._ffi, self._lib, out[0], self._vocab)

    def measure_peaks(self) -> EnginePeaks:
        """What the device can do at most; takes about a second."""
        native = self._ffi.new("qwen3_peaks *")
        native.struct_size = self._ffi.sizeof("qwen3_peaks")
        self._check(self._lib.qwen3_measure_peaks(self._alive(), native))
        flops_of = self._ffi.string(native.flops_of).decode("utf-8", "replace")
        return EnginePeaks(native.read_bytes_per_second, native.flops_per_second, flops_of)

    def profile_step(self, spec: ProfileSpec) -> StepProfile:
        """Runs a step of random tokens and says what each of its ops took."""
        ffi = self._ffi
        native = ffi.new("qwen3_profile_spec *")
        self._check(self._lib.qwen3_profile_spec_init(native, ffi.sizeof("qwen3_profile_spec")))
        try:
            native.n_sequences = spec.n_sequences
            native.n_tokens = spec.n_tokens
            native.n_past = spec.n_past
            native.repeat = spec.repeat
        except OverflowError as error:
            raise EngineError(Status.INVALID_ARGUMENT, f"A number of the step is out of range: {error}.") from None
        ops = ffi.new("qwen3_op_time[]", _PROFILE_OPS)
        n = ffi.new("size_t *")
        step_ns = ffi.new("int64_t *")
        size = ffi.sizeof("qwen3_op_time")
        self._check(self._lib.qwen3_profile_step(self._alive(), native, ops, size, _PROFILE_OPS, n, step_ns))
        times = [
            OpTime(ffi.string(op.name).decode(), op.layer, op.begin_ns, op.end_ns)
            for op in ops[0 : min(n[0], _PROFILE_OPS)]
        ]
        return StepProfile(int(step_ns[0]), times)

    def close(self) -> None:
        """Ends all requests, stops the worker and frees everything. May be called twice."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._lib.qwen3_engine_close(handle)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _alive(self) -> Any:
        if self._handle is None:
            raise EngineError(Status.CLOSED, "The engine is closed.")
        return self._handle

    def _check(self, status: int) -> None:
        _check(self._ffi, self._lib, status)


class EngineSequence:
    """qwen3_sequence: holds KV blocks until it is reset or closed. One thread at a time."""

    def __init__(self, ffi: Any, lib: Any, handle: Any, vocab: int) -> None:
        self._ffi = ffi
        self._lib = lib
        self._handle = handle
        self._logits = array("f", bytes(4 * vocab))

    def prefill(self, tokens: Sequence[int]) -> array[float]:
        """Appends tokens and returns the logits after the last of them: [vocab], overwritten by the next call."""
        pointer, data = _token_array(self._ffi, tokens)
        target = self._ffi.cast("float *", self._ffi.from_buffer(self._logits))
        status = self._lib.qwen3_sequence_prefill(self._handle, pointer, len(data), target, len(self._logits))
        _check(self._ffi, self._lib, status)
        return self._logits

    def decode(self, token: int) -> array[float]:
        """Appends one token and returns the logits after it, as `prefill`."""
        target = self._ffi.cast("float *", self._ffi.from_buffer(self._logits))
        _check(self._ffi, self._lib, self._lib.qwen3_sequence_decode(self._handle, token, target, len(self._logits)))
        return self._logits

    def reset(self) -> None:
        """Forgets all tokens."""
        _check(self._ffi, self._lib, self._lib.qwen3_sequence_reset(self._handle))

    def __len__(self) -> int:
        return int(self._lib.qwen3_sequence_length(self._handle))

    def close(self) -> None:
        """Frees the sequence. May be called twice."""
        handle, self._handle = self._handle, self._ffi.NULL
        self._lib.qwen3_sequence_close(handle)


def _check(ffi: Any, lib: Any, status: int) -> None:
    """Raises the library's sentence for a status that is not OK."""
    if status == Status.OK:
        return
    message = ffi.string(lib.qwen3_last_error()).decode("utf-8", "replace")
    try:
        code = Status(status)
    except ValueError:
        code = Status.INTERNAL
    raise EngineError(code, message or f"libqwen3 failed with status {status}.")
