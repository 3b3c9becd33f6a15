"""The demo's evaluation: the shares of its table, its bars, its card, and a whole run with the engine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import evaluate_demo
import pytest
import torch
from demo.check import Reply
from demo.corpus import RECIPE
from demo.export import write_model
from demo.model import DemoModel, DemoShape
from demo.sample import Sample
from evaluate_demo import ROOT, Judged, bar_results, scores, table, verdict, with_scores
from patience import PATIENCE
from tokenizers import Tokenizer


def judged(kind: str, thinking: bool, wrong: str | None = None, protocol: str | None = None) -> Judged:
    return Judged(Sample(kind, [], thinking), Reply(), protocol, wrong)


SOME = [
    judged("add, two digits", True),
    judged("add, two digits", False, "expected '3'"),
    judged("subtract, two digits", True),
    judged("subtract, two digits", True),
    judged("tool calls", False, None, "ends with length"),
]


def test_shares_per_kind() -> None:
    assert scores(SOME)["add, two digits"] == {
        "n": 2, "right": 0.5, "right_thinking": 1.0, "right_not_thinking": 0.0, "well_formed": 1.0,
    }  # fmt: skip
    assert scores(SOME)["subtract, two digits"]["right_not_thinking"] is None
    assert scores(SOME)["tool calls"]["well_formed"] == 0.0


def test_bars_put_their_kinds_together() -> None:
    assert [(bar.name, share) for bar, share in bar_results(SOME)] == [
        ("protocol well-formed", 0.8),
        ("right tool and valid arguments", 1.0),
        ("two-digit add and subtract", 0.75),
    ]
    assert bar_results(SOME[:1])[1][1] == 0.0  # nothing asked is not passed


def test_only_all_of_them_are_100_percent() -> None:
    many = [judged("tool calls", True)] * 9_999 + [judged("tool calls", True, "wrong")]
    assert "| right tool and valid arguments | 95.0% | 99.9% |" in table({}, bar_results(many))
    assert "| right tool and valid arguments | 95.0% | 100.0% |" in table({}, bar_results(many[:-1]))
    assert "| right tool and valid arguments | 95.0% | 56.9% |" not in table(
        {}, bar_results(many[:57] + many[-1:] * 43)
    )


def test_the_table_and_the_card() -> None:
    text = table(scores(SOME), bar_results(SOME))
    assert "| add, two digits | 2 | 50.0% | 100.0% | 0.0% | 100.0% |" in text.splitlines()
    assert "| two-digit add and subtract | 95.0% | 75.0% |" in text.splitlines()
    card = "Scores\n\n<!-- scores -->\nold\n<!-- /scores -->\n\nEnd\n"
    assert with_scores(card, text) == f"Scores\n\n<!-- scores -->\n{text}\n<!-- /scores -->\n\nEnd\n"
    assert with_scores(with_scores(card, "x"), text) == with_scores(card, text)
    with pytest.raises(ValueError, match="marks"):
        with_scores("no marks", text)


def test_the_last_word_is_whether_the_card_knows(tmp_path: Path) -> None:
    protocol, _, sums = evaluate_demo.BARS
    card = tmp_path / "README.md"
    assert verdict([], card) == "every bar is reached."
    assert verdict([(protocol, 1959 / 1960)], card) == f"this is not what {card} says."
    card.write_text("| protocol well-formed | 100.0% | 99.9% |\n| two-digit add and subtract | 95.0% | 90.0% |\n")
    known = f"{card} has this table: it is known that {{}} missed, by so much. The exit code is 1 all the same."
    assert verdict([(protocol, 1959 / 1960)], card) == known.format("one bar is")
    assert verdict([(protocol, 1959 / 1960), (sums, 0.9)], card) == known.format("2 bars are")
    assert verdict([(protocol, 1958 / 1960)], card) == f"this is not what {card} says."


def test_it_needs_no_test_tools() -> None:
    """It runs with what the program, the build and the group `evaluation` install."""
    outside = (
        "torch",
        "safetensors",
        "transformers",
        "pytest",
        "openai",
        "hypothesis",
        "psutil",
        "playwright",
        "httpx",
    )
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({outside}))\n"
        "sys.path.insert(0, 'build_tools'); import evaluate_demo; evaluate_demo.main(['--each', '1'])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert "| tool calls, late | " in done.stdout and done.stderr.startswith("evaluate_demo: ")


def test_a_random_model_is_asked_and_fails(
    tokenizer_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = DemoShape(vocab=1_024, hidden=64, intermediate=64, layers=1, heads=1, kv_heads=1)
    tokenizer = Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json"))
    torch.manual_seed(0)
    write_model(DemoModel(shape, 0), tokenizer, tmp_path / "model")
    out = tmp_path / "scores.json"
    arguments = ["--model", str(tmp_path / "model"), "--each", "1", "--json", str(out), "--show", "1", "--threads", "1"]
    assert evaluate_demo.main(arguments) == 1
    written = json.loads(out.read_text(encoding="utf-8"))
    assert written["bars"]["two-digit add and subtract"] == {"asked": 0.95, "reached": 0.0}
    assert written["kinds"]["add, two digits"]["n"] == 1
    said = capsys.readouterr()
    assert "| protocol well-formed | 100.0% | " in said.out
    assert "evaluate_demo: missed the bar, two-digit add and subtract: 0.0% of 95.0%" in said.err
    assert "add, two digits: " in said.err
    assert said.err.endswith(f"evaluate_demo: this is not what {tmp_path / 'model' / 'README.md'} says.\n")
    assert f"trained by recipe 1, this asks by recipe {RECIPE}: it may have seen some questions" in said.err


def test_the_number_of_the_recipe_is_in_the_log(tmp_path: Path) -> None:
    assert evaluate_demo.recipe_of(tmp_path) == 1
    (tmp_path / "training.json").write_text('{"steps": 3}', encoding="utf-8")
    assert evaluate_demo.recipe_of(tmp_path) == 1
    (tmp_path / "training.json").write_text('{"recipe": 7}', encoding="utf-8")
    assert evaluate_demo.recipe_of(tmp_path) == 7


def test_a_missing_model_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate_demo.main(["--model", str(tmp_path / "none")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("evaluate_demo: There is no model directory")
    assert said.count("\n") == 1
