"""Who may pass: the API key, and the 503 while there is no model.

Stands before the router and looks at nothing but path and headers, so that every path but the named ones needs the
key, spelled as it may be (`//v1`, `/V1/`, HEAD, OPTIONS, routes that do not exist).
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Any

from qwen3app.server.access_log import send_error
from qwen3app.server.openai_errors import ApiError

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Receive, Scope, Send

    from qwen3app.server.state import ServerState

_HEALTH = frozenset({"/health", "/healthz"})


class Gate:
    """ASGI middleware; see the file's head."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app = app
        self._state = state
        self._key = state.settings.api_key.encode() if state.settings.api_key else None
        self._open = _HEALTH | {"/metrics"} if state.settings.open_metrics else _HEALTH

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        path = scope["path"]
        try:
            if path not in self._open:
                self._check_key(scope)
            if path not in _HEALTH:
                self._check_loaded()
        except ApiError as error:
            return await send_error(error, send)
        await self._app(scope, receive, send)

    def _check_key(self, scope: Scope) -> None:
        if self._key is None:
            return
        given = None
        for name, value in scope["headers"]:
            if name == b"authorization":
                scheme, _, rest = value.partition(b" ")
                if scheme.lower() == b"bearer":
                    given = rest.strip()
            elif name == b"x-api-key" and given is None:
                given = value.strip()
        if given is None:
            raise ApiError(
                401,
                "This server needs an API key: send `Authorization: Bearer KEY` or `x-api-key: KEY`.",
                headers={"www-authenticate": "Bearer"},
            )
        if not hmac.compare_digest(given, self._key):
            raise ApiError(401, "The API key is wrong.", headers={"www-authenticate": "Bearer"})

    def _check_loaded(self) -> None:
        self._state.ready()
