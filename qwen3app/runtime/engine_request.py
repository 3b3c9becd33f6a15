"""GenerationParams -> the engine's request, and what is left of them behind a thought that was closed.

Pure functions; params are those that with_defaults has filled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from qwen3app.abi.types import EngineRequest
from qwen3app.runtime.params import GenerationParams

_INT32_MAX = 2**31 - 1
_UINT64_MASK = 2**64 - 1


def engine_request(prompt: Sequence[int], params: GenerationParams, extra_eos: Sequence[int]) -> EngineRequest:
    """extra_eos: ids that end an answer and that the engine does not know of."""
    stop_ids = tuple(params.stop_token_ids)
    if not params.ignore_eos:
        stop_ids += tuple(extra_eos)
    assert params.temperature is not None and params.top_p is not None and params.min_p is not None
    assert params.top_k is not None and params.repetition_penalty is not None and params.seed is not None
    return EngineRequest(
        prompt=prompt,
        max_tokens=-1 if params.max_tokens is None else params.max_tokens,
        min_tokens=params.min_tokens,
        n=params.n,
        priority=params.priority,
        logit_bias=tuple(params.logit_bias.items()),
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        temperature=params.temperature,
        min_p=params.min_p,
        top_p=params.top_p,
        top_k=min(max(params.top_k, 0), _INT32_MAX),
        ignore_eos=params.ignore_eos,
        seed=params.seed,
        stop_ids=stop_ids,
        logprobs=params.logprobs or params.top_logprobs > 0,
        top_logprobs=params.top_logprobs,
        prompt_logprobs=params.prompt_logprobs,
        cache_salt=params.cache_salt,
        constrained=params.constraint is not None,
    )


def params_behind(params: GenerationParams, sample: int, n_earlier: int) -> GenerationParams:
    """For one sample that goes on as a request of its own behind n_earlier output tokens. Its seed is what the sample
    had; it goes before others of its priority, as its slot has just become free."""
    assert params.seed is not None
    return replace(
        params,
        n=1,
        max_tokens=None if params.max_tokens is None else params.max_tokens - n_earlier,
        min_tokens=max(params.min_tokens - n_earlier, 0),
        seed=(params.seed + sample) & _UINT64_MASK,
        priority=max(params.priority - 1, -_INT32_MAX),
        prompt_logprobs=False,
    )
