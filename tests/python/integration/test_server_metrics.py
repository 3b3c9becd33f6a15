"""/metrics against what clients counted: a mixed load on the real engine, and every figure that has a counterpart."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from served import StartServer

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
Figures = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def scrape(client: httpx.AsyncClient) -> Figures:
    reply = await client.get("/metrics")
    assert reply.status_code == 200
    families = text_string_to_metric_families(reply.text)
    return {(each.name, frozenset(each.labels.items())): each.value for family in families for each in family.samples}


def request_of(chance: random.Random, number: int) -> tuple[str, dict[str, Any], int]:
    """Path, body, and how many prompts it has."""
    body: dict[str, Any] = {"seed": number, "n": chance.choice([1, 1, 2, 3])}
    body["max_tokens"] = 5000 if number % 20 == 7 else chance.choice([1, 4, 16, 60])
    body["stream"] = chance.random() < 0.5
    if chance.random() < 0.3:
        body["stop"] = ["a", "e"]
    if number % 20 == 13:
        body["temperature"] = -1
    if chance.random() < 0.5:
        body["messages"] = [{"role": "user", "content": "hello " * chance.choice([1, 30, 100])}]
        return CHAT, body, 1
    prompt = chance.choice(["hi", "word " * 150, ["a", "b"], ["hello " * 80] * 3])
    return TEXT, body | {"prompt": prompt}, len(prompt) if isinstance(prompt, list) else 1


async def ask(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any], list[str]]:
    """Status, usage, and the choices' finish reasons."""
    if body["stream"]:
        body = body | {"stream_options": {"include_usage": True}}
    reply = await client.post(path, json=body)
    if reply.status_code != 200:
        return reply.status_code, {}, []
    if not body["stream"]:
        whole = reply.json()
        return 200, whole["usage"], [choice["finish_reason"] for choice in whole["choices"]]
    chunks = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    return 200, chunks[-1]["usage"], reasons


async def test_every_figure_is_what_clients_counted(start_server: StartServer, tiny_model_dir: Path) -> None:
    server = start_server(tiny_model_dir, "--max-ctx", "2048", "--slots", "8", "--served-model-name", "m")
    chance = random.Random(3)
    seen: Counter[str] = Counter()
    statuses: Counter[tuple[str, str]] = Counter()
    limits = httpx.Limits(max_connections=24)
    async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits) as client:

        async def one(number: int) -> None:
            path, body, n_prompts = request_of(chance, number)
            status, usage, reasons = await ask(client, path, body)
            statuses[path, str(status)] += 1
            if status != 200:
                return
            assert len(reasons) == n_prompts * body["n"]
            seen.update(reasons)
            seen["replies"] += 1
            seen["requests"] += n_prompts
            seen["samples"] += len(reasons)
            seen["n"] += n_prompts * body["n"]
            seen["max_tokens"] += n_prompts * body["max_tokens"]
            seen["prompt"] += usage["prompt_tokens"]
            seen["cached"] += usage["prompt_tokens_details"]["cached_tokens"]
            seen["generated"] += usage["completion_tokens"]

        await asyncio.gather(*(one(number) for number in range(160)))
        assert seen["stop"] > 5 and seen["length"] > 50 and seen["cached"] > 0 and statuses[TEXT, "400"] > 0
        # one that leaves: its samples are aborted, and all it held is given back
        async with client.stream(
            "POST", TEXT, json={"prompt": "x", "n": 3, "max_tokens": 1900, "ignore_eos": True, "stream": True}
        ) as left:
            async for _ in left.aiter_lines():
                break
        for _ in range(3000):
            figures = await scrape(client)
            if not any(
                figures[f"qwen3_{name}", frozenset({("model_name", "m")})]
                for name in ("generations_running", "requests_running", "requests_waiting", "kv_blocks_used")
            ):
                break
            await asyncio.sleep(0.05)

    ours = frozenset({("model_name", "m")})
    theirs = ours | {("engine", "0")}

    def figure(name: str, **labels: str) -> float:
        """Under our name where it has no prefix, else under vLLM's."""
        common = theirs if name.startswith("vllm:") else ours if name.startswith("qwen3_") else frozenset()
        return figures[name, common | frozenset(labels.items())]

    aborted = figure("vllm:request_success_total", finished_reason="abort")
    assert 0 <= aborted <= 3
    ended = 3 - aborted  # of the one that left
    reasons = {name: figure("vllm:request_success_total", finished_reason=name) for name in ("stop", "length", "error")}
    assert reasons["stop"] == seen["stop"] and reasons["error"] == 0
    assert reasons["length"] == seen["length"] + ended
    # the one that left had a prompt of one token and one request of three samples
    assert figure("vllm:prompt_tokens_total") == figure("vllm:request_prompt_tokens_sum") == seen["prompt"] + 1
    assert figure("vllm:request_prompt_tokens_count") == seen["requests"] + 1
    assert figure("qwen3_cached_tokens_total") == seen["cached"]
    assert figure("vllm:request_generation_tokens_count") == seen["samples"] + 3
    left_tokens = figure("vllm:request_generation_tokens_sum") - seen["generated"]
    assert 0 < left_tokens <= 3 * 1900
    assert figure("vllm:generation_tokens_total") >= seen["generated"] + left_tokens  # and some behind stop strings
    assert figure("vllm:request_params_n_sum") == seen["n"] + 3
    assert figure("vllm:request_params_max_tokens_sum") == seen["max_tokens"] + 1900
    n_requests = seen["requests"] + 1
    for name in ("params_n", "params_max_tokens", "max_num_generation_tokens", "queue_time_seconds"):
        assert figure(f"vllm:request_{name}_count") == n_requests, name
    for name in ("e2e_request_latency", "time_to_first_token", "request_prefill_time", "request_inference_time"):
        assert figure(f"vllm:{name}_seconds_count") == n_requests, name
    # every prompt was looked for in the cache once, but for samples that began after their siblings had ended
    looked_up, found = figure("vllm:prefix_cache_queries_total"), figure("vllm:prefix_cache_hits_total")
    assert looked_up >= seen["prompt"] + 1 and seen["cached"] <= found <= looked_up
    assert looked_up - found >= seen["prompt"] - seen["cached"]
    parts = [
        figure(f"vllm:{name}_seconds_sum")
        for name in ("e2e_request_latency", "request_queue_time", "request_prefill_time", "request_decode_time")
    ]
    assert parts[0] >= sum(parts[1:]) * 0.999 and all(part > 0 for part in parts)
    assert figure("vllm:kv_cache_usage_perc") == figure("vllm:num_requests_running") == 0
    assert figure("vllm:num_requests_waiting") == figure("qwen3_kv_blocks_used") == 0
    assert figure("qwen3_kv_blocks_free") + figure("qwen3_kv_blocks_cached") == figure("qwen3_kv_blocks")
    assert figure("vllm:iteration_tokens_total_sum") == figure("qwen3_computed_tokens_total")
    assert figure("vllm:iteration_tokens_total_count") == figure("qwen3_engine_steps_total")
    for (path, status), n in statuses.items():
        extra = 1 if (path, status) == (TEXT, "200") and not aborted else 0  # it may have ended before it left
        assert n <= figure("http_requests_total", handler=path, method="POST", status=status) <= n + extra
    for path in (CHAT, TEXT):
        n = sum(count for (asked, _), count in statuses.items() if asked == path)
        assert figure("http_request_duration_seconds_count", handler=path, method="POST") == n + (path == TEXT)
    assert server.stop() == 0
    assert '"level":"error"' not in server.log and '"level":"warning"' not in server.log
