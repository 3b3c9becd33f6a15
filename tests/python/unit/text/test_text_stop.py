"""Stop strings: which match wins, what is held back, independence of the cuts, linear time."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwen3app.text.errors import TextError
from qwen3app.text.stop import StopMatcher

from .conftest import MEGABYTE, seconds_allowed


def reference(text: str, stops: list[str], *, include: bool = False) -> tuple[str, str | None]:
    """The rule, read off the definition: the match that ends first, then the longest."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


def stream(matcher: StopMatcher, pieces: list[str]) -> str:
    return "".join([matcher.push(piece) for piece in pieces]) + matcher.finish()


def test_b53_beginning_of_a_stop_string_is_not_shown() -> None:
    matcher = StopMatcher([" zeta eta theta"])
    pieces = [" delta", " epsilon", " zeta", " eta", " theta", " iota"]
    assert [matcher.push(piece) for piece in pieces] == [" delta", " epsilon", "", "", "", ""]
    assert matcher.finish() == ""
    assert matcher.matched == " zeta eta theta"


def test_b53_only_a_true_beginning_is_held_back() -> None:
    matcher = StopMatcher([" zeta eta theta"])
    assert matcher.push("a zeta") == "a"
    assert matcher.push(" x") == " zeta x"
    assert matcher.push("b ") == "b"
    assert matcher.push("c") == " c"
    assert matcher.push(" zeta eta") == ""
    assert matcher.push(" zeta eta") == " zeta eta"
    assert matcher.finish() == " zeta eta"
    assert matcher.matched is None


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
@pytest.mark.parametrize(("stop", "shown"), [("five", "one two three four "), ("three", "one two "), ("one", "")])
def test_b55_nothing_after_the_match_is_shown(stop: str, shown: str, size: int) -> None:
    text = "one two three four five six seven eight nine ten"
    matcher = StopMatcher([stop])
    assert stream(matcher, [text[i : i + size] for i in range(0, len(text), size)]) == shown
    assert matcher.matched == stop


def test_rest_is_the_text_behind_the_match() -> None:
    matcher = StopMatcher(["</think>"])
    assert matcher.push("abc</thi") == "abc"
    assert matcher.push("nk>def") == ""
    assert matcher.rest == "def"


def test_stop_that_a_long_push_completes() -> None:
    matcher = StopMatcher(["abc", "cx"])
    assert matcher.push("-ab") == "-"
    assert matcher.push("c" + "x" * 200) == ""
    assert matcher.matched == "abc"
    assert matcher.rest == "x" * 200


def test_include_stop_shows_the_stop_string() -> None:
    for pieces in (["a STOP b"], list("a STOP b")):
        assert stream(StopMatcher(["STOP"], include_stop=True), pieces) == "a STOP"


def test_empty_stop_string_is_refused() -> None:
    with pytest.raises(TextError, match=r"stop\[1\] is empty") as caught:
        StopMatcher(["a", ""])
    assert caught.value.param == "stop"


def test_no_stop_strings() -> None:
    assert stream(StopMatcher([]), ["a", "", "b"]) == "ab"


def cut(text: str, cuts: list[int]) -> list[str]:
    places = sorted({min(place, len(text)) for place in cuts})
    return [text[begin:end] for begin, end in zip([0, *places], [*places, len(text)], strict=True)]


_letters = st.text("ab", max_size=40)


@settings(max_examples=500)
@given(
    _letters,
    st.lists(st.text("ab", min_size=1, max_size=6), max_size=4),
    st.lists(st.integers(0, 40), max_size=12),
    st.booleans(),
)
def test_stream_equals_the_definition(text: str, stops: list[str], cuts: list[int], include: bool) -> None:
    matcher = StopMatcher(stops, include_stop=include)
    assert (stream(matcher, cut(text, cuts)), matcher.matched) == reference(text, stops, include=include)


@settings(max_examples=200)
@given(
    st.text("ab", max_size=60),
    st.sampled_from(["", "x" * 200]),
    st.text("ab", max_size=60),
    st.lists(st.text("abx", min_size=1, max_size=6), min_size=1, max_size=3),
    st.lists(st.integers(0, 320), max_size=4),
)
def test_long_pushes_equal_the_definition(head: str, middle: str, tail: str, stops: list[str], cuts: list[int]) -> None:
    text = head + middle + tail
    matcher = StopMatcher(stops)
    assert (stream(matcher, cut(text, cuts)), matcher.matched) == reference(text, stops)


@settings(max_examples=300)
@given(_letters, st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=4))
def test_what_is_held_back_is_the_longest_true_beginning(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    shown = "".join(matcher.push(character) for character in text)
    if matcher.matched is None:
        held = text[len(shown) :]
        beginnings = [k for stop in stops for k in range(len(stop)) if text.endswith(stop[:k]) and k <= len(text)]
        assert len(held) == max(beginnings)


@pytest.mark.parametrize(
    ("text", "stop"),
    [
        ("a" * MEGABYTE, "a" * 1000 + "b"),
        ("ab" * (MEGABYTE // 2), "ab" * 500 + "c"),
        ("word and word " * (MEGABYTE // 14), " word words"),
        ("\n" * MEGABYTE, "\n" * 4096 + "x"),
    ],
)
@pytest.mark.parametrize("size", [4, MEGABYTE])
def test_time_is_linear(text: str, stop: str, size: int) -> None:
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    begin = time.process_time()
    matcher = StopMatcher([stop])
    shown = stream(matcher, pieces)
    seconds = time.process_time() - begin
    assert shown == text
    # About 0.2 s on the development machine; quadratic work would take minutes.
    assert seconds < seconds_allowed(3)
