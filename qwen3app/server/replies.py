"""Pieces of OpenAI's reply objects: ids, usage, log-probabilities. Pure functions."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from qwen3app.runtime import Generation, TokenInfo, Usage
from qwen3app.text.detokenizer import Detokenizer
from qwen3app.text.tokenizer import Tokenizer

to_json = msgspec.json.Encoder().encode

# JSON has no infinity; OpenAI writes this for a token that could not come.
_LOWEST_LOGPROB = -9999.0


def new_id(prefix: str) -> str:
    """Unique, whatever request ids clients send."""
    return f"{prefix}-{secrets.token_hex(14)}"


def usage_object(usage: Usage) -> dict[str, Any]:
    """OpenAI's usage."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def timings_object(generation: Generation) -> dict[str, Any]:
    """How long it took, by the engine's clock, under llama.cpp's names. null: did not happen. prompt_n: tokens that
    were computed, those of the cache not among them; predicted_ms: from the first token on."""
    usage, timings = generation.usage, generation.timings
    n_computed = usage.prompt_tokens - usage.cached_tokens
    return {
        "queue_ms": _milliseconds(timings.queue),
        "cache_n": usage.cached_tokens,
        "prompt_n": n_computed,
        "prompt_ms": _milliseconds(timings.prefill),
        "prompt_per_second": round(n_computed / timings.prefill, 2) if timings.prefill else None,
        "predicted_n": usage.completion_tokens,
        "predicted_ms": _milliseconds(timings.decode),
        "predicted_per_second": round(rate, 2) if (rate := generation.tokens_per_second) is not None else None,
    }


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 3)


def number(logprob: float) -> float | None:
    """A log-probability as JSON: null where there is none."""
    if math.isnan(logprob):
        return None
    return max(logprob, _LOWEST_LOGPROB)


def _written(entry: Any) -> msgspec.Raw:
    """One token's part of a reply as JSON already. A prompt of 40,000 tokens with 20 alternatives each is 800,000
    objects: written in one go they would keep Python's lock for 0.2 s, and the collector of cycles would look through
    them again and again."""
    return msgspec.Raw(to_json(entry))


def chat_logprobs(tokenizer: Tokenizer, tokens: Sequence[TokenInfo]) -> list[msgspec.Raw]:
    """Entries of choices[].logprobs.content. `bytes` are the token's true bytes, also of half a character."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        return {
            "token": tokenizer.token_text(token),
            "logprob": number(logprob),
            "bytes": list(tokenizer.token_bytes(token)),
        }

    return [
        _written(
            {**entry(info.id, info.logprob), "top_logprobs": [entry(token, logprob) for token, logprob in info.top]}
        )
        for info in tokens
    ]


class CompletionLogprobs:
    """choices[].logprobs of /v1/completions for one choice, piece by piece: text offsets run on."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._text = Detokenizer(tokenizer, skip_special=False)
        self._offset = 0

    def take(self, tokens: Iterable[TokenInfo]) -> dict[str, list[Any]]:
        """The object for these tokens."""
        text = self._tokenizer.token_text
        result: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for info in tokens:
            result["tokens"].append(text(info.id))
            result["token_logprobs"].append(number(info.logprob))
            result["top_logprobs"].append(self._top(info))
            result["text_offset"].append(self._offset)
            self._offset += len(self._text.push((info.id,)))
        return result

    def _top(self, info: TokenInfo) -> msgspec.Raw | None:
        """Text -> logprob, best first; the token itself is always among them. None for the first prompt token."""
        if math.isnan(info.logprob):
            return None
        top: dict[str, float | None] = {}
        for token, logprob in info.top:
            top.setdefault(self._tokenizer.token_text(token), number(logprob))
        top.setdefault(self._tokenizer.token_text(info.id), number(info.logprob))
        return _written(top)


def prompt_logprobs_object(tokenizer: Tokenizer, tokens: Iterable[TokenInfo]) -> msgspec.Raw:
    """vLLM's prompt_logprobs, a list: per prompt token null (the first) or id -> {logprob, rank, decoded_token}.
    rank is null for a token outside the alternatives. One piece of JSON: 30,000 tokens with 20 alternatives are 45 MB,
    and to put 30,000 pieces together the writer of the reply would keep Python's lock for 40 ms."""
    result: list[bytes] = []
    for info in tokens:
        if math.isnan(info.logprob):
            result.append(b"null")
            continue
        ranked = {token: (rank, logprob) for rank, (token, logprob) in enumerate(info.top, 1)}
        entries = {info.id: ranked.pop(info.id, (None, info.logprob)), **ranked}
        result.append(
            to_json(
                {
                    str(token): {
                        "logprob": number(logprob),
                        "rank": rank,
                        "decoded_token": tokenizer.token_text(token),
                    }
                    for token, (rank, logprob) in entries.items()
                }
            )
        )
    return msgspec.Raw(b"[" + b",".join(result) + b"]")


def continuous_usage(generation: Generation, choice_tokens: int) -> dict[str, int]:
    """usage of one chunk, with stream_options.continuous_usage_stats."""
    prompt_tokens = sum(map(len, generation.prompts))
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": choice_tokens,
        "total_tokens": prompt_tokens + choice_tokens,
    }
