"""Brings one file from the Hub to this machine, and proves that it is the right one.

Owns the bytes: a partial file grows, goes on where an earlier run ended (also one that was killed), and is whole only
when its length and hash are those that the Hub gave. huggingface_hub neither goes on nor compares hashes, hence this.
Refuses to know names and places. Any thread; one process at a time writes a partial file (a lock on it).
"""

from __future__ import annotations

import fcntl
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from qwen3app.hub.client import Hub, HubError, RemoteFile, Stopped

if TYPE_CHECKING:
    import httpx2

_READ = 1 << 20


def open_partial(path: Path, remote: RemoteFile) -> io.FileIO:
    """The partial file for writing at its end, locked against other processes; ModelError if one has it."""
    while True:
        file = io.FileIO(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise HubError(
                f"Another process is downloading {remote.name} to the same place; wait for it, then run this again."
            ) from None
        except OSError:
            return file  # a file system without locks
        try:
            if os.fstat(file.fileno()).st_ino == path.stat().st_ino:
                return file
        except FileNotFoundError:
            pass
        file.close()  # the process that had it has moved it to its place meanwhile


def fetch(hub: Hub, remote: RemoteFile, file: io.FileIO, advance: Callable[[int], None]) -> None:
    """Completes the open partial file. advance: told of new bytes, and by a negative number of bytes thrown away.
    HubError: it could not be completed, what there is stays. Stopped: likewise."""
    begun_anew = False
    while True:
        had = file.seek(0, os.SEEK_END)
        state = _Growing(remote, file)
        if had > remote.size:
            had = state.restart(advance)
        state.absorb(hub)
        _complete(hub, state, advance)
        if state.is_right():
            os.fsync(file.fileno())
            return
        # What an earlier run left may have been spoilt; what has just come from the Hub not, so it is tried once.
        state.restart(advance)
        if begun_anew or had == 0:
            raise HubError(
                f"{remote.name} has come with the wrong hash: not the {remote.hash} that {hub.endpoint} promises. It "
                "has been removed; try again, or through another network if this repeats."
            )
        begun_anew = True


def _complete(hub: Hub, state: _Growing, advance: Callable[[int], None]) -> None:
    before = state.length

    def progressed() -> bool:
        nonlocal before
        further, before = state.length > before, state.length
        return further

    hub.patiently(lambda: _read(hub, state, advance), progressed)


def _read(hub: Hub, state: _Growing, advance: Callable[[int], None]) -> None:
    from huggingface_hub import get_session

    remote = state.remote
    if state.length == remote.size:
        return
    headers = hub.headers | {"Accept-Encoding": "identity"}
    if state.length:
        headers["Range"] = f"bytes={state.length}-"
    with get_session().stream("GET", remote.url, headers=headers, timeout=hub.timeout) as response:
        if response.status_code == 416:  # less is there than was promised
            state.restart(advance)
            raise HubError(f"{hub.endpoint} cannot go on with {remote.name}; run this again.", passing=True)
        hub.check(response, remote.name)
        if state.length and not _continues(response, state.length):
            state.restart(advance)  # the server sends all of it
        for data in response.iter_bytes():
            if hub.stop.is_set():
                raise Stopped
            if state.length + len(data) > remote.size:
                state.restart(advance)
                raise HubError(f"{hub.endpoint} sends more of {remote.name} than its {remote.size:,} bytes; try again.")
            state.append(data)
            advance(len(data))
    if state.length < remote.size:
        raise HubError(
            f"{hub.endpoint} breaks off {remote.name} at {state.length:,} of {remote.size:,} bytes; run this again: "
            "the download goes on where it is.",
            passing=True,
        )


def _continues(response: httpx2.Response, length: int) -> bool:
    where = str(response.headers.get("Content-Range", ""))
    return response.status_code == 206 and where.startswith(f"bytes {length}-")


class _Growing:
    """A partial file and the hash of what it holds."""

    def __init__(self, remote: RemoteFile, file: io.FileIO) -> None:
        self.remote = remote
        self.length = 0
        self._file = file
        self._hash = self.remote.digest()

    def absorb(self, hub: Hub) -> None:
        """Takes in what the file holds already."""
        self._file.seek(self.length)
        while data := self._file.read(_READ):
            if hub.stop.is_set():
                raise Stopped
            self._hash.update(data)
            self.length += len(data)

    def append(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]
        self._hash.update(data)
        self.length += len(data)

    def restart(self, advance: Callable[[int], None]) -> int:
        """Throws everything away."""
        advance(-os.fstat(self._file.fileno()).st_size)
        self._file.truncate(0)
        self._file.seek(0)
        self.length = 0
        self._hash = self.remote.digest()
        return 0

    def is_right(self) -> bool:
        return not self.remote.can_be_checked or bool(self._hash.hexdigest() == self.remote.hash)
