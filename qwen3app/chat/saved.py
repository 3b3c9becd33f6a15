"""/save and /load: a conversation as JSON, in the form of a chat completions request.

Owns the file's form: {"model", "messages", and the sampling settings that the user has changed, by OpenAI's names, and
"tools"}, so that the file can be sent to a server as it is. The chat page exports and imports such files too. A bare
list of messages is read as well. Any thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from qwen3app.chat.attachments import read_text
from qwen3app.chat.errors import ChatError
from qwen3app.chat.session import ChatSession
from qwen3app.chat.settings import BY_NAME, SETTINGS, Setting, set_value
from qwen3app.text.errors import TextError
from qwen3app.text.messages import normalise_messages

_MOST_BYTES = 256 << 20  # a conversation keeps all thoughts and results, also those that have left the context


def save(session: ChatSession, path: Path) -> None:
    """Writes the conversation so that a failure leaves what was there; only the owner may read it. ChatError: nothing
    has been written."""
    try:
        is_dir, exists = path.is_dir(), path.exists()
    except OSError as error:
        raise ChatError(f"{path} cannot be written: {error.strerror}.") from None
    if is_dir:
        raise ChatError(f"{path} is a directory; name a file in it.")
    if exists and path.absolute() != session.file:
        _check_overwriting(session, path)
    settings = session.settings
    system = [{"role": "system", "content": settings.system}] if settings.system else []
    body: dict[str, Any] = {"model": session.backend.name, "messages": [*system, *session.messages]}
    for setting in SETTINGS:
        value = getattr(settings, setting.field)
        if value is not None and setting.field != "system":
            body[setting.field] = value
    if session.tools:
        body["tools"] = session.tools  # for who sends the file; a chat takes them from their file, with /tools
    # Half a character that a model wrote has no UTF-8 form.
    data = json.dumps(body, ensure_ascii=False, indent=2).encode("utf-8", "replace") + b"\n"
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise ChatError(f"{path} cannot be written: {error.strerror}.") from None
    session.note_saved(path)


def load(session: ChatSession, path: Path) -> list[Setting]:
    """Makes the file's conversation this one, and returns the settings that it brings along; all others stay as they
    are. ChatError: nothing has changed."""
    body = _read(path)
    found = body.get("messages")
    if not isinstance(found, list):
        raise ChatError(f"{path} has no list of messages; /save writes such files.")
    try:
        messages = normalise_messages(found) if found else []
    except TextError as error:
        raise ChatError(f"{path}: {error}") from None
    settings, brought = replace(session.settings), []
    if messages and messages[0]["role"] == "system":
        settings.system = messages.pop(0)["content"] or None
        brought.append(BY_NAME["system"])
    _check_turns(path, messages)
    for setting in SETTINGS:
        value = body.get(setting.field)
        if value is not None and setting.field != "system":
            try:
                brought.append(set_value(settings, setting.name, str(value)))
            except ChatError as error:
                raise ChatError(f"{path}: {error}") from None
    if not session.is_saved:
        raise ChatError("The conversation is not saved: /save FILE keeps it, /reset forgets it; then /load again.")
    session.settings = settings
    session.replace(messages)
    session.note_saved(path)
    return brought


def _read(path: Path) -> dict[str, Any]:
    try:
        body: Any = msgspec.json.decode(read_text(path, _MOST_BYTES, "a saved conversation"))
    except (msgspec.DecodeError, RecursionError) as error:
        raise ChatError(f"{path} is not JSON: {error}.") from None
    if isinstance(body, list):
        return {"messages": body}
    if not isinstance(body, dict):
        raise ChatError(f"{path} is no conversation; /save writes such files.")
    return body


def _check_overwriting(session: ChatSession, path: Path) -> None:
    """ChatError where something would be lost: what is no conversation, or one that is no earlier state of this one."""
    try:
        found = _read(path)["messages"]
    except (ChatError, KeyError):
        raise ChatError(f"{path} exists and is no saved conversation; it is left alone. Choose another name.") from None
    if isinstance(found, list) and found and isinstance(found[0], dict) and found[0].get("role") == "system":
        found = found[1:]
    if not isinstance(found, list) or found != session.messages[: len(found)]:
        raise ChatError(f"{path} holds another conversation, which would be lost; choose another name.")


def _check_turns(path: Path, messages: list[dict[str, Any]]) -> None:
    """The session's invariants: turns begin with a user message, and every call has its result."""
    roles = [message["role"] for message in messages]
    if "system" in roles:
        raise ChatError(f"{path}: a system message stands behind the first message; a chat has one, at its beginning.")
    if messages and roles[0] != "user":
        raise ChatError(f"{path}: the first message is of the role {roles[0]}; a conversation begins with a user's.")
    if messages and roles[-1] == "user":
        raise ChatError(f"{path}: the last message is a question; remove it from the file, load, and ask it.")
    results = {message.get("tool_call_id") for message in messages if message["role"] == "tool"}
    calls = [call.get("id") for message in messages for call in message.get("tool_calls", ())]
    if missing := [call for call in calls if call is not None and call not in results]:
        raise ChatError(f"{path}: the tool call {missing[0]} has no result.")
