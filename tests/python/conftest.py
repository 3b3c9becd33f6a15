"""Fixtures that all Python tests share: a tiny checkpoint, and real servers on it and on the demo model."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from patience import PATIENCE
from served import ROOT, RealServer, StartServer, wait_for

from qwen3app.settings import DEMO_MODEL

# A shell that runs the tests in the background has them, and what they start, ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Property tests do not fail because a machine is slow. In `make test-long` they draw other examples each time,
# elsewhere the same.
settings.register_profile(
    "patient",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    derandomize=not os.environ.get("QWEN3_LONG"),
)
settings.load_profile("patient")

# The command with a tokenizer that waits for a file: a load that takes as long as a test wants.
HELD_PROGRAM = """
import pathlib, sys, time
from qwen3app.cli import main
from qwen3app.text.tokenizer import Tokenizer

hold, load = pathlib.Path(sys.argv.pop(1)), Tokenizer.from_dir

def wait_and_load(directory):
    while not hold.exists():
        time.sleep(0.01)
    return load(directory)

Tokenizer.from_dir = wait_and_load
sys.exit(main())
"""


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random checkpoint of 2 M parameters in the official layout, with a tokenizer of 1,536 ids."""
    directory = tmp_path_factory.mktemp("models") / "tiny"
    command = [sys.executable, str(ROOT / "build_tools" / "make_checkpoint.py"), "--out", str(directory)]
    subprocess.run([*command, "--shape", "tiny"], check=True, capture_output=True)
    return directory


@pytest.fixture(scope="session")
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    """Starts servers: start_server(model_dir, *flags, wait=True). With hold=PATH the tokenizer is not loaded before
    that file exists. What still runs at the end is stopped. QWEN3_EXECUTABLE: the packed file serves."""
    servers: list[RealServer] = []

    def start(model_dir: Path, *flags: str, wait: bool = True, hold: Path | None = None) -> RealServer:
        log_path = tmp_path_factory.mktemp("server") / "stderr"
        program = ["-m", "qwen3app.cli"] if hold is None else ["-c", HELD_PROGRAM, str(hold)]
        packed = os.environ.get("QWEN3_EXECUTABLE")
        start = [packed] if packed and hold is None else [sys.executable, *program]
        command = [*start, "serve", "--model", str(model_dir), "--port", "0"]
        command += ["--threads", "2", "--kv-gb", "0.25", *flags]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with log_path.open("wb") as log:
            process = subprocess.Popen(command, stderr=log, stdout=subprocess.DEVNULL, cwd=ROOT, env=environment)
        server = RealServer(process, "", log_path)
        servers.append(server)
        wait_for(server, r'"event":"listening".*"message":"(http[^"]*)"')
        found = re.search(r'"event":"listening".*"message":"(http[^"]*)"', server.log)
        assert found is not None
        server.url = found.group(1)
        if wait:
            wait_for(server, r'"event":"ready"')
        return server

    yield start
    for server in servers:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait(PATIENCE)


@pytest.fixture(scope="session")
def real_server(start_server: StartServer, tiny_model_dir: Path) -> RealServer:
    """One server on the tiny checkpoint, shared by the tests of a session. Do not stop it."""
    return start_server(tiny_model_dir, "--max-ctx", "4096")


@pytest.fixture(scope="session")
def demo_server(start_server: StartServer) -> RealServer:
    """One server on the model in the box, shared by the tests of a session. Do not stop it."""
    return start_server(DEMO_MODEL)
