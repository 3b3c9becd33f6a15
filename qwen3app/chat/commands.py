"""The commands of the chat: each `cmd_<name>` method is `/<name>`, its docstring is its help.

Owns parsing and completing of command lines. Refuses to know keys and answers; it changes the session and the
renderer's switches and says what it did in one sentence. Runs on the event loop's thread.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator

from qwen3app.chat.errors import ChatError
from qwen3app.chat.render import Renderer
from qwen3app.chat.session import ChatSession
from qwen3app.chat.settings import ALIASES, BY_NAME, SETTINGS, Setting, find_setting, set_value


class Leave(Exception):
    """The user wants to leave the chat."""


class Commands:
    def __init__(self, session: ChatSession, renderer: Renderer) -> None:
        self._session = session
        self._renderer = renderer
        self._methods: dict[str, Callable[[str], None]] = {
            name.removeprefix("cmd_"): getattr(self, name) for name in sorted(dir(self)) if name.startswith("cmd_")
        }

    @staticmethod
    def is_command(line: str) -> bool:
        """A line that begins with one slash. Two slashes send a text that begins with one."""
        return line.startswith("/") and not line.startswith("//")

    def run(self, line: str) -> None:
        """Runs one command line. ChatError: it cannot be done. Leave: the chat ends."""
        name, _, argument = line.strip()[1:].partition(" ")
        method = self._methods.get(name)
        if method is None:
            close = difflib.get_close_matches(name, self._methods, n=1)
            hint = f"did you mean /{close[0]}?" if close else "/help lists the commands."
            if name in BY_NAME or name in ALIASES:
                hint = f"did you mean /set {name}?"
            raise ChatError(f"Unknown command /{name}; {hint} (Begin with // to send a text that starts with a slash.)")
        method(argument.strip())

    def complete(self, text: str) -> Iterator[tuple[str, str, int]]:
        """What Tab offers for the text before the cursor: (word, meaning, characters of the text that it replaces)."""
        if not self.is_command(text) or "\n" in text:
            return
        *before, word = text.split(" ")
        if not before:
            for name, method in self._methods.items():
                if name.startswith(word[1:]):
                    yield f"/{name}", _summary(method), len(word)
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
            return [(setting.name, setting.help) for setting in SETTINGS]
        if command == "set" and len(given) == 1:
            return [("default", "the model's own value")]
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
        """/think on|off|show|hide: think before answering; show thoughts."""
        if argument in ("on", "off"):
            self._session.think = argument == "on"
            self._renderer.notice("The model thinks before it answers." if argument == "on" else "Thinking is off.")
        elif argument in ("show", "hide"):
            self._renderer.show_thinking = argument == "show"
            self._renderer.notice("Thoughts are shown." if argument == "show" else "Thoughts are hidden.")
        else:
            raise ChatError("/think takes one of: on, off, show, hide.")

    def cmd_set(self, argument: str) -> None:
        """/set NAME VALUE: change a setting of /show; `default` undoes it."""
        name, _, value = argument.partition(" ")
        value = value.strip()
        if not name:
            raise ChatError("/set takes a name and a value, like /set temp 0.7; /show lists the names.")
        if not value:
            setting = find_setting(name)
            raise ChatError(f"/set {setting.name} needs a value ({setting.help}), or `default`.")
        setting = set_value(self._session.settings, name, value)
        self._renderer.notice(f"{setting.name} = {self._shown(setting)}")

    def cmd_show(self, argument: str) -> None:
        """/show: the settings, the model and how full the context is."""
        session, info = self._session, self._session.model.info
        rows = [(setting.name, self._shown(setting)) for setting in SETTINGS]
        rows.append(("think", f"{'on' if session.think else 'off'}, {self._thoughts()}"))
        rows.append(("model", f"{session.model.name} on {info.device} ({info.kernels})"))
        used = session.stats.prompt_tokens + session.stats.tokens if session.messages else 0
        turns = len(session.messages) // 2
        rows.append(("context", f"{used} of {info.max_context} tokens, {turns} turn{'' if turns == 1 else 's'}"))
        width = max(len(name) for name, _ in rows)
        self._renderer.plain("\n".join(f"{name:{width}}  {value}" for name, value in rows))

    def cmd_help(self, argument: str) -> None:
        """/help: this list."""
        rows = [(method.__doc__ or "").strip().partition(": ") for method in self._methods.values()]
        width = max(len(usage) for usage, _, _ in rows)
        lines = [f"{usage:{width}}  {meaning}" for usage, _, meaning in rows]
        lines.append("")
        lines.append("Enter sends; Alt-Enter (or Esc, Enter) begins a new line.")
        lines.append('Lines between """ and """ are one text; // sends a text that begins with a slash.')
        lines.append("Ctrl-C stops an answer, Ctrl-D leaves, Tab completes, Up recalls earlier lines.")
        self._renderer.plain("\n".join(lines))

    def _thoughts(self) -> str:
        return "thoughts shown" if self._renderer.show_thinking else "thoughts hidden"

    def _shown(self, setting: Setting) -> str:
        value = getattr(self._session.settings, setting.field)
        if value is not None:
            return repr(value) if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)
        default = self._session.effective(setting.field)
        return setting.unset if default is None else f"{default:g} (the model's default)"


def _summary(method: Callable[[str], None]) -> str:
    return (method.__doc__ or "").strip().partition(": ")[2]
