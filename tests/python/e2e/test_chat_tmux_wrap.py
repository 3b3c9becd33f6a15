"""Where the lines of an answer break in a real terminal, while it comes, from a server whose answers are known."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from patience import wait_until
from scripted_server import ScriptedServer, call, scripted, words
from tmux_screen import Screen

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed (apt install tmux)")

URL = "https://example.org/a/path/that/is/longer/than/a/line/of/a/small/window"
ANSWER = f"""The quick brown fox jumps over the lazy dog, and then it *rests for a while* in the **warm sun**.

- A point of a list that is so long that it goes on in the next line, and another.
  1. One that stands below it, which has a number, and goes on as well for long.

> Quoted words, which someone else has said, are as long as those of the others.

日本語の文章は、単語の間に空白がありません。それでも行は正しく折り返され、句読点は行頭に来ません。
See {URL} for more.

```
x = 1  # a line of code stays one line, however long the line is, and is copied whole
```
"""
AT_40 = f"""The quick brown fox jumps over the lazy
dog, and then it rests for a while in
the warm sun.

• A point of a list that is so long
  that it goes on in the next line, and
  another.
  1. One that stands below it, which
     has a number, and goes on as well
     for long.

│ Quoted words, which someone else has
│ said, are as long as those of the
│ others.

日本語の文章は、単語の間に空白がありま
せん。それでも行は正しく折り返され、句
読点は行頭に来ません。
See {URL[:36]}
{URL[36:]} for
more.

```
x = 1  # a line of code stays one line,
however long the line is, and is copied
whole
```"""
AT_80 = f"""The quick brown fox jumps over the lazy dog, and then it rests for a while in
the warm sun.

• A point of a list that is so long that it goes on in the next line, and
  another.
  1. One that stands below it, which has a number, and goes on as well for
     long.

│ Quoted words, which someone else has said, are as long as those of the
│ others.

日本語の文章は、単語の間に空白がありません。それでも行は正しく折り返され、句読
点は行頭に来ません。
See {URL} for
more.

```
x = 1  # a line of code stays one line, however long the line is, and is copied
whole
```"""


@pytest.fixture
def open_screen(tmp_path: Path) -> Iterator[Callable[[ScriptedServer, int], Screen]]:
    screens: list[Screen] = []

    def start(server: ScriptedServer, columns: int) -> Screen:
        screens.append(Screen(tmp_path, "--url", server.url, columns=columns))
        return screens[-1]

    yield start
    for screen in screens:
        screen.close()


def answer_of(screen: Screen) -> str:
    """What stands between the question and the line of numbers."""
    lines = screen.lines()
    end = next(i for i, line in enumerate(lines) if line.startswith("["))
    return "\n".join(lines[lines.index("> one") + 1 : end])


@pytest.mark.parametrize(("columns", "expected"), [(40, AT_40), (80, AT_80)])
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_lines_break_between_words(
    open_screen: Callable[[ScriptedServer, int], Screen], columns: int, expected: str, size: int
) -> None:
    pieces = [ANSWER[start : start + size] for start in range(0, len(ANSWER), size)]
    with scripted(words(*pieces)) as server:
        screen = open_screen(server, columns)
        screen.enter("one")
        screen.wait("20]")  # the last word of the numbers
        screen.wait_prompt()
        assert answer_of(screen) == expected


def test_a_thought_breaks_between_words_too(open_screen: Callable[[ScriptedServer, int], Screen]) -> None:
    with scripted(words("Done.", thought="The user wants to know whether thoughts are broken, too.")) as server:
        screen = open_screen(server, 40)
        screen.enter("one")
        screen.wait("20]")  # the last word of the numbers
        assert answer_of(screen) == ("Thinking:\nThe user wants to know whether thoughts\nare broken, too.\n\nDone.")
        numbers = screen.text().partition("\n[")[2].partition("]")[0]
        assert numbers.startswith("2 tokens · ") and "\n" in numbers
        assert all(len(line) < 40 for line in numbers.split("\n"))


def test_the_question_before_a_call_breaks_between_words(
    open_screen: Callable[[ScriptedServer, int], Screen], tmp_path: Path
) -> None:
    (tmp_path / "tools.py").write_text("def f():\n 'F.'\n return 5\n")
    with scripted(call("f", "{}"), words("Done.")) as server:
        screen = open_screen(server, 40)
        screen.enter(f"/tools {tmp_path / 'tools.py'}")
        screen.wait("before each call.")
        lines = "\n".join(screen.lines()).partition("The model may ask for")[2].split("\n")
        assert lines[:2] == [": f. You are asked", "before each call."]
        screen.enter("one")
        screen.wait("Run it? [y]es, [n]o, [a]lways this function:")
        assert "Run it? [y]es, [n]o, [a]lways this" in screen.lines()
        screen.keys("y", "Enter")
        screen.wait("function: y", "→ 5", "Done.")


def test_a_new_width_counts_for_what_comes_after_it(open_screen: Callable[[ScriptedServer, int], Screen]) -> None:
    first = "one two three four five six seven eight nine ten eleven twelve\n"
    with scripted(words(first, first)) as server:
        server.gate.clear()
        screen = open_screen(server, 40)
        screen.enter("one")
        wait_until(lambda: "nine ten eleven twelve" in screen.lines(), screen.text)
        screen.tmux("resize-window", "-x", "60", "-y", "30")
        wait_until(lambda: screen.tmux("display", "-p", "#{pane_width}").strip() == "60", screen.text)
        server.gate.set()
        screen.wait("20]")  # the last word of the numbers
        assert answer_of(screen) == (
            "one two three four five six seven eight\nnine ten eleven twelve\n"
            "one two three four five six seven eight nine ten eleven\ntwelve"
        )
