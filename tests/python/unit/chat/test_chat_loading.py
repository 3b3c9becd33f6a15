"""Loading: the progress line, failures and interrupts."""

from __future__ import annotations

import io
import os
import signal
import sys
import termios
import threading
import time
import traceback
from typing import Any

import pytest
from patience import PATIENCE, wait_until

from qwen3app.chat import loading
from qwen3app.chat.loading import Progress, ProgressLine, load_with_progress
from qwen3app.errors import ModelError


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal_and_nowhere_else() -> None:
    def load(progress: Progress) -> Any:
        assert progress("weights", 1, 2) is True
        time.sleep(0.06)
        progress("weights", 3, 4)
        progress("kv", 1, 1)
        return "model"

    for stream, shown in ((Tty(), True), (io.StringIO(), False)):
        assert load_with_progress(load, "tiny\x1b", stream) == "model"  # type: ignore[comparison-overlap]
        assert ("Loading tiny\u241b: weights 75 %" in stream.getvalue()) is shown
        assert stream.getvalue().endswith("\r\x1b[K") is shown


@pytest.mark.parametrize(
    ("columns", "text"),
    [(36, "Loading a-longer-name: weights 50 %"), (35, "weights 50 %"), (13, "weights 50 %"), (8, "weights")],
)
def test_the_line_never_wraps(columns: int, text: str) -> None:
    master, slave = os.openpty()
    termios.tcsetwinsize(slave, (24, columns))
    with os.fdopen(slave, "w") as stream:
        ProgressLine(stream, "a-longer-name").show("weights", 1, 2)
        assert os.read(master, 1000).decode().split("\r")[-1] == f"{text}\x1b[K"
    os.close(master)


def test_a_failure_is_handed_on() -> None:
    def load(progress: Progress) -> Any:
        raise ModelError("config.json is broken.")

    with pytest.raises(ModelError, match="broken"):
        load_with_progress(load, "tiny", io.StringIO())


def interrupt_the_wait() -> None:
    """Ctrl-C, once the main thread waits for the load."""
    main = threading.main_thread().ident
    assert main is not None

    def is_waiting() -> bool:
        names = [frame.name for frame in traceback.extract_stack(sys._current_frames()[main])]
        return names[-3:] == ["load_with_progress", "wait", "wait"]  # of the event, of its condition

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
        load_with_progress(load, "tiny", io.StringIO())
    assert stopped


def test_a_load_that_does_not_listen_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(loading, "_STOP_SECONDS", 0.05)
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)

    def load(progress: Progress) -> Any:
        interrupt_the_wait()
        release.wait(PATIENCE)

    with pytest.raises(KeyboardInterrupt):
        load_with_progress(load, "tiny", io.StringIO())
    release.set()
    assert codes == [130]
