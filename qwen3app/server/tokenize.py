"""POST /tokenize and /detokenize in vLLM's shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from litestar import Request, post

from qwen3app.errors import RequestError
from qwen3app.server.chat_prompt import chat_prompt
from qwen3app.server.offload import off_loop
from qwen3app.server.replies import to_json
from qwen3app.server.requests import DetokenizeBody, TokenizeBody, read_body
from qwen3app.server.sse import JsonReply, Reply
from qwen3app.server.thinking import thinking_of
from qwen3app.server.tools import tool_functions

if TYPE_CHECKING:
    from qwen3app.server.state import ServerState


@post("/tokenize", status_code=200)
async def tokenize(request: Request[Any, Any, Any]) -> Reply:
    """Ids of a raw prompt, or of messages rendered by the chat template (without computing anything)."""
    state: ServerState = request.app.state.server
    body = await read_body(request, TokenizeBody)
    model, _ = state.ready()
    state.check_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("Give either prompt or messages.", "prompt")
    thinking = thinking_of(body, state.settings)

    def encode() -> bytes:
        if body.prompt is not None:
            tokens = model.tokenizer.encode_raw(body.prompt, "prompt")
        else:
            tool_functions(body.tools)  # refuses what a chat would refuse
            tokens = chat_prompt(model.template, body, thinking, body.tools).ids
        text = model.tokenizer.token_text
        reply: dict[str, Any] = {
            "tokens": tokens,
            "count": len(tokens),
            "max_model_len": model.info.max_context,
            "token_strs": [text(token) for token in tokens] if body.return_token_strs else None,
        }
        return to_json(reply)

    return JsonReply(await off_loop(len(await request.body()), encode))


@post("/detokenize", status_code=200)
async def detokenize(request: Request[Any, Any, Any]) -> Reply:
    """The text of ids, control tokens included."""
    state: ServerState = request.app.state.server
    body = await read_body(request, DetokenizeBody)
    model, _ = state.ready()
    state.check_model(body.model)
    n_ids = model.info.vocab

    def decode() -> bytes:
        for i, token in enumerate(body.tokens):
            if not 0 <= token < n_ids:
                raise RequestError(f"tokens[{i}] is {token}; token ids are 0 to {n_ids - 1}.", f"tokens[{i}]")
        return to_json({"prompt": model.tokenizer.decode(body.tokens, skip_special=False)})

    return JsonReply(await off_loop(len(await request.body()), decode))
