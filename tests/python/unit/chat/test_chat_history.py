"""The history file: where, whose, and what happens when it cannot be used."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from prompt_toolkit.history import InMemoryHistory

from qwen3app.chat import history as history_module
from qwen3app.chat.history import history_path, open_history


def test_place() -> None:
    assert history_path({"XDG_STATE_HOME": "/s", "HOME": "/h"}) == Path("/s/qwen3-8b/history")
    assert history_path({"HOME": "/h"}) == Path("/h/.local/state/qwen3-8b/history")
    assert history_path({"XDG_STATE_HOME": "relative", "HOME": "/h"}) == Path("/h/.local/state/qwen3-8b/history")
    assert history_path({}) is None


def test_lines_come_back_and_only_the_owner_may_read(tmp_path: Path) -> None:
    path = tmp_path / "a" / "history"
    history = open_history(path)
    history.store_string("one\ntwo")
    history.store_string("bad \udcff byte")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(open_history(path).load_history_strings()) == ["bad ? byte", "one\ntwo"]


def test_a_readable_file_is_made_private(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_text("")
    path.chmod(0o644)
    open_history(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_place_that_cannot_be_used_costs_only_the_history(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for path in (None, tmp_path / "file" / "history", tmp_path, tmp_path / "link"):
        assert type(open_history(path)) is InMemoryHistory


def test_a_file_that_vanishes_is_no_failure(tmp_path: Path) -> None:
    path = tmp_path / "a" / "history"
    history = open_history(path)
    path.unlink()
    assert list(history.load_history_strings()) == []
    path.parent.rmdir()
    history.store_string("x")
    path.parent.mkdir()
    path.mkdir()
    assert list(history.load_history_strings()) == []


def test_a_long_file_is_cut_at_an_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "_MAX_BYTES", 1000)
    path = tmp_path / "history"
    history = open_history(path)
    for i in range(100):
        history.store_string(f"line {i}")
    lines = list(open_history(path).load_history_strings())
    assert lines[0] == "line 99" and 2 < len(lines) < 30
    assert os.path.getsize(path) <= 500  # noqa: PTH202
    path.write_bytes(b"x" * 2000)
    assert list(open_history(path).load_history_strings()) == []
