"""What the ABI tests share: compilers, the built library, and a tiny checkpoint. They know nothing of qwen3app."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEADER = ROOT / "native" / "include" / "qwen3.h"
C_FLAGS = ["-std=c11", "-Wall", "-Wextra", "-pedantic", "-Werror"]


@pytest.fixture(scope="session")
def library() -> Path:
    path = Path(os.environ.get("QWEN3_LIBRARY", ROOT / "build" / "native" / "libqwen3.so"))
    if not path.is_file():
        pytest.fail(f"{path} does not exist; run `make` first")
    return path


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("abi") / "tiny"
    command = [sys.executable, str(ROOT / "build_tools" / "make_checkpoint.py"), "--out", str(out), "--shape", "tiny"]
    subprocess.run(command, check=True, capture_output=True)
    return out


def compile_c(source: Path, program: Path, library: Path) -> None:
    """Compiles and links one C file against the library; what the compiler says becomes the test's failure."""
    command = ["gcc", *C_FLAGS, f"-I{HEADER.parent}", str(source), "-o", str(program)]
    command += [f"-L{library.parent}", "-lqwen3", f"-Wl,-rpath,{library.parent}"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
