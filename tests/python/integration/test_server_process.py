"""The server as a process: start, 503 while loading, load with disconnects, drain, ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import random
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import pytest
from patience import PATIENCE, wait_until
from served import ROOT, RealServer, StartServer, wait_for


def metric(url: str, name: str) -> float:
    for line in httpx.get(url + "/metrics", timeout=PATIENCE).text.splitlines():
        if line.startswith((name + "{", name + " ")) or (name.endswith("}") and line.startswith(name)):
            return float(line.rsplit(" ", 1)[1])
    raise AssertionError(f"no metric {name}")


def wait_until_idle(url: str) -> None:
    """All blocks are free or hold a cached prefix, nothing runs or waits, and no HTTP request but ours is open."""

    def is_idle() -> bool:
        running = metric(url, "qwen3_requests_running") + metric(url, "qwen3_requests_waiting")
        return running == 0 and metric(url, "qwen3_kv_blocks_used") == 0 and metric(url, "http_requests_open") == 1

    wait_until(is_idle, "the server did not fall idle")
    total = metric(url, "qwen3_kv_blocks")
    assert metric(url, "qwen3_kv_blocks_free") + metric(url, "qwen3_kv_blocks_cached") == total


def body_of(i: int, n_tokens: int = 24) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": f"Question {i % 40}: what is a fox?"}],
        "max_tokens": n_tokens,
        "temperature": 0.8,
        "seed": i % 40,
        "ignore_eos": True,
        "stream": i % 2 == 0,
    }


def text_of(body: dict[str, Any], reply: bytes) -> str:
    if not body["stream"]:
        return json.loads(reply)["choices"][0]["message"]["content"] or ""
    lines = [line[6:] for line in reply.split(b"\n\n") if line.startswith(b"data: {")]
    assert reply.endswith(b"data: [DONE]\n\n")
    return "".join(json.loads(line)["choices"][0]["delta"].get("content", "") for line in lines)


def test_sse_bytes(real_server: RealServer) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 6, "stream": True, "seed": 1}
    with httpx.stream("POST", real_server.url + "/v1/chat/completions", json=body, timeout=PATIENCE) as response:
        raw = b"".join(response.iter_bytes())
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    events = raw.split(b"\n\n")
    assert events[-1] == b"" and events[-2] == b"data: [DONE]"
    assert all(event.startswith(b"data: ") and b"\n" not in event for event in events[:-1])


async def open_raw(url: str, body: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A completion request on a socket of its own."""
    host, port = url.removeprefix("http://").rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 12)
    data = json.dumps(body).encode()
    writer.write(f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
    await writer.drain()
    return reader, writer


@pytest.mark.parametrize("stream", [True, False])
async def test_b86_sockets_closed_at_every_moment(
    start_server: StartServer, tiny_model_dir: Path, stream: bool
) -> None:
    real_server = start_server(tiny_model_dir, "--max-ctx", "30000")
    # none of them ends by itself before its socket is closed
    body = {"prompt": "Once upon a time", "max_tokens": 25_000, "ignore_eos": True, "stream": stream, "n": 2}
    for seconds in (0.0, 0.001, 0.01, 0.1):
        _, writer = await open_raw(real_server.url, body)
        await asyncio.sleep(seconds)
        writer.close()
    if stream:
        reader, writer = await open_raw(real_server.url, body)
        while b"data: " not in await reader.readline():
            pass
        writer.close()
    reader, writer = await open_raw(real_server.url, {**body, "max_tokens": 4})  # closed about when it ends
    await asyncio.sleep(0.01)
    writer.close()
    # one that never reads: its answer piles up in the socket, then in the server, until it goes away
    _, idler = await open_raw(real_server.url, {**body, "logprobs": 5})
    await asyncio.sleep(0.3)
    idler.close()
    await asyncio.to_thread(wait_until_idle, real_server.url)
    aborts = 'qwen3_samples_finished_total{finished_reason="abort",model_name="tiny"}'
    await asyncio.to_thread(wait_until, lambda: metric(real_server.url, aborts) >= 6)  # those that were under way
    real_server.stop()


@pytest.mark.timeout(900)
async def test_500_requests_with_random_disconnects(start_server: StartServer, tiny_model_dir: Path) -> None:
    """Sound 3: all blocks free at the end, and every answer that survived is right (B86, B87)."""
    server = start_server(tiny_model_dir, "--max-ctx", "1024", "--slots", "16", "--kv-gb", "0.02")
    chance = random.Random(7)
    limits = httpx.Limits(max_connections=600, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=server.url, timeout=800, limits=limits) as client:
        expected = {}
        for i in range(40):
            body = {**body_of(i), "stream": False}
            expected[i] = text_of(body, (await client.post("/v1/chat/completions", json=body)).content)

        async def one(i: int) -> str:
            body = body_of(i)
            leave = chance.random() < 0.5
            patience = 4 * chance.random() ** 4 if leave else 1000.0  # fast machines answer all in half a second
            try:
                async with asyncio.timeout(patience):
                    response = await client.post("/v1/chat/completions", json=body)
            except TimeoutError:
                return "left"
            assert response.status_code == 200, response.text
            assert text_of(body, response.content) == expected[i % 40]
            return "answered"

        results = await asyncio.gather(*(one(i) for i in range(500)))
    assert results.count("answered") >= 150 and results.count("left") >= 50
    await asyncio.to_thread(wait_until_idle, server.url)
    assert httpx.get(server.url + "/health", timeout=PATIENCE).status_code == 200
    assert server.stop() == 0


async def test_more_clients_than_the_usual_limit_of_files(start_server: StartServer, tiny_model_dir: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = max(int(path.name) for path in Path("/proc/self/fd").iterdir()) + 40  # what this process has open, and some
    n_clients = low + 50
    if min(soft, hard) < 2 * n_clients:
        pytest.skip("the system lets nobody have more files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (low, hard))
    try:
        server = start_server(tiny_model_dir, "--max-ctx", "512", wait=False)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    wait_for(server, r'"event":"ready"')
    limits = httpx.Limits(max_connections=n_clients)
    async with httpx.AsyncClient(base_url=server.url, timeout=800, limits=limits) as client:

        async def hold() -> int:
            async with client.stream("POST", "/v1/completions", json=body_of(0) | {"prompt": "x"}) as reply:
                n_open.append(reply.status_code)
                while len(n_open) < n_clients:  # all are open at once
                    await asyncio.sleep(0.01)
                await reply.aread()
                return reply.status_code

        n_open: list[int] = []
        assert await asyncio.gather(*(hold() for _ in range(n_clients))) == [200] * n_clients
    assert server.stop() == 0


@pytest.mark.timeout(900)
async def test_a_pool_for_three_serves_256(start_server: StartServer, tiny_model_dir: Path) -> None:
    """B82, B83: preemption gives the same texts as a large pool, and the counts are right."""
    small = start_server(tiny_model_dir, "--max-ctx", "96", "--slots", "16", "--kv-gb", str(3 * 96 * 2048 / 2**30))
    large = start_server(tiny_model_dir, "--max-ctx", "96", "--slots", "16")
    texts: list[list[str]] = []
    for server in (small, large):
        limits = httpx.Limits(max_connections=300)
        async with httpx.AsyncClient(base_url=server.url, timeout=800, limits=limits) as client:

            async def one(i: int, client: httpx.AsyncClient = client) -> str:
                body = body_of(i, 40)
                response = await client.post("/v1/chat/completions", json=body)
                assert response.status_code == 200, response.text
                return text_of(body, response.content)

            texts.append(await asyncio.gather(*(one(i) for i in range(256))))
        wait_until_idle(server.url)
        assert metric(server.url, "qwen3_generation_tokens_total") == 256 * 40
        server.stop()
    assert texts[0] == texts[1]


def test_503_while_loading(start_server: StartServer, tiny_model_dir: Path, tmp_path: Path) -> None:
    hold = tmp_path / "go on"
    server = start_server(tiny_model_dir, wait=False, hold=hold)
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
        health = client.get("/health")
        assert health.status_code == 503 and health.json()["status"] == "loading"
        response = client.post("/v1/completions", json={"prompt": "hi"})
        assert response.status_code == 503 and response.json()["error"]["code"] == "model_loading"
        assert "retry-after" in response.headers
        hold.touch()
        wait_until(lambda: client.get("/health").status_code == 200, lambda: server.log)
        assert client.post("/v1/completions", json={"prompt": "hi", "max_tokens": 2}).status_code == 200
    assert server.stop() == 0


def test_sigterm_while_loading(start_server: StartServer, tiny_model_dir: Path, tmp_path: Path) -> None:
    hold = tmp_path / "go on"
    server = start_server(tiny_model_dir, wait=False, hold=hold)
    server.process.send_signal(signal.SIGTERM)
    hold.touch()
    assert server.process.wait(PATIENCE) == 0, server.log


def test_sigterm_drains(start_server: StartServer, tiny_model_dir: Path) -> None:
    server = start_server(tiny_model_dir, "--max-ctx", "8192", "--drain-seconds", "300")
    # long enough that it still runs when the others are asked
    body = {"prompt": "Once", "max_tokens": 8_000, "ignore_eos": True, "stream": True, "seed": 5}
    with (
        httpx.Client(base_url=server.url, timeout=PATIENCE) as other,
        httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=PATIENCE) as response,
    ):
        assert other.get("/health").status_code == 200
        parts = response.iter_bytes()
        next(parts)
        server.process.send_signal(signal.SIGTERM)
        wait_for(server, '"event":"draining"')
        refused = other.post("/v1/completions", json={"prompt": "x"})
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "shutting_down"
        tail = b"".join(parts)
    assert tail.endswith(b"data: [DONE]\n\n") and tail.count(b'"finish_reason":"length"') == 1
    assert server.process.wait(PATIENCE) == 0
    assert '"event":"draining","n_requests":1' in server.log and '"event":"stopped"' in server.log


@pytest.fixture
def hears_hangups() -> Generator[None]:
    """Where the tests run under nohup, programs that they start would ignore SIGHUP."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hears_hangups")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_and_its_echo_are_one(number: int, start_server: StartServer, tiny_model_dir: Path) -> None:
    server = start_server(tiny_model_dir, "--max-ctx", "2048")
    body = {"prompt": "Once", "max_tokens": 2_000, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=PATIENCE) as response:
        parts = response.iter_bytes()
        next(parts)
        for _ in range(2):  # as `timeout` does it: the process, then its group
            server.process.send_signal(number)
        assert b"".join(parts).endswith(b"data: [DONE]\n\n")
    assert server.process.wait(PATIENCE) == 0
    assert "A second signal" not in server.log


def test_a_second_signal_ends_at_once(start_server: StartServer, tiny_model_dir: Path) -> None:
    server = start_server(tiny_model_dir, "--max-ctx", "30000")
    body = {"prompt": "Once", "max_tokens": 25_000, "ignore_eos": True, "stream": True}
    with (
        contextlib.suppress(httpx.HTTPError),
        httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=PATIENCE) as response,
    ):
        parts = response.iter_bytes()
        next(parts)
        server.process.send_signal(signal.SIGTERM)
        wait_for(server, '"event":"draining"')
        assert server.process.poll() is None
        time.sleep(0.15)  # an echo of the first comes sooner
        assert server.stop(signal.SIGTERM) == 128 + signal.SIGTERM  # 0, had it waited for the answer


def run_serve(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "qwen3app.cli", "serve", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=ROOT, check=False)


def test_wrong_starts_are_one_sentence(tiny_model_dir: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        wrong = [
            (("--model", str(tiny_model_dir), "--port", port), "is in use"),
            (("--model", str(tmp_path / "none")), "does not exist"),
            (("--model", str(tmp_path), "--port", "0"), "config.json"),
            (("--model", str(tiny_model_dir), "--port", "0", "--max-ctx", "1000000"), "--max-ctx is 1000000"),
            (("--model", str(tiny_model_dir), "--port", "0", "--device", "cuda:0"), "cuda"),
            (("--model", str(tiny_model_dir), "--slots", "many"), "--slots"),
        ]
        for flags, words in wrong:
            result = run_serve(*flags)
            # Before the log begins as it is, then as a line of the log.
            lines = result.stderr.splitlines()
            said = [line for line in lines if line[0] != "{" or json.loads(line)["level"] == "error"]
            assert result.returncode in (1, 2) and len(said) == 1 and words in said[0].lower(), (flags, result.stderr)
            assert "Traceback" not in result.stderr and result.stdout == ""


def test_a_person_reads_why_a_start_failed_in_plain_words(tiny_model_dir: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "qwen3app.cli", "serve", "--model", str(tiny_model_dir), "--port", "0"]
    with subprocess.Popen(
        [*command, "--max-ctx", "1000000"], stdout=subprocess.DEVNULL, stderr=theirs, cwd=ROOT
    ) as server:
        os.close(theirs)
        said = b""
        with contextlib.suppress(OSError):  # EIO: the terminal's other end is closed
            while piece := os.read(ours, 65536):
                said += piece
        assert server.wait(PATIENCE) == 2
    os.close(ours)
    plain = [line for line in said.decode().splitlines() if line and line[0] != "{"]
    assert len(plain) == 1 and "--max-ctx is 1000000" in plain[0], said


def test_ipv6_and_api_key(start_server: StartServer, tiny_model_dir: Path) -> None:
    if not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    server = start_server(tiny_model_dir, "--addr", "::1", "--api-key", "k", "--served-model-name", "my/model")
    assert server.url.startswith("http://[::1]:")
    assert httpx.get(server.url + "/v1/models", timeout=PATIENCE).status_code == 401
    models = httpx.get(server.url + "/v1/models", headers={"x-api-key": "k"}, timeout=PATIENCE).json()
    assert [model["id"] for model in models["data"]] == ["my/model"]
    assert httpx.get(server.url + "/health", timeout=PATIENCE).status_code == 200
    assert server.stop() == 0


def test_a_terminal_gets_the_page_s_address_as_a_plain_line(tiny_model_dir: Path) -> None:
    master, slave = pty.openpty()
    command = [
        sys.executable,
        "-m",
        "qwen3app",
        "serve",
        "--model",
        str(tiny_model_dir),
        "--port",
        "0",
        "--kv-gb",
        "0.05",
    ]
    with subprocess.Popen(command, cwd=ROOT, stderr=slave) as server, os.fdopen(master, "rb", 0) as terminal:
        os.close(slave)
        shown = b""
        while b"/v1\r\n" not in shown:
            shown += terminal.read(4096)
        line = next(line for line in shown.decode().splitlines() if line.startswith("Open "))
        page = re.fullmatch(r"Open (http://127\.0\.0\.1:\d+/) in a browser to chat; programs use \1v1", line)
        assert page, line
        assert httpx.get(page[1], timeout=PATIENCE).status_code == 200
        server.terminate()
        with contextlib.suppress(OSError):  # a terminal whose other end is closed
            while terminal.read(4096):
                pass
        assert server.wait(PATIENCE) == 0
