"""Memory: on the CPU weights are mapped, not copied (the 0.6B shape, 1.2 GB of bfloat16); requests leave nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from patience import PATIENCE
from served import ROOT

from build_tools.make_checkpoint import make_checkpoint

KV_BYTES = 256 << 20
MARGIN = 300 * 10**6  # workspace, logits, the interpreter

# Peak resident memory of the process that runs the model, in bytes, on its last line. Not getrusage's ru_maxrss: that
# one is kept over exec, so it may be the peak of the process that ran this one.
PROGRAM = """
import re, sys
from qwen3app.abi.engine import Engine
from qwen3app.abi.types import EngineOptions, EngineRequest

engine = Engine.open(sys.argv[1], EngineOptions(kv_bytes=int(sys.argv[2])))
engine.submit(EngineRequest(prompt=list(range(1000, 1600)), max_tokens=8, temperature=0.0, ignore_eos=True))
tokens = finished = 0
while not finished:
    for event in engine.poll(60_000).events:
        tokens += event.kind == 1
        finished += event.kind == 3
engine.close()
print(tokens)
with open("/proc/self/status") as status:
    print(int(re.search(r"VmHWM:\\s+(\\d+) kB", status.read())[1]) * 1024)
"""


def test_a_run_needs_little_more_than_the_file_and_the_kv_pool(tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path / "0.6b", "0.6b")
    file_bytes = (model / "model.safetensors").stat().st_size
    assert file_bytes > 1_100_000_000
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(model), str(KV_BYTES)],
        capture_output=True,
        text=True,
        check=True,
        timeout=2 * PATIENCE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    tokens, peak = (int(line) for line in done.stdout.split()[-2:])
    assert tokens == 8
    assert file_bytes * 0.5 < peak < file_bytes + KV_BYTES + MARGIN


def test_memory_is_flat_over_many_requests(tiny_model_dir: Path) -> None:
    command = [sys.executable, str(ROOT / "tests" / "gpu" / "memory_flat.py"), str(tiny_model_dir), "--device", "cpu"]
    done = subprocess.run(
        [*command, "--requests", "2000"], capture_output=True, text=True, timeout=2 * PATIENCE, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2000 requests" in done.stdout and "0 blocks left over" in done.stdout
