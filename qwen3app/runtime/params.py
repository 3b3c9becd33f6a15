"""What a caller may ask of one generation, and the one function that checks it.

Names are those of the HTTP API; the engine's request is made from them in runtime.py. Raises RequestError with the
field's name, which becomes HTTP 400 (or a sentence in the terminal).
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qwen3app.abi.types import MAX_SAMPLES as MAX_SAMPLES
from qwen3app.abi.types import MAX_TOP_LOGPROBS as MAX_TOP_LOGPROBS
from qwen3app.errors import RequestError
from qwen3app.sampling_limits import MAX_TEMPERATURE, REPETITION_PENALTY_RULE, is_repetition_penalty, written
from qwen3app.text.call_stream import CallPolicy
from qwen3app.text.generation_config import SamplingDefaults

if TYPE_CHECKING:
    from qwen3app.runtime.constraints import Constraint

MAX_STOPS = 64
_MAX_STOP_CHARS = 4096
_MAX_STOP_CHARS_TOGETHER = 16_384  # their automata take 2 ms of the event loop
_MAX_SALT_CHARS = 4096
MAX_STOP_IDS = 4096
_INT32_MAX = 2**31 - 1
_UINT64_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class GenerationParams:
    """Sampling and limits of one generation. None: the model's generation_config.json, else the neutral value."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None  # None: random
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    include_stop: bool = False  # the stop string stays in the text
    max_tokens: int | None = None  # None: what the context leaves; 0: only score the prompt (prompt_logprobs)
    min_tokens: int = 0
    n: int = 1
    logprobs: bool = False
    top_logprobs: int = 0
    prompt_logprobs: bool = False
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    ignore_eos: bool = False
    skip_special: bool = True  # control tokens are not shown
    priority: int = 0  # lower runs first
    cache_salt: str = ""
    constraint: Constraint | None = None  # what the answer is held to
    thinking_budget: int | None = None  # tokens of a thought, then it is closed; only with split_reasoning
    calls: CallPolicy | None = None  # tool calls are looked for in the text; None: they are text
    return_tokens: bool = False  # deltas carry their tokens even without logprobs


def with_defaults(params: GenerationParams, defaults: SamplingDefaults) -> GenerationParams:
    """`params` with every None (but max_tokens) filled: from the model's defaults, then the neutral value."""
    from dataclasses import replace

    def pick(asked: float | None, model: float | None, neutral: float) -> float:
        return asked if asked is not None else model if model is not None else neutral

    top_k = params.top_k if params.top_k is not None else defaults.top_k if defaults.top_k is not None else 0
    return replace(
        params,
        temperature=pick(params.temperature, defaults.temperature, 1.0),
        top_p=pick(params.top_p, defaults.top_p, 1.0),
        top_k=top_k,
        min_p=pick(params.min_p, defaults.min_p, 0.0),
        repetition_penalty=pick(params.repetition_penalty, defaults.repetition_penalty, 1.0),
        seed=secrets.randbits(63) if params.seed is None else params.seed & _UINT64_MASK,
    )


def check_params(params: GenerationParams, n_token_ids: int) -> None:
    """Raises RequestError naming the first field that is out of range. Lengths are checked by the runtime."""
    _range("temperature", params.temperature, 0.0, MAX_TEMPERATURE)
    _range("top_p", params.top_p, 0.0, 1.0)
    _range("min_p", params.min_p, 0.0, 1.0)
    _range("presence_penalty", params.presence_penalty, -2.0, 2.0)
    _range("frequency_penalty", params.frequency_penalty, -2.0, 2.0)
    penalty = params.repetition_penalty
    if penalty is not None and not is_repetition_penalty(penalty):
        raise RequestError(
            f"repetition_penalty must be {REPETITION_PENALTY_RULE}, got {penalty}.", "repetition_penalty"
        )
    if params.top_k is not None and params.top_k < -1:
        raise RequestError(f"top_k must be -1 or 0 (off) or at least 1, got {params.top_k}.", "top_k")
    _integers("max_tokens", params.max_tokens, 0 if params.prompt_logprobs else 1, None)
    _integers("min_tokens", params.min_tokens, 0, None)
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise RequestError(
            f"min_tokens must not exceed max_tokens ({params.max_tokens}), got {params.min_tokens}.", "min_tokens"
        )
    _integers("thinking_budget", params.thinking_budget, 0, None)
    _integers("n", params.n, 1, MAX_SAMPLES)
    _integers("top_logprobs", params.top_logprobs, 0, MAX_TOP_LOGPROBS)
    _integers("priority", params.priority, -_INT32_MAX, _INT32_MAX)
    if len(params.stop) > MAX_STOPS:
        raise RequestError(f"stop takes at most {MAX_STOPS} strings, got {len(params.stop)}.", "stop")
    for i, stop in enumerate(params.stop):
        if not stop:
            raise RequestError(f"stop[{i}] is empty; a stop string needs at least one character.", f"stop[{i}]")
        if len(stop) > _MAX_STOP_CHARS:
            raise RequestError(
                f"stop[{i}] is {len(stop)} characters long; the limit is {_MAX_STOP_CHARS}.", f"stop[{i}]"
            )
        check_surrogates(stop, f"stop[{i}]")
    n_characters = sum(map(len, params.stop))
    if n_characters > _MAX_STOP_CHARS_TOGETHER:
        raise RequestError(
            f"stop has {n_characters} characters in all; the limit is {_MAX_STOP_CHARS_TOGETHER}.", "stop"
        )
    if len(params.stop_token_ids) > MAX_STOP_IDS:
        raise RequestError(
            f"stop_token_ids takes at most {MAX_STOP_IDS} ids, got {len(params.stop_token_ids)}.", "stop_token_ids"
        )
    for i, token in enumerate(params.stop_token_ids):
        if not 0 <= token < n_token_ids:
            raise RequestError(
                f"stop_token_ids[{i}] is {token}; token ids are 0 to {n_token_ids - 1}.", f"stop_token_ids[{i}]"
            )
    for token, bias in params.logit_bias.items():
        if not 0 <= token < n_token_ids:
            raise RequestError(f"logit_bias names token {token}; token ids are 0 to {n_token_ids - 1}.", "logit_bias")
        if not -100.0 <= bias <= 100.0:
            raise RequestError(f"logit_bias of token {token} must be from -100 to 100, got {bias}.", "logit_bias")
    if len(params.cache_salt) > _MAX_SALT_CHARS:
        raise RequestError(
            f"cache_salt is {len(params.cache_salt)} characters long; the limit is {_MAX_SALT_CHARS}.", "cache_salt"
        )
    check_surrogates(params.cache_salt, "cache_salt")
    if "\0" in params.cache_salt:
        raise RequestError("cache_salt must not contain a NUL character.", "cache_salt")


def check_surrogates(text: str, param: str) -> None:
    """Half a UTF-16 pair has no UTF-8 form and therefore no tokens."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{param} holds a lone surrogate (\\u{ord(text[error.start]):04x}) at character {error.start}, "
            "which is not text.",
            param,
        ) from None


def _range(name: str, value: float | None, low: float, high: float | None) -> None:
    if value is None:
        return
    if high is None:
        if not (low <= value < math.inf):
            raise RequestError(f"{name} must be at least {written(low)}, got {value}.", name)
    elif not (low <= value <= high):
        raise RequestError(f"{name} must be from {written(low)} to {written(high)}, got {value}.", name)


def _integers(name: str, value: int | None, low: int, high: int | None) -> None:
    if value is None:
        return
    if value < low or (high is not None and value > high):
        limits = f"at least {low}" if high is None else f"from {low} to {high}"
        raise RequestError(f"{name} must be {limits}, got {value}.", name)
