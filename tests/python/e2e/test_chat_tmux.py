"""The chat in a real terminal, with real keys, on the real engine and a tiny checkpoint.

tmux is the terminal. Each test has a tmux server of its own on a socket in its temporary folder.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import PATIENCE, wait_until

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed (apt install tmux)")


class Screen:
    """One chat in one tmux window."""

    def __init__(self, folder: Path, model_dir: Path, *flags: str, columns: int = 90) -> None:
        self._socket = str(folder / "tmux")
        self.state = folder / "state"
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "XDG_STATE_HOME": str(self.state),
            "PYTHONPATH": str(ROOT),
            "LANG": "C.UTF-8",
            "PYTHONUTF8": "1",
        }
        settings = [f"{name}={value}" for name, value in environment.items()]
        chat = [sys.executable, "-m", "qwen3app.cli", "chat", "--model", str(model_dir), "--threads", "2"]
        command = shlex.join(["env", *settings, *chat, "--kv-gb", "0.25", *flags]) + "; echo EXIT $?; exec cat"
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", "48", command)

    def _tmux(self, *words: str) -> str:
        command = ["tmux", "-S", self._socket, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE).stdout

    def text(self) -> str:
        """What the terminal shows, with what has scrolled away; wrapped lines joined."""
        return self._tmux("capture-pane", "-p", "-J", "-S", "-")

    def keys(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    def wait_prompt(self) -> None:
        """Waits until the chat reads keys: its prompt, or a further line of it, stands at the end."""
        wait_until(
            lambda: self.text().rstrip().rpartition("\n")[2].startswith((">", ".")),
            lambda: f"no prompt came in:\n{self.text()}",
        )

    def type(self, text: str) -> None:
        self.wait_prompt()
        self._tmux("send-keys", "-l", text)

    def wait(self, *parts: str, count: int = 1) -> str:
        """Waits until the terminal shows each part that often, and returns what it then shows."""
        text = ""

        def is_shown() -> bool:
            nonlocal text
            text = self.text()
            return all(text.count(part) >= count for part in parts)

        wait_until(is_shown, lambda: f"{parts} x {count} never appeared in:\n{text}")
        return text

    def close(self) -> None:
        subprocess.run(["tmux", "-S", self._socket, "kill-server"], check=False, capture_output=True, timeout=PATIENCE)


@pytest.fixture
def screen(tmp_path: Path, tiny_model_dir: Path) -> Iterator[Screen]:
    chat = Screen(tmp_path, tiny_model_dir, "--temp", "0", "--max-tokens", "24")
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
    screen.type("/set frequency_penalty -2")
    screen.keys("Enter")
    screen.wait("frequency_penalty = -2")
    screen.type("Go on and on")
    screen.keys("Enter")
    screen.wait("Go on and on")
    time.sleep(0.3)
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
    screen.type(" off")
    screen.keys("Enter")
    screen.wait("Thinking is off.")
    screen.type("/nope")
    screen.keys("Enter")
    screen.wait("Unknown command /nope")
    screen.type("/set temp hot")
    screen.keys("Enter")
    screen.wait("temp must be a number from 0 to 100 (or `default`), not 'hot'.")
    screen.type("half a line")
    screen.keys("C-c")
    screen.type("/help")
    screen.keys("Enter")
    assert "half a line/help" not in screen.wait("/set NAME VALUE")
    screen.wait_prompt()
    screen.keys("C-d")
    screen.wait("EXIT 0")


def test_a_full_context_is_explained(tmp_path: Path, tiny_model_dir: Path) -> None:
    chat = Screen(tmp_path, tiny_model_dir, "--max-ctx", "64")
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
    chat = Screen(tmp_path, tmp_path / "nowhere")
    try:
        text = chat.wait("EXIT 2")
        assert "nowhere" in text and "Traceback" not in text
    finally:
        chat.close()
