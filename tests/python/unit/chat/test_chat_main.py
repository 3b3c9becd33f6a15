"""The command as a whole, with a fake model: one question, stdin, a conversation on a pseudo terminal."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from qwen3app.chat import main as chat_main
from qwen3app.chat.main import ChatOptions, run_chat
from qwen3app.errors import ModelError, UsageError
from qwen3app.runtime import loaded_model
from qwen3app.runtime import runtime as runtime_module
from qwen3app.settings import EngineSettings


class Stdin:
    def __init__(self, data: bytes, tty: bool = False) -> None:
        self.buffer = io.BytesIO(data)
        self._tty = tty

    def fileno(self) -> int:
        raise io.UnsupportedOperation

    def isatty(self) -> bool:
        return self._tty


class Stdout(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, model: Any, runtime: Any) -> Any:
    calls: list[str] = []

    async def start() -> None:
        calls.append("start")

    async def stop(drain_seconds: float) -> None:
        calls.append("stop")

    runtime.start, runtime.stop = start, stop
    monkeypatch.setattr(loaded_model.LoadedModel, "load", lambda directory, options, progress: model)
    monkeypatch.setattr(runtime_module, "Runtime", lambda model: runtime)
    runtime.calls = calls
    return runtime


def options(**more: Any) -> ChatOptions:
    return ChatOptions(model_dir=Path("models/tiny"), engine=EngineSettings(), **more)


def test_once(fake: Any, model: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_chat(options(once="Hi", show_stats=True)) == 0
    out, err = capsys.readouterr()
    assert out == "Hello there\n" and err.startswith("[2 tokens")
    assert fake.calls == ["start", "stop"] and model.closed


def test_a_question_on_stdin(fake: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(b"Hi\n"))
    assert run_chat(options()) == 0
    assert capsys.readouterr().out == "Hello there\n"


@pytest.mark.parametrize(
    ("stdin", "once", "sentence"),
    [
        (Stdin(b"a\0"), None, "NUL"),
        (Stdin(b""), None, "is empty"),
        (Stdin(b"", tty=True), None, "stdout is none"),
        (Stdin(b""), " ", "--once needs a question"),
        (Stdin(b""), "\udcff", "not UTF-8"),
    ],
)
def test_wrong_questions(
    fake: Any, monkeypatch: pytest.MonkeyPatch, stdin: Any, once: str | None, sentence: str
) -> None:
    monkeypatch.setattr(sys, "stdin", stdin)
    with pytest.raises(UsageError, match=sentence):
        run_chat(options(once=once))
    assert fake.calls == []


def test_a_model_that_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object) -> None:
        raise ModelError("There is no model.")

    monkeypatch.setattr(loaded_model.LoadedModel, "load", load)
    with pytest.raises(ModelError, match="no model"):
        run_chat(options(once="Hi"))


def test_a_conversation(fake: Any, model: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from prompt_toolkit.application import create_app_session
    from prompt_toolkit.input import create_pipe_input
    from prompt_toolkit.output import DummyOutput

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "stdin", Stdin(b"", tty=True))
    monkeypatch.setattr(sys, "stdout", screen := Stdout())
    monkeypatch.setenv("TERM", "dumb")
    model.template.notice = "The model brings no template."
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        keys.send_text("Hi\r\x04")
        assert run_chat(options(show_thinking=False)) == 0
    text = screen.getvalue()
    assert "tiny on cpu (avx2), 1,000 tokens of context" in text
    assert "brings no template" in text and "Hello there" in text
    assert "+Hi" in (tmp_path / "qwen3-8b" / "history").read_text()
    assert model.closed and os.environ["TERM"] == "dumb" and chat_main.ChatOptions is ChatOptions


def test_a_termination_ends_the_chat_in_order(fake: Any, model: Any) -> None:
    fake.hang = True
    fake.on_generate = lambda generation: asyncio.get_running_loop().call_later(
        0.05, os.kill, os.getpid(), signal.SIGTERM
    )
    assert run_chat(options(once="Hi")) == 143
    assert fake.calls == ["start", "stop"] and model.closed
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
