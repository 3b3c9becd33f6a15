"""Lines broken between words while they come: where they break, and the same however the text is cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from qwen3app.chat.markdown import Markdown
from qwen3app.chat.wrap import Span, WordWrap, break_lines

PIECES = [
    *(
        "a",
        "word",
        "longer-word",
        "x" * 30,
        "https://example.org/a/long/path?with=arguments",
        "日本語",
        "。",
        "「",
        "」",
    ),
    *(
        " ",
        "  ",
        "\t",
        "\n",
        "é\u0301",
        "👩‍👩‍👧",
        "❤\ufe0f",
        "👍🏽",
        "🇩🇪",
        "한국어",
        "\u200b",
        "- ",
        "> ",
        "**",
        "`",
        "1. ",
    ),
    *("| a | b |\n|---|---|\n| c d | e |\n", "```\nx = 1  # some words of code behind it\n```\n"),
]
texts = st.lists(st.sampled_from(PIECES), max_size=60).map("".join)
widths = st.integers(2, 40)


def drawn(pieces: list[str], columns: int) -> list[tuple[str, str]]:
    markdown, wrap = Markdown(), WordWrap(lambda: columns)
    spans = [span for piece in pieces for span in wrap.feed(markdown.feed(piece))]
    spans += wrap.feed(markdown.finish()) + wrap.finish()
    return [(char, span.style) for span in spans for char in span.text]


def lines(text: str, columns: int) -> list[str]:
    return "".join(char for char, _ in drawn([text], columns)).split("\n")


@given(texts, widths, st.lists(st.integers(0, 200)))
@example("eins zwei drei vier fünf sechs sieben", 12, [13, 14, 15])
@example("aaaa bbbb 👩‍👩‍👧👩‍👩‍👧 cccc", 12, [11, 12, 13, 14])
def test_the_same_however_it_is_cut(text: str, columns: int, cuts: list[int]) -> None:
    whole = drawn([text], columns)
    assert drawn(list(text), columns) == whole
    places = [0, *sorted({min(cut, len(text)) for cut in cuts}), len(text)]
    assert drawn([text[a:b] for a, b in pairwise(places)], columns) == whole


@given(texts, widths)
def test_nothing_is_lost_but_blanks_at_a_break(text: str, columns: int) -> None:
    unbroken = "".join(span.text for markdown in [Markdown()] for span in markdown.feed(text) + markdown.finish())
    kept = "".join(char for char, _ in drawn([text], columns))
    quoted = "│" in unbroken  # a quotation's mark is written again on each of its lines
    assert [c for c in kept if not c.isspace() and not (quoted and c == "│")] == [
        c for c in unbroken if not c.isspace() and not (quoted and c == "│")
    ]


@given(st.lists(st.text("abcdefghij", min_size=1, max_size=9), min_size=1), st.integers(20, 60))
def test_words_fill_their_lines(words: list[str], columns: int) -> None:
    """As every greedy wrapping does: all words are whole, and each begins its line only where it did not fit before."""
    broken = lines(" ".join(words), columns)
    assert " ".join(broken).split(" ") == words
    for line, following in pairwise(broken):
        assert len(line) <= columns - 1 < len(line) + 1 + len(following.split(" ")[0])
    assert len(broken[-1]) <= columns - 1


@pytest.mark.parametrize(
    ("text", "columns", "expected"),
    [
        ("one two three four", 10, ["one two", "three", "four"]),
        ("one two. Three", 9, ["one two.", "Three"]),  # as wide as what is used of the window
        ("one two  three", 9, ["one two", "three"]),
        ("- one two three", 11, ["• one two", "  three"]),
        ("  * one two three", 13, ["  • one two", "    three"]),
        ("12. one two three", 13, ["12. one two", "    three"]),
        ("> one two three", 11, ["│ one two", "│ three"]),
        ("  one two three", 11, ["  one two", "  three"]),
        ("# one two three", 10, ["one two", "three"]),
        ("one **two three** four", 10, ["one two", "three", "four"]),
        ("one `two three` four", 10, ["one two", "three", "four"]),
        ("one tw**oo**", 8, ["one", "twoo"]),  # marks part no word
        ("one two\n\nthree", 10, ["one two", "", "three"]),
        ("- one two three\nfour five six", 11, ["• one two", "  three", "four five", "six"]),
        ("日本語日本語日本", 11, ["日本語日本", "語日本"]),
        ("日本語日本。語", 11, ["日本語日", "本。語"]),  # no line begins with a full stop
        ("日本語日「本」", 11, ["日本語日", "「本」"]),  # nor ends with an opening bracket
        ("one 日本 語", 10, ["one 日本", "語"]),
        ("안녕 하세요 세계", 12, ["안녕 하세요", "세계"]),  # words of Hangul stay whole
        ("안녕하 세요세계", 12, ["안녕하", "세요세계"]),
        ("aaaaa 👩‍👩‍👧👩‍👩‍👧👩‍👩‍👧", 11, ["aaaaa 👩‍👩‍👧👩‍👩‍👧", "👩‍👩‍👧"]),
        ("aaaaaa ❤\ufe0f❤\ufe0f", 11, ["aaaaaa", "❤\ufe0f❤\ufe0f"]),  # each two columns wide
        ("aaaaaa e\u0301e\u0301e\u0301", 11, ["aaaaaa e\u0301e\u0301e\u0301"]),
        ("x" * 25 + " y", 10, ["x" * 25 + " y"]),  # longer than the line: the terminal breaks it
        ("a" * 40 + " " + "x" * 45, 90, ["a" * 40 + " " + "x" * 45]),  # half a line was before it
        ("a" * 60 + " " + "x" * 45, 90, ["a" * 60, "x" * 45]),
        ("aaaaaaaaaaa " + "x" * 25 + " y", 20, ["aaaaaaaaaaa", "x" * 25 + " y"]),  # it stays one for who copies it
        ("a\tb\tc d", 18, ["a\tb\tc", "d"]),  # the third column of tabs begins at 16
        ("```\none two three four\n```", 10, ["```", "one two three four", "```"]),
        ("| a b c | d |\n|---|---|\n| e | f |\n", 6, ["a b c │ d", "──────┼──", "e     │ f", ""]),
        ("", 10, [""]),
        ("one two three", 1, ["one", "two", "three"]),
    ],
)
def test_where_lines_break(text: str, columns: int, expected: list[str]) -> None:
    assert lines(text, columns) == expected


@given(
    st.lists(st.sampled_from(["a", "bcd", "日本", "語", "👩‍👩‍👧", "👍🏽", "é\u0301", "한국"]), min_size=1),
    st.integers(12, 40),
)
def test_no_line_is_wider_than_the_window(words: list[str], columns: int) -> None:
    assert max(cell_len(line) for line in lines(" ".join(words), columns)) <= columns - 1


def test_only_near_the_edge_a_word_waits() -> None:
    wrap = WordWrap(lambda: 80)

    def fed(text: str, style: str = "") -> str:
        return "".join(span.text for span in wrap.feed([Span(text, style)]))

    assert fed("Once upon a time there was a ki") == "Once upon a time there was a ki"
    assert fed("ng") == "ng"
    assert fed(" who") == " who"
    assert fed(" lived in a castle with many ro") == " lived in a castle with many"  # it could grow over the edge
    assert fed("oms") == ""
    assert fed(" ") == " rooms"
    assert fed("and kit") == " and"
    assert fed("chens") == "\nkitchens"  # it has
    assert fed("fold") == "fold"
    assert "".join(span.text for span in wrap.finish()) == ""


@pytest.mark.parametrize(
    ("text", "columns", "expected"),
    [
        ("The questions are in /home/ada/talks/about-the-sea.json now.", 50,
         ["The questions are in", "/home/ada/talks/about-the-sea.json now."]),
        ("Get it: `qwen3-8b pull Qwen/Qwen3-8B`, or not.", 40, ["Get it: `qwen3-8b pull Qwen/Qwen3-8B`,", "or not."]),
        ("Get it: `qwen3-8b pull Qwen/Qwen3-8B`, or no.", 36, ["Get it:", "`qwen3-8b pull Qwen/Qwen3-8B`, or", "no."]),
        ("one `two three` four `five", 12, ["one", "`two three`", "four `five"]),
        ("one `qwen3-8b pull A/B` two", 12, ["one", "`qwen3-8b pull A/B` two"]),  # longer than any line: still whole
        ("│ one two\n│ three four five", 12, ["│ one two", "│ three", "four five"]),
        ("", 10, [""]),
    ],
)  # fmt: skip
def test_a_whole_text_keeps_what_is_copied_whole(text: str, columns: int, expected: list[str]) -> None:
    assert break_lines(text, columns).split("\n") == expected


def test_the_end_releases_what_waits() -> None:
    wrap = WordWrap(lambda: 20)
    assert wrap.feed([Span("twelve chars ", ""), Span("and", "bold")]) == [Span("twelve chars", "")]
    assert wrap.finish() == [Span(" ", ""), Span("and", "bold")]


def test_a_new_width_counts_for_what_comes_after_it() -> None:
    columns = 40
    wrap = WordWrap(lambda: columns)
    seen = "".join(span.text for span in wrap.feed([Span("one two three four five six seven eight nine ten ", "")]))
    columns = 20
    seen += "".join(span.text for span in wrap.feed([Span("one two three four five six seven eight nine ten", "")]))
    seen += "".join(span.text for span in wrap.finish())
    assert seen == (
        "one two three four five six seven eight\nnine ten one two\nthree four five six\nseven eight nine\nten"
    )


def test_a_narrower_window_has_broken_the_line() -> None:
    columns = 60
    wrap = WordWrap(lambda: columns)
    seen = "".join(span.text for span in wrap.feed([Span("x" * 10 + " " + "y" * 19 + " ", "")]))
    columns = 20  # the terminal shows two lines now, the second of ten columns
    seen += "".join(span.text for span in wrap.feed([Span("eighteen ninth", "")]))
    assert seen == "x" * 10 + " " + "y" * 19 + " eighteen\nninth"
