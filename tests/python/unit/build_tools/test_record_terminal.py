"""The recorded session: how a screen becomes a picture and a text, and that both are in the documents."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest

from build_tools.record_terminal import BEGIN, COMMAND, END, SESSION, compact, svg, with_session

ROOT = Path(__file__).resolve().parents[4]
SCREEN = "hello   \n> one\n\x1b[2mThinking...\x1b[0m\nfirst \x1b[1mbold\x1b[0m\n>\n\n\x1b[39m\n\n\x1b[7mbar\x1b[0m\n"


def words_of(picture: str) -> str:
    """What a picture's lines of text say."""
    found = re.findall(r"<text[^>]*>([^<]*)</text>", picture)
    return " ".join(unescape(text).replace("\xa0", " ") for text in found)


def test_a_screen_loses_only_its_empty_rows() -> None:
    assert compact("hello  \n> one\n\nanswer\n>\n\n\nbar\n\n") == f"$ {COMMAND}\nhello\n> one\n\nanswer\n>\nbar"
    lines = compact(SCREEN).split("\n")
    assert lines[0] == f"$ {COMMAND}" and lines[-2] == ">" and "bar" in lines[-1] and len(lines) == 7


def test_a_picture_has_the_words_and_nothing_from_elsewhere() -> None:
    picture = svg(compact(SCREEN))
    assert "first" in words_of(picture) and "bold" in words_of(picture) and "\x1b" not in picture
    assert "url(" not in picture.replace("url(#terminal", "") and "@font-face" not in picture


def test_a_document_gets_the_text_between_its_marks() -> None:
    document = f"a\n{BEGIN}old\n{END}\nb\n"
    assert with_session(document, "new") == f"a\n{BEGIN}```\nnew\n```\n{END}\nb\n"
    with pytest.raises(ValueError, match="marks"):
        with_session("none", "new")


def test_the_documents_show_the_session_that_the_script_holds() -> None:
    text = (ROOT / "docs" / "terminal.md").read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    picture = words_of((ROOT / "docs" / "images" / "terminal.svg").read_text(encoding="utf-8"))
    for typed, expected in SESSION:
        assert f"\n> {typed}\n" in text and f"> {typed}" in picture, typed
        assert expected in text.partition(f"\n> {typed}")[2], expected
        assert expected.strip() in picture, expected
    assert "docs/images/terminal.svg" in (ROOT / "README.md").read_text(encoding="utf-8")
