"""A library with the CUDA backend inside, on a machine without a GPU: `make test-cuda` names it in QWEN3_LIBRARY."""

from __future__ import annotations

import os
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
