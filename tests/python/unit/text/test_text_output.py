"""Reasoning split and the whole output chain: tags by id and by text, stop strings, streams equal one push."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qwen3app.text.output import OutputStream
from qwen3app.text.reasoning import ReasoningSplitter
from qwen3app.text.tokenizer import Tokenizer

from .conftest import MEGABYTE, official_tokenizer, seconds_allowed

OPEN, CLOSE = 151667, 151668
Result = tuple[str, str, str | None]


def run(tokenizer: Tokenizer, pieces: Sequence[Sequence[int]], **options: Any) -> Result:
    """(reasoning, content, matched stop) of a stream; nothing may come after a stop."""
    settings_ = {"thinking": False, "split_reasoning": True, **options}
    stream = OutputStream(tokenizer, **settings_)
    deltas = [stream.push(piece) for piece in pieces]
    deltas.append(stream.finish())
    stopped = [delta.stopped for delta in deltas]
    assert stopped == sorted(stopped)
    after = deltas[stopped.index(True) + 1 :] if True in stopped else []
    assert not any(delta.content for delta in after)
    return "".join(d.reasoning for d in deltas), "".join(d.content for d in deltas), stream.matched_stop


def both(tokenizer: Tokenizer, ids: Sequence[int], **options: Any) -> Result:
    """The same for one push and for a push per token."""
    whole = run(tokenizer, [ids], **options)
    assert run(tokenizer, [[token] for token in ids], **options) == whole
    return whole


@pytest.mark.parametrize(
    ("text", "thinking", "reasoning", "content"),
    [
        # the model thinks by itself
        ("<think>\nhm\n</think>\n\nHi", False, "hm", "Hi"),
        ("<think>hm</think>Hi", False, "hm", "Hi"),
        ("\n<think>\n\nhm\n\nhm\n\n</think>\n\nHi\n", False, "hm\n\nhm", "Hi\n"),
        (" \n <think>hm</think> Hi", False, "hm", " Hi"),
        # no thought at all: content to the letter
        ("Hi", False, "", "Hi"),
        ("\n\n Hi", False, "", "\n\n Hi"),
        ("\n\n", False, "", "\n\n"),
        ("", False, "", ""),
        ("Hi <think>no</think> thought", False, "", "Hi <think>no</think> thought"),
        ("Done.</think>", False, "", "Done.</think>"),
        # a stray closing tag at the start closes what the prompt closed already
        ("</think>\n\nHi", False, "", "Hi"),
        # the prompt opened the thought
        ("\nhm\n</think>\n\nHi", True, "hm", "Hi"),
        ("<think>\nhm</think>Hi", True, "hm", "Hi"),
        ("<think>\n<think>\nhm</think>Hi", True, "hm", "Hi"),
        ("hm <think> hm</think>Hi", True, "hm <think> hm", "Hi"),
        ("</think>\n\nHi", True, "", "Hi"),
        ("hm</think>", True, "hm", ""),
        ("hm</think>\n\n", True, "hm", ""),
        ("hm</think>\n\nHi</think>you<think>", True, "hm", "Hi</think>you<think>"),
        # no end
        ("hm\n", True, "hm", ""),
        ("hm</thi", True, "hm</thi", ""),
        ("\n\n", True, "", ""),
        ("<thi", True, "<thi", ""),
        ("<think>", False, "", ""),
    ],
)
def test_split_by_token_and_by_text(
    model_dir: Callable[..., Path], tokenizer: Tokenizer, text: str, thinking: bool, reasoning: str, content: str
) -> None:
    assert both(tokenizer, tokenizer.encode_raw(text), thinking=thinking) == (reasoning, content, None)
    by_text = Tokenizer.from_dir(model_dir(["<|im_end|>"]))  # no think tokens: the tags are ordinary text
    assert both(by_text, by_text.encode_raw(text), thinking=thinking) == (reasoning, content, None)
    # text of the tags, with bytes as tokens, in every size of piece
    ids = by_text.encode_raw(text)
    for size in (2, 3, 5, 8):
        pieces = [ids[i : i + size] for i in range(0, len(ids), size)]
        assert run(by_text, pieces, thinking=thinking) == (reasoning, content, None)


def test_b21_newlines_before_a_call_are_no_content(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_raw("<think>\nneed ls\n</think>\n\n")
    assert both(tokenizer, ids) == ("need ls", "", None)


def test_b24_thinking_off_puts_the_answer_into_content(tokenizer: Tokenizer) -> None:
    assert both(tokenizer, tokenizer.encode_raw("The answer."), thinking=False) == ("", "The answer.", None)


@pytest.mark.parametrize("thinking", [True, False])
def test_b26_cut_before_the_closing_tag_is_reasoning_only(tokenizer: Tokenizer, thinking: bool) -> None:
    ids = tokenizer.encode_raw(("" if thinking else "<think>\n") + "I think that the")
    for n in range(2, len(ids) + 1):
        _, content, _ = both(tokenizer, ids[:n], thinking=thinking)
        assert content == ""
    assert both(tokenizer, ids, thinking=thinking) == ("I think that the", "", None)


def test_b27_thought_opened_by_the_prompt(tokenizer: Tokenizer) -> None:
    assert both(tokenizer, tokenizer.encode_raw("abc</think>\n\nhi"), thinking=True) == ("abc", "hi", None)


def test_b29_empty_thought_leaves_no_tags_and_no_blank_lines(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_raw("<think>\n\n</think>\n\nHello")
    assert both(tokenizer, ids) == ("", "Hello", None)


def test_only_the_control_token_is_a_tag(tokenizer: Tokenizer) -> None:
    """A tag that the model spells with ordinary tokens is text."""
    ids = [OPEN, *tokenizer.encode_plain("the tag </think> ends it"), CLOSE, *tokenizer.encode_plain("ok")]
    assert both(tokenizer, ids) == ("the tag </think> ends it", "ok", None)
    assert both(tokenizer, tokenizer.encode_plain("<think>x")) == ("", "<think>x", None)


def test_a_flood_of_white_space_is_content_in_the_end(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_plain("\n") * 1000
    assert both(tokenizer, ids) == ("", "\n" * 1000, None)
    assert both(tokenizer, [*ids[:255], OPEN, CLOSE, 64]) == ("", "a", None)
    assert both(tokenizer, [*ids[:256], OPEN, CLOSE, 64]) == ("", "\n" * 256 + "<think></think>a", None)


def test_unfinished_character_before_a_tag(tokenizer: Tokenizer) -> None:
    partial = tokenizer.encode_plain("𠀀")[:-1]
    assert both(tokenizer, [OPEN, 64, *partial, CLOSE, 65, *partial]) == ("a\ufffd", "b\ufffd", None)


def test_reasoning_tokens(model_dir: Callable[..., Path], tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_raw("<think>\nabc def\n</think>\n\nHi there")
    for pieces in ([ids], [[token] for token in ids], [ids[:3], ids[3:]]):
        stream = OutputStream(tokenizer, thinking=False, split_reasoning=True)
        for piece in pieces:
            stream.push(piece)
        assert stream.reasoning_tokens == ids.index(CLOSE) - 1
    by_text = Tokenizer.from_dir(model_dir([]))
    stream = OutputStream(by_text, thinking=True, split_reasoning=True)
    stream.push(by_text.encode_raw("abc def</think>Hi"))
    assert stream.reasoning_tokens == len("abc def</think")


# -- stop strings ------------------------------------------------------------------------------------------------------


def test_b53_stop_across_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_raw(" delta epsilon zeta eta theta iota")
    assert both(tokenizer, ids, stops=[" zeta eta theta"]) == ("", " delta epsilon", " zeta eta theta")
    assert both(tokenizer, ids[:-2], stops=[" zeta eta theta!"])[1] == tokenizer.decode(ids[:-2])


def test_b54_what_is_flushed_at_the_end_passes_all_stages(tokenizer: Tokenizer) -> None:
    ids = [OPEN, *tokenizer.encode_plain("hm"), CLOSE, *tokenizer.encode_plain("\n\nab\ufffd"), 151645]
    partial = tokenizer.encode_plain("𠀀")[:-1]
    assert both(tokenizer, [*ids[:-1], *partial], stops=["\ufffd\ufffd"]) == ("hm", "ab", "\ufffd\ufffd")
    assert both(tokenizer, ids, stops=["\ufffd!"]) == ("hm", "ab\ufffd", None)  # and no tail of a control token


def test_b55_nothing_after_the_stop_leaks(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_raw("one, two, three, four, five, six")
    assert both(tokenizer, ids, stops=["five"]) == ("", "one, two, three, four, ", "five")
    assert both(tokenizer, ids, stops=["three"], include_stop=True) == ("", "one, two, three", "three")


def test_stop_strings_do_not_end_a_thought(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_raw("<think>\nnot STOP yet\n</think>\n\nok STOP now")
    assert both(tokenizer, ids, stops=["STOP"]) == ("not STOP yet", "ok ", "STOP")
    assert both(tokenizer, ids, stops=["STOP"], split_reasoning=False) == ("", "<think>\nnot ", "STOP")


def test_without_split_all_is_content(tokenizer: Tokenizer) -> None:
    text = "<think>\nhm\n</think>\n\nHi"
    assert both(tokenizer, tokenizer.encode_raw(text), split_reasoning=False) == ("", text, None)


def test_special_tokens_are_hidden_or_shown(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_raw("Hi<|im_end|>")
    assert both(tokenizer, ids) == ("", "Hi", None)
    assert both(tokenizer, ids, skip_special=False) == ("", "Hi<|im_end|>", None)


# -- properties --------------------------------------------------------------------------------------------------------

_token = st.one_of(
    st.sampled_from([OPEN, CLOSE, 198, 271, 220, 64, 65]),
    st.integers(0, 255),
    st.integers(0, 151_670),
)


@settings(max_examples=300)
@given(
    st.lists(_token, max_size=30),
    st.lists(st.integers(0, 30), max_size=8),
    st.booleans(),
    st.booleans(),
    st.lists(st.text("ab\n<", min_size=1, max_size=3), max_size=3),
)
@example([OPEN, 64, CLOSE, 271, 65], [1, 2, 3, 4], False, True, [])
def test_stream_equals_plain(ids: list[int], cuts: list[int], thinking: bool, split: bool, stops: list[str]) -> None:
    tokenizer = official_tokenizer()
    options: dict[str, Any] = {"thinking": thinking, "split_reasoning": split, "stops": stops}
    whole = both(tokenizer, ids, **options)
    places = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    pieces = [ids[begin:end] for begin, end in pairwise(places)]
    assert run(tokenizer, pieces, **options) == whole
    if not split and whole[2] is None:
        assert whole[:2] == ("", tokenizer.decode(ids))


@settings(max_examples=300)
@given(
    st.lists(st.sampled_from(["<think>", "</think>", "\n", " ", "<", "<th", "ink>", "a", "/think>"]), max_size=12),
    st.lists(st.integers(0, 60), max_size=8),
    st.booleans(),
)
def test_split_by_text_does_not_depend_on_cuts(fragments: list[str], cuts: list[int], thinking: bool) -> None:
    text = "".join(fragments)
    results = []
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    for pieces in (
        [text],
        list(text),
        [text[begin:end] for begin, end in pairwise(places)],
    ):
        splitter = ReasoningSplitter(thinking)
        parts = [splitter.push(piece) for piece in pieces] + [splitter.finish()]
        results.append(("".join(part[0] for part in parts), "".join(part[1] for part in parts)))
    assert results[0] == results[1] == results[2]
    # Nothing is invented: what is shown is in the text, in order.
    assert results[0][0] in text
    assert text.endswith(results[0][1])


# -- time --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["word ", "<think>", "\n", "</think", "<tool_call>{", " \n"],
    ids=["words", "tags", "newlines", "half_tags", "calls", "blanks"],
)
@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("by_text", [True, False])
def test_b48_a_megabyte_of_model_text_is_split_in_linear_time(text: str, thinking: bool, by_text: bool) -> None:
    text *= MEGABYTE // len(text)
    begin = time.process_time()
    splitter = ReasoningSplitter(thinking, by_text=by_text)
    splitter.push(text)
    splitter.finish()
    assert time.process_time() - begin < seconds_allowed(0.3)
    splitter = ReasoningSplitter(thinking, by_text=by_text)
    begin = time.process_time()
    for i in range(0, len(text), 4):
        splitter.push(text[i : i + 4])
    splitter.finish()
    assert time.process_time() - begin < seconds_allowed(3)  # 250,000 pushes, about 0.3 s


def test_b48_a_megabyte_of_tokens_passes_the_whole_chain(tokenizer: Tokenizer) -> None:
    for ids in (
        [OPEN] * (MEGABYTE // 7),
        [64, OPEN] * (MEGABYTE // 14),
        tokenizer.encode_plain("word ") * (MEGABYTE // 5),
    ):
        stream = OutputStream(tokenizer, thinking=True, split_reasoning=True, stops=["\n\n\nQ:", "User:"])
        begin = time.process_time()
        stream.push(ids)
        stream.finish()
        assert time.process_time() - begin < seconds_allowed(0.6)  # 0.1 to 0.2 s


def test_a_push_of_one_token_is_cheap(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_raw(
        "<think>\n" + "some words of a thought, " * 1000 + "\n</think>\n\n" + "and an answer. " * 1000
    )
    stream = OutputStream(tokenizer, thinking=False, split_reasoning=True, stops=["\n\n\nQ:", "User:"])
    begin = time.process_time()
    for token in ids:
        stream.push([token])
    assert (time.process_time() - begin) / len(ids) < seconds_allowed(5e-6)  # measured: 0.8 to 1.5 us
