"""GET /status: what a person wants to see of a running server at a glance; the chat page's gauge reads it.

Nothing is counted here, as in metrics.py. Guarded like the API: it tells what others are doing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from litestar import Request, get

from qwen3app import __version__
from qwen3app.server.replies import to_json
from qwen3app.server.sse import JsonReply, Reply

if TYPE_CHECKING:
    from qwen3app.server.state import ServerState


@get("/status")
async def status(request: Request[Any, Any, Any]) -> Reply:
    """Slots, queue, KV cache, what answers are sampled with unless a request says otherwise, the page's greeting."""
    return JsonReply(to_json(describe_status(request.app.state.server)))


def describe_status(state: ServerState) -> dict[str, Any]:
    """The reply's fields, as reply_types.ServerStatus has them."""
    model, _ = state.ready()
    stats, info, defaults = model.engine.stats(), model.info, model.defaults
    return {
        "model": state.model_name,
        "version": __version__,
        "device": info.device_name,
        "max_context": info.max_context,
        "slots": info.max_slots,
        "running": stats.n_running,
        "waiting": stats.n_waiting,
        "kv_usage": round(stats.blocks_used / stats.blocks_total, 4) if stats.blocks_total else 0.0,
        "kv_tokens": stats.blocks_total * info.block_size,
        "generated_tokens": stats.generated_tokens,
        "thinking": state.settings.thinking,
        "defaults": {
            "temperature": defaults.temperature,
            "top_p": defaults.top_p,
            "top_k": defaults.top_k,
            "min_p": defaults.min_p,
        },
        "suggestions": state.greeting.suggestions,
        "note": state.greeting.note,
    }
