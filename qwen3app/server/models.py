"""GET /v1/models, GET /v1/models/{id}, and the server's version: GET /version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from litestar import Request, get
from litestar.params import FromPath

from qwen3app import __version__
from qwen3app.hub.names import shown_path
from qwen3app.server.replies import to_json
from qwen3app.server.sse import JsonReply, Reply

if TYPE_CHECKING:
    from qwen3app.server.state import ServerState


def _card(state: ServerState) -> dict[str, Any]:
    model, _ = state.ready()
    return {
        "id": state.model_name,
        "object": "model",
        "created": state.created,
        "owned_by": "qwen3-8b",
        "root": shown_path(model.directory),
        "name": state.model_name,
        "max_model_len": model.info.max_context,
    }


@get("/v1/models")
async def list_models(request: Request[Any, Any, Any]) -> Reply:
    """The one model that is served."""
    return JsonReply(to_json({"object": "list", "data": [_card(request.app.state.server)]}))


@get("/v1/models/{model_id:path}")
async def get_model(request: Request[Any, Any, Any], model_id: FromPath[str]) -> Reply:
    """One model; 404 for any other than ours. Names may hold slashes."""
    state: ServerState = request.app.state.server
    state.check_model(str(model_id).removeprefix("/"))
    return JsonReply(to_json(_card(state)))


@get("/version")
async def version() -> Reply:
    """As vLLM has it."""
    return JsonReply(to_json({"version": __version__}))
