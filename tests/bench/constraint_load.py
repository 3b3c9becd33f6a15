"""What constraints cost: constrained streams against free ones, and how long nasty constraints and bodies stall others.

Runs against a server that is up. Both figures are of the whole way, HTTP included; the load comes from this process, so
leave it a core of its own. `--rounds` alternates both kinds, since machines change their speed: the change "by rounds"
is the median of each round's own (and its quartiles), which such changes touch least. With `--pid` of the server a
token's processor time is printed too, by thread. Gaps beside a nasty constraint are to be read beside those of the
first two rows: nothing, and plain requests.

  qwen3-8b serve --model models/tiny --port 8000
  python tests/bench/constraint_load.py http://127.0.0.1:8000
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import httpx

# Schemas of lists that never have to end: as long as a free answer, like those that clients send in their parts.
SCHEMA = {
    "type": "array",
    "minItems": 1000,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 4},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": False,
    },
}
CONSTRAINED = {"response_format": {"type": "json_schema", "json_schema": {"name": "list", "schema": SCHEMA}}}
NOTHING = "nothing"
NASTY: dict[str, dict[str, Any]] = {
    "no constraint": {},
    "enum of 1 MB": {"guided_json": {"enum": [f"{i:08}" for i in range(90_000)]}},
    "enum of 200 KB": {"guided_json": {"enum": [f"{i:08}" for i in range(20_000)]}},
    "3,000 properties": {"guided_json": {"properties": {f"p{i}": {"type": "string"} for i in range(3000)}}},
    "2,000 alternatives": {
        "guided_json": {
            "anyOf": [{"properties": {f"p{i}": {"type": "string"}}, "required": [f"p{i}"]} for i in range(2000)]
        }
    },
    "(x{1,1000}){1,1000}": {"guided_regex": "(x{1,1000}){1,1000}"},
    "nested repetitions": {"guided_regex": "((((a{1,50}){1,50}){1,50}){1,50})"},
    "long look-back": {"guided_regex": "(.*a.{18}|.*b.{17}|.*c.{16})*"},
    "200 x .*": {"guided_regex": ".*" * 200},
    "deep grammar": {"guided_grammar": "start: " + "(" * 50_000 + '"a"' + ")" * 50_000},
    "10,000 choices": {"guided_choice": [f"{i} and more of it" for i in range(10_000)]},
}
# Bodies about as large as a server takes, and with as many values.
BODIES: dict[str, dict[str, Any]] = {
    "1,300,000 lists": {"x": [[]] * 1_300_000},
    "65,000 objects": {"x": [{"a": 1}] * 65_000},
    "130,000 names": {"x": {f"{i:x}": 1 for i in range(130_000)}},
    "500,000 numbers": {"x": [1.5] * 500_000},
    "400,000 ids": {"prompt": [100] * 400_000},
    "3,000 prompts": {"prompt": ["hello my word " * 70] * 3000},
    "1,000 prompts, 64 stops": {"prompt": [[1]] * 1000, "stop": [f"{i:02}" + "ab" * 126 for i in range(64)]},
    "4 MB of words": {"prompt": "hello my word " * 280_000},
    "4 MB without a word": {"prompt": "a" * 3_900_000},
    "4 MB of line ends": {"prompt": "\n" * 1_900_000},
}
NASTY |= BODIES


async def complete(host: str, port: int, n_tokens: int, **fields: Any) -> int:
    """One stream, read as cheaply as can be: what the client takes is taken from the server on a small machine."""
    body = {"prompt": "Once upon a time", "max_tokens": n_tokens, "ignore_eos": True, "stream": True, **fields}
    body["stream_options"] = {"include_usage": True}
    text = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 20)
    writer.write(f"{head}Content-Length: {len(text)}\r\nConnection: close\r\n\r\n".encode() + text)
    tail = begin = await reader.read(1 << 16)
    while data := await reader.read(1 << 20):
        tail = (tail + data)[-4096:]
    writer.close()
    if not begin.startswith(b"HTTP/1.1 200"):
        raise SystemExit((begin + tail).decode(errors="replace"))
    usage = re.search(rb'"completion_tokens":(\d+)', tail)
    if usage is None:
        raise SystemExit(f"a stream without usage: {tail!r}")
    return int(usage[1])


def cpu_by_thread(pid: int | None) -> dict[str, float]:
    """Processor seconds of the server's threads, those of one name together."""
    used: dict[str, float] = {}
    for task in Path(f"/proc/{pid}/task").iterdir() if pid else ():
        try:
            name, times = (task / "comm").read_text().strip(), (task / "schedstat").read_text()
        except OSError:
            continue  # it has ended meanwhile
        used[name] = used.get(name, 0) + int(times.split()[0]) * 1e-9
    return used


async def throughput(
    url: httpx.URL, pid: int | None, n_streams: int, n_tokens: int, **fields: Any
) -> tuple[float, dict[str, float]]:
    """Tokens per second, and the processor time of the server's threads per token in microseconds."""
    before = cpu_by_thread(pid)
    begin = time.perf_counter()
    streams = (complete(url.host, url.port or 80, n_tokens, seed=i, **fields) for i in range(n_streams))
    n = sum(await asyncio.gather(*streams))
    seconds = time.perf_counter() - begin
    return n / seconds, {name: (t - before.get(name, 0)) / n * 1e6 for name, t in cpu_by_thread(pid).items()}


async def press(client: httpx.AsyncClient, load: dict[str, Any], seconds: float) -> None:
    """Sends one request again and again, from two connections, and prints the last status."""
    end = time.perf_counter() + seconds

    async def one(salt: int) -> int:
        status = 0
        fields = {"prompt": f"x{salt}", "max_tokens": 24, **load}
        body = json.dumps(fields, separators=(",", ":")).encode()
        while time.perf_counter() < end:
            status = (await client.post("/v1/completions", content=body)).status_code
        return status

    print(*set(await asyncio.gather(one(1), one(2))))


class CoreWaits:
    """How long the threads that a stream passes, the server's and this one, were ready and had no core."""

    def __init__(self, pid: int | None) -> None:
        own = Path("/proc/thread-self/schedstat")
        tasks = list(Path(f"/proc/{pid}/task").iterdir()) if pid else []
        names = ("qwen3-engine", "qwen3-cpu")
        passed = [task for task in tasks if task.name == str(pid) or (task / "comm").read_text().startswith(names)]
        theirs = [task / "schedstat" for task in passed]
        self._files = [os.open(path, os.O_RDONLY) for path in (own, *theirs)] if pid else []
        self._last = self._read()

    def _read(self) -> list[int]:
        return [int(os.pread(file, 64, 0).split()[1]) for file in self._files]

    def longest(self) -> float:
        """Of one thread, in seconds since the last call: what is left of a gap without it is the program's own, and
        perhaps other threads' waits."""
        now = self._read()
        waits = [b - a for a, b in zip(self._last, now, strict=True)]
        self._last = now
        return max(waits, default=0) * 1e-9


Gap = tuple[float, float]  # seconds; without the longest wait for a core


async def gaps(
    client: httpx.AsyncClient, url: str, seconds: float, name: str, waits: CoreWaits
) -> tuple[list[Gap], str]:
    """Times between two pieces of one free stream, while another process presses."""
    times: list[Gap] = []
    presser = None
    if name != NOTHING:
        command = [sys.executable, __file__, url, "--press", name, "--seconds", str(seconds + 1)]
        presser = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        await asyncio.sleep(1)  # it starts
    body = {"prompt": "Once", "max_tokens": 3500, "ignore_eos": True, "stream": True}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        async with client.stream("POST", "/v1/completions", json=body) as reply:
            last = None
            async for _ in reply.aiter_raw():
                now, waited = time.perf_counter(), waits.longest()
                if last is not None:
                    times.append((now - last, max(now - last - waited, 0.0)))
                last = now
                if now > end:
                    break
    output = (await presser.communicate())[0].decode().strip() if presser else "-"
    return times, output


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("url")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pid", type=int)
    parser.add_argument("--press", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each nasty request; 0: none")
    parser.add_argument("--only", nargs="+", choices=NASTY, default=list(NASTY), help="nasty requests, by name")
    arguments = parser.parse_args()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=arguments.url, timeout=600, limits=limits) as client:
        if arguments.press:
            return await press(client, NASTY[arguments.press], arguments.seconds)
        for n in arguments.streams:
            free, held = [], []
            for _ in range(arguments.rounds):
                free.append(await throughput(client.base_url, arguments.pid, n, arguments.tokens))
                held.append(await throughput(client.base_url, arguments.pid, n, arguments.tokens, **CONSTRAINED))
            for name, pick in (("median", statistics.median), ("best", max)):
                a, b = (pick([speed for speed, _ in each]) for each in (free, held))
                change = f"{100 * (b / a - 1):+.1f}%"
                print(f"{n:3} streams, {name:6}: free {a:8,.0f} tok/s, constrained {b:8,.0f} tok/s, {change}")
            changes = [100 * (b / a - 1) for (a, _), (b, _) in zip(free, held, strict=True)]
            low, middle, high = statistics.quantiles(changes, n=4) if len(changes) > 1 else changes * 3
            print(f"{n:3} streams, change by rounds: {middle:+.1f}% ({low:+.1f} to {high:+.1f}%)")
            for kind, rounds in (("free", free), ("constrained", held)) if arguments.pid else ():
                means = {name: statistics.fmean(cpu.get(name, 0) for _, cpu in rounds) for name in rounds[-1][1]}
                parts = ", ".join(f"{name} {t:.1f}" for name, t in sorted(means.items()) if t >= 0.05)
                print(f"{n:3} streams, {kind}: {sum(means.values()):.1f} us/tok of the processor: {parts}")
        waits = CoreWaits(arguments.pid)
        if arguments.seconds:
            for name in [NOTHING, *arguments.only]:
                times, outcome = await gaps(client, arguments.url, arguments.seconds, name, waits)
                shown = []
                for what, each in (
                    ("", [gap for gap, _ in times]),
                    ("without waits for a core ", [own for _, own in times]),
                ):
                    p999 = sorted(each)[int(len(each) * 0.999)] * 1e3
                    shown.append(f"{what}p99.9 {p999:6.2f} ms, longest {max(each) * 1e3:6.2f} ms")
                print(f"{name:22} {outcome:>7}  gaps beside it: {'; '.join(shown if arguments.pid else shown[:1])}")


if __name__ == "__main__":
    asyncio.run(main())
