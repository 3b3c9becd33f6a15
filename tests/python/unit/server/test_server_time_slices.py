"""Time slices: asked for by one thread, which stays as nice as it was."""

from __future__ import annotations

import os
import platform
import threading

import pytest

from qwen3app.server import time_slices


def in_a_thread() -> tuple[bool, int, int]:
    """What the call says, and how nice a thread is before and after it."""
    results = []

    def run() -> None:
        before = os.getpriority(os.PRIO_PROCESS, 0)
        results.append((time_slices.shorten_time_slices(), before, os.getpriority(os.PRIO_PROCESS, 0)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return results[0]


def test_a_thread_asks_and_stays_as_nice_as_it_was() -> None:
    _, before, after = in_a_thread()  # a sandbox may refuse the call
    assert after == before


def test_an_unknown_machine_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "pdp11")
    assert in_a_thread()[0] is False
