"""Programs of others against the server (tests/clients), each in the environment that QWEN3_CLIENTS names or, for the
`openai` package of npm, in a folder with node_modules that QWEN3_NODE_CLIENTS names. `make test-clients` makes the
first and uses the second where it is set."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from served import ROOT, StartServer

pytestmark = [pytest.mark.clients, pytest.mark.timeout(400)]


def python_of_clients() -> str:
    folder = os.environ.get("QWEN3_CLIENTS")
    if not folder:
        pytest.skip("QWEN3_CLIENTS names no environment: make test-clients")
    return str(Path(folder).absolute() / "bin" / "python")


def check(command: list[str], word: str, folder: Path, **environment: str) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, cwd=folder, env=os.environ | environment, check=False
    )
    assert done.returncode == 0 and f"{word}: ok" in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.parametrize("client", ["langchain", "litellm", "lm_eval"])
def test_client(client: str, start_server: StartServer, tiny_model_dir: Path, tmp_path: Path) -> None:
    server = start_server(tiny_model_dir, "--max-ctx", "4096", "--no-think")
    script = ROOT / "tests" / "clients" / f"{client}_client.py"
    command = [python_of_clients(), str(script), f"{server.url}/v1", "tiny", str(tiny_model_dir)]
    check(command, client.replace("_", "-"), tmp_path)
    assert '"level":"error"' not in server.log
    assert server.stop() == 0


def test_openai_for_node(start_server: StartServer, tiny_model_dir: Path) -> None:
    folder = os.environ.get("QWEN3_NODE_CLIENTS")
    if not folder:
        pytest.skip("QWEN3_NODE_CLIENTS names no folder with node_modules/openai (npm install openai)")
    server = start_server(tiny_model_dir, "--max-ctx", "4096", "--no-think")
    script = ROOT / "tests" / "clients" / "openai_client.mjs"
    # node looks for packages beside the script, so it is read from standard input in the folder that has them
    command = ["bash", "-c", f"node --input-type=module - {server.url}/v1 tiny < '{script}'"]
    check(command, "openai-node", Path(folder))
    assert server.stop() == 0
