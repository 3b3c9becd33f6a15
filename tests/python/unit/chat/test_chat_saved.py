"""Conversations in files."""

from __future__ import annotations

import json
import os
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from qwen3app.chat import saved
from qwen3app.chat.errors import ChatError
from qwen3app.chat.session import ChatSession


async def ask(session: ChatSession, text: str) -> None:
    async with aclosing(session.ask(text)) as pieces:
        async for _ in pieces:
            pass


async def test_a_conversation_comes_back(session: ChatSession, runtime: Any, tmp_path: Path) -> None:
    runtime.script = [("hm \ud800", ""), ("", "Hello 日本")]
    session.settings.system = "Be brief."
    session.settings.temperature = 0.5
    session.settings.seed = 2**63 - 1
    await ask(session, "Hi")
    path = tmp_path / "chat.json"
    saved.save(session, path)
    body = json.loads(path.read_text("utf-8"))
    assert body == {
        "model": "tiny",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello 日本", "reasoning_content": "hm ?"},
        ],
        "temperature": 0.5,
        "seed": 2**63 - 1,
    }
    assert path.stat().st_mode & 0o777 == 0o600 and list(tmp_path.iterdir()) == [path]
    session.reset()
    session.settings.system = None
    session.settings.top_k = 3
    saved.load(session, path)
    assert session.messages == body["messages"][1:]
    settings = session.settings
    assert (settings.system, settings.temperature, settings.seed, settings.top_k) == ("Be brief.", 0.5, 2**63 - 1, 3)
    assert session.context_tokens == len("Be brief.HiHello 日本")
    session.tools = [{"type": "function", "function": {"name": "f"}}]
    saved.save(session, path)  # over itself
    assert json.loads(path.read_text("utf-8")) == {**body, "top_k": 3, "tools": session.tools}


async def test_only_the_files_own_settings_change(session: ChatSession, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.write_text('{"messages": [], "temperature": 0.5, "top_k": null}')
    session.settings.system, session.settings.seed, session.settings.max_tokens = "Be brief.", 7, 20
    session.settings.temperature, session.settings.top_k = 1.0, 4
    assert [setting.name for setting in saved.load(session, path)] == ["temp"]
    settings = session.settings
    assert (settings.system, settings.seed, settings.max_tokens) == ("Be brief.", 7, 20)
    assert (settings.temperature, settings.top_k) == (0.5, 4)
    path.write_text('[{"role": "system", "content": ""}]')
    assert [setting.name for setting in saved.load(session, path)] == ["system"]
    assert session.settings.system is None


async def test_an_unsaved_conversation_is_not_replaced(session: ChatSession, tmp_path: Path) -> None:
    other, mine = tmp_path / "other.json", tmp_path / "mine.json"
    other.write_text('[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]')
    await ask(session, "Hi")
    with pytest.raises(ChatError, match="The conversation is not saved: /save FILE keeps it, /reset forgets it"):
        saved.load(session, other)
    assert session.last_reply == {"role": "assistant", "content": "Hello there"}
    saved.save(session, mine)
    saved.load(session, other)  # and what was loaded is in a file
    saved.load(session, mine)
    session.undo()  # the file has what is left, and more
    saved.load(session, other)
    await ask(session, "more")
    with pytest.raises(ChatError, match="is not saved"):
        saved.load(session, mine)
    session.reset()
    saved.load(session, mine)
    assert session.n_turns == 1


async def test_another_conversation_is_not_overwritten(session: ChatSession, tmp_path: Path) -> None:
    path, other = tmp_path / "a.json", tmp_path / "b.json"
    session.settings.system = "Be brief."
    await ask(session, "Hi")
    saved.save(session, path)
    saved.save(session, other)  # a copy
    await ask(session, "More")
    saved.save(session, path)  # an earlier state of the same
    session.undo()
    saved.save(session, other)
    saved.save(session, other)
    before = path.read_text()
    with pytest.raises(
        ChatError, match=r"a\.json holds another conversation, which would be lost; choose another name"
    ):
        saved.save(session, path)  # the turn that was taken back is only there
    session.reset()
    await ask(session, "Hi")
    session.messages[-1]["content"] = "else"
    for each in (path, other):
        with pytest.raises(ChatError, match="holds another conversation"):
            saved.save(session, each)
    assert path.read_text() == before
    session.reset()
    saved.load(session, path)
    session.undo()
    saved.save(session, path)  # the file that is being worked on
    for text in ('{"messages": 5}', '[{"role": "user", "content": "x"}]'):
        path.write_text(text)
        session.file = None
        with pytest.raises(ChatError, match="holds another conversation"):
            saved.save(session, path)


def test_other_files_are_left_alone(session: ChatSession, tmp_path: Path) -> None:
    for name, text in (("a.txt", "my text"), ("b.json", '{"x": 1}')):
        path = tmp_path / name
        path.write_text(text)
        with pytest.raises(ChatError, match="is no saved conversation; it is left alone"):
            saved.save(session, path)
        assert path.read_text() == text
    with pytest.raises(ChatError, match="is a directory"):
        saved.save(session, tmp_path)
    with pytest.raises(ChatError, match="cannot be written: No such file"):
        saved.save(session, tmp_path / "none" / "x")
    with pytest.raises(ChatError, match="cannot be written: File name too long"):
        saved.save(session, tmp_path / ("a" * 300))


def test_a_pipe_is_not_waited_for(session: ChatSession, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ChatError, match="is no regular file"):
        saved.load(session, pipe)
    with pytest.raises(ChatError, match="is no saved conversation; it is left alone"):
        saved.save(session, pipe)


def test_a_conversation_longer_than_a_context_comes_back(session: ChatSession, tmp_path: Path) -> None:
    path = tmp_path / "long.json"
    turn = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "reasoning_content": "x" * 2**20}]
    session.messages = turn * 5
    saved.save(session, path)
    saved.save(session, path)
    session.reset()
    saved.load(session, path)
    assert session.n_turns == 5 and session.messages == turn * 5


def test_a_bare_list_and_tool_calls(session: ChatSession, tmp_path: Path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": [{"type": "text", "text": "c"}]},
        {"role": "assistant", "content": "d"},
    ]
    path = tmp_path / "x.json"
    path.write_text(json.dumps(messages))
    saved.load(session, path)
    assert session.n_turns == 2 and session.messages[4]["content"] == "c" and session.messages[:4] == messages[:4]
    assert session.undo() == "c" and session.undo() == "a" and session.undo() is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not JSON"),
        ("[" * 5000, "is not JSON"),
        ("3", "is no conversation"),
        ("{}", "no list of messages"),
        ('{"messages": [1]}', r"messages\[0\] must be an object"),
        ('{"messages": [{"role": "robot"}]}', "robot"),
        ('[{"role": "assistant", "content": "x"}]', "begins with a user's"),
        ('[{"role": "user", "content": "x"}]', "the last message is a question"),
        ('[{"role": "user", "content": "x"}, {"role": "system", "content": "x"}]', "behind the first"),
        ('{"messages": [], "temperature": "hot"}', "temp must be a number"),
        *(
            (
                '[{"role": "user", "content": "x"}, '
                f'{{"role": "assistant", "tool_calls": [{{"id": {wrong}, "name": "f"}}]}}]',
                r"messages\[1\]\.tool_calls\[0\]\.id must be a string",
            )
            for wrong in ('{"x": 1}', '["x"]', "5")
        ),
        (
            '[{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{"id": "c", "name": "f"}]}]',
            "the tool call c has no result",
        ),
    ],
)
def test_a_wrong_file_changes_nothing(session: ChatSession, tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    session.messages = before = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    session.note_saved(tmp_path / "mine.json")
    session.settings.temperature = 0.3
    with pytest.raises(ChatError, match=sentence):
        saved.load(session, path)
    assert session.messages is before and session.settings.temperature == 0.3


def test_a_missing_file(session: ChatSession, tmp_path: Path) -> None:
    with pytest.raises(ChatError, match="cannot be read: No such file"):
        saved.load(session, tmp_path / "none")
