"""Time slices: asked for by one thread, which stays as nice as it was and hands them on to no other."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import threading

import pytest

from qwen3app import time_slices


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


def slice_ns() -> int:
    """Of the calling thread; 0 where the kernel tells none."""
    number = {"x86_64": 315, "aarch64": 275}.get(platform.machine(), 0)  # sched_getattr(2)
    attributes = ctypes.create_string_buffer(56)
    if ctypes.CDLL(None).syscall(number, 0, attributes, 56, 0) != 0:
        return 0
    return int(struct.unpack_from("=IIQiIQ", attributes)[5])


def test_slices_are_of_the_one_thread() -> None:
    slices: dict[str, int] = {}

    def inner() -> None:
        slices["started by it"] = slice_ns()

    def run() -> None:
        slices["before"] = slice_ns()
        if not time_slices.shorten_time_slices():
            return
        slices["short"] = slice_ns()
        thread = threading.Thread(target=inner)
        thread.start()
        thread.join()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    usual = slices["before"]
    if not usual or slices.get("short") != time_slices.SHORT_NS:
        pytest.skip("this kernel gives threads no slices of their own")
    assert slices == {"before": usual, "short": time_slices.SHORT_NS, "started by it": usual}
