"""Batches of random requests through the engine, and what they cost: the measuring part of `bench`.

Owns how prefill and decode are timed (by the engine's own event times, as a host sees them) and the count of bytes and
operations behind a step. Refuses to know flags and tables. Prompts are random ids, greedy, EOS ignored; whoever opens
the engine turns the prefix cache off. Takes all events of the engine: one caller at a time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

from qwen3app.abi.engine import Engine
from qwen3app.abi.types import EngineInfo, EngineRequest, Event, EventKind, FinishCode
from qwen3app.errors import BROKEN_OUTPUT, EngineError, Status
from qwen3app.runtime.loaded_model import more_context

_POLL_MS = 250  # Python sees Ctrl-C between polls
_SILENCE_S = 600.0  # the longest step: a prompt of a large model on few cores
_BF16_BYTES = 2
_CODED_BYTES = 12.25 / 8  # of a weight in its coded form


@dataclass(frozen=True)
class DecodeTime:
    seconds: float  # per step
    mean_context: float  # tokens that a sequence attends to in such a step, on average


def random_prompts(n: int, n_tokens: int, vocab: int, seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [rng.choices(range(vocab), k=n_tokens) for _ in range(n)]


def prefill_steps(prompts: list[list[int]], info: EngineInfo) -> int:
    """Steps until every one of these prompts has been read, at most."""
    return -(-sum(map(len, prompts)) // info.token_budget) + 1


def time_prefill(engine: Engine, prompts: list[list[int]]) -> float:
    """Seconds from submitting all prompts to the first token of the last of them."""
    times = _run(engine, prompts, max_tokens=1, enough=1)
    return (max(tokens[0] for tokens in times.tokens) - times.submitted_ns) * 1e-9


def time_decode(engine: Engine, prompts: list[list[int]], n_steps: int) -> DecodeTime:
    """A decode step of all sequences together, averaged over the n_steps that follow the last one's first token."""
    # Those that begin first go on until the last has had its steps; how many that are depends on how fast the host
    # submits, too.
    info = engine.info()
    room = min(info.max_context, info.n_blocks * info.block_size) - max(map(len, prompts))
    times = _run(engine, prompts, max_tokens=room, enough=n_steps + 1)
    more = more_context(info, kv_limits=info.n_blocks * info.block_size < info.max_context)
    return decode_time(list(map(len, prompts)), times.tokens, n_steps, more)


def decode_time(
    prompt_lengths: list[int], times: list[list[int]], n_steps: int, more: str | None = "a larger --max-ctx"
) -> DecodeTime:
    """times: per prompt, when each of its tokens came, in nanoseconds; the last to begin has n_steps + 1 at least.
    more: what makes room for longer ones, if anything does."""
    last = max(times, key=lambda tokens: tokens[0])
    begin, end = last[0], last[n_steps]
    if min(tokens[-1] for tokens in times) <= last[n_steps - 1]:  # not in the last step
        raise EngineError(
            Status.CONTEXT_OVERFLOW,
            "The first sequences filled the context before the last one had written its tokens; measure fewer or "
            f"shorter ones{f', or give more room ({more})' if more else ''}.",
        )
    had = sum(sum(1 for time in tokens if time <= begin) for tokens in times) / len(times)
    context = sum(prompt_lengths) / len(prompt_lengths)
    return DecodeTime((end - begin) * 1e-9 / n_steps, context + had + (n_steps - 1) / 2)


def until_ended(engine: Engine, n_samples: int) -> Iterator[Event]:
    """All events until n_samples samples have ended. Raises EngineError if one fails, or if nothing comes for long."""
    silent_since = time.monotonic()
    while n_samples:
        events = engine.poll(_POLL_MS).events
        if events:
            silent_since = time.monotonic()
        elif time.monotonic() - silent_since > _SILENCE_S:
            raise EngineError(Status.TIMEOUT, f"The engine made no token for {_SILENCE_S:.0f} seconds.")
        for event in events:
            if event.kind == EventKind.FINISHED:
                n_samples -= 1
                if event.finish_reason == FinishCode.ERROR:
                    sentence = "The engine's device failed." if engine.stats().failed else BROKEN_OUTPUT
                    raise EngineError(Status.DEVICE_ERROR, sentence)
            yield event


@dataclass
class _Times:
    submitted_ns: int
    tokens: list[list[int]]  # per prompt, when each token came


def _run(engine: Engine, prompts: list[list[int]], max_tokens: int, enough: int) -> _Times:
    """Runs all prompts at once until each has `enough` tokens; the rest is cancelled."""
    requests = [
        EngineRequest(prompt=prompt, max_tokens=max_tokens, temperature=0.0, ignore_eos=True) for prompt in prompts
    ]
    before = engine.stats().preemptions
    places = {engine.submit(request): i for i, request in enumerate(requests)}
    times = _Times(0, [[] for _ in prompts])
    n_short = len(prompts)
    for event in until_ended(engine, len(prompts)):
        request, kind = event.request, event.kind
        if kind == EventKind.TOKEN:
            tokens = times.tokens[places[request]]
            tokens.append(event.time_ns)
            if len(tokens) == enough:
                n_short -= 1
                if n_short == 0:
                    for alive in places:
                        engine.cancel(alive)
        elif kind == EventKind.FINISHED:
            times.submitted_ns = min(times.submitted_ns or event.queued_ns, event.queued_ns)
    if engine.stats().preemptions > before:
        raise EngineError(
            Status.OUT_OF_MEMORY, "The sequences did not fit the KV pool together; measure fewer at once."
        )
    return times


@dataclass(frozen=True)
class Cost:
    """What must be read from memory and computed, at least."""

    bytes: float
    flops: float


def _matrix_elements(info: EngineInfo) -> int:
    """Of one layer's matrices."""
    q = info.n_heads * info.head_dim
    kv = info.n_kv_heads * info.head_dim
    return info.hidden * (q + 2 * kv) + q * info.hidden + 3 * info.hidden * info.intermediate


def _step_cost(info: EngineInfo, n_tokens: float, n_logits: int, n_pairs: float, n_kv: float) -> Cost:
    """n_pairs: of a query and a key that it sees; n_kv: tokens whose keys and values are read."""
    matrices = info.n_layers * _matrix_elements(info)
    head = info.vocab * info.hidden
    coded = min(info.coded_bytes / _CODED_BYTES, matrices + head)  # weights that have such a form
    kv_token = info.kv_bytes / (info.n_blocks * info.block_size)
    attention = 4 * info.n_layers * info.n_heads * info.head_dim * n_pairs
    return Cost(
        bytes=_BF16_BYTES * (matrices + head - coded) + info.coded_bytes + n_kv * kv_token,
        flops=2 * matrices * n_tokens + 2 * head * n_logits + attention,
    )


def prefill_cost(info: EngineInfo, n_tokens: int) -> Cost:
    """Of one prompt whose last position is sampled."""
    return _step_cost(info, n_tokens, 1, n_tokens * (n_tokens + 1) / 2, n_tokens)


def decode_cost(info: EngineInfo, n_sequences: int, context: float) -> Cost:
    """Of a decode step of sequences that attend to `context` tokens each."""
    return _step_cost(info, n_sequences, n_sequences, n_sequences * context, n_sequences * context)
