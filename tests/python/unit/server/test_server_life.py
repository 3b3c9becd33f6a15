"""run_server from socket to exit code, in this process, on the tiny checkpoint."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from patience import PATIENCE, wait_until

from qwen3app.errors import AppError, UsageError
from qwen3app.server.access_log import Log
from qwen3app.server.listener import bind_sentence
from qwen3app.server.main import Life, run_server
from qwen3app.settings import EngineSettings, ServeSettings


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def settings_for(model: Path, port: int) -> ServeSettings:
    return ServeSettings(EngineSettings(model=str(model), kv_gb=0.05, threads=1, max_ctx=512), port=port)


def test_a_whole_life(tiny_model_dir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    replies: list[int] = []

    def visit() -> None:
        url = f"http://127.0.0.1:{port}"

        def is_healthy() -> bool:
            try:
                return httpx.get(url + "/health", timeout=PATIENCE).status_code == 200
            except httpx.HTTPError:
                return False

        try:
            wait_until(is_healthy)
            body = {"prompt": "hi", "max_tokens": 3}
            replies.append(httpx.post(url + "/v1/completions", json=body, timeout=PATIENCE).status_code)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    visitor = threading.Thread(target=visit)
    visitor.start()
    assert run_server(settings_for(tiny_model_dir, port)) == 0
    visitor.join()
    assert replies == [200]
    events = [json.loads(line)["event"] for line in capfd.readouterr().err.splitlines()]
    assert events[-1] == "stopped" and {"listening", "ledger", "ready", "request", "draining"} <= set(events)


def test_a_signal_may_come_as_soon_as_it_says_that_it_listens(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write = Log.write

    def write_and_signal(log: Log, event: str, *arguments: Any, **fields: Any) -> None:
        write(log, event, *arguments, **fields)
        if event == "listening":
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL  # or it would end this process
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Log, "write", write_and_signal)
    assert run_server(settings_for(tiny_model_dir, 0)) == 0
    events = [json.loads(line)["event"] for line in capfd.readouterr().err.splitlines()]
    assert events[-1] == "stopped" and "draining" in events


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_it_listens_ends_it_as_later_ones_do(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    def signalled() -> None:
        assert signal.getsignal(number) not in (signal.SIG_DFL, signal.default_int_handler)
        os.kill(os.getpid(), number)

    monkeypatch.setattr("qwen3app.time_slices.shorten_time_slices", signalled)  # the first that a server does
    assert run_server(settings_for(tiny_model_dir, 0)) == 0
    events = [json.loads(line)["event"] for line in capfd.readouterr().err.splitlines()]
    assert events[-1] == "stopped" and "draining" in events


def test_a_broken_model_ends_with_its_sentence(tiny_model_dir: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(tiny_model_dir, tmp_path / "broken"))
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(AppError, match="safetensors"):
        run_server(settings_for(model, 0))


def test_a_path_that_is_no_utf8(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    directory = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    shutil.copytree(tiny_model_dir, directory)
    write = Log.write

    def write_and_signal(log: Log, event: str, *arguments: Any, **fields: Any) -> None:
        write(log, event, *arguments, **fields)
        if event == "ready":
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Log, "write", write_and_signal)
    assert run_server(settings_for(directory, 0)) == 0
    lines = {line["event"]: line for line in map(json.loads, capfd.readouterr().err.splitlines())}
    assert (lines["ledger"]["model"], lines["ready"]["model"]) == (f"{tmp_path}/caf?", "caf?")
    assert lines["ledger"]["template"] == f"{directory}/chat_template.jinja"  # no line is lost
    (directory / "tokenizer.json").write_text("{")
    with pytest.raises(AppError, match="is not a tokenizer that can be read"):
        run_server(settings_for(directory, 0))


def test_the_port_is_tried_before_the_model_is_loaded(tiny_model_dir: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UsageError, match="in use"):
            run_server(settings_for(tiny_model_dir, taken.getsockname()[1]))


def test_what_is_loaded_is_closed_if_the_server_cannot_run(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(self: Life) -> int:
        raise RuntimeError("no loop today")

    monkeypatch.setattr(Life, "run", run)
    with pytest.raises(RuntimeError, match="no loop today"):
        run_server(settings_for(tiny_model_dir, 0))
    assert not any(thread.name == "load-model" for thread in threading.enumerate())


def test_sentences_of_sockets() -> None:
    assert "above 1023" in bind_sentence("127.0.0.1", 80, PermissionError(13, "Permission denied"))
    assert "cannot be listened on" in bind_sentence("h", 1, OSError(5, "Input/output error"))
