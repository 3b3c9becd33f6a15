"""What a model writes can never steer the terminal."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qwen3app.chat.sanitize import sanitize, sanitize_line

_DIRECTIONS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # embeddings, overrides, isolates
any_text = st.text(st.characters(exclude_categories=()))  # lone surrogates included


@given(any_text)
@example("\x1b[31mred\x1b]0;title\x07\x9b2J\x90q\x9c\x7f\r\b")
@example("\ud800\udfff")
def test_no_control_character_passes(text: str) -> None:
    shown = sanitize(text)
    for char in shown:
        assert char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cs"), hex(ord(char))
    shown.encode("utf-8")
    assert not set(_DIRECTIONS) & set(shown)


def test_directions_become_visible() -> None:
    assert sanitize("a" + _DIRECTIONS + "b\u200f\u200e") == "a" + "\ufffd" * 9 + "b\u200f\u200e"


@given(st.lists(any_text))
def test_cleaning_pieces_equals_cleaning_the_whole(pieces: list[str]) -> None:
    assert "".join(map(sanitize, pieces)) == sanitize("".join(pieces))


@given(any_text)
def test_clean_text_is_a_fixed_point(text: str) -> None:
    assert sanitize(sanitize(text)) == sanitize(text)


@given(st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp"), exclude_characters=_DIRECTIONS)))
@example("👩‍👩‍👧‍👦 🇨🇳 🏴󠁧󠁢󠁥󠁮󠁧󠁿 삼겹살 ďábelské 日本語 עברית \u200f")
def test_ordinary_text_is_untouched(text: str) -> None:
    assert sanitize(text) == text


def test_newline_and_tab_stay_and_crlf_is_one_newline() -> None:
    assert sanitize("a\tb\r\nc\n") == "a\tb\nc\n"


@pytest.mark.parametrize(
    "sequence",
    ["\x1b[2J", "\x1b]52;c;ZXZpbA==\x07", "\x9b31m", "\x1bP+q\x1b\\", "\x1b(0", "\x0e", "\x1b[?1049h", "\x1b_x\x1b\\"],
)
def test_known_attacks_become_plain_text(sequence: str) -> None:
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", sanitize(f"a{sequence}b"))


def test_a_line_is_one_line() -> None:
    assert sanitize_line("a\nb\tc\x1b") == "a b c\u241b"
