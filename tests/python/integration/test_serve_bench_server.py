"""The serving benchmark against the real server: every token counted, nothing failed, bad requests shown."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE
from served import ROOT, RealServer


@pytest.mark.parametrize("prompt", ["ids", "text", "chat"])
def test_counts(real_server: RealServer, tiny_model_dir: Path, tmp_path: Path, prompt: str) -> None:
    out = tmp_path / "out.json"
    command = [sys.executable, str(ROOT / "tests" / "bench" / "serve_bench.py"), "--url", real_server.url]
    command += ["--tokenizer", str(tiny_model_dir), "--row", "1x9x7:3", "--row", "20x33x12:50", "--json", str(out)]
    done = subprocess.run(
        [*command, "--prompt", prompt], capture_output=True, text=True, timeout=2 * PATIENCE, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = json.loads(out.read_text())["rows"]
    assert (first["completed"], first["output_tokens"], first["short"]) == (3, 21, 0)
    assert (second["completed"], second["output_tokens"], second["short"]) == (50, 600, 0)
    if prompt == "ids":
        assert (first["prompt_tokens"], second["prompt_tokens"]) == (27, 1650)
    else:
        assert first["prompt_tokens"] >= 27 and second["prompt_tokens"] >= 1650
    for row in (first, second):
        assert 0 < row["ttft_ms"]["mean"] <= row["e2e_ms"]["mean"] <= 1e3 * row["duration_s"]


def test_a_refused_request_is_a_failure(real_server: RealServer, tiny_model_dir: Path) -> None:
    command = [sys.executable, str(ROOT / "tests" / "bench" / "serve_bench.py"), "--url", real_server.url]
    command += ["--tokenizer", str(tiny_model_dir), "--row", "2x4000x4000:2", "--warmup", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 1 and "2 failed: status 400" in done.stdout
