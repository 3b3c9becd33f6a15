"""The programs around the terminal: the user's editor, and the clipboard.

Owns which program is asked. Refuses to know what the text means. Event loop's thread, which an editor blocks: nothing
else runs at the prompt.
"""

from __future__ import annotations

import base64
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from qwen3app.chat.attachments import read_text
from qwen3app.chat.errors import ChatError

_CLIPBOARD_SECONDS = 10.0


def edit_text(text: str, environ: Mapping[str, str]) -> str:
    """`text` after the user has changed it in $VISUAL, $EDITOR or, without these, what the system has."""
    editor = environ.get("VISUAL") or environ.get("EDITOR")
    if not editor:
        editor = next((name for name in ("sensible-editor", "nano", "vi") if shutil.which(name)), None)
    if not editor:
        raise ChatError("There is no editor: set EDITOR to one, like EDITOR=nano.")
    with tempfile.TemporaryDirectory(prefix="qwen3-8b-") as folder:
        path = Path(folder) / "question.md"
        path.write_text(text, encoding="utf-8", errors="replace")
        try:
            done = subprocess.run([*shlex.split(editor), str(path)], check=False)
        except (OSError, ValueError) as error:
            raise ChatError(f"The editor {editor!r} cannot be started: {error}.") from None
        if done.returncode != 0:
            raise ChatError(f"The editor {editor!r} ended with code {done.returncode}; nothing is sent.")
        return read_text(path).strip("\n") if path.exists() else ""


def clipboard_command(environ: Mapping[str, str]) -> list[str] | None:
    """The program that fills this terminal's clipboard, None without one."""
    for variable, command in (
        ("TMUX", ["tmux", "load-buffer", "-w", "-"]),
        ("WAYLAND_DISPLAY", ["wl-copy"]),
        ("DISPLAY", ["xclip", "-selection", "clipboard"]),
        ("DISPLAY", ["xsel", "--clipboard", "--input"]),
    ):
        if environ.get(variable) and shutil.which(command[0]):
            return command
    return None


def copy_text(text: str, environ: Mapping[str, str]) -> str | None:
    """Copies by a program. Returns None when done, else the sequence that asks the terminal itself to (OSC 52)."""
    data = text.encode("utf-8", "replace")
    if command := clipboard_command(environ):
        try:
            # No pipes for output: xclip stays in the background and would keep them open.
            done = subprocess.run(
                command,
                input=data,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_CLIPBOARD_SECONDS,
                check=False,
            )
            if done.returncode == 0:
                return None
        except (OSError, subprocess.TimeoutExpired):
            pass
    return f"\x1b]52;c;{base64.b64encode(data).decode()}\x07"
