"""Waiting for conditions. A test machine may be so busy that a program stands still for seconds, so that no test
passes or fails by how long something took: what shall happen is waited for with a limit far beyond any need."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

PATIENCE = 120.0  # seconds


def wait_until(condition: Callable[[], object], what: Callable[[], str] | str = "") -> None:
    """Returns once the condition holds; `what` says what has gone wrong where it never does."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what() if callable(what) else what
        time.sleep(0.01)


async def until(condition: Callable[[], object], what: Callable[[], str] | str = "") -> None:
    """As wait_until, while the event loop goes on."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what() if callable(what) else what
        await asyncio.sleep(0.005)
