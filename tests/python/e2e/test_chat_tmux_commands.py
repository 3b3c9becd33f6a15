"""Every command of the chat with real keys in a real terminal, against a server whose answers are known."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import wait_until
from scripted_server import ScriptedServer, call, scripted, words
from tmux_screen import Screen

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed (apt install tmux)")

MARKDOWN = """# Title

Some **bold** and `code`.
- one
- two

```python
def f():
    return "日本"  # done
```
"""


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted(words("First answer."), words("Second answer."), words("Third answer.")) as made:
        yield made


@pytest.fixture
def open_screen(tmp_path: Path) -> Iterator[Callable[..., Screen]]:
    """open_screen(server, *flags, ...): a chat that is at its prompt."""
    screens: list[Screen] = []

    def start(server: ScriptedServer, *flags: str, **options: Any) -> Screen:
        screens.append(Screen(tmp_path, "--url", server.url, *flags, **options))
        return screens[-1]

    yield start
    for screen in screens:
        screen.close()


OpenScreen = Callable[..., Screen]


def leave(screen: Screen) -> None:
    screen.wait_prompt()
    screen.keys("C-d")
    screen.wait("EXIT 0")


def test_undo_retry_and_the_status_bar(open_screen: OpenScreen, server: ScriptedServer) -> None:
    screen = open_screen(server)
    screen.wait("scripted on http://127.0.0.1", "1,000 tokens of context", "context 0 of 1,000")
    screen.enter("one")
    screen.wait("First answer.", "scripted · context 21 of 1,000 (2.1%)")
    screen.enter("two")
    screen.wait("Second answer.")
    screen.enter("/undo")
    screen.wait("Taken back: two", "context ? of 1,000")
    screen.enter("/retry")
    screen.wait("Third answer.")
    screen.enter("/show")
    screen.wait("1 turn")
    leave(screen)
    asked = [[message["content"] for message in request["messages"]] for request in server.requests]
    assert asked == [["one"], ["one", "First answer.", "two"], ["one"]]


def test_save_load_and_history(open_screen: OpenScreen, server: ScriptedServer, tmp_path: Path) -> None:
    screen = open_screen(server)
    screen.enter("/set system Be kind.")
    screen.enter("/set temp 0.5")
    screen.enter("one")
    screen.wait("First answer.")
    path = tmp_path / "saved chat.json"
    screen.enter(f"/save '{path}'")
    screen.wait("1 turn written to")
    assert [message["role"] for message in json.loads(path.read_text())["messages"]] == ["system", "user", "assistant"]
    screen.enter("/reset")
    screen.enter("/set temp default")
    screen.enter(f"/load '{path}'")
    screen.wait("1 turn read from")
    screen.enter("/history")
    screen.wait("First answer.", count=2)
    screen.enter("/set temp")
    screen.wait("/set temp needs a value")
    screen.enter("two")
    screen.wait("Second answer.")
    leave(screen)
    assert server.requests[-1]["temperature"] == 0.5
    assert [message["content"] for message in server.requests[-1]["messages"]] == [
        "Be kind.",
        "one",
        "First answer.",
        "two",
    ]


def test_the_editor(open_screen: OpenScreen, server: ScriptedServer, tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\ncat "$1" > "$0.saw"\nprintf \'edited\\ntext\\n\' > "$1"\n')
    editor.chmod(0o755)
    screen = open_screen(server, environment={"VISUAL": str(editor)})
    screen.enter("/edit")
    screen.wait("> edited\n. text", "First answer.")
    screen.type("half a question")
    screen.keys("C-x", "C-e")
    wait_until(lambda: (tmp_path / "editor.saw").read_text().strip() == "half a question")
    screen.wait("Second answer.")
    screen.enter("/edit last")
    screen.wait("Third answer.")
    assert (tmp_path / "editor.saw").read_text() == "edited\ntext"
    editor.write_text("#!/bin/sh\nexit 3\n")
    screen.enter("/edit")
    screen.wait("ended with code 3; nothing is sent.")
    leave(screen)
    assert len(server.requests) == 3 and server.requests[2]["messages"][-1]["content"] == "edited\ntext"
    assert len(server.requests[2]["messages"]) == 3  # the second turn was taken back


def test_copy_goes_to_the_clipboard(open_screen: OpenScreen, tmp_path: Path) -> None:
    with scripted(words(MARKDOWN)) as server:
        screen = open_screen(server, environment={"TMUX": "", "DISPLAY": "", "WAYLAND_DISPLAY": ""})
        screen.tmux("set-option", "-g", "set-clipboard", "on")
        screen.enter("/copy")
        screen.wait("There is no answer to copy.")
        screen.enter("one")
        screen.wait("• two")
        screen.enter("/copy")
        screen.wait(f"{len(MARKDOWN)} characters copied.")
        wait_until(lambda: buffer(screen) == MARKDOWN)
        screen.enter("/copy code")
        code = 'def f():\n    return "日本"  # done\n'
        wait_until(lambda: buffer(screen) == code)
        leave(screen)


def buffer(screen: Screen) -> str:
    try:
        return screen.tmux("show-buffer")
    except subprocess.CalledProcessError:  # there is none yet
        return ""


def test_files_and_their_completion(open_screen: OpenScreen, server: ScriptedServer, tmp_path: Path) -> None:
    (tmp_path / "a-long-name.txt").write_text("inside\n")
    screen = open_screen(server)
    screen.type(f"Read @{tmp_path}/a-lo")
    screen.keys("Tab")
    screen.wait("a-long-name.txt")
    screen.keys("Enter")
    screen.wait("1 line added.", "First answer.")
    leave(screen)
    assert server.requests[0]["messages"][0]["content"].endswith("a-long-name.txt:\n```txt\ninside\n```")


def test_markdown_in_colours_and_without(open_screen: OpenScreen) -> None:
    with scripted(words(*MARKDOWN)) as server:
        screen = open_screen(server)
        screen.enter("one")
        screen.wait("tok/s")
        seen = screen.tmux("capture-pane", "-p", "-e", "-S", "-")
        assert "\x1b[1m\x1b[4mTitle" in seen or "\x1b[1;4mTitle" in seen
        assert "• one\n• two" in seen and "**" not in seen
        assert "\x1b[1mbold\x1b[0m" in seen, repr(seen)
        assert re.search(r"\x1b\[(?:\d+;)*[39]\dmreturn", seen), repr(seen)
        screen.enter("/set markdown off")
        screen.enter("two")
        screen.wait("Some **bold** and `code`.", "- two")
        leave(screen)


@pytest.mark.parametrize(
    ("variable", "value", "plain"), [("NO_COLOR", "1", False), ("TERM", "dumb", True)], ids=["NO_COLOR", "dumb"]
)
def test_no_colours(open_screen: OpenScreen, variable: str, value: str, plain: bool) -> None:
    with scripted(words(*MARKDOWN, thought="hm")) as server:
        screen = open_screen(server, environment={variable: value})
        screen.wait("/help lists the commands", "\n>")
        screen.keys("-l", "one")
        screen.keys("Enter")
        screen.wait("tok/s", "Thinking:")
        seen = screen.tmux("capture-pane", "-p", "-e", "-S", "-").partition("First")[0]
        answer = seen[seen.index("Thinking:") : seen.index("tok/s")]
        assert "\x1b[3" not in answer.replace("\x1b[39m", "").replace("\x1b[3m", "") and "\x1b[9" not in answer
        assert ("**bold**" in answer) == plain
        screen.keys("C-d")
        screen.wait("EXIT 0")


def test_folded_thoughts_and_silence(open_screen: OpenScreen) -> None:
    with scripted(words("Answer.", thought="a secret thought")) as server:
        screen = open_screen(server)
        screen.enter("/think hide")
        screen.enter("/set verbose off")
        screen.enter("one")
        text = screen.wait("Thinking... ", "Answer.")
        screen.wait_prompt()
        text = screen.text()
        assert "secret" not in text and "tok/s]" not in text and "cached" not in text
        screen.enter("/thought")
        screen.wait("a secret thought")
        leave(screen)


TOOLS = '''
import time

def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b

def wait(path: str) -> None:
    """Waits."""
    open(path, "w").close()
    time.sleep(1000)
'''


def test_tools(open_screen: OpenScreen, tmp_path: Path) -> None:
    (tmp_path / "my.py").write_text(TOOLS)
    add = call("add", '{"a": 2, "b": 3}')
    started = tmp_path / "started"
    waits = call("wait", json.dumps({"path": str(started)}))
    answers = [add, words("Said no."), add, words("It is 5."), add, add, words("Twice more."), waits, words("never")]
    with scripted(*answers) as server:
        screen = open_screen(server)
        screen.enter(f"/tools {tmp_path}/my.py")
        screen.wait("The model may ask for: add, wait. You are asked before each call.")
        screen.enter("add them")
        screen.wait("add(a=2, b=3)", "Run it? [y]es, [n]o, [a]lways this function:")
        screen.keys("-l", "why?")  # only an answer is one
        screen.keys("Enter")
        screen.wait("Only y, n or a and Enter is an answer")
        screen.wait("Run it?", count=2)
        screen.keys("Enter")
        screen.wait("Run it?", count=3)
        screen.keys("n", "Enter")
        screen.wait("permission denied by user", "Said no.")
        screen.enter("again")
        screen.wait("Run it?", count=4)
        screen.keys("Y", "Enter")
        screen.wait("→ 5", "It is 5.")
        screen.enter("and again")
        screen.wait("Run it?", count=5)
        screen.keys("-l", "always")
        screen.keys("Enter")
        screen.wait("Twice more.")
        screen.wait("→ 5", count=3)
        screen.enter("wait")
        screen.wait("Run it?", count=6)
        screen.keys("y", "Enter")
        wait_until(started.exists)
        screen.keys("C-c")
        screen.wait("The user stopped this call.")
        screen.enter("/tools off")
        screen.wait("No tools are offered.")
        leave(screen)
        results = [m["content"] for request in server.requests for m in request["messages"] if m["role"] == "tool"]
        assert "5" in results and len(server.requests) == 8 and "tools" in server.requests[0]


def test_what_was_typed_before_the_question_does_not_answer_it(open_screen: OpenScreen, tmp_path: Path) -> None:
    (tmp_path / "my.py").write_text(TOOLS)
    says_and_calls = [words("Let me add.")[0], *call("add", '{"a": 2, "b": 3}')]
    with scripted(says_and_calls, words("Said no.")) as server:
        server.gate.clear()
        screen = open_screen(server)
        screen.enter(f"/tools {tmp_path}/my.py")
        screen.enter("add them")
        screen.wait("Let me add.")
        screen.keys("y", "Enter")
        screen.text()  # the terminal has had the keys
        server.gate.set()
        screen.wait("Run it?")
        screen.keys("n", "Enter")
        screen.wait("permission denied by user", "Said no.")
        leave(screen)


def test_the_status_bar_knows_what_a_stopped_answer_left(open_screen: OpenScreen) -> None:
    with scripted(words("Beginning ", "end.")) as server:
        server.status_reply, server.count_reply = {"kv_tokens": 100, "defaults": {}}, {"count": 20}
        server.gate.clear()
        screen = open_screen(server)
        screen.enter("one")
        screen.wait("Beginning")
        screen.keys("C-c")
        screen.wait("stopped]", "context 20 of 1,000 (2.0%) · KV 20%")
        leave(screen)


def test_ctrl_c_stops_an_answer_of_a_server(open_screen: OpenScreen) -> None:
    with scripted(words("Beginning ", "end."), words("Again.")) as server:
        server.gate.clear()
        screen = open_screen(server)
        screen.enter("one")
        screen.wait("Beginning")
        screen.keys("C-c")
        text = screen.wait("stopped]")
        (numbers,) = [line for line in text.splitlines() if line.endswith("stopped]")]
        assert re.fullmatch(r"\[\d+\.\d+ s · first after \d+\.\d+ s · stopped\]", numbers)  # no server has told more
        server.gate.set()
        screen.enter("two")
        screen.wait("Again.")
        leave(screen)


@pytest.mark.parametrize("at_the_prompt", [True, False])
def test_ctrl_z_and_fg(open_screen: OpenScreen, at_the_prompt: bool) -> None:
    with scripted(words("Beginning ", "end."), words("Again.")) as server:
        server.gate.clear()
        screen = open_screen(server, shell=True)
        screen.wait_prompt()
        if not at_the_prompt:
            screen.enter("one")
            screen.wait("Beginning")
        screen.keys("C-z")
        screen.wait("Stopped")
        screen.keys("-l", "echo sh$((1+1))ell")
        screen.keys("Enter")
        screen.wait("sh2ell")
        screen.keys("-l", "fg")
        screen.keys("Enter")
        server.gate.set()
        if at_the_prompt:
            screen.enter("one")
        screen.wait("end.", "tok/s")
        screen.enter("two")
        screen.wait("Again.")
        screen.wait_prompt()
        screen.keys("C-d")
        screen.wait("EXIT")


def test_ctrl_z_at_a_call(open_screen: OpenScreen, tmp_path: Path) -> None:
    (tmp_path / "my.py").write_text(TOOLS)
    with scripted(call("add", '{"a": 2, "b": 3}'), words("It is 5.")) as server:
        screen = open_screen(server, shell=True)
        screen.enter(f"/tools {tmp_path}/my.py")
        screen.enter("add them")
        screen.wait("Run it?")
        screen.keys("C-z")
        screen.wait("Stopped")
        screen.keys("-l", "fg")
        screen.keys("Enter")
        screen.wait("Run it?")
        screen.keys("y", "Enter")
        screen.wait("→ 5", "It is 5.")
        screen.wait_prompt()


def test_a_narrow_window_that_changes(open_screen: OpenScreen) -> None:
    with scripted(words(*MARKDOWN)) as server:
        screen = open_screen(server, columns=20, rows=30)
        screen.enter("one")
        screen.wait("• two", "tok/s")
        screen.wait("context ")
        screen.tmux("resize-window", "-x", "70", "-y", "20")
        screen.wait("scripted · context")
        screen.enter("two")
        screen.wait("• two", count=2)
        leave(screen)
