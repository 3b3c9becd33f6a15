"""What all routes share: errors, keys, limits, health, metrics, logs, disconnects, the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import socket
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import odd_compiler
import pytest
from fake_engine import FakeEngine, Reply, endless, make_info
from patience import PATIENCE, until
from serving import FakeLoader, TestServer, TextParts, events_of, make_model, serving

from qwen3app.abi import FinishCode
from qwen3app.compiler import process
from qwen3app.errors import ModelError, UsageError
from qwen3app.guards import GuardSettings
from qwen3app.runtime import Runtime
from qwen3app.server import main
from qwen3app.server.access_log import RECORD_KEY, AccessLog, HttpObservations, Log, Record
from qwen3app.server.listener import bind
from qwen3app.server.metrics import _COUNTERS, _GAUGES, _HISTOGRAMS

_MAX_HEAD_BYTES = GuardSettings().max_head_kb * 1024


def says(parts: TextParts, text: str) -> Reply:
    ids = [*parts.tokenizer.encode_raw(text), parts.tokenizer.eos_ids[-1]]
    return lambda request, sample: ids


def error_of(response: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"].endswith(".") and isinstance(error["type"], str)
    return error


async def test_models(text_parts: TextParts) -> None:
    async with serving(make_model(text_parts, FakeEngine(says(text_parts, "a")))) as server:
        listed = (await server.client.get("/v1/models")).json()
        assert listed["object"] == "list" and [model["id"] for model in listed["data"]] == ["fake"]
        assert listed["data"][0]["max_model_len"] == 512 and listed["data"][0]["owned_by"]
        assert (await server.client.get("/v1/models/fake")).json() == listed["data"][0]
        for path in ("/v1/models/other", "/v1/models/Qwen/Qwen3-8B"):
            response = await server.client.get(path)
            assert (response.status_code, error_of(response)["code"]) == (404, "model_not_found")
        response = await server.chat({"model": "gpt-4"})
        assert (response.status_code, error_of(response)["param"]) == (404, "model")
        for name in ("", None, "fake"):
            assert (await server.chat({"model": name})).status_code == 200
        assert (await server.client.get("/version")).json()["version"]


async def test_names_with_slashes(text_parts: TextParts) -> None:
    async with serving(make_model(text_parts, FakeEngine()), served_model_name="Qwen/Qwen3-8B") as server:
        assert (await server.client.get("/v1/models/Qwen/Qwen3-8B")).json()["id"] == "Qwen/Qwen3-8B"


@pytest.mark.parametrize(
    ("path", "name"), [("/v1/chat/completions", "messages"), ("/v1/completions", "prompt"), ("/detokenize", "tokens")]
)
async def test_b69_a_missing_field_is_called_missing(text_parts: TextParts, path: str, name: str) -> None:
    async with serving(make_model(text_parts, FakeEngine())) as server:
        error = error_of(await server.post(path, {}))
        assert error["message"].startswith(f"{name} is missing; send ") and error["message"].endswith(".")
        assert (error["param"], error["code"]) == (name, "missing_required_parameter")
        null = error_of(await server.post(path, {name: None}))
    assert null["param"] == name and "is missing" not in null["message"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"nonsense", "invalid character (byte 4)."),
        (b"{", "input data was truncated."),
        (b'{"model": "\xff"}', "invalid UTF-8 encoded string."),
        (
            b'{"x": "\\ud800' + b" " * 300_000 + b'"}',
            "unexpected end of hex escape (byte 13); escapes like \\ud800 must come in pairs.",
        ),
    ],
)
async def test_b69_what_is_no_json_is_said_once(text_parts: TextParts, content: bytes, reason: str) -> None:
    async with serving(make_model(text_parts, FakeEngine())) as server:
        error = error_of(await server.client.post("/detokenize", content=content))
    assert error["message"] == f"The body is not valid JSON: {reason}" and error["code"] == "invalid_json"


async def test_b69_bodies_that_are_no_requests(text_parts: TextParts) -> None:
    async with serving(
        make_model(text_parts, FakeEngine(says(text_parts, "a"))), guards=GuardSettings(max_body_mb=0.1)
    ) as server:
        path = "/v1/chat/completions"
        for content in (
            b"",
            b"{",
            b"nonsense",
            b'{"messages": "\xff\xfe"}',
            b'{"messages":1}x',
            b'{"messages":[{"role":"us',
        ):
            response = await server.client.post(path, content=content, headers={"content-type": "application/json"})
            assert (response.status_code, error_of(response)["code"]) == (400, "invalid_json"), content
        for content in (b"[]", b"null", b"5"):
            response = await server.client.post(path, content=content)
            assert (response.status_code, error_of(response)["code"]) == (400, "invalid_type")
        deep = b'{"x":' + b"[" * 40_000 + b"]" * 40_000 + b"}"
        assert (await server.client.post(path, content=deep)).status_code == 400
        response = await server.client.post(path, content=b"x" * 200_000)
        assert (response.status_code, error_of(response)["code"]) == (413, "request_too_large")

        async def chunked() -> Any:
            for _ in range(30):
                yield b"x" * 10_000

        assert (await server.client.post(path, content=chunked())).status_code == 413
        for kind in ("text/xml", "multipart/form-data; boundary=x"):
            response = await server.client.post(path, content=b"{}", headers={"content-type": kind})
            assert response.status_code == 415 and error_of(response)
        good = json.dumps({"messages": [{"role": "user", "content": "x"}]}).encode()
        for kind in ("application/json; charset=utf-8", "application/x-www-form-urlencoded", "application/vnd.x+json"):
            response = await server.client.post(path, content=good, headers={"content-type": kind})
            assert response.status_code == 200, kind
        assert (await server.client.post(path, content=good)).status_code == 200  # no content type at all


async def test_unknown_routes_and_methods(text_parts: TextParts) -> None:
    async with serving(make_model(text_parts, FakeEngine())) as server:
        for path in ("/nope", "/v1/chat", "/V1/models", "/v1/completions/x"):
            response = await server.client.get(path)
            assert response.status_code == 404 and error_of(response)["code"] == "not_found"
        for path in ("/v1/responses", "/v1/embeddings"):
            response = await server.client.post(path, json={"model": "fake", "input": "hi"})
            assert response.status_code == 404
            assert "this server has /v1/chat/completions" in error_of(response)["message"]
        response = await server.client.delete("/v1/models")
        assert response.status_code == 405 and error_of(response)["code"] == "method_not_allowed"
        assert (await server.client.get("/v1/chat/completions")).status_code == 405
        assert (await server.client.head("/health")).status_code == 200
        head = await server.client.head("/v1/models")
        assert head.status_code == 200 and head.content == b""


async def test_b74_every_route_needs_the_key(text_parts: TextParts) -> None:
    model = make_model(text_parts, FakeEngine(says(text_parts, "a")))
    async with serving(model, guards=GuardSettings(api_keys=("s3cret",))) as server:
        routes = [
            ("POST", "/v1/chat/completions"),
            ("POST", "/v1/completions"),
            ("GET", "/v1/models"),
            ("GET", "/v1/models/fake"),
            ("POST", "/tokenize"),
            ("POST", "/detokenize"),
            ("GET", "/metrics"),
            ("GET", "/status"),
            ("GET", "/static/nothing.js"),
            ("GET", "/nope"),
            ("GET", "//v1/models"),
            ("GET", "/V1/models"),
            ("GET", "/v1/models/"),
            ("GET", "/health/"),
            ("GET", "/%68ealth/../v1/models"),
            ("HEAD", "/v1/models"),
            ("OPTIONS", "/v1/models"),
        ]
        bad: list[dict[str, str]] = [
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": "Basic s3cret"},
            {"authorization": "Bearer"},
            {"x-api-key": "wrong"},
            {"x-api-key": ""},
        ]
        for method, path in routes:
            for headers in bad:
                response = await server.client.request(method, path, headers=headers)
                assert response.status_code == 401, (method, path, headers)
                if method != "HEAD":
                    assert error_of(response)["code"] == "invalid_api_key"
        for headers in (
            {"authorization": "Bearer s3cret"},
            {"authorization": "bearer s3cret"},
            {"x-api-key": "s3cret"},
        ):
            assert (await server.client.get("/v1/models", headers=headers)).status_code == 200
        for path in ("/health", "/healthz", "/readyz"):
            assert (await server.client.get(path)).status_code == 200
    async with serving(
        make_model(text_parts, FakeEngine()), guards=GuardSettings(api_keys=("s3cret",), open_metrics=True)
    ) as server:
        assert (await server.client.get("/metrics")).status_code == 200
        assert (await server.client.get("/v1/models")).status_code == 401


@pytest.mark.parametrize(
    ("method", "path", "handler"),
    [
        ("POST", "/v1/chat/completions", "/v1/chat/completions"),
        ("GET", "/v1/models/Qwen/Qwen3-8B", "/v1/models/{model_id}"),
        ("GET", "/static/main.js", "/static/{name}"),
        ("HEAD", "/v1/models", "/v1/models"),
        ("OPTIONS", "/tokenize", "/tokenize"),
        ("GET", "/v1//models/", "/v1/models"),
        ("DELETE", "/v1/completions", "/v1/completions"),
        ("GET", "/nope", "other"),
        ("POST", "/v1/chat", "other"),
    ],
)
async def test_what_no_route_answers_counts_for_the_route_that_was_asked(
    text_parts: TextParts, method: str, path: str, handler: str
) -> None:
    """Without a key, without a model, with another method: as the answers of the route itself."""
    loader = FakeLoader(None)
    async with serving(None, loader, guards=GuardSettings(api_keys=("k",))) as server:
        statuses = [401, 503]
        if path.startswith("/static"):  # a file of the page needs neither
            statuses = [200, 200]
        for headers, status in zip(({}, {"x-api-key": "k"}), statuses, strict=True):
            assert (await server.client.request(method, path, headers=headers)).status_code == status
        await until(lambda: server.life.state.http.n_open == 0)
        counted = server.life.state.http.requests
        assert counted == Counter((handler, method, str(status)) for status in statuses)
    async with serving(make_model(text_parts, FakeEngine())) as server:
        status = (await server.client.request("PATCH", path)).status_code
        assert status == (404 if handler == "other" else 405)
        await until(lambda: server.life.state.http.n_open == 0)
        assert server.life.state.http.requests == Counter([(handler, "PATCH", str(status))])


async def test_loading(text_parts: TextParts) -> None:
    loader = FakeLoader(None)
    async with serving(None, loader) as server:
        assert (await server.client.get("/healthz")).status_code == 200
        assert (await server.client.get("/readyz")).status_code == 503
        health = await server.client.get("/health")
        assert health.status_code == 503
        assert health.json() == {"status": "loading", "phase": "weights", "done": 1, "total": 4, "progress": 0.25}
        loading = await server.client.get("/metrics")
        assert loading.status_code == 200 and "\nqwen3_up 0.0\n" in loading.text and "vllm:" not in loading.text
        for path in ("/v1/models", "/nope"):
            response = await server.client.get(path)
            assert (response.status_code, error_of(response)["code"]) == (503, "model_loading")
            assert int(response.headers["retry-after"]) > 0
        loader._model = make_model(text_parts, FakeEngine())
        loader.ready.set()
        await until(lambda: server.life.state.serving is not None)
        assert (await server.client.get("/health")).json() == {"status": "ok", "model": "fake"}
        loaded = (await server.client.get("/metrics")).text
        assert "\nqwen3_up 1.0\n" in loaded and "\nvllm:num_requests_running{" in loaded


async def test_a_model_that_cannot_be_loaded_ends_the_server(capfd: pytest.CaptureFixture[str]) -> None:
    loader = FakeLoader(None, ModelError("models/x has no config.json."))
    async with serving(None, loader) as server:
        loader.ready.set()
        with pytest.raises(ModelError, match=r"config\.json"):
            await asyncio.wait_for(asyncio.shield(server.task), PATIENCE)
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [line["message"] for line in lines if line["event"] == "failed"] == ["models/x has no config.json."]


async def test_a_runtime_that_cannot_start_ends_the_server(
    text_parts: TextParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start(_: Runtime) -> None:
        raise OSError("no more eventfds")

    monkeypatch.setattr(Runtime, "start", start)
    loader = FakeLoader(None)
    async with serving(None, loader) as server:
        loader._model = make_model(text_parts, FakeEngine())
        loader.ready.set()
        with pytest.raises(OSError, match="no more eventfds"):
            await asyncio.wait_for(asyncio.shield(server.task), PATIENCE)
        assert server.life.state.failure == "no more eventfds"


async def open_raw(
    server: TestServer, path: str, body: dict[str, Any]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    data = json.dumps(body).encode()
    writer.write(f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
    await writer.drain()
    return reader, writer


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("wait", [0.0, 0.01, 0.1])
async def test_b86_a_client_that_leaves_frees_its_slot(text_parts: TextParts, stream: bool, wait: float) -> None:
    engine = endless()
    async with serving(make_model(text_parts, engine)) as server:
        body = {"messages": [{"role": "user", "content": "x"}], "stream": stream, "ignore_eos": True}
        _, writer = await open_raw(server, "/v1/chat/completions", body)
        await asyncio.sleep(wait)
        writer.close()
        await until(lambda: engine.requests and not engine.open_samples)
        serving_now = server.life.state.serving
        assert serving_now is not None
        await until(lambda: serving_now.runtime.n_active == 0 and server.life.state.http.n_open == 0)
        assert engine.cancelled == [(1, -1)]
        assert (await server.client.get("/health")).status_code == 200


async def test_b89_engine_failure(text_parts: TextParts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "FAILED_SECONDS", 10 * PATIENCE)
    engine = endless()
    async with serving(make_model(text_parts, engine)) as server:
        streamed = asyncio.create_task(server.chat({"stream": True, "ignore_eos": True}))
        plain = asyncio.create_task(server.chat({"ignore_eos": True}))
        serving_now = server.life.state.serving
        assert serving_now is not None
        observations = serving_now.runtime.observations
        await until(lambda: len(engine.requests) == 2 and observations.write_delay.count)  # the stream has begun
        engine.fail()
        events = [line for line in (await streamed).text.split("\n\n") if line]
        last = json.loads(events[-1].removeprefix("data: "))
        assert last["error"]["code"] == "generation_failed" and "[DONE]" not in events
        assert all(json.loads(line[6:])["choices"][0]["finish_reason"] is None for line in events[:-1])
        response = await plain
        assert (response.status_code, error_of(response)["code"]) == (500, "generation_failed")
        health = await server.client.get("/health")
        assert health.status_code == 503 and health.json()["status"] == "failed"
        for path in ("/healthz", "/readyz"):
            assert (await server.client.get(path)).status_code == 503
        response = await server.chat({})
        assert (response.status_code, error_of(response)["code"]) == (503, "engine_failed")
        failed = (await server.client.get("/metrics")).text
        assert "\nqwen3_up 0.0\n" in failed
        assert '\nqwen3_samples_finished_total{finished_reason="error",model_name="fake"} 2.0\n' in failed


async def test_b89_a_failed_server_ends_by_itself(text_parts: TextParts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "FAILED_SECONDS", 0.05)
    engine = FakeEngine()
    async with serving(make_model(text_parts, engine)) as server:
        engine.fail()
        assert await asyncio.wait_for(asyncio.shield(server.task), PATIENCE) == 1


async def test_health_notices_a_device_that_died_while_idle(text_parts: TextParts) -> None:
    engine = FakeEngine()
    async with serving(make_model(text_parts, engine)) as server:
        engine.failed = True
        assert (await server.client.get("/health")).status_code == 503


async def test_drain(text_parts: TextParts) -> None:
    engine = FakeEngine()
    async with serving(make_model(text_parts, engine), drain_seconds=PATIENCE) as server:
        running = asyncio.create_task(server.chat({"stream": True}))
        await until(lambda: engine.requests)
        engine.emit(1, 0, text_parts.tokenizer.encode_raw("one two three"))
        server.life._on_signal(signal.SIGTERM)
        health = await server.client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "draining")
        assert (await server.client.get("/healthz")).status_code == 200  # nobody should start it anew
        assert "\nqwen3_up 0.0\n" in (await server.client.get("/metrics")).text
        refused = await server.chat({})
        assert (refused.status_code, error_of(refused)["code"]) == (503, "shutting_down")
        engine.emit(1, 0, text_parts.tokenizer.encode_raw(" four five"))
        engine.finish(1, 0, FinishCode.STOP)
        chunks = events_of((await running).text)
        assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "one two three four five"
        assert await asyncio.wait_for(asyncio.shield(server.task), PATIENCE) == 0
    assert engine.closed


async def test_drain_ends_what_is_being_compiled_and_nothing_else(
    text_parts: TextParts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "child_command", lambda: odd_compiler.COMMAND)
    engine = FakeEngine()
    async with serving(make_model(text_parts, engine), drain_seconds=PATIENCE) as server:
        assert server.life.state.serving is not None
        server.life.state.serving.runtime.constraints._compilers._seconds = 4 * PATIENCE
        running = asyncio.create_task(server.chat({}))
        await until(lambda: engine.requests)
        compiling = asyncio.create_task(server.chat({"guided_regex": f"hangs {tmp_path}/begun"}))
        await until((tmp_path / "begun").exists)
        server.life._on_signal(signal.SIGTERM)
        refused = await compiling
        assert (refused.status_code, error_of(refused)["code"]) == (503, "shutting_down")
        assert not running.done()
        engine.finish(1, 0, FinishCode.STOP)
        assert (await running).status_code == 200
        assert await asyncio.wait_for(asyncio.shield(server.task), PATIENCE) == 0


async def test_drain_has_a_limit(text_parts: TextParts) -> None:
    engine = endless()
    async with serving(make_model(text_parts, engine), drain_seconds=0.2) as server:
        running = asyncio.create_task(server.chat({"stream": True}))
        plain = asyncio.create_task(server.chat({}))
        await until(lambda: len(engine.open_samples) == 2)
        server.life._on_signal(signal.SIGTERM)
        last = json.loads((await running).text.strip().rpartition("data: ")[2])
        assert (last["error"]["code"], last["error"]["type"]) == ("shutting_down", "service_unavailable_error")
        refused = await plain  # half an answer is none
        assert (refused.status_code, error_of(refused)["code"]) == (503, "shutting_down")
        assert int(refused.headers["retry-after"]) > 0
        assert await asyncio.wait_for(asyncio.shield(server.task), PATIENCE) == 0


async def test_a_second_signal_ends_at_once(text_parts: TextParts) -> None:
    engine = endless()
    async with serving(make_model(text_parts, engine), drain_seconds=10 * PATIENCE) as server:
        running = asyncio.create_task(server.chat({}))
        await until(lambda: engine.requests)
        server.life._on_signal(signal.SIGTERM)
        server.life._on_signal(signal.SIGINT)
        assert await asyncio.wait_for(asyncio.shield(server.task), PATIENCE) == 128 + signal.SIGINT
        running.cancel()


async def test_metrics(text_parts: TextParts) -> None:
    engine = FakeEngine(says(text_parts, "one two three"), make_info(coded_bytes=3_000_000), step=0.002)
    async with serving(make_model(text_parts, engine)) as server:
        await server.chat({"stream": True, "max_tokens": 50})
        await server.client.get("/nope")
        await until(lambda: server.life.state.http.n_open == 0)
        response = await server.client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    text = response.text
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    n_tokens = len(text_parts.tokenizer.encode_raw("one two three")) + 1
    for prefix, engine in (("qwen3_", ""), ("vllm:", 'engine="0",')):
        labels = f'{{{engine}model_name="fake"}}'
        assert float(samples[f"{prefix}generation_tokens_total{labels}"]) == n_tokens
        assert float(samples[f"{prefix}time_to_first_token_seconds_count{labels}"]) == 1
        assert float(samples[f"{prefix}inter_token_latency_seconds_count{labels}"]) == n_tokens - 1
    # the fake engine counts two steps of one row and one of two
    steps = [value for name, value in samples.items() if name.startswith("vllm:iteration_tokens_total_bucket")]
    assert [float(value) for value in steps] == [2.0] + [3.0] * 16
    assert samples['vllm:request_success_total{engine="0",finished_reason="stop",model_name="fake"}'] == "1.0"
    assert samples['vllm:request_success_total{engine="0",finished_reason="abort",model_name="fake"}'] == "0.0"
    assert float(samples['vllm:kv_cache_usage_perc{engine="0",model_name="fake"}']) == 0
    assert samples['http_requests_total{handler="/v1/chat/completions",method="POST",status="200"}'] == "1.0"
    assert samples['http_requests_total{handler="other",method="GET",status="404"}'] == "1.0"
    for name, size in (("weight", 3_935_744), ("coded_weight", 3_000_000), ("kv", 4_194_304), ("workspace", 1_000_000)):
        assert float(samples[f'qwen3_{name}_bytes{{model_name="fake"}}']) == size
    assert "vllm:cache_config_info{" in text and "process_resident_memory_bytes" in text
    for table in (_GAUGES, _COUNTERS, _HISTOGRAMS):
        for names in table.values():
            for name in (f"qwen3_{names.ours}", *(f"vllm:{alias}" for alias in names.vllm)):
                assert f"# TYPE {name}" in text, name
    # what dashboards and autoscalers ask for by name (cases, section 3)
    for name in (
        "e2e_request_latency_seconds",
        "num_requests_running",
        "num_requests_waiting",
        "request_queue_time_seconds",
        "request_prefill_time_seconds",
        "request_decode_time_seconds",
        "request_inference_time_seconds",
        "request_max_num_generation_tokens",
        "request_prompt_tokens",
        "request_generation_tokens",
        "prefix_cache_queries_total",
        "prefix_cache_hits_total",
        "num_preemptions_total",
        "request_params_n",
        "request_params_max_tokens",
        "time_per_output_token_seconds",
        "gpu_cache_usage_perc",
        "iteration_tokens_total",
    ):
        assert f"vllm:{name}" in text, name


async def test_one_json_line_per_request(text_parts: TextParts, capfd: pytest.CaptureFixture[str]) -> None:
    engine = FakeEngine(says(text_parts, "one two three"), step=0.002)
    async with serving(make_model(text_parts, engine)) as server:
        await server.chat({}, headers={"x-request-id": "mine"})
        refused = await server.chat({"temperature": -1}, headers={b"x-request-id": b"bad\xe9id"})
        await server.client.get("/health")
        for long_id in ("x" * 129, "x" * 128):
            response = await server.client.get("/v1/models", headers={"x-request-id": long_id})
            assert (response.headers["x-request-id"] == long_id) == (len(long_id) == 128)
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    requests = [line for line in lines if line["event"] == "request"]
    assert len(requests) == 4  # the health check is silent at this level
    first = requests[0]
    assert (first["request_id"], first["route"], first["status"]) == ("mine", "/v1/chat/completions", 200)
    assert first["client"] == "127.0.0.1" and first["finish_reason"] == "stop" and first["cached_tokens"] == 3
    assert first["prompt_tokens"] > 0 and first["ttft_seconds"] >= 0 and first["tokens_per_second"] > 0
    assert requests[1]["status"] == 400 and len(requests[1]["request_id"]) == 32
    assert requests[1]["error"] == refused.json()["error"]["message"] and "error" not in first
    events = [line["event"] for line in lines]
    assert [event for event in events if event in ("listening", "ledger", "ready", "stopped")] == [
        "listening",
        "ledger",
        "ready",
        "stopped",
    ]
    ledger = next(line for line in lines if line["event"] == "ledger")
    assert ledger["kv_tokens"] == 64 * 32 and ledger["kv_full_requests"] == 4
    assert "weights 3.8 MiB" in ledger["message"] and "GB" not in ledger["message"]
    assert ledger["template"].endswith("chat_template.jinja")
    seconds = ledger["start_seconds"]
    assert list(seconds) == ["program", "ids", "weights", "listen", "total"] and seconds["program"] == 0.25
    assert sum(seconds.values()) == pytest.approx(2 * seconds["total"], abs=0.01)


def test_a_terminal_that_shows_the_log_obeys_no_client(capfd: pytest.CaptureFixture[str]) -> None:
    said = "\x9b2J\u202e\x1b[31m\u2028日\udce9"
    Log("info").write("request", error=said, seconds=0.5)
    line = capfd.readouterr().err
    assert line.isascii() and "\x1b" not in line and line.count("\n") == 1 and '"event":"request"' in line
    assert json.loads(line)["error"] == said


async def test_bugs_are_500_without_details(text_parts: TextParts, capfd: pytest.CaptureFixture[str]) -> None:
    engine = FakeEngine()
    async with serving(make_model(text_parts, engine)) as server:
        engine.submit = lambda request: 1 / 0  # type: ignore[method-assign,assignment,return-value]
        response = await server.chat({})
        assert (response.status_code, error_of(response)["code"]) == (500, "internal_error")
        assert "ZeroDivision" not in response.text
        engine.stats = lambda: 1 / 0  # type: ignore[method-assign,assignment,return-value]
        assert (await server.client.get("/metrics")).status_code == 500
    assert "ZeroDivisionError" in capfd.readouterr().err


async def test_a_bug_in_mid_stream_breaks_the_stream_off(text_parts: TextParts) -> None:
    engine = endless()
    async with serving(make_model(text_parts, engine)) as server:
        body = {"messages": [{"role": "user", "content": "x"}], "stream": True}
        with pytest.raises(httpx.RemoteProtocolError):
            async with server.client.stream("POST", "/v1/chat/completions", json=body) as response:
                serving_now = server.life.state.serving
                assert serving_now is not None
                (generation,) = serving_now.runtime._active
                generation._collect = lambda: 1 / 0  # type: ignore[method-assign,assignment,return-value]
                await response.aread()
        await until(lambda: not engine.open_samples)


def test_ports_and_addresses() -> None:
    with bind("127.0.0.1", 0) as taken, pytest.raises(UsageError, match="is in use"):
        bind("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(UsageError, match="no address of this machine"):
        bind("192.0.2.1", 0)
    with pytest.raises(UsageError, match="cannot be resolved"):
        bind("no such host", 0)
    if socket.has_ipv6:
        with bind("::1", 0) as six:
            assert six.family == socket.AF_INET6


@pytest.mark.parametrize("content", [b'{"messages":', b""])
async def test_a_client_that_leaves_while_it_sends(
    text_parts: TextParts, content: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    async with serving(make_model(text_parts, FakeEngine())) as server:
        _, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n" + content)
        await writer.drain()
        await until(lambda: server.life.state.http.n_open == 1)
        writer.close()
        await until(lambda: server.life.state.http.n_open == 0)
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert not any(line["level"] == "error" for line in lines)
    assert [line["status"] for line in lines if line["event"] == "request"] == [499]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_client_that_leaves_while_its_constraint_is_compiled_frees_the_process(
    text_parts: TextParts,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(process, "child_command", lambda: odd_compiler.COMMAND)
    engine = FakeEngine()
    async with serving(make_model(text_parts, engine)) as server:
        assert server.life.state.serving is not None
        constraints = server.life.state.serving.runtime.constraints
        compilers = constraints._compilers
        compilers._seconds = 4 * PATIENCE
        body = {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi"}
        content = json.dumps({**body, "guided_regex": f"hangs {tmp_path}/begun"}).encode()
        _, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (path.encode(), len(content)))
        writer.write(content)
        await until((tmp_path / "begun").exists)
        assert len(compilers._all) == 1
        writer.close()
        await until(lambda: not compilers._all and not constraints._n_waiting and not server.life.state.http.n_open)
        assert not engine.requests
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert not any(line["level"] in ("warning", "error") for line in lines)
    (line,) = [line for line in lines if line["event"] == "request"]
    assert line["status"] == 499 and line["error"] == "The client left before its answer began."


async def test_a_socket_that_closes_under_the_reply_is_a_client_that_left(capfd: pytest.CaptureFixture[str]) -> None:
    n_received = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> Any:
        nonlocal n_received
        n_received += 1
        if n_received == 1:
            return {"type": "http.request", "body": b"", "more_body": False}
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")

    observations = HttpObservations()
    log = AccessLog(app, Log("info"), observations, lambda path: None)
    scope = {"type": "http", "method": "GET", "path": "/x", "headers": [], "client": None}
    scope[RECORD_KEY] = Record("id")
    await log(scope, receive, send)
    (line,) = [json.loads(each) for each in capfd.readouterr().err.splitlines()]
    assert line["status"] == 499
    assert observations.requests["other", "GET", "499"] == 1 and observations.n_open == 0


@pytest.mark.parametrize("chunk", [b"x-more: " + b"a" * 8000 + b"\r\n", b"a" * 8000], ids=["headers", "one header"])
async def test_a_head_without_end_is_cut_off(text_parts: TextParts, chunk: bytes) -> None:
    async with serving(make_model(text_parts, FakeEngine(says(text_parts, "a")))) as server:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\nx-first: ")
        with contextlib.suppress(ConnectionError):
            for _ in range(2 * _MAX_HEAD_BYTES // len(chunk)):
                writer.write(chunk)
                await writer.drain()
        with contextlib.suppress(ConnectionError):  # what it had sent may meet a closed socket
            assert b"431 Request Header Fields Too Large" in await reader.read()
        writer.close()
        # a long head, and a body far beyond the head's bound on the same connection, are fine
        headers = {"x-long": "a" * (_MAX_HEAD_BYTES // 2)}
        body = {"prompt": "hi", "user": "a" * (2 * _MAX_HEAD_BYTES), "max_tokens": 1}
        assert (await server.post("/v1/completions", body, headers=headers)).status_code == 200
        assert (await server.client.get("/health", headers=headers)).status_code == 200


def test_a_reader_cut_off_at_the_end_is_no_bug(capfd: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        main._route_logging(Log("info"))
        for error in (asyncio.CancelledError(), ValueError("a bug")):
            logging.getLogger("uvicorn.error").error("Exception in ASGI application", exc_info=error)
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1 and json.loads(lines[0])["level"] == "error"
