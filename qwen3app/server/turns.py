"""Lets at most one request begin per turn of the event loop.

To begin a request (parse, render, tokenize, submit) takes the loop about a millisecond. Requests that come together,
as a crowd's next ones do when its last ones end in the same step, would otherwise all begin in one turn, and every
running stream would wait for all of them. First come, first served. On the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Turns:
    """See the file's head."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._taken = False  # somebody has begun in this turn

    async def take(self) -> None:
        """Returns when it is the caller's turn; what it does until it next awaits is one turn."""
        loop = asyncio.get_running_loop()
        if not self._taken and not self._waiting:
            self._taken = True
            loop.call_soon(self._next, loop)
            return
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # a client that has left is passed over
                turn.set_result(None)
                loop.call_soon(self._next, loop)
                return
        self._taken = False
