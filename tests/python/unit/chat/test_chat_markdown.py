"""Markdown while it streams: the same text and styles however it is cut, and the right ones."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qwen3app.chat.markdown import Markdown
from qwen3app.chat.wrap import Span

ANSWER = """# Title
Some **bold**, *italic*, `co*de*`, ~~gone~~ and [a link](http://x.y), 2*3*4, snake_case_name and \\(x\\).
- item **one**
  * two
3. num
> quoted
---
```python
def f(x):
    return "**x**"
```
| a | b |
|---|:-:|
| 日本 | `x|y` |

**never closed
"""
# Pieces of which texts are made that are hard to cut.
MARKS = [
    "**",
    "*",
    "_",
    "`",
    "```",
    "\n",
    "| ",
    "|",
    "- ",
    "#",
    " ",
    "a",
    "日",
    "[",
    "](",
    "x)",
    "\\",
    "~~",
    "1.",
    "> ",
]
texts = st.lists(st.sampled_from([*MARKS, "---\n", "|--|--|\n", "```py\n", "**bold**", "é\u0301", "👩‍👩‍👧"])).map(
    "".join
)


def styled(pieces: list[str]) -> list[tuple[str, str]]:
    markdown = Markdown()
    spans = [span for piece in pieces for span in markdown.feed(piece)] + markdown.finish()
    return [(char, span.style) for span in spans for char in span.text]


def shown(text: str) -> str:
    return "".join(char for char, _ in styled([text]))


def style_of(text: str, part: str) -> str:
    """The style of a part of what is shown."""
    chars = styled([text])
    start = "".join(char for char, _ in chars).index(part)
    styles = {style for _, style in chars[start : start + len(part)]}
    assert len(styles) == 1, styles
    return styles.pop()


@given(texts, st.lists(st.integers(0, 200)))
@example(ANSWER, list(range(200)))
@example("**" + "a" * 700 + "**", list(range(0, 200, 7)))
@example("`" + "a" * 597 + "`b", [599, 600, 601])
@example("-" * 2001, [])
@example("| a |\n|---|\n| " + "b" * 1998 + "|\nx **y**", [1999, 2000, 2001])
@example("| a |\n| " + "b" * 3000, [2003, 2004])
@example("```\n" + "x" * 1998 + "\n```\ny", [2000, 2001, 2002, 2003])
@example("```\n" + "x" * 2000 + "```\n```\n**y**", [2000, 2003, 2004, 2005])
def test_the_same_however_it_is_cut(text: str, cuts: list[int]) -> None:
    whole = styled([text])
    assert styled(list(text)) == whole
    places = [0, *sorted({min(cut, len(text)) for cut in cuts}), len(text)]
    assert styled([text[a:b] for a, b in pairwise(places)]) == whole


@given(st.text(st.characters(exclude_characters="#-*+_`~>|[\\")))
def test_text_without_marks_is_untouched(text: str) -> None:
    if not any(line.lstrip()[:1].isdigit() for line in text.split("\n")):
        assert shown(text) == text


def test_an_answer() -> None:
    assert shown(ANSWER) == (
        "Title\n"
        "Some bold, italic, co*de*, gone and a link (http://x.y), 2*3*4, snake_case_name and \\(x\\).\n"
        "• item one\n  • two\n3. num\n│ quoted\n────────────────────────\n"
        '```python\ndef f(x):\n    return "**x**"\n```\n'
        "a    │ b\n─────┼────\n日本 │ x|y\n\n**never closed\n"
    )


@pytest.mark.parametrize(
    ("text", "part", "style"),
    [
        ("# T\n", "T", "bold underline"),
        ("### T\n", "T", "bold"),
        ("a **b** c", "b", "bold"),
        ("a **b** c", " c", ""),
        ("***b***", "b", "bold italic"),
        ("*a **b** c*", "b", "italic bold"),
        ("_a_ b", "a", "italic"),
        ("`**a**`", "**a**", "cyan"),
        ("``a`b``", "a`b", "cyan"),
        ("[x](http://e.x)", "x", "underline"),
        ("[x](http://e.x)", " (http://e.x)", "dim"),  # where a link leads is never hidden
        ("~~x~~", "x", "strike"),
        ("> *x* y", " y", "italic"),
        ("| a |\n|---|\n| b |\n", "a", "bold"),
    ],
)
def test_styles(text: str, part: str, style: str) -> None:
    assert style_of(text, part) == style


@pytest.mark.parametrize(
    "text",
    [
        "2 * 3 * 4",
        "a*b*c",
        "f(*args, **kwargs)",
        "__init",
        "a_b_c",
        "[1] and [x] y",
        "\\frac{a}{b} \\[x\\] \\\\",
        "#hash",
        "-1 and +1",
        "1.5 is a number",
        "~/notes and ~5",
        "| no table",
        "| no\n| table\n",
        "<b>x</b> &amp;",
        "** a **",
    ],
)
def test_what_only_looks_like_a_mark_stays(text: str) -> None:
    assert shown(text) == text


def test_a_backslash_keeps_a_mark() -> None:
    assert shown("\\*a\\* \\_b\\_ \\`c\\`") == "*a* _b_ `c`"


def test_words_are_written_when_they_come() -> None:
    markdown = Markdown()
    assert "".join(span.text for span in markdown.feed("Once upon a time")) == "Once upon a time"
    assert markdown.feed("**th") == []  # held, as it may become bold
    assert markdown.feed("ere** was") == [Span("there", "bold"), Span(" was", "")]


def test_code_keeps_its_letters_and_gets_colours() -> None:
    code = '```python\nx = """a\n*b*\n"""  # c\n\tdef f(): pass\n```\nafter'
    assert shown(code) == code
    assert style_of(code, "*b*") == style_of(code, '"""a')  # known by the line before
    assert style_of(code, "def") not in ("", style_of(code, "# c"))
    assert style_of(code, "after") == ""


@pytest.mark.parametrize("language", ["", "nosuchlanguage", "{.python}", "diff", "json", "html", "sh", "c++", "text"])
@pytest.mark.parametrize("line", ["a  \n", "", "\n\n", "\u2028x\n", "é日本\n", "x" * 6000])
def test_no_language_changes_the_code(language: str, line: str) -> None:
    text = f"```{language}\n{line}"
    assert shown(text) == text


def test_a_longer_fence_holds_a_shorter_one() -> None:
    text = "````\n```\n**x**\n````\n**y**"
    assert shown(text) == text.replace("**y**", "y")


def test_table_columns_are_as_wide_as_what_they_show() -> None:
    table = "| name | **n** |\n|---|---|\n| `日` | 1 |\n| longer than that | 2 | 3 |\n| x |\n"
    assert shown(f"{table}end") == (
        "name             │ n\n─────────────────┼───┼──\n日               │ 1\nlonger than that │ 2 │ 3\nx\nend"
    )


def test_a_long_table_does_not_wait_for_its_end() -> None:
    markdown = Markdown()
    head = "| a | b |\n|---|---|\n"
    assert markdown.feed(head + "| 1 | 2 |\n" * 23) == []
    rows = "".join(span.text for span in markdown.feed("| 111 | 2 |\n"))
    assert rows.startswith("a   │ b\n────┼──\n1   │ 2\n") and rows.count("\n") == 26
    assert "".join(span.text for span in markdown.feed("| 4 | 5 |\n| 66666 | 7 |\n")) == "4   │ 5\n66666 │ 7\n"


@pytest.mark.parametrize("text", ["-" * 5000, "| " + "x" * 5000, "```\n" + "x = " * 5000])
def test_a_line_without_end_is_shown(text: str) -> None:
    markdown = Markdown()
    seen = "".join(span.text for char in text for span in markdown.feed(char))
    assert text.startswith(seen) and len(text) - len(seen) < 2000
