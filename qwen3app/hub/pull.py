"""`pull`: a model from the Hub onto this machine.

Owns the order, in which each step is cheaper than the next and may refuse: the list of files, config.json (judged by
the engine's own loader), tokenizer and template (judged by their readers), the index, free disk space, and only then
the weights. Refuses to know flags. Whatever ends it leaves the weights that have come, and the next run goes on from
there. Call it from the main thread; files come on threads of their own, several at once.
"""

from __future__ import annotations

import os
import queue
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from qwen3app.errors import EngineError, ModelError
from qwen3app.hub.client import Hub, Listing, Offline, Patience, RemoteFile, Stopped
from qwen3app.hub.names import HubName, cache_directory, find_cached
from qwen3app.hub.progress import Progress
from qwen3app.hub.store import CacheStore, FolderStore, Store
from qwen3app.hub.transfer import fetch, open_partial
from qwen3app.sizes import format_bytes
from qwen3app.weights_index import INDEX, SINGLE, weight_files

_CONNECTIONS = 4  # files that come at once
_STOP_SECONDS = 2.0  # what threads get to notice that they shall stop; a read that waits may take longer
# Beside the weights, what says how to use them. The rest of a repository (pictures, other formats) stays where it is.
_TEXTS = (".json", ".jinja", ".txt", ".md")
_LICENCES = ("LICENSE", "LICENCE", "NOTICE")
_MAX_TEXT = 64 << 20
_OTHER_FORMATS = {".gguf": "GGUF", ".bin": "PyTorch", ".pt": "PyTorch", ".pth": "PyTorch", ".onnx": "ONNX"}


def pull(name: HubName, progress: Progress, folder: Path | None = None, patience: Patience | None = None) -> Path:
    """The directory of the model with all that is needed to run it, downloaded as far as it was not there. folder: put
    it there instead of into the Hub's cache. ModelError: one sentence. KeyboardInterrupt: what has come stays."""
    cache = cache_directory()
    here = find_cached(name, cache) if folder is None else None
    try:
        try:
            hub = Hub(name, patience, progress.say)
        except Offline:
            if here is None:
                raise
            progress.say(f"{name} is here: {here} (offline, so not compared with the Hub).")
            return here
        if here is None:  # else there may be nothing to write
            check_place(folder or cache, "HF_HOME" if folder is None else "--dir")
        progress.say(f"Asking {hub.endpoint} for {name}.")
        commit = (listing := hub.listing()).commit
        store: Store = CacheStore(cache, name, commit) if folder is None else FolderStore(folder, commit)
        try:
            _Pull(hub, listing, store, progress).run()
        finally:
            store.close()
        return store.directory
    except OSError as error:
        where = error.filename or folder or cache
        raise ModelError(f"{where} cannot be used: {error.strerror or error}; check it, HF_HOME and --dir.") from None


def check_place(place: Path, source: str) -> None:
    """Whether files can be put there, before anything is asked of the Hub."""
    nearest = next(path for path in (place, *place.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise ModelError(f"{place} cannot be used: {nearest} is a file; check {source}.")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ModelError(f"{place} cannot be used: you may not write into {nearest}; check {source}.")


class _Pull:
    def __init__(self, hub: Hub, listing: Listing, store: Store, progress: Progress) -> None:
        self._hub = hub
        self._listing = listing
        self._store = store
        self._progress = progress
        self._small: set[str] = set()  # small files that have been looked at
        self._unproved = 0  # files for which the server gave no hash

    def run(self) -> None:
        self._refuse_by_list()
        self._fetch_quietly([name for name in ("config.json", "generation_config.json") if name in self._listing.files])
        self._judge_config()
        self._fetch_quietly(sorted(name for name in self._listing.files if _is_text(name)))
        self._judge_text()
        weights = [self._remote(name) for name in self._weight_names()]
        missing = self._missing(weights)
        self._check_space(missing)
        self._store.settle(self._listing.files, missing)
        name, shown = self._hub.name, self._store.shown
        total = sum(remote.size for remote in weights)
        if missing:
            here = total - sum(remote.size for remote in missing) + sum(map(self._here, missing))
            already = f", {format_bytes(here)} of it already here" if here else ""
            self._progress.say(
                f"Downloading {name} from {self._hub.endpoint} to {shown}: {format_bytes(total)}{already}."
            )
            self._fetch_with_bars(missing, total, here)
            for remote in weights:
                self._store.has(remote)  # puts those of the same bytes into their places
        self._store.finish()
        said = f"{name} is complete in {shown}: {format_bytes(total)} of weights."
        if self._unproved:
            said += f" {self._unproved} files could not be checked: the server gives no hash."
        model = name if isinstance(self._store, CacheStore) else shown
        self._progress.say(f"{said} Try `qwen3-8b chat --model {model}`.")

    def _missing(self, weights: Sequence[RemoteFile]) -> list[RemoteFile]:
        """Those that are not here. Files of the same bytes have one place in the cache, and come once."""
        by_place = {self._store.partial(each): each for each in weights if not self._store.has(each)}
        return list(by_place.values())

    # -------------------------------------------------------------------------------------------- refusing beforehand

    def _refuse_by_list(self) -> None:
        files = self._listing.files
        if "config.json" in files and (INDEX in files or SINGLE in files):
            return
        others = {_OTHER_FORMATS[suffix] for name in files if (suffix := PurePosixPath(name).suffix) in _OTHER_FORMATS}
        what = f"only weights for {' and '.join(sorted(others))}" if others else "no model"
        needed = "config.json and model.safetensors (or shards with an index)"
        raise ModelError(f"{self._hub.name} holds {what}; needed are {needed}. Nothing was downloaded.")

    def _judge_config(self) -> None:
        from qwen3app.abi.engine import check_config

        try:
            check_config(self._store.directory)
        except EngineError as error:
            self._refuse(str(error))

    def _judge_text(self) -> None:
        from qwen3app.text.check import text_problems

        for problem in text_problems(self._store.directory):
            self._refuse(problem)

    def _weight_names(self) -> list[str]:
        try:
            paths = weight_files(self._store.directory) if INDEX in self._listing.files else []
        except ModelError as error:
            self._refuse(str(error))
        names = [path.relative_to(self._store.directory).as_posix() for path in paths] or [SINGLE]
        absent = sorted(set(names) - self._listing.files)
        if absent:
            self._refuse(f"the index names {absent[0]}, which is not there")
        return names

    def _refuse(self, sentence: str) -> None:
        sentence = sentence.replace(f"{self._store.directory}/", "").rstrip(".")
        raise ModelError(f"{self._hub.name} cannot be run: {sentence}. Its weights were not downloaded.")

    def _check_space(self, missing: Sequence[RemoteFile]) -> None:
        if not missing:
            return
        needed = sum(remote.size - self._here(remote) for remote in missing)
        free = shutil.disk_usage(self._store.partial(missing[0]).parent).free
        free += sum(path.stat().st_size for path in self._store.replaced(missing))
        if needed > free:
            raise ModelError(
                f"{self._hub.name} needs {format_bytes(needed)} more, and the disk of {self._store.shown} has "
                f"{format_bytes(free)} free; make room, or choose another place with --dir or HF_HOME."
            )

    def _here(self, remote: RemoteFile) -> int:
        """Bytes of a missing file that an earlier run has left."""
        try:
            return min(self._store.partial(remote).stat().st_size, remote.size)
        except FileNotFoundError:
            return 0

    # ------------------------------------------------------------------------------------------------------ fetching

    def _remote(self, name: str) -> RemoteFile:
        remote = self._hub.file(self._listing.commit, name)
        self._unproved += not remote.can_be_checked
        return remote

    def _fetch_quietly(self, names: Sequence[str]) -> None:
        """Small files, one after the other; each once."""
        for name in names:
            if name in self._small:
                continue
            self._small.add(name)
            remote = self._remote(name)
            if remote.size <= _MAX_TEXT and not self._store.has(remote):
                self._fetch(remote, lambda n: None)

    def _fetch_with_bars(self, missing: Sequence[RemoteFile], total: int, here: int) -> None:
        waiting: queue.SimpleQueue[RemoteFile] = queue.SimpleQueue()
        for remote in missing:
            waiting.put(remote)
        errors: list[BaseException] = []
        ended = threading.Semaphore(0)

        def work() -> None:
            try:
                while not self._hub.stop.is_set():
                    self._fetch_with_bar(waiting.get_nowait())
            except queue.Empty:
                pass
            except BaseException as error:  # the caller's thread raises it
                errors.append(error)
                self._hub.stop.set()
            finally:
                ended.release()

        n_threads = min(_CONNECTIONS, len(missing))
        self._progress.begin(total, here)
        try:
            for _ in range(n_threads):
                threading.Thread(target=work, name="pull", daemon=True).start()
            for _ in range(n_threads):
                ended.acquire()
        except KeyboardInterrupt:
            self._hub.stop.set()
            for _ in range(n_threads):
                ended.acquire(timeout=_STOP_SECONDS / n_threads)
            self._progress.end()
            kept = total - sum(0 if self._store.has(remote) else remote.size - self._here(remote) for remote in missing)
            self._progress.say(
                f"Stopped: {format_bytes(kept)} of {format_bytes(total)} are kept; the same command goes on from there."
            )
            raise
        finally:
            self._progress.end()
        for error in errors:
            if not isinstance(error, Stopped):
                raise error

    def _fetch_with_bar(self, remote: RemoteFile) -> None:
        self._progress.open_file(remote.name, remote.size, self._here(remote))
        try:
            self._fetch(remote, lambda n: self._progress.advance(remote.name, n))
        finally:
            self._progress.close_file(remote.name)

    def _fetch(self, remote: RemoteFile, advance: Callable[[int], None]) -> None:
        with open_partial(self._store.partial(remote), remote) as file:
            if self._store.has(remote):  # another process has brought it meanwhile
                self._store.partial(remote).unlink(missing_ok=True)
                return
            fetch(self._hub, remote, file, advance)
            self._store.keep(remote)


def _is_text(name: str) -> bool:
    path = PurePosixPath(name)
    return "/" not in name and (path.suffix in _TEXTS or path.stem.upper() in _LICENCES)
