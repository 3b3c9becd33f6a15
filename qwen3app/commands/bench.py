"""`qwen3-8b bench`: how fast a model reads prompts and writes answers here, and what share of the device that is.

Owns the tests (one prompt per length; decode of as many sequences as each batch size says), their repeats, and the
forms of the result. Timing and costs are in workload.py. One line per test, in llama-bench's spirit. The numbers go to
stdout, progress to stderr.
"""

from __future__ import annotations

import argparse
import csv
import io
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from qwen3app.argument_types import whole_number
from qwen3app.commands.format import format_count, print_json
from qwen3app.commands.measuring import (
    add_measuring_arguments,
    backend_name,
    check_room,
    check_writable,
    described,
    measured_engine,
    result_file,
    whole_numbers,
)
from qwen3app.settings import resolve_model_dir
from qwen3app.sizes import format_bytes

if TYPE_CHECKING:
    from qwen3app.abi.engine import Engine
    from qwen3app.abi.types import EngineInfo, EnginePeaks
    from qwen3app.commands.workload import Cost

FORMATS = ("table", "markdown", "json", "csv")
_MOST_TOKENS, _MOST_SEQUENCES = 1 << 20, 4096


@dataclass(frozen=True)
class Defaults:
    """What suits a device when the flags do not say."""

    prompts: tuple[int, ...]
    batches: tuple[int, ...]
    context: int
    output: int


CPU = Defaults(prompts=(128, 512), batches=(1, 4), context=128, output=32)
GPU = Defaults(prompts=(512, 2048), batches=(1, 8, 64), context=512, output=128)


@dataclass(frozen=True)
class Test:
    """One line of the result, before it is measured."""

    kind: str  # prefill, decode
    n_sequences: int
    n_tokens: int  # of each prompt; for decode the context before the first measured step
    n_steps: int  # decode: steps measured

    @property
    def name(self) -> str:
        return f"prefill {self.n_tokens}" if self.kind == "prefill" else f"decode {self.n_sequences} x {self.n_tokens}"


def add_bench_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("measurement")
    tokens = whole_numbers(1, _MOST_TOKENS)
    group.add_argument(
        "--prompt",
        type=tokens,
        metavar="N,...",
        help="lengths of prompts to read "
        f"(default: {_listed(GPU.prompts)} on a GPU, {_listed(CPU.prompts)} on the CPU)",
    )
    group.add_argument(
        "--batch",
        type=whole_numbers(1, _MOST_SEQUENCES),
        metavar="N,...",
        help="sequences that write at once "
        f"(default: {_listed(GPU.batches)} on a GPU, {_listed(CPU.batches)} on the CPU)",
    )
    group.add_argument(
        "--context",
        type=whole_number(1, _MOST_TOKENS),
        metavar="N",
        help=f"tokens that each of them has read before (default: {GPU.context} on a GPU, {CPU.context} on the CPU)",
    )
    group.add_argument(
        "--output",
        type=whole_number(1, _MOST_TOKENS),
        metavar="N",
        help=f"tokens that each of them writes (default: {GPU.output} on a GPU, {CPU.output} on the CPU)",
    )
    group.add_argument(
        "--repeat",
        type=whole_number(1, 1000),
        default=3,
        metavar="N",
        help="runs of each test, after one to warm up (default: 3)",
    )
    group.add_argument("--format", choices=FORMATS, default="table", help="what is printed (default: table)")
    group.add_argument("--json", type=Path, metavar="FILE", help="write the result there as JSON too")
    add_measuring_arguments(parser)


def _listed(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))


def plan(args: argparse.Namespace, info: EngineInfo) -> list[Test]:
    """The tests that flags and device ask for; a default that does not fit the model's context is left out."""
    defaults = CPU if info.device == "cpu" else GPU
    context, output = args.context or defaults.context, args.output or defaults.output
    prompts = args.prompt or [n for n in defaults.prompts if n < info.max_context]
    tests = [Test("prefill", 1, n, 0) for n in prompts]
    return tests + [Test("decode", n, context, output) for n in args.batch or defaults.batches]


def check(test: Test, info: EngineInfo) -> None:
    from qwen3app.commands.workload import prefill_steps

    spare = prefill_steps([[0] * test.n_tokens] * test.n_sequences, info) if test.kind == "decode" else 0
    check_room(info, test.n_sequences, test.n_tokens + 1 + test.n_steps + spare)


@dataclass(frozen=True)
class Measured:
    test: Test
    seconds: list[float]  # of the prompt, or of a step, per run
    n_tokens: int  # read or written in that time
    cost: Cost


def measure(engine: Engine, info: EngineInfo, test: Test, repeat: int) -> Measured:
    """One run to warm up, then `repeat` runs."""
    from qwen3app.commands import workload

    seconds: list[float] = []
    context = 0.0
    for i in range(repeat + 1):
        prompts = workload.random_prompts(test.n_sequences, test.n_tokens, info.vocab, seed=i)
        if test.kind == "prefill":
            taken = workload.time_prefill(engine, prompts)
        else:
            decode = workload.time_decode(engine, prompts, test.n_steps)
            taken, context = decode.seconds, decode.mean_context
        if i > 0:
            seconds.append(taken)
    if test.kind == "prefill":
        return Measured(test, seconds, test.n_tokens, workload.prefill_cost(info, test.n_tokens))
    return Measured(test, seconds, test.n_sequences, workload.decode_cost(info, test.n_sequences, context))


def best_of(a: EnginePeaks, b: EnginePeaks) -> EnginePeaks:
    """Measured before and after the tests: what other programs take of the device shows in one, but rarely in both."""
    return replace(
        a,
        read_bytes_per_second=max(a.read_bytes_per_second, b.read_bytes_per_second),
        flops_per_second=max(a.flops_per_second, b.flops_per_second),
    )


def _row(measured: Measured, peaks: EnginePeaks) -> dict[str, Any]:
    test, seconds, cost = measured.test, measured.seconds, measured.cost
    median = statistics.median(seconds)
    return {
        "test": test.name,
        "kind": test.kind,
        "n_sequences": test.n_sequences,
        "n_tokens": test.n_tokens,
        "n_steps": test.n_steps,
        "seconds": seconds,
        "median_seconds": median,
        "tokens_per_second": measured.n_tokens / median,
        "tokens_per_second_min": measured.n_tokens / max(seconds),
        "tokens_per_second_max": measured.n_tokens / min(seconds),
        "bytes_per_second": cost.bytes / median,
        "bandwidth_share": cost.bytes / median / peaks.read_bytes_per_second,
        "flops_per_second": cost.flops / median,
        "flops_share": cost.flops / median / peaks.flops_per_second,
    }


def run_bench(args: argparse.Namespace, stdout: TextIO | None = None, stderr: TextIO | None = None) -> int:
    """Measures and prints. Raises UsageError for what cannot be measured."""
    stdout, stderr = stdout or sys.stdout, stderr or sys.stderr
    note = _progress(stderr)
    check_writable(args.json)
    with measured_engine(args, max(args.batch or GPU.batches)) as (engine, info):
        tests = plan(args, info)
        for test in tests:
            check(test, info)
        note("the device's peaks")
        before = engine.measure_peaks()
        measured = []
        for test in tests:
            note(test.name)
            measured.append(measure(engine, info, test, args.repeat))
        note("the device's peaks")
        peaks = best_of(before, engine.measure_peaks())
        note("")
        result = described(resolve_model_dir(args.model), info)
        result["peaks"] = asdict(peaks)
        result["tests"] = [_row(one, peaks) for one in measured]
        backend = backend_name(info)
    try:
        if args.json is not None:
            with result_file(args.json) as file:
                print_json(result, file)
    finally:  # what was measured is shown, also where the disk is full
        if args.format == "json":
            print_json(result, stdout)
        else:
            stdout.write(WRITERS[args.format](result, backend))
    return 0


def _progress(stderr: TextIO) -> Callable[[str], None]:
    if not stderr.isatty():
        return lambda what: None

    def show(what: str) -> None:
        stderr.write(f"\r{f'Measuring {what}' if what else ''}\x1b[K")
        stderr.flush()

    return show


# The texts first, then the numbers.
TEXTS = ("model", "size", "params", "backend", "test")
COLUMNS = (*TEXTS, "tok/s", "spread", "ms", "GB/s", "of read", "TFLOP/s", "of peak")


def cells(result: dict[str, Any], backend: str) -> list[tuple[str, ...]]:
    """The result as text, one tuple per test."""
    model = result["model"]
    rows: list[tuple[str, ...]] = []
    for test in result["tests"]:
        low, high, mid = (test["tokens_per_second" + end] for end in ("_min", "_max", ""))
        rows.append(
            (
                model["name"],
                format_bytes(model["weight_bytes"]),
                format_count(model["parameters"]),
                backend,
                test["test"],
                f"{mid:.1f}",
                f"±{50 * (high - low) / mid:.1f}%" if len(test["seconds"]) > 1 else "",
                f"{1e3 * test['median_seconds']:.3f}",
                f"{test['bytes_per_second'] / 1e9:.1f}",
                f"{test['bandwidth_share']:.0%}",
                f"{test['flops_per_second'] / 1e12:.3g}",
                f"{test['flops_share']:.0%}",
            )
        )
    return rows


def to_table(result: dict[str, Any], backend: str) -> str:
    rows = [COLUMNS, *cells(result, backend)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    lines = []
    for row in rows:
        aligned = [f"{row[i]:{'<' if i < len(TEXTS) else '>'}{width}}" for i, width in enumerate(widths)]
        lines.append("  ".join(aligned).rstrip())
    peaks, names = result["peaks"], result["backend"]
    lines.append(
        f"\nPeaks of {names['device_name']} in this run: reading {peaks['read_bytes_per_second'] / 1e9:.1f} GB/s, "
        f"multiplying {peaks['flops_per_second'] / 1e12:.3g} TFLOP/s ({peaks['flops_of']})."
    )
    lines.append("ms: of the whole prompt, or of one decode step. Spread: half of the range over the median.")
    if any(test["bandwidth_share"] > 1 for test in result["tests"]):
        lines.append("More than 100% of read: weights and keys stay in the caches, or the device is not ours alone.")
    return "\n".join(lines) + "\n"


def to_markdown(result: dict[str, Any], backend: str) -> str:
    lines = [COLUMNS, tuple("---" if i < len(TEXTS) else "---:" for i in range(len(COLUMNS))), *cells(result, backend)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def to_csv(result: dict[str, Any], backend: str) -> str:
    text = io.StringIO()
    fields = [key for key in result["tests"][0] if key != "seconds"] if result["tests"] else []
    writer = csv.DictWriter(text, ["model", "backend", *fields], extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for test in result["tests"]:
        writer.writerow({"model": result["model"]["name"], "backend": backend, **test})
    return text.getvalue()


WRITERS = {"table": to_table, "markdown": to_markdown, "csv": to_csv}
