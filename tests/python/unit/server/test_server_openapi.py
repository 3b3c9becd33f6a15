"""The OpenAPI document says what the server does: routes, fields, and replies to the last field."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from fake_engine import FakeEngine
from serving import TextParts, events_of, make_model, serving

from qwen3app.guards import GuardSettings
from qwen3app.server import reply_types
from qwen3app.server.app import _ROUTES
from qwen3app.server.openapi import make_document
from qwen3app.server.requests import ChatBody, CompletionBody

USER = [{"role": "user", "content": "hi"}]


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*map(references, value.values()))
    return set().union(*map(references, value)) if isinstance(value, list) else set()


def test_every_route_and_field_is_there() -> None:
    document = make_document(_ROUTES)
    assert document["openapi"].startswith("3.1")
    hidden = {"/openapi.json", "/", "/static/{name:str}"}
    paths = {path for route in _ROUTES for path in route.paths} - hidden
    assert {path.replace("{model_id}", "{model_id:path}") for path in document["paths"]} == paths
    schemas = document["components"]["schemas"]
    assert references(document) == {f"#/components/schemas/{name}" for name in schemas}
    for kind in (ChatBody, CompletionBody):
        assert set(schemas[kind.__name__]["properties"]) == set(kind.__struct_fields__)
    chat = document["paths"]["/v1/chat/completions"]["post"]
    assert chat["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/ChatBody")
    assert set(chat["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
    assert chat["responses"]["503"]["content"]["application/json"]["schema"]["$ref"].endswith("/ErrorObject")
    assert schemas["ChatBody"]["required"] == ["messages"]
    assert schemas["ChatBody"]["properties"]["reasoning_effort"]["enum"][0] == "none"


async def test_it_is_served(text_parts: TextParts) -> None:
    async with serving(make_model(text_parts, FakeEngine())) as server:
        first, second = [(await server.client.get("/openapi.json")).json() for _ in range(2)]
    assert first == second and "/v1/completions" in first["paths"]
    async with serving(make_model(text_parts, FakeEngine()), guards=GuardSettings(api_keys=("k",))) as server:
        assert (await server.client.get("/openapi.json")).status_code == 401


@pytest.mark.parametrize("thought", ["", "<think>\nhm\n</think>\n\n"])
async def test_replies_are_what_it_says(text_parts: TextParts, thought: str) -> None:
    """Strict: a field that is not in the document, or of another type, fails here."""
    ids = [*text_parts.tokenizer.encode_raw(f"{thought}one two"), text_parts.tokenizer.eos_ids[0]]
    engine = FakeEngine(lambda request, sample: ids, step=0.001)
    asked: list[dict[str, Any]] = [
        {},
        {"n": 2, "stop": "two"},
        {"logprobs": True, "top_logprobs": 2, "return_token_ids": True, "prompt_logprobs": 1},
        {"include_reasoning": False},
    ]
    usage = {"include_usage": True, "continuous_usage_stats": True}
    async with serving(make_model(text_parts, engine)) as server:
        for body in asked:
            msgspec.convert((await server.chat(body)).json(), reply_types.ChatCompletion)
            stream = {name: value for name, value in body.items() if name != "prompt_logprobs"} | {"stream": True}
            for more in ({}, {"stream_options": usage}):
                text = (await server.chat({**stream, **more})).text
                msgspec.convert(events_of(text), list[reply_types.ChatCompletionChunk])
            raw = {**body, "echo": True, "prompt": ["hi", "you"]}
            raw.pop("top_logprobs", None)
            raw["logprobs"] = 1 if "logprobs" in raw else None
            msgspec.convert((await server.complete(raw)).json(), reply_types.Completion)
            raw.pop("prompt_logprobs", None)
            text = (await server.complete({**raw, "stream": True, "stream_options": usage})).text
            msgspec.convert(events_of(text), list[reply_types.Completion])
        msgspec.convert((await server.client.get("/v1/models")).json(), reply_types.ModelList)
        msgspec.convert((await server.client.get("/v1/models/fake")).json(), reply_types.ModelCard)
        msgspec.convert((await server.client.get("/status")).json(), reply_types.ServerStatus)
        tokens = (await server.post("/tokenize", {"messages": USER, "return_token_strs": True})).json()
        msgspec.convert(tokens, reply_types.Tokens)
        text = (await server.post("/detokenize", {"tokens": tokens["tokens"]})).json()
        msgspec.convert(text, reply_types.Text)
        for path, body in (("/v1/chat/completions", {}), ("/v1/completions", {"prompt": 5}), ("/tokenize", {})):
            response = await server.post(path, body)
            assert response.status_code == 400
            msgspec.convert(response.json(), reply_types.ErrorObject)
        msgspec.convert((await server.client.get("/nothing")).json(), reply_types.ErrorObject)


async def test_tool_calls_are_what_it_says(text_parts: TextParts) -> None:
    call = '<tool_call>\n{"name": "look", "arguments": {"at": "me"}}\n</tool_call>'
    text = f"<think>\nhm\n</think>\n\n{call}\n{call}"
    ids = [*text_parts.tokenizer.encode_raw(text), text_parts.tokenizer.eos_ids[0]]
    engine = FakeEngine(lambda request, sample: ids, step=0.001)
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    async with serving(make_model(text_parts, engine)) as server:
        reply = msgspec.convert((await server.chat({"tools": [tool]})).json(), reply_types.ChatCompletion)
        stream = events_of((await server.chat({"tools": [tool], "stream": True})).text)
    assert reply.choices[0].finish_reason == "tool_calls"
    assert isinstance(reply.choices[0].message.tool_calls, list) and len(reply.choices[0].message.tool_calls) == 2
    chunks = msgspec.convert(stream, list[reply_types.ChatCompletionChunk])
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert [call.index for call in calls] == [0, 0, 1, 1]
