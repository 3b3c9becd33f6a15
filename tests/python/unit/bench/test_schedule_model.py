"""The model of the scheduler: what can be known without it, and the scheduler's own rule."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench"))
from schedule_model import ARRIVAL_MS, REPLY_MS, STEPS, StepTimes, fixed, main, play, spread
from serving_load import Row
from serving_metrics import summarize

# 1 ms and 0.01 ms a row, nothing for KV
PLAIN = StepTimes({"rows": [0, 10_000], "ms": [1.0, 101.0], "kv_bytes_per_token": 0, "kv_bytes_per_ms": 1})


def test_step_times() -> None:
    assert PLAIN(100, 0) == pytest.approx(2.0)
    assert PLAIN(129, 0) == PLAIN(256, 0) == pytest.approx(3.56)  # whole tiles
    measured = StepTimes(STEPS)
    assert measured(512, 0) == 14.1
    assert measured(32, 32 * 1000) == pytest.approx(4.9 + 32_000 * 147_456 / 3.7e9)


def test_one_sequence() -> None:
    results = play(Row(1, 100, 11, 3), fixed(64), PLAIN)
    for result in results:
        assert result.ttft * 1e3 == pytest.approx(PLAIN(64, 0) + PLAIN(36, 0))  # two chunks
        assert result.tpot is not None and result.tpot * 1e3 == pytest.approx(PLAIN(1, 0))
    starts = [result.start for result in results]
    assert starts[1] - results[0].last == pytest.approx(REPLY_MS * 1e-3)


def test_all_at_once_in_one_step() -> None:
    results = play(Row(4, 10, 5, 4), fixed(1000), StepTimes({**STEPS, "ms": [2.0] * 10, "kv_bytes_per_token": 0}))
    assert [result.start for result in results] == pytest.approx([i * ARRIVAL_MS * 1e-3 for i in range(4)])
    # the first alone at 0 ms; the others have come when the step after the next is planned, at 2 ms
    assert sorted(round(result.first * 1e3, 6) for result in results) == [2.0, 6.0, 6.0, 6.0]


@pytest.mark.parametrize("rule", [fixed(256), fixed(8192), spread(48)], ids=["256", "8192", "spread"])
def test_the_identity_of_a_closed_loop(rule: object) -> None:
    row = Row(32, 512, 64, 1024)
    found = summarize(play(row, rule, StepTimes(STEPS)), 64)  # type: ignore[arg-type]
    assert found["completed"] == 1024 and found["output_tokens"] == 1024 * 64
    cycle = found["ttft_ms"]["mean"] + 63 * found["tpot_ms"]["mean"] + REPLY_MS
    assert found["requests_per_s"] == pytest.approx(32e3 / cycle, rel=0.03)


def test_the_scheduler_rule() -> None:
    """The vectors of tests/native/sched/scheduler_test.cpp."""
    rule = spread(8)
    assert [rule(2, 1_000), rule(2, 4_000), rule(256, 1_000), rule(256, 300), rule(200, 300)] == [
        256,
        512,
        384,
        384,
        384,
    ]
    assert rule(0, 4_000) == rule(2, 400_000) == 8192
    rule = spread(8)
    rows = [rule(2, 10_000 - 254 * i) for i in range(14)]
    assert [i for i, n in enumerate(rows) if n == 2] == [5, 11]
    assert [rule(64, 1_000) for _ in range(12)] == [256] * 12
    assert [rule(2, 0) for _ in range(12)] == [256] * 12  # nothing waits


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--row", "4x64x8:8", "--budget", "128", "--spread", "48"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and "budget 128" in lines[1] and "spread 48" in lines[2]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--row", "4x8:8"], "no rule to compare"),
        (["--row", "0x8:8", "--spread", "1"], "a concurrency above 0"),
        (["--row", "4x8:8", "--spread", "-1"], "argument --spread: must be from 0 to 4096, got -1"),
        (["--row", "4x8:8", "--budget", "0"], "argument --budget: must be from 16 to 65536, got 0"),
    ],
)
def test_wrong_use_is_a_sentence(flags: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(flags)
    assert sentence in capsys.readouterr().err


def test_no_spreading_is_the_whole_budget() -> None:
    assert spread(0)(5, 100_000) == 8192
