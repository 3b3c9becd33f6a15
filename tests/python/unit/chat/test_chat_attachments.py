"""Files in a question."""

from __future__ import annotations

from pathlib import Path

import pytest

from qwen3app.chat.attachments import MAX_BYTES, with_files
from qwen3app.chat.errors import ChatError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("x = 1\ny = 2\n")
    (tmp_path / "my notes").write_text("one ``` two")
    (tmp_path / "sub").mkdir()
    return tmp_path


def test_a_file_follows_the_question() -> None:
    question = with_files("What does @a.py do?")
    assert question.text == "What does a.py do?\n\na.py:\n```py\nx = 1\ny = 2\n```"
    assert question.notes == ["a.py: 2 lines added."]


def test_quoted_names_and_fences_that_the_text_cannot_close() -> None:
    question = with_files('Sum up @"my notes".')
    assert question.text == "Sum up my notes.\n\nmy notes:\n````\none ``` two\n````"
    assert question.notes == ["my notes: 1 line added."]


def test_a_file_named_twice_is_added_once(folder: Path) -> None:
    question = with_files(f"@a.py, @a.py (@{folder}/sub/../a.py)")
    assert question.text.startswith(f"a.py, a.py (@{folder}/sub/../a.py)\n\na.py:")  # a bracket is no white space
    assert question.text.count("x = 1") == 1


@pytest.mark.parametrize(
    "text", ["mail a@a.py", "@dataclass", "@", "@ a.py", "@someone hello", "@.", "@..", "@" + "x" * 9000]
)
def test_other_words_stay(text: str) -> None:
    question = with_files(text)
    assert question.text == text and not question.notes


def test_what_looks_like_a_path_is_said_to_be_none() -> None:
    question = with_files("see @nothere.txt and @sub/none")
    assert question.text == "see @nothere.txt and @sub/none"
    assert question.notes == [
        "nothere.txt is no file: @nothere.txt is sent as it stands.",
        "sub/none is no file: @sub/none is sent as it stands.",
    ]


def test_a_directory_is_said_to_be_one(folder: Path) -> None:
    question = with_files(f"What is in @sub, @sub/ and @{folder}?")
    assert question.text == f"What is in @sub, @sub/ and @{folder}?"
    assert question.notes == [
        f"{name} is a directory, and only files can be added: @{name} is sent as it stands."
        for name in ("sub", "sub/", str(folder))
    ]


def test_home_is_expanded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))
    assert "x = 1" in with_files("@~/a.py").text


def test_what_cannot_be_sent_is_one_sentence(folder: Path) -> None:
    (folder / "big").write_bytes(b"a" * (MAX_BYTES + 1))
    (folder / "latin").write_bytes(b"caf\xe9")
    (folder / "zero").write_bytes(b"a\0b")
    for name, sentence in (
        ("big", "larger than 4 MiB"),
        ("latin", "not UTF-8 text: byte 3 is 0xe9"),
        ("zero", "NUL"),
    ):
        with pytest.raises(ChatError, match=sentence):
            with_files(f"look at @{name}")
