"""The outermost layer: request ids, one JSON line per request on stderr, and the HTTP figures for /metrics.

Owns the `Record` that a handler may fill (scope["qwen3.record"]). Refuses to know what the routes do. It wraps Litestar
and the gate, so replies that never reach a route are logged too; what the protocol refuses by itself it tells
`note_refusal`. HEAD is answered here as GET; the protocol drops the body.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
import time
import traceback
import uuid
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from qwen3app.runtime.observations import REQUEST_BOUNDS, Histogram
from qwen3app.server.openai_errors import describe, internal_error

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Message, Receive, Scope, Send

    from qwen3app.runtime import Generation

RECORD_KEY = "qwen3.record"
_MAX_ERROR = 300  # characters of a sentence in the log: it may quote the request
_MAX_REQUEST_ID = 128
_MOST_WAITING = 10_000  # lines of the log that wait for who reads stderr
_FINISH_SECONDS = 1.0
# uvloop's words for a write to a socket that has just been closed, before the protocol has been told.
_CLOSED_SOCKET = "the handler is closed"
_LEVELS = {"debug": 0, "info": 1, "warning": 2, "error": 3}
# Routes as /metrics labels: an unknown path is "other", so that a scanner cannot fill the memory with labels.
_OTHER = "other"


class Log:
    """JSON lines on stderr. Any thread; one write per line."""

    def __init__(self, level: str = "info") -> None:
        self._least = _LEVELS[level]
        self._writer: _Writer | None = None

    def write(self, event: str, level: str = "info", **fields: Any) -> None:
        if _LEVELS[level] >= self._least:
            self.write_text(_one_line({"time": _stamp(), "level": level, "event": event, **fields}) + "\n")

    def write_text(self, text: str) -> None:
        """Text for people, between the lines."""
        if self._writer is not None:
            return self._writer.put(text)
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError):
            return  # nobody reads stderr any more: serving goes on

    @contextlib.contextmanager
    def in_background(self) -> Generator[None]:
        """Inside, a thread of its own writes, so that whoever reads stderr, or has stopped to, holds nobody up."""
        try:
            descriptor = sys.stderr.fileno()
        except (OSError, ValueError, AttributeError):  # no file at all: writing cannot block
            yield
            return
        self._writer = _Writer(descriptor)
        try:
            yield
        finally:
            self._writer.finish()
            self._writer = None


class _Writer:
    """A thread that writes to a descriptor. What comes while too much waits is dropped, and counted."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._waiting: deque[bytes] = deque()
        self._n_dropped = 0
        self._changed = threading.Condition()
        self._ends = False
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def put(self, text: str) -> None:
        data = text.encode("utf-8", "replace")
        with self._changed:
            if len(self._waiting) >= _MOST_WAITING:
                self._n_dropped += 1
                return
            self._waiting.append(data)
            self._changed.notify()

    def finish(self) -> None:
        """Waits for what has been put, but not for ever."""
        with self._changed:
            self._ends = True
            self._changed.notify()
        self._thread.join(_FINISH_SECONDS)

    def _run(self) -> None:
        while (data := self._take()) is not None:
            try:
                while data:
                    data = data[os.write(self._descriptor, data) :]
            except OSError:
                continue  # nobody reads it any more

    def _take(self) -> bytes | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ends)
            if not self._waiting:
                return None
            if self._n_dropped and len(self._waiting) < _MOST_WAITING // 2:
                message = f"Lines were lost, as nobody read them: {self._n_dropped}."
                self._n_dropped = 0
                lost = {"time": _stamp(), "level": "warning", "event": "log", "message": message}
                return (_one_line(lost) + "\n").encode()
            return self._waiting.popleft()


def _stamp() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _one_line(line: dict[str, Any]) -> str:
    """JSON in ASCII alone: a terminal that shows the log must not obey what a client wrote."""
    try:
        data = msgspec.json.encode(line)
        if data.isascii():
            return data.decode()
    except UnicodeEncodeError:  # a path that is no UTF-8
        pass
    return json.dumps(line, separators=(",", ":"))


class Record:
    """What is known of one HTTP request; made by the protocol, handlers set `generation`."""

    __slots__ = ("client_gone", "error", "generation", "refused", "request_id", "started", "status")

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.started = time.perf_counter()
        self.status = 0
        self.refused: int | None = None  # the status that the protocol answered with, in the app's place
        self.error: str | None = None  # the sentence that the client got in place of an answer
        self.generation: Generation | None = None
        self.client_gone = False


class HttpObservations:
    """Counts for http_requests_total and http_request_duration_seconds."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, str]] = Counter()  # handler, method, status
        self.durations: dict[tuple[str, str], Histogram] = {}  # handler, method
        self.n_open = 0

    def observe(self, handler: str, method: str, status: int, seconds: float) -> None:
        self.requests[handler, method, str(status)] += 1
        durations = self.durations.get((handler, method))
        if durations is None:
            durations = self.durations[handler, method] = Histogram((0.005, 0.01, 0.05, 0.1, *REQUEST_BOUNDS))
        durations.observe(seconds)


def record_of(scope: Any) -> Record:
    """The record of the request that `scope` belongs to."""
    record: Record = scope[RECORD_KEY]
    return record


class AccessLog:
    """ASGI middleware; see the file's head."""

    def __init__(
        self, app: ASGIApp, log: Log, observations: HttpObservations, route_of: Callable[[str], str | None]
    ) -> None:
        """route_of: the template of the route that a path leads to, for requests that the routes have not seen."""
        self._app = app
        self._route_of = route_of
        self._log = log
        self._observations = observations

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        method = str(scope["method"])
        record = record_of(scope)
        if method == "HEAD":
            scope = {**scope, "method": "GET"}
        stamp = (b"x-request-id", record.request_id.encode())

        async def stamped_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                message["headers"] = [*message["headers"], stamp]
            try:
                await send(message)
            except RuntimeError as error:
                if _CLOSED_SOCKET not in str(error):
                    raise
                while not record.client_gone:
                    await watched_receive()

        async def watched_receive() -> Any:
            incoming = await receive()
            if incoming["type"] == "http.disconnect":
                record.client_gone = True
            return incoming

        self._observations.n_open += 1
        try:
            await self._app(scope, watched_receive, stamped_send)
        except asyncio.CancelledError:  # the server ends, and this client has not read its reply
            record.client_gone = True
            raise
        except Exception as error:
            self._log.write(
                "error", "error", request_id=record.request_id, error=repr(error), traceback=traceback.format_exc()
            )
            if record.status == 0:
                await send_error(error, record, stamped_send)
        finally:
            self._observations.n_open -= 1
            self._finish(scope, method, record)

    def _finish(self, scope: Scope, method: str, record: Record) -> None:
        seconds = time.perf_counter() - record.started
        status = record.refused or (499 if record.client_gone else record.status)
        handler = str(scope.get("path_template") or self._route_of(scope["path"]) or _OTHER)
        self._observations.observe(handler, method, status, seconds)
        client = scope.get("client")
        fields: dict[str, Any] = {
            "request_id": record.request_id,
            "client": client[0] if client else None,
            "method": method,
            "route": str(scope["path"])[:200],
            "status": status,
            "seconds": round(seconds, 4),
        }
        if record.error is not None:
            fields["error"] = record.error[:_MAX_ERROR]
        generation = record.generation
        if generation is not None:
            usage, timings = generation.usage, generation.timings
            missing = "abort" if generation.error is None else "error"
            fields.update(
                prompt_tokens=usage.prompt_tokens,
                cached_tokens=usage.cached_tokens,
                completion_tokens=usage.completion_tokens,
                queue_seconds=_rounded(timings.queue),
                ttft_seconds=_rounded(timings.time_to_first_token),
                tokens_per_second=_rounded(generation.tokens_per_second),
                finish_reason=",".join(sorted({reason or missing for reason in generation.finish_reasons})),
            )
        quiet = generation is None and status < 400
        self._log.write("request", "debug" if quiet and _is_probe(scope) else "info", **fields)


async def send_error(error: BaseException, record: Record, send: Send) -> None:
    """Answers with the error's reply."""
    reply = describe(error) or internal_error()
    record.error = reply.message
    headers = [(b"content-type", b"application/json")]
    headers += [(name.lower().encode(), value.encode()) for name, value in reply.headers.items()]
    await send_plain(reply.status, headers, reply.body, send)


async def send_plain(status: int, headers: list[tuple[bytes, bytes]], body: bytes, send: Send) -> None:
    """Answers in one piece, from a layer before the routes."""
    if status != 204:
        headers = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _is_probe(scope: Scope) -> bool:
    """Health checks, scrapes and the page's gauge come every few seconds, and a page is a dozen files: their lines are
    shown from --log-level debug on."""
    path = scope["path"]
    return path in ("/", "/health", "/healthz", "/readyz", "/metrics", "/status") or path.startswith("/static/")


def note_refusal(log: Log, observations: HttpObservations, record: Record, client: str | None) -> None:
    """One line, and one count, for a request that never became one: its method and route are not to be trusted."""
    seconds = time.perf_counter() - record.started
    observations.observe(_OTHER, _OTHER, record.status, seconds)
    fields = {"client": client, "method": None, "route": None, "status": record.status, "seconds": round(seconds, 4)}
    log.write("request", "info", request_id=record.request_id, **fields)


def request_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The client's own id where it is a sound one, else a new one."""
    for name, value in headers:
        if name == b"x-request-id":
            text = value.decode("latin-1")
            if 0 < len(text) <= _MAX_REQUEST_ID and text.isascii() and text.isprintable():
                return text
    return uuid.uuid4().hex


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)
