"""Tool calls of a real server on the tiny random model, which calls nothing unless it is made to."""

from __future__ import annotations

import json
from typing import Any

import httpx
import jsonschema
import pytest
from patience import PATIENCE
from served import RealServer

CLOSED = {"additionalProperties": False}
SCHEMAS: dict[str, Any] = {
    "add": {
        "type": "object",
        "properties": {"a": {"type": "integer", "maximum": 99}, "b": {"enum": ["x", "</tool_call>", "日"]}},
        "required": ["a", "b"],
        **CLOSED,
    },
    "ls": {"type": "object", "properties": {}, **CLOSED},
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()]
STRICT = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
USER = [{"role": "user", "content": "hi"}]
NAMED = {"type": "function", "function": {"name": "add"}}


def chat(server: RealServer, **fields: Any) -> httpx.Response:
    body = {"messages": USER, "max_tokens": 400, "enable_thinking": False, "temperature": 1.0} | fields
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=PATIENCE)


def towards_calls(server: RealServer) -> dict[str, float]:
    """A logit_bias that makes the model begin a call now and then."""
    (opening,) = server.post("/tokenize", {"prompt": "<tool_call>"})["tokens"]
    return {str(opening): 12.0}


def functions(server: RealServer, **fields: Any) -> list[dict[str, str]]:
    """The calls of an answer that has nothing but calls, the same by stream; each fits its schema."""
    reply = chat(server, **fields)
    assert reply.status_code == 200, reply.text
    (choice,) = reply.json()["choices"]
    message = choice["message"]
    if choice["finish_reason"] == "length":  # the random model fills its answer with white space
        return []
    assert choice["finish_reason"] == "tool_calls" and message["content"] is None
    calls = [call["function"] for call in message["tool_calls"]]
    for call in calls:
        jsonschema.validate(json.loads(call["arguments"]), SCHEMAS[call["name"]])
    streamed = []
    for line in chat(server, stream=True, **fields).text.splitlines():
        if line.startswith("data: {"):
            for delta in json.loads(line.removeprefix("data: "))["choices"]:
                assert not delta["delta"].get("content")
                for part in delta["delta"].get("tool_calls", ()):
                    if part["index"] == len(streamed):
                        streamed.append(part["function"])
                    else:
                        streamed[part["index"]]["arguments"] += part["function"]["arguments"]
    assert streamed == calls
    return calls


def test_b06_b18_required_and_named_calls_are_enforced(real_server: RealServer) -> None:
    numbers, names = set(), set()
    for seed in range(12):
        calls = functions(real_server, tools=TOOLS, tool_choice="required", seed=seed)
        numbers.add(len(calls))
        names |= {call["name"] for call in calls}
        single = functions(real_server, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, seed=seed)
        assert len(single) <= 1
        named = functions(real_server, tools=TOOLS, tool_choice=NAMED, seed=seed)
        assert [call["name"] for call in named] in (["add"], [])
    assert names == {"add", "ls"} and max(numbers) > 1


def test_b12_a_limit_in_an_enforced_call_is_a_length_whatever_stops_are_given(real_server: RealServer) -> None:
    fields = {"tools": TOOLS, "tool_choice": NAMED, "seed": 1}
    for limit in (1, 2, 5, 9):
        whole = chat(real_server, **fields, max_tokens=limit).json()["choices"][0]
        stopped = chat(real_server, **fields, max_tokens=limit, stop=['"', "\n", "a", "<"]).json()["choices"][0]
        for choice in (whole, stopped):
            assert choice["finish_reason"] == "length" and choice["stop_reason"] is None
            assert choice["message"]["content"].startswith("<tool_call>") and "tool_calls" not in choice["message"]
        assert whole["message"] == stopped["message"]


def test_a_thought_comes_before_an_enforced_call(real_server: RealServer) -> None:
    reply = chat(real_server, tools=TOOLS, tool_choice=NAMED, enable_thinking=True, thinking_budget=9, n=3, seed=2)
    for choice in reply.json()["choices"]:
        assert choice["finish_reason"] in ("tool_calls", "length")
        for call in choice["message"].get("tool_calls", ()):
            jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMAS["add"])
        assert choice["finish_reason"] == "length" or len(choice["message"]["tool_calls"]) == 1


def test_strict_calls_follow_their_schema_and_text_stays_free(real_server: RealServer) -> None:
    n_calls = 0
    for seed in range(6):
        fields = {"tools": STRICT, "seed": seed, "max_tokens": 120}
        free = chat(real_server, **fields).json()["choices"][0]
        assert free["message"]["content"] and "tool_calls" not in free["message"]
        pushed = chat(real_server, **fields, logit_bias=towards_calls(real_server)).json()["choices"][0]
        for call in pushed["message"].get("tool_calls", ()):
            n_calls += 1
            jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMAS[call["function"]["name"]])
    assert n_calls > 1


def test_an_answer_in_words_keeps_its_form_beside_tools(real_server: RealServer) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], **CLOSED}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    kinds = set()
    for seed in range(30):  # the random model's calls often run into the limit
        bias = towards_calls(real_server) if seed % 2 else None
        reply = chat(real_server, tools=TOOLS, response_format=form, seed=seed, logit_bias=bias)
        (choice,) = reply.json()["choices"]
        message = choice["message"]
        if choice["finish_reason"] == "length":
            continue
        kinds.add(choice["finish_reason"])
        if choice["finish_reason"] == "stop":
            jsonschema.validate(json.loads(message["content"]), schema)
            assert "tool_calls" not in message
        else:
            assert message["tool_calls"]
            if reply.json()["usage"]["completion_tokens"] < 400:  # else a second call was cut off
                assert message["content"] is None
    assert kinds == {"stop", "tool_calls"}
    refused = chat(real_server, tools=TOOLS, guided_regex="a+")
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "guided_regex"


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        (
            [{"type": "function", "function": {"name": "f", "parameters": {"type": "objekt"}}}],
            "tools[0].function.parameters.type",
        ),
        ([*TOOLS, {"name": "f", "parameters": {"properties": {"x": {"type": 5}}}}], "tools[2].parameters.properties.x"),
    ],
)
def test_b44_schemas_that_cannot_be_enforced_are_refused(real_server: RealServer, tools: Any, param: str) -> None:
    for stream in (False, True):
        reply = chat(real_server, tools=tools, tool_choice="required", stream=stream)
        assert reply.status_code == 400, reply.text
        assert reply.json()["error"]["param"] == param
