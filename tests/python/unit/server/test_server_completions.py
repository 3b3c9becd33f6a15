"""POST /v1/completions, /tokenize and /detokenize over a scripted engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from fake_engine import FakeEngine, Reply, make_info
from serving import TextParts, events_of, make_model, serving

from qwen3app.abi import EngineRequest
from qwen3app.errors import RequestError
from qwen3app.runtime import ChoiceDelta
from qwen3app.server import offload, requests
from qwen3app.server.completions import CompletionChunks, read_prompts
from qwen3app.server.json_size import check_size


def says(parts: TextParts, text: str, end: bool = True) -> Reply:
    ids = parts.tokenizer.encode_raw(text) + ([parts.tokenizer.eos_ids[-1]] if end else [])
    return lambda request, sample: ids


async def test_plain_and_stream_are_equal(text_parts: TextParts) -> None:
    engine = FakeEngine(says(text_parts, " world 👍 <think> stays text"), step=0.001)
    async with serving(make_model(text_parts, engine)) as server:
        plain = (await server.complete({"max_tokens": 100})).json()
        chunks = events_of((await server.complete({"max_tokens": 100, "stream": True})).text)
    choice = plain["choices"][0]
    assert plain["object"] == "text_completion" and plain["id"].startswith("cmpl-")
    assert choice["text"] == " world 👍 <think> stays text"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == choice["text"]
    assert choice["finish_reason"] == chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}


async def test_sixteen_tokens_by_default(text_parts: TextParts) -> None:
    engine = FakeEngine(lambda request, sample: [70] * 100)
    async with serving(make_model(text_parts, engine)) as server:
        assert (await server.complete({})).json()["usage"]["completion_tokens"] == 16
        for value in (0, -1):
            response = await server.complete({"max_tokens": value})
            assert (response.status_code, response.json()["error"]["param"]) == (400, "max_tokens")


async def test_prompt_forms(text_parts: TextParts) -> None:
    tokenizer = text_parts.tokenizer

    def reply(request: EngineRequest, sample: int) -> list[int]:
        return [*tokenizer.encode_raw(f"<{request.prompt[0]}.{sample}>"), tokenizer.eos_ids[0]]

    first = [tokenizer.encode_raw(text)[0] for text in ("hi", "yo")]
    async with serving(make_model(text_parts, FakeEngine(reply))) as server:
        one: list[Any] = ["hi", ["hi"], [first[0]], [[first[0]]]]
        for prompt in one:
            reply_one = (await server.complete({"prompt": prompt})).json()
            assert [choice["text"] for choice in reply_one["choices"]] == [f"<{first[0]}.0>"]
        many: list[Any] = [["hi", "yo"], [[first[0]], [first[1]]]]
        for prompt in many:
            expected = [f"<{token}.{sample}>" for token in first for sample in range(2)]
            body = (await server.complete({"prompt": prompt, "n": 2})).json()
            assert [choice["text"] for choice in body["choices"]] == expected
            assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
            chunks = events_of((await server.complete({"prompt": prompt, "n": 2, "stream": True})).text)
            texts = ["", "", "", ""]
            for chunk in chunks:
                texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
            assert texts == expected


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ("x" * 300_000, "prompt"),
        (["a", "x" * 300_000], "prompt[1]"),
        (None, "prompt"),
        ([], "prompt"),
        (5, "prompt"),
        ({}, "prompt"),
        ("", "prompt"),
        ([""], "prompt[0]"),
        ([[]], "prompt[0]"),
        (["a", 1], "prompt[0]"),
        ([1, "a"], "prompt"),
        ([True], "prompt[0]"),
        ([-1], "prompt"),
        ([1, 1536], "prompt"),
        ([[1], [2.5]], "prompt[1]"),
        (["a"] * 4097, "prompt"),
    ],
)
async def test_wrong_prompts(text_parts: TextParts, prompt: Any, param: str) -> None:
    async with serving(make_model(text_parts, FakeEngine(says(text_parts, "a")))) as server:
        response = await server.complete({"prompt": prompt})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_b64_echo_scores_the_prompt(text_parts: TextParts) -> None:
    prompt = "Your answer: Yes 👍"
    ids = text_parts.tokenizer.encode_raw(prompt)
    asked = {"echo": True, "max_tokens": 0, "logprobs": 1}
    async with serving(make_model(text_parts, FakeEngine())) as server:
        reply = (await server.complete({"prompt": prompt, **asked})).json()
        by_ids = (await server.complete({"prompt": ids, **asked})).json()
        chunks = events_of((await server.complete({"prompt": prompt, **asked, "stream": True})).text)
        bare = (await server.complete({"prompt": prompt, "echo": True, "max_tokens": 0})).json()
    choice = reply["choices"][0]
    logprobs = choice["logprobs"]
    assert choice["text"] == by_ids["choices"][0]["text"] == prompt
    assert reply["usage"]["completion_tokens"] == 0 and choice["finish_reason"] == "length"
    assert len(logprobs["tokens"]) == len(ids)
    assert logprobs["token_logprobs"] == [None] + [-1.5] * (len(ids) - 1)
    assert logprobs["top_logprobs"][0] is None and all(len(top) >= 1 for top in logprobs["top_logprobs"][1:])
    assert logprobs["text_offset"][0] == 0 and logprobs["text_offset"] == sorted(logprobs["text_offset"])
    assert prompt[logprobs["text_offset"][1] :].startswith(logprobs["tokens"][1])
    assert chunks[0]["choices"][0]["text"] == prompt and chunks[0]["choices"][0]["logprobs"] == logprobs
    assert len(chunks) == 1
    assert bare["choices"][0]["text"] == prompt and bare["choices"][0]["logprobs"] is None


async def test_lm_evaluation_harness_batch(text_parts: TextParts) -> None:
    tokenizer = text_parts.tokenizer
    prompts = [tokenizer.encode_raw(text) for text in ("The sky is blue", "Two and two is four")]
    body = {"prompt": prompts, "max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0, "seed": 1234}
    async with serving(make_model(text_parts, FakeEngine(lambda request, sample: [70, 71]))) as server:
        choices = (await server.complete(body)).json()["choices"]
    for prompt, choice in zip(prompts, choices, strict=True):
        logprobs = choice["logprobs"]
        assert len(logprobs["token_logprobs"]) == len(prompt) + 1 == len(logprobs["top_logprobs"])
        assert logprobs["token_logprobs"][0] is None
        assert all(isinstance(max(top.values()), float) for top in logprobs["top_logprobs"][1:])
        assert choice["text"].startswith(tokenizer.decode(prompt))


async def test_logprobs_of_the_answer_alone(text_parts: TextParts) -> None:
    engine = FakeEngine(says(text_parts, " one two"))
    async with serving(make_model(text_parts, engine)) as server:
        zero = (await server.complete({"logprobs": 0})).json()["choices"][0]["logprobs"]
        two = (await server.complete({"logprobs": 2, "prompt_logprobs": 1, "return_token_ids": True})).json()
        streamed = events_of((await server.complete({"logprobs": 2, "stream": True, "return_token_ids": True})).text)
        for value in (21, -1):
            response = await server.complete({"logprobs": value})
            assert (response.status_code, response.json()["error"]["param"]) == (400, "logprobs")
    ids = text_parts.tokenizer.encode_raw(" one two")
    assert zero["tokens"] == [text_parts.tokenizer.token_text(token) for token in ids]
    assert [list(top) for top in zero["top_logprobs"]] == [[token] for token in zero["tokens"]]
    choice = two["choices"][0]
    assert choice["logprobs"]["text_offset"][0] == 0 and len(choice["logprobs"]["top_logprobs"][0]) == 2
    assert choice["token_ids"] == ids and choice["prompt_token_ids"] == list(engine.requests[2].prompt)
    assert choice["prompt_logprobs"][0] is None
    assert streamed[0]["choices"][0]["logprobs"] == choice["logprobs"]
    assert streamed[0]["choices"][0]["token_ids"] == ids


async def test_usage_in_streams(text_parts: TextParts) -> None:
    engine = FakeEngine(says(text_parts, " one two"), step=0.002)
    async with serving(make_model(text_parts, engine)) as server:
        options = {"include_usage": True, "continuous_usage_stats": True}
        chunks = events_of((await server.complete({"stream": True, "stream_options": options})).text)
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
    assert next(chunk["usage"]["completion_tokens"] for chunk in chunks) >= 1


async def test_too_many_answers_are_refused(text_parts: TextParts) -> None:
    """What can never be admitted is no 429, which would be sent again and again."""
    engine = FakeEngine(lambda request, sample: [70])
    model = make_model(text_parts, engine)
    async with serving(model) as server:
        response = await server.complete({"prompt": ["a"] * 100, "n": 128})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "n")
        model.max_queue = 8  # beside 32 slots
        for prompt, n, param in ((["a"] * 41, 1, "prompt"), ("a", 41, "n"), (["a"] * 21, 2, "n")):
            for stream in (False, True):
                response = await server.complete({"prompt": prompt, "n": n, "stream": stream})
                error = response.json()["error"]
                assert (response.status_code, error["param"]) == (400, param)
                assert "more than the 40 that" in error["message"]
        assert not engine.requests
        assert len((await server.complete({"prompt": ["a"] * 40, "max_tokens": 1})).json()["choices"]) == 40


async def test_suffix_is_refused(text_parts: TextParts) -> None:
    async with serving(make_model(text_parts, FakeEngine())) as server:
        response = await server.complete({"suffix": "end"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "suffix")


async def test_b71_too_long(text_parts: TextParts) -> None:
    async with serving(make_model(text_parts, FakeEngine(info=make_info(max_context=16)))) as server:
        for length, asked, param in (
            (10, {"max_tokens": 7}, "max_tokens"),
            (16, {"max_tokens": 7}, "prompt"),
            (10, {}, "prompt"),  # 16 tokens, which nobody asked for
        ):
            response = await server.complete({"prompt": [5] * length, "stream": True, **asked})
            error = response.json()["error"]
            assert (response.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", param)


async def test_tokenize_and_detokenize(text_parts: TextParts) -> None:
    tokenizer = text_parts.tokenizer
    messages = [{"role": "user", "content": "hi"}]
    async with serving(make_model(text_parts, FakeEngine())) as server:
        raw = (await server.post("/tokenize", {"prompt": "hi<|im_end|>", "add_special_tokens": True})).json()
        assert raw["tokens"] == tokenizer.encode_raw("hi<|im_end|>")
        assert (raw["count"], raw["max_model_len"]) == (len(raw["tokens"]), 512)
        chat = (await server.post("/tokenize", {"messages": messages, "return_token_strs": True})).json()
        assert chat["tokens"] == text_parts.template.render(messages).ids
        assert chat["token_strs"][0] == "<|im_start|>"
        tool = {"type": "function", "function": {"name": "lookup", "parameters": {}}}
        kwargs = {"enable_thinking": False}
        with_tools = (
            await server.post("/tokenize", {"messages": messages, "tools": [tool], "chat_template_kwargs": kwargs})
        ).json()
        assert with_tools["tokens"] == text_parts.template.render(messages, tools=[tool], template_kwargs=kwargs).ids
        closed = (await server.post("/tokenize", {"messages": messages, "add_generation_prompt": False})).json()
        assert closed["count"] < chat["count"]
        back = (await server.post("/detokenize", {"tokens": raw["tokens"], "model": "fake"})).json()
        assert back == {"prompt": "hi<|im_end|>"}
        for path, body, param in (
            ("/tokenize", {}, "prompt"),
            ("/tokenize", {"prompt": "a", "messages": messages}, "prompt"),
            ("/detokenize", {"tokens": [5, 1536]}, "tokens[1]"),
            ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
            ("/detokenize", {}, "tokens"),
        ):
            response = await server.post(path, body)
            assert (response.status_code, response.json()["error"]["param"]) == (400, param), body
        assert (await server.post("/tokenize", {"prompt": "a", "model": "other"})).status_code == 404


async def test_what_would_hold_the_event_loop_is_limited_or_done_beside_it(
    text_parts: TextParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = 0
    to_thread = asyncio.to_thread

    async def counting(work: Callable[..., Any], *given: Any) -> Any:
        nonlocal beside
        beside += work is not check_size  # which looks at all large bodies
        return await to_thread(work, *given)

    monkeypatch.setattr(offload.asyncio, "to_thread", counting)
    engine = FakeEngine(lambda request, sample: [70] * 100)
    async with serving(make_model(text_parts, engine)) as server:
        path = "/v1/completions"
        cases: list[tuple[str, dict[str, Any], str | None]] = [
            (path, {"prompt": "hi", "logit_bias": {str(i): 1 for i in range(40_000)}}, "logit_bias"),
            (path, {"prompt": "hi", "stop_token_ids": [5] * 5000}, "stop_token_ids"),
            (
                "/v1/chat/completions",
                {"messages": [{"role": "user", "content": "a"}], "tools": [{"name": "f"}] * 5000},
                "tools",
            ),
        ]
        for where, body, param in cases:
            response = await server.post(where, body)
            error = response.json()["error"]
            assert (response.status_code, error["param"]) == (400, param) and "at most" in error["message"]
        assert beside == 0
        big = [path, "/v1/chat/completions"]
        for where in big:  # replies with many log-probabilities
            body = {"prompt": "hi", "messages": [{"role": "user", "content": "a"}], "max_tokens": 100}
            body |= {"ignore_eos": True}
            body |= {"logprobs": 5} if where == path else {"logprobs": True, "top_logprobs": 5}
            choice = (await server.post(where, body)).json()["choices"][0]["logprobs"]
            assert len(choice["tokens" if where == path else "content"]) == 100
        assert beside == 2
        response = await server.post("/detokenize", {"tokens": [5] * 20_000})
        assert len(response.json()["prompt"]) == 20_000 and beside == 3
        response = await server.post("/tokenize", {"prompt": "a " * 10_000, "return_token_strs": True})
        assert response.json()["count"] == len(response.json()["token_strs"]) and beside == 4
        # the field of half a pair is looked for in small bodies only
        surrogate = b'{"prompt":"hi","x":["\\uD83D"]%b}'
        small = await server.client.post(path, content=surrogate % b"")
        large = await server.client.post(path, content=surrogate % (b',"y":"' + b"a" * 300_000 + b'"'))
        assert (small.json()["error"]["param"], small.json()["error"]["code"]) == ("x[0]", "invalid_unicode")
        assert (large.status_code, large.json()["error"]["code"]) == (400, "invalid_json")
        assert "must come in pairs" in large.json()["error"]["message"]


@pytest.mark.parametrize("place", [0, 16_383, 16_384, 39_999])
def test_a_wrong_id_is_found_wherever_it_stands(text_parts: TextParts, place: int) -> None:
    ids = [5] * 40_000
    assert read_prompts(ids, text_parts.tokenizer, 300)[0].ids == ids
    for wrong in (-1, 300):
        ids[place] = wrong
        with pytest.raises(RequestError, match=f"^prompt holds the token id {wrong}; ids are 0 to 299"):
            read_prompts(ids, text_parts.tokenizer, 300)


@pytest.mark.parametrize(
    ("asked", "off_loop"), [({"echo": True, "logprobs": 2}, True), ({"logprobs": 2}, False), ({"echo": True}, False)]
)
async def test_a_prompts_scores_are_streamed_off_the_event_loop(
    text_parts: TextParts, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], off_loop: bool
) -> None:
    """30,000 tokens with 20 alternatives each take longer to write than other streams may wait."""
    seen: list[bool] = []
    encode = CompletionChunks.encode

    def watched(self: CompletionChunks, deltas: list[ChoiceDelta]) -> bytes:
        seen.append(threading.current_thread() is not threading.main_thread())
        return encode(self, deltas)

    monkeypatch.setattr(CompletionChunks, "encode", watched)
    async with serving(make_model(text_parts, FakeEngine(says(text_parts, "one two three"), step=0.01))) as server:
        body = {"prompt": "a prompt of some words", "temperature": 0, **asked}
        plain = (await server.complete(body)).json()["choices"][0]
        chunks = events_of((await server.complete({**body, "stream": True})).text)
    assert seen[0] is off_loop and not any(seen[1:]) and len(seen) > 1
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == plain["text"]
    if "logprobs" in asked:
        tokens = [token for chunk in chunks for token in chunk["choices"][0]["logprobs"]["tokens"]]
        assert tokens == plain["logprobs"]["tokens"]


async def test_a_prompts_scores_are_no_endless_reply(text_parts: TextParts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MAX_PROMPT_LOGPROBS", 120)
    async with serving(make_model(text_parts, FakeEngine(says(text_parts, "one")))) as server:
        for ids, n, top, status in (
            ([5] * 20, 1, 5, 200),
            ([5] * 20, 2, 5, 400),
            ([5] * 21, 1, 5, 400),
            ([5] * 60, 1, 1, 200),
        ):
            reply = await server.complete({"prompt": ids, "n": n, "prompt_logprobs": top})
            assert reply.status_code == status, reply.text
        assert reply.json()["choices"][0]["prompt_logprobs"][0] is None
        refused = (await server.complete({"prompt": [[5] * 20, [6] * 30], "prompt_logprobs": 3})).json()["error"]
        assert refused["param"] == "prompt_logprobs"
        assert "for 50 prompt tokens would be up to 200 entries; at most 120" in refused["message"]
        chat = await server.chat({"messages": [{"role": "user", "content": "word " * 60}], "prompt_logprobs": 5})
        assert chat.status_code == 400 and chat.json()["error"]["param"] == "prompt_logprobs"
