"""Reads both coverage reports, writes the readable ones, and fails when a promise is broken.

Owns: the two thresholds and what is left out of them. Line coverage is what is promised; branches are reported.
Left out of the C++ figure: kernels, because each file is compiled once per instruction set and this machine may lack
some of those (the sets that it does lack are named in the output). They are tested all the same, on the sets it has.
Usage: python build_tools/check_coverage.py --build build/coverage --reports build/reports
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON_LINES = 90.0
CPP_LINES = 85.0
# Instruction set -> the flags of /proc/cpuinfo that its kernels need (native/CMakeLists.txt).
INSTRUCTION_SETS = {
    "avx2": {"avx2", "fma", "f16c"},
    "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl"},
    "avx512bf16": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16"},
}


def missing_instruction_sets(cpuinfo: str) -> list[str]:
    flags: set[str] = set()
    for line in cpuinfo.splitlines():
        if line.startswith("flags"):
            flags = set(line.split(":", 1)[1].split())
            break
    return [name for name, needed in INSTRUCTION_SETS.items() if not needed <= flags]


def run(command: list[str]) -> None:
    result = subprocess.run(command, cwd=ROOT, check=False)
    if result.returncode:
        raise SystemExit(f"check_coverage.py: `{' '.join(command)}` failed with exit status {result.returncode}")


def drop_unfinished(parts: list[Path]) -> None:
    """Deletes the data files of processes that were killed while they wrote them: coverage would refuse to go on."""
    for part in parts:
        with contextlib.closing(sqlite3.connect(f"{part.as_uri()}?mode=ro", uri=True)) as database:
            try:
                database.execute("SELECT version FROM coverage_schema").fetchone()
            except sqlite3.DatabaseError as error:
                print(f"coverage: {part.name} is left out ({error}); its process was killed while it wrote")
                part.unlink()


def python_lines(reports: Path) -> tuple[float, float]:
    """(line, branch) percent of qwen3app, from the data file that COVERAGE_FILE names."""
    data_file = os.environ.get("COVERAGE_FILE", ".coverage")
    parts = list(ROOT.glob(f"{data_file}.*"))
    drop_unfinished(parts)
    if any(part.exists() for part in parts):
        # Of processes that outlived the tests, whose data has been put together already.
        run([sys.executable, "-m", "coverage", "combine", "--append", "--quiet"])
    target = reports / "python.json"
    run([sys.executable, "-m", "coverage", "json", "--quiet", "-o", str(target)])
    run([sys.executable, "-m", "coverage", "report", "--skip-covered", "--sort=cover"])
    totals = json.loads(target.read_text(encoding="utf-8"))["totals"]
    branches = totals["num_branches"]
    return (
        100.0 * totals["covered_lines"] / max(1, totals["num_statements"]),
        100.0 * totals["covered_branches"] / branches if branches else 100.0,
    )


def cpp_lines(build: Path, reports: Path) -> tuple[float, float]:
    """(line, branch) percent of the host C++ of native/src."""
    target = reports / "cpp.json"
    beside = Path(sys.executable).parent / "gcovr"
    command = [
        *([str(beside)] if beside.exists() else [sys.executable, "-m", "gcovr"]),
        *("--root", str(ROOT), "--filter", "native/src/"),
        *("--exclude-unreachable-branches", "--exclude-throw-branches"),
        # Two objects of one header may disagree about a line; gcov's counters may also go wrong under threads.
        *("--merge-mode-functions", "separate", "--gcov-ignore-parse-errors", "negative_hits.warn"),
        *("--json-summary", str(target), "--txt", "-", str(build)),
    ]
    run(command)
    totals = json.loads(target.read_text(encoding="utf-8"))
    return float(totals["line_percent"]), float(totals["branch_percent"] or 0.0)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="check_coverage.py")
    parser.add_argument("--build", type=Path, required=True, help="instrumented C++ build with .gcda files")
    parser.add_argument("--reports", type=Path, required=True, help="folder for the reports")
    options = parser.parse_args(arguments)
    options.reports.mkdir(parents=True, exist_ok=True)

    python, python_branches = python_lines(options.reports.resolve())
    cpp, cpp_branches = cpp_lines(options.build.resolve(), options.reports.resolve())
    missing = missing_instruction_sets(Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    for what, lines, branches, least in (
        ("qwen3app", python, python_branches, PYTHON_LINES),
        ("host C++", cpp, cpp_branches, CPP_LINES),
    ):
        print(f"coverage: {what} {lines:.1f}% of lines (at least {least:.0f}%), {branches:.1f}% of branches")
    print(
        "coverage: kernels (native/src/backend/cpu, compiled once per instruction set) are not counted; "
        f"sets that this machine lacks, whose kernels ran in no test: {', '.join(missing) or 'none'}"
    )
    failed = False
    for what, got, least in (("qwen3app", python, PYTHON_LINES), ("host C++", cpp, CPP_LINES)):
        if got < least:
            print(f"coverage: {what} is at {got:.1f}% of lines, below {least:.0f}%; add tests", file=sys.stderr)
            failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
