"""The chat in a real terminal: tmux, with a server of its own on a socket in a temporary folder."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from patience import PATIENCE, wait_until

ROOT = Path(__file__).resolve().parents[2]


class Screen:
    """One chat in one tmux window."""

    def __init__(
        self,
        folder: Path,
        *flags: str,
        columns: int = 90,
        rows: int = 48,
        shell: bool = False,
        environment: dict[str, str] | None = None,
        program: Sequence[str] = (sys.executable, "-m", "qwen3app.cli"),
    ) -> None:
        self._socket = str(folder / "tmux")
        self.state = folder / "state"
        self.folder = folder
        variables = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "XDG_STATE_HOME": str(self.state),
            "PYTHONPATH": str(ROOT),
            "LANG": "C.UTF-8",
            "PYTHONUTF8": "1",
            **({"QWEN3_LIBRARY": os.environ["QWEN3_LIBRARY"]} if "QWEN3_LIBRARY" in os.environ else {}),
            **(environment or {}),
        }
        settings = [f"{name}={value}" for name, value in variables.items()]
        chat = shlex.join(["env", *settings, *program, "chat", *flags])
        command = "exec bash --norc --noprofile -i" if shell else f"{chat}; echo EXIT $?; exec cat"
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", str(rows), command)
        if shell:  # with job control; the chat is one of its jobs
            self.tmux("send-keys", "-l", f"{chat}; echo EXIT $?")
            self.tmux("send-keys", "Enter")

    def tmux(self, *words: str) -> str:
        command = ["tmux", "-S", self._socket, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE).stdout

    def text(self) -> str:
        """What the terminal shows, with what has scrolled away; wrapped lines joined."""
        return self.tmux("capture-pane", "-p", "-J", "-S", "-")

    def lines(self) -> list[str]:
        """The terminal's own lines, each at most as wide as its window."""
        return [line.rstrip() for line in self.tmux("capture-pane", "-p", "-S", "-").split("\n")]

    def keys(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    def wait_prompt(self) -> None:
        """Waits until the chat reads keys: its prompt, or a further line of it, stands above the status bar."""

        def is_there() -> bool:
            *_, prompt, bar = ["", "", *filter(str.strip, self.text().split("\n"))]
            return prompt.startswith((">", ".")) and "context" in bar

        wait_until(is_there, lambda: f"no prompt came in:\n{self.text()}")

    def type(self, text: str) -> None:
        self.wait_prompt()
        self.tmux("send-keys", "-l", text)

    def wait(self, *parts: str, count: int = 1) -> str:
        """Waits until the terminal shows each part that often, and returns what it then shows. A part without a line
        end may go over several lines, which the chat ends between words."""
        text = ""

        def is_shown() -> bool:
            nonlocal text
            text = self.text()
            flowing = re.sub(r" *\n *", " ", text)
            return all(max(text.count(part), flowing.count(part)) >= count for part in parts)

        wait_until(is_shown, lambda: f"{parts} x {count} never appeared in:\n{text}")
        return text

    def enter(self, text: str) -> None:
        """A whole line at the prompt."""
        self.type(text)
        self.keys("Enter")

    def close(self) -> None:
        subprocess.run(["tmux", "-S", self._socket, "kill-server"], check=False, capture_output=True, timeout=PATIENCE)


def local(model_dir: Path, *flags: str) -> tuple[str, ...]:
    """The flags of a chat with a model of its own."""
    return ("--model", str(model_dir), "--threads", "2", "--kv-gb", "0.25", *flags)
