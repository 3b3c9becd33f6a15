"""The editor and the clipboard, as programs of the test."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from qwen3app.chat.desktop import clipboard_command, copy_text, edit_text
from qwen3app.chat.errors import ChatError


def program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_the_editor_changes_the_text(tmp_path: Path) -> None:
    editor = program(tmp_path / "my editor", 'test "$1" = --wait && sed -i s/a/b/ "$2"')
    assert edit_text("a\n日本", {"VISUAL": f"'{editor}' --wait", "EDITOR": "false"}) == "b\n日本"


@pytest.mark.parametrize(
    ("editor", "sentence"),
    [("/no/such/editor", "cannot be started"), ("false", "ended with code 1"), ("'", "cannot be started")],
)
def test_an_editor_that_fails(editor: str, sentence: str) -> None:
    with pytest.raises(ChatError, match=sentence):
        edit_text("a", {"EDITOR": editor})


def test_no_editor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ChatError, match="set EDITOR"):
        edit_text("a", {})


def test_the_clipboard_of_the_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    taken = tmp_path / "taken"
    program(tmp_path / "tmux", f'echo "$*" > {taken}; cat >> {taken}')
    program(tmp_path / "wl-copy", "exit 1")
    assert copy_text("日本\n", {"TMUX": "x", "WAYLAND_DISPLAY": "y"}) is None
    assert taken.read_text() == "load-buffer -w -\n日本\n"
    assert clipboard_command({"WAYLAND_DISPLAY": "y"}) == ["wl-copy"]
    sequence = copy_text("日本\n", {"WAYLAND_DISPLAY": "y"})  # that program fails: the terminal is asked
    assert sequence == "\x1b]52;c;" + base64.b64encode("日本\n".encode()).decode() + "\x07"
    assert clipboard_command({}) is None and clipboard_command({"TMUX": ""}) is None
