"""Loads the model while the terminal says how far it is.

Owns the progress line on stderr and what Ctrl-C means while loading: the engine is asked to stop, and where it sits in
one long step the process ends at once. The load runs on a thread of its own, because Python delivers no interrupt while
its main thread is inside the library. Call it from the main thread.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from qwen3app.chat.sanitize import sanitize_line

if TYPE_CHECKING:
    from qwen3app.runtime.loaded_model import LoadedModel

Progress = Callable[[str, int, int], bool | None]
Load = Callable[[Progress], "LoadedModel"]

_STOP_SECONDS = 2.0  # the time a load has to notice that it shall stop
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


def load_with_progress(load: Load, name: str, stderr: TextIO) -> LoadedModel:
    """Runs `load` on a thread and returns its model or raises its error; KeyboardInterrupt stops it."""
    line = ProgressLine(stderr, name)
    stopping, done = threading.Event(), threading.Event()
    result: list[LoadedModel] = []
    failure: list[BaseException] = []

    def progress(phase: str, done: int, total: int) -> bool:
        line.show(phase, done, total)
        return not stopping.is_set()

    def run() -> None:
        try:
            result.append(load(progress))
        except BaseException as error:  # handed to the caller's thread
            failure.append(error)
        finally:
            done.set()

    line.show("map", 0, 0)
    threading.Thread(target=run, name="load", daemon=True).start()
    try:
        done.wait()  # not Thread.join: Python 3.11 takes a thread for ended when its join is interrupted
    except KeyboardInterrupt:
        stopping.set()
        ended = done.wait(_STOP_SECONDS)
        line.clear()
        if not ended:
            stderr.flush()
            os._exit(130)  # the thread is inside the library: nothing to save, and no other way to end it
        raise
    line.clear()
    if failure:
        raise failure[0]
    return result[0]
