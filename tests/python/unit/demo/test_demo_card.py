"""The demo model in the repository is what its card, its log and the issue's limits say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import evaluate_demo
import pytest
from demo.corpus import RECIPE
from safetensors import safe_open

from qwen3app.settings import DEMO_MODEL

CARD = (DEMO_MODEL / "README.md").read_text(encoding="utf-8")


def test_it_is_small_and_its_log_is_of_these_weights() -> None:
    weights = DEMO_MODEL / "model.safetensors"
    assert weights.stat().st_size <= 12_000_000
    log = json.loads((DEMO_MODEL / "training.json").read_text(encoding="utf-8"))
    with safe_open(weights, "np") as file:
        shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118 - it is no dictionary
        types = {file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    assert types == {"BF16"}
    assert sum(shape[0] * (shape[1] if len(shape) > 1 else 1) for shape in shapes) == log["parameters"]
    rows = (DEMO_MODEL / "loss.csv").read_text(encoding="utf-8").splitlines()[1:]
    losses = [float(row.split(",")[-1]) for row in rows]
    assert losses[0] > 8 and losses[-1] < 0.1 and abs(losses[-1] - log["final_loss"]) < 0.01


def test_the_card_has_the_bars() -> None:
    for bar in evaluate_demo.BARS:
        assert re.search(rf"^\| {bar.name} \| {bar.share:.1%} \| [\d.]+% \|$", CARD, flags=re.MULTILINE), bar.name
    assert "![the loss falls](loss.svg)" in CARD and (DEMO_MODEL / "loss.svg").is_file()


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json"])
def test_its_control_tokens_have_ids_of_their_own(name: str) -> None:
    """Nothing may take the official ids for granted."""
    assert not re.search(r"\b15[01]\d{3}\b", (DEMO_MODEL / name).read_text(encoding="utf-8"))


@pytest.mark.skipif(evaluate_demo.recipe_of(DEMO_MODEL) != RECIPE, reason="trained by another recipe: train it again")
def test_the_bars_hold_on_a_few_of_the_questions(tmp_path: Path) -> None:
    """`make demo-eval` asks ten times as many."""
    scores = tmp_path / "scores.json"
    evaluate_demo.main(["--each", "4", "--json", str(scores)])
    reached = {name: bar["reached"] for name, bar in json.loads(scores.read_text(encoding="utf-8"))["bars"].items()}
    assert reached["right tool and valid arguments"] >= 0.95 and reached["two-digit add and subtract"] >= 0.95
    assert reached["protocol well-formed"] >= 0.99
