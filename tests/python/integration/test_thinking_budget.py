"""Thought budgets on the real engine: the continuation has the bits of a prompt that says the same."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI
from patience import PATIENCE, wait_until
from served import RealServer, StartServer

from qwen3app.runtime.thought_budget import CLOSING_TEXT
from qwen3app.text.tokenizer import Tokenizer

BUDGET = 70  # more than two KV blocks, so that the continuation finds the thought in the prefix cache


@pytest.fixture(scope="module")
def thinking_model(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint with a template that opens every thought, as Thinking-2507's does."""
    directory = tmp_path_factory.mktemp("thinker") / "model"
    shutil.copytree(tiny_model_dir, directory)
    template = directory / "chat_template.jinja"
    source = template.read_text(encoding="utf-8")
    opening = "{%- if add_generation_prompt %}{{- '<think>\\n' }}{%- endif %}"
    template.write_text(source + opening, encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def thinking_server(start_server: StartServer, thinking_model: Path) -> RealServer:
    return start_server(thinking_model, "--max-ctx", "2048")


def counter(server: RealServer, name: str) -> float:
    text = httpx.get(f"{server.url}/metrics", timeout=PATIENCE).text
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
    reply = thinking_server.post("/v1/chat/completions", body)
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
        alone = thinking_server.post("/v1/completions", same)["choices"][0]
        assert alone["token_ids"] == ids[cut + len(closing) :]
    usage = reply["usage"]
    assert usage["completion_tokens"] == 280
    again = thinking_server.post("/v1/chat/completions", body)
    assert [choice["token_ids"] for choice in again["choices"]] == [c["token_ids"] for c in reply["choices"]]
    assert again["choices"][0]["message"] == reply["choices"][0]["message"]


async def _ask(client: httpx.AsyncClient, number: int) -> tuple[int, Any] | None:
    """One stream of 20 kinds, asked again while the queue is full; None: left early."""
    kind, leave_at = number % 20, number % 7 if number % 3 == 0 else None
    body: dict[str, Any] = {"messages": [{"role": "user", "content": f"hi {kind}"}], "seed": kind, "stream": True}
    body |= {"thinking_budget": (0, 1, 5, 40)[kind % 4], "max_tokens": 120, "n": 1 + kind % 3}
    while True:
        said: dict[int, list[str]] = defaultdict(lambda: ["", "", ""])
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code == 429:
                await asyncio.sleep(0.05)
                continue
            assert response.status_code == 200
            lines = 0
            async for line in response.aiter_lines():
                lines += 1
                if lines == leave_at:
                    return None
                if line.startswith("data: {"):
                    choice = json.loads(line[6:])["choices"][0]
                    texts = said[choice["index"]]
                    texts[0] += choice["delta"].get("reasoning", "")
                    texts[1] += choice["delta"].get("content", "")
                    texts[2] += choice["finish_reason"] or ""
        return kind, dict(said)


async def test_a_full_server_changes_no_thought_and_keeps_nothing(
    start_server: StartServer, thinking_model: Path
) -> None:
    """Four slots, a short queue, clients that leave: equal requests get equal answers, and at the end all is free."""
    server = start_server(thinking_model, "--max-ctx", "1024", "--slots", "4", "--max-queue", "6")
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE) as client:
        replies = await asyncio.gather(*[_ask(client, number) for number in range(100)])
    answers: dict[int, Any] = {}
    for kind, said in filter(None, replies):
        assert answers.setdefault(kind, said) == said
        assert all(texts[2] in ("stop", "length") for texts in said.values())
    assert len(answers) == 20
    wait_until(lambda: not counter(server, "vllm:num_requests_running"))
    for name in ("vllm:num_requests_running", "vllm:kv_cache_usage_perc", "qwen3_generations_running"):
        assert counter(server, name) == 0
    assert '"level":"error"' not in server.log
    server.stop()


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
    with OpenAI(base_url=thinking_server.url + "/v1", api_key="none", max_retries=0, timeout=PATIENCE) as client:
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
    with OpenAI(base_url=thinking_server.url + "/v1", api_key="none", max_retries=0, timeout=PATIENCE) as client:
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
