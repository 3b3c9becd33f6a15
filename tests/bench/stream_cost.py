"""What streaming costs: CPU time per token of everything outside the engine's threads.

    python tests/bench/stream_cost.py [--model DIR] [--streams 32 256] [--tokens 400] [--chat] [--tools] [--limit 40]

Starts `serve` on a (tiny) checkpoint, opens N streams at once from a second process, and reads the CPU time of the
server's threads from /proc before and after: the main thread (HTTP, detokenizing, parsing) and the poll thread, which
are Python's, against the engine's own. Prints one line per N; with --limit it fails where a line is above it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_TICK = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> dict[int, float]:
    """CPU time of each thread."""
    result = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        # schedstat counts nanoseconds; stat's ticks are too coarse for short runs
        result[int(task.name)] = int((task / "schedstat").read_text().split()[0]) * 1e-9
    return result


async def stream(host: str, port: int, path: str, body: bytes) -> tuple[int, int]:
    """One streamed request on a raw socket: (events, bytes)."""
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 20)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    size = events = 0
    tail = b""
    while b"data: [DONE]" not in tail:
        data = await reader.read(1 << 16)
        if not data:
            raise RuntimeError(f"the stream broke off: {tail!r}")
        size += len(data)
        events += data.count(b"data: ")
        tail = (tail + data)[-200:]
    writer.close()
    return events - 1, size


async def load(host: str, port: int, n_streams: int, n_tokens: int, chat: bool, tools: bool) -> int:
    base: dict[str, object] = {"max_tokens": n_tokens, "stream": True, "ignore_eos": True, "temperature": 0.8}
    if tools:
        base["tools"] = [{"type": "function", "function": {"name": "f"}}]
    bodies = []
    for i in range(n_streams):
        text = f"Tell me story {i}"
        ask = {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
        bodies.append(json.dumps({**base, **ask, "seed": i}).encode())
    path = "/v1/chat/completions" if chat else "/v1/completions"
    results = await asyncio.gather(*(stream(host, port, path, body) for body in bodies))
    return sum(events for events, _ in results)


def start(model: Path, slots: int, log: Path) -> tuple[subprocess.Popen[bytes], str, int]:
    command = [sys.executable, "-m", "qwen3app.cli", "serve", "--model", str(model), "--port", "0"]
    command += ["--slots", str(slots), "--kv-gb", "1", "--threads", "1", "--max-ctx", "4096"]
    with log.open("wb") as stderr:
        server = subprocess.Popen(command, stderr=stderr, cwd=ROOT)
    while '"event":"ready"' not in log.read_text():
        if server.poll() is not None:
            raise SystemExit(log.read_text())
        time.sleep(0.05)
    found = re.search(r"http://([\d.]+):(\d+)", log.read_text())
    assert found is not None
    return server, found.group(1), int(found.group(2))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--streams", type=int, nargs="+", default=[32, 256])
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--chat", action="store_true")
    parser.add_argument("--tools", action="store_true", help="chat whose answers are searched for tool calls")
    parser.add_argument("--limit", type=float, help="microseconds per token outside the engine that are too many")
    args = parser.parse_args()
    chat = args.chat or args.tools
    failed = False
    with tempfile.TemporaryDirectory() as temporary:
        model = args.model
        if model is None:
            model = Path(temporary) / "tiny"
            maker = [
                sys.executable,
                str(ROOT / "build_tools" / "make_checkpoint.py"),
                "--shape",
                "tiny",
                "--out",
                str(model),
            ]
            subprocess.run(maker, check=True, stdout=subprocess.DEVNULL)
        for n_streams in args.streams:
            server, host, port = start(model, n_streams, Path(temporary) / "log")
            try:
                asyncio.run(load(host, port, 2, 20, chat, args.tools))  # warm
                before = cpu_seconds(server.pid)
                begin = time.perf_counter()
                events = asyncio.run(load(host, port, n_streams, args.tokens, chat, args.tools))
                seconds = time.perf_counter() - begin
                after = cpu_seconds(server.pid)
            finally:
                server.terminate()
                server.wait(20)
            used = {tid: after[tid] - before.get(tid, 0.0) for tid in after}
            n_tokens = n_streams * args.tokens
            engine = max((tid for tid in used if tid != server.pid), key=lambda tid: used[tid])
            ours = sum(value for tid, value in used.items() if tid != engine)
            print(
                f"{n_streams} streams: {n_tokens / seconds:,.0f} tokens/s, {events / n_tokens:.2f} events per token, "
                f"outside the engine {ours / n_tokens * 1e6:.1f} us CPU per token "
                f"(main thread {used[server.pid] / n_tokens * 1e6:.1f}), engine {used[engine] / n_tokens * 1e6:.1f} us",
                flush=True,
            )
            failed = failed or (args.limit is not None and ours / n_tokens * 1e6 > args.limit)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
