"""Detokenizer: golden streams, characters split over tokens, growth only, equality with one decode."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwen3app.text.detokenizer import Detokenizer
from qwen3app.text.tokenizer import Tokenizer

from .conftest import MEGABYTE, golden, official_tokenizer, seconds_allowed


@pytest.mark.parametrize("case", golden("detok"))
def test_golden_streams(tokenizer: Tokenizer, case: dict[str, Any]) -> None:
    detokenizer = Detokenizer(tokenizer, skip_special=case["skip_special_tokens"])
    earliest = case.get("steps_eager", case["steps"])
    shown = ""
    for token, late, early in zip(case["ids"], case["steps"], earliest, strict=True):
        shown += detokenizer.push([token])
        assert shown.startswith(late)
        assert early.startswith(shown)
    assert shown + detokenizer.finish() == case["final"]
    assert tokenizer.decode(case["ids"], skip_special=case["skip_special_tokens"]) == case["final"]


@pytest.mark.parametrize(
    "text",
    ["👩‍👩‍👧‍👦 🇨🇳 삼겹살 ďábelské 日本語", "𠀀𪛖 龘靐 ﷽ नमस्ते", "é" * 50, "🏴󠁧󠁢󠁥󠁮󠁧󠁿 ok", "\u0000\u007f\u0080\uffff\U0010ffff"],
)
@pytest.mark.parametrize("by_bytes", [False, True])
def test_b50_split_characters_are_never_replaced(tokenizer: Tokenizer, text: str, by_bytes: bool) -> None:
    byte_token = {tokenizer.token_bytes(token)[0]: token for token in range(256)}
    ids = [byte_token[byte] for byte in text.encode()] if by_bytes else tokenizer.encode_plain(text)
    detokenizer = Detokenizer(tokenizer)
    shown = ""
    for token in ids:
        shown += detokenizer.push([token])
        assert text.startswith(shown)
    assert shown + detokenizer.finish() == text == tokenizer.decode(ids)


def test_b51_partial_character_after_wide_text(tokenizer: Tokenizer) -> None:
    """A 世 + partial, a + partial, b: nothing is sent twice, nothing is taken back."""
    byte_token = {tokenizer.token_bytes(token)[0]: token for token in range(256)}
    head = tokenizer.encode_plain("A 世")
    ids = [*head, byte_token[0xE4], byte_token[0xB8], *tokenizer.encode_plain("a"), byte_token[0xF0], 65]
    detokenizer = Detokenizer(tokenizer)
    shown = ""
    for token in ids:
        shown += detokenizer.push([token])
    assert shown + detokenizer.finish() == tokenizer.decode(ids) == "A 世\ufffda\ufffdb"


def test_cut_in_a_character_shows_one_replacement_at_the_end(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer)
    ids = tokenizer.encode_plain("a𠀀")[:-1]
    assert detokenizer.push(ids) == "a"
    assert detokenizer.finish() == "\ufffd"
    assert detokenizer.finish() == ""


@settings(max_examples=200)
@given(
    st.lists(st.one_of(st.integers(0, 255), st.integers(0, 151_700), st.integers(151_640, 151_670)), max_size=40),
    st.lists(st.integers(0, 40), max_size=10),
    st.booleans(),
)
def test_any_ids_in_any_cut_equal_one_decode(ids: list[int], cuts: list[int], skip: bool) -> None:
    tokenizer = official_tokenizer()
    whole = tokenizer.decode(ids, skip_special=skip)
    detokenizer = Detokenizer(tokenizer, skip_special=skip)
    shown, begin = "", 0
    for end in [*sorted(cuts), len(ids)]:
        shown += detokenizer.push(ids[begin:end])
        begin = max(begin, min(end, len(ids)))
        assert whole.startswith(shown)
    assert shown + detokenizer.finish() == whole


def test_time_does_not_grow_with_the_stream(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_plain("The quick brown fox 龘 🥺 ") * (MEGABYTE // 50)
    detokenizer = Detokenizer(tokenizer)
    begin = time.process_time()
    length = sum(len(detokenizer.push([token])) for token in ids)
    assert time.process_time() - begin < seconds_allowed(3)  # 0.1 s; re-decoding the stream would take hours
    assert length == len(tokenizer.decode(ids))
