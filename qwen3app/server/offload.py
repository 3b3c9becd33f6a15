"""What would hold the event loop for long goes to a thread.

Python's lock is then handed over every 5 ms, so that other streams go on. Sizes are in characters of JSON: some 16,000
take about a millisecond, be it to render and tokenize a prompt or to write a reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

INLINE_CHARACTERS = 16_000
LOGPROB_CHARACTERS = 80  # of one token or alternative in a reply


async def off_loop(n_characters: int, work: Callable[[], T]) -> T:
    """The result of `work`, which touches nothing that the event loop changes."""
    return await asyncio.to_thread(work) if n_characters > INLINE_CHARACTERS else work()
