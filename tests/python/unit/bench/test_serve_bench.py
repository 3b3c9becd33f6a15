"""The serving benchmark: its definitions on made-up times, its reader on every framing, its client on a server that
turns the client's clock. Against the real server: tests/python/integration/test_serve_bench_server.py."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from patience import PATIENCE, until

BENCH = Path(__file__).resolve().parents[3] / "bench"
sys.path.insert(0, str(BENCH))
import http_stream  # noqa: E402
import serve_bench  # noqa: E402
import serving_load  # noqa: E402
from http_stream import Connection, ReplyReader, StreamError  # noqa: E402
from serve_bench import text_ids  # noqa: E402
from serving_load import Client, Row, Target, arrivals, share  # noqa: E402
from serving_metrics import RequestResult, distribution, percentile, summarize  # noqa: E402

# ------------------------------------------------------------------------------------------------------- definitions


def test_the_definitions() -> None:
    two = RequestResult(0, start=10.0, first=10.5, last=11.5, end=11.6, gaps=[0.25, 0.75], prompt_tokens=7)
    two.output_tokens = 5  # in three chunks
    one = RequestResult(
        1, start=10.2, first=10.3, last=10.3, end=12.0, prompt_tokens=3, cached_tokens=2, output_tokens=1
    )
    bad = RequestResult(2, start=9.0, first=9.5, last=9.5, end=14.0, prompt_tokens=100, output_tokens=100, error="gone")
    found = summarize([two, one, bad], 5)
    assert (found["completed"], found["failed"], found["short"]) == (2, 1, 1)
    assert found["errors"] == {"gone": 1}
    assert found["duration_s"] == 5.0  # the failed one too: its work was done
    assert found["output_tokens_per_s"] == 6 / 5 and found["total_tokens_per_s"] == 16 / 5
    assert found["requests_per_s"] == 2 / 5 and found["cached_prompt_tokens"] == 2
    assert found["ttft_ms"]["mean"] == pytest.approx(300) and found["e2e_ms"]["mean"] == pytest.approx(800)
    assert found["tpot_ms"]["mean"] == pytest.approx(250)  # (1.5 - 0.5) / (5 - 1); one token has none
    assert found["itl_ms"]["mean"] == pytest.approx(500) and found["itl_ms"]["p99"] == pytest.approx(745)


def test_distributions_are_numpys() -> None:
    rng = random.Random(3)
    for n in (1, 2, 3, 10, 101):
        values = [rng.expovariate(1.0) for _ in range(n)]
        found = distribution(values)
        assert found is not None
        milliseconds = 1e3 * np.array(values)
        expected = {"mean": milliseconds.mean(), "median": np.median(milliseconds), "std": milliseconds.std()}
        expected |= {"p90": np.percentile(milliseconds, 90), "p99": np.percentile(milliseconds, 99)}
        assert found == pytest.approx({name: float(value) for name, value in expected.items()}, abs=1e-4)
    assert distribution([]) is None
    assert percentile([1.0, 2.0], 100) == 2.0


def test_rows_and_shares() -> None:
    assert Row.parse("32x512:256") == Row(32, 512, 128, 256)
    assert Row.parse("4x16x8") == Row(4, 16, 8, 16)
    assert str(Row.parse("0x16x8:9")) == "0x16x8:9"
    for wrong in ("32", "x1", "1x0", "1x5:0", "1x5x5x5", "-1x5"):
        with pytest.raises(Exception, match=r"no row|at least 1"):
            Row.parse(wrong)
    assert [share(10, 4, i) for i in range(4)] == [3, 3, 2, 2]


def test_arrivals() -> None:
    assert arrivals(4, 2.0, False, random.Random(0)) == [0.0, 0.5, 1.0, 1.5]
    times = arrivals(4000, 50.0, True, random.Random(0))
    assert times == sorted(times) and times[-1] == pytest.approx(80.0)
    gaps = np.diff([0.0, *times])
    assert gaps.mean() == pytest.approx(1 / 50) and gaps.std() == pytest.approx(1 / 50, rel=0.06)  # exponential


def test_text_ids(tmp_path: Path) -> None:
    tokenizer = {"model": {"vocab": {"a": 0, "b": 1, "<x>": 2}}, "added_tokens": [{"id": 2}, {"id": 3}]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert text_ids(tmp_path) == [0, 1]
    with pytest.raises(SystemExit):
        text_ids(tmp_path / "none")


# ------------------------------------------------------------------------------------------------------------ reading

EVENTS = b'data: {"a": 1}\n\n: ping\n\nevent: x\ndata:{"b": 2}\n\ndata: [DONE]\n\n'


def chunked(body: bytes, size: int) -> bytes:
    pieces = [body[i : i + size] for i in range(0, len(body), size)]
    return b"".join(b"%x;ext=1\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\nTrailer: x\r\n\r\n"


@pytest.mark.parametrize("step", [1, 2, 7, 10_000])
@pytest.mark.parametrize("framing", ["chunked", "length", "close", "crlf"])
def test_the_reader(framing: str, step: int) -> None:
    head = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    if framing == "close":
        reply = head + b"\r\n" + EVENTS
    elif framing == "length":
        reply = head + b"Content-Length: %d\r\n\r\n" % len(EVENTS) + EVENTS
    else:
        body = EVENTS.replace(b"\n", b"\r\n") if framing == "crlf" else EVENTS
        reply = head + b"transfer-encoding: chunked\r\n\r\n" + chunked(body, 5)
    seen: list[bytes] = []
    reader = ReplyReader(lambda data, _now: seen.append(data))
    for i in range(0, len(reply), step):
        assert not reader.done
        reader.feed(reply[i : i + step], 0.0)
    if framing == "close":
        assert not reader.done
        reader.end()
    assert reader.done and reader.status == 200 and reader.keep_alive == (framing != "close")
    assert seen == [b'{"a": 1}', b'{"b": 2}', b"[DONE]"]


def test_the_reader_refuses() -> None:
    def read(reply: bytes) -> ReplyReader:
        reader = ReplyReader(lambda _data, _now: None)
        reader.feed(reply, 0.0)
        return reader

    with pytest.raises(StreamError, match=r"no HTTP/1\.1"):
        read(b"220 smtp.example ESMTP\r\n\r\n")
    with pytest.raises(StreamError, match="chunk's length"):
        read(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
    with pytest.raises(StreamError, match="64 KB"):
        read(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000)
    with pytest.raises(StreamError, match="middle"):
        read(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n1234").end()
    assert read(b"HTTP/1.1 429 Slow\r\nContent-Length: 4\r\n\r\nwait").error_body == b"wait"


# ---------------------------------------------------------------------------------------------- a server to be measured

FIRST, NEXT, END = 0.5, 0.25, 2.0  # seconds to the first chunk, between chunks and to [DONE], by the client's clock
PAUSE = 0.02  # true seconds between chunks where nobody turns a clock


class Clock:
    """What the client takes for the time. The server turns it, so that no busy machine can."""

    def __init__(self) -> None:
        self.now = 100.0
        self.client: Client | None = None

    def perf_counter(self) -> float:
        return self.now

    async def turn(self, seconds: float, n_chunks: int) -> None:
        """As soon as the client has read so many chunks."""
        client = self.client
        assert client is not None
        await until(lambda: bool(client.results[0].first) + len(client.results[0].gaps) == n_chunks)
        self.now += seconds


@dataclass
class FakeServer:
    """An OpenAI server that says one chunk per token. fault: what it does wrong, or ""; hold: the first answers begin
    when so many requests are open."""

    fault: str = ""
    hold: int = 0
    clock: Clock | None = None
    port: int = 0
    n_open: int = 0
    most_open: int = 0
    n_connections: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.n_connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = [line for line in head.split("\r\n") if line.lower().startswith("content-length:")]
                body = await reader.readexactly(int(length[0].split(":")[1])) if length else b""
                if head.startswith("GET"):
                    await self._send(writer, 200, b'{"data": [{"id": "fake"}]}')
                    continue
                self.n_open += 1
                self.most_open = max(self.most_open, self.n_open)
                self.bodies.append(json.loads(body) | {"path": head.split()[1]})
                await self._answer(writer, self.bodies[-1])
                self.n_open -= 1
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _send(self, writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))
        await writer.drain()

    async def _answer(self, writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
        if self.fault == "status":
            await self._send(writer, 503, b'{"error": "busy"}')
            return

        async def pause(seconds: float, n_chunks: int) -> None:
            await (asyncio.sleep(PAUSE) if self.clock is None else self.clock.turn(seconds, n_chunks))

        def event(data: dict[str, Any]) -> None:
            text = b"data: " + json.dumps(data).encode() + b"\n\n"
            writer.write(b"%x\r\n%s\r\n" % (len(text), text))

        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await until(lambda: self.most_open >= self.hold)
        for i in range(body["max_tokens"]):
            await pause(NEXT if i else FIRST, i)
            if i == 2 and self.fault == "breaks":
                writer.close()
                raise ConnectionError
            if i == 2 and self.fault == "error event":
                event({"error": {"message": "boom"}})
            if self.fault != "silent":
                event({"choices": [{"index": 0, "text": "x" if i else ""}]})
        if self.fault != "no usage":
            prompt = body.get("prompt") or body["messages"][0]["content"]
            n = len(prompt.split()) if isinstance(prompt, str) else len(prompt)
            event({"choices": [], "usage": {"prompt_tokens": n, "completion_tokens": body["max_tokens"]}})
        await pause(END, body["max_tokens"])  # counts in no latency
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        await writer.drain()


@asynccontextmanager
async def fake_server(fault: str = "", hold: int = 0) -> AsyncIterator[FakeServer]:
    fake = FakeServer(fault, hold)
    server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    fake.port = server.sockets[0].getsockname()[1]
    try:
        yield fake
    finally:
        server.close()


async def send_one(fake: FakeServer, row: Row, timeout: float = PATIENCE) -> RequestResult:
    client = Client("127.0.0.1", fake.port, timeout)
    if fake.clock is not None:
        fake.clock.client = client
    target = Target("127.0.0.1", fake.port, "", "fake", "ids", None, list(range(100)))
    await client.send(0, target.request(row, random.Random(0)))
    client.close()
    return client.results[0]


async def test_times_of_a_server_with_known_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    for module in (http_stream, serving_load):
        monkeypatch.setattr(module, "time", clock)
    async with fake_server() as fake:
        fake.clock = clock
        result = await send_one(fake, Row(1, 9, 6, 1))
    assert result.error == "" and (result.prompt_tokens, result.output_tokens) == (9, 6)
    assert result.ttft == FIRST and result.gaps == [NEXT] * 5 and result.tpot == NEXT
    assert result.latency == FIRST + 5 * NEXT and result.end - result.last == END


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("status", "status 503: {.*busy"),
        ("breaks", "middle of its reply"),
        ("error event", "an error event: .*boom"),
        ("silent", "without a chunk"),
        ("no usage", "no usage"),
    ],
)
async def test_failures_are_results(fault: str, sentence: str) -> None:
    async with fake_server(fault) as fake:
        result = await send_one(fake, Row(1, 4, 3, 1))
    assert result.end > result.start
    with pytest.raises(AssertionError, match=sentence):
        raise AssertionError(result.error)


async def test_a_late_reply_and_no_server() -> None:
    async with fake_server() as fake:
        assert (await send_one(fake, Row(1, 4, 50, 1), 0.3)).error == "no end within 0.3 s"
    fake.port = 1
    assert "onnect" in (await send_one(fake, Row(1, 4, 3, 1))).error


async def test_bytes_that_nobody_asked_for_end_the_connection() -> None:
    async def talk(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 408 Timeout\r\n\r\n")
        await writer.drain()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    connection = await Connection.open("127.0.0.1", server.sockets[0].getsockname()[1])
    await until(lambda: not connection.usable)
    server.close()


# ---------------------------------------------------------------------------------------------------- the whole command


async def bench(fake: FakeServer, *flags: str) -> tuple[int, str, str]:
    command = [sys.executable, str(BENCH / "serve_bench.py"), "--url", f"http://127.0.0.1:{fake.port}", *flags]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_a_closed_loop_keeps_its_limit_over_processes(tmp_path: Path) -> None:
    async with fake_server(hold=18) as fake:
        flags = ("--row", "18x5x4:40", "--row", "1x3x2:2", "--processes", "2", "--warmup", "0")
        status, out, err = await bench(fake, *flags, "--json", str(tmp_path / "out.json"))
    assert status == 0, out + err
    assert fake.most_open == 18 and len(fake.bodies) == 42
    assert fake.n_connections <= 1 + 18 + 1  # kept alive; the first asked for the model's name
    prompts = [tuple(body["prompt"]) for body in fake.bodies]
    assert len(set(prompts)) == 42 and sorted(map(len, prompts)) == [3] * 2 + [5] * 40
    body = fake.bodies[0]
    assert body["model"] == "fake" and body["path"] == "/v1/completions"
    assert body["ignore_eos"] is True and body["temperature"] == 0 and body["max_tokens"] == 4
    report = json.loads((tmp_path / "out.json").read_text())
    row = report["rows"][0]
    assert (row["row"], row["completed"], row["failed"]) == ("18x5x4:40", 40, 0)
    assert (row["prompt_tokens"], row["output_tokens"]) == (200, 160)
    assert row["duration_s"] > 3 * 4 * PAUSE  # 40 requests, 18 at once: three rounds
    assert row["output_tokens_per_s"] == pytest.approx(160 / row["duration_s"], rel=1e-3)
    assert "18x5x4:40" in out and "ttft p99" in out


async def test_an_open_loop_waits_for_no_answer() -> None:
    async with fake_server(hold=10) as fake:
        status, out, err = await bench(
            fake, "--row", "0x5x2:10", "--rate", "20", "--even", "--warmup", "0", "--prompt", "chat"
        )
    assert status == 0, out + err
    assert fake.most_open == 10
    assert fake.bodies[0]["path"] == "/v1/chat/completions"
    assert len(fake.bodies[0]["messages"][0]["content"].split()) == 5


async def test_failed_requests_are_shown_and_fail_the_command() -> None:
    async with fake_server("status") as fake:
        status, out, _ = await bench(fake, "--row", "2x5x2:3", "--prompt", "text", "--model", "m")
    assert status == 1 and "3 failed: status 503" in out and fake.bodies[0]["model"] == "m"


# --------------------------------------------------------------------------------------------------------- wrong use


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--url", "http://127.0.0.1:99999"], "'http://127.0.0.1:99999' is no address of the form http://HOST:PORT"),
        (["--url", "http://[::1"], "'http://[::1' is no address"),
        (["--url", "https://127.0.0.1"], "'https://127.0.0.1' is no address"),
        (["--url", ""], "'' is no address"),
        (["--url", "http://127.0.0.1:1"], "127.0.0.1:1 does not name its models"),
        (["--tokenizer", "/nowhere"], "/nowhere/tokenizer.json cannot be read"),
        (["--rate", "nan"], "argument --rate: must be from 0.001 to 1000000, got nan"),
        (["--rate", "inf"], "argument --rate: must be from 0.001 to 1000000, got inf"),
        (["--rate", "0"], "argument --rate: must be"),
        (["--even"], "--even says how requests arrive at a --rate"),
        (["--warmup", "-1"], "argument --warmup: must be from 0 to 10000, got -1"),
        (["--processes", "-1"], "argument --processes: must be from 0 to 64, got -1"),
        (["--processes", "x"], "argument --processes: 'x' is no whole number"),
        (["--timeout", "0"], "argument --timeout: must be from 0.001"),
        (["--timeout", "nan"], "argument --timeout: must be from 0.001"),
        (["--row", "5"], "'5' is no row"),
        (["--row", "0x8:1"], "a row without a limit (concurrency 0) needs --rate"),
        (["--row", "1x8:0"], "input, output and number of prompts must be at least 1"),
        (["--row", "1x999999999999:1"], "more than 1,048,576 of anything is no measurement"),
        (["--api-key", "a\nb"], "argument --api-key: must be printable ASCII characters"),
        (["--json", "/nowhere/x.json"], "--json /nowhere/x.json: No such file or directory"),
    ],
)
def test_wrong_use_is_a_sentence(flags: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        serve_bench.main(["--url", "http://127.0.0.1:1", "--row", "1x8:1", *flags])
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == "" and sentence in err.splitlines()[-1]


def test_a_tokenizer_without_text_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 0}]}')
    with pytest.raises(SystemExit):
        text_ids(tmp_path)
    assert "has no text tokens" in capsys.readouterr().err


def test_an_address_of_version_6_stands_in_brackets() -> None:
    request = Target("::1", 8000, "", "m", "ids", None, [1]).request(Row(1, 2, 3, 4), random.Random(0))
    assert b"\r\nHost: [::1]:8000\r\n" in request


@pytest.mark.parametrize("size", [b"-6", b"+2", b"0x2", b"1_0", b"", b" ", b"g"])
def test_a_length_that_is_none_is_refused(size: bytes) -> None:
    reader = ReplyReader(lambda _data, _now: None)
    with pytest.raises(StreamError, match="a chunk's length is"):
        reader.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + size + b"\r\nab\r\n", 0.0)
