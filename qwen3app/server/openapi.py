"""GET /openapi.json: the server's OpenAPI document.

Litestar writes it from the routes; what it cannot know, because handlers read bodies and write replies themselves, is
filled in here: request bodies from requests.py, replies from reply_types.py, errors from openai_errors.py. A test
compares the document with what the server does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from litestar import Request, get

from qwen3app import __version__
from qwen3app.runtime.params import MAX_SAMPLES, MAX_STOP_IDS, MAX_STOPS, MAX_TOP_LOGPROBS
from qwen3app.sampling_limits import MAX_REPETITION_PENALTY, MAX_TEMPERATURE, MIN_REPETITION_PENALTY
from qwen3app.server import reply_types
from qwen3app.server.health import PROBES
from qwen3app.server.replies import to_json
from qwen3app.server.requests import MAX_BIASES, NEUTRAL, ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from qwen3app.server.sse import JsonReply, Reply
from qwen3app.server.thinking import EFFORT_BUDGETS
from qwen3app.server.tools import MAX_TOOLS
from qwen3app.text.messages import ROLES

if TYPE_CHECKING:
    from litestar.types import ControllerRouterHandler

_REFERENCE = "#/components/schemas/{name}"
# path -> request body, reply, event of a stream
_BODIES: dict[str, tuple[type | None, type | None, type | None]] = {
    "/v1/chat/completions": (ChatBody, reply_types.ChatCompletion, reply_types.ChatCompletionChunk),
    "/v1/completions": (CompletionBody, reply_types.Completion, reply_types.Completion),
    "/v1/models": (None, reply_types.ModelList, None),
    "/v1/models/{model_id}": (None, reply_types.ModelCard, None),
    "/status": (None, reply_types.ServerStatus, None),
    "/tokenize": (TokenizeBody, reply_types.Tokens, None),
    "/detokenize": (DetokenizeBody, reply_types.Text, None),
}
_TEXT_ROUTES = frozenset({"/metrics"})
_ERRORS = {
    "400": "The request is wrong: `param` names the field.",
    "401": "The API key is missing or wrong.",
    "404": "There is no such model.",
    "408": "The request took too long to arrive.",
    "413": "The body is too large.",
    "415": "The body is not JSON.",
    "429": "Too many requests wait; Retry-After says when to try again.",
    "431": "The head of the request is too large.",
    "500": "The answer could not be finished.",
    "503": "The model is being loaded, the server ends, or its engine has failed; Retry-After says when to try again.",
    "504": "The answer took longer than the server lets one take.",
}
_TEXT_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
_CONTENT = [{"type": "string"}, {"type": "array", "items": {"anyOf": [{"type": "string"}, _TEXT_PART]}}]
_MESSAGE = {
    "type": "object",
    "properties": {
        "role": {"enum": sorted(ROLES)},
        "content": {"anyOf": [*_CONTENT, {"type": "null"}]},
        "name": {"type": ["string", "null"]},
        "tool_call_id": {"type": ["string", "null"]},
        "tool_calls": {"type": ["array", "null"], "items": {"type": "object"}},
        "reasoning_content": {"type": ["string", "null"]},
        "reasoning": {"type": ["string", "null"]},
    },
    "required": ["role"],
    "anyOf": [
        {"properties": {"role": {"enum": ["assistant", "tool"]}}},
        {"properties": {"content": {"anyOf": _CONTENT}}, "required": ["content"]},
    ],
}
_MESSAGES = {"type": "array", "minItems": 1, "items": _MESSAGE}
_IDS = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
# What the types of requests.py leave open: ranges and the fields whose checks stand elsewhere.
_FIELDS: dict[str, dict[str, Any]] = {
    "temperature": {"minimum": 0, "maximum": MAX_TEMPERATURE},
    "top_p": {"minimum": 0, "maximum": 1},
    "top_k": {"minimum": -1},
    "min_p": {"minimum": 0, "maximum": 1},
    "repetition_penalty": {"minimum": MIN_REPETITION_PENALTY, "maximum": MAX_REPETITION_PENALTY},
    "presence_penalty": {"minimum": -2, "maximum": 2},
    "frequency_penalty": {"minimum": -2, "maximum": 2},
    "n": {"minimum": 1, "maximum": MAX_SAMPLES},
    "max_completion_tokens": {"minimum": 1},
    "min_tokens": {"minimum": 0},
    "top_logprobs": {"minimum": 0, "maximum": MAX_TOP_LOGPROBS},
    "prompt_logprobs": {"minimum": 0, "maximum": MAX_TOP_LOGPROBS},
    "stop": {"maxItems": MAX_STOPS},
    "stop_token_ids": {"maxItems": MAX_STOP_IDS},
    "logit_bias": {"maxProperties": MAX_BIASES},
    "tools": {"maxItems": MAX_TOOLS},
    "thinking_budget": {"minimum": -1},
    "thinking_token_budget": {"minimum": -1},
    "reasoning_effort": {"enum": [*EFFORT_BUDGETS, None]},
    "reasoning": {"type": ["object", "null"]},
    "thinking": {"type": ["object", "null"]},
    **{name: {"enum": list(values)} for name, values in NEUTRAL.items()},
}
_BODY_FIELDS: dict[str, dict[str, dict[str, Any]]] = {
    "ChatBody": {
        "messages": _MESSAGES,
        "max_tokens": {"minimum": 1},
        "functions": {"enum": [None, []]},
        "function_call": {"enum": [None, "none", "auto"]},
    },
    "CompletionBody": {
        "prompt": {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}},
                _IDS,
                {"type": "array", "minItems": 1, "items": _IDS},
            ]
        },
        "max_tokens": {"minimum": 0},
        "logprobs": {"minimum": 0, "maximum": MAX_TOP_LOGPROBS},
        "suffix": {"enum": [None, ""]},
    },
    "TokenizeBody": {"messages": {"anyOf": [_MESSAGES, {"type": "null"}]}},
    "DetokenizeBody": {"tokens": {"items": {"type": "integer", "minimum": 0}}},
}
_ONE_OF = {
    "TokenizeBody": [
        {"properties": {"prompt": {"type": "string"}}, "required": ["prompt"]},
        {"properties": {"messages": {"type": "array"}}, "required": ["messages"]},
    ]
}


class Document:
    """The document, made when it is first asked for: that takes a quarter of a second."""

    def __init__(self, routes: Sequence[ControllerRouterHandler]) -> None:
        self._routes = routes
        self._task: asyncio.Task[bytes] | None = None

    async def read(self) -> bytes:
        """The document as JSON."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(asyncio.to_thread(self._make))
        return await asyncio.shield(self._task)

    def _make(self) -> bytes:
        return to_json(make_document(self._routes))


@get("/openapi.json", include_in_schema=False)
async def openapi(request: Request[Any, Any, Any]) -> Reply:
    """This document."""
    document: Document = request.app.state.openapi
    return JsonReply(await document.read())


def make_document(routes: Sequence[ControllerRouterHandler]) -> dict[str, Any]:
    """The OpenAPI document of these routes."""
    from litestar import Litestar
    from litestar.openapi import OpenAPIConfig

    config = OpenAPIConfig(title="qwen3-8b", version=__version__, use_handler_docstrings=True)
    described = Litestar(route_handlers=routes, openapi_config=config, logging_config=None)
    document: dict[str, Any] = described.openapi_schema.to_schema()
    types = {kind for kinds in _BODIES.values() for kind in kinds if kind is not None} | {reply_types.ErrorObject}
    ordered = sorted(types, key=lambda kind: kind.__name__)
    _, schemas = msgspec.json.schema_components(ordered, ref_template=_REFERENCE)
    for kind, fields in _BODY_FIELDS.items():
        _complete(schemas[kind]["properties"], fields)
    for kind, either in _ONE_OF.items():
        schemas[kind]["oneOf"] = either
    for kind in ("ChatBody", "CompletionBody", "TokenizeBody"):
        properties = schemas[kind]["properties"]
        _complete(properties, {name: extra for name, extra in _FIELDS.items() if name in properties})
    document["components"] = {
        "schemas": schemas,
        "securitySchemes": {
            "bearer": {"type": "http", "scheme": "bearer"},
            "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        },
    }
    document["security"] = [{"bearer": []}, {"key": []}, {}]  # a key only where the server was given one
    for path, operations in document["paths"].items():
        for operation in operations.values():
            _describe(path, operation)
    return document


def _complete(properties: dict[str, Any], fields: dict[str, dict[str, Any]]) -> None:
    for name, extra in fields.items():
        known = properties[name]
        if "anyOf" in extra or "enum" in extra or "type" in extra:  # says it all
            known.pop("anyOf", None)
        known.update(extra)


def _describe(path: str, operation: dict[str, Any]) -> None:
    body, reply, event = _BODIES.get(path, (None, None, None))
    content: dict[str, Any] = {"application/json": {"schema": _schema(reply)}}
    if path in _TEXT_ROUTES:
        content = {"text/plain": {"schema": {"type": "string"}}}
    if event is not None:
        payload = {"anyOf": [_schema(event), _schema(reply_types.ErrorObject)]}
        json_data = {"type": "string", "contentMediaType": "application/json", "contentSchema": payload}
        content["text/event-stream"] = {
            "schema": {
                "type": "object",
                "description": "With `stream`: each event. The last is an error or `[DONE]`.",
                "properties": {"data": {"anyOf": [{"const": "[DONE]"}, json_data]}},
                "required": ["data"],
            }
        }
    operation["responses"] = {"200": {"description": "The reply.", "content": content}}
    codes = list(_ERRORS) if body is not None else ["401", "404", "503"]
    # Probes say what they are waiting for.
    error = {"application/json": {"schema": _schema(None if path in PROBES else reply_types.ErrorObject)}}
    for code in codes:
        operation["responses"][code] = {"description": _ERRORS[code], "content": error}
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": _schema(body)}}}


def _schema(kind: type | None) -> dict[str, Any]:
    return {"type": "object"} if kind is None else {"$ref": _REFERENCE.format(name=kind.__name__)}
