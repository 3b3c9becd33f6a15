"""schemathesis makes requests from the server's own OpenAPI document: valid, invalid and odd ones, and checks that no
answer is a 5xx or one that the document does not know. A short form here, ten minutes in `make test-clients`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from served import StartServer

_CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


def run_schemathesis(start_server: StartServer, model: Path, folder: Path, seconds: int, n_examples: int) -> None:
    server = start_server(model, "--max-ctx", "128")  # answers are short
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json", "--checks", _CHECKS]
    command += ["--phases", "examples,coverage,fuzzing", "--max-examples", str(n_examples), "--max-time", str(seconds)]
    command += ["--seed", "7", "--request-timeout", "30", "--continue-on-failure", "--no-shrink"]
    command += ["--suppress-health-check", "all", "--warnings", "off"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 600, cwd=folder, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    lines = [line for line in server.log.splitlines() if '"level":"error"' in line]
    assert lines == []
    assert server.stop() == 0


def test_requests_made_from_the_document(start_server: StartServer, tiny_model_dir: Path, tmp_path: Path) -> None:
    run_schemathesis(start_server, tiny_model_dir, tmp_path, 25, 2)


@pytest.mark.clients
@pytest.mark.timeout(1500)
def test_requests_made_for_ten_minutes(start_server: StartServer, tiny_model_dir: Path, tmp_path: Path) -> None:
    run_schemathesis(start_server, tiny_model_dir, tmp_path, 600, 1000)
