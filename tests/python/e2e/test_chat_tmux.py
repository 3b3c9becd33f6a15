"""The chat in a real terminal, with real keys, on the real engine and a tiny checkpoint.

What every conversation needs; test_chat_tmux_commands.py has the commands.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import wait_until
from tmux_screen import Screen, local

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed (apt install tmux)")


@pytest.fixture
def screen(tmp_path: Path, tiny_model_dir: Path) -> Iterator[Screen]:
    chat = Screen(tmp_path, *local(tiny_model_dir, "--temp", "0", "--max-tokens", "24"))
    try:
        chat.wait("/help lists the commands", "\n>")
        yield chat
    finally:
        chat.close()


def test_a_conversation(screen: Screen) -> None:
    screen.type("Hello")
    screen.keys("Enter")
    screen.wait("tok/s", "cached 0 of", "24 tokens")
    screen.wait_prompt()
    screen.keys("Up")  # the history
    screen.wait("> Hello", count=2)
    screen.keys("Enter")
    screen.wait("tok/s", count=2)
    screen.type("/show")
    screen.keys("Enter")
    screen.wait("2 turns")
    screen.type("/reset")
    screen.keys("Enter")
    screen.wait("The conversation is empty again.")
    screen.wait_prompt()
    screen.keys("C-d")
    screen.wait("EXIT 0")
    history = screen.state / "qwen3-8b" / "history"
    assert "+Hello" in history.read_text() and history.stat().st_mode & 0o777 == 0o600


def test_many_lines_and_wide_characters(screen: Screen) -> None:
    screen.type("삼겹살 日本語 👍")
    screen.keys("M-Enter")
    screen.type("second")
    screen.keys("Enter")
    text = screen.wait("tok/s")
    assert "> 삼겹살 日本語 👍" in text and "\n. second" in text
    screen.type('"""')
    screen.keys("Enter")
    screen.type("block")
    screen.keys("Enter")
    screen.type('"""')
    screen.keys("Enter")
    screen.wait("tok/s", count=2)
    screen.type("/exit")
    screen.keys("Enter")
    screen.wait("EXIT 0")


def test_ctrl_c_stops_the_answer_and_keeps_the_chat(screen: Screen) -> None:
    # A bonus for repetition makes the random model say one word for ever, so that only Ctrl-C ends the answer.
    screen.type("/set max_tokens 40000")
    screen.keys("Enter")
    screen.wait("max_tokens = 40000")
    screen.type("/set frequency_penalty -2")
    screen.keys("Enter")
    screen.wait("frequency_penalty = -2")
    screen.type("Go on and on")
    screen.keys("Enter")

    def has_begun() -> bool:
        """Until then the prompt, with the bar below it, still has the keys and would take Ctrl-C for its own."""
        lines = screen.text().partition("> Go on and on")[2].split("\n")[1:]
        return any(lines) and not any("context" in line for line in lines)

    wait_until(has_begun, screen.text)
    assert "tok/s" not in screen.text()
    screen.keys("C-c")
    screen.wait("stopped]")
    screen.wait_prompt()
    screen.keys("C-c")
    screen.wait("Ctrl-D or /exit leaves the chat.")
    screen.type("/set max_tokens 3")
    screen.keys("Enter")
    screen.wait("max_tokens = 3")
    screen.type("Still there?")
    screen.keys("Enter")
    screen.wait("The answer is cut after 3 tokens")
    screen.wait_prompt()
    screen.keys("C-d")
    screen.wait("EXIT 0")


def test_completion_thoughts_and_mistakes(screen: Screen) -> None:
    screen.type("/thi")
    screen.keys("Tab")
    screen.wait("> /think")
    screen.type("off")  # behind the space that has come with the command
    screen.keys("Enter")
    screen.wait("Thinking is off.")
    screen.type("/nope")
    screen.keys("Enter")
    screen.wait("Unknown command /nope")
    screen.type("/set temp hot")
    screen.keys("Enter")
    screen.wait("temp must be a number from 0 to 1000000 (or `default`), not 'hot'.")
    screen.type("half a line")
    screen.keys("C-c")
    screen.type("/help")
    screen.keys("Enter")
    assert "half a line/help" not in screen.wait("/set NAME VALUE")
    screen.wait_prompt()
    screen.keys("C-d")
    screen.wait("EXIT 0")


def test_a_full_context_is_explained(tmp_path: Path, tiny_model_dir: Path) -> None:
    chat = Screen(tmp_path, *local(tiny_model_dir, "--max-ctx", "64"))
    try:
        chat.wait("64 tokens of context", "\n>")
        chat.type("word " * 60)
        chat.keys("Enter")
        chat.wait("and the context holds 64: ask something shorter")
        chat.wait_prompt()
        chat.keys("C-d")
        chat.wait("EXIT 0")
    finally:
        chat.close()


def test_a_missing_model_is_one_sentence(tmp_path: Path) -> None:
    chat = Screen(tmp_path, *local(tmp_path / "nowhere"))
    try:
        text = chat.wait("EXIT 2")
        assert "nowhere" in text and "Traceback" not in text
    finally:
        chat.close()
