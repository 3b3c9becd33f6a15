"""The load of a serving benchmark: random prompts, their schedule, and the processes that send them and listen.

Owns: what a request says, the closed and the open loop, the timing of one reply. Refuses to know: arguments, tables,
what the times mean (serving_metrics.py), how bytes travel (http_stream.py).
Requests are taken in order from a counter that all processes share, so that a row's limit holds over processes; each
process sends and listens in one event loop. Prompts are made before the clock starts.
Linux: the processes' times are of one monotonic clock.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing as mp
import os
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from http_stream import Connection, StreamError
from serving_metrics import RequestResult

_MOST = 1 << 20

# Each is one token of Qwen3's tokenizer (and of most), the blank before it included; a text prompt draws from them.
_WORDS = ["the", "of", "and", "to", "in", "is", "that", "it", "was", "for", "on", "are", "as", "with", "his", "they"]
_WORDS += ["at", "be", "this", "from", "have", "or", "by", "one", "had", "not", "but", "what", "all", "were", "when"]


def within(convert: type[int] | type[float], low: float, high: float) -> Callable[[str], Any]:
    """argparse type: a number within limits."""

    def parse(text: str) -> int | float:
        try:
            value = convert(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no {'whole ' * (convert is int)}number") from None
        if not low <= value <= high:  # NaN is nowhere
            raise argparse.ArgumentTypeError(f"must be from {low:.15g} to {high:.15g}, got {text}")
        return value

    return parse


@dataclass(frozen=True)
class Row:
    """One measurement. concurrency 0: no limit."""

    concurrency: int
    n_input: int
    n_output: int
    n_prompts: int

    @classmethod
    def parse(cls, text: str) -> Row:
        """argparse type."""
        match = re.fullmatch(r"(\d+)x(\d+)(?:x(\d+))?(?::(\d+))?", text)
        if match is None:
            raise argparse.ArgumentTypeError(f"{text!r} is no row; write one like 32x512:256 or 32x512x128:256")
        concurrency, n_input = int(match[1]), int(match[2])
        row = cls(concurrency, n_input, int(match[3] or 128), int(match[4] or max(8, 4 * concurrency)))
        if not (row.n_input and row.n_output and row.n_prompts):
            raise argparse.ArgumentTypeError(f"{text!r}: input, output and number of prompts must be at least 1")
        if max(row.n_input, row.n_output, row.n_prompts, row.concurrency) > _MOST:
            raise argparse.ArgumentTypeError(f"{text!r}: more than {_MOST:,} of anything is no measurement")
        return row

    def __str__(self) -> str:
        return f"{self.concurrency}x{self.n_input}x{self.n_output}:{self.n_prompts}"


@dataclass(frozen=True)
class Target:
    """The server and what a request to it looks like."""

    host: str
    port: int
    prefix: str  # of the path, without a slash at its end
    model: str
    kind: str  # "ids", "text", "chat"
    api_key: str | None
    ids: list[int]  # that prompts of kind "ids" draw from

    def request(self, row: Row, rng: random.Random) -> bytes:
        """Head and body of one request."""
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": row.n_output,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.kind == "ids":
            body["prompt"] = rng.choices(self.ids, k=row.n_input)
        else:
            text = "".join(f" {word}" for word in rng.choices(_WORDS, k=row.n_input))
            body |= {"messages": [{"role": "user", "content": text}]} if self.kind == "chat" else {"prompt": text}
        data = json.dumps(body).encode()
        path = "/v1/chat/completions" if self.kind == "chat" else "/v1/completions"
        host = f"[{self.host}]" if ":" in self.host else self.host  # IPv6
        head = f"POST {self.prefix}{path} HTTP/1.1\r\nHost: {host}:{self.port}\r\nContent-Type: application/json\r\n"
        if self.api_key is not None:
            head += f"Authorization: Bearer {self.api_key}\r\n"
        return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


@dataclass(frozen=True)
class Schedule:
    """How requests are sent. rate: arrivals per second, None: a closed loop. processes 0: chosen here."""

    rate: float | None = None
    poisson: bool = True
    processes: int = 0
    timeout: float = 600.0  # seconds until a request has failed


class EventLog:
    """Writes the chunks of one reply into its result."""

    def __init__(self, result: RequestResult) -> None:
        self._result = result

    def __call__(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":
            return
        event = json.loads(data)
        result = self._result
        if event.get("choices"):
            if result.first:
                result.gaps.append(now - result.last)
            else:
                result.first = now
            result.last = now
        if event.get("usage"):
            usage = event["usage"]
            result.prompt_tokens = usage["prompt_tokens"]
            result.output_tokens = usage["completion_tokens"]
            result.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        if event.get("error"):
            raise StreamError(f"an error event: {str(event['error'])[:200]}")


class Client:
    """One process's share of a row."""

    def __init__(self, host: str, port: int, timeout: float) -> None:
        self._host = host
        self._port = port
        self._timeout = timeout
        self._idle: list[Connection] = []
        self.results: list[RequestResult] = []

    async def send(self, index: int, request: bytes) -> None:
        """One request from start to end; what goes wrong is in its result."""
        result = RequestResult(index, start=time.perf_counter())
        self.results.append(result)
        connection: Connection | None = None
        try:
            async with asyncio.timeout(self._timeout):
                connection = self._take_idle() or await Connection.open(self._host, self._port)
                reply = await connection.post(request, EventLog(result))
            if reply.status != 200:
                result.error = f"status {reply.status}: {reply.error_body[:200].decode('utf-8', 'replace')}"
            elif not result.first:
                result.error = "the stream ended without a chunk"
            elif not result.output_tokens:
                result.error = "the server sent no usage (stream_options.include_usage)"
        except TimeoutError:
            result.error = f"no end within {self._timeout:g} s"
        except (OSError, StreamError) as error:
            result.error = str(error)
        result.end = time.perf_counter()
        if connection is not None:
            if connection.usable:
                self._idle.append(connection)
            else:
                connection.close()

    def _take_idle(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    def close(self) -> None:
        for connection in self._idle:
            connection.close()


def arrivals(n: int, rate: float, poisson: bool, rng: random.Random) -> list[float]:
    """Seconds from the beginning at which each of n requests is sent. Poisson times are scaled to end at n / rate."""
    if not poisson:
        return [i / rate for i in range(n)]
    times, now = [], 0.0
    for _ in range(n):
        now += rng.expovariate(rate)
        times.append(now)
    return [time * n / rate / now for time in times]


async def closed_loop(client: Client, requests: list[bytes], n_workers: int, counter: Any) -> None:
    """n_workers requests at once, each taking the next prompt when its last reply has ended."""

    async def worker() -> None:
        while True:
            with counter.get_lock():
                index = counter.value
                counter.value = index + 1
            if index >= len(requests):
                return
            await client.send(index, requests[index])

    await asyncio.gather(*(worker() for _ in range(n_workers)))


async def open_loop(client: Client, requests: list[bytes], times: list[float], mine: range, limit: int) -> None:
    """Requests `mine` at their times; with a limit, those that come too early wait for a place."""
    places = asyncio.Semaphore(limit or len(requests))
    begin = time.perf_counter()

    async def one(index: int) -> None:
        async with places:
            await client.send(index, requests[index])

    tasks = []
    for index in mine:
        await asyncio.sleep(begin + times[index] - time.perf_counter())
        tasks.append(asyncio.create_task(one(index)))
    await asyncio.gather(*tasks)


def share(total: int, n: int, i: int) -> int:
    """The i-th of n nearly equal parts of total."""
    return total // n + (i < total % n)


def client_process(
    number: int, n_processes: int, target: Target, row: Row, requests: list[bytes], schedule: Schedule,
    times: list[float] | None, counter: Any, gate: Any, out: Any,
) -> None:  # fmt: skip
    """Body of a client process: waits for the others, plays its share, and sends (results, share of a core) back."""
    client = Client(target.host, target.port, schedule.timeout)
    n_workers = share(row.concurrency or row.n_prompts, n_processes, number)
    gate.wait()
    wall, cpu = time.perf_counter(), time.process_time()
    mine = range(number, row.n_prompts, n_processes)

    async def run() -> None:
        if times is None:
            await closed_loop(client, requests, n_workers, counter)
        else:
            await open_loop(client, requests, times, mine, n_workers if row.concurrency else 0)
        client.close()

    asyncio.run(run())
    busy = (time.process_time() - cpu) / max(time.perf_counter() - wall, 1e-9)
    out.send((client.results, busy))


def play(target: Target, row: Row, schedule: Schedule, seed: str) -> tuple[list[RequestResult], float]:
    """Runs one row: the results, and how busy the busiest client process was."""
    rng = random.Random(seed)
    requests = [target.request(row, rng) for _ in range(row.n_prompts)]
    times = arrivals(row.n_prompts, schedule.rate, schedule.poisson, rng) if schedule.rate else None
    most = min(row.concurrency or row.n_prompts, row.n_prompts)
    n_processes = min(schedule.processes or max(1, min(4, (os.cpu_count() or 1) // 4)), (most + 15) // 16)
    context = mp.get_context("fork")
    counter, gate = context.Value("q", 0), context.Barrier(n_processes)
    pipes, processes = [], []
    for number in range(n_processes):
        ours, theirs = context.Pipe(False)
        arguments = (number, n_processes, target, row, requests, schedule, times, counter, gate, theirs)
        process = context.Process(target=client_process, args=arguments, daemon=True)
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    results: list[RequestResult] = []
    busiest = 0.0
    for pipe, process in zip(pipes, processes, strict=True):
        try:
            part, busy = pipe.recv()
        except EOFError:
            raise RuntimeError("A client process died; its message is above.") from None
        results += part
        busiest = max(busiest, busy)
        process.join()
    return results, busiest
