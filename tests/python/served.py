"""A `serve` process as the tests see it; the fixtures that start them are in conftest.py."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
from patience import PATIENCE, wait_until

from qwen3app.compiler import COMMAND

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class RealServer:
    """A `serve` process. url has no trailing slash; log is what it wrote to stderr so far."""

    process: subprocess.Popen[bytes]
    url: str
    log_path: Path

    @property
    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8")

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The JSON reply to a request that must be answered with 200."""
        reply = httpx.post(f"{self.url}{path}", json=body, timeout=PATIENCE)
        assert reply.status_code == 200, reply.text
        result: dict[str, Any] = reply.json()
        return result

    def stop(self, number: int = signal.SIGTERM, timeout: float = PATIENCE) -> int:
        """Sends the signal and waits for the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout)


def thread_names(pid: int) -> set[str]:
    """Of a process's threads, but those that end while they are asked."""
    names = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            names.add((task / "comm").read_text().rstrip("\n"))
    return names


def compilers_of(pid: int) -> list[psutil.Process]:
    """The processes that compile constraints for a server, but those that end while they are asked."""
    found = []
    for child in psutil.Process(pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.status() != psutil.STATUS_ZOMBIE and child.cmdline()[-1:] == [COMMAND]:
                found.append(child)
    return found


def gone(process: psutil.Process) -> bool:
    """It has ended; a name may be left where nobody has waited for it."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


StartServer = Callable[..., RealServer]


def wait_for(server: RealServer, pattern: str) -> None:
    def said() -> object:
        ended = server.process.poll() is not None
        found = re.search(pattern, server.log)
        assert found or not ended, f"the server ended: {server.log}"
        return found

    wait_until(said, lambda: f"the server did not say {pattern}: {server.log}")
