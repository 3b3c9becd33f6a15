"""Fixtures of the ABI tests: the built library and a tiny checkpoint."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from abi_support import ROOT


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
