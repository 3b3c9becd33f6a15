"""Determinism: a request's tokens and log-probabilities have the same bits whatever else is going on.

Every test compares with requests that ran alone in a large pool with the prefix cache off. All comparisons are `==`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from qwen3app.abi.engine import Engine
from qwen3app.abi.types import EngineOptions, EngineRequest, EventKind, FinishCode
from qwen3app.errors import EngineError, Status

KERNELS = ("scalar", "avx2", "avx512", "avx512bf16")
BLOCK = 32
BLOCK_BYTES = 65_536  # of the tiny shape: 32 tokens x 2 layers x (k, v) x 2 heads x 128 x 2 bytes
LENGTHS = (1, 31, 32, 33, 63, 64, 65, 257)
N_TOKENS = 24
LARGE = EngineOptions(device="cpu", threads=1, kv_bytes=512 * BLOCK_BYTES, prefix_cache=False, max_slots=64)


@dataclass
class Sample:
    """All that a request's owner can see of one sample, but for times."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[list[tuple[int, float]]] = field(default_factory=list)
    finish: int = 0
    n_cached: int = field(default=0, compare=False)


def run(engine: Engine, requests: list[EngineRequest]) -> list[list[Sample]]:
    """Runs all at once; [request][sample]."""
    ids = {engine.submit(request): i for i, request in enumerate(requests)}
    out = [[Sample() for _ in range(request.n)] for request in requests]
    left = sum(request.n for request in requests)
    while left:
        batch = engine.poll(60_000)
        assert batch.events, "the engine makes no progress"
        for event in batch.events:
            sample = out[ids[event.request]][event.sample]
            if event.kind == EventKind.TOKEN:
                sample.tokens.append(event.token)
                sample.logprobs.append(event.logprob)
                sample.top.append(batch.top(event))
            elif event.kind == EventKind.FINISHED:
                sample.finish, sample.n_cached = event.finish_reason, event.n_cached
                left -= 1
    return out


def run_alone(engine: Engine, requests: list[EngineRequest]) -> list[list[Sample]]:
    return [run(engine, [request])[0] for request in requests]


def prompt(n: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(1_000), k=n)


def subjects() -> list[EngineRequest]:
    """Greedy and sampled requests of all lengths; each two of a length share their prompt."""
    requests = []
    for length in LENGTHS:
        greedy = EngineRequest(
            prompt=prompt(length, length), max_tokens=N_TOKENS, temperature=0.0, ignore_eos=True, top_logprobs=3
        )
        sampled = replace(
            greedy,
            temperature=0.8,
            top_p=0.9,
            top_k=50,
            min_p=0.01,
            seed=length,
            repetition_penalty=1.1,
            presence_penalty=0.5,
            frequency_penalty=0.25,
        )
        requests += [greedy, sampled]
    return requests


def others(n: int) -> list[EngineRequest]:
    """What else runs: other prompts, two thirds of which share a beginning with a subject."""
    requests = []
    for i in range(n):
        length = LENGTHS[i % len(LENGTHS)]
        tokens = prompt(length, length)[: length * (i % 3) // 2] + prompt(5 + 11 * i % 90, 1_000 + i)
        requests.append(
            EngineRequest(
                prompt=tokens, max_tokens=1 + i * 5 % 60, temperature=0.7, seed=i, ignore_eos=True, priority=i % 3 - 1
            )
        )
    return requests


def open_engine(model: Path, options: EngineOptions) -> Engine:
    try:
        return Engine.open(model, options)
    except EngineError as error:
        if error.status == Status.UNSUPPORTED:
            pytest.skip(str(error))
        raise


@pytest.fixture(scope="module")
def alone(tiny_model_dir: Path) -> dict[str, list[list[Sample]]]:
    """The reference, for each kernel set that the machine has."""
    results = {}
    for kernels in KERNELS:
        try:
            with Engine.open(tiny_model_dir, replace(LARGE, kernels=kernels)) as engine:
                results[kernels] = run_alone(engine, subjects())
        except EngineError as error:
            assert error.status == Status.UNSUPPORTED
    return results


def check(got: list[list[Sample]], expected: list[list[Sample]], what: str) -> None:
    for request, one, other in zip(subjects(), got, expected, strict=False):
        where = f"{what}, prompt of {len(request.prompt)}, temperature {request.temperature}"
        assert [s.tokens for s in one] == [s.tokens for s in other], where
        assert one == other, where


def idle_books(engine: Engine) -> None:
    stats = engine.stats()
    assert (stats.n_running, stats.n_waiting, stats.blocks_used, stats.failed) == (0, 0, 0, False)
    assert stats.blocks_free + stats.blocks_cached == stats.blocks_total


@pytest.mark.parametrize("budget", [16, 64, 512, 4096])
@pytest.mark.parametrize("kernels", KERNELS)
def test_alone_in_a_batch_of_32_cold_and_warm(
    tiny_model_dir: Path, alone: dict[str, list[list[Sample]]], kernels: str, budget: int
) -> None:
    options = replace(LARGE, kernels=kernels, token_budget=budget, prefix_cache=True, threads=2, max_slots=32)
    with open_engine(tiny_model_dir, options) as engine:
        mine = subjects()
        crowd = others(32 - len(mine))
        cold = run(engine, mine + crowd)
        check(cold[: len(mine)], alone[kernels], f"cold, budget {budget}")
        warm = run(engine, list(reversed(mine + crowd)))
        check(list(reversed(warm))[: len(mine)], alone[kernels], f"warm, budget {budget}")
        for request, samples in zip(mine, list(reversed(warm)), strict=False):
            assert samples[0].n_cached == (len(request.prompt) - 1) // BLOCK * BLOCK
        check(run_alone(engine, mine), alone[kernels], f"warm and alone, budget {budget}")
        idle_books(engine)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kernels", KERNELS)
def test_cache_off_and_threads(
    tiny_model_dir: Path, alone: dict[str, list[list[Sample]]], kernels: str, threads: int
) -> None:
    with open_engine(tiny_model_dir, replace(LARGE, kernels=kernels, threads=threads)) as engine:
        mine = subjects()
        check(run(engine, mine + others(16)), alone[kernels], f"{threads} threads")
        assert engine.stats().cached_tokens == 0


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("kernels", KERNELS)
def test_after_preemption(
    tiny_model_dir: Path, alone: dict[str, list[list[Sample]]], kernels: str, cache: bool
) -> None:
    options = replace(LARGE, kernels=kernels, kv_bytes=22 * BLOCK_BYTES, prefix_cache=cache, threads=2, token_budget=64)
    with open_engine(tiny_model_dir, options) as engine:
        mine = subjects()
        # These come first and grow for long: whoever squeezes in beside them is preempted soon.
        crowd = [replace(request, max_tokens=100, priority=-1) for request in others(12)]
        check(run(engine, mine + crowd), alone[kernels], "small pool")
        assert engine.stats().preemptions > 0
        idle_books(engine)


@pytest.mark.parametrize("kernels", KERNELS)
def test_scored_logits_equal_decoded_ones(tiny_model_dir: Path, kernels: str) -> None:
    """One pass over the whole text, small chunks, and token by token: the same bits."""
    tokens = prompt(100, 3)
    with open_engine(tiny_model_dir, replace(LARGE, kernels=kernels)) as engine:
        vocab = engine.info().vocab
        scored = engine.score_logits(tokens)
        sequence = engine.open_sequence()
        for i, token in enumerate(tokens):
            logits = sequence.decode(token)
            assert logits.tobytes() == scored[i * vocab : (i + 1) * vocab].tobytes(), f"position {i}"
        assert len(sequence) == len(tokens)
        sequence.reset()
        at = 0
        for n in (1, 2, 5, 24, 33, 35):
            at += n
            logits = sequence.prefill(tokens[at - n : at])
            assert logits.tobytes() == scored[(at - 1) * vocab : at * vocab].tobytes(), f"chunk that ends at {at}"
        sequence.close()
        idle_books(engine)
    with open_engine(tiny_model_dir, replace(LARGE, kernels=kernels, token_budget=16, threads=2)) as engine:
        assert engine.score_logits(tokens).tobytes() == scored.tobytes()


def test_logprobs_of_requests_equal_scored_ones(tiny_model_dir: Path, alone: dict[str, list[list[Sample]]]) -> None:
    """The three ways to a token's log-probability: its event, prompt_logprobs, qwen3_score_logprobs."""
    kernels = list(alone)[-1]
    with open_engine(tiny_model_dir, replace(LARGE, kernels=kernels)) as engine:
        for request, samples in zip(subjects(), alone[kernels], strict=True):
            sample = samples[0]
            text = [*request.prompt, *sample.tokens]
            scored = list(engine.score_logprobs(text))
            assert scored[len(request.prompt) :] == sample.logprobs
            engine.submit(EngineRequest(prompt=text, max_tokens=0, prompt_logprobs=True))
            found: list[float] = []
            while len(found) <= len(text):
                found += [event.logprob for event in engine.poll(10_000).events]
            assert found[1 : len(text)] == scored[1:]


def test_n_samples_equal_single_requests(tiny_model_dir: Path) -> None:
    for options in (LARGE, replace(LARGE, prefix_cache=True, token_budget=32)):
        with Engine.open(tiny_model_dir, options) as engine:
            for length in (1, 32, 33, 100):
                many = EngineRequest(
                    prompt=prompt(length, 9), max_tokens=20, temperature=0.9, seed=40, n=6, logprobs=True
                )
                singles = [replace(many, n=1, seed=40 + i) for i in range(6)]
                samples = run(engine, [many])[0]
                assert samples == [one[0] for one in run_alone(engine, singles)]
                assert len({tuple(sample.tokens) for sample in samples}) > 1
            idle_books(engine)


def test_a_pool_for_three_requests_serves_256(tiny_model_dir: Path) -> None:
    requests = []
    for i in range(256):
        tokens = prompt(40, i % 5) + prompt(1 + i % 20, i)
        requests.append(
            EngineRequest(prompt=tokens, max_tokens=75, temperature=0.0 if i % 2 else 0.8, seed=i, logprobs=True)
        )
    with Engine.open(tiny_model_dir, replace(LARGE, threads=2)) as engine:
        expected = run(engine, requests)
    with Engine.open(tiny_model_dir, replace(LARGE, kv_bytes=12 * BLOCK_BYTES, prefix_cache=True)) as engine:
        assert run(engine, requests) == expected
        stats = engine.stats()
        assert stats.preemptions > 0 and stats.cached_tokens > 0 and stats.idle_checks > 0
        idle_books(engine)


def test_repeated_prompts_count_their_cached_tokens(tiny_model_dir: Path) -> None:
    with Engine.open(tiny_model_dir, replace(LARGE, prefix_cache=True)) as engine:
        queries = hits = 0
        for length in (1, 15, 16, 17, 31, 32, 33, 64, 65, 96, 97):
            request = EngineRequest(prompt=prompt(length, 500 + length), max_tokens=4, temperature=0.0, logprobs=True)
            rounds = [run(engine, [request])[0][0] for _ in range(3)]
            whole = (length - 1) // BLOCK * BLOCK  # at least the last token is always computed
            assert [sample.n_cached for sample in rounds] == [0, whole, whole]
            assert rounds[0] == rounds[1] == rounds[2]
            queries += 3 * length
            hits += 2 * whole
        stats = engine.stats()
        assert (stats.prefix_queries, stats.prefix_hits) == (queries, hits)
        assert (stats.prompt_tokens, stats.cached_tokens) == (queries, hits)


def test_cancelled_neighbours_leave_no_trace(tiny_model_dir: Path) -> None:
    """Hosts end requests in the middle (stop strings, closed connections); whoever reads their blocks sees sound KV."""
    with Engine.open(tiny_model_dir, LARGE) as engine:
        expected = run_alone(engine, subjects())
    with Engine.open(tiny_model_dir, replace(LARGE, prefix_cache=True, kv_bytes=64 * BLOCK_BYTES)) as engine:
        dice = random.Random(1)
        for _ in range(3):
            victims = [engine.submit(replace(request, max_tokens=100, tag=1)) for request in subjects()]
            seen = 0
            while seen < dice.randrange(10, 60):
                seen += len(engine.poll(1_000).events)
            assert all(engine.cancel(victim) for victim in victims)
            left = set(victims)
            while left:
                for event in engine.poll(10_000).events:
                    if event.kind == EventKind.FINISHED:
                        assert event.finish_reason == FinishCode.CANCELLED
                        left.remove(event.request)
            check(run(engine, subjects()), expected, "after cancelled requests")
        idle_books(engine)


def test_seeds_make_the_difference(tiny_model_dir: Path) -> None:
    """The other way round: what should differ does."""
    with Engine.open(tiny_model_dir, LARGE) as engine:
        base = EngineRequest(prompt=prompt(20, 1), max_tokens=20, temperature=1.0, ignore_eos=True)
        one, two = (run(engine, [replace(base, seed=seed)])[0][0] for seed in (1, 2))
        assert one.tokens != two.tokens
        penalized = run(engine, [replace(base, temperature=0.0, repetition_penalty=5.0, max_tokens=60)])[0][0]
        plain = run(engine, [replace(base, temperature=0.0, max_tokens=60)])[0][0]
        assert len(set(penalized.tokens)) > len(set(plain.tokens))
