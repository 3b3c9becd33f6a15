"""Reading a model directory as files: headers, published hashes, and every way they can be broken."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwen3app.commands.format import format_count, shown
from qwen3app.commands.model_files import (
    model_files,
    published_hashes,
    read_tensors,
)
from qwen3app.errors import ModelError
from qwen3app.sizes import format_bytes
from qwen3app.text.errors import TextError
from qwen3app.text.files import read_text
from qwen3app.weights_index import read_json_object, weight_files


def write(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(begin: int, end: int, shape: list[int], dtype: str = "BF16") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_tensors_come_in_the_order_of_their_bytes(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m", {"__metadata__": {"format": "pt"}, "b": entry(4, 8, [2]), "a": entry(0, 4, [1, 2])}, b"12345678"
    )
    tensors = read_tensors(path)
    assert [tensor.name for tensor in tensors] == ["a", "b"]
    assert [tensor.elements for tensor in tensors] == [2, 2]
    assert path.read_bytes()[tensors[1].begin : tensors[1].end] == b"5678"


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        (b"{", "is not valid JSON"),
        (b"[]", "is not a JSON object"),
        (b"[" * 100_000, "is not valid JSON"),
        ({"a": entry(0, 4, [1])}, "is not its shape times BF16"),
        ({"a": entry(0, 40, [20])}, "but the file has"),
        ({"a": entry(4, 0, [0])}, "ends at byte"),
        ({"a": entry(-1, 4, [2])}, "broken header entry"),
        ({"a": {"dtype": "BF16"}}, "broken header entry"),
        ({"a": 3}, "broken header entry"),
        ({"a": entry(0, 4, ["2"])}, "broken header entry"),  # type: ignore[list-item]
        ({"a": entry(0, 4, [True, 2])}, "broken header entry"),
    ],
)
def test_broken_headers(tmp_path: Path, header: Any, sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        read_tensors(write(tmp_path / "m", header, b"12345678"))


@pytest.mark.parametrize("data", [b"", b"1234567", b"\xff" * 20])
def test_no_safetensors_file_at_all(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "m").write_bytes(data)
    with pytest.raises(ModelError, match="no complete safetensors file"):
        read_tensors(tmp_path / "m")


def test_a_git_lfs_pointer_is_named(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    for read in (read_tensors, read_json_object):
        with pytest.raises(ModelError, match=r"m is a git-lfs pointer, not the file itself; run `git lfs pull`"):
            read(tmp_path / "m")


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        read_tensors(tmp_path / "missing")
    with pytest.raises(ModelError, match="is not a regular file"):
        read_json_object(tmp_path)
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(ModelError, match="not an object"):
        read_json_object(tmp_path / "list.json")
    (tmp_path / "bad.json").write_bytes(b"\xff{")
    with pytest.raises(ModelError, match="not UTF-8 text"):
        read_json_object(tmp_path / "bad.json")
    with (tmp_path / "huge.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ModelError, match="too many for a JSON file"):
        read_json_object(tmp_path / "huge.json")


def test_weight_files(tmp_path: Path) -> None:
    assert weight_files(tmp_path) == []
    (tmp_path / "model.safetensors").touch()
    assert weight_files(tmp_path) == [tmp_path / "model.safetensors"]
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "2.safetensors", "b": "1.safetensors", "c": "1.safetensors"}}))
    assert [path.name for path in weight_files(tmp_path)] == ["1.safetensors", "2.safetensors"]
    for name in ("../x", "/etc/passwd", "", "\0"):
        index.write_text(json.dumps({"weight_map": {"a": name}}))
        with pytest.raises(ModelError, match="outside the model directory"):
            weight_files(tmp_path)
    for broken in ("{}", '{"weight_map": {"a": 1}}'):
        index.write_text(broken)
        with pytest.raises(ModelError, match="no weight_map"):
            weight_files(tmp_path)


def test_published_hashes(tmp_path: Path) -> None:
    cache = tmp_path / ".cache" / "huggingface" / "download" / "sub"
    cache.mkdir(parents=True)
    (cache / "a.bin.metadata").write_text(f"commit\n{'a' * 64}\n1700000000\n")
    (cache.parent / "b.json.metadata").write_text(f'commit\n"{"b" * 40}"\n')
    (cache.parent / "c.json.metadata").write_text("commit\nno hash\n")
    (cache.parent / "d.json.metadata").write_text("commit")
    (tmp_path / "SHA256SUMS").write_text(f"{'C' * 64} *x.bin\n# a comment\n{'d' * 64}  ../evil\n{'e' * 64}  sub/y\n")
    (tmp_path / "z.bin.sha256").write_text("f" * 64 + "\n")
    blobs = tmp_path.parent / "blobs"
    blobs.mkdir(exist_ok=True)
    (blobs / ("1" * 64)).write_text("x")
    (tmp_path / "linked").symlink_to(blobs / ("1" * 64))
    found = {name: (item.kind, item.hex, item.source) for name, item in published_hashes(tmp_path)}
    assert found == {
        "sub/a.bin": ("sha256", "a" * 64, ".cache/huggingface/download/sub/a.bin.metadata"),
        "b.json": ("git", "b" * 40, ".cache/huggingface/download/b.json.metadata"),
        "x.bin": ("sha256", "c" * 64, "SHA256SUMS"),
        "sub/y": ("sha256", "e" * 64, "SHA256SUMS"),
        "z.bin": ("sha256", "f" * 64, "z.bin.sha256"),
        "linked": ("sha256", "1" * 64, "the link linked"),
    }
    assert model_files(tmp_path) == ["SHA256SUMS", "linked", "z.bin.sha256"]


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_garbage_never_crashes_the_reader(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "garbage"
    for text in (data, len(data).to_bytes(8, "little") + data):
        path.write_bytes(text)
        try:
            read_tensors(path)
        except ModelError as error:
            assert "\n" not in str(error)


def test_numbers() -> None:
    assert [format_bytes(count) for count in (0, 999, 1000, 15_100_000_000, 2_000_000_000_000)] == [
        "0 B",
        "999 B",
        "1 kB",
        "15.1 GB",
        "2 TB",
    ]
    assert [format_count(count) for count in (7, 1500, 596_049_920, 8_190_735_360)] == ["7", "1.5 k", "596 M", "8.19 B"]
    assert shown("a\x1b[2J\nb") == "a\ufffd[2J\ufffdb"


@pytest.mark.parametrize("read", [read_json_object, read_tensors, read_text])
def test_a_pipe_in_place_of_a_file_is_refused_at_once(tmp_path: Path, read: Callable[[Path], object]) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises((ModelError, TextError), match="pipe is not a regular file"):
        read(tmp_path / "pipe")
