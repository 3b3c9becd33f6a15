"""How a download tells people how far it is: bars on a terminal, else a line now and then.

Called from several threads at once. Refuses to know what is downloaded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol, TextIO

from qwen3app.sizes import format_bytes

_STEP = 10  # percent from one line to the next


class Progress(Protocol):
    def say(self, sentence: str) -> None:
        """A line that stays."""

    def begin(self, total: int, done: int) -> None:
        """Files of `total` bytes come, of which `done` are here."""

    def open_file(self, file: str, size: int, done: int) -> None:
        """A file begins to come, of which `done` bytes are here."""

    def advance(self, file: str, n: int) -> None:
        """n more bytes of a file; fewer, if negative."""

    def close_file(self, file: str) -> None:
        """It is whole, or given up."""

    def end(self) -> None:
        """No more bytes come. May be called twice."""


class Lines:
    """For logs and pipes: a line every tenth of the way."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._lock = threading.Lock()
        self._total = self._done = self._told = 0

    def say(self, sentence: str) -> None:
        self._write(sentence)

    def begin(self, total: int, done: int) -> None:
        self._total, self._done = total, done
        self._told = self._percent()

    def open_file(self, file: str, size: int, done: int) -> None:
        pass

    def close_file(self, file: str) -> None:
        pass

    def advance(self, file: str, n: int) -> None:
        with self._lock:
            self._done += n
            percent = self._percent()
            if percent < self._told + _STEP:
                return
            self._told = percent
        self._write(f"Downloaded {percent} % of {format_bytes(self._total)}.")

    def end(self) -> None:
        pass

    def _percent(self) -> int:
        return 100 * self._done // self._total // _STEP * _STEP if self._total else 100


class Bars:
    """For a terminal: one bar for all, and one for each file on its way."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TaskID,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        self._console = Console(file=stream, highlight=False, soft_wrap=True)
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(None),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        self._lock = threading.Lock()
        self._all: TaskID | None = None
        self._files: dict[str, TaskID] = {}

    def say(self, sentence: str) -> None:
        self._console.print(sentence, markup=False)

    def begin(self, total: int, done: int) -> None:
        self._all = self._progress.add_task("all", total=total, completed=done)
        self._progress.start()

    def open_file(self, file: str, size: int, done: int) -> None:
        with self._lock:
            self._files[file] = self._progress.add_task(file, total=size, completed=done)

    def advance(self, file: str, n: int) -> None:
        for task in (self._files[file], self._all):
            if task is not None:
                self._progress.advance(task, n)

    def close_file(self, file: str) -> None:
        with self._lock:
            self._progress.remove_task(self._files.pop(file))

    def end(self) -> None:
        self._progress.stop()


def progress_on(stream: TextIO) -> Progress:
    """Bars where the stream is a terminal, lines elsewhere."""
    if stream.isatty():
        return Bars(stream)

    def write(line: str) -> None:
        stream.write(line + "\n")
        stream.flush()

    return Lines(write)
