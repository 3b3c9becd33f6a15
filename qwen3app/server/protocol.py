"""The HTTP/1.1 protocol: uvicorn's on httptools, with bounds on what a peer may send and on how long it may dawdle.

A connection that owes something (the rest of a request, or room in its receive buffer for an answer) and does nothing
for `idle_timeout` is closed, as is one that asks nothing for that long. Without this, peers that open a request and
stop, or ask for a long answer and never read it, hold memory and sockets for ever. A running answer is no idleness,
however long the model thinks. On the event loop's thread.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from qwen3app.server.openai_errors import ErrorReply, error_reply

if TYPE_CHECKING:
    from qwen3app.guards import GuardSettings

_HEAD, _BODY, _ANSWER = range(3)  # what a connection is in the middle of


def make_protocol(guards: GuardSettings) -> type[asyncio.Protocol]:
    """The protocol's class for these limits."""
    max_head_bytes = guards.max_head_kb * 1024
    idle_timeout = guards.idle_timeout

    too_large = error_reply(431, f"The head of the request is larger than {guards.max_head_kb} KiB (--max-head-kb).")

    class GuardedProtocol(HttpToolsProtocol):
        _stage = _HEAD
        _head_bytes = 0
        _patience: asyncio.TimerHandle | None = None

        # ---- how much

        def data_received(self, data: bytes) -> None:
            # A head must be complete in one patience, a body must go on: a byte now and then is not enough for a head.
            if self._stage == _BODY or self._head_bytes == 0:
                self._wait_for_peer()
            super().data_received(data)
            if self._stage != _HEAD or self.transport.is_closing():
                return
            if self._patience is None:
                self._wait_for_peer()  # the end of one request and the beginning of the next came together
            self._head_bytes += len(data)
            if self._head_bytes > max_head_bytes:
                self._refuse(too_large)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._stage, self._head_bytes = _HEAD, 0

        def on_headers_complete(self) -> None:
            if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > max_head_bytes:
                self._refuse(too_large)
                raise ValueError("the head is too large")  # the parser stops here
            self._stage = _BODY
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            self._stage, self._head_bytes = _ANSWER, 0
            self._stop_waiting()
            super().on_message_complete()

        # ---- how long

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._wait_for_peer()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._wait_for_peer()

        def resume_writing(self) -> None:
            super().resume_writing()
            self._stop_waiting()
            if not self._answering():
                self._wait_for_peer()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._unset_keepalive_if_required()  # uvicorn's own limit on idleness: here it is this class's
            if self._patience is None and not self.transport.is_closing():
                self._wait_for_peer()

        def _answering(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def _wait_for_peer(self) -> None:
            self._stop_waiting()
            self._patience = self.loop.call_later(idle_timeout, self._lose_patience)

        def _stop_waiting(self) -> None:
            if self._patience is not None:
                self._patience.cancel()
                self._patience = None

        def _lose_patience(self) -> None:
            self._patience = None
            if self.flow.write_paused:
                self.transport.abort()  # what it does not read cannot be flushed
            elif self._stage != _BODY and self._answering():
                self._wait_for_peer()  # it sent something early
            elif self._stage == _ANSWER or (self._stage == _HEAD and self._head_bytes == 0):
                self.transport.close()  # it has asked nothing more
            elif self._stage == _BODY and self.cycle.response_started:
                self.transport.close()
            else:
                self._refuse(
                    error_reply(408, f"The request was not complete after {idle_timeout:g} s (--idle-timeout).")
                )

        def _refuse(self, reply: ErrorReply) -> None:
            """Answers without the app, which has not seen the request or waits for its body, and closes."""
            if not (self._answering() and (self._stage == _HEAD or self.cycle.response_started)):
                head = (
                    f"HTTP/1.1 {reply.status} {reply.phrase}\r\ncontent-type: application/json\r\n"
                    f"content-length: {len(reply.body)}\r\nconnection: close\r\n\r\n"
                )
                self.transport.write(head.encode() + reply.body)
            self.transport.close()

        def send_400_response(self, msg: str) -> None:
            if not self.transport.is_closing():
                self._refuse(error_reply(400, msg))

    return GuardedProtocol
