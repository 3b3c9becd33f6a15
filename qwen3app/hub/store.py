"""Where a model's files go: into the Hub's cache, which other tools share, or into a folder of their own.

Owns the writing half of both layouts. The cache: a blob per hash, a snapshot of links per commit, and the reference
that says which commit a revision is, written last. A folder: the plain files, and beside them under .cache/huggingface
what each of them is, as `hf download --local-dir` writes it; `qwen3-8b verify` compares with both. A file is in its
place only when it is whole, and a folder never holds files of two revisions. Refuses to know the network.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from qwen3app.errors import ModelError
from qwen3app.hub.client import RemoteFile
from qwen3app.hub.names import HubName
from qwen3app.weights_index import INDEX

_READ = 1 << 20
# Files that a model need not have, and that change how it is read where they are.
_READ_IF_THERE = frozenset({INDEX, "generation_config.json", "tokenizer_config.json", "chat_template.jinja"})


class Store(Protocol):
    directory: Path  # of the model
    shown: Path  # what people are told of

    def has(self, remote: RemoteFile) -> bool:
        """Whether the file is there, whole; then it is also in its place."""

    def partial(self, remote: RemoteFile) -> Path:
        """Where a file grows; its folder exists."""

    def keep(self, remote: RemoteFile) -> None:
        """Puts the partial file, which is whole, into its place."""

    def replaced(self, missing: Sequence[RemoteFile]) -> list[Path]:
        """What `settle` removes to make room for these."""

    def settle(self, files: frozenset[str], missing: Sequence[RemoteFile]) -> None:
        """The model is one that can be run, and these of its files are still missing; `files` are all that the Hub has.
        From now on `directory` is the model's."""

    def finish(self) -> None:
        """All files are there."""

    def close(self) -> None:
        """However it ended."""


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

    def replaced(self, missing: Sequence[RemoteFile]) -> list[Path]:
        return []  # each revision has a directory of its own

    def settle(self, files: frozenset[str], missing: Sequence[RemoteFile]) -> None:
        pass

    def close(self) -> None:
        pass

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
    """A folder of the user's own, which may hold another revision, or another model. What comes before the weights are
    drafts, out of its way, so that a model that is refused changes nothing; `settle` puts them into their places, after
    the weights that are not of this revision are gone: at no time does the folder look like a model that it is not."""

    def __init__(self, folder: Path, commit: str) -> None:
        self._commit = commit
        self._folder = self.shown = folder
        self._cache = folder / ".cache" / "huggingface" / "download"
        self._cache.mkdir(parents=True, exist_ok=True)
        self.directory = self._drafts = Path(tempfile.mkdtemp(prefix="draft-", dir=self._cache.parent))
        self._drafted: list[RemoteFile] = []

    def has(self, remote: RemoteFile) -> bool:
        place, draft = self._folder / remote.name, self._drafts / remote.name
        if not self._is_whole(remote, place):
            return False
        if self.directory == self._drafts and not draft.is_symlink():
            self._link(place, draft)
        return True

    def _link(self, place: Path, draft: Path) -> None:
        """A file that is whole already is judged with the drafts."""
        draft.parent.mkdir(parents=True, exist_ok=True)
        try:
            draft.symlink_to(place.absolute())
        except OSError:  # a file system without links
            if place.suffix != ".safetensors":  # of weights only the names are looked at
                shutil.copyfile(place, draft)

    def partial(self, remote: RemoteFile) -> Path:
        path = self._cache / f"{remote.name}.{remote.hash}.incomplete"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def keep(self, remote: RemoteFile) -> None:
        place = self.directory / remote.name
        place.parent.mkdir(parents=True, exist_ok=True)
        self.partial(remote).replace(place)
        if self.directory == self._drafts:
            self._drafted.append(remote)
        else:
            self._note(remote)

    def replaced(self, missing: Sequence[RemoteFile]) -> list[Path]:
        return [place for remote in missing if (place := self._folder / remote.name).is_file()]

    def settle(self, files: frozenset[str], missing: Sequence[RemoteFile]) -> None:
        others = [place for name in _READ_IF_THERE - files if (place := self._folder / name).is_file()]
        stale = [place for place in others if self._noted(place.name, place)]  # what nobody has noted is the user's own
        for place in others:
            if place.name == INDEX and place not in stale:
                raise ModelError(f"{place} is of another model; remove it, or choose another folder.")
        for place in (*self.replaced(missing), *stale):
            place.unlink()
        for place in stale:
            self._metadata(place.name).unlink()
        for remote in self._drafted:
            place = self._folder / remote.name
            place.parent.mkdir(parents=True, exist_ok=True)
            (self._drafts / remote.name).replace(place)
            self._note(remote)
        self.directory = self._folder

    def finish(self) -> None:
        ignore = self._cache.parent / ".gitignore"
        ignore.write_text("*")

    def close(self) -> None:
        shutil.rmtree(self._drafts, ignore_errors=True)

    def _is_whole(self, remote: RemoteFile, place: Path) -> bool:
        if _size(place) != remote.size:
            return False
        if self._noted(remote.name, place) == remote.hash:
            return True
        if _hash(place, remote) != remote.hash:
            return False
        self._note(remote)
        return True

    def _metadata(self, name: str) -> Path:
        return self._cache / f"{name}.metadata"

    def _note(self, remote: RemoteFile) -> None:
        path = self._metadata(remote.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{self._commit}\n{remote.hash}\n{time.time()}\n", "utf-8")

    def _noted(self, name: str, place: Path) -> str | None:
        """The hash that has been noted of the file, if it was not written since."""
        try:
            _, noted, when = self._metadata(name).read_text("utf-8").splitlines()
            return noted if place.stat().st_mtime <= float(when) else None
        except (OSError, ValueError):
            return None


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
