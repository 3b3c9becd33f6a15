#!/usr/bin/env python3
"""Keeps a server under a crowd of streams, a part of which break off at a random moment, and says whether all is well.

Starts `qwen3-8b serve` on a model directory and holds `--streams` connections at it for `--seconds`: each asks for a
streamed chat answer, reads it to the end or leaves (`--leave`, at a random time), and begins anew. At the end it waits
until the server is idle. One JSON object on stdout: answers, disconnects, errors, wrong texts (an answer must equal the
one that its seed gave alone), the server's memory over time, KV blocks left over, the delay from the engine's event to
the socket write as /metrics has it, and what other programs used of the cores meanwhile: where that is much, the delay
is theirs and is not judged. Exit code 1 when something is wrong.
Usage: .venv/bin/python tests/bench/soak.py MODEL_DIR --seconds 300
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_SEEDS = 40
_TEXT = re.compile(rb'"(?:content|text)":("(?:[^"\\]|\\.)*")')
_SETTLED = 0.25  # of the time has passed: caches, pools and the allocator have grown to what the load needs
_MEMORY_LIMIT = 1.02
_DELAY_LIMIT = 0.005
_QUIET = 0.05  # of all cores, for other programs: the load takes all of two


def body_of(i: int, stream: bool) -> bytes:
    return json.dumps(
        {
            "messages": [{"role": "user", "content": f"Question {i}: what is a fox?"}],
            "max_tokens": 16 + i,
            "temperature": 0.8,
            "seed": i,
            "ignore_eos": True,
            "stream": stream,
            "enable_thinking": False,
        }
    ).encode()


def text_of(reply: bytes) -> str:
    """What the answer says, of all its chunks together."""
    return "".join(json.loads(found) for found in _TEXT.findall(reply))


class Crowd:
    """The clients, in one event loop."""

    def __init__(self, url: str, leave: float, least: int) -> None:
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []
        self._host, _, self._port = url.removeprefix("http://").partition(":")
        self._leave = leave
        self._least = least
        self._expected: dict[int, str] = {}
        self._chance = random.Random(11)

    async def learn(self) -> None:
        """The right answers, one after the other, in one piece."""
        for i in range(_SEEDS):
            reply = await self._ask(i, stream=False)
            self._expected[i] = text_of(reply)

    async def stay(self, deadline: float) -> None:
        """One client after the other in one place of the crowd."""
        while time.monotonic() < deadline or min(self.counts["answered"], self.counts["left"]) < self._least:
            i = self._chance.randrange(_SEEDS)
            patience = self._chance.random() * 0.8 if self._chance.random() < self._leave else None
            try:
                async with asyncio.timeout(patience):
                    reply = await self._ask(i, stream=True)
            except TimeoutError:
                self.counts["left"] += 1
                continue
            except (OSError, asyncio.IncompleteReadError) as error:
                self._wrong(f"no answer: {error!r}")
                continue
            if not reply.startswith(b"HTTP/1.1 200 ") or b"data: [DONE]\n\n" not in reply:
                self._wrong(reply[:300].decode("utf-8", "replace"))
            elif text_of(reply) != self._expected[i]:
                self._wrong(f"another text for seed {i}")
            else:
                self.counts["answered"] += 1

    def _wrong(self, what: str) -> None:
        self.counts["wrong"] += 1
        if len(self.errors) < 10:
            self.errors.append(what)

    async def _ask(self, i: int, stream: bool) -> bytes:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            body = body_of(i, stream)
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}"
            writer.write(head.encode() + b"\r\n\r\n" + body)
            return await reader.read()
        finally:
            writer.close()


def scrape(url: str) -> dict[str, float]:
    """/metrics as name with labels -> value."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as reply:
        lines = reply.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def buckets_of(metrics: dict[str, float], name: str) -> list[tuple[float, float]]:
    """A histogram: upper bounds, and how many values are not above."""
    buckets = []
    for key, value in metrics.items():
        if key.startswith(f"{name}_bucket{{"):
            bound = re.search(r'le="([^"]+)"', key)
            assert bound is not None
            buckets.append((float(bound.group(1)), value))
    return sorted(buckets)


def quantile(buckets: list[tuple[float, float]], share: float) -> float:
    """The upper bound of the bucket that holds this share of a histogram."""
    return next(bound for bound, count in buckets if count >= share * buckets[-1][1])


def resident(pid: int) -> int:
    """Bytes of anonymous memory: what mapped weights take is the file's."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found.group(1)) * 1024


class Cores:
    """What programs other than a server and this one use of the processor."""

    def __init__(self, pid: int) -> None:
        self._stat = Path(f"/proc/{pid}/stat")
        self._begin = self._read()

    def _read(self) -> tuple[float, float, float]:
        """Seconds of all cores, busy and altogether, and those of the server and this process."""
        ticks = [int(each) for each in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        server = self._stat.read_text().rpartition(")")[2].split()
        own = (int(server[11]) + int(server[12])) / os.sysconf("SC_CLK_TCK")
        idle = ticks[3] + ticks[4]
        return (
            (sum(ticks) - idle) / os.sysconf("SC_CLK_TCK"),
            sum(ticks) / os.sysconf("SC_CLK_TCK"),
            own + time.process_time(),
        )

    def others(self) -> float:
        """Their share since the begin; what a hypervisor took counts as theirs."""
        busy, total, own = (now - then for now, then in zip(self._read(), self._begin, strict=True))
        return max(busy - own, 0.0) / max(total, 1e-9)


async def watch(pid: int, begin: float, seconds: float) -> list[int]:
    """The server's memory, 100 times."""
    sizes = []
    for i in range(1, 101):
        await asyncio.sleep(max(0.0, begin + seconds * i / 100 - time.monotonic()))
        sizes.append(resident(pid))
    return sizes


def wait_until_idle(url: str) -> dict[str, float]:
    """/metrics once nothing runs any more, or after 30 s."""
    deadline = time.monotonic() + 30
    while True:
        metrics = scrape(url)
        busy = [value for name, value in metrics.items() if name.split("{")[0] in _BUSY]
        if sum(busy) == 0 and metrics["http_requests_open"] == 1:
            return metrics
        if time.monotonic() > deadline:
            return metrics
        time.sleep(0.05)


_BUSY = ("qwen3_requests_running", "qwen3_requests_waiting", "qwen3_kv_blocks_used", "qwen3_generations_running")


def start_server(arguments: argparse.Namespace, log: Path) -> tuple[subprocess.Popen[bytes], str]:
    command = [sys.executable, "-m", "qwen3app.cli", "serve", "--model", arguments.model]
    command += ["--threads", str(arguments.threads), "--kv-gb", "0.05", "--max-ctx", "1024", "--log-level", "warning"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with log.open("wb") as file:
        process = subprocess.Popen([*command, "--port", str(port)], stderr=file, cwd=ROOT)
    url = f"http://127.0.0.1:{port}"
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"{url}/readyz", timeout=5):
                return process, url
        except OSError:
            if process.poll() is not None:
                break
            time.sleep(0.1)
    raise SystemExit(f"soak.py: the server did not start: {log.read_text()[-500:]}")


def soak(arguments: argparse.Namespace, log: Path) -> dict[str, Any]:
    process, url = start_server(arguments, log)
    cores = Cores(process.pid)
    try:
        crowd = Crowd(url, arguments.leave, arguments.least)

        async def run() -> list[int]:
            await crowd.learn()
            nonlocal cores
            cores = Cores(process.pid)
            begin = time.monotonic()
            watching = asyncio.create_task(watch(process.pid, begin, arguments.seconds))
            places = [crowd.stay(begin + arguments.seconds) for _ in range(arguments.streams)]
            await asyncio.gather(*places)
            return await watching

        sizes = asyncio.run(run())
        others = cores.others()
        metrics = wait_until_idle(url)
        process.terminate()
        code = process.wait(30)
    finally:
        process.kill()
    settled = sizes[int(_SETTLED * len(sizes)) :]
    delays = buckets_of(metrics, "qwen3_write_delay_seconds")
    blocks = {name.split("{")[0]: value for name, value in metrics.items() if name.startswith("qwen3_kv_blocks")}
    return {
        "seconds": arguments.seconds,
        "streams": arguments.streams,
        **{name: crowd.counts[name] for name in ("answered", "left", "wrong")},
        "errors": crowd.errors,
        "tokens": int(sum(v for name, v in metrics.items() if name.startswith("qwen3_generation_tokens_total"))),
        "busy_at_the_end": {n: v for n, v in metrics.items() if n.split("{")[0] in _BUSY and v},
        "blocks_lost": blocks["qwen3_kv_blocks"] - blocks["qwen3_kv_blocks_free"] - blocks["qwen3_kv_blocks_cached"],
        "memory_mb": [round(size / 1e6, 1) for size in sizes[9::10]],
        "memory_growth": round(max(settled[-10:]) / max(settled[:10]), 4),
        "write_delay_p50": quantile(delays, 0.5),
        "write_delay_p99": quantile(delays, 0.99),
        "writes_in_time": round(dict(delays)[_DELAY_LIMIT] / delays[-1][1], 4),
        "others_used": round(others, 4),
        "delay_is_judged": others <= _QUIET,
        "exit_code": code,
        "server_log": [line for line in log.read_text().splitlines() if line.startswith("{")][
            :10
        ],  # others are a profiler's,
    }


def complaints(result: dict[str, Any], strict: bool) -> list[str]:
    """What is wrong. strict: time and memory count too, which a short run on a busy machine cannot hold."""
    wrong = []
    if result["wrong"] or result["exit_code"] or result["server_log"]:
        wrong.append("there were errors")
    if result["busy_at_the_end"] or result["blocks_lost"]:
        wrong.append("something was left over")
    if not result["answered"] or not result["left"]:
        wrong.append("nobody was answered, or nobody left")
    if strict and result["memory_growth"] > _MEMORY_LIMIT:
        wrong.append("the memory grew")
    if strict and result["delay_is_judged"] and result["write_delay_p99"] > _DELAY_LIMIT:
        wrong.append("events waited too long for their socket")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--leave", type=float, default=0.2, help="share of the clients that leave early")
    parser.add_argument(
        "--least", type=int, default=0, help="goes on until so many clients were answered and so many left"
    )
    parser.add_argument("--threads", type=int, default=1, help="the engine's")
    parser.add_argument(
        "--lenient", action="store_true", help="only what does not depend on the machine's speed counts"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = soak(arguments, Path(folder) / "log")
    result["complaints"] = complaints(result, strict=not arguments.lenient)
    print(json.dumps(result, indent=1))
    return 1 if result["complaints"] else 0


if __name__ == "__main__":
    sys.exit(main())
