"""`bench` and `profile` on the tiny checkpoint: numbers that agree with each other, every format, files, wrong use."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE
from served import thread_names

from qwen3app import cli
from qwen3app.abi.engine import Engine
from qwen3app.abi.types import EngineInfo, EngineOptions, EnginePeaks
from qwen3app.commands import workload
from qwen3app.commands.bench import COLUMNS, best_of
from qwen3app.errors import EngineError

SMALL = ("--device", "cpu", "--threads", "2", "--kv-gb", "0.1")
LAYER_OPS = {
    "input_layernorm",
    "qkv_proj",
    "attention",
    "o_proj",
    "post_attention_layernorm",
    "gate_up_proj",
    "down_proj",
}
OTHER_OPS = {"embed_tokens", "rope_angles", "norm", "lm_head", "sample"}


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert cli.main(list(argv)) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


@pytest.fixture(scope="module")
def measured(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One bench of three tests: its JSON file and what it printed as JSON."""
    path = tmp_path_factory.mktemp("bench") / "bench.json"
    command = ["bench", "--model", str(tiny_model_dir), *SMALL, "--prompt", "40", "--batch", "1,3", "--context", "50"]
    assert cli.main([*command, "--output", "8", "--repeat", "3", "--json", str(path), "--format", "csv"]) == 0
    return json.loads(path.read_text())


def test_bench_numbers_agree(measured: Any, tiny_model_dir: Path) -> None:
    assert [test["test"] for test in measured["tests"]] == ["prefill 40", "decode 1 x 50", "decode 3 x 50"]
    assert measured["model"]["name"] == tiny_model_dir.name
    assert measured["backend"]["device"] == "cpu" and measured["backend"]["threads"] == 2
    peaks = measured["peaks"]
    assert peaks["read_bytes_per_second"] > 0 and peaks["flops_per_second"] > 0 and peaks["flops_of"]
    for test in measured["tests"]:
        assert len(test["seconds"]) == 3 and all(seconds > 0 for seconds in test["seconds"])
        assert test["median_seconds"] == sorted(test["seconds"])[1]
        n_tokens = test["n_tokens"] if test["kind"] == "prefill" else test["n_sequences"]
        assert test["tokens_per_second"] * test["median_seconds"] == pytest.approx(n_tokens)
        assert test["tokens_per_second_min"] <= test["tokens_per_second"] <= test["tokens_per_second_max"]
        for rate, share, peak in (
            ("bytes_per_second", "bandwidth_share", "read_bytes_per_second"),
            ("flops_per_second", "flops_share", "flops_per_second"),
        ):
            assert test[share] == pytest.approx(test[rate] / peaks[peak])
            assert test[share] > 0


def test_costs_of_a_known_shape() -> None:
    """The 8B shape: 15.1 GB a step, 13.9 GFLOP a token, 147,456 bytes of KV a token."""
    values: dict[str, Any] = dict.fromkeys(EngineInfo.__annotations__, 0)
    values |= {"hidden": 4096, "intermediate": 12288, "n_layers": 36, "n_heads": 32, "n_kv_heads": 8, "head_dim": 128}
    values |= {"vocab": 151_936, "block_size": 32, "n_blocks": 10, "kv_bytes": 10 * 32 * 147_456}
    info = EngineInfo(**values)
    step = workload.decode_cost(info, 1, 0)
    assert step.bytes == pytest.approx(15.14e9, rel=1e-3)
    assert step.flops == pytest.approx(15.14e9, rel=1e-3)  # each weight is multiplied and added once
    batch = workload.decode_cost(info, 8, 1000)
    assert batch.bytes - step.bytes == 8 * 1000 * 147_456
    assert batch.flops == pytest.approx(8 * step.flops + 4 * 36 * 32 * 128 * 8000)
    # Coded weights, padding included, are all that must be read; those without a coded form are read as they are.
    coded = workload.decode_cost(replace(info, coded_bytes=11_590_000_000), 8, 1000)
    assert coded.bytes == 11_590_000_000 + 8 * 1000 * 147_456 and coded.flops == batch.flops
    half = workload.decode_cost(replace(info, coded_bytes=5_795_000_000), 1, 0)
    assert half.bytes == pytest.approx(5.795e9 + 15.14e9 / 2, rel=1e-3)
    prefill = workload.prefill_cost(info, 1000)
    head = 2 * 151_936 * 4096
    attention = 4 * 36 * 32 * 128 * 1000 * 1001 / 2
    assert (prefill.flops - head - attention) / 1000 == pytest.approx(13.9e9, rel=1e-2)
    assert prefill.bytes - step.bytes == 1000 * 147_456


def test_the_better_of_two_peaks_counts() -> None:
    peaks = best_of(EnginePeaks(2.0, 3.0, "mma"), EnginePeaks(1.0, 4.0, "mma"))
    assert peaks == EnginePeaks(2.0, 4.0, "mma")


def test_a_decode_step_is_averaged_from_the_last_first_token_on() -> None:
    early = [100, 200, 300, 400, 500]  # three tokens by the time the last sequence has its first
    last = [300, 400, 500]
    decode = workload.decode_time([40, 50], [early, last], 2)
    assert decode.seconds == pytest.approx(100e-9)
    assert decode.mean_context == pytest.approx(45 + (3 + 1) / 2 + 0.5)
    for more, advice in (("--x", r"measure fewer or shorter ones, or give more room \(--x\)\.$"), (None, r"ones\.$")):
        with pytest.raises(EngineError, match=advice):
            workload.decode_time([40, 50], [early[:4], last], 2, more)


def test_decode_is_measured_with_all_sequences_running(tiny_model_dir: Path) -> None:
    options = EngineOptions(device="cpu", threads=2, token_budget=16, kv_bytes=1 << 26, prefix_cache=False)
    with Engine.open(tiny_model_dir, options) as engine:
        info = engine.info()
        prompts = workload.random_prompts(5, 40, info.vocab, seed=1)  # 13 steps until the last one is read
        assert workload.prefill_steps(prompts, info) == 14
        decode = workload.time_decode(engine, prompts, 6)
        assert decode.seconds > 0
        # Sequences that began earlier have written some tokens by then, more if this thread submits slowly.
        assert 40 + 1 + 2.5 < decode.mean_context < info.max_context
        assert workload.time_prefill(engine, prompts) > 0
        stats = engine.stats()
        assert stats.n_running == stats.n_waiting == 0 and stats.blocks_used == 0
        with pytest.raises(EngineError, match="context"):
            workload.time_prefill(engine, [[1] * (info.max_context + 1)])


def test_sequences_that_do_not_fit_together_are_no_measurement(
    tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Engine.open(tiny_model_dir, EngineOptions(device="cpu", threads=1)) as engine:
        block_bytes = engine.info().kv_bytes // engine.info().n_blocks
    options = EngineOptions(device="cpu", threads=1, kv_bytes=6 * block_bytes, prefix_cache=False)
    with Engine.open(tiny_model_dir, options) as engine, pytest.raises(EngineError, match="did not fit the KV pool"):
        workload.time_decode(engine, workload.random_prompts(4, 31, 1000, seed=1), 60)
    gib = str(6 * block_bytes / (1 << 30))
    argv = ["--model", str(tiny_model_dir), "--device", "cpu", "--kv-gb", gib, "--prompt", "8", "--context", "40"]
    for command in (["bench", "--batch", "4", "--output", "1"], ["profile", "--batch", "4"]):
        assert cli.main([*command, *argv]) == 2
        out, err = capsys.readouterr()
        assert out == "" and "4 sequences of 4" in err and "take 8 KV blocks of 32 tokens, but there are 6" in err


@pytest.mark.parametrize("form", ["table", "markdown", "json", "csv"])
def test_bench_formats(form: str, tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["bench", "--model", str(tiny_model_dir), *SMALL, "--prompt", "16,32", "--batch", "2", "--context", "20"]
    out = run(capsys, *argv, "--output", "4", "--repeat", "1", "--format", form)
    if form == "table":
        lines = out.splitlines()
        assert lines[0].split()[:4] == ["model", "size", "params", "backend"]
        assert "prefill 16" in lines[1] and "prefill 32" in lines[2] and "decode 2 x 20" in lines[3]
        assert "Peaks of" in out
    elif form == "markdown":
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in out.splitlines()]
        assert tuple(rows[0]) == COLUMNS and len(rows) == 5 and all(len(row) == len(COLUMNS) for row in rows)
    elif form == "json":
        assert [test["n_tokens"] for test in json.loads(out)["tests"]] == [16, 32, 20]
    else:
        parsed = list(csv.DictReader(io.StringIO(out)))
        assert [row["test"] for row in parsed] == ["prefill 16", "prefill 32", "decode 2 x 20"]
        assert all(float(row["tokens_per_second"]) > 0 for row in parsed)


def test_defaults_suit_the_cpu(tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["bench", "--model", str(tiny_model_dir), "--device", "cpu", "--repeat", "1", "--format", "json"]
    tests = json.loads(run(capsys, *argv))["tests"]
    assert [test["test"] for test in tests] == ["prefill 128", "prefill 512", "decode 1 x 128", "decode 4 x 128"]
    argv += ["--max-ctx", "300"]
    tests = json.loads(run(capsys, *argv))["tests"]
    assert [test["test"] for test in tests] == ["prefill 128", "decode 1 x 128", "decode 4 x 128"]


@pytest.fixture(scope="module")
def profiled(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A profile whose prompt takes two steps: (summary, trace)."""
    folder = tmp_path_factory.mktemp("profile")
    command = ["profile", "--model", str(tiny_model_dir), *SMALL, "--token-budget", "64", "--prompt", "100"]
    command += ["--batch", "3", "--context", "40", "--repeat", "2"]
    command += ["--trace", str(folder / "trace.json"), "--json", str(folder / "profile.json")]
    assert cli.main(command) == 0
    return json.loads((folder / "profile.json").read_text()), json.loads((folder / "trace.json").read_text())


def test_profile_shares_sum_to_one(profiled: Any) -> None:
    result, _ = profiled
    assert [phase["kind"] for phase in result["phases"]] == ["prefill", "decode"]
    n_layers = result["model"]["layers"]
    for phase, n_steps in zip(result["phases"], (2, 1), strict=True):
        ops = {op["name"]: op for op in phase["ops"]}
        assert ops.keys() >= LAYER_OPS | OTHER_OPS
        assert sum(op["share"] for op in phase["ops"]) == pytest.approx(1.0)
        assert sum(op["ns"] for op in phase["ops"]) == phase["ns"] > 0
        assert phase["untimed_ns"] > 0
        assert [op["ns"] for op in phase["ops"]] == sorted((op["ns"] for op in phase["ops"]), reverse=True)
        for name, op in ops.items():
            assert (op["layers"] is not None) == (name not in OTHER_OPS | {"upload"})
            if name in LAYER_OPS:
                assert op["calls"] == n_layers * n_steps and op["layers"]["ns"] == op["ns"]
        inside = sum(op["ns"] for op in phase["ops"] if op["layers"] is not None)
        assert phase["layers"]["ns"] == inside


def test_profile_trace_nests(profiled: Any) -> None:
    """Per track, two slices either are apart or one holds the other, and their depth is step, layer, op."""
    result, trace = profiled
    tracks: dict[int, list[Any]] = {}  # (begin, depth, end, event), in nanoseconds
    depth = {"step": 0, "layer": 1, "op": 2}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            begin, length = round(event["ts"] * 1000), round(event["dur"] * 1000)
            tracks.setdefault(event["tid"], []).append((begin, depth[event["cat"]], begin + length, event))
    names = {event["tid"]: event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert names == {1: "Prefill of 100 tokens in 2 steps", 2: "Decode step of 3 sequences after 40 tokens"}
    assert sorted(tracks) == [1, 2]
    for track, slices in tracks.items():
        slices.sort(key=lambda entry: entry[:3])
        open_: list[tuple[int, int]] = []  # (end, depth) of the slices around
        for begin, level, end, _ in slices:
            while open_ and open_[-1][0] <= begin:
                open_.pop()
            if open_:
                assert open_[-1][1] < level and end <= open_[-1][0]
            else:
                assert level == 0
            open_.append((end, level))
        events = [event for *_, event in slices]
        ops = [event for event in events if event["cat"] == "op"]
        total = sum(event["dur"] for event in ops)
        assert total * 1000 == pytest.approx(result["phases"][track - 1]["ns"], rel=1e-9)
        layers = [event["name"] for event in events if event["cat"] == "layer"]
        n_steps = 2 if track == 1 else 1
        assert layers == [f"layer {i}" for i in range(result["model"]["layers"])] * n_steps


def test_profile_prints_a_table(tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["profile", "--model", str(tiny_model_dir), *SMALL, "--prompt", "20", "--context", "10", "--repeat", "1"]
    out = run(capsys, *argv)
    assert "Prefill of 20 tokens: " in out and "Decode step of 1 sequence after 10 tokens: " in out
    assert out.count("gate_up_proj") == 2 and out.count("100.0%") == 2


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["bench", "--prompt", "0"], "argument --prompt: must be from 1 to 1048576, got 0"),
        (["bench", "--prompt", "12,x"], "argument --prompt: 'x' is not a whole number"),
        (["bench", "--batch", ""], "argument --batch: '' is not a whole number"),
        (["bench", "--batch", "-1"], "argument --batch"),
        (["bench", "--repeat", "0"], "argument --repeat: must be from 1 to 1000"),
        (["bench", "--format", "xml"], "invalid choice: 'xml'"),
        (["bench", "--promt", "5"], "there is no flag --promt; did you mean --prompt?"),
        (["bench", "--prompt", "300"], "A sequence of 301 tokens is measured, but the context holds 256."),
        (["bench", "--batch", "1", "--context", "250"], "tokens is measured, but the context holds 256"),
        (["bench", "--batch", "8", "--slots", "4"], "8 sequences at once need 8 slots, but --slots is 4."),
        (
            ["bench", "--batch", "32", "--token-budget", "16", "--context", "9"],
            "only 16 can run (--token-budget is 16)",
        ),
        (["profile", "--prompt", "x"], "argument --prompt: 'x' is not a whole number"),
        (["profile", "--prompt", "257"], "A sequence of 257 tokens is measured, but the context holds 256."),
        (["profile", "--prompt", "8", "--context", "256"], "A sequence of 257 tokens"),
        (["profile", "--batch", "4,5"], "argument --batch: '4,5' is not a whole number"),
        (["profile", "--format", "csv"], "there is no flag --format"),
        (["profile", "--kernels", "sse9", "--prompt", "8"], "sse9"),
    ],
)
def test_wrong_use_is_one_sentence(
    argv: list[str], sentence: str, tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--model", str(tiny_model_dir), "--device", "cpu", "--threads", "1", "--max-ctx", "256"]
    assert cli.main([*argv[:1], *flags, *argv[1:]]) in (1, 2)
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("qwen3-8b") and err.count("\n") == 1
    assert sentence in err


RESULT_FLAGS = [("bench", "--json"), ("profile", "--json"), ("profile", "--trace")]


@pytest.mark.parametrize(("command", "flag"), RESULT_FLAGS)
def test_a_place_that_cannot_be_written_is_found_first(
    command: str, flag: str, tiny_model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    locked = tmp_path / "locked.json"
    locked.touch(mode=0o444)
    places = [("/nowhere/x.json", "No such file or directory"), (str(tmp_path), "Is a directory")]
    if not os.access(locked, os.W_OK):  # root may
        places.append((str(locked), "Permission denied"))
    for place, reason in places:
        assert cli.main([command, "--model", str(tiny_model_dir), *SMALL, flag, place]) == 1
        assert capsys.readouterr() == ("", f"qwen3-8b: {place}: {reason}.\n")  # nothing was measured


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize(("command", "flag"), RESULT_FLAGS)
def test_a_full_disk_does_not_lose_the_measurement(
    command: str, flag: str, tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--prompt", "8", "--batch", "1", "--context", "8", "--repeat", "1"]
    assert cli.main([command, "--model", str(tiny_model_dir), *SMALL, *sizes, flag, "/dev/full"]) == 1
    out, err = capsys.readouterr()
    assert ("prefill 8" if command == "bench" else "Prefill of 8 tokens: ") in out
    assert err == "qwen3-8b: /dev/full: No space left on device.\n"


def test_two_results_do_not_share_a_file(
    tiny_model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "out.json")
    argv = ["profile", "--model", str(tiny_model_dir), *SMALL, "--json", path, "--trace", path]
    assert cli.main(argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and "Two results cannot go to the same file" in err and err.count("\n") == 1


@pytest.mark.parametrize("flags", [["bench", "--prompt", "8000"], ["profile", "--prompt", "500"]])
def test_ctrl_c_ends_a_long_measurement(flags: list[str], tiny_model_dir: Path) -> None:
    """Which would take half a minute here, and hours for a large model: it must not wait for the call under way."""
    argv = [sys.executable, "-m", "qwen3app", *flags, "--repeat", "1000", "--model", str(tiny_model_dir)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while "qwen3-engine" not in thread_names(process.pid):
            assert process.poll() is None
            time.sleep(0.05)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=2 * PATIENCE)
    assert process.returncode == 130 and out == "" and err == ""  # 0 and a table, had it gone on to its end
