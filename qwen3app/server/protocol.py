"""The HTTP/1.1 protocol: uvicorn's on httptools, with bounds on what a peer may send and on how long it may dawdle.

A connection that owes something (the rest of a request, or room in its receive buffer for an answer) and does nothing
for `idle_timeout` is closed, as is one that asks nothing for that long. Without this, peers that open a request and
stop, or ask for a long answer and never read it, hold memory and sockets for ever. A running answer is no idleness,
however long the model thinks. What is refused here gets a request id and a line of the log like any other request; it
never breaks into an answer that is under way. A connection on which the peer may still be sending is closed in two
steps: to close it while something lies unread would be a reset, which may take the answer from the peer.
On the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from qwen3app.server.access_log import RECORD_KEY, Record, request_id_of
from qwen3app.server.openai_errors import ErrorReply, error_reply

if TYPE_CHECKING:
    from qwen3app.guards import GuardSettings

_HEAD, _BODY, _ANSWER = range(3)  # what a connection is in the middle of
# How long what a peer still sends behind its refusal is read and dropped.
_LINGER_SECONDS = 2.0
_INVALID = error_reply(400, "This is no valid HTTP/1.1 request.")

NoteRefusal = Callable[[Record, str | None], None]


def make_protocol(guards: GuardSettings, note_refusal: NoteRefusal) -> type[asyncio.Protocol]:
    """The protocol's class for these limits. note_refusal: is told of requests that the app never sees, with the
    client's address."""
    max_head_bytes = guards.max_head_kb * 1024
    idle_timeout, request_timeout = guards.idle_timeout, guards.request_timeout

    too_large = error_reply(431, f"The head of the request is larger than {guards.max_head_kb} KiB (--max-head-kb).")

    class GuardedProtocol(HttpToolsProtocol):
        _stage = _HEAD
        _head_bytes = 0
        _patience: asyncio.TimerHandle | None = None
        _deadline: asyncio.TimerHandle | None = None  # of a body; of what follows it the gate has one
        _answered: RequestResponseCycle | None = None  # the app is at it; others wait in the pipeline
        _offers_upgrade = False
        _record: Record  # of the request whose head came last
        _refused = False  # what else this peer sends is dropped
        _refusal: bytes | None = None  # to be written once the answers before it are complete
        _end: asyncio.TimerHandle | None = None  # set: nothing more is answered here

        # ---- what comes

        def data_received(self, data: bytes) -> None:
            if self._refused:
                return
            # A head must be complete in one patience, a body must go on: a byte now and then is not enough for a head.
            if self._stage == _BODY or self._head_bytes == 0:
                self._wait_for_peer()
            self._unset_keepalive_if_required()
            self._parse(data)
            if self._stage != _HEAD or self._refused:
                return
            if self._patience is None:
                self._wait_for_peer()  # the end of one request and the beginning of the next came together
            self._head_bytes += len(data)
            if self._head_bytes > max_head_bytes:
                self._refuse(too_large)

        def _parse(self, data: bytes) -> None:
            while True:
                try:
                    self.parser.feed_data(data)
                    return
                except httptools.HttpParserUpgrade as offer:
                    data = self._head_without_upgrade() + data[offer.args[0] :]
                except httptools.HttpParserError:
                    if not self._refused:
                        self._refuse(_INVALID)
                    return

        def _head_without_upgrade(self) -> bytes:
            """Java's HttpClient offers an upgrade to HTTP/2 with each first request. The parser takes the offer for
            accepted and the body for the other protocol's, so it gets the head anew, without the offer."""
            lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
            lines += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
            self.parser = httptools.HttpRequestParser(self)  # the other one may think that the connection is over
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            return b"\r\n".join(lines) + b"\r\n\r\n"

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._stage, self._head_bytes, self._offers_upgrade = _HEAD, 0, False

        def on_headers_complete(self) -> None:
            if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > max_head_bytes:
                self._refuse(too_large)
                raise ValueError("the head is too large")  # the parser stops here
            if self.parser.should_upgrade():
                if self.parser.get_method() == b"CONNECT":
                    raise ValueError("this is no proxy")
                self._offers_upgrade = True
                return
            scope: Any = self.scope
            scope[RECORD_KEY] = self._record = Record(request_id_of(self.headers))
            super().on_headers_complete()  # raises where the target is none
            self._stage = _BODY
            if request_timeout:
                self._deadline = self.loop.call_later(request_timeout, self._miss_deadline)
            self.cycle.transport = self._closing_in_steps  # type: ignore[assignment]
            if self.parser.get_http_version() in ("0.9", "1.0"):
                self.cycle.send = _UntilClose(self.cycle)  # type: ignore[method-assign]

        def on_message_complete(self) -> None:
            if self._offers_upgrade:
                return
            self._stage, self._head_bytes = _ANSWER, 0
            self._stop_waiting()
            self._drop_deadline()
            super().on_message_complete()

        # ---- how long

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._closing_in_steps = _ClosingInSteps(transport, self._close)
            self._wait_for_peer()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            self._drop_deadline()
            if self._end is not None:
                self._end.cancel()
            self._closing_in_steps.close = self.transport.close  # else all of this would be a cycle
            self.pipeline.clear()
            if self._answered is not None and not self._answered.response_complete:
                self._answered.disconnected = True  # uvicorn tells only the request that came last
                self._answered.message_event.set()
            super().connection_lost(exc)

        def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
            self._answered = cycle
            super()._start_asgi_task(cycle, app)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._wait_for_peer()

        def resume_writing(self) -> None:
            super().resume_writing()
            self._stop_waiting()
            if not self._answering():
                self._wait_for_peer()

        def on_response_complete(self) -> None:
            if self._end is not None:
                return
            was_last = not self.pipeline
            super().on_response_complete()
            self._unset_keepalive_if_required()  # uvicorn's own limit on idleness: here it is this class's
            if self.transport.is_closing():
                return
            if self._refusal is not None and was_last:
                self.transport.write(self._refusal)
                self._linger()
            elif self._patience is None:
                self._wait_for_peer()

        def _answering(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def _wait_for_peer(self) -> None:
            self._stop_waiting()
            if self._end is None:
                self._patience = self.loop.call_later(idle_timeout, self._look_again)

        def _stop_waiting(self) -> None:
            if self._patience is not None:
                self._patience.cancel()
                self._patience = None

        def _look_again(self) -> None:
            """If it was this process that stood still, what the peer sent in time is read before its patience ends."""
            self._patience = self.loop.call_later(0, self._lose_patience)

        def _lose_patience(self) -> None:
            self._patience = None
            if self.flow.write_paused:
                self.transport.abort()  # what it does not read cannot be flushed
            elif self._stage != _BODY and self._answering():
                self._wait_for_peer()  # it sent something early
            elif self._stage == _ANSWER or (self._stage == _HEAD and self._head_bytes == 0):
                self.transport.close()  # it has asked nothing more
            else:
                self._refuse(
                    error_reply(408, f"The request was not complete after {idle_timeout:g} s (--idle-timeout).")
                )

        def _miss_deadline(self) -> None:
            self._refuse(
                error_reply(408, f"The request was not complete after {request_timeout:g} s (--request-timeout).")
            )

        def _drop_deadline(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

        # ---- refusals

        def _refuse(self, reply: ErrorReply) -> None:
            """Answers in place of the app, which has not seen the request or waits for its body, and closes."""
            self._refused = True
            self._drop_deadline()
            if self._stage == _BODY and self.cycle.response_started:
                return self.transport.close()  # the app has refused it already
            begun = self._stage == _BODY
            waits = begun and bool(self.pipeline) and self.pipeline[0][0] is self.cycle
            if waits:
                self.pipeline.popleft()  # the app will not see it
            record = self._record if begun else Record(request_id_of(self.headers or ()))
            record.status = record.refused = reply.status
            if waits or not begun:
                note_refusal(record, self.client[0] if self.client else None)
            head = (
                f"HTTP/1.1 {reply.status} {reply.phrase}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(reply.body)}\r\nx-request-id: {record.request_id}\r\nconnection: close\r\n\r\n"
            ).encode()
            if waits or (not begun and self._answering()):
                self._refusal = head + reply.body
                self._stop_waiting()
            else:
                self.transport.write(head + reply.body)
                self._linger()

        # ---- the end

        def _close(self) -> None:
            """As the answer says (connection: close)."""
            if self._stage == _BODY:
                self._linger()
            else:
                self.transport.close()

        def _linger(self) -> None:
            self._refused = True
            self._stop_waiting()
            self._drop_deadline()
            if self.transport.is_closing() or self._end is not None:
                return
            if self.transport.can_write_eof():
                self.transport.write_eof()
            self.flow.resume_reading()
            self._end = self.loop.call_later(_LINGER_SECONDS, self._stop_lingering)

        def _stop_lingering(self) -> None:
            if self.flow.write_paused:
                self.transport.abort()  # what it does not read cannot be flushed
            else:
                self.transport.close()

    return GuardedProtocol


class _ClosingInSteps:
    """A connection as a cycle knows it; how it is closed is the protocol's."""

    __slots__ = ("close", "is_closing", "write")

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write, self.is_closing, self.close = transport.write, transport.is_closing, close


class _UntilClose:
    """A cycle's `send` for HTTP/1.0, which knows no chunks: a reply of unknown length ends with its connection."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._sized = True

    async def __call__(self, message: Any) -> None:
        cycle = self._cycle
        if message["type"] == "http.response.start":
            self._sized = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
            if not self._sized:
                cycle.chunked_encoding = False
        elif not self._sized:
            cycle.expected_content_length = len(message.get("body", b""))
        await RequestResponseCycle.send(cycle, message)
