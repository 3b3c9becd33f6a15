"""`qwen3-8b profile`: where the time of a prompt and of a decode step goes, per op and per layer.

Owns the two measurements, the summary per op, and the forms of the result: a table, JSON, and a Chrome trace. The times
are the engine's (qwen3_profile_step); on a GPU ops are then kept apart, so that such a step takes longer than one of a
request: both are printed. The table goes to stdout.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from qwen3app.argument_types import whole_number
from qwen3app.commands.format import print_json
from qwen3app.commands.measuring import (
    add_measuring_arguments,
    backend_name,
    check_room,
    check_writable,
    described,
    interruptible,
    measured_engine,
    result_file,
)
from qwen3app.settings import resolve_model_dir

if TYPE_CHECKING:
    from qwen3app.abi.engine import Engine
    from qwen3app.abi.types import EngineInfo, StepProfile

_MOST_TOKENS = 1 << 20
OUTSIDE = -1  # the layer of ops that belong to none


@dataclass(frozen=True)
class Phase:
    """What one table is about: the steps of a prompt, or one decode step."""

    kind: str  # prefill, decode
    title: str
    steps: list[StepProfile]


def add_profile_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("measurement")
    tokens = whole_number(1, _MOST_TOKENS)
    group.add_argument("--prompt", type=tokens, default=512, metavar="N", help="length of the prompt (default: 512)")
    group.add_argument(
        "--batch", type=whole_number(1, 4096), default=1, metavar="N", help="sequences of the decode step (default: 1)"
    )
    group.add_argument(
        "--context", type=tokens, default=512, metavar="N", help="tokens that each of them has before (default: 512)"
    )
    group.add_argument(
        "--repeat",
        type=whole_number(1, 1000),
        default=5,
        metavar="N",
        help="runs of each step, of which the median is shown (default: 5)",
    )
    group.add_argument("--trace", type=Path, metavar="FILE", help="write a trace for chrome://tracing or Perfetto")
    group.add_argument("--json", type=Path, metavar="FILE", help="write the summary as JSON")
    add_measuring_arguments(parser)


def profile_prefill(engine: Engine, info: EngineInfo, n_tokens: int, repeat: int) -> Phase:
    """One prompt, in steps of the token budget as requests have it."""
    from qwen3app.abi.types import ProfileSpec

    steps = [
        engine.profile_step(ProfileSpec(1, min(info.token_budget, n_tokens - past), past, repeat))
        for past in range(0, n_tokens, info.token_budget)
    ]
    in_steps = f" in {len(steps)} steps" if len(steps) > 1 else ""
    return Phase("prefill", f"Prefill of {n_tokens} tokens{in_steps}", steps)


def profile_decode(engine: Engine, batch: int, context: int, repeat: int) -> Phase:
    from qwen3app.abi.types import ProfileSpec

    sequences = f"{batch} sequence{'s' if batch > 1 else ''}"
    step = engine.profile_step(ProfileSpec(batch, 1, context, repeat))
    return Phase("decode", f"Decode step of {sequences} after {context} tokens", [step])


def run_profile(args: argparse.Namespace, stdout: TextIO | None = None) -> int:
    """Measures, prints, and writes the files asked for. Raises UsageError for what cannot be measured."""
    stdout = stdout or sys.stdout
    check_writable(args.json, args.trace)
    with measured_engine(args, args.batch) as (engine, info):
        check_room(info, 1, args.prompt)
        check_room(info, args.batch, args.context + 1)
        phases = interruptible(
            engine,
            lambda: [
                profile_prefill(engine, info, args.prompt, args.repeat),
                profile_decode(engine, args.batch, args.context, args.repeat),
            ],
        )
        result = described(resolve_model_dir(args.model), info)
    result["phases"] = [summary(phase) for phase in phases]
    try:
        if args.json is not None:
            with result_file(args.json) as file:
                print_json(result, file)
        if args.trace is not None:
            with result_file(args.trace) as file:
                json.dump({"traceEvents": list(trace(phases)), "displayTimeUnit": "ns"}, file)
    finally:  # what was measured is shown, also where the disk is full
        stdout.write(to_text(result, backend_name(info)))
    return 0


def summary(phase: Phase) -> dict[str, Any]:
    """Time and share of each op, the longest first; of those in layers also the first, the median and the last layer's
    time."""
    per_op: dict[str, dict[int, int]] = {}  # name -> layer -> nanoseconds, over all steps
    calls: dict[str, int] = {}
    for step in phase.steps:
        for op in step.ops:
            layers = per_op.setdefault(op.name, {})
            layers[op.layer] = layers.get(op.layer, 0) + op.end_ns - op.begin_ns
            calls[op.name] = calls.get(op.name, 0) + 1
    total = sum(step.ops[-1].end_ns for step in phase.steps if step.ops)
    ops = [
        {
            "name": name,
            "calls": calls[name],
            "ns": sum(layers.values()),
            "share": sum(layers.values()) / max(total, 1),
            "layers": _per_layer(layers),
        }
        for name, layers in per_op.items()
    ]
    whole: dict[int, int] = {}
    for layers in per_op.values():
        for layer, ns in layers.items():
            whole[layer] = whole.get(layer, 0) + ns
    return {
        "kind": phase.kind,
        "title": phase.title,
        "ns": total,
        "untimed_ns": sum(step.step_ns for step in phase.steps),
        "ops": sorted(ops, key=lambda op: -int(op["ns"])),
        "layers": _per_layer(whole),
    }


def _per_layer(layers: dict[int, int]) -> dict[str, float] | None:
    inside = [layers[layer] for layer in sorted(layers) if layer != OUTSIDE]
    if not inside:
        return None
    return {"first_ns": inside[0], "median_ns": statistics.median(inside), "last_ns": inside[-1], "ns": sum(inside)}


def trace(phases: list[Phase]) -> Iterator[dict[str, Any]]:
    """Chrome trace events: one track per phase, with steps, in them layers, in them ops. Microseconds."""
    yield {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "qwen3-8b"}}
    for track, phase in enumerate(phases, 1):
        yield {"ph": "M", "name": "thread_name", "pid": 1, "tid": track, "args": {"name": phase.title}}
        at = 0
        for number, step in enumerate(phase.steps):
            if not step.ops:
                continue
            yield _slice(track, f"step {number}", "step", at, at + step.ops[-1].end_ns)
            begin = 0
            for i, op in enumerate(step.ops):
                if i == 0 or op.layer != step.ops[i - 1].layer:
                    begin = op.begin_ns
                if op.layer != OUTSIDE and (i + 1 == len(step.ops) or step.ops[i + 1].layer != op.layer):
                    yield _slice(track, f"layer {op.layer}", "layer", at + begin, at + op.end_ns)
                yield _slice(track, op.name, "op", at + op.begin_ns, at + op.end_ns)
            at += step.ops[-1].end_ns


def _slice(track: int, name: str, kind: str, begin_ns: int, end_ns: int) -> dict[str, Any]:
    duration = (end_ns - begin_ns) / 1000
    return {"ph": "X", "name": name, "cat": kind, "pid": 1, "tid": track, "ts": begin_ns / 1000, "dur": duration}


def to_text(result: dict[str, Any], backend: str) -> str:
    lines = [f"{result['model']['name']} on {backend} ({result['backend']['device_name']})"]
    for phase in result["phases"]:
        lines.append(
            f"\n{phase['title']}: {phase['ns'] / 1e6:.3f} ms with the times below, {phase['untimed_ns'] / 1e6:.3f} ms "
            "without\n"
        )
        lines.append(
            f"  {'op':26}{'calls':>7}{'ms':>11}{'share':>8}   {'us per layer: first':>20}{'median':>11}{'last':>11}"
        )
        for op in phase["ops"]:
            lines.append(_line(op["name"], str(op["calls"]), op["ns"], op["share"], op["layers"]))
        layers = phase["layers"]
        if layers is not None:
            lines.append(_line("in layers", "", layers["ns"], layers["ns"] / max(phase["ns"], 1), layers))
        lines.append(_line("total", "", phase["ns"], 1.0, None))
    return "\n".join(lines) + "\n"


def _line(name: str, calls: str, ns: float, share: float, layers: dict[str, float] | None) -> str:
    line = f"  {name:26}{calls:>7}{ns / 1e6:11.4f}{share:8.1%}"
    if layers is not None:
        line += f"   {layers['first_ns'] / 1e3:20.1f}{layers['median_ns'] / 1e3:11.1f}{layers['last_ns'] / 1e3:11.1f}"
    return line
