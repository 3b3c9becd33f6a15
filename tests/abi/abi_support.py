"""What the ABI tests share beside fixtures: places, compiler flags, and how one C file is built."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEADER = ROOT / "native" / "include" / "qwen3.h"
C_FLAGS = ["-std=c11", "-Wall", "-Wextra", "-pedantic", "-Werror"]


def compile_c(source: Path, program: Path, library: Path) -> None:
    """Compiles and links one C file against the library; what the compiler says becomes the test's failure."""
    command = ["gcc", *C_FLAGS, f"-I{HEADER.parent}", str(source), "-o", str(program)]
    command += [f"-L{library.parent}", "-lqwen3", f"-Wl,-rpath,{library.parent}"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
