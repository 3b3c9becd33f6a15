"""Measures where the demo model's knowledge ends: questions of forms that it was trained on, and one step beyond.

    python build_tools/probe_demo.py --card qwen3app/qwen3-demo/README.md

Owns the table. What is asked comes from demo/wordings.py, what is right from demo/check.py, the answers from the engine
as in evaluate_demo.py. There are no bars: it is what the card tells of the model's limits.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from demo.wordings import GROUPS
from evaluate_demo import ROOT, Judged, judge_model, with_scores

from qwen3app.abi import EngineOptions
from qwen3app.errors import AppError


def table(judged: Sequence[Judged]) -> str:
    """Markdown: known forms first, the best of each part first. Shares are rounded down: 100% is all of them."""
    lines = ["| asked | for example | trained on | right |", "|---|---|---|---|"]
    rows = []
    for group in GROUPS:
        items = [item for item in judged if item.sample.kind == group.name]
        rows.append(
            (group, items[0].sample.messages[0]["content"], sum(item.wrong is None for item in items) / len(items))
        )
    for group, example, share in sorted(rows, key=lambda row: (not row[0].known, -row[2])):
        lines.append(
            f"| {group.name} | {example} | {'yes' if group.known else 'no'} | {math.floor(share * 100 + 1e-6)}% |"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Asks the demo model in forms that it knows and one step beyond.")
    parser.add_argument("--model", type=Path, default=ROOT / "qwen3app" / "qwen3-demo", help="default: %(default)s")
    parser.add_argument("--each", type=int, default=60, help="questions of each form (default %(default)s)")
    parser.add_argument("--card", type=Path, metavar="FILE", help="put the table into this model card")
    options = parser.parse_args(arguments)
    samples = [sample for group in GROUPS for sample in group.samples(options.each)]
    engine_options = EngineOptions(device="cpu", max_slots=64, max_queue=len(samples))
    try:
        judged = judge_model(options.model, engine_options, samples)
    except AppError as error:
        print(f"probe_demo: {error}", file=sys.stderr)
        return 1
    text = table(judged)
    print(text)
    if options.card:
        card = options.card.read_text(encoding="utf-8")
        options.card.write_text(with_scores(card, text, "limits"), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
