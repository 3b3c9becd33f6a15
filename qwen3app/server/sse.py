"""Replies as ASGI: a JSON body, or a stream of server-sent events that is written as the tokens come.

Owns: writing, the watch for clients that leave, the signs of life. Refuses to know what the events say: that is an
`Encoder`, one per API face.

Everything that waits goes out in one write: the cost of a stream is its number of writes.
An event is one line for every reader: httpx, and with it many clients, ends lines where Python's str.splitlines does.
A client that leaves cancels the generation, which ends the stream by itself; nothing is torn down from outside.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from qwen3app.errors import AppError
from qwen3app.server.openai_errors import ApiError, describe, internal_error

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from litestar.types import Receive, Scope, Send

    from qwen3app.runtime import ChoiceDelta, Generation

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
PING_SECONDS = 15.0
# Ends of lines to str.splitlines that JSON leaves as they are (UTF-8), and their escapes.
_LINE_ENDS = ((b"\xc2\x85", rb"\u0085"), (b"\xe2\x80\xa8", rb"\u2028"), (b"\xe2\x80\xa9", rb"\u2029"))
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Reply:
    """An ASGI app that a handler returns."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError


class JsonReply(Reply):
    """A body that is ready."""

    def __init__(self, body: bytes, status: int = 200, content_type: str = "application/json") -> None:
        self._body = body
        self._status = status
        self._content_type = content_type

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [
            (b"content-type", self._content_type.encode()),
            (b"content-length", str(len(self._body)).encode()),
        ]
        await send({"type": "http.response.start", "status": self._status, "headers": headers})
        await send({"type": "http.response.body", "body": self._body, "more_body": False})


def in_lines(events: bytes) -> bytes:
    """Events whose JSON holds no end of a line in any sense of the word."""
    if not events.isascii():
        for end, escape in _LINE_ENDS:
            events = events.replace(end, escape)
    return events


class Encoder(Protocol):
    """Turns deltas into events."""

    @property
    def is_heavy(self) -> bool:
        """Whether the next events can be so long that they are made off the event loop."""

    def encode(self, deltas: list[ChoiceDelta]) -> bytes:
        """The events of these deltas, joined."""

    def end(self) -> bytes:
        """What comes after the last delta, before [DONE]."""


class Heartbeat:
    """Wakes streams that have been silent for PING_SECONDS, so that they can send a comment. One timer for all."""

    def __init__(self, seconds: float = PING_SECONDS) -> None:
        self._seconds = seconds
        self._streams: set[EventStream] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, stream: EventStream) -> None:
        self._streams.add(stream)
        if self._timer is None:
            self._schedule()

    def remove(self, stream: EventStream) -> None:
        self._streams.discard(stream)

    def _schedule(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._seconds / 10, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        oldest = loop.time() - self._seconds
        for stream in self._streams:
            if stream.last_sent <= oldest:
                stream.generation.wake()
        if self._streams:
            self._schedule()


class EventStream(Reply):
    """One generation as server-sent events."""

    def __init__(self, generation: Generation, encoder: Encoder, heartbeat: Heartbeat) -> None:
        self.generation = generation
        self.last_sent = 0.0  # loop time
        self._encoder = encoder
        self._heartbeat = heartbeat

    def _events(self, deltas: list[ChoiceDelta]) -> bytes:
        return in_lines(self._encoder.encode(deltas))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        generation = self.generation
        clock: Callable[[], float] = asyncio.get_running_loop().time
        watch = asyncio.create_task(watch_disconnect(receive, generation))
        self._heartbeat.add(self)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            self.last_sent = clock()
            async for deltas in generation:
                if not deltas:
                    body = PING
                elif self._encoder.is_heavy:
                    body = await asyncio.to_thread(self._events, deltas)
                else:
                    body = self._events(deltas)
                if body:
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                    self.last_sent = clock()
                    if deltas:
                        generation.note_written()
            tail = in_lines(self._encoder.end()) + DONE
        except AppError as error:  # the answer has begun: the error becomes an event
            tail = b"data: " + in_lines((describe(error) or internal_error()).body) + b"\n\n"
            error.__traceback__ = None  # no cycle with the generation, which holds it
        finally:
            generation.cancel()
            self._heartbeat.remove(self)
            watch.cancel()
        await send({"type": "http.response.body", "body": tail, "more_body": False})


async def watch_disconnect(receive: Receive, generation: Generation) -> None:
    """Cancels the generation when the client leaves."""
    await _disconnected(receive)
    generation.cancel()


async def while_wanted(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client leaves; then ApiError, which nobody reads."""
    task = asyncio.create_task(work)
    watch = asyncio.create_task(_disconnected(receive))
    watch.add_done_callback(lambda _: task.cancel())
    try:
        return await task
    except asyncio.CancelledError:
        if watch.done():
            raise ApiError(499, "The client left before its answer began.", code="client_left") from None
        raise
    finally:
        watch.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def read_all(generation: Generation, receive: Receive, take: Callable[[list[ChoiceDelta]], None]) -> None:
    """Feeds a whole generation to `take`, for a reply in one piece, watching for a client that leaves."""
    watch = asyncio.create_task(watch_disconnect(receive, generation))
    try:
        async for deltas in generation:
            take(deltas)
    finally:
        generation.cancel()
        watch.cancel()
