"""A model directory as files: which tensors lie where, and which hashes were published with them.

Owns reading of safetensors headers for `info` and `verify`, which must say what is in a file before, or although, the
engine refuses it. Refuses to judge a model: whether it can run is the engine's word. Pure functions; any thread.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from qwen3app.errors import ModelError
from qwen3app.text.files import pointer_problem
from qwen3app.weights_index import check_regular, stays_inside

_MAX_BEGINNING = 64  # enough to know a file by
_MAX_HEADER = 100_000_000  # the format's own limit
DTYPE_BYTES = {"BF16": 2, "F16": 2, "F32": 4}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int  # bytes from the file's start
    end: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class PublishedHash:
    kind: Literal["sha256", "git"]  # git: the SHA-1 of git's blob form, which hubs give for small files
    hex: str
    source: str  # where it is written


def read_tensors(path: Path) -> list[TensorEntry]:
    """The tensors of a safetensors file in the order of their bytes; ModelError where the header is broken."""
    check_regular(path)
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            beginning = file.read(_MAX_BEGINNING)
            if problem := pointer_problem(path, beginning):
                raise ModelError(problem)
            file.seek(8)
            length = int.from_bytes(beginning[:8], "little")
            if len(beginning) < 8 or length > _MAX_HEADER or 8 + length > size:
                raise ModelError(f"{path} is no complete safetensors file: its header does not fit its {size} bytes.")
            header = json.loads(file.read(length))
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: the safetensors header is not valid JSON: {error}.") from None
    if not isinstance(header, dict):
        raise ModelError(f"{path}: the safetensors header is not a JSON object.")
    tensors = []
    for name, entry in header.items():
        if name != "__metadata__":
            tensors.append(_entry(path, name, entry, 8 + length, size))
    return sorted(tensors, key=lambda tensor: tensor.begin)


def _entry(path: Path, name: str, entry: Any, base: int, size: int) -> TensorEntry:
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        numbers = [*shape, begin, end]
        if not isinstance(dtype, str) or any(type(number) is not int or number < 0 for number in numbers):
            raise ValueError
    except (TypeError, KeyError, ValueError):
        raise ModelError(f"{path}: tensor {name} has a broken header entry.") from None
    tensor = TensorEntry(name, dtype, tuple(shape), base + begin, base + end)
    if not base <= tensor.begin <= tensor.end <= size:
        raise ModelError(f"{path}: tensor {name} ends at byte {tensor.end}, but the file has {size} bytes.")
    if dtype in DTYPE_BYTES and tensor.elements * DTYPE_BYTES[dtype] != end - begin:
        raise ModelError(f"{path}: tensor {name} has {end - begin} bytes, which is not its shape times {dtype}.")
    return tensor


def model_files(model_dir: Path) -> list[str]:
    """All regular files of the directory as relative names, without hidden ones; links are followed."""
    names = []
    for folder, folders, files in os.walk(model_dir):  # which passes over folders that vanish meanwhile
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = (Path(folder, name) for name in files if not name.startswith("."))
        names += [path.relative_to(model_dir).as_posix() for path in paths if path.is_file()]
    return sorted(names)


def published_hashes(model_dir: Path) -> Iterator[tuple[str, PublishedHash]]:
    """(file, hash) for every hash that the directory brings along: a hub download's metadata and cache links,
    SHA256SUMS, and NAME.sha256 files."""
    cache = model_dir / ".cache" / "huggingface" / "download"
    if cache.is_dir():
        for path in sorted(cache.rglob("*.metadata")):
            lines = _lines(path)
            if len(lines) >= 2 and (found := _by_length(lines[1].strip().strip('"'), _shown(model_dir, path))):
                yield path.relative_to(cache).as_posix().removesuffix(".metadata"), found
    for name in model_files(model_dir):
        path = model_dir / name
        if path.is_symlink():
            target = path.readlink()
            if target.parent.name == "blobs" and (found := _by_length(target.name, f"the link {name}")):
                yield name, found
        if name.rpartition("/")[2].upper() in ("SHA256SUMS", "SHA256SUMS.TXT") or name.endswith(".sha256"):
            yield from _sums(model_dir, name)


def _sums(model_dir: Path, name: str) -> Iterator[tuple[str, PublishedHash]]:
    folder = PurePosixPath(name).parent
    for line in _lines(model_dir / name):
        match = re.fullmatch(r"([0-9a-fA-F]{64})(?:\s+\*?(\S.*?))?\s*", line)
        if match is None:
            continue
        file = match[2] or PurePosixPath(name).name.removesuffix(".sha256")
        if stays_inside(file):
            yield str(folder / file), PublishedHash("sha256", match[1].lower(), name)


def _by_length(text: str, source: str) -> PublishedHash | None:
    if re.fullmatch(r"[0-9a-f]{64}", text):
        return PublishedHash("sha256", text, source)
    return PublishedHash("git", text, source) if re.fullmatch(r"[0-9a-f]{40}", text) else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8", "replace").splitlines()
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}.") from None


def _shown(model_dir: Path, path: Path) -> str:
    return path.relative_to(model_dir).as_posix()
