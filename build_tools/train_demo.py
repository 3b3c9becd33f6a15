"""Trains qwen3-demo, the small model in the box, and writes it as a Qwen3 directory with its log.

    python build_tools/train_demo.py --out models/qwen3-demo                 # an NVIDIA GPU, 400 s
    python build_tools/train_demo.py --out /tmp/try --small --seconds 600    # a CPU: to see that it learns

Needs torch, numpy, tokenizers, jinja2 and safetensors; no network and no file outside the repository. The training text
is made while it trains (build_tools/demo/ has the recipes). evaluate_demo.py measures the result with the engine.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

BEGIN = time.perf_counter()


def _refusal(options: argparse.Namespace) -> str | None:
    """What is wrong with the arguments."""
    if options.tokenizer and not options.tokenizer.is_file():
        return f"{options.tokenizer} does not exist; --tokenizer takes a tokenizer.json"
    if not options.seconds > 0:
        return f"--seconds is {options.seconds:g}, expected more than 0"
    for flag, least in (("steps", 0), ("rows", 1), ("workers", 0), ("threads", 1)):
        value = getattr(options, flag)
        if value is not None and value < least:
            return f"--{flag} is {value}, expected {least} or more"
    return None


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Trains the demo model and writes it as a Qwen3 directory.")
    parser.add_argument("--out", required=True, type=Path, help="directory to write; made if missing")
    parser.add_argument(
        "--seconds", type=float, default=400.0, help="time for all but the export (default %(default)s)"
    )
    parser.add_argument("--steps", type=int, default=0, help="this many steps instead, whatever time they take")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, help="rows of one step (default 64)")
    parser.add_argument("--workers", type=int, default=0, help="processes that make text (default: all cores but two)")
    parser.add_argument("--threads", type=int, help="threads of torch on the CPU")
    parser.add_argument("--tokenizer", type=Path, metavar="FILE", help="take this tokenizer.json, train none")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    parser.add_argument("--small", action="store_true", help="a fifth of the size and short rows: for trying on a CPU")
    options = parser.parse_args(arguments)
    if sentence := _refusal(options):
        print(f"train_demo: {sentence}", file=sys.stderr)
        return 1
    # Late: the processes that make text import this file too, and need no torch.
    import torch
    from demo.export import write_model
    from demo.model import DemoShape
    from demo.stream import TrainOptions
    from demo.train import Trainer, load_tokenizer, write_log

    if options.threads:
        torch.set_num_threads(options.threads)
    shape, run = DemoShape(), TrainOptions(options.seconds, options.steps, options.seed)
    if options.small:
        shape = replace(shape, hidden=128, intermediate=256, layers=4, heads=2)
        run = replace(run, rows=8, length=512, shard_rows=128, tokenizer_samples=20_000)
    run = replace(run, rows=options.rows or run.rows, workers=options.workers, compile=not options.no_compile)
    trainer = Trainer(shape, run, BEGIN)
    tokenizer = load_tokenizer(options.tokenizer) if options.tokenizer else trainer.train_tokenizer()
    head = trainer.run(tokenizer)
    # The model first: what it scores can be found out later too.
    size = write_model(trainer.model, tokenizer, options.out)
    write_log(options.out, head, trainer.log)
    head["held_out"] = trainer.held_out(tokenizer, 2 if options.small else 40)
    write_log(options.out, head, trainer.log)
    print(
        f"{time.perf_counter() - BEGIN:6.1f} s  {head['steps']} steps, {head['tokens'] / 1e6:.0f} M tokens, "
        f"{size / 1e6:.2f} MB in {options.out}",
        flush=True,
    )
    for kind, scores in head["held_out"].items():
        print(f"  {kind:32} loss {scores['loss']:.3f}  to the letter {scores['exact']:.0%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
