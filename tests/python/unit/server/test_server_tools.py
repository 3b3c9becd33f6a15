"""Tools in POST /v1/chat/completions over a scripted engine: prompts, calls in both modes, refusals, real clients."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import openai
import pytest
from fake_engine import FakeEngine, Reply, make_info
from serving import TestServer, TextParts, events_of, load_text, make_model, serving

from qwen3app.abi import EngineRequest
from qwen3app.errors import RequestError
from qwen3app.server.requests import ChatBody
from qwen3app.server.tools import answer_constraint, tool_request
from qwen3app.text.grammars import ConstraintSpec

USER = [{"role": "user", "content": "hi"}]
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": '查询<b>天气</b> & "风"',
        "parameters": {"type": "object", "properties": {"z": {"type": "number"}, "a": {"type": "number"}}},
    },
}
LS = {"type": "function", "function": {"name": "ls"}}
TOOLS = {"tools": [ADD, LS]}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [LS]}}
CALL_ADD = '<tool_call>\n{"name": "add", "arguments": {"z": 1, "a": 2}}\n</tool_call>'
CALL_LS = '<tool_call>\n{"name": "ls", "arguments": {}}\n</tool_call>'


def says(parts: TextParts, *texts: str, end: bool = True) -> Reply:
    """A reply that says the texts in turn, one a request."""
    ids = [parts.tokenizer.encode_raw(text) + ([parts.tokenizer.eos_ids[-1]] if end else []) for text in texts]
    turns = itertools.cycle(ids)
    replies: dict[int, Sequence[int]] = {}  # by request, as all its samples say the same

    def reply(request: EngineRequest, sample: int) -> Sequence[int]:
        if id(request) not in replies:
            replies[id(request)] = next(turns)
        return replies[id(request)]

    return reply


def prompt_text(parts: TextParts, engine: FakeEngine, request: int) -> str:
    return parts.tokenizer.decode(engine.requests[request].prompt, skip_special=False)


def gather(body: str) -> list[dict[str, Any]]:
    """The messages that a stream adds up to, by choice, in the plain reply's shape; checks every call delta."""
    messages: dict[int, dict[str, Any]] = {}
    for chunk in events_of(body):
        for choice in chunk["choices"]:
            mine = messages.setdefault(
                choice["index"], {"content": "", "reasoning": "", "calls": [], "finish_reason": None, "role": None}
            )
            assert mine["finish_reason"] is None, "a chunk behind the end"
            delta = choice["delta"]
            mine["role"] = delta.get("role", mine["role"])
            assert mine["role"] == "assistant"
            mine["content"] += delta.get("content") or ""
            mine["reasoning"] += delta.get("reasoning_content") or ""
            assert len(delta.get("tool_calls", ())) <= 1  # openai's stream() helper takes one a chunk
            for call in delta.get("tool_calls", ()):
                if call["index"] == len(mine["calls"]):
                    assert call["id"].startswith("call_") and call["type"] == "function" and call["function"]["name"]
                    assert call["function"]["arguments"] == ""  # as OpenAI begins a call
                    mine["calls"].append({"id": call["id"], "name": call["function"]["name"], "arguments": ""})
                else:
                    assert set(call) == {"index", "function"} and set(call["function"]) == {"arguments"}
                    mine["calls"][call["index"]]["arguments"] += call["function"]["arguments"]
            mine["finish_reason"] = choice["finish_reason"]
    return [messages[index] for index in sorted(messages)]


async def both(server: TestServer, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The answers of a plain and of a streamed request, which must be equal but for the calls' ids."""
    plain = await server.chat(body)
    assert plain.status_code == 200, plain.text
    streamed = await server.chat({**body, "stream": True})
    assert streamed.status_code == 200, streamed.text
    answers = gather(streamed.text)
    ids = [call["id"] for answer in answers for call in answer["calls"]]
    for answer, choice in zip(answers, plain.json()["choices"], strict=True):
        message = choice["message"]
        assert answer["content"] == (message["content"] or "")
        assert answer["reasoning"] == (message["reasoning_content"] or "")
        assert answer["finish_reason"] == choice["finish_reason"]
        calls = message.get("tool_calls", [])
        assert ("tool_calls" in message) == bool(calls)
        functions = [{"name": call["name"], "arguments": call["arguments"]} for call in answer["calls"]]
        assert functions == [call["function"] for call in calls]
        assert all(call["type"] == "function" and call["id"].startswith("call_") for call in calls)
        ids += [call["id"] for call in calls]
        answer["message"] = message
    assert len(set(ids)) == len(ids)
    return answers


@pytest.mark.parametrize("step", [0.0, 0.002])
async def test_b05_b06_b18_parallel_calls(text_parts: TextParts, step: float) -> None:
    text = f"<think>\nhm {CALL_LS} no\n</think>\n\nSure.\n{CALL_ADD}\n{CALL_ADD}\nand\n{CALL_LS}"
    engine = FakeEngine(says(text_parts, text), step=step)
    async with serving(make_model(text_parts, engine)) as server:
        for extra in (
            {},
            {"n": 2},
            {"n": 2, "return_token_ids": True},
            {"logprobs": True, "top_logprobs": 1},
            {"parallel_tool_calls": True},
        ):
            for answer in await both(server, {**TOOLS, **extra}):
                assert answer["content"] == "Sure.\nand" and answer["reasoning"] == f"hm {CALL_LS} no"
                assert [call["name"] for call in answer["calls"]] == ["add", "add", "ls"]
                assert [call["arguments"] for call in answer["calls"]] == ['{"z": 1, "a": 2}'] * 2 + ["{}"]
                assert answer["finish_reason"] == "tool_calls"


async def test_b06_at_most_one_call(text_parts: TextParts) -> None:
    engine = FakeEngine(says(text_parts, f"{CALL_ADD}\n{CALL_LS}" + " more" * 50), step=0.001)
    async with serving(make_model(text_parts, engine)) as server:
        (answer,) = await both(server, {**TOOLS, "parallel_tool_calls": False})
        usage = (await server.chat({**TOOLS, "parallel_tool_calls": False})).json()["usage"]
    assert [call["name"] for call in answer["calls"]] == ["add"]
    assert (answer["content"], answer["finish_reason"]) == ("", "tool_calls")
    assert usage["completion_tokens"] == len(text_parts.tokenizer.encode_raw(CALL_ADD))  # the rest was not waited for
    assert (1, 0) in engine.cancelled


async def test_b19_b21_a_call_alone(text_parts: TextParts) -> None:
    for text, kwargs in ((CALL_LS, {"enable_thinking": False}), (f"<think>\nx\n</think>\n\n{CALL_LS}", {})):
        engine = FakeEngine(says(text_parts, text), step=0.001)
        async with serving(make_model(text_parts, engine)) as server:
            (answer,) = await both(server, {**TOOLS, **kwargs})
        assert answer["message"]["content"] is None and len(answer["calls"]) == 1
        assert answer["message"]["reasoning_content"] == (None if kwargs else "x")


async def test_b08_a_call_in_an_open_thought(text_parts: TextParts) -> None:
    text = f"<think>need ls\n{CALL_LS}"
    async with serving(make_model(text_parts, FakeEngine(says(text_parts, text), step=0.001))) as server:
        (answer,) = await both(server, TOOLS)
    assert answer["reasoning"] == "need ls" and answer["finish_reason"] == "tool_calls"
    n_tokens = len(text_parts.tokenizer.encode_raw(text))
    async with serving(make_model(text_parts, FakeEngine(says(text_parts, text, end=False)))) as server:
        (answer,) = await both(server, {**TOOLS, "max_tokens": n_tokens})
    assert answer["reasoning"] == f"need ls\n{CALL_LS}" and answer["finish_reason"] == "length"


async def test_b12_a_call_that_is_cut_off_is_text_and_may_come_back(text_parts: TextParts) -> None:
    n_tokens = len(text_parts.tokenizer.encode_raw(CALL_ADD))
    engine = FakeEngine(says(text_parts, CALL_ADD, end=False))
    async with serving(make_model(text_parts, engine)) as server:
        for limit in range(1, n_tokens):
            (answer,) = await both(server, {**TOOLS, "max_tokens": limit})
            stops = {"stop": ['"', "\n", "{", "add"]}  # a call's text is no matter of stop strings, cut off or not
            (same,) = await both(server, {**TOOLS, "max_tokens": limit, **stops})
            assert (same["content"], same["finish_reason"]) == (answer["content"], answer["finish_reason"])
            if answer["calls"]:  # whole but for its closing tag
                assert answer["finish_reason"] == "tool_calls" and limit > n_tokens - 5
                continue
            assert answer["finish_reason"] == "length"
            assert CALL_ADD.startswith(answer["content"])
            messages = [*USER, answer["message"], {"role": "user", "content": "go on"}]
            assert (await server.chat({**TOOLS, "messages": messages, "max_tokens": 1})).status_code == 200


@pytest.mark.parametrize(
    "text",
    ["Done.\n</tool_call>", '<tool_call>{"name":"add","arguments":{"a":"print("x")"}}</tool_call> ok', "<tool_call>\n"],
)
async def test_b10_b11_malformed_calls_are_content(text_parts: TextParts, text: str) -> None:
    async with serving(make_model(text_parts, FakeEngine(says(text_parts, text), step=0.001))) as server:
        (answer,) = await both(server, TOOLS)
    assert answer["message"]["content"] == text and answer["calls"] == [] and answer["finish_reason"] == "stop"


async def test_b17_no_call_is_wanted(text_parts: TextParts) -> None:
    engine = FakeEngine(says(text_parts, f"Hm.\n{CALL_LS}"), step=0.001)
    async with serving(make_model(text_parts, engine)) as server:
        (answer,) = await both(server, {**TOOLS, "tool_choice": "none", "logit_bias": {"5": 1}})
    assert answer["calls"] == [] and answer["finish_reason"] == "stop"
    assert answer["content"] == 'Hm.\n{"name": "ls", "arguments": {}}'
    opening = text_parts.tokenizer.control_tokens["<tool_call>"]
    assert dict(engine.requests[1].logit_bias) == {5: 1, opening: -100}
    assert engine.requests[1].prompt == text_parts.template.render(USER).ids  # no tools in the prompt


async def test_b54_stop_strings_beside_calls(text_parts: TextParts) -> None:
    text = f'a <tool_call>{{"name":"ls","arguments":{{"x":"END"}}}}</tool_call> b END c {CALL_LS}'
    async with serving(make_model(text_parts, FakeEngine(says(text_parts, text), step=0.001))) as server:
        (answer,) = await both(server, {**TOOLS, "stop": ["END"]})
    assert answer["content"] == "a b " and [call["arguments"] for call in answer["calls"]] == ['{"x":"END"}']
    assert answer["finish_reason"] == "tool_calls"


async def test_b20_the_prompt_has_the_tools_as_they_came(text_parts: TextParts) -> None:
    engine = FakeEngine(says(text_parts, "ok"))
    async with serving(make_model(text_parts, engine)) as server:
        await both(server, TOOLS)
        await both(server, {**TOOLS, "tool_choice": "auto"})
        await both(server, {"tools": [], "tool_choice": "auto"})
    assert prompt_text(text_parts, engine, 1) == text_parts.template.render(USER, tools=[ADD, LS]).text
    assert json.dumps(ADD, ensure_ascii=False) in prompt_text(text_parts, engine, 1)
    assert engine.requests[3].prompt == engine.requests[1].prompt
    assert engine.requests[5].prompt == text_parts.template.render(USER).ids


async def test_b13_b14_b16_b23_history(text_parts: TextParts) -> None:
    engine = FakeEngine(says(text_parts, "ok"))

    def history(arguments: Any, **content: Any) -> list[dict[str, Any]]:
        call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": arguments}}
        part = [{"type": "text", "text": "42"}]
        return [
            *USER,
            {"role": "assistant", **content, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": part},
            {"role": "tool", "tool_call_id": "nobody", "content": "43"},
        ]

    async with serving(make_model(text_parts, engine)) as server:
        for content in ({"content": None}, {}, {"content": ""}, {"content": []}):
            for arguments in ('{"z": 1}', {"z": 1}):
                answer = await server.chat({**TOOLS, "messages": history(arguments, **content)})
                assert answer.status_code == 200, answer.text
        prompts = [request.prompt for request in engine.requests.values()]
        assert all(prompt == prompts[0] for prompt in prompts)
        for arguments in ('"Beijing"', "[1]", "", "{bad", None):
            answer = await server.chat({**TOOLS, "messages": history(arguments)})
            assert answer.status_code == 200, answer.text
        answer = await server.chat({**TOOLS, "messages": history([1])})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "messages[1].tool_calls[0].function.arguments"
    text = prompt_text(text_parts, engine, 1)
    assert '<tool_call>\n{"name": "add", "arguments": {"z": 1}}\n</tool_call>' in text
    assert "<tool_response>\n42\n</tool_response>\n<tool_response>\n43\n</tool_response><|im_end|>" in text


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": ["x"]}, "tools[0]"),
        ({"tools": [ADD, {}]}, "tools[1].function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": 5}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
        ({"tools": [{"name": "a b"}]}, "tools[0].name"),
        ({"tools": [ADD, {"type": "function", "function": {"name": "größe\u00a0x"}}]}, "tools[1].function.name"),
        ({"tools": [{"name": "f\n"}]}, "tools[0].name"),
        ({"tools": [{"name": "f" * 129}]}, "tools[0].name"),
        ({"tools": [ADD, LS, {"name": "add"}]}, "tools[2].name"),
        ({"tools": [ADD, ADD], "tool_choice": "none"}, "tools[1].function.name"),
        ({"tools": [{"name": "f", "parameters": []}]}, "tools[0].parameters"),
        ({"tools": [{"name": "f", "strict": "yes"}]}, "tools[0].strict"),
        ({"tools": [{"name": "f", "description": "\ud800"}]}, "tools[0].description"),
        ({"tools": "x"}, "tools"),
        ({**TOOLS, "tool_choice": "maybe"}, "tool_choice"),
        ({**TOOLS, "tool_choice": 5}, "tool_choice"),
        ({**TOOLS, "tool_choice": {"type": "function"}}, "tool_choice"),
        ({**TOOLS, "tool_choice": {"type": "function", "function": {"name": "rm"}}}, "tool_choice"),
        ({**TOOLS, "tool_choice": {"type": "function", "function": "add"}}, "tool_choice"),
        ({**TOOLS, "tool_choice": {"type": "custom", "custom": {"name": "add"}}}, "tool_choice"),
        ({**TOOLS, "tool_choice": {"type": ["function"]}}, "tool_choice"),
        ({**TOOLS, "tool_choice": ALLOWED | {"allowed_tools": {"tools": []}}}, "tool_choice"),
        ({**TOOLS, "tool_choice": ALLOWED | {"allowed_tools": {"tools": ["add"]}}}, "tool_choice"),
        ({**TOOLS, "tool_choice": ALLOWED | {"allowed_tools": {"mode": "none", "tools": [LS]}}}, "tool_choice"),
        ({**TOOLS, "tool_choice": ALLOWED | {"allowed_tools": {"tools": [{"name": "rm"}]}}}, "tool_choice"),
        ({"tools": [], "tool_choice": ALLOWED}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [], "tool_choice": {"type": "function", "function": {"name": "rm"}}}, "tool_choice"),
        ({**TOOLS, "parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
    ],
)
async def test_refusals_name_the_place(text_parts: TextParts, body: dict[str, Any], param: str) -> None:
    async with serving(make_model(text_parts, FakeEngine(says(text_parts, "ok")))) as server:
        for stream in (False, True):
            answer = await server.client.post(
                "/v1/chat/completions",
                content=json.dumps({"messages": USER, "stream": stream, **body}),
                headers={"content-type": "application/json"},
            )
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize(
    "name", ["f", "mcp__files-read", "files.read", "server:x", "server/x", "mcp@1.0", "$search", "查询天气", "f" * 128]
)
def test_names_that_clients_give_to_tools(name: str) -> None:
    request = tool_request(ChatBody(messages=[], tools=[{"name": name}]))
    assert [function.name for function in request.functions] == [name]


def test_a_name_is_refused_with_its_rule() -> None:
    for tools, sentence in (
        (
            [{"name": "a b"}],
            "tools[0].name is 'a b'; a tool's name has no spaces and no control characters.",
        ),
        ([{"name": "a\n"}], r"tools[0].name is 'a\n'; a tool's name has no spaces and no control characters."),
        ([{"name": "a" * 129}], "tools[0].name has 129 characters; at most 128 are taken."),
        ([{"function": {}}], "tools[0].function.name is missing; send the function's name, a string."),
        ([{"name": ""}], "tools[0].name must be the function's name, a string."),
        ([ADD, ADD], "tools[1].function.name is 'add', as another tool's is; give each tool a name of its own."),
    ):
        with pytest.raises(RequestError) as caught:
            tool_request(ChatBody(messages=[], tools=tools))
        assert str(caught.value) == sentence


STRICT_LS = {"type": "function", "function": {"name": "ls", "parameters": {"properties": {}}, "strict": True}}
FORM = ConstraintSpec("json", {}, "response_format")
BOTH = [ADD, STRICT_LS]


@pytest.mark.parametrize(
    ("fields", "form", "functions", "options"),
    [
        ({"tools": BOTH[:1]}, None, None, {}),
        ({"tools": BOTH, "tool_choice": "none"}, None, None, {}),
        ({}, FORM, FORM, {}),
        ({"tools": BOTH, "tool_choice": "none"}, FORM, FORM, {}),
        # strict functions are held to their schemas, the others may be called with any object
        ({"tools": BOTH}, None, ["add", "ls!"], {"free_text": True}),
        ({"tools": BOTH, "parallel_tool_calls": False}, None, ["add", "ls!"], {"free_text": True, "parallel": False}),
        # forced calls always are
        ({"tools": BOTH, "tool_choice": "required"}, None, ["add!", "ls!"], {}),
        ({"tools": BOTH, "tool_choice": "required"}, FORM, ["add!", "ls!"], {}),
        ({"tools": BOTH, "tool_choice": {"function": {"name": "ls"}}}, None, ["ls!"], {"parallel": False}),
        ({"tools": BOTH, "tool_choice": {"type": "function", "name": "add"}}, None, ["add!"], {"parallel": False}),
        (
            {"tools": BOTH, "tool_choice": {"type": "function", "function": {"name": "ls"}}},
            FORM,
            ["ls!"],
            {"parallel": False},
        ),
        ({"tools": [LS], "tool_choice": "required"}, None, ["ls!"], {}),
        # all tools are in the prompt, some may be called
        ({"tools": [ADD, LS], "tool_choice": ALLOWED}, None, ["ls"], {"free_text": True}),
        ({"tools": BOTH, "tool_choice": ALLOWED}, FORM, ["ls!"], {"instead": FORM}),
        (
            {"tools": BOTH, "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"name": "add"}]}},
            None,
            ["add!"],
            {},
        ),
        # words have their form, calls are free
        ({"tools": BOTH[:1]}, FORM, ["add"], {"instead": FORM}),
    ],
)
def test_what_an_answer_is_held_to(fields: dict[str, Any], form: Any, functions: Any, options: dict[str, Any]) -> None:
    spec = answer_constraint(tool_request(ChatBody(messages=[], **fields)), form)
    if not isinstance(functions, list):
        assert spec == functions
        return
    assert spec is not None and spec.kind == "tools"
    assert [tool.name + "!" * (tool.parameters is not None) for tool in spec.value] == functions
    found = {name: getattr(spec, name) for name in ("free_text", "parallel", "instead")}
    assert found == {"free_text": False, "parallel": True, "instead": None, **options}


async def test_openai_client_tools_loop(text_parts: TextParts) -> None:
    """The official package as agents use it: call, run, answer; by stream and in one piece."""
    thought = "<think>\nLet me add.\n</think>\n\n"
    calls = f"{thought}{CALL_ADD}\n{CALL_LS}"
    engine = FakeEngine(says(text_parts, calls, "The sum is 3.", calls, "The sum is 3."), step=0.001)
    async with serving(make_model(text_parts, engine)) as server:
        client = openai.AsyncOpenAI(base_url=f"http://{server.host}:{server.port}/v1", api_key="x", max_retries=0)
        for stream in (False, True):
            messages: list[Any] = [{"role": "user", "content": "1 + 2?"}]
            finals = []
            for _ in range(2):
                if stream:
                    async with client.chat.completions.stream(
                        model="fake", messages=messages, tools=TOOLS["tools"]
                    ) as events:
                        names = [event.type async for event in events]
                        completion = await events.get_final_completion()
                        if not finals:
                            assert names.count("tool_calls.function.arguments.done") == 2
                else:
                    completion = await client.chat.completions.create(
                        model="fake", messages=messages, tools=TOOLS["tools"]
                    )
                choice = completion.choices[0]
                finals.append(choice.finish_reason)
                messages.append(choice.message.model_dump(exclude_none=True))
                for call in choice.message.tool_calls or ():
                    arguments = json.loads(call.function.arguments)
                    result = str(sum(arguments.values())) if call.function.name == "add" else "a b"
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
            assert finals == ["tool_calls", "stop"]
            assert choice.message.content == "The sum is 3."
            assert [message["content"] for message in messages if message["role"] == "tool"] == ["3", "a b"]
        await client.close()
    # The second turn renders what the model wrote in the first to the letter, so its KV is found in the cache.
    first, second = engine.requests[1].prompt, engine.requests[2].prompt
    spoken = text_parts.tokenizer.encode_raw(calls)
    assert list(second[: len(first) + len(spoken)]) == [*first, *spoken]


async def test_openai_stream_helper_keeps_choices_apart(text_parts: TextParts) -> None:
    """It takes the first chunk of a choice that comes early for another one's, and counts its logprobs twice. Here the
    last choice speaks first."""
    said = [f"{CALL_ADD}\n{CALL_LS}", f"<think>\nhm\n</think>\n\n{CALL_LS}", "Well, no."]
    ids = [[*text_parts.tokenizer.encode_raw(text), text_parts.tokenizer.eos_ids[-1]] for text in said]
    engine = FakeEngine(lambda request, sample: ids[sample], step=0.001)
    async with serving(make_model(text_parts, engine)) as server:
        client = openai.AsyncOpenAI(base_url=f"http://{server.host}:{server.port}/v1", api_key="x", max_retries=0)
        for _ in range(3):
            stream = client.chat.completions.stream(
                model="fake", messages=USER, tools=TOOLS["tools"], n=3, logprobs=True
            )
            async with stream as events:
                async for _ in events:
                    pass
                completion = await events.get_final_completion()
            found = [[call.function.name for call in choice.message.tool_calls or ()] for choice in completion.choices]
            assert found == [["add", "ls"], ["ls"], []]
            assert [choice.index for choice in completion.choices] == [0, 1, 2]
            tokens = [[token.token for token in choice.logprobs.content] for choice in completion.choices]
            assert tokens == [[text_parts.tokenizer.token_text(token) for token in each[:-1]] for each in ids]
            assert [choice.message.content or "" for choice in completion.choices] == ["", "", "Well, no."]
        await client.close()


# Schemas as they are in the wild, and values whose spelling a JSON library may change.
SCHEMAS: list[Any] = [
    {},
    {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
    {"properties": {"z": {"type": "number"}, "a": {"enum": ["é", "<b>", "&amp;", "\u2028", "\x7f", "\\", '"', "\n"]}}},
    {"properties": {"n": {"minimum": -0.0, "maximum": 1e22, "multipleOf": 1e-7, "default": 0.1, "x": 1.0}}},
    {"properties": {"i": {"enum": [0, -1, 2**63, -(2**63), 2**64, 10**30, 1.5e300, 5e-324, True, False, None]}}},
    {"$defs": {"node": {"properties": {"next": {"$ref": "#/$defs/node"}}}}, "$ref": "#/$defs/node"},
    {
        "": {"": {"": []}},
        "👩‍👩‍👧‍👦": "日本語",
        "anyOf": [{"type": ["string", "null"]}, {"pattern": "^\\d+(\\.\\d+)?$"}],
    },
]


def any_json(random: Random, depth: int = 0) -> Any:
    kind = random.randrange(7 if depth < 4 else 5)
    if kind < 5:
        text = "".join(random.choices("aZ <>&'\"\\/\n\té世👋\u2028{}[]:,", k=random.randrange(8)))
        return (text, random.randrange(-(10**9), 10**9), random.uniform(-1e3, 1e3), random.random() < 0.5, None)[kind]
    if kind == 5:
        return [any_json(random, depth + 1) for _ in range(random.randrange(4))]
    return {f"k{random.randrange(99)}é": any_json(random, depth + 1) for _ in range(3)}


async def test_b13_b20_prompts_equal_those_of_transformers() -> None:
    """From the bytes of a request to the engine's ids, for the official tokenizer and template."""
    transformers = pytest.importorskip("transformers")
    official = Path(__file__).parents[3] / "data" / "qwen3"
    reference = transformers.AutoTokenizer.from_pretrained(official)
    parts, random = load_text(official), Random(1)
    schemas = SCHEMAS + [any_json(random) for _ in range(60)]
    engine = FakeEngine(lambda request, sample: [parts.tokenizer.eos_ids[0]], make_info(max_context=10**6))
    async with serving(make_model(parts, engine)) as server:
        for i, schema in enumerate(schemas):
            parameters = schema if isinstance(schema, dict) else {"x": schema}
            function = {
                "name": f"f{i}",
                "description": '<i>天气</i> & "风"',
                "parameters": parameters,
                "extra": [schema],
            }
            tools = [{"type": "function", "function": function}, ADD, {**LS, "z": schema}]
            arguments = {"a": schema}
            for spelled in (arguments, json.dumps(arguments), json.dumps(arguments, ensure_ascii=False, indent=1)):
                call = {"id": "c1", "type": "function", "function": {"name": f"f{i}", "arguments": spelled}}
                messages: list[Any] = [
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": "hi"},
                    {"role": "assistant", "content": "", "tool_calls": [call, call]},
                    {"role": "tool", "tool_call_id": "c1", "content": json.dumps(schema)},
                    {"role": "tool", "tool_call_id": "c1", "content": "42"},
                ]
                body = {"messages": messages, "tools": tools, "max_tokens": 1}
                answer = await server.chat(json.loads(json.dumps(body)))
                assert answer.status_code == 200, answer.text
                expected = reference.apply_chat_template(
                    messages, tools=tools, add_generation_prompt=True, tokenize=True, return_dict=False
                )
                assert list(engine.requests[len(engine.requests)].prompt) == expected, schema
