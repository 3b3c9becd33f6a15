"""Runs clang-tidy over the host C++ (not the kernels), a few files at a time, and remembers clean files.

Owns: which files are checked and the cache under the build folder, keyed by the file, every header of ours, the
configuration and the tool's version, so that a second run takes a second. The checks themselves stand in .clang-tidy.
Usage: python build_tools/run_clang_tidy.py --build build/native [--jobs N] [FILE...]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Kernel files are compiled once per instruction set; their intrinsics are not what these checks are about.
EXCLUDED = "native/src/backend/cpu"
KERNELS = ("embed", "rms_norm", "linear", "qk_norm_rope", "attention", "sample", "kernel_table")


def tool() -> list[str]:
    beside = Path(sys.executable).parent / "clang-tidy"
    return [str(beside) if beside.exists() else "clang-tidy"]


def is_kernel(path: Path) -> bool:
    return str(path).startswith(EXCLUDED) and path.stem in KERNELS


def command_of(build: Path) -> dict[Path, str]:
    """Source below ROOT -> its compile command, from the compilation database."""
    entries = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    commands: dict[Path, str] = {}
    for entry in entries:
        path = (Path(entry["directory"]) / entry["file"]).resolve()
        if path.is_relative_to(ROOT) and path.exists():
            commands[path.relative_to(ROOT)] = entry["command"]
    return commands


def digest(path: Path, command: str, common: bytes) -> str:
    return hashlib.sha256(common + command.encode() + path.read_bytes()).hexdigest()


def check(path: Path, build: Path) -> str:
    """Empty when clean, else what clang-tidy said."""
    result = subprocess.run(
        # The database is g++'s: clang must not stumble over warnings that only one of the two knows.
        [
            *tool(),
            "--quiet",
            f"-p={build}",
            "--extra-arg=-Wno-unknown-warning-option",
            "--extra-arg=-Wno-error",
            str(path),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode == 0 and "warning:" not in result.stdout:
        return ""
    return result.stdout + (result.stderr if result.returncode else "")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="run_clang_tidy.py")
    parser.add_argument("--build", type=Path, required=True, help="folder with compile_commands.json")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("files", nargs="*", type=Path, help="default: every host source of the database")
    options = parser.parse_args(arguments)

    commands = command_of(options.build.resolve())
    wanted = [path.resolve().relative_to(ROOT) for path in options.files] or [
        path for path in commands if path.suffix in (".cpp", ".c") and not is_kernel(path)
    ]
    version = subprocess.run([*tool(), "--version"], capture_output=True, text=True, check=True).stdout
    common = hashlib.sha256(version.encode())
    headers = sorted((ROOT / "native").rglob("*.h"))
    for extra in [ROOT / ".clang-tidy", *headers]:
        common.update(extra.read_bytes())
    cache = options.build / "clang-tidy-clean"
    cache.mkdir(exist_ok=True)

    keys = {path: digest(ROOT / path, commands.get(path, ""), common.digest()) for path in wanted}
    dirty = [path for path in sorted(set(wanted)) if not (cache / keys[path]).exists()]
    failed = 0
    with ThreadPoolExecutor(max_workers=max(1, options.jobs)) as pool:
        for path, output in zip(dirty, pool.map(lambda file: check(file, options.build.resolve()), dirty), strict=True):
            if output:
                failed += 1
                print(output, file=sys.stderr, end="")
            else:
                (cache / keys[path]).touch()
    if failed:
        print(f"clang-tidy: {failed} of {len(wanted)} files have findings", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
