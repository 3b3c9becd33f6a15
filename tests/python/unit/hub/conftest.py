"""A hub of our own with one sound model, and a cache that is empty."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_hub import PROGRAM, FakeHub, Run
from served import ROOT


@pytest.fixture
def hub(tiny_model_dir: Path) -> Iterator[FakeHub]:
    hub = FakeHub()
    hub.add_directory("Qwen/tiny", tiny_model_dir)
    yield hub
    hub.close()


@pytest.fixture
def environment(hub: FakeHub, tmp_path: Path) -> dict[str, str]:
    """Of a process that knows no Hub but ours."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "QWEN3_MODEL"))}
    return kept | {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "hf"),
        "NO_PROXY": "127.0.0.1",
        "PYTHONPATH": str(ROOT),
    }


@pytest.fixture
def run(environment: dict[str, str], tmp_path: Path) -> Run:
    """run("pull", ..., HF_TOKEN="x"): the program in an empty folder."""
    here = tmp_path / "here"
    here.mkdir()

    def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", PROGRAM, *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, env=environment | more, cwd=here, timeout=600, check=False
        )

    return run
