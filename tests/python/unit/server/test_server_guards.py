"""Keys and tenants, other origins, TLS, and limits of time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import select
import socket
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine, endless
from patience import PATIENCE, until
from served import ROOT
from serving import TestServer, TextParts, make_model, serving

from qwen3app.abi import FinishCode
from qwen3app.errors import UsageError
from qwen3app.guards import GuardSettings
from qwen3app.runtime.tenant import TENANT
from qwen3app.server.listener import tls_context

TLS = ROOT / "tests" / "data" / "tls"


def quick(text_parts: TextParts) -> FakeEngine:
    return FakeEngine(lambda request, sample: text_parts.tokenizer.encode_raw("ok"))


async def exchange(server: TestServer, data: bytes) -> bytes:
    """Sends bytes as they are and reads until the server closes."""
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(data)
    try:
        return await asyncio.wait_for(reader.read(), PATIENCE)
    finally:
        writer.close()


# ------------------------------------------------------------------------------------------------------------- keys


async def test_b74_any_of_several_keys_in_either_header(text_parts: TextParts) -> None:
    guards = GuardSettings(api_keys=("first", "second"))
    async with serving(make_model(text_parts, quick(text_parts)), guards=guards) as server:
        good: list[dict[str, str]] = [
            {"authorization": "Bearer first"},
            {"authorization": "BEARER   second"},
            {"x-api-key": "second"},
            # what clients send that speak to two kinds of API, one of the keys being a placeholder
            {"authorization": "Bearer none", "x-api-key": "first"},
            {"authorization": "Bearer first", "x-api-key": "none"},
            {"authorization": "Basic abc", "x-api-key": "first"},
        ]
        bad: list[dict[str, str]] = [
            {"authorization": "Bearer firstsecond"},
            {"authorization": "Bearer first,second"},
            {"authorization": "Bearer firs"},
            {"authorization": "first"},
            {"x-api-key": "Bearer first"},
            {"api-key": "first"},
            {"cookie": "x-api-key=first"},
        ]
        for headers in good:
            assert (await server.client.get("/v1/models", headers=headers)).status_code == 200, headers
        for headers in bad:
            response = await server.client.get("/v1/models", headers=headers)
            assert response.status_code == 401, headers
            assert response.headers["www-authenticate"] == "Bearer"
        assert (await server.client.get("/v1/models?api_key=first")).status_code == 401
        both = [("x-api-key", "none"), ("x-api-key", "second")]
        assert (await server.client.get("/v1/models", headers=both)).status_code == 200


async def test_b81_holders_of_different_keys_share_no_prefixes(text_parts: TextParts) -> None:
    engine = quick(text_parts)
    guards = GuardSettings(api_keys=("first", "second"))
    async with serving(make_model(text_parts, engine), guards=guards) as server:
        salts = []
        for key in ("first", "second", "first"):
            for body in ({}, {"cache_salt": "mine"}):
                assert (await server.chat(body, headers={"x-api-key": key})).status_code == 200
                salts.append(engine.requests[len(salts) + 1].cache_salt)
        first, first_mine, second, second_mine, *again = salts
        assert again == [first, first_mine]
        assert len({first, first_mine, second, second_mine}) == 4
        assert all("first" not in salt and "second" not in salt for salt in salts)
    assert TENANT.get() == ""  # nothing leaks out of the request's task


async def test_b81_an_answer_behind_a_closed_thought_is_its_tenants_too(text_parts: TextParts) -> None:
    """It is a second request to the engine, made outside of the HTTP request's context."""
    thought = text_parts.tokenizer.encode_raw("<think>\none two three four five six seven")
    engine = FakeEngine(lambda request, sample: thought, step=0.01)
    guards = GuardSettings(api_keys=("first", "second"))
    async with serving(make_model(text_parts, engine), guards=guards) as server:
        response = await server.chat({"thinking_budget": 3, "cache_salt": "mine"}, headers={"x-api-key": "second"})
        assert response.status_code == 200
        first, *others = engine.requests.values()
        assert others and all(request.cache_salt == first.cache_salt for request in others)
        assert first.cache_salt.endswith("mine") and len(first.cache_salt) > 30


@pytest.mark.parametrize("keys", [(), ("only",)])
async def test_b81_one_tenant_has_the_clients_salt_alone(text_parts: TextParts, keys: tuple[str, ...]) -> None:
    engine = quick(text_parts)
    async with serving(make_model(text_parts, engine), guards=GuardSettings(api_keys=keys)) as server:
        headers = {"x-api-key": "only"}
        await server.chat({}, headers=headers)
        await server.complete({"cache_salt": "mine"}, headers=headers)
        assert [request.cache_salt for request in engine.requests.values()] == ["", "mine"]


# ------------------------------------------------------------------------------------------------------------- CORS


async def test_pages_of_named_origins_may_ask(text_parts: TextParts) -> None:
    guards = GuardSettings(api_keys=("k",), cors_origins=("http://localhost:3000",))
    ours = {"origin": "http://localhost:3000"}
    async with serving(make_model(text_parts, quick(text_parts)), guards=guards) as server:
        asked = {
            **ours,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization, content-type, x-stainless-os",
            "access-control-request-private-network": "true",
        }
        preflight = await server.client.options("/v1/chat/completions", headers=asked)
        assert preflight.status_code == 204 and preflight.content == b""
        assert preflight.headers["access-control-allow-origin"] == ours["origin"]
        assert preflight.headers["access-control-allow-headers"] == asked["access-control-request-headers"]
        assert "POST" in preflight.headers["access-control-allow-methods"]
        assert preflight.headers["access-control-allow-private-network"] == "true"
        assert preflight.headers["vary"] == "Origin"
        for headers, status in (({**ours, "x-api-key": "k"}, 200), (ours, 401)):  # errors can be read too
            response = await server.client.get("/v1/models", headers=headers)
            assert response.status_code == status
            assert response.headers["access-control-allow-origin"] == ours["origin"]
            assert "x-request-id" in response.headers["access-control-expose-headers"]
            assert response.headers["vary"] == "Origin"
        streamed = await server.chat({"stream": True}, headers={**ours, "x-api-key": "k"})
        assert streamed.headers["access-control-allow-origin"] == ours["origin"] and streamed.status_code == 200
        for origin in ("http://localhost:3001", "https://localhost:3000", "http://localhost:3000.evil.org", "null"):
            response = await server.client.get("/v1/models", headers={"origin": origin, "x-api-key": "k"})
            assert response.status_code == 200 and "access-control-allow-origin" not in response.headers
            assert response.headers["vary"] == "Origin"
            asked_by = {"origin": origin, "access-control-request-method": "POST"}
            response = await server.client.options("/v1/models", headers=asked_by)
            assert response.status_code == 401 and "access-control-allow-origin" not in response.headers
        assert (await server.client.options("/v1/models", headers=ours)).status_code == 401  # no preflight


async def test_any_origin_and_none(text_parts: TextParts) -> None:
    asked = {"origin": "null", "access-control-request-method": "POST", "access-control-request-headers": 'x"<>'}
    async with serving(make_model(text_parts, FakeEngine()), guards=GuardSettings(cors_origins=("*",))) as server:
        preflight = await server.client.options("/v1/chat/completions", headers=asked)
        assert preflight.headers["access-control-allow-origin"] == "*" and "vary" not in preflight.headers
        assert "access-control-allow-headers" not in preflight.headers  # no names of headers
        assert "access-control-allow-credentials" not in preflight.headers
    async with serving(make_model(text_parts, FakeEngine())) as server:
        response = await server.client.get("/v1/models", headers=asked)
        assert response.status_code == 200
        assert not [name for name in response.headers if name.startswith("access-control")]


# -------------------------------------------------------------------------------------------------------------- TLS


async def test_https(text_parts: TextParts) -> None:
    guards = GuardSettings(tls_cert=TLS / "cert.pem", tls_key=TLS / "key.pem")
    async with serving(make_model(text_parts, quick(text_parts)), guards=guards) as server:
        trusted = ssl.create_default_context(cafile=str(TLS / "cert.pem"))
        url = f"https://127.0.0.1:{server.port}"
        async with httpx.AsyncClient(base_url=url, verify=trusted, timeout=PATIENCE) as client:
            assert (await client.get("/health")).json()["status"] == "ok"
            body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
            streamed = await client.post("/v1/chat/completions", json=body)
            assert streamed.status_code == 200 and streamed.text.endswith("data: [DONE]\n\n")
        with pytest.raises(httpx.HTTPError):
            await server.client.get("/health")  # plain HTTP


def test_wrong_tls_files_are_one_sentence(tmp_path: Path) -> None:
    nothing = tmp_path / "nothing.pem"
    nothing.write_text("hello")
    locked = tmp_path / "locked.pem"
    locked.write_text(LOCKED_KEY)
    for cert, key, sentence in (
        (tmp_path / "none.pem", TLS / "key.pem", "none.pem of --tls-cert cannot be read"),
        (TLS / "cert.pem", tmp_path / "none.pem", "none.pem of --tls-key cannot be read"),
        (nothing, TLS / "key.pem", "no certificate chain"),
        (TLS / "cert.pem", nothing, "no certificate chain"),
        (TLS / "key.pem", TLS / "key.pem", "no certificate chain"),
        (TLS / "cert.pem", locked, "has a passphrase"),
    ):
        with pytest.raises(UsageError, match=sentence):
            tls_context(GuardSettings(tls_cert=cert, tls_key=key))
    assert tls_context(GuardSettings()) is None


# ------------------------------------------------------------------------------------------------------------- times


async def test_a_request_may_take_so_long_and_no_longer(text_parts: TextParts) -> None:
    engine = endless()
    guards = GuardSettings(request_timeout=2.0)
    async with serving(make_model(text_parts, engine), guards=guards) as server:
        plain, streamed = await asyncio.gather(
            server.chat({"ignore_eos": True}), server.chat({"ignore_eos": True, "stream": True})
        )
        assert plain.status_code == 504
        assert plain.json()["error"]["code"] == "request_timeout" and plain.json()["error"]["type"] == "timeout_error"
        *chunks, last = [json.loads(line[6:]) for line in streamed.text.split("\n\n") if line]
        assert streamed.status_code == 200 and last["error"]["code"] == "request_timeout"
        assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
        await until(lambda: not engine.open_samples)
    async with serving(make_model(text_parts, endless()), guards=GuardSettings(request_timeout=PATIENCE)) as server:
        assert (await server.chat({"ignore_eos": True, "max_tokens": 3})).status_code == 200


async def test_the_time_of_a_request_runs_while_it_waits(text_parts: TextParts) -> None:
    engine = FakeEngine()
    async with serving(make_model(text_parts, engine), guards=GuardSettings(request_timeout=1.0)) as server:
        response = await server.chat({"n": 2})
        assert response.status_code == 504 and engine.cancelled == [(1, -1)]
        figures = (await server.client.get("/metrics")).text
        assert '\nqwen3_samples_finished_total{finished_reason="abort",model_name="fake"} 2.0\n' in figures


def drip(host: str, port: int) -> bytes:
    """Sends a body byte by byte until there is an answer, and returns it. A byte that meets a closed socket resets the
    connection; what had come before can still be read, which asyncio's streams do not do."""
    with socket.create_connection((host, port)) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n{")
        answer = b""
        with contextlib.suppress(ConnectionError):
            while not select.select([client], [], [], 0.05)[0]:
                client.send(b" ")
        with contextlib.suppress(ConnectionError):
            while received := client.recv(1 << 16):
                answer += received
    return answer


async def test_the_time_of_a_request_runs_while_its_body_drips(text_parts: TextParts) -> None:
    guards = GuardSettings(request_timeout=0.5, idle_timeout=60.0)
    async with serving(make_model(text_parts, quick(text_parts)), guards=guards) as server:
        answer = await asyncio.to_thread(drip, server.host, server.port)
        error = json.loads(answer.rpartition(b"\r\n\r\n")[2])["error"]
        assert b" 408 " in answer and error["code"] == "request_timeout"
        assert "--request-timeout" in error["message"]
        await until(lambda: server.life.state.http.n_open == 0)
        assert server.life.state.http.requests["/v1/completions", "POST", "408"] == 1


async def test_a_full_queue_is_429_with_a_hint(text_parts: TextParts) -> None:
    engine = FakeEngine()
    engine.max_queue = 1
    async with serving(make_model(text_parts, engine)) as server:
        running = asyncio.create_task(server.chat({}))
        await until(lambda: engine.open_samples)
        for body in ({}, {"stream": True}):
            refused = await server.chat(body)
            error = refused.json()["error"]
            assert (refused.status_code, error["type"], error["code"]) == (429, "rate_limit_error", "queue_full")
            assert int(refused.headers["retry-after"]) > 0
        engine.finish(1, 0, FinishCode.STOP)
        assert (await running).status_code == 200
        engine.reply = lambda request, sample: text_parts.tokenizer.encode_raw("ok")
        assert (await server.chat({})).status_code == 200


HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n"


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"", b""),
        (b"GET /health HT", b"408"),
        (HEAD, b"408"),
        (HEAD + b"\r\n{", b"408"),
        (b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n", b"200"),
        (b"GET /health HTTP/1.1\r\nhost: x\r\n\r\nGET /he", b"408"),
    ],
    ids=["nothing", "half a line", "half a head", "half a body", "a request and nothing", "a request and a half"],
)
async def test_peers_that_stop_are_let_go(text_parts: TextParts, sent: bytes, answer: bytes) -> None:
    guards = GuardSettings(idle_timeout=3.0 if answer == b"200" else 0.2)
    async with serving(make_model(text_parts, quick(text_parts)), guards=guards) as server:
        got = await exchange(server, sent)
        assert answer in got and (answer != b"" or got == b"")
        if answer == b"408":
            error = json.loads(got.rpartition(b"\r\n\r\n")[2])["error"]
            assert error["code"] == "request_timeout" and "--idle-timeout" in error["message"]
        await until(lambda: server.life.state.http.n_open == 0)


@pytest.mark.parametrize(
    ("begin", "rest"), [(b"GE", b"T /health HTTP/1.1\r\nhost: x\r\n\r\n"), (HEAD, b"\r\n{" + b" " * 99)]
)
async def test_nobody_is_late_because_the_server_stood_still(
    text_parts: TextParts, monkeypatch: pytest.MonkeyPatch, begin: bytes, rest: bytes
) -> None:
    loop, late = asyncio.get_running_loop(), 0.0
    now = loop.time
    monkeypatch.setattr(loop, "time", lambda: now() + late)
    async with serving(make_model(text_parts, quick(text_parts)), guards=GuardSettings(idle_timeout=99.0)) as server:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(begin)
        assert (await server.client.get("/health")).status_code == 200  # by now the server has read it
        loop.call_soon(writer.write, rest)
        late = 100.0
        status = await asyncio.wait_for(reader.readline(), PATIENCE)
        assert status.split()[1] == (b"200" if begin == b"GE" else b"400")
        writer.close()


async def test_a_head_must_be_complete_in_time_but_a_body_may_go_on(text_parts: TextParts) -> None:
    async with serving(make_model(text_parts, quick(text_parts)), guards=GuardSettings(idle_timeout=3.0)) as server:

        async def drip(first: bytes, slow: bytes) -> bytes:
            reader, writer = await asyncio.open_connection(server.host, server.port)
            writer.write(first)
            try:
                answer = asyncio.create_task(reader.read(1000))
                for byte in slow:
                    await asyncio.wait([answer], timeout=0.25)
                    if answer.done():
                        break
                    writer.write(bytes([byte]))
                return await asyncio.wait_for(answer, PATIENCE)
            finally:
                writer.close()

        body = b'{"prompt":"hi"}'
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 15\r\n\r\n"
        served, refused = await asyncio.gather(drip(head, body), drip(b"", head[:20]))  # each takes more than 3 s
        assert b" 200 OK" in served and b" 408 " in refused


async def test_a_long_answer_is_no_idleness_but_not_reading_it_is(text_parts: TextParts) -> None:
    engine = endless(0.002)
    engine.delay = 2.5  # the first token comes after the patience
    async with serving(make_model(text_parts, engine), guards=GuardSettings(idle_timeout=2.0)) as server:
        bodies = [{"ignore_eos": True, "max_tokens": 5, "stream": stream} for stream in (True, False)]
        for answer in await asyncio.gather(*(server.chat(body) for body in bodies)):
            assert answer.status_code == 200
        engine.delay = 0
        # it asks for more than the sockets hold and reads nothing
        reader, writer = await asyncio.open_connection(server.host, server.port, limit=1024)
        body: dict[str, Any] = {"prompt": "hi", "n": 100, "ignore_eos": True, "stream": True, "logprobs": 20}
        body["max_tokens"] = 400
        data = json.dumps(body).encode()
        writer.write(f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
        await until(lambda: engine.open_samples)
        await until(lambda: server.life.state.http.n_open == 0 and not engine.open_samples)
        writer.close()
        del reader


async def test_request_ids_come_back_whatever_answers(text_parts: TextParts) -> None:
    guards = GuardSettings(api_keys=("k",), cors_origins=("*",))
    async with serving(make_model(text_parts, quick(text_parts)), guards=guards) as server:
        mine = {"x-request-id": "mine-1"}
        key = {"x-api-key": "k"}
        for response in (
            await server.client.get("/health", headers=mine),
            await server.client.get("/v1/models", headers=mine),
            await server.client.get("/nope", headers=mine | key),
            await server.chat({"stream": True}, headers=mine | key),
            await server.chat({"n": -1}, headers=mine | key),
            await server.client.options(
                "/", headers={**mine, "origin": "http://a", "access-control-request-method": "GET"}
            ),
        ):
            assert response.headers.get_list("x-request-id") == ["mine-1"]
        made = [(await server.chat({}, headers=key)).headers["x-request-id"] for _ in range(3)]
        assert len(set(made)) == 3


async def test_metrics_without_the_names_of_others(text_parts: TextParts) -> None:
    async with serving(make_model(text_parts, quick(text_parts)), metrics_compat=False) as server:
        text = (await server.client.get("/metrics")).text
        assert "vllm:" not in text and "qwen3_step_tokens_bucket" in text and "qwen3_kv_usage_ratio" in text
        assert "qwen3_samples_finished_total" in text


LOCKED_KEY = """-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAjdiaXXnUw/uAICCAAw
DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEENnIm/IiBA+Cl4htTZQOA6IEgZAw
+HiAp5Kpufoyw82iqVMYxEIi7UFUXMjS5NskzlQtKB7efxv5QF5Nia3rGcxYi4yL
J1T8dden6Iq70STxM+wqUi87g1JxTPH7uGbiwmLS4tKuQByARiundTGAzRotmDmB
TMwSHF1uQczAMhMk7xfVPQLJ40URR5NRA9s//e4qLHl8xJ2j7MZ5SJ+Uc+DqUl0=
-----END ENCRYPTED PRIVATE KEY-----
"""
