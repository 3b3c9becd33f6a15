"""Loading that Ctrl-C ends."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE, wait_until

from qwen3app import cli
from qwen3app.abi import engine as abi_engine
from qwen3app.runtime import interruptible
from qwen3app.runtime.interruptible import Progress, load_interruptibly


def interrupt_the_wait() -> None:
    """Ctrl-C, once the main thread waits for the load."""
    main = threading.main_thread().ident
    assert main is not None

    def is_waiting() -> bool:
        names = [frame.name for frame in traceback.extract_stack(sys._current_frames()[main])]
        return names[-3:] == ["load_interruptibly", "wait", "wait"]  # of the event, of its condition

    wait_until(is_waiting)
    os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_stops_the_load() -> None:
    stopped = []

    def load(progress: Progress) -> Any:
        interrupt_the_wait()
        while progress("weights", 1, 2):
            time.sleep(0.01)
        stopped.append(True)

    with pytest.raises(KeyboardInterrupt):
        load_interruptibly(load)
    assert stopped


def test_a_load_that_does_not_listen_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(interruptible, "_STOP_SECONDS", 0.05)
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)

    def load(progress: Progress) -> Any:
        interrupt_the_wait()
        release.wait(PATIENCE)

    with pytest.raises(KeyboardInterrupt):
        load_interruptibly(load)
    release.set()
    assert codes == [130]


@pytest.mark.parametrize("command", ["info", "bench", "profile"])
def test_commands_that_open_a_model_can_be_interrupted(
    command: str, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped = []

    def load(directory: Path, options: object, progress: Progress) -> Any:
        interrupt_the_wait()
        while progress("weights", 1, 2):
            time.sleep(0.01)
        stopped.append(directory)

    monkeypatch.setattr(abi_engine.Engine, "open", load)
    assert cli.main([command, "--model", str(tiny_model_dir)]) == 130
    assert stopped == [tiny_model_dir] and capsys.readouterr() == ("", "")
