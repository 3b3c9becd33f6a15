"""Puts the server together: routes -> Litestar -> Gate -> Cors -> AccessLog. The result is one ASGI app."""

from __future__ import annotations

import contextlib
import traceback
from typing import TYPE_CHECKING, Any

from litestar import Litestar, Request
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.types import ASGIApp
from litestar.utils import normalize_path

from qwen3app.server.access_log import AccessLog, Log, record_of
from qwen3app.server.chat_completions import create_chat_completion
from qwen3app.server.completions import create_completion
from qwen3app.server.cors import Cors
from qwen3app.server.gate import Gate
from qwen3app.server.health import health, liveness
from qwen3app.server.metrics import metrics
from qwen3app.server.models import get_model, list_models, version
from qwen3app.server.openai_errors import describe, internal_error
from qwen3app.server.openapi import Document, openapi
from qwen3app.server.page import page, page_file
from qwen3app.server.status import status
from qwen3app.server.tokenize import detokenize, tokenize

if TYPE_CHECKING:
    from qwen3app.server.state import ServerState

_ROUTES = [
    create_chat_completion,
    create_completion,
    list_models,
    get_model,
    health,
    liveness,
    metrics,
    tokenize,
    detokenize,
    version,
    status,
    openapi,
    page,
    page_file,
]


def make_app(state: ServerState, log: Log) -> ASGIApp:
    """The whole server as an ASGI app. `state` may be without a model yet."""
    from litestar import Response

    def on_error(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
        reply = describe(error)
        if reply is None and record_of(request.scope).client_gone:
            reply = internal_error()  # nobody reads it: the client left while its body was being read
        if reply is None:
            log.write(
                "error",
                "error",
                request_id=record_of(request.scope).request_id,
                error=repr(error),
                traceback="".join(traceback.format_exception(error)),
            )
            reply = internal_error()
        record_of(request.scope).error = reply.message
        # Its frames hold the request, and the generation among them holds the error: a cycle, which would wait for the
        # collector, 60 ms with Python's lock in hand where requests are large.
        error.__traceback__ = None
        return Response(reply.body, status_code=reply.status, headers=reply.headers, media_type="application/json")

    guards = state.settings.guards
    litestar = Litestar(
        route_handlers=_ROUTES,
        state=State({"server": state, "openapi": Document(_ROUTES)}),
        exception_handlers={Exception: on_error},
        request_max_body_size=int(guards.max_body_mb * 1_000_000),
        openapi_config=None,
        logging_config=None,
    )
    app: ASGIApp = Gate(litestar, state)
    if guards.cors_origins:
        app = Cors(app, guards.cors_origins)
    return AccessLog(app, log, state.http, lambda path: _route_of(litestar, path))


def _route_of(litestar: Litestar, path: str) -> str | None:
    """The template of the route that a path leads to, whatever the method and whoever may use it."""
    for method in ("GET", "POST"):  # each route has one of them
        with contextlib.suppress(HTTPException):
            return str(litestar.asgi_router.handle_routing(path=normalize_path(path), method=method)[-1])
    return None
