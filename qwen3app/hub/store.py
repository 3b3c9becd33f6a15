"""Where a model's files go: into the Hub's cache, which other tools share, or into a folder of their own.

Owns the writing half of both layouts. The cache: a blob per hash, a snapshot of links per commit, and the reference
that says which commit a revision is, written last. A folder: the plain files, and beside them under .cache/huggingface
what each of them is, as `hf download --local-dir` writes it; `qwen3-8b verify` compares with both. A file is in its
place only when it is whole. Refuses to know the network.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import Protocol

from qwen3app.hub.client import RemoteFile
from qwen3app.hub.names import HubName

_READ = 1 << 20


class Store(Protocol):
    directory: Path  # of the model
    shown: Path  # what people are told of

    def has(self, remote: RemoteFile) -> bool:
        """Whether the file is there, whole; then it is also in its place."""

    def partial(self, remote: RemoteFile) -> Path:
        """Where a file grows; its folder exists."""

    def keep(self, remote: RemoteFile) -> None:
        """Puts the partial file, which is whole, into its place."""

    def finish(self) -> None:
        """All files are there."""


class CacheStore:
    """One revision in the Hub's cache."""

    def __init__(self, cache: Path, name: HubName, commit: str) -> None:
        self._folder = name.folder(cache)
        self._name = name
        self._commit = commit
        self.directory = self._folder / "snapshots" / commit
        self.shown = self._folder

    def has(self, remote: RemoteFile) -> bool:
        if _size(self.directory / remote.name) == remote.size:
            return True
        if _size(self._blob(remote)) != remote.size:
            return False
        self._link(remote)  # another revision has it, or an earlier run ended here
        return True

    def partial(self, remote: RemoteFile) -> Path:
        blob = self._blob(remote)
        blob.parent.mkdir(parents=True, exist_ok=True)
        return blob.with_name(f"{blob.name}.incomplete")

    def keep(self, remote: RemoteFile) -> None:
        self.partial(remote).replace(self._blob(remote))
        self._link(remote)

    def finish(self) -> None:
        if self._name.revision == self._commit:
            return
        reference = self._folder / "refs" / self._name.revision
        reference.parent.mkdir(parents=True, exist_ok=True)
        reference.write_text(self._commit, "ascii")

    def _blob(self, remote: RemoteFile) -> Path:
        name = remote.hash
        if not remote.can_be_checked:  # what a server calls a version may be the same for other files
            name = hashlib.sha256(f"{remote.name}\n{remote.hash}".encode()).hexdigest()
        return self._folder / "blobs" / name

    def _link(self, remote: RemoteFile) -> None:
        place, blob = self.directory / remote.name, self._blob(remote)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        try:
            place.symlink_to(os.path.relpath(blob, place.parent))
        except FileExistsError:
            return  # another process was quicker
        except OSError:
            blob.replace(place)  # a file system without links


class FolderStore:
    """A folder of the user's own."""

    def __init__(self, folder: Path, commit: str) -> None:
        self._commit = commit
        self._cache = folder / ".cache" / "huggingface" / "download"
        self.directory = self.shown = folder

    def has(self, remote: RemoteFile) -> bool:
        place = self.directory / remote.name
        if _size(place) != remote.size:
            return False
        if self._noted(remote, place):
            return True
        if _hash(place, remote) != remote.hash:
            return False
        self._note(remote)
        return True

    def partial(self, remote: RemoteFile) -> Path:
        path = self._cache / f"{remote.name}.{remote.hash}.incomplete"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def keep(self, remote: RemoteFile) -> None:
        place = self.directory / remote.name
        place.parent.mkdir(parents=True, exist_ok=True)
        self.partial(remote).replace(place)
        self._note(remote)

    def finish(self) -> None:
        ignore = self._cache.parent / ".gitignore"
        ignore.write_text("*")

    def _metadata(self, remote: RemoteFile) -> Path:
        return self._cache / f"{remote.name}.metadata"

    def _note(self, remote: RemoteFile) -> None:
        path = self._metadata(remote)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{self._commit}\n{remote.hash}\n{time.time()}\n", "utf-8")

    def _noted(self, remote: RemoteFile, place: Path) -> bool:
        """Whether the file has been proved to be this one and was not written since."""
        try:
            _, noted, when = self._metadata(remote).read_text("utf-8").splitlines()
            return noted == remote.hash and place.stat().st_mtime <= float(when)
        except (OSError, ValueError):
            return False


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else -1
    except OSError:
        return -1


def _hash(path: Path, remote: RemoteFile) -> str:
    digest = remote.digest()
    with path.open("rb", buffering=0) as file:
        while data := file.read(_READ):
            digest.update(data)
    return str(digest.hexdigest())
