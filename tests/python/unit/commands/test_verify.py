"""`verify` finds every kind of damage, and nothing in a sound model. The engine is a fake here."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import math
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen3app.abi import engine as abi_engine
from qwen3app.commands import verify as verify_module
from qwen3app.commands.verify import VerifyReport, count_broken, run_verify, verify
from qwen3app.errors import EngineError, ModelError, Status
from qwen3app.text import check, template, tokenizer
from qwen3app.text.errors import TextError


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


@given(st.lists(st.integers(0, 0xFFFF)), st.sampled_from(["BF16", "F16"]))
def test_every_16_bit_value_is_judged_right(values: list[int], dtype: str) -> None:
    data = struct.pack(f"<{len(values)}H", *values)
    if dtype == "F16":
        numbers = struct.unpack(f"<{len(values)}e", data)
    else:
        numbers = tuple(struct.unpack("<f", struct.pack("<I", value << 16))[0] for value in values)
    assert count_broken(data, dtype) == sum(not math.isfinite(number) for number in numbers)


@given(st.lists(st.integers(0, 0xFFFF_FFFF) | st.sampled_from([0x7F800000, 0xFF800001, 0x7F7FFFFF, 0x7FC00000])))
def test_every_32_bit_value_is_judged_right(values: list[int]) -> None:
    data = struct.pack(f"<{len(values)}I", *values)
    numbers = struct.unpack(f"<{len(values)}f", data)
    assert count_broken(data, "F32") == sum(not math.isfinite(number) for number in numbers)


def test_all_16_bit_values_at_once() -> None:
    data = struct.pack("<65536H", *range(65536))
    assert count_broken(data, "BF16") == 2 * 128
    assert count_broken(data, "F16") == 2 * 1024


@pytest.fixture
def model_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    class Engine:
        @classmethod
        def open(cls, *_: object) -> Engine:
            return cls()

        def close(self) -> None:
            pass

    monkeypatch.setattr(abi_engine, "Engine", Engine)
    monkeypatch.setattr(tokenizer.Tokenizer, "from_dir", lambda path: None)
    monkeypatch.setattr(template.ChatTemplate, "from_dir", lambda path, tokenizer: None)
    monkeypatch.setattr(check, "load_sampling_defaults", lambda path: None)
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    write_weights(directory)
    return directory


def write_weights(directory: Path, first: bytes = struct.pack("<4H", 0x3F80, 0x7F7F, 0xFF00, 0)) -> None:
    header = {
        "a": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]},
        "b": {"dtype": "F32", "shape": [1], "data_offsets": [8, 12]},
        "c": {"dtype": "I64", "shape": [1], "data_offsets": [12, 20]},
    }
    text = json.dumps(header).encode()
    data = first + struct.pack("<f", 1.5) + b"\xff" * 8
    (directory / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)


def test_a_sound_model(model_dir: Path) -> None:
    report = verify(model_dir)
    assert report.problems == []
    assert [(file.name, file.tensors) for file in report.files] == [("config.json", 0), ("model.safetensors", 3)]
    for file in report.files:
        data = (model_dir / file.name).read_bytes()
        assert (file.bytes, file.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    out, err = io.StringIO(), io.StringIO()
    assert run_verify(model_dir, stdout=out, stderr=err) == 0
    assert "Sound: 2 files" in out.getvalue() and err.getvalue() == ""
    assert "bits that have changed there would not be noticed" in out.getvalue()


def test_chunks_do_not_change_the_result(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_weights(model_dir, struct.pack("<4H", 0x7F80, 0x7FC0, 1, 0xFF80))
    monkeypatch.setattr(verify_module, "_CHUNK", 4)
    seen: list[int] = []
    totals: set[int] = set()
    report = verify(model_dir, lambda done, total: (seen.append(done), totals.add(total)))
    assert report.files[1].sha256 == hashlib.sha256((model_dir / "model.safetensors").read_bytes()).hexdigest()
    assert report.problems == [
        f"{model_dir}/model.safetensors: tensor a holds 3 infinite or NaN values among 4.",
    ]
    assert seen == sorted(seen) and seen[-1] == report.bytes and totals == {report.bytes}


def test_hashes_are_compared(model_dir: Path) -> None:
    config = (model_dir / "config.json").read_bytes()
    git = hashlib.sha1(b"blob %d\0" % len(config) + config).hexdigest()
    weights = hashlib.sha256((model_dir / "model.safetensors").read_bytes()).hexdigest()
    cache = model_dir / ".cache" / "huggingface" / "download"
    cache.mkdir(parents=True)
    (cache / "config.json.metadata").write_text(f"x\n{git}\n")
    (model_dir / "SHA256SUMS").write_text(f"{weights}  model.safetensors\n")
    report = verify(model_dir)
    assert report.problems == []
    assert [file.compared_to for file in report.files if file.name != "SHA256SUMS"] == [
        [".cache/huggingface/download/config.json.metadata"],
        ["SHA256SUMS"],
    ]
    out = io.StringIO()
    assert run_verify(model_dir, stdout=out, stderr=io.StringIO()) == 0
    assert "2 compared to a published hash.\n" in out.getvalue() and "noticed" not in out.getvalue()
    (model_dir / "SHA256SUMS").write_text(f"{'0' * 64}  model.safetensors\n{'1' * 64}  gone.bin\n")
    (model_dir / "config.json").write_text("{ }")
    problems = verify(model_dir).problems
    assert len(problems) == 3
    assert "gone.bin is missing, but SHA256SUMS gives its hash" in problems[0]
    assert "config.json has the git hash" in problems[1] and "download the file again" in problems[1]
    assert f"SHA-256 {weights}, but SHA256SUMS says {'0' * 64}" in problems[2]
    out, err = io.StringIO(), io.StringIO()
    assert run_verify(model_dir, stdout=out, stderr=err) == 1
    assert err.getvalue().count("\n") == 3 and "3 problems: 3 files" in out.getvalue()
    assert "2 compared to a published hash.\n" in out.getvalue() and "noticed" not in out.getvalue()


def test_json(model_dir: Path) -> None:
    out, err = io.StringIO(), Tty()
    assert run_verify(model_dir, as_json=True, stdout=out, stderr=err) == 0
    report = json.loads(out.getvalue())
    assert report["ok"] and report["problems"] == [] and report["files"][1]["tensors"] == 3
    assert "\rRead 2 B of " in err.getvalue() and err.getvalue().endswith("\r\x1b[K")


def test_the_engines_sentence_is_not_said_twice(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = model_dir / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])

    def refuse(*_: object) -> Any:
        raise EngineError(Status.BAD_MODEL, f"{path} is 1 byte short.")

    monkeypatch.setattr(abi_engine.Engine, "open", refuse)
    assert verify(model_dir).problems == [f"{path} is 1 byte short."]


def test_a_fault_that_several_checks_find_is_one_problem(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard, index, gone = (
        model_dir / name for name in ("a.safetensors", "model.safetensors.index.json", "b.safetensors")
    )
    (model_dir / "model.safetensors").rename(shard)
    index.write_text(json.dumps({"weight_map": {"a": shard.name, "b": gone.name}}))
    wrong = "0" * 64
    (model_dir / "SHA256SUMS").write_text(f"{wrong}  {shard.name}\n{wrong}  {gone.name}\n{wrong}  config.json\n")
    (model_dir / "config.json.sha256").write_text(wrong)

    def refuse(*_: object) -> Any:
        raise EngineError(Status.BAD_MODEL, f"{gone} does not exist, but {index} names it.")

    monkeypatch.setattr(abi_engine.Engine, "open", refuse)
    shard.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    pointer, missing, config = sorted(verify(model_dir).problems)
    assert pointer == f"{shard} is a git-lfs pointer, not the file itself; run `git lfs pull` in the model directory."
    assert missing == f"{gone} does not exist, but {index} names it."
    assert config.startswith(f"{model_dir}/config.json has the SHA-256 ")


def test_the_name_of_one_file_in_that_of_another(model_dir: Path) -> None:
    names = ["config.json", "tokenizer_config.json", "model.safetensors", "model.safetensors.index.json"]
    report = VerifyReport(model_dir, names=frozenset(names))
    for name in reversed(names):
        report.add(f"{model_dir / name} is broken.")
        report.add(f"{model_dir / name}: broken, as has been said of {name}.")
    report.add("Something else is wrong.")
    report.add("Something else is wrong.")
    other = VerifyReport(model_dir, names=frozenset(names))
    other.add("config.json says 5 layers, but model.safetensors has 4.")
    other.add("model.safetensors has the SHA-256 0.")  # which may be why
    assert len(other.problems) == 2
    assert report.problems[:4] == [f"{model_dir / name} is broken." for name in reversed(names)]
    assert report.problems[4:] == ["Something else is wrong."] * 2


def test_a_tensor_of_nan_and_the_hash_that_tells_why(model_dir: Path) -> None:
    write_weights(model_dir, struct.pack("<4H", 0x7F80, 0x7FC0, 1, 0xFF80))
    (model_dir / "SHA256SUMS").write_text(f"{'0' * 64}  model.safetensors\n")
    values, published = verify(model_dir).problems
    assert "tensor a holds 3 infinite or NaN values" in values and "but SHA256SUMS says 000" in published


def test_a_header_that_only_we_find_broken(model_dir: Path) -> None:
    path = model_dir / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert [problem for problem in verify(model_dir).problems if "ends at byte" in problem]


def test_text_files_and_index_are_checked(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Any:
        raise TextError("tokenizer.json is broken.")

    def gone(*_: object) -> Any:
        raise OSError("generation_config.json is gone")

    monkeypatch.setattr(tokenizer.Tokenizer, "from_dir", broken)
    monkeypatch.setattr(check, "load_sampling_defaults", gone)
    (model_dir / "model.safetensors.index.json").write_text("[]")
    problems = verify(model_dir).problems
    assert problems[:2] == ["tokenizer.json is broken.", "generation_config.json is gone"]
    assert "model.safetensors.index.json holds a JSON list" in problems[2]


def test_overlapping_tensors_are_read_once(model_dir: Path) -> None:
    path = model_dir / "model.safetensors"
    header = {
        name: {"dtype": "BF16", "shape": [2], "data_offsets": [begin, begin + 4]}
        for name, begin in (("a", 2), ("b", 4))
    }
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"\0" * 10)
    report = verify(model_dir)
    assert report.files[1].bytes == path.stat().st_size
    assert report.files[1].sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_files_that_cannot_be_read(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path, *_: object) -> str:
        raise OSError(5, "Input/output error", str(path))

    monkeypatch.setattr(verify_module, "_read_file", fail)
    monkeypatch.setattr(verify_module, "published_hashes", lambda path: iter_fail())
    problems = verify(model_dir).problems
    assert problems[0] == "SHA256SUMS cannot be read."
    assert problems[1] == f"{model_dir}/config.json cannot be read: Input/output error."


def iter_fail() -> Any:
    raise ModelError("SHA256SUMS cannot be read.")
    yield


def test_a_file_that_shrinks(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = verify_module._segments
    monkeypatch.setattr(verify_module, "_segments", lambda tensors, size: real(tensors, size + 5))
    assert "it became shorter while it was read" in verify(model_dir).problems[0]


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no model directory"):
        run_verify(tmp_path / "nowhere")


def test_no_model_is_said_before_anything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_module, "verify", lambda *_: pytest.fail("it was read"))
    out, err = io.StringIO(), Tty()
    with pytest.raises(ModelError) as raised:
        run_verify(tmp_path, stdout=out, stderr=err)
    assert str(raised.value) == (
        f"{tmp_path}/config.json is missing; a model directory needs it, download the model again."
    )
    assert out.getvalue() == err.getvalue() == ""


def test_what_vanishes_meanwhile_is_a_sentence(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = ["config.json", "gone.txt", "model.safetensors"]
    monkeypatch.setattr(verify_module, "model_files", lambda path: found)
    report = verify(model_dir)
    assert report.problems == [f"{model_dir}/gone.txt cannot be read: No such file or directory."]
    assert [file.name for file in report.files] == ["config.json", "model.safetensors"]

    def vanished(path: Path) -> Any:
        raise FileNotFoundError(2, "No such file or directory", str(path / "link"))

    monkeypatch.setattr(verify_module, "published_hashes", vanished)
    assert f"{model_dir}/link cannot be read: No such file or directory." in verify(model_dir).problems


def test_a_terminal_sees_how_far_it_is(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(verify_module, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))
    err = Tty()
    assert run_verify(model_dir, stdout=io.StringIO(), stderr=err) == 0
    size = sum(path.stat().st_size for path in model_dir.iterdir())
    assert f"of {size} B (100 %)" in err.getvalue().split("\r")[-2] and err.getvalue().endswith("\r\x1b[K")
