"""Bytes as they come from peers that know HTTP badly, or too well: any cuts, pipelines, odd forms of requests. The
server answers each whole request once and in order, refuses the rest, and is idle afterwards."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import random
import re
import weakref
from dataclasses import replace

import pytest
from fake_engine import FakeEngine
from patience import PATIENCE, until
from serving import TestServer, TextParts, events_of, make_model, serving

from qwen3app.guards import GuardSettings
from qwen3app.server import protocol

GUARDS = GuardSettings(api_keys=("k",), idle_timeout=3.0, max_head_kb=4, max_body_mb=0.01, cors_origins=("http://a",))
PATIENT = replace(GUARDS, idle_timeout=60.0)


def engine_of(parts: TextParts) -> FakeEngine:
    return FakeEngine(lambda request, sample: parts.tokenizer.encode_raw("ok"))


def post(body: bytes, head: str = "", path: str = "/v1/completions") -> bytes:
    return f"POST {path} HTTP/1.1\r\nhost: x\r\nx-api-key: k\r\n{head}\r\n".encode() + body


def sized(body: bytes, head: str = "") -> bytes:
    return post(body, f"content-length: {len(body)}\r\n{head}")


def chunked(*parts: bytes, tail: bytes = b"\r\n") -> bytes:
    body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return post(body + b"0\r\n" + tail, "transfer-encoding: chunked\r\n")


GOOD = json.dumps({"prompt": "hi", "max_tokens": 2}).encode()
STREAM = json.dumps({"prompt": "hi", "max_tokens": 2, "stream": True}).encode()
GET = b"GET /v1/models HTTP/1.1\r\nhost: x\r\nx-api-key: k\r\n\r\n"
LAST = GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")


async def say(server: TestServer, data: bytes, cuts: list[int]) -> bytes:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    answer = asyncio.create_task(reader.read())
    begin = 0
    for cut in [*cuts, len(data)]:
        if not answer.done():
            writer.write(data[begin:cut])
            await asyncio.sleep(0.001)
        begin = cut
    try:
        return await asyncio.wait_for(answer, PATIENCE)
    except ConnectionError:
        return b""
    finally:
        writer.close()


def statuses(answer: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)]


async def test_requests_cut_anywhere_and_one_after_the_other(text_parts: TextParts) -> None:
    chance = random.Random(5)
    requests = [
        sized(GOOD),
        sized(STREAM),
        GET,
        chunked(GOOD[:9], GOOD[9:]),
        sized(b"{"),
        chunked(STREAM, tail=b"a: b\r\n\r\n"),
    ]
    expected = [200, 200, 200, 200, 400, 200]
    async with serving(make_model(text_parts, engine_of(text_parts)), guards=PATIENT) as server:

        async def one() -> None:
            picks = [chance.randrange(len(requests)) for _ in range(chance.randrange(1, 6))]
            data = b"".join(requests[i] for i in picks) + LAST
            cuts = sorted(chance.sample(range(1, len(data)), chance.randrange(0, 12)))
            answer = await say(server, data, cuts)
            assert statuses(answer) == [*(expected[i] for i in picks), 200], (picks, cuts)

        await asyncio.gather(*(one() for _ in range(120)))
        await until(lambda: server.life.state.http.n_open == 0)


ODD_FORMS: list[tuple[bytes, list[int]]] = [
    (b"GET http://elsewhere/v1/models HTTP/1.1\r\nhost: x\r\n\r\n", [401]),
    (b"GET http://elsewhere/health HTTP/1.1\r\nhost: x\r\n\r\n", [200]),
    (b"GET //health HTTP/1.1\r\nhost: x\r\n\r\n", [401]),
    (b"GET /health/../v1/models HTTP/1.1\r\nhost: x\r\n\r\n", [401]),
    (b"GET /%2568ealth HTTP/1.1\r\nhost: x\r\n\r\n", [401]),
    (b"GET /health;/v1/models HTTP/1.1\r\nhost: x\r\n\r\n", [401]),
    (b"GET /v1/models?/health HTTP/1.1\r\nhost: x\r\n\r\n", [401]),
    (b"OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n", [400, 401]),
    (
        b"OPTIONS /v1/models HTTP/1.1\r\nhost: x\r\norigin: http://b\r\naccess-control-request-method: GET\r\n\r\n",
        [401],
    ),
    (b"BREW /coffee HTTP/1.1\r\nhost: x\r\n\r\n", [400]),
    (b"GET /v1/models HTTP/1.0\r\nx-api-key: k\r\n\r\n", [200]),
    (
        b"GET /v1/models HTTP/1.1\r\nhost: x\r\nx-api-key: k\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
        [200],
    ),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [400]),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", [400]),
    (b"\r\n\r\n" + GET, [200]),
    (post(b"", "content-length: -1\r\n"), [400]),
    (post(b"", "content-length: 5\r\ncontent-length: 6\r\n"), [400]),
    (post(b"5\r\nabcde\r\n0\r\n\r\n", "transfer-encoding: chunked\r\ncontent-length: 3\r\n"), [400]),
    (post(b"zz\r\n", "transfer-encoding: chunked\r\n"), [400]),
    (sized(b"x" * 20_000), [413]),
    (post(b"", f"content-length: {1 << 62}\r\n"), [413]),
    (post(b"", "x: " + "y" * 9000 + "\r\n"), [431]),
    (GET * 50, [200] * 50),
]


async def test_odd_forms(text_parts: TextParts) -> None:
    """All at once: the server ends each connection only after its patience."""
    async with serving(make_model(text_parts, engine_of(text_parts)), guards=GUARDS) as server:
        answers = await asyncio.gather(*(say(server, data, []) for data, _ in ODD_FORMS))
        for (data, expected), answer in zip(ODD_FORMS, answers, strict=True):
            got = statuses(answer)
            if len(expected) == 2:  # either
                assert len(got) == 1 and got[0] in expected, data[:200]
            else:
                assert got[: len(expected)] == expected and got[len(expected) :] in ([], [408], [400]), data[:200]
        await until(lambda: server.life.state.http.n_open == 0)
        assert (await server.client.get("/health")).status_code == 200


# ------------------------------------------------------------------------------------------- upgrades that are offered

OFFER = "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAABAAMAAABk\r\n"


async def test_an_upgrade_that_is_offered_is_declined_and_the_request_answered(text_parts: TextParts) -> None:
    """As Java's HttpClient offers HTTP/2, in each first request of a connection, which lives on."""
    socket = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: x\r\n"
    requests = [sized(GOOD, OFFER), sized(STREAM, OFFER), GET.replace(b"\r\n\r\n", f"\r\n{socket}\r\n".encode()), GET]
    requests.append(chunked(GOOD[:9], GOOD[9:]).replace(b"host: x\r\n", f"host: x\r\n{OFFER}".encode()))
    requests += requests
    data = b"".join(requests) + LAST
    head = data.index(b"\r\n\r\n") + 4
    async with serving(make_model(text_parts, engine_of(text_parts)), guards=PATIENT) as server:
        for cuts in ([], [head], [head - 2, head + 5], list(range(1, len(data), 7))):
            answer = await say(server, data, cuts)
            assert statuses(answer) == [200] * (len(requests) + 1), cuts
            assert answer.count(b'"text":"ok"') == 6 and answer.count(b'"object":"list"') == 5
        closing = sized(GOOD, "connection: close, upgrade\r\nupgrade: h2c\r\n")
        assert statuses(await say(server, closing, [])) == [200]
        too_long = sized(GOOD, OFFER + "x: " + "y" * 9000 + "\r\n")
        assert statuses(await say(server, too_long, [])) == [431]
        assert statuses(await say(server, b"CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\n\r\n" + GET, [])) == [400]


# ---------------------------------------------------------------------------------------------------------- HTTP/1.0


async def test_http_1_0_gets_no_chunks(text_parts: TextParts) -> None:
    """As proxies ask that are left at their defaults: the end of the connection ends a stream."""
    async with serving(make_model(text_parts, engine_of(text_parts)), guards=PATIENT) as server:
        for body in (STREAM, GOOD):
            answer = await say(server, sized(body).replace(b"HTTP/1.1", b"HTTP/1.0"), [])
            head, _, content = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK") and b"connection: close" in head
            assert b"transfer-encoding" not in head
            if body is STREAM:
                assert "".join(chunk["choices"][0]["text"] for chunk in events_of(content.decode())) == "ok"
            else:
                assert json.loads(content)["choices"][0]["text"] == "ok"
                assert b"content-length: %d\r\n" % len(content) in head + b"\r\n"
        head = await say(server, GET.replace(b"GET", b"HEAD").replace(b"HTTP/1.1", b"HTTP/1.0"), [])
        assert statuses(head) == [200] and head.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("body", [b"plain", b"stream"], ids=str)
async def test_b86_a_client_that_leaves_with_requests_in_a_row_leaves_nothing_behind(
    text_parts: TextParts, body: bytes
) -> None:
    asked = {"prompt": "hi", "max_tokens": 400, "ignore_eos": True, "stream": body == b"stream"}
    engine = FakeEngine(lambda request, sample: [70] * 400, step=0.05)
    async with serving(make_model(text_parts, engine), guards=PATIENT) as server:
        for abort in (False, True):
            n_before = len(engine.requests)
            _, writer = await asyncio.open_connection(server.host, server.port)
            writer.write(sized(json.dumps(asked).encode()) * 3)
            await until(lambda n=n_before: len(engine.requests) > n)  # type: ignore[misc]
            writer.transport.abort() if abort else writer.close()
            await until(lambda: not engine.open_samples and server.life.state.http.n_open == 0)
            assert len(engine.requests) == n_before + 1  # the others were never begun
        assert {key[2] for key in server.life.state.http.requests} == {"499"}


# ------------------------------------------------------------------------------------------------------ what is refused

LONG = json.dumps({"prompt": "hi", "max_tokens": 40, "ignore_eos": True}).encode()
LONG_STREAM = json.dumps({"prompt": "hi", "max_tokens": 40, "ignore_eos": True, "stream": True}).encode()
BROKEN_BODY = post(b"zz\r\n", "transfer-encoding: chunked\r\n")


@pytest.mark.parametrize("broken", [b"garbage\r\n\r\n", b"\x00", BROKEN_BODY, GET[:20] + b"x" * 9000])
@pytest.mark.parametrize("body", [LONG, LONG_STREAM], ids=["plain", "stream"])
async def test_what_comes_behind_a_request_does_not_cost_its_answer(
    text_parts: TextParts, body: bytes, broken: bytes
) -> None:
    engine = FakeEngine(lambda request, sample: [70] * 40, step=0.005)
    async with serving(make_model(text_parts, engine), guards=PATIENT) as server:
        first = GET + sized(body)
        for cuts in ([], [len(first)]):
            answer = await say(server, first + broken + GET, cuts)
            got = statuses(answer)
            assert got[:2] == [200, 200] and len(got) == 3 and got[2] in (400, 431)
            whole = b"[DONE]" if body is LONG_STREAM else b'"completion_tokens":40'
            assert whole in answer[: answer.rindex(b"HTTP/1.1 4")]
            error = json.loads(answer.rpartition(b"\r\n\r\n")[2])["error"]
            assert error["type"] == "invalid_request_error" and error["message"].endswith(".")
        await until(lambda: server.life.state.http.n_open == 0)
        assert not engine.open_samples and not engine.cancelled


async def test_what_the_protocol_refuses_has_an_id_a_line_and_a_count(
    text_parts: TextParts, capfd: pytest.CaptureFixture[str]
) -> None:
    mine = "x-request-id: mine\r\n"
    cases = [
        (b"nonsense\r\n\r\n", 400, False),
        (b"GET /health HTTP/1.1\r\nx-request-id: mine\r\nhost: x\r\nbroken\r\n\r\n", 400, True),
        (post(b"", mine + "x: " + "y" * 9000 + "\r\n"), 431, True),
        (post(b"zz\r\n", mine + "transfer-encoding: chunked\r\n"), 400, True),
        (post(b'{"a', mine + "content-length: 9\r\n"), 408, True),
        (b"GET /health HTTP/1.1\r\nx-request-id: mine\r\nhost:", 408, True),
    ]
    async with serving(
        make_model(text_parts, engine_of(text_parts)), guards=replace(GUARDS, idle_timeout=1.5)
    ) as server:
        for data, status, told in cases:
            answer = await say(server, data, [])
            assert statuses(answer) == [status], data
            head = answer.partition(b"\r\n\r\n")[0].decode() + "\r\n"
            assert head.count("x-request-id: ") == 1 and ("x-request-id: mine\r\n" in head) == told
        await until(lambda: server.life.state.http.n_open == 0)
        requests = server.life.state.http.requests
        assert sum(requests.values()) == len(cases)
        assert {key[2]: n for key, n in requests.items() if key[0] == "other"} == {"400": 2, "431": 1, "408": 1}
        assert requests["/v1/completions", "POST", "400"] == requests["/v1/completions", "POST", "408"] == 1
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert not [line for line in lines if line["level"] in ("warning", "error")]
    logged = [line for line in lines if line["event"] == "request"]
    assert sorted(line["status"] for line in logged) == sorted(status for _, status, _ in cases)
    assert [line["request_id"] == "mine" for line in logged].count(True) == 5


@pytest.mark.parametrize(
    ("body", "head", "status", "words"),
    [
        (b"\xef\xbb\xbf" + GOOD, "", 200, '"text":"ok"'),
        (GOOD, "content-encoding: identity\r\n", 200, '"text":"ok"'),
        (gzip.compress(GOOD), "content-encoding: gzip\r\n", 415, "content encoding 'gzip'"),
        (GOOD.decode().encode("utf-16"), "", 400, "UTF-16 or UTF-32; send JSON as UTF-8"),
        (GOOD.decode().encode("utf-16-le"), "", 400, "UTF-16 or UTF-32; send JSON as UTF-8"),
        (GOOD.decode().encode("utf-16-be"), "", 400, "UTF-16 or UTF-32; send JSON as UTF-8"),
        (GOOD.decode().encode("utf-32"), "", 400, "UTF-16 or UTF-32; send JSON as UTF-8"),
    ],
)
async def test_encodings_of_bodies(text_parts: TextParts, body: bytes, head: str, status: int, words: str) -> None:
    async with serving(make_model(text_parts, engine_of(text_parts)), guards=PATIENT) as server:
        answer = await say(server, sized(body, head + "connection: close\r\n"), [])
        assert statuses(answer) == [status] and words in answer.decode()


_CLOSE = "connection: close\r\n"
SENT_ON: list[tuple[bytes, int]] = [
    (post(b"", f"content-length: 9000000\r\n{_CLOSE}"), 413),
    (post(b"", f"content-length: 9000000\r\n{_CLOSE}", path="/nowhere"), 404),
    (post(b"100000\r\n", f"transfer-encoding: chunked\r\n{_CLOSE}"), 413),
    (f"POST / HTTP/1.1\r\nx: {'y' * 5000}\r\n\r\n".encode(), 431),
    (b"nonsense\r\n\r\n", 400),
]


@pytest.mark.parametrize(("head", "status"), SENT_ON)
async def test_who_still_sends_behind_a_refusal_sees_no_reset(
    text_parts: TextParts, monkeypatch: pytest.MonkeyPatch, head: bytes, status: int
) -> None:
    monkeypatch.setattr(protocol, "_LINGER_SECONDS", PATIENCE)
    async with serving(make_model(text_parts, engine_of(text_parts)), guards=PATIENT) as server:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(head)
        for _ in range(60):
            writer.write(b"x" * 50_000)
            await writer.drain()  # raises where the connection was reset
        answer = await asyncio.wait_for(reader.read(), PATIENCE)
        assert statuses(answer) == [status]
        assert b"\r\nconnection: close\r\n" in answer and answer.endswith(b"}}")
        assert len(server.life._server.server_state.connections) == 1  # it waits for this end
        writer.close()
        await until(lambda: not server.life._server.server_state.connections)


@pytest.mark.parametrize("sends", [False, True])
async def test_who_does_not_leave_after_a_refusal_is_left(
    text_parts: TextParts, monkeypatch: pytest.MonkeyPatch, sends: bool
) -> None:
    monkeypatch.setattr(protocol, "_LINGER_SECONDS", 0.2)
    async with serving(make_model(text_parts, engine_of(text_parts)), guards=PATIENT) as server:
        for head, status in SENT_ON:
            reader, writer = await asyncio.open_connection(server.host, server.port)
            writer.write(head + b"x" * 20_000)
            assert statuses(await asyncio.wait_for(reader.readuntil(b"}}"), PATIENCE)) == [status]

            def is_left(writer: asyncio.StreamWriter = writer) -> bool:
                if sends and not writer.is_closing():
                    writer.write(b"x" * 1000)
                return not server.life._server.server_state.connections

            await until(is_left)
            writer.close()


@pytest.mark.parametrize("data", [GET, LAST, sized(STREAM), SENT_ON[0][0] + b"x" * 20_000, SENT_ON[3][0]])
async def test_a_connection_that_has_ended_is_no_cycle(
    text_parts: TextParts, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    """The collector of cycles comes too seldom for them."""
    monkeypatch.setattr(protocol, "_LINGER_SECONDS", PATIENCE)
    async with serving(make_model(text_parts, engine_of(text_parts)), guards=PATIENT) as server:
        connections = server.life._server.server_state.connections
        gc.disable()
        try:
            reader, writer = await asyncio.open_connection(server.host, server.port)
            await until(lambda: connections)
            (connection,) = map(weakref.ref, connections)
            writer.write(data)
            await asyncio.wait_for(reader.readuntil(b"}"), PATIENCE)
            writer.close()
            await until(lambda: connection() is None)
        finally:
            gc.enable()
