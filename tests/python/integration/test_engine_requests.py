"""The engine through qwen3app.abi as the runtime uses it: cancels under load, sampling's extremes, masks, closing."""

from __future__ import annotations

import math
import random
import threading
import time
from array import array
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from patience import PATIENCE

from qwen3app.abi.engine import Engine
from qwen3app.abi.types import EngineOptions, EngineRequest, Event, EventKind, FinishCode
from qwen3app.errors import EngineError, Status

BLOCK_BYTES = 65_536  # of the tiny shape, see test_deterministic.py
OPTIONS = EngineOptions(device="cpu", threads=1, kv_bytes=128 * BLOCK_BYTES)


@pytest.fixture
def engine(tiny_model_dir: Path) -> Iterator[Engine]:
    with Engine.open(tiny_model_dir, OPTIONS) as engine:
        yield engine
        stats = engine.stats()
        assert not stats.failed
        assert (stats.n_running, stats.n_waiting, stats.blocks_used) == (0, 0, 0)


def prompt(n: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(1_000), k=n)


def collect(engine: Engine, ids: list[int]) -> dict[int, list[int]]:
    """Tokens of sample 0 of each, once all have ended."""
    tokens: dict[int, list[int]] = {id: [] for id in ids}
    left = set(ids)
    while left:
        events = engine.poll(60_000).events
        assert events, "the engine makes no progress"
        for event in events:
            if event.kind == EventKind.TOKEN:
                tokens[event.request].append(event.token)
            elif event.kind == EventKind.FINISHED:
                left.remove(event.request)
    return tokens


def test_500_requests_with_random_cancels(tiny_model_dir: Path) -> None:
    """From four threads, also twice, too late and for ids that do not exist. Who survives gets the right answer."""
    prompts = [prompt(5 + 17 * i % 90, i) for i in range(20)]
    with Engine.open(tiny_model_dir, EngineOptions(device="cpu", kv_bytes=256 * BLOCK_BYTES)) as calm:
        ids = [calm.submit(EngineRequest(tokens, max_tokens=20, temperature=0.0)) for tokens in prompts]
        answers = list(collect(calm, ids).values())

    options = EngineOptions(device="cpu", threads=2, kv_bytes=40 * BLOCK_BYTES, max_slots=16)
    with Engine.open(tiny_model_dir, options) as engine:
        asked: dict[int, int] = {}
        cancelled: set[int] = set()
        lock = threading.Lock()

        def client(seed: int) -> None:
            dice = random.Random(seed)
            for _ in range(125):
                which = dice.randrange(len(prompts))
                with lock:
                    id = engine.submit(EngineRequest(prompts[which], max_tokens=20, temperature=0.0))
                    asked[id] = which
                if dice.random() < 0.5:
                    time.sleep(dice.random() * 0.005)
                    if engine.cancel(id):
                        with lock:
                            cancelled.add(id)
                    assert not engine.cancel(id)
                assert not engine.cancel(1_000_000 + id)

        threads = [threading.Thread(target=client, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        tokens: dict[int, list[int]] = {}
        finish: dict[int, int] = {}
        while any(thread.is_alive() for thread in threads) or len(finish) < len(asked):
            for event in engine.poll(1_000).events:
                assert event.request not in finish, "an event after the end"
                if event.kind == EventKind.TOKEN:
                    tokens.setdefault(event.request, []).append(event.token)
                else:
                    finish[event.request] = event.finish_reason
        for thread in threads:
            thread.join()

        assert len(asked) == 500
        for id, which in asked.items():
            if id in cancelled:
                assert finish[id] == FinishCode.CANCELLED
                assert tokens.get(id, []) == answers[which][: len(tokens.get(id, []))]
            else:
                assert finish[id] in (FinishCode.STOP, FinishCode.LENGTH)
                assert tokens[id] == answers[which]
        stats = engine.stats()
        assert (stats.n_running, stats.n_waiting, stats.blocks_used, stats.failed) == (0, 0, 0, False)
        assert stats.samples_cancelled == len(cancelled) > 50
        assert stats.samples_failed == 0


def test_extreme_sampling_gives_sound_tokens(engine: Engine) -> None:
    text = prompt(20, 1)
    n_token_ids = engine.info().n_token_ids
    greedy = collect(engine, [engine.submit(EngineRequest(text, max_tokens=4, temperature=0.0, ignore_eos=True))])
    expected = next(iter(greedy.values()))
    cases = list(product((0.0, 1e-10, 1e-4, 2.0, 100.0), (0.0, 1e-9, 1.0), (-1, 0, 1, 151_936, 10**9), (0.0, 0.1, 1.0)))
    ids = [
        engine.submit(
            EngineRequest(
                text, max_tokens=4, temperature=t, top_p=p, top_k=k, min_p=m, seed=3, ignore_eos=True, logprobs=True
            )
        )
        for t, p, k, m in cases
    ]
    for (t, p, k, m), tokens in zip(cases, collect(engine, ids).values(), strict=True):
        assert len(tokens) == 4 and all(0 <= token < n_token_ids for token in tokens)
        if t <= 1e-4 or p < 1 or k == 1 or m == 1:
            assert tokens == expected, (t, p, k, m)


def test_penalties_at_their_ends(engine: Engine) -> None:
    text = prompt(20, 2)
    ids = [
        engine.submit(
            EngineRequest(
                text,
                max_tokens=20,
                temperature=t,
                repetition_penalty=r,
                presence_penalty=p,
                frequency_penalty=f,
                ignore_eos=True,
            )
        )
        for t, r, p, f in product((0.0, 1.0), (1e-40, 1e-6, 1.0, 1e6, 3e38), (-2.0, 2.0), (-2.0, 2.0))
    ]
    for tokens in collect(engine, ids).values():
        assert len(tokens) == 20


def test_masks(engine: Engine) -> None:
    id = engine.submit(EngineRequest(prompt(10, 3), max_tokens=3, temperature=0.0, constrained=True, tag=5))
    words = (engine.info().n_token_ids + 31) // 32
    for index in range(3):
        mask = array("I", [0] * words)
        mask[2 + index] = 1 << 7
        with pytest.raises(EngineError, match="the next one is") as caught:
            engine.set_mask(id, 0, index + 1, mask.tobytes())
        assert caught.value.status == Status.INVALID_ARGUMENT
        engine.set_mask(id, 0, index, mask.tobytes())
        event, *rest = engine.poll(10_000).events
        assert (event.tag, event.token, event.index) == (5, (2 + index) * 32 + 7, index)
    (end,) = rest or engine.poll(10_000).events
    assert end[8] == FinishCode.LENGTH
    with pytest.raises(EngineError) as caught:
        engine.set_mask(id, 0, 3, mask.tobytes())
    assert caught.value.status == Status.NOT_FOUND


def test_prompt_logprobs_come_in_order_before_the_answer(engine: Engine) -> None:
    text = prompt(70, 4)
    id = engine.submit(
        EngineRequest(text, max_tokens=2, temperature=0.0, prompt_logprobs=True, top_logprobs=4, ignore_eos=True)
    )
    seen: list[tuple[Event, list[tuple[int, float]]]] = []
    while len(seen) < 73:
        batch = engine.poll(10_000)
        for event in batch.events:
            assert event.request == id
            seen.append((event, batch.top(event)))
    kinds = [event.kind for event, _ in seen]
    assert kinds == [EventKind.PROMPT_TOKEN] * 70 + [EventKind.TOKEN] * 2 + [EventKind.FINISHED]
    assert [event.token for event, _ in seen[:70]] == text
    assert math.isnan(seen[0][0][5]) and seen[0][1] == []
    for event, top in seen[1:72]:
        assert event.logprob <= 0 and len(top) == 4
        assert [value for _, value in top] == sorted((value for _, value in top), reverse=True)
        assert event.logprob <= top[0][1]


def test_close_with_live_requests_and_a_blocked_poller(tiny_model_dir: Path) -> None:
    engine = Engine.open(tiny_model_dir, OPTIONS)
    for seed in range(4):
        engine.submit(EngineRequest(prompt(30, seed), ignore_eos=True, constrained=seed == 0))
    statuses: list[Status] = []

    def poller() -> None:
        try:
            while True:
                engine.poll(-1)
        except EngineError as error:
            statuses.append(error.status)

    thread = threading.Thread(target=poller)
    thread.start()
    time.sleep(0.1)
    engine.close()
    thread.join(PATIENCE)
    assert statuses == [Status.CLOSED]
    with pytest.raises(EngineError):
        engine.stats()


def test_progress_and_log_reach_python(tiny_model_dir: Path) -> None:
    phases: list[str] = []
    lines: list[str] = []

    def on_progress(phase: str, done: int, total: int) -> bool:
        assert done <= total
        if not phases or phases[-1] != phase:
            phases.append(phase)
        return True

    with Engine.open(tiny_model_dir, OPTIONS, on_progress, lambda level, line: lines.append(f"{level} {line}")):
        pass
    assert phases == ["map", "weights", "kv"]
    assert any("model ready on cpu" in line for line in lines)
    with pytest.raises(EngineError) as caught:
        Engine.open(tiny_model_dir, OPTIONS, lambda phase, done, total: phase != "weights")
    assert caught.value.status == Status.CANCELLED
