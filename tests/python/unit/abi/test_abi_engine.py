"""`Engine` over the real library and the tiny checkpoint."""

from __future__ import annotations

import math
import select
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from patience import PATIENCE

from qwen3app.abi import (
    Engine,
    EngineOptions,
    EngineRequest,
    Event,
    EventBatch,
    EventKind,
    FinishCode,
    Status,
    library_version,
)
from qwen3app.errors import EngineError

SMALL = EngineOptions(device="cpu", threads=1, kv_bytes=64 << 20, max_context=1024)


@pytest.fixture(scope="module")
def engine(tiny_model_dir: Path) -> Iterator[Engine]:
    with Engine.open(tiny_model_dir, SMALL) as engine:
        yield engine


def run(engine: Engine, request: EngineRequest) -> tuple[list[Event], list[list[tuple[int, float]]]]:
    """All events of one request, with the alternatives of each."""
    identity = engine.submit(request)
    events: list[Event] = []
    tops: list[list[tuple[int, float]]] = []
    deadline = time.monotonic() + PATIENCE
    while sum(event.kind == EventKind.FINISHED for event in events) < request.n:
        assert time.monotonic() < deadline
        batch = engine.poll(200)
        for event in batch.events:
            if event.request == identity:
                events.append(event)
                tops.append(batch.top(event))
    return events, tops


def test_open_reports_phases_and_logs(tiny_model_dir: Path) -> None:
    phases: list[str] = []
    lines: list[tuple[int, str]] = []
    options = EngineOptions(threads=1, kv_bytes=32 << 20, log_level=0)
    engine = Engine.open(
        tiny_model_dir,
        options,
        lambda phase, done, total: phases.append(phase),
        lambda level, line: lines.append((level, line)),
    )
    try:
        assert "weights" in phases
        assert all(0 <= level <= 3 and line for level, line in lines)
    finally:
        engine.close()
        engine.close()  # twice is harmless
    for call in (engine.info, engine.stats, lambda: engine.poll(0), lambda: engine.submit(EngineRequest([1]))):
        with pytest.raises(EngineError) as caught:
            call()
        assert caught.value.status == Status.CLOSED


def test_progress_can_stop_the_loading(tiny_model_dir: Path) -> None:
    with pytest.raises(EngineError) as caught:
        Engine.open(tiny_model_dir, SMALL, lambda phase, done, total: False)
    assert caught.value.status == Status.CANCELLED


def test_wrong_models_and_options_are_sentences(tiny_model_dir: Path, tmp_path: Path) -> None:
    for directory, options in (
        (tmp_path / "nothing", SMALL),
        (tmp_path, SMALL),
        (tiny_model_dir, EngineOptions(device="gpu9")),
        (tiny_model_dir, EngineOptions(max_context=1 << 40)),
        (tiny_model_dir, EngineOptions(max_slots=1 << 40)),
    ):
        with pytest.raises(EngineError) as caught:
            Engine.open(directory, options)
        assert caught.value.status != Status.OK and len(str(caught.value)) > 10


def test_info_and_stats(engine: Engine) -> None:
    info, stats = engine.info(), engine.stats()
    assert (info.device, info.threads, info.max_context) == ("cpu", 1, 1024)
    assert info.eos_ids and info.kernels and isinstance(info.prefix_cache, bool)
    assert stats.blocks_total == info.n_blocks == stats.blocks_free + stats.blocks_cached + stats.blocks_used
    assert stats.failed is False
    assert library_version()


def test_submit_and_poll(engine: Engine) -> None:
    events, _ = run(engine, EngineRequest([5, 6, 7], max_tokens=6, temperature=0, ignore_eos=True, tag=99))
    tokens = [event for event in events if event.kind == EventKind.TOKEN]
    assert [event.index for event in tokens] == list(range(6))
    assert all(event.tag == 99 and math.isnan(event.logprob) for event in tokens)
    last = events[-1]
    assert (last[8], last[12], last[14]) == (FinishCode.LENGTH, 3, 6)
    assert last[15] <= last[16] <= last[17] <= last[11]


def test_samples_logprobs_stops_and_bias(engine: Engine) -> None:
    forced = EngineRequest(
        [5, 6], max_tokens=4, n=2, top_logprobs=3, prompt_logprobs=True, logit_bias=[(70, 1e9)], cache_salt="tenant"
    )
    events, tops = run(engine, forced)
    prompt = [event for event in events if event.kind == EventKind.PROMPT_TOKEN]
    assert [event.token for event in prompt] == [5, 6] and math.isnan(prompt[0][5]) and prompt[1][5] < 0
    tokens = [(event, top) for event, top in zip(events, tops, strict=True) if event.kind == EventKind.TOKEN]
    assert {event.sample for event, _ in tokens} == {0, 1} and all(event.token == 70 for event, _ in tokens)
    assert all(len(top) == 3 and top[0][1] >= top[1][1] >= top[2][1] for _, top in tokens)
    stopped, _ = run(engine, EngineRequest([5], max_tokens=9, logit_bias=[(70, 1e9)], stop_ids=[70]))
    assert stopped[-1][8] == FinishCode.STOP and stopped[-1][14] == 1


def test_a_bias_is_turned_once_for_all_requests_that_share_it(engine: Engine) -> None:
    def tokens(bias: Sequence[tuple[int, float]]) -> set[int]:
        events, _ = run(engine, EngineRequest([5], max_tokens=2, logit_bias=bias))
        return {event.token for event in events if event.kind == EventKind.TOKEN}

    shared, other = ((70, 1e9),), ((71, 1e9),)
    assert tokens(shared) == {70}
    native = engine._last_bias[1]
    assert tokens(shared) == {70} and engine._last_bias[1] is native
    assert tokens(other) == {71} and tokens(shared) == {70}
    changing = [(72, 1e9)]
    assert tokens(changing) == {72}
    changing[0] = (73, 1e9)
    assert tokens(changing) == {73}


def test_cancel(engine: Engine) -> None:
    identity = engine.submit(EngineRequest([5], max_tokens=1000, ignore_eos=True))
    assert engine.cancel(identity) is True
    reasons = []
    deadline = time.monotonic() + PATIENCE
    while not reasons and time.monotonic() < deadline:
        reasons = [event.finish_reason for event in engine.poll(100).events if event.kind == EventKind.FINISHED]
    assert reasons == [FinishCode.CANCELLED]
    assert engine.cancel(identity) is False and engine.cancel(1 << 40) is False


def test_wrong_requests_are_sentences(engine: Engine) -> None:
    for request, status in (
        (EngineRequest([]), Status.INVALID_ARGUMENT),
        (EngineRequest([1 << 40]), Status.INVALID_ARGUMENT),
        (EngineRequest([-1]), Status.INVALID_ARGUMENT),
        (EngineRequest([1], temperature=-1), Status.INVALID_ARGUMENT),
        (EngineRequest([1], priority=1 << 40), Status.INVALID_ARGUMENT),
        (EngineRequest([1], n=1000), Status.INVALID_ARGUMENT),
        (EngineRequest([1] * 1000, max_tokens=100), Status.CONTEXT_OVERFLOW),
    ):
        with pytest.raises(EngineError) as caught:
            engine.submit(request)
        assert caught.value.status == status and len(str(caught.value)) > 10


def test_the_descriptor_says_when_to_poll(engine: Engine) -> None:
    assert engine.event_fd() == engine.event_fd()
    engine.submit(EngineRequest([5], max_tokens=3, ignore_eos=True, temperature=0))
    n_tokens = 0
    while True:
        readable, _, _ = select.select([engine.event_fd()], [], [], 60)
        assert readable
        events = engine.poll(0).events
        assert events
        n_tokens += sum(event.kind == EventKind.TOKEN for event in events)
        if events[-1][2] == EventKind.FINISHED:
            break
    assert n_tokens == 3
    assert select.select([engine.event_fd()], [], [], 0)[0] == []


def test_polling_releases_pythons_lock(engine: Engine) -> None:
    assert engine.poll(0).events == []
    begin = time.monotonic()
    assert engine.poll(50).events == [] and time.monotonic() - begin >= 0.05
    got: list[EventBatch] = []
    poller = threading.Thread(target=lambda: got.append(engine.poll(int(1000 * PATIENCE))))
    poller.start()
    turns = 0
    while poller.is_alive() and turns < 1000:
        turns += 1
    assert turns == 1000  # and not 0, after all the time that the poller waits
    engine.submit(EngineRequest([5], max_tokens=1))
    poller.join()
    while not any(event.kind == EventKind.FINISHED for batch in got for event in batch.events):
        got.append(engine.poll(200))


def test_masks(engine: Engine) -> None:
    n_words = (engine.info().n_token_ids + 31) // 32
    mask = bytearray(4 * n_words)
    mask[70 // 8] |= 1 << (70 % 8)
    identity = engine.submit(EngineRequest([5], max_tokens=3, constrained=True, ignore_eos=True))
    tokens = []
    engine.set_mask(identity, 0, 0, mask)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        batch = engine.poll(100)
        for event in batch.events:
            if event.kind == EventKind.TOKEN:
                tokens.append(event.token)
                if len(tokens) < 3:
                    engine.set_mask(identity, 0, len(tokens), bytes(mask))
        if any(event.kind == EventKind.FINISHED for event in batch.events):
            break
    assert tokens == [70, 70, 70]
    with pytest.raises(EngineError):
        engine.set_mask(identity, 0, 3, mask)


def test_scores_and_sequences_agree(engine: Engine) -> None:
    tokens = [5, 9, 13, 70]
    vocab = engine.info().vocab
    logits = engine.score_logits(tokens, 1)
    assert len(logits) == 3 * vocab
    scores = engine.score_logprobs(tokens)
    assert math.isnan(scores[0]) and all(score < 0 for score in scores[1:])
    row = logits[:vocab]  # after token 1: scores token 2
    top = max(row)
    expected = row[13] - top - math.log(sum(math.exp(value - top) for value in row))
    assert scores[2] == pytest.approx(expected, abs=1e-4)

    sequence = engine.open_sequence()
    try:
        assert list(sequence.prefill(tokens[:2])) == list(row)  # equal bits, chunked or not
        assert list(sequence.decode(tokens[2])) == list(logits[vocab : 2 * vocab])
        assert len(sequence) == 3
        sequence.reset()
        assert len(sequence) == 0
        with pytest.raises(EngineError):
            sequence.prefill([1 << 20])
    finally:
        sequence.close()
        sequence.close()
    for wrong in (lambda: engine.score_logits([]), lambda: engine.score_logits(tokens, 9)):
        with pytest.raises(EngineError):
            wrong()
