"""Cases from real life that need the whole server: what earlier requests left in the cache, and no network at all."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from patience import PATIENCE
from served import ROOT, RealServer, StartServer, wait_for

BLOCK = 32  # tokens of a KV block: what the prefix cache shares


def complete(server: RealServer, prompt: str, **fields: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "temperature": 0, "max_tokens": 24, "ignore_eos": True} | fields
    reply = httpx.post(f"{server.url}/v1/completions", json=body, timeout=PATIENCE)
    assert reply.status_code == 200, reply.text
    result: dict[str, Any] = reply.json()
    return result


def test_b77_a_batch_that_ended_on_stop_strings_changes_no_later_text(
    start_server: StartServer, tiny_model_dir: Path
) -> None:
    prompts = [f"Question {i}: name a thing. Answer:" + " word" * (7 * i) for i in range(8)]
    cold = start_server(tiny_model_dir)
    expected = [complete(cold, prompt)["choices"][0]["text"] for prompt in prompts]
    cold.stop()

    warm = start_server(tiny_model_dir)
    for prompt, text in zip(prompts, expected, strict=True):
        stopped = complete(warm, prompt, stop=[text[4:6]])["choices"][0]
        assert stopped["finish_reason"] == "stop"
        assert text[4:6] not in stopped["text"]
    answers = [complete(warm, prompt) for prompt in prompts]
    assert [answer["choices"][0]["text"] for answer in answers] == expected
    assert any(answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0 for answer in answers)
    warm.stop()


def test_b36_the_second_turn_reuses_the_first_ones_prompt_with_thinking_off(real_server: RealServer) -> None:
    def ask(messages: list[dict[str, str]]) -> dict[str, Any]:
        body = {
            "messages": messages,
            "max_tokens": 16,
            "temperature": 0,
            "chat_template_kwargs": {"enable_thinking": False},
        }
        reply = httpx.post(f"{real_server.url}/v1/chat/completions", json=body, timeout=PATIENCE)
        assert reply.status_code == 200, reply.text
        result: dict[str, Any] = reply.json()
        return result

    first_turn = [{"role": "user", "content": "Tell me of the " + "quick brown fox and the lazy dog " * 12}]
    rendered = httpx.post(
        f"{real_server.url}/tokenize", json={"messages": first_turn, "add_generation_prompt": False}, timeout=PATIENCE
    ).json()
    answer = ask(first_turn)["choices"][0]["message"]["content"]
    second = ask([*first_turn, {"role": "assistant", "content": answer}, {"role": "user", "content": "And then?"}])
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert rendered["count"] > 2 * BLOCK
    assert cached >= rendered["count"] // BLOCK * BLOCK


def test_b81_keys_and_salts_keep_tenants_apart(start_server: StartServer, tiny_model_dir: Path) -> None:
    server = start_server(tiny_model_dir, "--api-key", "first", "--api-key", "second")
    prompt = "A prompt that fills some blocks of the cache. " * 12

    def cached(key: str, **fields: Any) -> int:
        body = {"prompt": prompt, "temperature": 0, "max_tokens": 1} | fields
        reply = httpx.post(f"{server.url}/v1/completions", json=body, headers={"x-api-key": key}, timeout=PATIENCE)
        assert reply.status_code == 200, reply.text
        return int(reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert cached("first") == 0 and cached("first") >= BLOCK
    assert cached("second") == 0 and cached("second") >= BLOCK
    assert cached("first", cache_salt="a") == 0 and cached("first", cache_salt="a") >= BLOCK
    assert cached("first", cache_salt="b") == 0 and cached("second", cache_salt="a") == 0
    server.stop()


@pytest.mark.skipif(shutil.which("unshare") is None or os.geteuid() != 0, reason="needs root and unshare")
def test_b102_a_local_model_needs_no_network(tiny_model_dir: Path) -> None:
    """In a network namespace without interfaces, not even loopback."""
    command = ["unshare", "--net", sys.executable, "-m", "qwen3app.cli", "chat", "--model", str(tiny_model_dir)]
    done = subprocess.run(
        [*command, "--once", "Hello", "--max-tokens", "4", "--temp", "0", "--kv-gb", "0.1"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "network" not in done.stderr.lower()


@pytest.mark.skipif(shutil.which("unshare") is None or os.geteuid() != 0, reason="needs root and unshare")
def test_b102_a_server_starts_without_a_network(tiny_model_dir: Path, tmp_path: Path) -> None:
    command = ["unshare", "--net", sys.executable, "-m", "qwen3app.cli", "serve", "--model", str(tiny_model_dir)]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--addr", "0.0.0.0:0", "--kv-gb", "0.1"],
            stderr=log,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            cwd=ROOT,
        )
    server = RealServer(process, "", tmp_path / "log")
    wait_for(server, '"event":"ready"')
    assert server.stop() == 0
    assert '"level":"warning"' not in server.log and '"level":"error"' not in server.log
