"""The commands of the chat: each `cmd_<name>` method is `/<name>`, its docstring is its help.

Owns parsing and completing of command lines. Refuses to know keys and answers; it changes the session and the
renderer's switches and says what it did in one sentence. A command that leads to a question returns it; one that takes
its time returns something to await. Runs on the event loop's thread.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from qwen3app.chat.backend import Call
from qwen3app.chat.desktop import copy_text, edit_text
from qwen3app.chat.errors import ChatError
from qwen3app.chat.render import Renderer
from qwen3app.chat.saved import load, save
from qwen3app.chat.session import ChatSession
from qwen3app.chat.settings import BY_NAME, SETTINGS, Setting, canonical, find_setting, set_value
from qwen3app.chat.tools import Tools

# What a command leads to: nothing, a question to ask, or work to wait for.
Outcome = str | Awaitable[None] | None

_SWITCHES = {
    "think": "thought before an answer",
    "verbose": "line of numbers under each answer",
    "markdown": "formatting by the marks of markdown",
}


_KEYS = """
Enter sends; Alt-Enter (or Esc, Enter) begins a new line.
Lines between \"\"\" and \"\"\" are one text; // sends a text that begins with a slash.
@path puts a file's text into the question; Ctrl-X Ctrl-E opens what you type in $EDITOR.
Ctrl-C stops an answer, Ctrl-D leaves, Tab completes, Up recalls earlier lines.
"""


class Leave(Exception):
    """The user wants to leave the chat."""


class Commands:
    def __init__(self, session: ChatSession, renderer: Renderer, tools: Tools) -> None:
        self._session = session
        self._renderer = renderer
        self._tools = tools
        self._methods: dict[str, Callable[[str], Outcome]] = {
            name.removeprefix("cmd_"): getattr(self, name) for name in sorted(dir(self)) if name.startswith("cmd_")
        }

    @staticmethod
    def is_command(line: str) -> bool:
        """A line that begins with one slash. Two slashes send a text that begins with one."""
        return line.startswith("/") and not line.startswith("//")

    def run(self, line: str) -> Outcome:
        """Runs one command line. ChatError: it cannot be done. Leave: the chat ends."""
        name, _, argument = line.strip()[1:].partition(" ")
        method = self._methods.get(name)
        if method is None:
            close = difflib.get_close_matches(name, self._methods, n=1)
            hint = f"did you mean /{close[0]}?" if close else "/help lists the commands."
            if canonical(name) in BY_NAME or canonical(name) in _SWITCHES:
                hint = f"did you mean /set {name}?"
            raise ChatError(f"Unknown command /{name}; {hint} (Begin with // to send a text that starts with a slash.)")
        argument = argument.strip()
        if argument and not _takes_words(method):
            raise ChatError(f"/{name} takes nothing; leave out {_short(argument)!r}.")
        return method(argument)

    def complete(self, text: str) -> Iterator[tuple[str, str, int]]:
        """What Tab offers for the text before the cursor: (word, meaning, characters of the text that it replaces). A
        space ends a word that another can follow, so that typing goes on."""
        if not self.is_command(text) or "\n" in text:
            return
        *before, word = text.split(" ")
        if not before:
            for name, method in self._methods.items():
                if name.startswith(word[1:]):
                    yield f"/{name}{' ' if _takes_words(method) else ''}", _summary(method), len(word)
            return
        for offered, meaning in self._arguments(before[0][1:], [part for part in before[1:] if part]):
            if offered.startswith(word):
                yield offered, meaning, len(word)

    def _arguments(self, command: str, given: list[str]) -> list[tuple[str, str]]:
        if command == "think" and not given:
            return [
                ("on", "think before answering"),
                ("off", "answer at once"),
                ("show", "show thoughts"),
                ("hide", "hide thoughts"),
            ]
        if command == "set" and not given:
            names = [(setting.name, setting.help) for setting in SETTINGS] + list(_SWITCHES.items())
            return [(f"{name} ", meaning) for name, meaning in names]
        if command == "set" and len(given) == 1:
            meaning = _SWITCHES.get(given[0])
            return [("on", meaning), ("off", f"no {meaning}")] if meaning else [("default", "the model's own value")]
        if command == "copy" and not given:
            return [("code", "the last block of code alone")]
        if command == "edit" and not given:
            return [("last", "begin with the last question, and take it back")]
        if command == "tools" and not given:
            return [("off", "offer none any more")]
        return []

    def cmd_exit(self, argument: str) -> None:
        """/exit: leave the chat (also Ctrl-D)."""
        raise Leave

    def cmd_quit(self, argument: str) -> None:
        """/quit: the same as /exit."""
        raise Leave

    def cmd_reset(self, argument: str) -> None:
        """/reset: forget the conversation; settings stay."""
        self._session.reset()
        self._renderer.notice("The conversation is empty again.")

    def cmd_think(self, argument: str) -> None:
        """/think on|off|show|hide: think before answering; show thoughts or fold them to a line."""
        if argument in ("on", "off"):
            self._session.think = argument == "on"
            self._renderer.notice("The model thinks before it answers." if argument == "on" else "Thinking is off.")
        elif argument in ("show", "hide"):
            self._renderer.show_thinking = argument == "show"
            self._renderer.notice(
                "Thoughts are shown."
                if argument == "show"
                else "Thoughts are folded to a line; /thought shows the last."
            )
        else:
            raise ChatError("/think takes one of: on, off, show, hide.")

    def cmd_set(self, argument: str) -> None:
        """/set NAME VALUE: change a setting of /show; `default` undoes it."""
        name, _, value = argument.partition(" ")
        value = value.strip()
        if not name:
            raise ChatError("/set takes a name and a value, like /set temp 0.7; /show lists the names.")
        if canonical(name) in _SWITCHES:
            self._switch(canonical(name), value)
            return
        setting = find_setting(name, _SWITCHES)
        if not value:
            raise ChatError(f"/set {setting.name} needs a value ({setting.help}), or `default`.")
        set_value(self._session.settings, name, value)
        self._renderer.notice(f"{setting.name} = {self._shown(setting)}")

    def _switch(self, name: str, value: str) -> None:
        if value not in ("on", "off"):
            raise ChatError(f"/set {name} takes on or off ({_SWITCHES[name]}).")
        owner = self._session if name == "think" else self._renderer
        setattr(owner, name, value == "on")
        self._renderer.notice(f"{name} = {value}")

    def cmd_show(self, argument: str) -> None:
        """/show: the settings, the model and how full the context is."""
        session, backend = self._session, self._session.backend
        rows = [(setting.name, self._shown(setting)) for setting in SETTINGS]
        rows.append(("think", f"{'on' if session.think else 'off'}, {self._thoughts()}"))
        rows.append(("verbose", "on" if self._renderer.verbose else "off"))
        rows.append(("markdown", "on" if self._renderer.markdown else "off"))
        rows.append(("tools", ", ".join(self._tool_names()) or "none"))
        rows.append(("model", f"{backend.name} on {backend.place}"))
        known = session.context_tokens is not None
        used, later = (f"{session.context_tokens:,}", "") if known else ("?", " until the next answer")
        limit = "" if backend.max_context is None else f" of {backend.max_context:,}"
        rows.append(("context", f"{used}{limit} tokens{later}, {_turns(session.n_turns)}"))
        self._renderer.table(rows)

    def cmd_save(self, argument: str) -> None:
        """/save FILE: write the conversation as JSON, in the form of a chat request."""
        path = _path(argument, "/save")
        save(self._session, path)
        self._renderer.notice(f"{_turns(self._session.n_turns)} written to {path}.")

    def cmd_load(self, argument: str) -> None:
        """/load FILE: go on with a conversation that /save has written."""
        path = _path(argument, "/load")
        brought = load(self._session, path)
        n_turns = self._session.n_turns
        self._renderer.notice(f"{_turns(n_turns)} read from {path}; /history shows {'it' if n_turns == 1 else 'them'}.")
        if brought:
            values = ", ".join(f"{setting.name} = {_short(self._shown(setting))}" for setting in brought)
            self._renderer.notice(f"The file sets {values}.")

    def cmd_history(self, argument: str) -> None:
        """/history: the conversation so far."""
        if not self._session.messages:
            self._renderer.notice("The conversation is empty.")
        for message in self._session.messages:
            content = message["content"]
            if message["role"] == "user":
                self._renderer.plain("> " + content.replace("\n", "\n. "))
            elif message["role"] == "tool":
                self._renderer.tool_result(content)
            elif content:
                self._renderer.answer(content)
            for part in message.get("tool_calls", ()):
                self._renderer.call(Call.from_message_part(part))

    def cmd_undo(self, argument: str) -> None:
        """/undo: take back the last question and its answer."""
        question = self._session.undo()
        if question is None:
            raise ChatError("There is nothing to take back; the conversation is empty.")
        self._renderer.notice(f"Taken back: {_short(question)}")

    def cmd_retry(self, argument: str) -> Outcome:
        """/retry: ask the last question again; the new answer replaces the one before."""
        question = self._session.last_question
        if question is None:
            raise ChatError("There is no question to ask again.")
        self._session.take_back()
        return question

    def cmd_edit(self, argument: str) -> Outcome:
        """/edit [last]: write a question in $EDITOR; `last` begins with the last one and takes it back."""
        if argument not in ("", "last"):
            raise ChatError("/edit takes nothing, or `last`.")
        before = self._session.last_question if argument else ""
        if before is None:
            raise ChatError("There is no last question; /edit alone begins with an empty one.")
        text = edit_text(before, os.environ)
        if not text.strip():
            raise ChatError("The text is empty; nothing is sent.")
        if argument:
            self._session.take_back()
        self._renderer.plain("> " + text.replace("\n", "\n. "))
        return text

    def cmd_copy(self, argument: str) -> None:
        """/copy [code]: the last answer, or its last block of code, to the clipboard."""
        reply = self._session.last_reply
        text = reply["content"] if reply else ""
        if argument == "code":
            blocks = re.findall(r"^[ \t]*(`{3,}|~{3,})[^\n]*\n(.*?)(?:^[ \t]*\1[ \t]*$|\Z)", text, re.M | re.S)
            text = blocks[-1][1] if blocks else ""
        elif argument:
            raise ChatError("/copy takes nothing, or `code`.")
        if not text:
            raise ChatError(f"There is no {'code in the last answer' if argument else 'answer'} to copy.")
        if sequence := copy_text(text, os.environ):
            self._renderer.control(sequence)
        self._renderer.notice(f"{len(text)} characters copied.")

    def cmd_thought(self, argument: str) -> None:
        """/thought: the thought of the last answer."""
        thought = (self._session.last_reply or {}).get("reasoning_content")
        if not thought:
            raise ChatError("The last answer has no thought.")
        self._renderer.thought(thought)

    async def cmd_tools(self, argument: str) -> None:
        """/tools FILE.py|off: offer the file's functions to the model; each call waits for your yes."""
        if argument == "off":
            await self._tools.close()
            self._renderer.notice("No tools are offered.")
        elif argument:
            names = await self._tools.load(_path(argument, "/tools"))
            self._renderer.notice(f"The model may ask for: {', '.join(names)}. You are asked before each call.")
        elif names := self._tool_names():
            self._renderer.plain(", ".join(names))
        else:
            raise ChatError("No tools are offered; /tools FILE.py offers the functions of a file.")

    def _tool_names(self) -> list[str]:
        return [tool["function"]["name"] for tool in self._session.tools or ()]

    def cmd_help(self, argument: str) -> None:
        """/help: this list."""
        self._renderer.table([(_usage(method), _summary(method)) for method in self._methods.values()])
        self._renderer.paragraphs(_KEYS)

    def _thoughts(self) -> str:
        return "thoughts shown" if self._renderer.show_thinking else "thoughts folded"

    def _shown(self, setting: Setting) -> str:
        value = getattr(self._session.settings, setting.field)
        if value is not None:
            return repr(value) if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)
        default = self._session.effective(setting.field)
        if default is not None:
            return f"{default:g} (the model's default)"
        sampling = setting.field not in ("seed", "max_tokens", "system")
        return (self._session.backend.unset if sampling else None) or setting.unset


def _turns(count: int) -> str:
    return f"{count} turn{'' if count == 1 else 's'}"


def _short(text: str) -> str:
    """A text of any length on a line."""
    return " ".join((text if len(text) <= 60 else f"{text[:57]}...").split())


def _path(argument: str, command: str) -> Path:
    """The one path of a command, quoted or not."""
    try:
        words = shlex.split(argument) if argument[:1] in "\"'" else [argument]
    except ValueError:
        words = []
    if len(words) != 1 or not words[0] or "\0" in words[0]:
        raise ChatError(f"{command} takes the name of a file.")
    return Path(os.path.expanduser(words[0]))  # noqa: PTH111 - an unknown ~user stays as it is


def _usage(method: Callable[[str], Outcome]) -> str:
    """How a command is written, by the words that stand for what it takes."""
    return (method.__doc__ or "").strip().partition(": ")[0]


def _takes_words(method: Callable[[str], Outcome]) -> bool:
    return " " in _usage(method)


def _summary(method: Callable[[str], Outcome]) -> str:
    return (method.__doc__ or "").strip().partition(": ")[2]
