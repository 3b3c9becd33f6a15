"""The training script as it is called: the whole way from nothing to a directory that the engine opens."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from demo.corpus import RECIPE

from qwen3app.abi import EngineOptions
from qwen3app.runtime.loaded_model import LoadedModel

ROOT = Path(__file__).resolve().parents[4]
SCRIPT = [sys.executable, str(ROOT / "build_tools" / "train_demo.py")]


def test_the_script_writes_a_model_that_the_engine_opens(tokenizer_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    tokenizer = str(tokenizer_dir / "tokenizer.json")
    few = ["--small", "--steps", "2", "--rows", "1", "--threads", "1", "--workers", "1"]
    result = subprocess.run(
        [*SCRIPT, "--out", str(out), "--tokenizer", tokenizer, *few], cwd=tmp_path, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert "2 steps" in result.stdout
    assert {path.name for path in out.iterdir()} == {
        "chat_template.jinja", "config.json", "generation_config.json", "loss.csv", "loss.svg", "model.safetensors",
        "tokenizer.json", "tokenizer_config.json", "training.json",
    }  # fmt: skip
    assert (out / "model.safetensors").stat().st_mode & 0o777 == 0o644
    training = json.loads((out / "training.json").read_text(encoding="utf-8"))
    assert (training["steps"], training["tokens"], training["recipe"]) == (2, 2 * 512, RECIPE)
    assert str(tmp_path) not in json.dumps(training)  # the log says nothing of the machine's folders
    loaded = LoadedModel.load(out, EngineOptions(device="cpu", threads=1))
    loaded.close()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--tokenizer", "missing.json"],
            "train_demo: missing.json does not exist; --tokenizer takes a tokenizer.json",
        ),
        (["--rows", "0"], "train_demo: --rows is 0, expected 1 or more"),
        (["--seconds", "-1"], "train_demo: --seconds is -1, expected more than 0"),
    ],
)
def test_wrong_arguments_get_one_sentence(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    result = subprocess.run([*SCRIPT, "--out", "model", *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr == f"{sentence}\n"
    assert not (tmp_path / "model").exists()
