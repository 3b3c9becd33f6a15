"""Builds of the library against each other on one device, in turns: speed of decode and prefill, and equal tokens.

    python tests/gpu/compare.py MODEL_DIR A.so B.so ... [--batches 1,8,64] [--context 448] [--steps 47] [--turns 2]
        [--prefill 16x2048] [--kernels auto] [--device cuda:0]

Cards of one kind differ by 5%, and one card drifts by 1 to 2% within minutes, so a claim of speed is a ratio of one
run. In each turn every library runs in a process of its own, one after another; a row's best turn counts. Decode is in
milliseconds per step (one sequence: after 128 tokens), prefill in tok/s, and a ratio above 1 is better than the first
library. All is greedy, so the libraries must agree in every token: exit status 1 if they do not, or if one fails.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))
from speed import OPTIONS, Engine, Row, play

from qwen3app.argument_types import whole_number
from qwen3app.commands.measuring import whole_numbers
from qwen3app.errors import AppError


class Result(NamedTuple):
    value: float
    digest: str  # of all tokens


def prompts_and_tokens(text: str) -> tuple[int, int]:
    """argparse type of 16x2048."""
    match = re.fullmatch(r"([1-9]\d{0,2})x([1-9]\d{0,4})", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"must be prompts x tokens, as 16x2048, not {text!r}")
    return int(match[1]), int(match[2])


def rows_of(batches: list[int], context: int, steps: int, prefill: tuple[int, int] | None) -> list[Row]:
    rows = [Row("decode", n, 128 if n == 1 else context, steps + 1) for n in batches]
    return rows if prefill is None else [*rows, Row("prefill", *prefill, 1)]


def measure(model: str, rows: list[Row], device: str, kernels: str) -> dict[str, Result]:
    """This process's library (QWEN3_LIBRARY) in one turn."""
    longest = max(row.n_prompt + row.n_output for row in rows)
    options = replace(OPTIONS, device=device, kernels=kernels, max_context=min(OPTIONS.max_context, longest + 1))
    results = {}
    with Engine.open(model, options) as engine:
        vocab = engine.info().vocab
        for row in rows:
            play(engine, replace(row, n_output=min(row.n_output, 6)), vocab)  # loads kernels, records steps
            answers: list[list[int]] = []
            value = play(engine, row, vocab, answers)
            results[row.name] = Result(value, hashlib.sha256(repr(answers).encode()).hexdigest()[:12])
    return results


def best(row: Row, results: list[Result]) -> float:
    values = [result.value for result in results]
    return max(values) if row.kind == "prefill" else min(values)


def table(rows: list[Row], libraries: list[str], turns: list[list[dict[str, Result]]]) -> tuple[list[str], bool]:
    """turns[t][l]: what library l did in turn t. Returns the lines, and whether all tokens are equal."""
    lines = ["".join([f"{'row':34s}", *(f"{Path(library).stem[:18]:>20s}" for library in libraries)])]
    all_equal = True
    for row in rows:
        values = [best(row, [turn[i][row.name] for turn in turns]) for i in range(len(libraries))]
        places = 0 if row.kind == "prefill" else 3
        cells = [f"{values[0]:20,.{places}f}"]
        for value in values[1:]:
            ratio = value / values[0] if row.kind == "prefill" else values[0] / value
            cells.append(f"{value:12,.{places}f} x {ratio:.3f}")
        digests = {result[row.name].digest for turn in turns for result in turn}
        all_equal &= len(digests) == 1
        lines.append(f"{row.name:34s}{''.join(cells)}{'' if len(digests) == 1 else '   TOKENS DIFFER'}")
    return lines, all_equal


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("libraries", nargs="+", metavar="LIBRARY")
    parser.add_argument("--batches", type=whole_numbers(1, OPTIONS.max_slots), default=[1, 8, 32, 64, 128, 256])
    parser.add_argument("--context", type=whole_number(1, 32_000), default=448, help="tokens of each prompt")
    parser.add_argument("--steps", type=whole_number(1, 1000), default=47)
    parser.add_argument("--turns", type=whole_number(1, 100), default=2)
    parser.add_argument("--prefill", type=prompts_and_tokens, metavar="PROMPTSxTOKENS", help="a row of prompts too")
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--one-turn", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    rows = rows_of(arguments.batches, arguments.context, arguments.steps, arguments.prefill)
    if arguments.one_turn:
        try:
            print(json.dumps(measure(arguments.model, rows, arguments.device, arguments.kernels)))
        except AppError as error:
            raise SystemExit(f"compare: {error}") from None
        return 0
    missing = [library for library in arguments.libraries if not Path(library).is_file()]
    if missing:
        raise SystemExit(f"compare: {missing[0]} is not a file; give the paths of two builds of libqwen3.so.")
    turns: list[list[dict[str, Result]]] = []
    for _ in range(arguments.turns):
        turns.append([])
        for library in arguments.libraries:
            child = subprocess.run(
                [sys.executable, __file__, *sys.argv[1:], "--one-turn"],
                env={**os.environ, "QWEN3_LIBRARY": str(Path(library).resolve())},
                stdout=subprocess.PIPE,
                text=True,
                check=False,
            )
            if child.returncode != 0:
                raise SystemExit(f"compare: the run of {library} failed; its words are above.")
            turns[-1].append({name: Result(*pair) for name, pair in json.loads(child.stdout).items()})
    lines, all_equal = table(rows, arguments.libraries, turns)
    print("\n".join(lines))
    if not all_equal:
        print("compare: the libraries do not agree in every token.", file=sys.stderr)
    return 0 if all_equal else 1


if __name__ == "__main__":
    sys.exit(main())
