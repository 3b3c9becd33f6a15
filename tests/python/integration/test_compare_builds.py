"""tests/gpu/compare.py on the CPU: times of both builds, and an exit status that tells whether their tokens agree."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from qwen3app.abi.header import find_library

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests" / "gpu"))
import compare  # noqa: E402
from compare import Result  # noqa: E402


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tests" / "gpu" / "compare.py"), *arguments, "--device", "cpu"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_two_builds_are_timed_and_agree(tmp_path: Path) -> None:
    library = find_library().library
    copy = tmp_path / "copy.so"
    shutil.copy(library, copy)
    done = run(
        str(ROOT / "qwen3app" / "qwen3-demo"),
        str(library),
        str(copy),
        *("--batches", "1,3", "--context", "20", "--steps", "4", "--turns", "1", "--prefill", "2x40"),
    )
    assert done.returncode == 0, done.stderr
    head, *lines = done.stdout.splitlines()
    assert head.split() == ["row", "libqwen3", "copy"]
    assert [line.split("  ")[0] for line in lines] == ["decode 1", "decode 3, context 20 to 25", "prefill 2 x 40"]
    assert all(" x " in line and "DIFFER" not in line for line in lines)


@pytest.mark.parametrize(
    ("model", "library", "words"),
    [
        ("no-such-model", None, "no-such-model"),
        ("qwen3-demo", "no-such.so", "compare: no-such.so is not a file; give the paths of two builds of libqwen3.so."),
    ],
)
def test_what_is_missing_is_named_without_a_traceback(model: str, library: str | None, words: str) -> None:
    done = run(model, library or str(find_library().library), "--batches", "1")
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("--batches", "1,x", "'x' is not a whole number"),
        ("--batches", "300", "must be from 1 to 256, got 300"),
        ("--turns", "0", "must be from 1 to 100, got 0"),
        ("--prefill", "16", "must be prompts x tokens, as 16x2048, not '16'"),
    ],
)
def test_wrong_values_are_one_sentence(flag: str, value: str, words: str) -> None:
    done = run("qwen3-demo", "a.so", flag, value)
    assert done.returncode == 2
    assert done.stderr.endswith(f"error: argument {flag}: {words}\n")


def test_the_best_turn_counts_and_other_tokens_are_told() -> None:
    rows = compare.rows_of([1, 8], 448, 47, (16, 2048))
    decode, batch, prefill = (row.name for row in rows)

    def turn(*values: tuple[float, str]) -> dict[str, Result]:
        return {name: Result(*value) for name, value in zip((decode, batch, prefill), values, strict=True)}

    first = [turn((3.0, "a"), (4.0, "b"), (100.0, "c")), turn((2.0, "a"), (2.0, "b"), (150.0, "c"))]
    second = [turn((2.5, "a"), (4.0, "b"), (200.0, "c")), turn((2.5, "a"), (4.0, "x"), (180.0, "c"))]
    lines, all_equal = compare.table(rows, ["/builds/a.so", "/builds/b.so"], [first, second])
    assert not all_equal
    assert lines[0].split() == ["row", "a", "b"]
    assert lines[1].split() == ["decode", "1", "2.500", "2.000", "x", "1.250"]
    assert lines[2].endswith("4.000       2.000 x 2.000   TOKENS DIFFER")
    assert lines[3].split()[-3:] == ["180", "x", "0.900"]
