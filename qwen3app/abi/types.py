"""Plain Python forms of the structs of qwen3.h. Field names are the header's. No cffi here: importing this is cheap.

Units and ranges stand in native/include/qwen3.h and are not repeated.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

MAX_TOP_LOGPROBS = 20
MAX_SAMPLES = 128


class EventKind(IntEnum):
    TOKEN = 1
    PROMPT_TOKEN = 2
    FINISHED = 3


class FinishCode(IntEnum):
    NONE = 0
    STOP = 1
    LENGTH = 2
    CANCELLED = 3
    ERROR = 4
    MATCHER = 5


class Event(NamedTuple):
    """One qwen3_event, in the order of the header's fields. A tuple, as one is made for every token of every stream."""

    request: int
    tag: int = 0
    kind: int = 0
    sample: int = 0
    token: int = -1
    logprob: float = math.nan
    n_logprobs: int = 0
    first_logprob: int = 0
    finish_reason: int = 0
    reserved: int = 0
    index: int = 0  # type: ignore[assignment]  # the header's name; nobody looks for a value's place in an event
    time_ns: int = 0
    n_prompt: int = 0
    n_cached: int = 0
    n_generated: int = 0
    queued_ns: int = 0
    started_ns: int = 0
    first_token_ns: int = 0


EVENT_STRUCT = struct.Struct("<QQiiifIIiiqqqqqqqq")  # 112 bytes, no padding
LOGPROB_STRUCT = struct.Struct("<if")  # qwen3_logprob: token, logprob


class EventBatch(NamedTuple):
    """What one poll took: events in order, and the alternatives that their first_logprob and n_logprobs point into."""

    events: list[Event]
    logprobs: list[tuple[int, float]]  # token, logprob

    def top(self, event: Event) -> list[tuple[int, float]]:
        """The alternatives of one of the events."""
        return self.logprobs[event.first_logprob : event.first_logprob + event.n_logprobs]


@dataclass(frozen=True)
class EngineOptions:
    """qwen3_options without the callbacks. The defaults are the library's."""

    device: str = "auto"
    kernels: str = "auto"
    max_context: int = 0
    max_slots: int = 0
    token_budget: int = 0
    max_queue: int = 1024
    threads: int = 0
    kv_bytes: int = 0
    prefix_cache: bool = True
    n_token_ids: int = 0
    yarn_factor: float = 0.0
    log_level: int = 1
    prefill_spread: int = 0
    gpu_memory_fraction: float = 0.0


@dataclass(frozen=True)
class EngineInfo:
    """qwen3_info."""

    hidden: int
    intermediate: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    n_token_ids: int
    eos_ids: tuple[int, ...]
    n_parameters: int
    max_context: int
    model_max_context: int
    block_size: int
    n_blocks: int
    max_slots: int
    token_budget: int
    threads: int
    prefix_cache: bool
    weight_bytes: int
    kv_bytes: int
    workspace_bytes: int
    free_bytes: int
    open_seconds: float
    device: str
    device_name: str
    kernels: str
    graph_bytes: int
    total_bytes: int
    coded_bytes: int


@dataclass(frozen=True)
class EngineStats:
    """qwen3_stats."""

    failed: bool
    n_running: int
    n_waiting: int
    blocks_total: int
    blocks_free: int
    blocks_cached: int
    blocks_used: int
    requests_submitted: int
    requests_refused: int
    samples_stopped: int
    samples_length: int
    samples_cancelled: int
    samples_failed: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    computed_tokens: int
    preemptions: int
    prefix_queries: int
    prefix_hits: int
    steps: int
    step_ns: int
    idle_checks: int
    step_sizes: tuple[int, ...]


@dataclass(frozen=True)
class EnginePeaks:
    """qwen3_peaks."""

    read_bytes_per_second: float
    flops_per_second: float
    flops_of: str


@dataclass(frozen=True)
class ProfileSpec:
    """qwen3_profile_spec. The defaults are the library's."""

    n_sequences: int = 1
    n_tokens: int = 1
    n_past: int = 0
    repeat: int = 5


class OpTime(NamedTuple):
    """qwen3_op_time: one op of a step."""

    name: str
    layer: int  # -1: outside the layers
    begin_ns: int
    end_ns: int


class StepProfile(NamedTuple):
    """What one call of qwen3_profile_step gives."""

    step_ns: int  # of a step whose ops were not timed
    ops: list[OpTime]  # in order, without gaps


@dataclass(slots=True)
class EngineRequest:
    """qwen3_request. The defaults are the library's."""

    prompt: Sequence[int]
    max_tokens: int = -1
    min_tokens: int = 0
    n: int = 1
    priority: int = 0
    logit_bias: Sequence[tuple[int, float]] = ()
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    temperature: float = 1.0
    min_p: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    ignore_eos: bool = False
    seed: int = 0
    stop_ids: Sequence[int] = ()
    logprobs: bool = False
    top_logprobs: int = 0
    prompt_logprobs: bool = False
    constrained: bool = False
    cache_salt: str = ""
    tag: int = 0
