"""suggestions.json of a model directory, the sentence about the toy, and what /status and the log tell of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from serving import TextParts, make_model, serving

from qwen3app.server.greeting import Greeting, load_greeting
from qwen3app.settings import DEMO_MODEL, DEMO_NOTE

FORM = "must be a JSON list of 1 to 6 strings."
LINE = "must be a line of 1 to 120 printable characters."


def test_a_model_without_the_file_says_nothing(tmp_path: Path) -> None:
    assert load_greeting(tmp_path) == Greeting(None, None, None)


def test_suggestions_are_taken_as_they_are(tmp_path: Path) -> None:
    texts = ["Où est-ce?", "<b>x</b>", "a" * 120, "4", "5", "6"]
    (tmp_path / "suggestions.json").write_text(json.dumps(texts))
    assert load_greeting(tmp_path) == Greeting(tuple(texts), None, None)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"{", "is not valid JSON."),
        (b"[" * 60_000, "is not valid JSON."),
        (b"\xff", "is not UTF-8 text (byte 0); download the file again."),
        (b"version https://git-lfs.github.com/spec/v1", "is a git-lfs pointer, not the file itself"),
        (b'{"suggestions": []}', FORM),
        (b'"a"', FORM),
        (b"[]", FORM),
        (json.dumps(["a"] * 7).encode(), FORM),
        (b'["a", 2]', f": entry 2 {LINE}"),
        (b'["  "]', f": entry 1 {LINE}"),
        (b'["a\\nb"]', f": entry 1 {LINE}"),
        (b'["a\\u202eb"]', f": entry 1 {LINE}"),  # turns the direction of writing
        (json.dumps(["a", "b" * 121]).encode(), f": entry 2 {LINE}"),
        (b" " * 65_537, "has 65,537 bytes, more than 65,536."),
    ],
)
def test_a_wrong_file_is_ignored_and_named(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "suggestions.json"
    path.write_bytes(content)
    found = load_greeting(tmp_path)
    assert found.suggestions is None and found.problem is not None
    assert found.problem.startswith(str(path)) and problem in found.problem
    assert found.problem.endswith(" The page shows its own suggestions.")


def test_a_folder_of_that_name_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "suggestions.json").mkdir()
    assert "is not a regular file" in (load_greeting(tmp_path).problem or "")


def test_the_toy_is_called_one_wherever_it_is_named_from(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(DEMO_MODEL)
    for directory in (DEMO_MODEL, link):
        greeting = load_greeting(directory)
        assert greeting.note == DEMO_NOTE and greeting.suggestions is not None and len(greeting.suggestions) == 4
    assert "toy" in DEMO_NOTE and DEMO_NOTE.endswith("qwen3-8b pull Qwen/Qwen3-8B --dir models/qwen3-8b")


@pytest.mark.parametrize(
    ("content", "suggestions", "logged"),
    [(None, None, False), ('["Who are you?"]', ["Who are you?"], False), ("[1]", None, True)],
)
async def test_status_and_log(
    text_parts: TextParts,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    content: str | None,
    suggestions: list[str] | None,
    logged: bool,
) -> None:
    if content is not None:
        (tmp_path / "suggestions.json").write_text(content)
    async with serving(replace(make_model(text_parts, FakeEngine()), directory=tmp_path)) as server:
        status = (await server.client.get("/status")).json()
    assert status["suggestions"] == suggestions and status["note"] is None
    events = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    found = [(each["level"], each["message"]) for each in events if each["event"] == "suggestions"]
    problem = f"{tmp_path}/suggestions.json: entry 1 {LINE} The page shows its own suggestions."
    assert found == ([("warning", problem)] if logged else [])
