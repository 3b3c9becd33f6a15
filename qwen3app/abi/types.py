"""Plain Python forms of the structs of qwen3.h. Field names are the header's. No cffi here: importing this is cheap.

Units and ranges stand in native/include/qwen3.h and are not repeated.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, TypeAlias

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


# One qwen3_event as a tuple, in the order of the header's fields:
#  0 request, 1 tag, 2 kind, 3 sample, 4 token, 5 logprob, 6 n_logprobs, 7 first_logprob, 8 finish_reason, 9 reserved,
# 10 index, 11 time_ns, 12 n_prompt, 13 n_cached, 14 n_generated, 15 queued_ns, 16 started_ns, 17 first_token_ns
# A bare tuple, not a class: one is made for every token of every stream.
Event: TypeAlias = tuple[
    int, int, int, int, int, float, int, int, int, int, int, int, int, int, int, int, int, int
]  # fmt: skip
EVENT_FIELDS = (
    "request",
    "tag",
    "kind",
    "sample",
    "token",
    "logprob",
    "n_logprobs",
    "first_logprob",
    "finish_reason",
    "reserved",
    "index",
    "time_ns",
    "n_prompt",
    "n_cached",
    "n_generated",
    "queued_ns",
    "started_ns",
    "first_token_ns",
)
EVENT_STRUCT = struct.Struct("<QQiiifIIiiqqqqqqqq")  # 112 bytes, no padding
LOGPROB_STRUCT = struct.Struct("<if")  # qwen3_logprob: token, logprob


class EventBatch(NamedTuple):
    """What one poll took: events in order, and the alternatives that their first_logprob and n_logprobs point into."""

    events: list[Event]
    logprobs: list[tuple[int, float]]  # token, logprob


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
