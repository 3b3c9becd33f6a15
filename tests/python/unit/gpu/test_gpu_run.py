"""tests/gpu/run.py: whatever happens to a step stands in table, JSON and exit status, and hides no other step."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

GPU = Path(__file__).resolve().parents[3] / "gpu"
sys.path.insert(0, str(GPU))
import run as gpu_run  # noqa: E402
import serve_rows  # noqa: E402
import speed  # noqa: E402
from run import Step  # noqa: E402

from qwen3app.abi.types import EngineInfo  # noqa: E402


def statuses(out: Path) -> dict[str, str]:
    document = json.loads((out / "result.json").read_text())
    assert all((out / "table.txt").read_text().count(step["step"]) for step in document["steps"])
    return {step["step"]: step["status"] for step in document["steps"]}


@pytest.fixture
def run_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    def run(*steps: Step, options: tuple[str, ...] = (), out: Path = tmp_path) -> tuple[int, dict[str, str]]:
        monkeypatch.setattr(gpu_run, "PARTS", {"correct": list(steps)})
        monkeypatch.setattr(sys, "argv", ["run.py", "correct", "--out", str(out), "--commit", "abc", *options])
        monkeypatch.setattr(gpu_run.os, "environ", dict(gpu_run.os.environ))
        status = gpu_run.main()
        return status, statuses(out)

    return run


def test_a_failing_step_hides_no_other(run_steps, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    status, got = run_steps(
        Step("one", "echo fine", 200),
        Step("two", "echo broken here; false", 200),
        Step("three", "true", 200, ("two",)),
        Step("four", "echo fine", 200, ("one",)),
    )
    assert status == 1
    assert got == {"one": "passed", "two": "FAILED", "three": "LEFT OUT", "four": "passed"}
    assert "broken here" in (tmp_path / "table.txt").read_text()
    assert "broken here" in (tmp_path / "log.txt").read_text()
    assert json.loads((tmp_path / "result.json").read_text())["commit"] == "abc"


def test_a_hanging_step_is_stopped_with_its_children(run_steps) -> None:  # type: ignore[no-untyped-def]
    status, got = run_steps(Step("hangs", "sleep 60 & sleep 60", 1), Step("next", "true", 200))
    assert status == 1
    assert got == {"hangs": "TIMED OUT", "next": "passed"}


def test_what_the_machine_cannot_run_is_not_called_passed(run_steps, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    status, got = run_steps(
        Step(
            "checker",
            "echo '========= Error: Device not supported.'; echo '========= Program hit error 999'; exit 1",
            200,
        ),
        Step("server", "echo packages are missing; exit 77", 200),
    )
    assert status == 0
    assert got == {"checker": "not available", "server": "not available"}
    table = (tmp_path / "table.txt").read_text()
    assert "Device not supported" in table
    assert "packages are missing" in table


def test_a_finding_counts_where_the_checker_failed_too(run_steps) -> None:  # type: ignore[no-untyped-def]
    finding = "========= Invalid __global__ read of size 4 bytes"
    step = Step("checker", f"echo '========= Internal Sanitizer Error: no'; echo '{finding}'; exit 9", 200)
    assert run_steps(step) == (1, {"checker": "FAILED"})


def test_skipped_steps_are_named(run_steps, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    steps = (Step("make 8b", "false", 200), Step("model, 8b", "false", 200, ("make 8b",)), Step("other", "true", 200))
    status, got = run_steps(*steps, options=("--skip", "make 8b"))
    assert status == 0
    assert got == {"make 8b": "skipped", "model, 8b": "skipped", "other": "passed"}
    with pytest.raises(SystemExit):
        run_steps(*steps, options=("speeds",))
    assert "speeds: no such part" in capsys.readouterr().err


def test_a_build_that_is_there_is_not_made_again(run_steps) -> None:  # type: ignore[no-untyped-def]
    steps = (gpu_run.BUILD, Step("ops", "true", 200, ("build",)))
    assert run_steps(*steps, options=("--no-build",)) == (0, {"ops": "passed"})


def test_measured_rows_reach_table_and_json(run_steps, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    rows = json.dumps({"table": ["row one 42"]})
    step = Step("speed", f"echo '{rows.replace('{', '{{').replace('}', '}}')}' > {{json}}", 200)
    for out in (tmp_path, tmp_path / "with a blank"):
        status, _ = run_steps(step, out=out)
        assert status == 0
        assert "row one 42" in (out / "table.txt").read_text()
        assert json.loads((out / "result.json").read_text())["steps"][0]["measured"]["table"] == ["row one 42"]
        assert not (out / "step.json").exists()


def test_every_command_names_only_what_is_filled_in() -> None:
    names = dict.fromkeys(("tiny", "small", "large", "architecture", "quick", "lengths", "json"), "x")
    for part, steps in gpu_run.PARTS.items():
        earlier: set[str] = set()
        for step in steps:
            step.command.format(**names)
            assert set(step.needs) <= earlier, f"{part}: {step.name} needs a step that does not come before it"
            earlier.add(step.name)


def info_8b() -> EngineInfo:
    values = dict.fromkeys(EngineInfo.__annotations__, 0)
    values |= {"hidden": 4096, "n_layers": 36, "n_kv_heads": 8, "head_dim": 128, "vocab": 151936}
    return EngineInfo(**{**values, "n_parameters": 8_190_735_360, "tied": False})  # type: ignore[arg-type]


@pytest.mark.parametrize(("n", "bar"), [(8, 4.02), (32, 4.49), (64, 5.10), (128, 6.34), (256, 10.9)])
def test_the_bar_of_batched_decode_is_the_issues(n: int, bar: float) -> None:
    row = speed.Row("decode", n, 448, 128)
    assert speed.bar(row, info_8b(), "8b") == pytest.approx(bar, rel=0.005)


def test_ratios_are_above_one_where_we_are_better() -> None:
    info = info_8b()
    assert speed.result(speed.Row("decode", 1, 128, 256), 3.0, info, "8b")["ratio"] == pytest.approx(3.80 / 3.0)
    row = speed.result(speed.Row("throughput", 32, 128, 128), 2 * 4977, info, "8b")
    assert row["ratio"] == row["ratio_vllm"] == pytest.approx(2.0)
    assert speed.result(speed.Row("prefill", 1, 512, 1), 1.0, info, "8b")["ratio"] is None


def test_serve_rows_asks_for_all_that_a_server_needs() -> None:
    project = tomllib.loads((GPU.parents[1] / "pyproject.toml").read_text())["project"]
    needed = {re.split("[=<>]", requirement)[0].replace("-", "_") for requirement in project["dependencies"]}
    others = {"prompt_toolkit", "rich", "pygments", "httpx2", "huggingface_hub"}  # of chat and of models by name
    assert set(serve_rows.PACKAGES) == needed - others
