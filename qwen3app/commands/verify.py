"""`qwen3-8b verify`: is every byte of a model directory as it should be?

Owns three checks: structure (opened with the engine's own loader, tokenizer and template read as the server reads
them), values (no tensor holds an infinity or a NaN), and hashes (SHA-256 of every file, compared to those that the
directory brings along). Refuses to repair. Each problem is one sentence; all are found in one run. Files are read once,
front to back; hashing and the search for broken values share the bytes and run on two threads.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from qwen3app.commands.format import print_json, shown
from qwen3app.commands.model_files import (
    DTYPE_BYTES,
    PublishedHash,
    TensorEntry,
    model_files,
    published_hashes,
    read_tensors,
)
from qwen3app.errors import EngineError, ModelError
from qwen3app.sizes import format_bytes
from qwen3app.text.files import pointer_problem
from qwen3app.weights_index import INDEX, read_json_object, weight_files

_BEGINNING = 64  # bytes, enough to know a git-lfs pointer by
_CHUNK = 1 << 21  # a multiple of every element size; fits the cache of one core, so the second reader finds it there

# Per dtype: byte of an element that holds the exponent's upper bits, the values of that byte which make an infinity or
# NaN possible, and, where the exponent's last bit lies in the byte before, that byte's offset (little-endian).
_EXPONENT_BYTE = {"BF16": 1, "F16": 1, "F32": 3}
_SUSPICIOUS = {
    "BF16": frozenset({0x7F, 0xFF}),
    "F32": frozenset({0x7F, 0xFF}),
    "F16": frozenset(range(0x7C, 0x80)) | frozenset(range(0xFC, 0x100)),
}
_LAST_BIT_BYTE = {"BF16": 0, "F32": 2}


def _table(marked: Callable[[int], bool]) -> bytes:
    return bytes(1 if marked(value) else 0 for value in range(256))


_SUSPICIOUS_TABLE = {dtype: _table(values.__contains__) for dtype, values in _SUSPICIOUS.items()}
_HIGH_BIT_TABLE = _table(lambda value: value >= 0x80)


def count_broken(data: bytes, dtype: str) -> int:
    """How many elements of `data` (little-endian `dtype`) are infinite or NaN: their exponent is all ones."""
    width = DTYPE_BYTES[dtype]
    high = data[_EXPONENT_BYTE[dtype] :: width]
    if dtype == "F16":  # the five exponent bits lie in the upper byte alone
        return high.translate(_SUSPICIOUS_TABLE[dtype]).count(1)
    if b"\x7f" not in high and b"\xff" not in high:  # what trained weights look like: none reaches 2^127
        return 0
    suspicious = high.translate(_SUSPICIOUS_TABLE[dtype])
    last_bit = data[_LAST_BIT_BYTE[dtype] :: width].translate(_HIGH_BIT_TABLE)
    return (int.from_bytes(suspicious, "little") & int.from_bytes(last_bit, "little")).bit_count()


OnBytes = Callable[[int, int], None]


@dataclass(slots=True)
class FileReport:
    name: str
    bytes: int = 0
    sha256: str = ""
    tensors: int = 0
    compared_to: list[str] = field(default_factory=list)  # published hashes that it has
    has_hash: bool = False  # a published one is known, whether it has that or not


@dataclass(slots=True)
class VerifyReport:
    directory: Path
    files: list[FileReport] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0  # of reading; the structure is checked before
    names: frozenset[str] = frozenset()  # of files that the model has or should have
    _known: set[str] = field(default_factory=set)  # those of which something has been said

    def add(self, sentence: str) -> None:
        """Adds what is wrong with a file, which is the first that the sentence names, unless that file has a problem
        already: one fault shows in several checks."""
        found = (re.search(rf"(?<![\w.-])({re.escape(name)})(?!\.?[\w/-])", sentence) for name in self.names)
        first = min((match for match in found if match), key=lambda match: match.start(), default=None)
        if first is None or first[1] not in self._known:
            self.problems.append(sentence)
        if first is not None:
            self._known.add(first[1])

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


def check_structure(model_dir: Path) -> Iterator[str]:
    """Sentences of the engine's loader, the tokenizer, the template and the sampling defaults."""
    from qwen3app.abi.engine import Engine
    from qwen3app.abi.types import EngineOptions
    from qwen3app.text.check import text_problems

    try:
        Engine.open(model_dir, EngineOptions(device="cpu", max_context=64, max_slots=1, threads=1)).close()
    except EngineError as error:
        yield str(error)
    yield from text_problems(model_dir)


def verify(model_dir: Path, on_bytes: OnBytes = lambda done, total: None) -> VerifyReport:
    """Runs all checks. on_bytes: told how many bytes have been read so far, and of how many."""
    report = VerifyReport(model_dir)
    found = model_files(model_dir)
    published, unreadable = _published(model_dir)
    report.names = frozenset({*found, *published, *_expected(model_dir)})
    _find_pointers(report, found)  # first, as that explains what the others find
    for sentence in check_structure(model_dir):
        report.add(sentence)
    started = time.monotonic()
    tensors = _read_headers(report)
    report.problems += unreadable
    for name in sorted(set(published) - set(found)):
        report.add(f"{model_dir / name} is missing, but {published[name][0].source} gives its hash.")
    total = sum(_size(model_dir / name) for name in found)
    with ThreadPoolExecutor(max_workers=1) as pool:
        for name in found:
            file = FileReport(name, tensors=len(tensors.get(name, ())))
            try:
                git = _read_file(
                    model_dir / name, file, tensors.get(name, []), report, pool, lambda done: on_bytes(done, total)
                )
            except OSError as error:
                report.add(f"{model_dir / name} cannot be read: {error.strerror}.")
                continue
            report.files.append(file)
            _compare(report, file, git, published.get(name, []))
    report.seconds = time.monotonic() - started
    return report


def _published(model_dir: Path) -> tuple[dict[str, list[PublishedHash]], list[str]]:
    """The hashes that the directory brings along, by file, and what is wrong with their own files."""
    published: dict[str, list[PublishedHash]] = {}
    try:
        for name, published_hash in published_hashes(model_dir):
            published.setdefault(name, []).append(published_hash)
    except ModelError as error:
        return published, [str(error)]
    except OSError as error:  # it has vanished since it was found
        return published, [f"{error.filename or model_dir} cannot be read: {error.strerror}."]
    return published, []


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # which will be said when it is read
        return 0


def _find_pointers(report: VerifyReport, names: list[str]) -> None:
    for name in names:
        path = report.directory / name
        with contextlib.suppress(OSError), path.open("rb") as stream:  # which will be said when it is read
            if problem := pointer_problem(path, stream.read(_BEGINNING)):
                report.add(problem)


def _read_headers(report: VerifyReport) -> dict[str, list[TensorEntry]]:
    """The tensors of each file of weights."""
    tensors: dict[str, list[TensorEntry]] = {}
    try:
        for path in weight_files(report.directory):
            try:
                tensors[path.relative_to(report.directory).as_posix()] = read_tensors(path)
            except ModelError as error:
                report.add(str(error))
    except ModelError as error:
        report.add(str(error))
    return tensors


def _compare(report: VerifyReport, file: FileReport, git: str, published: list[PublishedHash]) -> None:
    file.has_hash = bool(published)
    for expected in published:
        actual = file.sha256 if expected.kind == "sha256" else git
        if actual == expected.hex:
            file.compared_to.append(expected.source)
        else:
            kind = "SHA-256" if expected.kind == "sha256" else "git hash"
            report.add(
                f"{report.directory / file.name} has the {kind} {actual}, "
                f"but {expected.source} says {expected.hex}: download the file again."
            )


def _read_file(
    path: Path,
    file: FileReport,
    tensors: list[TensorEntry],
    report: VerifyReport,
    pool: ThreadPoolExecutor,
    on_bytes: Callable[[int], None],
) -> str:
    """Reads one file to its end, fills its report, and returns its git blob hash."""
    before = report.bytes
    sha256 = hashlib.sha256()
    git = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    wants_git = not tensors  # hubs give git hashes for small files only
    with path.open("rb", buffering=0) as stream:
        for tensor, length in _segments(tensors, path.stat().st_size):
            broken = 0
            while length > 0:
                data = stream.read(min(length, _CHUNK))
                if not data:
                    raise OSError(0, "it became shorter while it was read", str(path))
                hashed = pool.submit(sha256.update, data)
                if tensor is not None and tensor.dtype in DTYPE_BYTES:
                    broken += count_broken(data, tensor.dtype)
                if wants_git:
                    git.update(data)
                hashed.result()
                length -= len(data)
                file.bytes += len(data)
                on_bytes(before + file.bytes)
            if tensor is not None and broken:
                report.problems.append(  # each tensor for itself, and a hash may say who has spoilt it
                    f"{path}: tensor {tensor.name} holds {broken} infinite or NaN value{'' if broken == 1 else 's'} "
                    f"among {tensor.elements}."
                )
    file.sha256 = sha256.hexdigest()
    return git.hexdigest()


def _segments(tensors: list[TensorEntry], size: int) -> Iterator[tuple[TensorEntry | None, int]]:
    """The file as (tensor or None, bytes), in order, each byte once even where tensors overlap."""
    position = 0
    for tensor in tensors:
        if tensor.begin < position:  # overlapping: the engine's loader has said so
            continue
        if tensor.begin > position:
            yield None, tensor.begin - position
        yield tensor, tensor.end - tensor.begin
        position = tensor.end
    if position < size:
        yield None, size - position


def _expected(model_dir: Path) -> list[str]:
    """Names of files that a model has, whether they are there or not."""
    try:
        weights = [path.relative_to(model_dir).as_posix() for path in weight_files(model_dir)]
    except ModelError:
        weights = []
    return ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", INDEX, *weights]


def run_verify(
    model_dir: Path, *, as_json: bool = False, stdout: TextIO | None = None, stderr: TextIO | None = None
) -> int:
    """Prints the report on stdout and the problems on stderr. 0: sound; 1: not."""
    stdout, stderr = stdout or sys.stdout, stderr or sys.stderr
    if not model_dir.is_dir():
        raise ModelError(f"There is no model directory {model_dir}: give one with --model.")
    if not (model_dir / "config.json").exists():  # no model at all, but perhaps a large folder
        read_json_object(model_dir / "config.json")  # says so, as for `info` and `chat`
    report = verify(model_dir, _progress(stderr))
    if stderr.isatty():
        stderr.write("\r\x1b[K")
    if as_json:
        print_json(_as_dict(report), stdout)
    else:
        _print(report, stdout, stderr)
    return 1 if report.problems else 0


def _progress(stderr: TextIO) -> OnBytes:
    if not stderr.isatty():
        return lambda done, total: None
    last = 0.0
    stderr.write("\rReading the model's structure\x1b[K")
    stderr.flush()

    def show(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > 0.1:
            last = now
            share = f" ({100 * done // total} %)" if total else ""
            stderr.write(f"\rRead {format_bytes(done)} of {format_bytes(total)}{share}\x1b[K")
            stderr.flush()

    return show


def _as_dict(report: VerifyReport) -> dict[str, Any]:
    return {
        "ok": not report.problems,
        "directory": str(report.directory),
        "bytes": report.bytes,
        "seconds": round(report.seconds, 3),
        "problems": report.problems,
        "files": [
            {
                "name": file.name,
                "bytes": file.bytes,
                "sha256": file.sha256,
                "tensors": file.tensors,
                "compared_to": file.compared_to,
            }
            for file in report.files
        ],
    }


def _print(report: VerifyReport, stdout: TextIO, stderr: TextIO) -> None:
    for file in report.files:
        notes = [f"{file.tensors} tensors"] if file.tensors else []
        notes += [f"as in {shown(source)}" for source in file.compared_to]
        note = f"  ({', '.join(notes)})" if notes else ""
        stdout.write(f"{file.sha256}  {shown(file.name)}  {format_bytes(file.bytes)}{note}\n")
    for problem in report.problems:
        stderr.write(f"{shown(problem)}\n")
    speed = report.bytes / max(report.seconds, 1e-9)
    compared = sum(file.has_hash for file in report.files)
    count = len(report.problems)
    verdict = f"{count} problem{'' if count == 1 else 's'}" if count else "Sound"
    stdout.write(
        f"{verdict}: {len(report.files)} files, {format_bytes(report.bytes)} in {report.seconds:.1f} s "
        f"({format_bytes(int(speed))}/s), {compared} compared to a published hash.\n"
    )
    weights = [file for file in report.files if file.tensors]
    unknown = [file for file in weights if not file.has_hash]
    if unknown:
        which = "the weights" if len(unknown) == len(weights) else ", ".join(shown(file.name) for file in unknown)
        stdout.write(
            f"No published hash of {which} lies here (`pull` leaves them beside the files), so bits that have changed "
            "there would not be noticed: compare the sums above with the publisher's.\n"
        )
