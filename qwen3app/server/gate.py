"""Who may pass: the API keys, the 503 while there is no model, and how long a request may take.

Stands before the router and looks at nothing but path and headers, so that every path but the named ones needs a key,
spelled as it may be (`//v1`, `/V1/`, HEAD, OPTIONS, routes that do not exist). Probes and the page's files need none.
They, and the metrics, are answered while the model is being loaded and after the engine has failed, too. With several
keys each one's holder is a tenant of its own (runtime/tenant.py).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from typing import TYPE_CHECKING, Any

from qwen3app.runtime.tenant import TENANT, tenant_of
from qwen3app.server.access_log import record_of, send_error
from qwen3app.server.health import PROBES
from qwen3app.server.openai_errors import ApiError
from qwen3app.server.page import is_page
from qwen3app.server.turns import Turns

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Receive, Scope, Send

    from qwen3app.server.access_log import Record
    from qwen3app.server.state import ServerState

# A request whose time is over before its generation exists (its prompt is being tokenized) is looked at again after
# this.
_LOOK_AGAIN = 0.05


class Gate:
    """ASGI middleware; see the file's head."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        guards = state.settings.guards
        self._app = app
        self._state = state
        self._keys = [(_digest(key.encode()), tenant_of(key)) for key in guards.api_keys]
        self._open_metrics = guards.open_metrics
        self._timeout = guards.request_timeout
        self._turns = Turns()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        path = scope["path"]
        public = path in PROBES or is_page(path)
        try:
            if not public and not (path == "/metrics" and self._open_metrics):
                self._check_keys(scope)
            if not public and path != "/metrics":
                self._state.ready()
        except ApiError as error:
            return await send_error(error, record_of(scope), send)
        if scope["method"] == "POST":
            await self._turns.take()
        timer = _Deadline(record_of(scope), self._timeout) if self._timeout else None
        try:
            await self._app(scope, receive, send)
        finally:
            if timer is not None:
                timer.stop()

    def _check_keys(self, scope: Scope) -> None:
        if not self._keys:
            return
        given = list(_given_keys(scope))
        if not given:
            raise ApiError(
                401,
                "This server needs an API key: send `Authorization: Bearer KEY` or `x-api-key: KEY`.",
                headers={"www-authenticate": "Bearer"},
            )
        found = None
        for each in map(_digest, given):  # all are compared with all: the time says nothing of which one fits
            for digest, tenant in self._keys:
                if hmac.compare_digest(each, digest):
                    found = tenant
        if found is None:
            raise ApiError(401, "The API key is wrong.", headers={"www-authenticate": "Bearer"})
        if len(self._keys) > 1:
            TENANT.set(found)


def _given_keys(scope: Scope) -> Any:
    """Every key that the headers show; clients that speak to two kinds of API send both headers."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, rest = value.partition(b" ")
            if scheme.lower() == b"bearer" and rest.strip():
                yield rest.strip()
        elif name == b"x-api-key" and value.strip():
            yield value.strip()


def _digest(key: bytes) -> bytes:
    """Of one length for all keys, so that comparing takes one time for all."""
    return hashlib.sha256(key).digest()


class _Deadline:
    """Ends the generation of one request when its time is over."""

    def __init__(self, record: Record, seconds: float) -> None:
        self._record = record
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(seconds, self._end)

    def _end(self) -> None:
        generation = self._record.generation
        if generation is None:
            self._timer = self._loop.call_later(_LOOK_AGAIN, self._end)
            return
        generation.give_up(
            ApiError(
                504,
                f"The answer was not complete after {self._seconds:g} s, the server's --request-timeout.",
                code="request_timeout",
            )
        )

    def stop(self) -> None:
        self._timer.cancel()
