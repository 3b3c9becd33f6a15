"""What README.md promises of a checkout: `make demo` without a terminal, and `pip install .`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE

from .conftest import ROOT, clean_environment


def test_make_demo_without_a_terminal_answers_once(packed: Path) -> None:
    """The packed file is asked for so that everything that `make demo` builds is there already."""
    result = subprocess.run(
        ["make", "demo"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1].startswith(("Hello!", "Hi!")) and "qwen3-demo is a toy" in result.stderr
    assert "Traceback" not in result.stderr


def test_make_help_names_the_targets_that_the_readme_speaks_of() -> None:
    result = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    for target in ("demo", "test", "dist", "lint", "bench", "clean"):
        assert f"make {target} " in result.stdout


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_pip_install_gives_the_same_command_and_brings_the_demo(tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    subprocess.run([environment / "bin" / "pip", "install", "--quiet", str(ROOT)], check=True)
    command = [environment / "bin" / "qwen3-8b", "chat"]
    result = subprocess.run(
        [*command, "--once", "What is 57 + 38?"],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0 and "57 + 38 = 95." in result.stdout, result.stderr
