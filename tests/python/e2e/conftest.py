"""What the end-to-end tests share: the packed file, run as a person would run it, outside this repository's Python."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from patience import PATIENCE, wait_until

ROOT = Path(__file__).resolve().parents[3]
PACKED = ROOT / "dist" / "qwen3-8b"


def clean_environment(**more: str) -> dict[str, str]:
    """A login shell's: nothing of this repository's virtual environment."""
    return {"PATH": "/usr/bin:/bin", "HOME": os.environ.get("HOME", "/"), "LANG": "C.UTF-8", **more}


@pytest.fixture(scope="session")
def packed() -> Path:
    if not PACKED.is_file():
        pytest.fail("dist/qwen3-8b does not exist; run `make dist` first")
    return PACKED


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """An empty folder for the program to unpack into, so that a test sees what it leaves behind."""
    folder = tmp_path / "unpack"
    folder.mkdir()
    return folder


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(packed: Path, temporary: Path) -> Run:
    """run("chat", "--once", "hi", input=...): the packed file to its end."""

    def start(*arguments: str, input: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [packed, *arguments],
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            env=clean_environment(TMPDIR=str(temporary), **environment),
            cwd=temporary.parent,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    return start


@dataclass
class PackedServer:
    process: subprocess.Popen[bytes]
    log_path: Path
    url: str = ""

    @property
    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8")

    def event(self, name: str) -> dict[str, object] | None:
        """The first log line of this event, if it has come."""
        for line in self.log.splitlines():
            if line.startswith("{") and json.loads(line).get("event") == name:
                found: dict[str, object] = json.loads(line)
                return found
        return None

    def wait_for(self, name: str) -> dict[str, object]:
        def has_come() -> object:
            ended = self.process.poll() is not None
            found = self.event(name)
            assert found or not ended, f"the server ended: {self.log}"
            return found

        wait_until(has_come, lambda: f"no event {name}: {self.log}")
        found = self.event(name)
        assert found is not None
        return found


Serve = Callable[..., PackedServer]


@pytest.fixture
def serve(packed: Path, temporary: Path, tmp_path: Path) -> Iterator[Serve]:
    """serve("--model", DIR, ...): a server of the packed file on a free port, ready to answer."""
    servers: list[PackedServer] = []

    def start(*arguments: str) -> PackedServer:
        log_path = tmp_path / f"server-{len(servers)}.log"
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                [packed, "serve", "--port", "0", "--kv-gb", "0.2", *arguments],
                env=clean_environment(TMPDIR=str(temporary)),
                cwd=tmp_path,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        server = PackedServer(process, log_path)
        servers.append(server)
        server.url = f"http://{server.wait_for('listening')['address']}"
        server.wait_for("ready")
        return server

    yield start
    for server in servers:
        if server.process.poll() is None:
            server.process.send_signal(signal.SIGKILL)
            server.process.wait(PATIENCE)
