"""Bytes as they come from peers that know HTTP badly, or too well: any cuts, pipelines, odd forms of requests. The
server answers each whole request once and in order, refuses the rest, and is idle afterwards."""

from __future__ import annotations

import asyncio
import json
import random

import pytest
from fake_engine import FakeEngine
from serving import TestServer, TextParts, make_model, serving

from qwen3app.guards import GuardSettings

GUARDS = GuardSettings(api_keys=("k",), idle_timeout=0.3, max_head_kb=4, max_body_mb=0.01, cors_origins=("http://a",))


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
        return await asyncio.wait_for(answer, 5)
    except ConnectionError:
        return b""
    finally:
        writer.close()


def statuses(answer: bytes) -> list[int]:
    return [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]


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
    async with serving(make_model(text_parts, engine_of(text_parts)), guards=GUARDS) as server:

        async def one() -> None:
            picks = [chance.randrange(len(requests)) for _ in range(chance.randrange(1, 6))]
            data = b"".join(requests[i] for i in picks)
            cuts = sorted(chance.sample(range(1, len(data)), chance.randrange(0, 12)))
            answer = await say(server, data, cuts)
            assert statuses(answer) == [expected[i] for i in picks], (picks, cuts)

        for _ in range(6):
            await asyncio.gather(*(one() for _ in range(20)))
        await asyncio.sleep(0.05)
        assert server.life.state.http.n_open == 0


@pytest.mark.parametrize(
    ("data", "expected"),
    [
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
    ],
)
async def test_odd_forms(text_parts: TextParts, data: bytes, expected: list[int]) -> None:
    async with serving(make_model(text_parts, engine_of(text_parts)), guards=GUARDS) as server:
        answer = await say(server, data, [])
        got = statuses(answer)
        if len(expected) == 2:  # either
            assert len(got) == 1 and got[0] in expected
        else:
            assert got[: len(expected)] == expected and got[len(expected) :] in ([], [408], [400])
        await asyncio.sleep(0.05)
        assert server.life.state.http.n_open == 0
        assert (await server.client.get("/health")).status_code == 200
