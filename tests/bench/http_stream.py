"""A streaming HTTP/1.1 client as small as a load generator needs: POST a ready-made request, read server-sent events.

Owns: the connection, the reply's head, the framing of the body (chunked, by length, or up to the end) and the events'
borders. Refuses to know: what the events say. Plain HTTP only, one request at a time per connection, kept alive.
The standard library alone, because a benchmark runs where nothing is installed, and asyncio's protocols rather than its
streams, because reading is what such a client does all day: one call per read, about 15 us with one event in it.
Invariant: a reply ends exactly once, with `on_end(None)` or with `on_end(what went wrong)`.
Threads: the event loop's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

_MAX_HEAD = 1 << 16


class StreamError(Exception):
    """A reply that cannot be used, in one sentence."""


class ReplyReader:
    """Bytes of one reply in, its head and then its events out."""

    def __init__(self, on_event: Callable[[bytes, float], None]) -> None:
        """on_event(data, time): the text behind `data: ` of one event, and when its last bytes were read."""
        self.status = 0
        self.keep_alive = True
        self.done = False
        self.error_body = b""  # of a reply with another status than 200
        self._on_event = on_event
        self._buffer = b""  # not parsed yet: of the head, later of the framing
        self._events = b""  # body bytes behind the last whole event
        self._in_head = True
        self._chunked = False
        self._left: int | None = None  # body bytes to come; None: up to the end of the connection
        self._in_trailer = False

    def feed(self, data: bytes, now: float) -> None:
        """Takes what was read at `now`. Raises StreamError for what is no HTTP."""
        self._buffer = self._buffer + data if self._buffer else data
        if self._in_head and not self._read_head():
            return
        if self._chunked:
            self._read_chunks(now)
        else:
            body, self._buffer = self._buffer, b""
            if self._left is not None:
                body = body[: self._left]
                self._left -= len(body)
                self.done = self._left == 0
            self._take_body(body, now)

    def end(self) -> None:
        """The connection has ended. Raises StreamError if the reply had not."""
        if self._in_head or self._chunked or self._left is not None:
            raise StreamError("the server closed the connection in the middle of its reply")
        self.done = True

    def _read_head(self) -> bool:
        head, border, rest = self._buffer.partition(b"\r\n\r\n")
        if not border:
            if len(self._buffer) > _MAX_HEAD:
                raise StreamError("the reply's head is longer than 64 KB")
            return False
        lines = head.split(b"\r\n")
        words = lines[0].split(None, 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
            raise StreamError(f"the reply begins with {lines[0][:60]!r}, which is no HTTP/1.1")
        if words[1] == b"100":
            self._buffer = rest
            return self._read_head()
        self.status = int(words[1])
        fields = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines[1:])
        }
        self._chunked = fields.get(b"transfer-encoding", b"").lower() == b"chunked"
        if not self._chunked and b"content-length" in fields:
            self._left = int(fields[b"content-length"])
            self.done = self._left == 0
        keep = fields.get(b"connection", b"").lower()
        self.keep_alive = keep != b"close" and words[0] == b"HTTP/1.1" and (self._chunked or self._left is not None)
        self._in_head = False
        self._buffer = rest
        return True

    def _read_chunks(self, now: float) -> None:
        buffer, position, bodies = self._buffer, 0, []
        while not self.done:
            line_end = buffer.find(b"\r\n", position)
            if line_end < 0:
                break
            if self._in_trailer:
                self.done = line_end == position
                position = line_end + 2
                continue
            digits = buffer[position:line_end].partition(b";")[0].strip()
            if not digits.isalnum() or digits.lower().strip(b"0123456789abcdef"):
                raise StreamError(f"a chunk's length is {buffer[position:line_end][:20]!r}")
            size = int(digits, 16)
            begin = line_end + 2
            if size == 0:
                self._in_trailer = True
                position = begin
                continue
            if len(buffer) < begin + size + 2:
                break
            bodies.append(buffer[begin : begin + size])
            position = begin + size + 2
        self._buffer = buffer[position:]
        if bodies:
            self._take_body(bodies[0] if len(bodies) == 1 else b"".join(bodies), now)

    def _take_body(self, body: bytes, now: float) -> None:
        if self.status != 200:
            self.error_body += body
            return
        body = self._events + body if self._events else body
        if b"\r" in body:
            body = body.replace(b"\r\n", b"\n")
        *events, self._events = body.split(b"\n\n")
        for event in events:
            data = event if event.startswith(b"data: ") and b"\n" not in event else _data_line(event)
            if data:
                self._on_event(data[6:], now)


def _data_line(event: bytes) -> bytes:
    """The data line of an event that has other lines (event:, id:, comments), written as `data: `; b"" without one."""
    for line in event.split(b"\n"):
        if line.startswith(b"data:"):
            return b"data: " + line[5:].strip()
    return b""


class Connection(asyncio.Protocol):
    """One kept-alive connection."""

    def __init__(self) -> None:
        self.usable = False  # another request may be sent
        self._transport: asyncio.Transport | None = None
        self._reader: ReplyReader | None = None
        self._end: asyncio.Future[None] | None = None

    @classmethod
    async def open(cls, host: str, port: int) -> Connection:
        """Connects. Raises OSError."""
        _, connection = await asyncio.get_running_loop().create_connection(cls, host, port)
        return connection

    async def post(self, request: bytes, on_event: Callable[[bytes, float], None]) -> ReplyReader:
        """Sends head and body, feeds the reply's events to on_event and returns at its end. Raises StreamError."""
        assert self._transport is not None
        self.usable = False
        self._reader = reader = ReplyReader(on_event)
        self._end = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        await self._end
        self.usable = reader.keep_alive and not self._transport.is_closing()
        if not self.usable:
            self._transport.close()
        return reader

    def close(self) -> None:
        """Ends the connection, and with an error the reply that is being read."""
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    # ------------------------------------------------------------------------------------------- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.usable = True

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if reader is None or reader.done:
            self.close()  # bytes that nobody asked for
            return
        try:
            reader.feed(data, time.perf_counter())
        except Exception as error:  # the framing, or what on_event makes of an event
            self._finish(error)
            self.close()
            return
        if reader.done:
            self._finish(None)

    def connection_lost(self, error: Exception | None) -> None:
        self.usable = False
        if self._reader is None or self._end is None or self._end.done():
            return
        try:
            if error is not None:
                raise StreamError(f"the connection broke: {error}")
            self._reader.end()
        except StreamError as problem:
            self._finish(problem)
        else:
            self._finish(None)

    def _finish(self, error: Exception | None) -> None:
        end, self._end = self._end, None
        if end is None or end.done():
            return
        if error is None:
            end.set_result(None)
        elif isinstance(error, StreamError):
            end.set_exception(error)
        else:
            end.set_exception(StreamError(f"an event could not be read: {error!r}"))
