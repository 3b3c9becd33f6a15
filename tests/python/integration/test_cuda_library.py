"""A library with the CUDA backend inside, on a machine without a GPU: `make test-cuda` names it in QWEN3_LIBRARY."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from build_tools.make_checkpoint import make_checkpoint
from qwen3app.abi.engine import Engine
from qwen3app.abi.types import EngineOptions
from qwen3app.errors import EngineError, Status

pytestmark = pytest.mark.skipif(
    "build/dist" not in os.environ.get("QWEN3_LIBRARY", "") or Path("/dev/nvidiactl").exists(),
    reason="needs a library with the CUDA backend, and no GPU: make test-cuda",
)


def test_auto_falls_back_to_the_cpu(tmp_path: Path) -> None:
    engine = Engine.open(make_checkpoint(tmp_path / "tiny", "tiny"), EngineOptions(kv_bytes=1 << 26))
    assert engine.info().device == "cpu"
    assert len(engine.score_logprobs([1, 2, 3])) == 3
    engine.close()


def test_asking_for_a_gpu_gets_a_sentence(tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path / "tiny", "tiny")
    for device in ("cuda", "cuda:0", "cuda:7"):
        with pytest.raises(EngineError, match="no NVIDIA GPU with a working driver") as raised:
            Engine.open(model, EngineOptions(device=device))
        assert raised.value.status == Status.UNSUPPORTED


_OPEN = """
import sys
from qwen3app.abi.engine import Engine
from qwen3app.abi.types import EngineOptions
from qwen3app.errors import EngineError
for device in ("cuda:0", "auto"):
    try:
        options = EngineOptions(device=device, kv_bytes=1 << 26)
        with Engine.open(sys.argv[1], options, on_log=lambda level, line: print(level, line)) as engine:
            print("runs on", engine.info().device)
    except EngineError as error:
        print(error)
"""


def test_a_driver_that_is_too_old_is_named(tmp_path: Path) -> None:
    """A libcuda.so.1 of our own, which says that it is from 2024."""
    source = tmp_path / "driver.c"
    source.write_text(
        "int cuInit(unsigned flags) { (void)flags; return 0; }\n"
        "int cuDriverGetVersion(int* version) { *version = 12040; return 0; }\n"
    )
    driver = tmp_path / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", driver, source], check=True)
    model = make_checkpoint(tmp_path / "tiny", "tiny")
    done = subprocess.run(
        [sys.executable, "-c", _OPEN, str(model)],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    sentence = "the NVIDIA driver supports CUDA 12.4, this build needs CUDA 13.0: install driver 580 or newer"
    assert f'device "cuda:0" cannot be used: {sentence}\n' in done.stdout
    assert f"2 the GPU is not used: {sentence}\n" in done.stdout
    assert "runs on cpu" in done.stdout
