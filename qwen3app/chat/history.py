"""Earlier lines of the chat, in a file that only its owner may read.

Owns the file's place ($XDG_STATE_HOME or ~/.local/state, then qwen3-8b/history), its mode 0600 and its size. Invariant:
a history that cannot be read or written costs the history, never the chat. Event loop's thread.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from prompt_toolkit.history import FileHistory, History, InMemoryHistory

_MAX_BYTES = 1 << 20  # a longer file is cut to its newer half when the chat starts


def history_path(environ: Mapping[str, str]) -> Path | None:
    """Where the history lives; None without a home."""
    state = environ.get("XDG_STATE_HOME", "")
    if not state.startswith("/"):  # the XDG rule: relative paths are invalid and ignored
        home = environ.get("HOME", "")
        if not home:
            return None
        state = f"{home}/.local/state"
    return Path(state) / "qwen3-8b" / "history"


class _PrivateFileHistory(FileHistory):
    def load_history_strings(self) -> Iterable[str]:
        try:
            return list(super().load_history_strings())
        except OSError:
            return []

    def store_string(self, string: str) -> None:
        # Bytes that are no UTF-8 come from the terminal as lone surrogates, which no file takes.
        with contextlib.suppress(OSError):
            super().store_string(string.encode("utf-8", "replace").decode("utf-8"))


def open_history(path: Path | None) -> History:
    """The history at `path`, or one in memory where that cannot be used."""
    if path is None:
        return InMemoryHistory()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.fchmod(descriptor, 0o600)
            _cut(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        return InMemoryHistory()
    return _PrivateFileHistory(str(path))


def _cut(descriptor: int) -> None:
    size = os.fstat(descriptor).st_size
    if size <= _MAX_BYTES:
        return
    tail = os.pread(descriptor, _MAX_BYTES // 2, size - _MAX_BYTES // 2)
    entry = tail.find(b"\n# ")  # each entry begins with a time as a comment
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, tail[entry:] if entry >= 0 else b"", 0)
