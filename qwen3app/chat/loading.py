"""Loads the model while the terminal says how far it is: owns the progress line on stderr. For the main thread."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from qwen3app.chat.sanitize import sanitize_line
from qwen3app.runtime.interruptible import Progress, load_interruptibly

if TYPE_CHECKING:
    from qwen3app.runtime.loaded_model import LoadedModel

_USUAL_COLUMNS = 80  # of a terminal that does not tell
_PHASES = {"map": "opening the files", "weights": "weights", "kv": "KV cache"}


class ProgressLine:
    """One line on a terminal, rewritten in place; nothing where stderr is no terminal."""

    def __init__(self, stream: TextIO, name: str) -> None:
        self._stream = stream if stream.isatty() else None
        self._name = sanitize_line(name)
        self._last = 0.0

    def show(self, phase: str, done: int, total: int) -> None:
        now = time.monotonic()
        if self._stream is None or (now - self._last < 0.05 and done < total):
            return
        self._last = now
        share = f" {100 * done // total} %" if total > 0 else ""
        state = f"{_PHASES.get(phase, phase)}{share}"
        columns, text = _columns(self._stream), f"Loading {self._name}: {state}"
        if len(text) >= columns:  # a line that wraps cannot be rewritten
            text = state[: columns - 1]
        self._stream.write(f"\r{text}\x1b[K")
        self._stream.flush()

    def clear(self) -> None:
        if self._stream is not None:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or _USUAL_COLUMNS
    except (OSError, ValueError):
        return _USUAL_COLUMNS


def load_with_progress(load: Callable[[Progress], LoadedModel], name: str, stderr: TextIO) -> LoadedModel:
    """Runs `load` and returns its model or raises its error; KeyboardInterrupt stops it."""
    line = ProgressLine(stderr, name)
    line.show("map", 0, 0)
    try:
        return load_interruptibly(load, line.show, line.clear)
    finally:
        line.clear()
