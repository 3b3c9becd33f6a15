"""GET /health, /readyz and /healthz; no key is needed.

/health and /readyz are 200 when requests are taken, else 503 and why: for load balancers. /healthz is 200 as long as
the process is well, while it loads or drains too: only what a supervisor should start anew has another answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from litestar import Request, get

from qwen3app.errors import EngineError
from qwen3app.server.replies import to_json
from qwen3app.server.sse import JsonReply, Reply

if TYPE_CHECKING:
    from qwen3app.server.state import ServerState

PROBES = frozenset({"/health", "/healthz", "/readyz"})


@get(["/health", "/readyz"])
async def health(request: Request[Any, Any, Any]) -> Reply:
    """Readiness."""
    status, body = describe_health(request.app.state.server)
    return JsonReply(to_json(body), status)


@get("/healthz")
async def liveness(request: Request[Any, Any, Any]) -> Reply:
    """Liveness."""
    _, body = describe_health(request.app.state.server)
    return JsonReply(to_json(body), 503 if body["status"] == "failed" else 200)


def describe_health(state: ServerState) -> tuple[int, dict[str, Any]]:
    """HTTP status and body of readiness."""
    if state.failure is None and state.serving is not None:
        try:
            if state.serving.model.engine.stats().failed:
                state.failure = "The engine's device failed."
        except EngineError as error:
            state.failure = str(error)
    if state.failure is not None:
        return 503, {"status": "failed", "error": state.failure}
    if state.draining:
        return 503, {"status": "draining"}
    if state.serving is None:
        phase, done, total = state.progress
        part = round(done / total, 4) if total else 0.0
        return 503, {"status": "loading", "phase": phase, "done": done, "total": total, "progress": part}
    return 200, {"status": "ok", "model": state.model_name}
