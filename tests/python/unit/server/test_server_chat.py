"""POST /v1/chat/completions over a scripted engine: shapes, streams, limits, refusals."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from fake_engine import FakeEngine, Reply, make_info
from serving import TextParts, events_of, make_model, serving

from qwen3app.text.generation_config import SamplingDefaults

USER = [{"role": "user", "content": "hi"}]


def says(parts: TextParts, text: str, end: bool = True) -> Reply:
    ids = parts.tokenizer.encode_raw(text) + ([parts.tokenizer.eos_ids[-1]] if end else [])
    return lambda request, sample: ids


def prompt_text(parts: TextParts, engine: FakeEngine, request: int) -> str:
    return parts.tokenizer.decode(engine.requests[request].prompt, skip_special=False)


async def test_plain_reply(text_parts: TextParts) -> None:
    engine = FakeEngine(says(text_parts, "<think>\nhm\n</think>\n\nHallo wörld 👩‍👩‍👧‍👦"))
    async with serving(make_model(text_parts, engine)) as server:
        response = await server.chat({"model": "fake"}, headers={"x-request-id": "abc-1"})
        assert response.status_code == 200, response.text
        assert response.headers["x-request-id"] == "abc-1"
        assert response.headers["content-type"] == "application/json"
        reply = response.json()
    choice = reply["choices"][0]
    assert reply["object"] == "chat.completion" and reply["id"].startswith("chatcmpl-") and reply["model"] == "fake"
    assert choice["message"]["content"] == "Hallo wörld 👩‍👩‍👧‍👦"
    assert choice["message"]["reasoning_content"] == choice["message"]["reasoning"] == "hm"
    assert (choice["finish_reason"], choice["index"], choice["logprobs"]) == ("stop", 0, None)
    usage = reply["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens"] == len(engine.requests[1].prompt)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 3}
    assert usage["completion_tokens_details"]["reasoning_tokens"] > 0


@pytest.mark.parametrize("step", [0.0, 0.002])
@pytest.mark.parametrize("include_usage", [True, False, None])
async def test_b65_b76_every_chunk_of_a_stream(text_parts: TextParts, step: float, include_usage: bool | None) -> None:
    engine = FakeEngine(says(text_parts, "<think>\nhm hm\n</think>\n\nHallo wörld 👩‍👩‍👧‍👦"), step=step)
    body: dict[str, Any] = {"stream": True, "n": 2}
    if include_usage is not None:
        body["stream_options"] = {"include_usage": include_usage}
    async with serving(make_model(text_parts, engine)) as server:
        response = await server.chat(body)
    assert response.headers["content-type"].startswith("text/event-stream")
    chunks = events_of(response.text)
    usages = [chunk for chunk in chunks if not chunk["choices"]]
    assert all({"id", "object", "created", "model", "choices"} <= set(chunk) for chunk in chunks)
    assert len({chunk["id"] for chunk in chunks}) == 1
    if include_usage:
        assert usages == [chunks[-1]] and usages[0]["usage"]["completion_tokens"] > 0
        assert all(chunk.get("usage") is None for chunk in chunks[:-1])
    else:
        assert not usages
    for index in range(2):
        mine = [chunk["choices"][0] for chunk in chunks if chunk["choices"] and chunk["choices"][0]["index"] == index]
        assert mine[0]["delta"]["role"] == "assistant"
        assert all("role" not in choice["delta"] for choice in mine[1:])
        # the role comes with the first token, not before it
        assert mine[0]["delta"].get("content") or mine[0]["delta"].get("reasoning_content")
        assert [choice["finish_reason"] for choice in mine if choice["finish_reason"]] == ["stop"]
        assert mine[-1]["finish_reason"] == "stop"
        assert "".join(choice["delta"].get("content", "") for choice in mine) == "Hallo wörld 👩‍👩‍👧‍👦"
        thoughts = [choice["delta"].get("reasoning_content", "") for choice in mine]
        assert "".join(thoughts) == "hm hm"
        assert thoughts == [choice["delta"].get("reasoning", "") for choice in mine]
        assert not any(choice["delta"].get("content") and choice["delta"].get("reasoning_content") for choice in mine)


async def test_finish_reason_rides_on_the_last_token(text_parts: TextParts) -> None:
    engine = FakeEngine(says(text_parts, "one two three", end=False), step=0.005)
    n_tokens = len(text_parts.tokenizer.encode_raw("one two three"))
    async with serving(make_model(text_parts, engine)) as server:
        response = await server.chat({"stream": True, "max_tokens": n_tokens})
    chunks = events_of(response.text)
    # at most one chunk per token, none for role or finish alone
    assert 1 < len(chunks) <= n_tokens
    assert all(chunk["choices"][0]["delta"]["content"] for chunk in chunks)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


async def test_everything_that_waits_is_one_write(text_parts: TextParts) -> None:
    engine = FakeEngine(says(text_parts, "many tokens at once, " * 20))
    async with serving(make_model(text_parts, engine)) as server:
        response = await server.chat({"stream": True})
    assert len(events_of(response.text)) == 1


async def test_an_event_is_one_line_to_every_reader(text_parts: TextParts) -> None:
    """httpx, as many clients use it, ends lines where str.splitlines does; in JSON these characters need no escape."""
    text = "a\u2028b\u2029c\x85d\x0b\x0c\x1c\x1d\x1e\re 世\u2027 \xc2 👩"
    engine = FakeEngine(lambda request, sample: text_parts.tokenizer.encode_raw(text))
    async with serving(make_model(text_parts, engine)) as server:
        for path, body in (
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "logprobs": True}),
            ("/v1/completions", {"prompt": text, "echo": True, "logprobs": 1}),
        ):
            plain = (await server.post(path, {**body, "max_tokens": 100})).json()["choices"][0]
            said = ""
            async with server.client.stream("POST", path, json={**body, "max_tokens": 100, "stream": True}) as reply:
                async for line in reply.aiter_lines():
                    assert line == "" or line.startswith("data: ")
                    if line.startswith("data: {"):
                        choice = json.loads(line.removeprefix("data: "))["choices"][0]
                        said += choice.get("text", choice.get("delta", {}).get("content", ""))
            assert said == plain.get("text", plain.get("message", {}).get("content")) and said.endswith(text)


async def test_b60_logprobs_have_true_bytes(text_parts: TextParts) -> None:
    text = "ok 👩‍👩‍👧‍👦 世"
    engine = FakeEngine(says(text_parts, text))
    async with serving(make_model(text_parts, engine)) as server:
        body = {"logprobs": True, "top_logprobs": 2}
        plain = (await server.chat(body)).json()["choices"][0]["logprobs"]["content"]
        streamed = events_of((await server.chat({**body, "stream": True})).text)
    joined = b"".join(bytes(entry["bytes"]) for entry in plain)
    assert joined.decode() == text
    assert all(len(entry["top_logprobs"]) == 2 and entry["logprob"] == -0.5 for entry in plain)
    assert plain[0]["top_logprobs"][0]["token"] == plain[0]["token"]
    assert any(entry["token"].startswith("bytes:") for entry in plain)
    chunks = [chunk["choices"][0]["logprobs"]["content"] for chunk in streamed if chunk["choices"][0]["logprobs"]]
    assert [entry for content in chunks for entry in content] == plain


async def test_b63_max_tokens(text_parts: TextParts) -> None:
    engine = FakeEngine(says(text_parts, "one two three four", end=False))
    async with serving(make_model(text_parts, engine)) as server:
        for value in (0, -1, 1.5, "10", True):
            for name in ("max_tokens", "max_completion_tokens"):
                response = await server.chat({name: value})
                assert response.status_code == 400, (name, value)
                assert response.json()["error"]["param"] == name
        one = (await server.chat({"max_tokens": 1})).json()
        assert one["usage"]["completion_tokens"] == 1 and one["choices"][0]["finish_reason"] == "length"
        both = (await server.chat({"max_tokens": 3, "max_completion_tokens": 2})).json()
        assert both["usage"]["completion_tokens"] == 2
        assert (await server.chat({"max_tokens": None})).status_code == 200
    assert engine.requests[max(engine.requests)].max_tokens == -1


async def test_b68_values_out_of_range_are_400(text_parts: TextParts) -> None:
    engine = FakeEngine(says(text_parts, "a"))
    async with serving(make_model(text_parts, engine)) as server:
        wrong = [
            ({"temperature": -1}, "temperature"),
            ({"temperature": 1e39}, "temperature"),  # infinite in float32
            ({"repetition_penalty": 0}, "repetition_penalty"),
            ({"repetition_penalty": 1e-46}, "repetition_penalty"),  # zero in float32
            ({"repetition_penalty": 1e39}, "repetition_penalty"),
            ({"top_p": 2}, "top_p"),
            ({"min_p": 1.5}, "min_p"),
            ({"n": 0}, "n"),
            ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
            ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
            ({"top_logprobs": 2}, "top_logprobs"),
            ({"prompt_logprobs": 21}, "prompt_logprobs"),
            ({"prompt_logprobs": -1}, "prompt_logprobs"),
            ({"logit_bias": {"x": 1}}, "logit_bias"),
            ({"logit_bias": {"9999": 1}}, "logit_bias"),
            ({"stop": [""]}, "stop[0]"),
            ({"stop": 5}, "stop"),
            ({"cache_salt": ""}, "cache_salt"),  # B81
            ({"temperature": "warm"}, "temperature"),
            ({"stream_options": 1, "stream": True}, "stream_options"),
            ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ]
        for body, param in wrong:
            response = await server.chat(body)
            error = response.json()["error"]
            assert (response.status_code, error["param"]) == (400, param), body
            assert error["type"] == "invalid_request_error" and error["message"].endswith(".")
        for penalty in (1.2e-38, 101, 3.4e38):
            assert (await server.chat({"repetition_penalty": penalty})).status_code == 200
        for temperature in (0, 1e-4, 1e-10, 2, 100):
            assert (await server.chat({"temperature": temperature, "top_k": 10**9, "top_p": 0})).status_code == 200


async def test_what_the_prompt_cannot_be_made_of_is_named(text_parts: TextParts) -> None:
    run = "x" * 300_000
    hi = {"messages": [{"role": "user", "content": "hi"}]}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"messages": [*hi["messages"], {"role": "user", "content": run}]}, "messages[1].content"),
        (
            {**hi, "tools": [{"type": "function", "function": {"name": "f", "description": run}}]},
            "tools[0].function.description",
        ),
        ({**hi, "chat_template_kwargs": {"namespace": 5}}, "chat_template_kwargs.namespace"),
        ({**hi, "tools": [{"name": "a b"}]}, "tools[0].name"),
        ({**hi, "tools": [{"name": "f"}, {"function": {"name": "f"}}]}, "tools[1].function.name"),
        ({"prompt": run}, "prompt"),
    ]
    async with serving(make_model(text_parts, FakeEngine(says(text_parts, "a")))) as server:
        for body, param in wrong:
            for path in ("/tokenize",) if "prompt" in body else ("/tokenize", "/v1/chat/completions"):
                response = await server.post(path, body)
                error = response.json()["error"]
                assert (response.status_code, error["param"]) == (400, param), path
                assert param in error["message"]


async def test_b73_null_means_the_default(text_parts: TextParts) -> None:
    engine = FakeEngine(says(text_parts, "a"))
    async with serving(make_model(text_parts, engine)) as server:
        assert (await server.chat({})).status_code == 200
        body = {"add_generation_prompt": None, "continue_final_message": None, "seed": None, "stop": None}
        assert (await server.chat(body)).status_code == 200
        messages = [{"role": "user", "content": "hi"}]
        replies = [
            (await server.post("/tokenize", {"messages": messages, **more})).json()["tokens"]
            for more in ({}, {"add_generation_prompt": None, "continue_final_message": None})
        ]
    first, second = engine.requests.values()
    assert first.prompt == second.prompt
    assert replies[0] == replies[1] == list(first.prompt)


async def test_sampling_reaches_the_engine(text_parts: TextParts) -> None:
    engine = FakeEngine(says(text_parts, "a"))
    asked = {
        "temperature": 0.25,
        "top_p": 0.5,
        "top_k": 7,
        "min_p": 0.125,
        "repetition_penalty": 1.5,
        "presence_penalty": 1.0,
        "frequency_penalty": -1.0,
        "seed": 42,
        "min_tokens": 2,
        "priority": -3,
        "cache_salt": "tenant",
        "ignore_eos": True,
        "n": 3,
        "max_tokens": 9,
    }
    async with serving(make_model(text_parts, engine, SamplingDefaults(0.6, 0.95, 20))) as server:
        assert (await server.chat({**asked, "logit_bias": {"5": -100, "6": 2}, "stop": "x"})).status_code == 200
    request = engine.requests[1]
    assert {name: getattr(request, name) for name in asked} == asked
    assert request.logit_bias == ((5, -100.0), (6, 2.0))


async def test_b69_wrong_messages(text_parts: TextParts) -> None:
    engine = FakeEngine(says(text_parts, "a"))
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    wrong: list[Any] = [[], None, 5, "hi", [{}], [{"role": "wizard", "content": "x"}], [{"role": "user", "content": 5}]]
    async with serving(make_model(text_parts, engine)) as server:
        for messages in [*wrong, image, [1]]:
            response = await server.post("/v1/chat/completions", {"messages": messages})
            error = response.json()["error"]
            assert response.status_code == 400, messages
            assert error["param"].startswith("messages"), error
        for said in ({}, {"content": None}):
            for role in ("system", "developer", "user"):
                response = await server.post("/v1/chat/completions", {"messages": [{"role": role, **said}]})
                assert (response.status_code, response.json()["error"]["param"]) == (400, "messages[0].content")
        missing = await server.post("/v1/chat/completions", {})
        assert missing.status_code == 400 and missing.json()["error"]["param"] == "messages"
        assert (await server.post("/v1/chat/completions", {"messages": image})).json()["error"]["param"] == (
            "messages[0].content[0]"
        )
    assert not engine.requests


async def test_b70_system_messages_anywhere(text_parts: TextParts) -> None:
    engine = FakeEngine(says(text_parts, "a"))
    orders = [
        ("user", "system", "user"),
        ("system", "system", "user"),
        ("developer", "user"),
        ("user", "assistant", "system"),
    ]
    async with serving(make_model(text_parts, engine)) as server:
        for roles in orders:
            messages = [{"role": role, "content": f"text {i}"} for i, role in enumerate(roles)]
            assert (await server.post("/v1/chat/completions", {"messages": messages})).status_code == 200, roles


async def test_b71_too_long_is_400_before_any_event(text_parts: TextParts) -> None:
    engine = FakeEngine(says(text_parts, "a"), make_info(max_context=64))
    async with serving(make_model(text_parts, engine)) as server:
        for stream in (False, True):
            response = await server.chat({"stream": stream, "max_tokens": 1000})
            error = response.json()["error"]
            assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
            assert "64 tokens" in error["message"] and "1000 tokens" in error["message"]
            assert error["param"] == "max_tokens"
    assert not engine.requests


@pytest.mark.parametrize(
    ("text", "asked", "param"),
    [
        ("hi", {"max_tokens": 1000}, "max_tokens"),
        ("hi", {"max_completion_tokens": 1000}, "max_completion_tokens"),
        ("hi", {"max_completion_tokens": 1000, "max_tokens": 5}, "max_completion_tokens"),
        ("word " * 100, {"max_tokens": 1000}, "messages"),
        ("word " * 100, {}, "messages"),
    ],
)
async def test_b71_the_field_that_is_too_large(
    text_parts: TextParts, text: str, asked: dict[str, Any], param: str
) -> None:
    async with serving(make_model(text_parts, FakeEngine(info=make_info(max_context=64)))) as server:
        response = await server.chat({"messages": [{"role": "user", "content": text}], **asked})
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", param)


async def test_b73_odd_but_common_fields(text_parts: TextParts) -> None:
    engine = FakeEngine(says(text_parts, "a"))
    body = {
        "seed": None,
        "stop": ["<|im_end|>", "<|endoftext|>"],
        "top_a": 0,
        "logprobs": None,
        "user": "x",
        "metadata": {},
        "store": False,
        "service_tier": "auto",
        "parallel_tool_calls": True,
        "logit_bias": {},
        "tools": [],
        "response_format": {"type": "text"},
        "stream_options": None,
        "temperature": None,
        "made_up": [1, {"deep": None}],
        "modalities": ["text"],
        "audio": None,
        "bad_words": [],
        "use_beam_search": False,
        "prediction": None,
        "verbosity": "low",
        "safety_identifier": "x",
        "prompt_cache_key": "x",
        "n": None,
        "max_tokens": None,
        "max_completion_tokens": None,
        "top_logprobs": None,
        "functions": [],
        "function_call": "none",
        "length_penalty": 1.0,
        "spaces_between_special_tokens": True,
    }
    async with serving(make_model(text_parts, engine)) as server:
        response = await server.chat(body)
        assert response.status_code == 200, response.text


async def test_unsupported_features_are_refused(text_parts: TextParts) -> None:
    engine = FakeEngine(says(text_parts, "a"))
    async with serving(make_model(text_parts, engine)) as server:
        refused = [
            ({"functions": [{"name": "f"}]}, "functions"),
            ({"function_call": {"name": "f"}}, "function_call"),
            ({"best_of": 3}, "best_of"),
            ({"use_beam_search": True}, "use_beam_search"),
            ({"use_beam_search": 0}, "use_beam_search"),
            ({"allowed_token_ids": [1]}, "allowed_token_ids"),
            ({"bad_words": ["no"]}, "bad_words"),
            ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
            ({"modalities": ["text", "audio"]}, "modalities"),
            ({"audio": {"voice": "x"}}, "audio"),
            ({"web_search_options": {}}, "web_search_options"),
            ({"chat_template": "{{ messages }}"}, "chat_template"),
        ]
        for body, param in refused:
            response = await server.chat(body)
            assert (response.status_code, response.json()["error"]["param"]) == (400, param), body
            assert "not supported" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "thinks"),
    [
        ({}, True),
        ({"enable_thinking": False}, False),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "none", "enable_thinking": True}, True),
        ({"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}}, False),
        *(
            ({"reasoning_effort": effort}, True)
            for effort in ("minimal", "low", "medium", "high", "xhigh", "max", None)
        ),
    ],
)
async def test_b24_b30_b31_thinking_switches(text_parts: TextParts, fields: dict[str, Any], thinks: bool) -> None:
    engine = FakeEngine(says(text_parts, "answer"))
    async with serving(make_model(text_parts, engine)) as server:
        response = await server.chat(fields)
        message = response.json()["choices"][0]["message"]
        assert (response.status_code, message["content"], message["reasoning_content"]) == (200, "answer", None)
    assert prompt_text(text_parts, engine, 1).endswith("<think>\n\n</think>\n\n") is not thinks


async def test_thinking_off_by_default_of_the_server(text_parts: TextParts) -> None:
    engine = FakeEngine(says(text_parts, "answer"))
    async with serving(make_model(text_parts, engine), thinking=False) as server:
        await server.chat({})
        await server.chat({"enable_thinking": True})
    assert prompt_text(text_parts, engine, 1).endswith("</think>\n\n")
    assert not prompt_text(text_parts, engine, 2).endswith("</think>\n\n")


async def test_b26_cut_in_the_thought_gives_reasoning_only(text_parts: TextParts) -> None:
    engine = FakeEngine(says(text_parts, "<think>\none two three four five six", end=False))
    async with serving(make_model(text_parts, engine)) as server:
        plain = (await server.chat({"max_completion_tokens": 5})).json()["choices"][0]
        chunks = events_of((await server.chat({"max_completion_tokens": 5, "stream": True})).text)
    assert plain["message"]["content"] is None and plain["finish_reason"] == "length"
    streamed = "".join(chunk["choices"][0]["delta"].get("reasoning", "") for chunk in chunks)
    assert streamed == plain["message"]["reasoning"] != ""
    assert not any(chunk["choices"][0]["delta"].get("content") for chunk in chunks)


async def test_b32_continue_final_message(text_parts: TextParts) -> None:
    engine = FakeEngine(says(text_parts, " 42."))
    messages = [*USER, {"role": "assistant", "content": "The answer is"}]
    async with serving(make_model(text_parts, engine)) as server:
        for thinking in (True, False):
            body = {"messages": messages, "continue_final_message": True, "enable_thinking": thinking}
            response = await server.post("/v1/chat/completions", body)
            assert response.json()["choices"][0]["message"]["content"] == " 42."
    for request in engine.requests:
        assert prompt_text(text_parts, engine, request).endswith("The answer is")


async def test_b55_stop_strings_plain_and_streamed(text_parts: TextParts) -> None:
    engine = FakeEngine(says(text_parts, "one two three four five six"), step=0.001)
    async with serving(make_model(text_parts, engine)) as server:
        for stop, expected in ((["five"], "one two three four "), (" three", "one two"), (["zz"], None)):
            plain = (await server.chat({"stop": stop})).json()["choices"][0]
            chunks = events_of((await server.chat({"stop": stop, "stream": True})).text)
            text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
            assert text == plain["message"]["content"] == (expected or "one two three four five six")
            assert plain["finish_reason"] == chunks[-1]["choices"][0]["finish_reason"] == "stop"
            matched = stop[0] if isinstance(stop, list) else stop
            assert plain["stop_reason"] == chunks[-1]["choices"][0]["stop_reason"] == (matched if expected else None)


async def test_continuous_usage_token_ids_and_prompt_logprobs(text_parts: TextParts) -> None:
    engine = FakeEngine(says(text_parts, "one two three"), step=0.002)
    ids = text_parts.tokenizer.encode_raw("one two three")
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with serving(make_model(text_parts, engine)) as server:
        chunks = events_of(
            (await server.chat({"stream": True, "stream_options": options, "return_token_ids": True})).text
        )
        plain = (await server.chat({"return_token_ids": True, "prompt_logprobs": 1})).json()
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts) and counts[-1] == len(ids) + 1
    assert [token for chunk in chunks[:-1] for token in chunk["choices"][0]["token_ids"]] == ids
    assert plain["choices"][0]["token_ids"] == ids
    assert plain["prompt_token_ids"] == list(engine.requests[2].prompt)
    assert plain["prompt_logprobs"][0] is None and len(plain["prompt_logprobs"]) == len(plain["prompt_token_ids"])
    entry = plain["prompt_logprobs"][1][str(plain["prompt_token_ids"][1])]
    assert entry["rank"] == 1 and entry["logprob"] == -0.5


async def test_queue_full_and_closing_ask_to_retry(text_parts: TextParts) -> None:
    engine = FakeEngine(says(text_parts, "a"))
    engine.max_queue = 0
    async with serving(make_model(text_parts, engine)) as server:
        for stream in (True, False):
            response = await server.chat({"stream": stream})
            error = response.json()["error"]
            assert (response.status_code, error["code"], response.headers["retry-after"]) == (429, "queue_full", "1")


async def test_b75_headers_at_once_and_comments_while_silent(text_parts: TextParts) -> None:
    engine = FakeEngine(says(text_parts, "late"), delay=0.6)
    async with serving(make_model(text_parts, engine)) as server:
        server.life.state.heartbeat._seconds = 0.1
        begin = asyncio.get_running_loop().time()
        body = {"messages": USER, "stream": True}
        async with server.client.stream("POST", "/v1/chat/completions", json=body) as response:
            assert asyncio.get_running_loop().time() - begin < 0.4  # long before the first token
            text = "".join([part async for part in response.aiter_text()])
    first_event = text.index("data: ")
    assert text[:first_event].count(": ping\n\n") >= 3
    assert text[:first_event].replace(": ping\n\n", "") == ""
    assert json.loads(text[first_event + 6 :].split("\n\n")[0])["choices"][0]["delta"]["content"] == "late"


async def test_b58_lone_surrogates_are_400(text_parts: TextParts) -> None:
    engine = FakeEngine(says(text_parts, "a"))
    bodies = [
        (r'{"messages":[{"role":"user","content":"a\ud800"}]}', "messages[0].content"),
        (r'{"messages":[{"role":"user","content":"a","name":"\udfff"}]}', "messages[0].name"),
        (r'{"messages":[{"role":"user","content":"a"}],"stop":["x\ud800y"]}', "stop[0]"),
        (r'{"messages":[{"role":"tool","content":"a","tool_call_id":"\ud800"}]}', "messages[0].tool_call_id"),
    ]
    async with serving(make_model(text_parts, engine)) as server:
        for body, param in bodies:
            for stream in ("", ',"stream":true'):
                data = (body[:-1] + stream + "}").encode()
                response = await server.client.post("/v1/chat/completions", content=data)
                assert (response.status_code, response.json()["error"]["param"]) == (400, param)
                assert "character" in response.json()["error"]["message"]
    assert not engine.requests


async def test_long_prompts_are_rendered_off_the_event_loop(text_parts: TextParts) -> None:
    engine = FakeEngine(says(text_parts, "a"), make_info(max_context=200_000))
    async with serving(make_model(text_parts, engine)) as server:
        messages = [{"role": "user", "content": "word " * 20_000}]
        chat = await server.post("/v1/chat/completions", {"messages": messages})
        text = await server.complete({"prompt": "word " * 20_000})
        count = await server.post("/tokenize", {"prompt": "word " * 20_000})
    assert chat.status_code == text.status_code == count.status_code == 200
    assert text.json()["usage"]["prompt_tokens"] == count.json()["count"]
