"""The steps of tests/gpu/run.sh: builds, checkpoints, tests and benchmarks; writes result.json and table.txt.

A step is a command with a time limit. One that fails, hangs or cannot run does not hide the others: its status stands
in the table, in the JSON and, unless the machine lacks what it needs, in the exit status.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
PART_SECONDS = 530  # of each part; what does not fit is named as left out

PASSED, FAILED, TIMED_OUT = "passed", "FAILED", "TIMED OUT"
NOT_AVAILABLE, LEFT_OUT = "not available", "LEFT OUT"  # the machine lacks it; a step before it failed, or no time
SKIPPED = "skipped"  # by --skip, or needing what is
# A program that the machine cannot run exits with 77 or prints one of these; that line becomes the step's summary.
CANNOT_RUN = 77
UNAVAILABLE = re.compile(r"Device not supported|Internal Sanitizer Error|compute-sanitizer: (command )?not found")
# What compute-sanitizer finds; a finding counts even where the tool also failed itself. (On a device that it does not
# support, it makes every call fail.)
FINDING = re.compile(r"=+ (Invalid|Misaligned|Uninitialized|Barrier error|Divergent|Leaked|Error: Race|Program hit )")


@dataclass(frozen=True)
class Step:
    """`command` runs in a shell; {names} in it are filled in by `run_part`."""

    name: str
    command: str
    limit: int  # seconds
    needs: tuple[str, ...] = ()  # steps that must have passed


@dataclass
class Outcome:
    part: str
    step: str
    command: str
    status: str
    seconds: float = 0.0
    summary: str = ""  # the last line of the output, or why there is none
    tail: str = ""  # the end of the output, unless the step passed
    measured: Any = None  # what it wrote to {json}


BUILD = Step("build", "tests/gpu/build.sh {architecture} qwen3 op_twins invariance", 240)
TINY = Step("make tiny", "python3 build_tools/make_checkpoint.py --out {tiny} --shape tiny", 30)
SMALL = Step("make 0.6b", "python3 tests/gpu/fast_checkpoint.py {small} 0.6b", 90)
LARGE = Step("make 8b", "python3 tests/gpu/fast_checkpoint.py {large} 8b", 150)
BENCHES = Step(
    "build benches",
    "tests/gpu/build.sh {architecture} cuda_linear_bench cuda_attention_bench cuda_attention_step_bench cuda_ops_bench "
    "cuda_sample_bench",
    200,
    ("build",),
)

# torch brings cuBLAS; prints its folder.
CUBLAS_FOLDER = (
    'python3 -c "import glob, os, torch; root = os.path.dirname(os.path.dirname(torch.__file__)); '
    "print(os.path.dirname(glob.glob(root + '/nvidia/**/libcublas.so.13', recursive=True)[0]))\""
)


def sanitizer(tool: str, *options: str) -> list[Step]:
    check = f"compute-sanitizer --tool {tool} {' '.join(options)} --error-exitcode 9 --print-limit 10"
    return [
        Step(f"{tool}, ops", f"{check} build/gpu/op_twins --few", 100, ("build",)),
        Step(
            f"{tool}, engine",
            f"{check} python3 tests/gpu/exercise.py {{tiny}} --small",
            200 if tool == "racecheck" else 100,
            ("build", "make tiny"),
        ),
    ]


PARTS: dict[str, list[Step]] = {
    "correct": [
        BUILD,
        TINY,
        Step("instructions", "build/gpu/invariance", 60, ("build",)),
        Step("ops against the CPU", "build/gpu/op_twins", 120, ("build",)),
        Step("every path, tiny", "python3 tests/gpu/exercise.py {tiny}", 40, ("build", "make tiny")),
        Step("model, tiny", "python3 tests/gpu/check_model.py {tiny}", 90, ("build", "make tiny")),
        Step("faults", "python3 tests/gpu/faults.py {tiny}", 90, ("build", "make tiny")),
        Step("flat memory", "python3 tests/gpu/memory_flat.py {tiny}", 90, ("build", "make tiny")),
        SMALL,
        Step("model, 0.6b", "python3 tests/gpu/check_model.py {small}", 150, ("build", "make 0.6b")),
        LARGE,
        Step("model, 8b", "python3 tests/gpu/check_model.py {large} {lengths}", 240, ("build", "make 8b")),
    ],
    "sanitize": [
        BUILD,
        TINY,
        *sanitizer("memcheck", "--leak-check full"),
        *sanitizer("initcheck"),
        *sanitizer("synccheck"),
        *sanitizer("racecheck"),
    ],
    "speed": [
        BUILD,
        SMALL,
        Step("speed, 0.6b", "python3 tests/gpu/speed.py {small} {quick} --json {json}", 120, ("build", "make 0.6b")),
        LARGE,
        Step("speed, 8b", "python3 tests/gpu/speed.py {large} {quick} --json {json}", 200, ("build", "make 8b")),
        Step("HTTP, 8b", "python3 tests/gpu/serve_rows.py {large} {quick} --json {json}", 150, ("build", "make 8b")),
        Step(
            "qwen3-8b bench", "python3 -m qwen3app bench --model {small} --format markdown", 60, ("build", "make 0.6b")
        ),
        BENCHES,
        Step("products", "build/gpu/cuda_linear_bench decode batch prefill", 90, ("build benches",)),
        Step(
            "products beside cuBLAS",
            f"LD_LIBRARY_PATH=$({CUBLAS_FOLDER}) build/gpu/cuda_linear_bench cublas",
            90,
            ("build benches",),
        ),
        Step("attention, prefill", "build/gpu/cuda_attention_bench prefill", 60, ("build benches",)),
        Step("attention, decode", "build/gpu/cuda_attention_step_bench decode", 90, ("build benches",)),
        Step("small ops", "build/gpu/cuda_ops_bench small", 60, ("build benches",)),
        Step("sampling", "build/gpu/cuda_sample_bench times", 60, ("build benches",)),
    ],
}


def execute(command: str, limit: float, log: Path) -> tuple[int | None, str]:
    """Exit status (None: stopped at the limit, with all that it started) and output, which goes to the log as well."""
    with log.open("a", encoding="utf-8") as file:
        file.write(f"\n$ {command}\n")
        file.flush()
        start = file.tell()
        process = subprocess.Popen(
            ["bash", "-c", command], cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        status: int | None
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            status = None
    with log.open(encoding="utf-8", errors="replace") as file:
        file.seek(start)
        return status, file.read()


def judge(outcome: Outcome, status: int | None, output: str) -> None:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    # Progress bars and the checker's own frame say nothing.
    telling = [line for line in lines if not re.match(r"=========\s*$|Loading weights", line)]
    outcome.summary = telling[-1][:200] if telling else ""
    if status == 0:
        outcome.status = PASSED
        return
    outcome.status = TIMED_OUT if status is None else FAILED
    outcome.tail = "\n".join(lines[-40:])[-4000:]
    missing = next((line for line in lines if UNAVAILABLE.search(line)), None)
    if status == CANNOT_RUN:
        outcome.status = NOT_AVAILABLE
    elif status is not None and missing is not None:
        if "Internal" in missing and any(FINDING.match(line) for line in lines):
            return
        outcome.status, outcome.summary = NOT_AVAILABLE, missing[:200]


def run_part(
    part: str,
    names: dict[str, str],
    skip: list[str],
    ready: set[str],
    result: Path,
    log: Path,
    outcomes: list[Outcome],
) -> None:
    """skip: texts in names of steps to leave out; ready: steps whose work is there already; result: where a step leaves
    what it has measured."""
    begin = time.monotonic()
    done = ready | {outcome.step for outcome in outcomes if outcome.status == PASSED}
    for step in PARTS[part]:
        if step.name in done and step in (BUILD, TINY, SMALL, LARGE):
            continue
        result.unlink(missing_ok=True)
        command = step.command.format(**names, json=shlex.quote(str(result)))
        outcome = Outcome(part, step.name, command, LEFT_OUT)
        outcomes.append(outcome)
        lacking = [need for need in step.needs if need not in done]
        skipped = {o.step for o in outcomes if o.part == part and o.status == SKIPPED}
        left = PART_SECONDS - (time.monotonic() - begin)
        if any(text in step.name for text in skip) or skipped & set(lacking):
            outcome.status = SKIPPED
        elif lacking:
            outcome.summary = f"needs: {', '.join(lacking)}"
        elif left < 5:
            outcome.summary = f"the part's {PART_SECONDS} s are over"
        else:
            started = time.monotonic()
            status, output = execute(command, min(step.limit, left), log)
            outcome.seconds = round(time.monotonic() - started, 1)
            judge(outcome, status, output)
            if result.exists():
                outcome.measured = json.loads(result.read_text(encoding="utf-8"))
                result.unlink()
        if outcome.status == PASSED:
            done.add(step.name)
        print(line_of(outcome), flush=True)


def line_of(outcome: Outcome) -> str:
    return (
        f"{outcome.status:14s}{outcome.seconds:7.1f} s  {outcome.part:9s}{outcome.step:22s}{outcome.summary}".rstrip()
    )


def ask(*command: str) -> str:
    """First line of what a program prints, or "unknown"."""
    try:
        output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return (output.strip().splitlines() or ["unknown"])[0].strip()


def table(head: dict[str, str], outcomes: list[Outcome]) -> str:
    lines = [f"{name:8s} {value}" for name, value in head.items()] + [""]
    lines += [line_of(outcome) for outcome in outcomes]
    for outcome in outcomes:
        rows = (outcome.measured or {}).get("table")
        if rows:
            lines += ["", f"{outcome.step}:", *rows]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/gpu/run.sh", description=__doc__)
    parser.add_argument("part", nargs="*", help=f"{', '.join(PARTS)} or all (default)")
    parser.add_argument(
        "--skip", action="append", default=[], metavar="TEXT", help="leave out steps with this in the name"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu-run", help="folder for the results")
    parser.add_argument("--work", type=Path, help="folder for checkpoints, 20 GB (default: the results' folder)")
    parser.add_argument("--quick", action="store_true", help="fewer rows and shorter contexts")
    parser.add_argument("--no-build", action="store_true", help="build/gpu is there already")
    parser.add_argument("--commit", help="what is tested, where there is no git (default: asked of git)")
    arguments = parser.parse_intermixed_args()
    unknown = set(arguments.part) - {*PARTS, "all"}
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: no such part; there are {', '.join(PARTS)} and all")
    parts = [part for part in PARTS if part in arguments.part or arguments.part in ([], ["all"])]
    out, work = arguments.out.resolve(), (arguments.work or arguments.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    work.mkdir(parents=True, exist_ok=True)
    capability = ask("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader").replace(".", "")
    cc = {"90": "90a", "unknown": "90a"}.get(capability, capability)
    names = {
        "tiny": shlex.quote(str(work / "tiny")),
        "small": shlex.quote(str(work / "0.6b")),
        "large": shlex.quote(str(work / "8b")),
        "architecture": f"{cc}-real",
        "quick": "--quick" if arguments.quick else "",
        "lengths": "--lengths 1,33,1025,4096" if arguments.quick else "",
    }
    head = {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "GPU": ask("nvidia-smi", "--query-gpu=name", "--format=csv,noheader"),
        "driver": ask("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "commit": arguments.commit or ask("git", "describe", "--always", "--dirty"),
        "command": shlex.join(["tests/gpu/run.sh", *sys.argv[1:]]),
    }
    os.environ["PATH"] += ":/usr/local/cuda/bin"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ |= {
        "QWEN3_LIBRARY": str(ROOT / "build" / "gpu" / "libqwen3.so"),
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
    }
    log = out / "log.txt"
    log.unlink(missing_ok=True)
    outcomes: list[Outcome] = []
    for part in parts:
        ready = {"build"} if arguments.no_build else set()
        run_part(part, names, arguments.skip, ready, work / "step.json", log, outcomes)
        # After every part, so that a machine that goes away leaves what there was.
        text = table(head, outcomes)
        (out / "table.txt").write_text(text, encoding="utf-8")
        document = {**head, "steps": [asdict(outcome) for outcome in outcomes]}
        (out / "result.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    if work == out:
        for name in ("tiny", "0.6b", "8b"):
            shutil.rmtree(out / name, ignore_errors=True)
    failed = [outcome for outcome in outcomes if outcome.status in (FAILED, TIMED_OUT, LEFT_OUT)]
    lacking = sum(outcome.status == NOT_AVAILABLE for outcome in outcomes)
    print(f"run.sh: {len(outcomes)} steps, {len(failed)} failed, {lacking} not available; {out / 'table.txt'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
