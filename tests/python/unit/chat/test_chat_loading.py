"""Loading: the progress line, failures."""

from __future__ import annotations

import io
import os
import termios
import time
from typing import Any

import pytest

from qwen3app.chat.loading import ProgressLine, load_with_progress
from qwen3app.errors import ModelError
from qwen3app.runtime.interruptible import Progress


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
