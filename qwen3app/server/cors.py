"""Lets web pages of named origins use the server from a browser (CORS).

Stands before the gate: a browser asks with OPTIONS and without a key whether it may ask at all, and must be able to
read errors. Requests of other origins are not refused, their pages merely cannot read the replies; that is all that
CORS can do, and the API keys are the guard. Cookies are never used, so credentials are never allowed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from qwen3app.server.access_log import send_plain

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Message, Receive, Send

_PREFLIGHT_SECONDS = b"600"
_EXPOSED = b"x-request-id, retry-after, www-authenticate"
_HEADER_NAMES = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,4096}")


class Cors:
    """ASGI middleware; see the file's head."""

    def __init__(self, app: ASGIApp, origins: tuple[str, ...]) -> None:
        self._app = app
        self._any = "*" in origins
        self._origins = {origin.encode() for origin in origins}

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = dict(scope["headers"])
        origin = headers.get(b"origin")
        if origin is None or not (self._any or origin.lower() in self._origins):
            return await self._app(scope, receive, self._varying(send))
        allowed = [(b"access-control-allow-origin", b"*" if self._any else origin)]
        if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
            return await send_plain(204, self._vary(allowed + self._preflight(headers)), b"", send)
        allowed.append((b"access-control-expose-headers", _EXPOSED))

        async def allowing_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *self._vary(allowed)]
            await send(message)

        await self._app(scope, receive, allowing_send)

    def _preflight(self, headers: dict[bytes, bytes]) -> list[tuple[bytes, bytes]]:
        reply = [(b"access-control-allow-methods", b"GET, POST"), (b"access-control-max-age", _PREFLIGHT_SECONDS)]
        wanted = headers.get(b"access-control-request-headers", b"")
        if _HEADER_NAMES.fullmatch(wanted):
            reply.append((b"access-control-allow-headers", wanted))
        if headers.get(b"access-control-request-private-network") == b"true":
            reply.append((b"access-control-allow-private-network", b"true"))
        return reply

    def _vary(self, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Caches must keep the replies to different origins apart, unless all get the same."""
        return headers if self._any else [*headers, (b"vary", b"Origin")]

    def _varying(self, send: Send) -> Send:
        async def varying_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *self._vary([])]
            await send(message)

        return varying_send
