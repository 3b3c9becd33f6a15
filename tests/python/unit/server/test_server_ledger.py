"""The ledger of a start: phases that add up, and the table for a terminal."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from serving import load_text, make_model

from qwen3app.runtime import LoadedModel
from qwen3app.server.ledger import ledger, process_seconds, start_seconds, table


@pytest.fixture
def model(tiny_model_dir: Path) -> LoadedModel:
    model = make_model(load_text(tiny_model_dir), FakeEngine())
    model.load_phases = {"ids": 0.05, "library": 0.03, "map": 0.01, "weights": 2.1, "kv": 0.4, "text": 0.2}
    model.text_seconds = 0.52
    info = {"weight_bytes": 15 << 30, "kv_bytes": 9 << 29, "workspace_bytes": 3 << 20, "graph_bytes": 0}
    model.info = replace(model.info, **info, n_blocks=96, max_context=1024, free_bytes=20 << 30)  # type: ignore[arg-type]
    return model


def test_phases_add_up(model: LoadedModel) -> None:
    seconds = start_seconds(model, 0.4, 3.5)
    assert seconds["listen"] == pytest.approx(0.31)
    assert sum(value for phase, value in seconds.items() if phase != "total") == pytest.approx(seconds["total"])
    line = ledger(model, seconds)
    assert line["start_seconds"]["weights"] == 2.1 and line["start_seconds"]["total"] == 3.5
    assert line["text_seconds"] == 0.52
    assert line["message"].startswith("weights 15.00 GiB, KV 4.50 GiB = 3,072 tokens = 3.0 requests of 1,024 tokens")
    assert line["message"].endswith("; ready 3.50 s after the start")


def test_the_table(model: LoadedModel) -> None:
    assert table(model, start_seconds(model, 0.4, 3.5)) == (
        "Start                            seconds\n"
        "  program: unpacked, imported      0.400\n"
        "  token ids counted                0.050\n"
        "  library and device opened        0.030\n"
        "  files opened                     0.010\n"
        "  weights read, moved              2.100\n"
        "  workspace and KV cache           0.400\n"
        "  tokenizer, what was left         0.200  0.52 s beside the others\n"
        "  server imported, listening       0.310\n"
        "  total                            3.500\n"
        "Memory of cpu\n"
        "  weights                      15.00 GiB\n"
        "  KV cache                      4.50 GiB  3.0 requests of 1,024 tokens\n"
        "  workspace                      3.0 MiB\n"
        "  free before                  20.00 GiB\n"
    )


def test_coded_weights_are_named_where_there_are_any(model: LoadedModel) -> None:
    """They stand on a GPU's ledger alone."""
    seconds = start_seconds(model, 0.4, 3.5)
    line = ledger(model, seconds)
    assert line["coded_bytes"] == 0 and "coded" not in line["message"]
    model.info = replace(model.info, coded_bytes=23 << 29, graph_bytes=256 << 20, total_bytes=140 << 30)
    line = ledger(model, seconds)
    assert line["weight_bytes"] == 15 << 30 and line["coded_bytes"] == 23 << 29
    assert line["message"].startswith("weights 15.00 GiB and coded 11.50 GiB, KV 4.50 GiB = 3,072 tokens = ")
    rows = table(model, seconds).splitlines()
    at = rows.index("  weights                      15.00 GiB")
    assert rows[at + 1] == "  weights, coded               11.50 GiB  for steps of few tokens"
    assert rows[at + 2].startswith("  KV cache ")


def test_the_process_has_an_age() -> None:
    program = (
        "import time; from qwen3app.server.ledger import process_seconds as s; a = s(); time.sleep(0.2); print(a, s())"
    )
    before = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    taken = time.monotonic() - before
    first, second = map(float, done.stdout.split())
    assert first > 0 and first + 0.2 <= second + 0.001 and second <= taken + 0.02  # ticks of 10 ms
    assert process_seconds() > 0


@pytest.mark.parametrize("text", [None, "", "1 (x) S 1"])
def test_a_root_without_proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None) -> None:
    stat = tmp_path / "stat"
    if text is not None:
        stat.write_text(text)
    monkeypatch.setattr("qwen3app.server.ledger._STAT", stat)
    assert 0 <= process_seconds() < time.monotonic()
    before = process_seconds()
    time.sleep(0.02)
    assert process_seconds() - before >= 0.02
