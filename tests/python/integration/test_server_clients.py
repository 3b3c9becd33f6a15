"""Programs of others against the server (tests/clients): those of PyPI in the environment that QWEN3_CLIENTS names,
those of npm in the folder with node_modules that QWEN3_NODE_CLIENTS names. `make test-clients` makes both."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from served import ROOT, StartServer

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]


def python_of_clients() -> str:
    folder = os.environ.get("QWEN3_CLIENTS")
    if not folder:
        pytest.skip("QWEN3_CLIENTS names no environment: make test-clients")
    return str(Path(folder).absolute() / "bin" / "python")


def check(command: list[str], word: str, folder: Path, **environment: str) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=800, cwd=folder, env=os.environ | environment, check=False
    )
    assert done.returncode == 0 and f"{word}: ok" in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.parametrize("client", ["openai", "langchain", "litellm", "lm_eval"])
def test_client(client: str, start_server: StartServer, tiny_model_dir: Path, tmp_path: Path) -> None:
    server = start_server(tiny_model_dir, "--max-ctx", "4096", "--no-think")
    script = ROOT / "tests" / "clients" / f"{client}_client.py"
    command = [python_of_clients(), str(script), f"{server.url}/v1", "tiny", str(tiny_model_dir)]
    check(command, client.replace("_", "-"), tmp_path)
    assert '"level":"error"' not in server.log
    assert server.stop() == 0


@pytest.mark.parametrize("client", ["openai", "langchain", "ai_sdk"])
def test_client_of_npm(client: str, start_server: StartServer, tiny_model_dir: Path) -> None:
    folder = os.environ.get("QWEN3_NODE_CLIENTS")
    if not folder or not (Path(folder) / "node_modules").is_dir():
        pytest.skip("QWEN3_NODE_CLIENTS names no folder with node_modules: make test-clients, where npm is installed")
    server = start_server(tiny_model_dir, "--max-ctx", "4096", "--no-think")
    script = ROOT / "tests" / "clients" / f"{client}_client.mjs"
    # node looks for packages beside the script, so it is read from standard input in the folder that has them
    command = ["bash", "-c", f"node --input-type=module - {server.url}/v1 tiny < '{script}'"]
    check(command, f"{client.replace('_', '-')}-node", Path(folder))
    assert '"level":"error"' not in server.log
    assert server.stop() == 0
