"""The declarations that cffi gets against the header they come from, and finding library and header."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import cffi
import pytest

from qwen3app.abi import engine as engine_module
from qwen3app.abi import header as header_module
from qwen3app.abi.header import LibraryFiles, declarations, find_library, integer_macros
from qwen3app.abi.types import (
    EVENT_STRUCT,
    LOGPROB_STRUCT,
    MAX_TOP_LOGPROBS,
    EngineInfo,
    EngineOptions,
    EnginePeaks,
    EngineRequest,
    EngineStats,
    Event,
    EventKind,
    FinishCode,
    OpTime,
    ProfileSpec,
)
from qwen3app.errors import Status, UsageError

ROOT = Path(__file__).resolve().parents[4]
HEADER = (ROOT / "native" / "include" / "qwen3.h").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def ffi() -> Any:
    ffi = cffi.FFI()
    ffi.cdef(declarations(HEADER))
    return ffi


def test_every_exported_function_is_declared() -> None:
    code = re.sub(r"/\*.*?\*/", "", HEADER, flags=re.S)
    exported = set(re.findall(r"QWEN3_API[^;(]*?\b(qwen3_\w+)\s*\(", code))
    declared = set(re.findall(r"\b(qwen3_\w+)\s*\((?!\s*\*)", declarations(HEADER)))
    assert exported and declared == exported
    assert len(re.findall(r"\bQWEN3_API\b(?!\s*$|_)", code)) - 2 <= len(exported)


def test_nothing_is_left_that_cffi_cannot_read() -> None:
    text = declarations(HEADER)
    assert "#" not in text and "/*" not in text and "QWEN3_API" not in text and 'extern "C"' not in text
    assert "[8]" in text  # eos_ids[QWEN3_MAX_EOS_IDS]


def fields_of(ffi: Any, name: str) -> list[str]:
    return [field for field, _ in ffi.typeof(name).fields]


def test_event_tuples_are_laid_out_as_the_struct(ffi: Any) -> None:
    assert tuple(fields_of(ffi, "qwen3_event")) == Event._fields
    assert ffi.sizeof("qwen3_event") == EVENT_STRUCT.size == 112
    assert ffi.sizeof("qwen3_logprob") == LOGPROB_STRUCT.size
    native = ffi.new("qwen3_event *")
    values = [7 + i for i in range(len(Event._fields))]
    for name, value in zip(Event._fields, values, strict=True):
        setattr(native, name, value)
    assert EVENT_STRUCT.unpack(bytes(ffi.buffer(native))) == tuple(values)


def test_dataclasses_have_the_structs_fields(ffi: Any) -> None:
    callbacks = {"log", "log_user", "progress", "progress_user"}
    lengths = {"n_prompt", "n_logit_bias", "n_stop_ids", "n_eos_ids"}
    for struct, kind in (
        ("qwen3_options", EngineOptions),
        ("qwen3_info", EngineInfo),
        ("qwen3_stats", EngineStats),
        ("qwen3_request", EngineRequest),
        ("qwen3_peaks", EnginePeaks),
        ("qwen3_profile_spec", ProfileSpec),
        ("qwen3_op_time", OpTime),
    ):
        native = set(fields_of(ffi, struct)) - {"struct_size", "reserved"} - callbacks - lengths
        assert native == set(kind.__annotations__), struct


def test_numbers_equal_the_headers(ffi: Any) -> None:
    enums = dict(re.findall(r"\bQWEN3_(\w+)\s*=\s*(\d+)", HEADER))
    for status in Status:
        assert enums[status.name] == str(int(status))
    for kind in EventKind:
        assert enums[f"EVENT_{kind.name}"] == str(int(kind))
    for code in FinishCode:
        assert enums[f"FINISH_{code.name}"] == str(int(code))
    assert integer_macros(HEADER)["QWEN3_MAX_TOP_LOGPROBS"] == MAX_TOP_LOGPROBS


def test_finding_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, checkout = tmp_path / "qwen3app", tmp_path
    monkeypatch.setattr(header_module, "_PACKAGE", package)
    monkeypatch.setattr(header_module, "_CHECKOUT", checkout)
    monkeypatch.delenv("QWEN3_LIBRARY", raising=False)
    with pytest.raises(UsageError, match="build it with `make`"):
        find_library()

    built = checkout / "build" / "native" / "libqwen3.so"
    built.parent.mkdir(parents=True)
    built.touch()
    with pytest.raises(UsageError, match=r"qwen3\.h"):
        find_library()
    source = checkout / "native" / "include" / "qwen3.h"
    source.parent.mkdir(parents=True)
    source.touch()
    assert find_library() == LibraryFiles(built, source)

    installed = package / "_native" / "libqwen3.so"
    installed.parent.mkdir(parents=True)
    installed.touch()
    (installed.parent / "qwen3.h").touch()
    assert find_library() == LibraryFiles(installed, installed.parent / "qwen3.h")

    monkeypatch.setenv("QWEN3_LIBRARY", str(tmp_path / "other.so"))
    with pytest.raises(UsageError, match="not a file"):
        find_library()
    (tmp_path / "other.so").touch()
    assert find_library() == LibraryFiles(tmp_path / "other.so", source)
    (tmp_path / "qwen3.h").touch()
    assert find_library() == LibraryFiles(tmp_path / "other.so", tmp_path / "qwen3.h")


def test_a_library_that_does_not_fit_is_one_sentence(tmp_path: Path) -> None:
    header = tmp_path / "qwen3.h"
    shutil.copy(ROOT / "native" / "include" / "qwen3.h", header)
    broken = tmp_path / "libqwen3.so"
    broken.write_bytes(b"not a library")
    with pytest.raises(UsageError, match="cannot be loaded"):
        engine_module._open_library(LibraryFiles(broken, header))
    real = find_library().library
    header.write_text(HEADER.replace("#define QWEN3_ABI_VERSION 1", "#define QWEN3_ABI_VERSION 7"))
    with pytest.raises(UsageError, match="ABI version 1"):
        engine_module._open_library(LibraryFiles(real, header))
    header.write_text(HEADER.replace("int64_t first_token_ns;", "int64_t first_token_ns; int64_t more;"))
    with pytest.raises(UsageError, match="lays out"):
        engine_module._open_library(LibraryFiles(real, header))
