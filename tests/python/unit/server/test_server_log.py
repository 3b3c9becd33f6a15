"""The server's log: whoever reads stderr, or has stopped to, holds nobody up."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Generator

import pytest

from qwen3app.server import access_log
from qwen3app.server.access_log import Log


@contextlib.contextmanager
def stderr_pipe(monkeypatch: pytest.MonkeyPatch) -> Generator[int]:
    """Inside, stderr is the writing end of a pipe, whose reading end this gives."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as file, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", file)
        yield reading


def read_all(reading: int) -> list[dict[str, object]]:
    with os.fdopen(reading) as file:
        return [json.loads(line) for line in file]


def test_lines_arrive_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    with stderr_pipe(monkeypatch) as reading:
        log = Log()
        log.write("before")
        with log.in_background():
            for i in range(300):
                log.write("line", i=i)
        log.write("after")
    lines = read_all(reading)
    assert [line["event"] for line in lines] == ["before", *["line"] * 300, "after"]
    assert [line["i"] for line in lines[1:-1]] == list(range(300))


def test_a_reader_that_has_stopped_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_log, "_MOST_WAITING", 1000)
    with stderr_pipe(monkeypatch) as reading:
        log = Log()
        with log.in_background():
            begin = time.monotonic()
            for i in range(20_000):  # a pipe holds some 700
                log.write("line", i=i)
            assert time.monotonic() - begin < 5
            received = b""
            while b'"event":"log"' not in received:  # reads on, after a while
                received += os.read(reading, 1 << 16)
            log.write("still there")
    rest = json.dumps(read_all(reading)[-1])
    assert b"Lines were lost, as nobody read them: " in received and "still there" in rest


def test_the_end_waits_for_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    with stderr_pipe(monkeypatch) as reading:
        log = Log()
        begin = time.monotonic()
        with log.in_background():
            for i in range(5000):
                log.write("line", i=i)
        assert time.monotonic() - begin < 5
        os.close(reading)  # which ends the writer
        for thread in threading.enumerate():
            if thread.name == "log":
                thread.join(10)
                assert not thread.is_alive()
