"""Thought budgets on the real engine: the continuation has the bits of a prompt that says the same."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI
from served import RealServer, StartServer

from qwen3app.runtime.thought_budget import CLOSING_TEXT
from qwen3app.text.tokenizer import Tokenizer

BUDGET = 70  # more than two KV blocks, so that the continuation finds the thought in the prefix cache


@pytest.fixture(scope="module")
def thinking_server(
    start_server: StartServer, tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> RealServer:
    """The tiny checkpoint with a template that opens every thought, as Thinking-2507's does."""
    directory = tmp_path_factory.mktemp("thinker") / "model"
    shutil.copytree(tiny_model_dir, directory)
    config = directory / "tokenizer_config.json"
    own = directory / "chat_template.jinja"
    source = own.read_text() if own.exists() else json.loads(config.read_text())["chat_template"]
    own.write_text(source + "{%- if add_generation_prompt %}{{- '<think>\\n' }}{%- endif %}")
    return start_server(directory, "--max-ctx", "2048")


def post(server: RealServer, path: str, body: dict[str, Any]) -> dict[str, Any]:
    reply = httpx.post(f"{server.url}{path}", json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    result: dict[str, Any] = reply.json()
    return result


def counter(server: RealServer, name: str) -> float:
    text = httpx.get(f"{server.url}/metrics", timeout=10).text
    found = re.search(rf"^{name}(?:{{[^}}]*}})? ([0-9.e+]+)$", text, re.M)
    assert found is not None, name
    return float(found.group(1))


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_b37_the_answer_is_that_of_the_prompt_that_says_the_same(
    thinking_server: RealServer, tiny_model_dir: Path, temperature: float
) -> None:
    tokenizer = Tokenizer.from_dir(tiny_model_dir)
    close = tokenizer.control_tokens["</think>"]
    body = {
        "messages": [{"role": "user", "content": f"Tell me of the quick brown fox at {temperature}."}],
        "temperature": temperature,
        "seed": 11,
        "n": 2,
        "max_tokens": 140,
        "thinking_budget": BUDGET,
        "ignore_eos": True,
        "logit_bias": {str(close): -100},  # a thought that never ends by itself
        "return_token_ids": True,
    }
    hits = counter(thinking_server, "vllm:prefix_cache_hits_total")
    reply = post(thinking_server, "/v1/chat/completions", body)
    assert counter(thinking_server, "vllm:prefix_cache_hits_total") - hits >= 2 * (BUDGET // 32) * 32
    closing = tokenizer.encode_raw(CLOSING_TEXT)
    for index, choice in enumerate(reply["choices"]):
        ids = choice["token_ids"]
        assert len(ids) == 140 and choice["finish_reason"] == "length"
        cut = next(i for i in range(len(ids)) if ids[i : i + len(closing)] == closing)
        assert BUDGET <= cut <= BUDGET + 8
        assert choice["message"]["reasoning"].endswith("based on the thinking directly now.")
        prompt = reply["prompt_token_ids"] + ids[: cut + len(closing)]
        same = {
            "prompt": prompt,
            "seed": 11 + index,
            "max_tokens": 140 - cut - len(closing),
            **{name: body[name] for name in ("temperature", "ignore_eos", "logit_bias", "return_token_ids")},
        }
        alone = post(thinking_server, "/v1/completions", same)["choices"][0]
        assert alone["token_ids"] == ids[cut + len(closing) :]
    usage = reply["usage"]
    assert usage["completion_tokens"] == 280
    again = post(thinking_server, "/v1/chat/completions", body)
    assert [choice["token_ids"] for choice in again["choices"]] == [c["token_ids"] for c in reply["choices"]]
    assert again["choices"][0]["message"] == reply["choices"][0]["message"]


def test_many_thoughts_at_once_leave_nothing_behind(thinking_server: RealServer) -> None:
    with httpx.Client(timeout=60) as client:
        for seed in range(20):
            body = {"messages": [{"role": "user", "content": "hi"}], "thinking_budget": seed, "seed": seed, "n": 4}
            body |= {"max_tokens": 80, "stream": True}
            with client.stream("POST", f"{thinking_server.url}/v1/chat/completions", json=body) as response:
                for number, _ in enumerate(response.iter_lines()):
                    if seed % 3 == 0 and number == seed:
                        break
    deadline = 100
    while counter(thinking_server, "vllm:num_requests_running") and deadline:
        deadline -= 1
    assert counter(thinking_server, "vllm:num_requests_running") == 0
    assert counter(thinking_server, "vllm:kv_cache_usage_perc") == 0


def test_the_official_client_reads_thoughts(thinking_server: RealServer) -> None:
    """stream == plain, and the fields are where its users look for them."""
    options: dict[str, Any] = {
        "model": "model",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 120,
        "seed": 5,
        "n": 2,
        "reasoning_effort": "high",
        "extra_body": {"thinking_budget": 30, "ignore_eos": True},
    }
    with OpenAI(base_url=thinking_server.url + "/v1", api_key="none", max_retries=0, timeout=60) as client:
        plain = client.chat.completions.create(**options)
        chunks = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    for index, choice in enumerate(plain.choices):
        deltas = [each.delta for chunk in chunks for each in chunk.choices if each.index == index]
        for name in ("reasoning_content", "reasoning", "content"):
            joined = "".join(getattr(delta, name, None) or "" for delta in deltas)
            assert joined == (getattr(choice.message, name) or ""), name
        assert getattr(choice.message, "reasoning", None)
    assert plain.usage is not None and chunks[-1].usage is not None
    details = plain.usage.completion_tokens_details
    assert details is not None and details.reasoning_tokens is not None and details.reasoning_tokens > 0
    assert chunks[-1].usage.completion_tokens_details == details


@pytest.mark.parametrize("stream", [False, True])
def test_b40_an_answer_behind_a_closed_thought_keeps_its_schema(thinking_server: RealServer, stream: bool) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}, "ok": {"type": "boolean"}},
        "required": ["n", "ok"],
        "additionalProperties": False,
    }
    options: dict[str, Any] = {
        "model": "model",
        "messages": [{"role": "user", "content": "hi"}],
        "seed": 3,
        "n": 3,
        "max_tokens": 300,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}},
        "extra_body": {"thinking_budget": 40},
    }
    with OpenAI(base_url=thinking_server.url + "/v1", api_key="none", max_retries=0, timeout=60) as client:
        contents, thoughts = ["", "", ""], ["", "", ""]
        if stream:
            for chunk in client.chat.completions.create(**options, stream=True):
                choice = chunk.choices[0]
                contents[choice.index] += choice.delta.content or ""
                thoughts[choice.index] += getattr(choice.delta, "reasoning", None) or ""
        else:
            for choice in client.chat.completions.create(**options).choices:
                contents[choice.index] = choice.message.content or ""
                thoughts[choice.index] = getattr(choice.message, "reasoning", None) or ""
    for content, thought in zip(contents, thoughts, strict=True):
        value = json.loads(content)
        assert set(value) == {"n", "ok"} and 0 <= value["n"] <= 9 and isinstance(value["ok"], bool)
        assert thought
    assert any(thought.endswith("based on the thinking directly now.") for thought in thoughts)
