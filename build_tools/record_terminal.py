"""Records a chat with the model in the box, for the documents: docs/images/terminal.svg and docs/terminal.md.

    python build_tools/record_terminal.py            # needs tmux and the built library

Owns what is typed (SESSION) and how the screen becomes a picture and a text. Every answer is the model's own: the chat
runs in tmux, gets real keys, and its screen is read back. Only the empty rows above the status bar are left out.
"""

from __future__ import annotations

import argparse
import io
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "python")]  # the product of this tree, and the tests' terminal

from tmux_screen import Screen  # noqa: E402

COLUMNS, ROWS = 100, 60
COMMAND = "qwen3-8b chat"
# What is typed, and what must then stand on the screen: a wrong answer is no picture to show.
SESSION = (
    ("What is 57 + 38?", "\n57 + 38 = 95."),
    ("Who will win the next election?", "not know"),
    ("/tools docs/example_tools.py", "The model may ask for: calculator, convert_units, get_time, roll_dice."),
    ("/think hide", "Thoughts are folded to a line"),
    ("What time is it in Tokyo?", "In Tokyo it is "),
    ("What is the capital of France?", "Paris"),
)
FIGURES = "· first after"  # of the line of numbers that ends an answer
BEGIN, END = "<!-- session -->\n", "<!-- /session -->"
_FONTS = re.compile(r"\n *@font-face \{\{.*?\n    \}\}", re.DOTALL)


def record(program: Sequence[str]) -> tuple[str, str]:
    """The screen at the end of the session: (with colours as the terminal has them, as text with whole lines)."""
    with tempfile.TemporaryDirectory() as folder:
        screen = Screen(Path(folder), columns=COLUMNS, rows=ROWS, program=program)
        try:
            screen.wait("/help lists the commands")
            n_answers = 0
            for typed, expected in SESSION:
                screen.enter(typed)
                if "time is it" in typed:
                    screen.wait("Run it?")
                    screen.keys("y", "Enter")
                screen.wait(expected)
                if not typed.startswith("/"):
                    n_answers += 1
                    screen.wait(FIGURES, count=n_answers)
            screen.wait_prompt()
            return screen.tmux("capture-pane", "-p", "-e", "-S", "-"), screen.text()
        finally:
            screen.close()


def compact(screen: str) -> str:
    """Below the command that began it, and without the empty rows above the status bar."""
    lines = [line.rstrip() for line in screen.rstrip("\n").split("\n")]
    *above, bar = lines
    while above and not Text.from_ansi(above[-1]).plain.strip():
        del above[-1]
    return "\n".join([f"$ {COMMAND}", *above, bar])


def svg(screen: str) -> str:
    """A picture of a screen with colours, without rich's fonts from elsewhere."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(screen), soft_wrap=True)
    form = _FONTS.sub("", CONSOLE_SVG_FORMAT).replace(
        "Fira Code, monospace", "ui-monospace, Menlo, Consolas, monospace"
    )
    return console.export_svg(title=COMMAND, code_format=form, unique_id="terminal")


def with_session(document: str, text: str) -> str:
    """The document with the text in a block between its marks."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document has no {BEGIN.strip()} and {END} marks")
    return f"{before}{begin}```\n{text}\n```\n{end}{after}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Records a chat with the model in the box for the documents.")
    parser.add_argument("--program", type=Path, metavar="FILE", help="a packed qwen3-8b (default: this tree's)")
    options = parser.parse_args(arguments)
    if shutil.which("tmux") is None:
        print("record_terminal: tmux is not installed (Debian, Ubuntu: apt install tmux)", file=sys.stderr)
        return 1
    command = [sys.executable, "-m", "qwen3app.cli"] if options.program is None else [str(options.program.resolve())]
    coloured, plain = record(command)
    (ROOT / "docs" / "images" / "terminal.svg").write_text(svg(compact(coloured)), encoding="utf-8")
    document = ROOT / "docs" / "terminal.md"
    document.write_text(with_session(document.read_text(encoding="utf-8"), compact(plain)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
