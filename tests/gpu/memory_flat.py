"""Memory over many requests: neither the GPU's, after the first tenth, nor the process's, after three, may grow.

    python tests/gpu/memory_flat.py MODEL_DIR [--requests 10000] [--device cuda:0] [--kv-mb 16]

Short random requests of every kind (greedy, sampled, penalties, logprobs, several samples, some cancelled) through the
C ABI, 1 to 64 at once in turn, so that every recorded batch size is met early. Device memory is the driver's own count
(cuMemGetInfo) and must be equal to the byte; resident memory may wander by a few MB. The KV pool is small, so that on
the CPU those requests have touched all of it. Exit status 1 if either grows.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))
from qwen3app.abi.engine import Engine
from qwen3app.abi.types import EngineOptions, EngineRequest, EventKind

_AT_ONCE = (1, 2, 5, 8, 13, 24, 40, 64)
_TENTHS = 10
_SETTLED = 3  # tenths
_RESIDENT_SLACK = 8 << 20


class DeviceMemory:
    """Used bytes of one GPU as the driver counts them."""

    def __init__(self, device: str) -> None:
        self._driver: ctypes.CDLL | None = None
        if device == "cpu":
            return
        self._driver = ctypes.CDLL("libcuda.so.1")
        handle, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(handle), int(device.partition(":")[2] or 0))
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
        self._call("cuCtxSetCurrent", context)

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._driver, name)(*arguments)
        if status != 0:
            raise SystemExit(f"memory_flat: {name} gave {status}.")

    def used(self) -> int:
        if self._driver is None:
            return 0
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return total.value - free.value


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def random_request(rng: random.Random, vocab: int) -> EngineRequest:
    kind = rng.randrange(6)
    return EngineRequest(
        prompt=rng.choices(range(vocab), k=rng.randint(1, 48)),
        max_tokens=rng.randint(1, 8),
        n=2 if kind == 1 else 1,
        temperature=0.0 if kind == 0 else 0.9,
        top_p=0.9 if kind == 2 else 1.0,
        top_k=20 if kind == 3 else 0,
        repetition_penalty=1.1 if kind == 4 else 1.0,
        logprobs=kind == 5,
        top_logprobs=3 if kind == 5 else 0,
        seed=rng.getrandbits(32),
        ignore_eos=True,
    )


def play(engine: Engine, rng: random.Random, vocab: int, n_requests: int) -> int:
    """Runs n_requests, the number at once changing every 25 requests; the number of events."""
    alive: dict[int, int] = {}  # request -> samples that run
    sent = n_events = 0
    while sent < n_requests or alive:
        at_once = _AT_ONCE[sent // 25 % len(_AT_ONCE)]
        while sent < n_requests and len(alive) < at_once:
            request = random_request(rng, vocab)
            number = engine.submit(request)
            alive[number] = request.n
            sent += 1
            if rng.random() < 0.05:
                engine.cancel(number)
        for event in engine.poll(60_000).events:
            n_events += 1
            if event.kind == EventKind.FINISHED:
                alive[event.request] -= 1
                if not alive[event.request]:
                    del alive[event.request]
    return n_events


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--kv-mb", type=int, default=16, help="KV pool (default: 16, right for the tiny shape)")
    arguments = parser.parse_args()
    memory = DeviceMemory(arguments.device)
    rng = random.Random(1)
    options = EngineOptions(device=arguments.device, max_slots=64, kv_bytes=arguments.kv_mb << 20, token_budget=512)
    engine = Engine.open(arguments.model, options)
    vocab = engine.info().n_token_ids
    begin, device, process = time.monotonic(), [], []
    for _ in range(_TENTHS):
        n_events = play(engine, rng, vocab, arguments.requests // _TENTHS)
        device.append(memory.used())
        process.append(resident())
        print(f"{n_events} events, device {device[-1]:,} B used, process {process[-1]:,} B resident", flush=True)
    stats = engine.stats()
    engine.close()
    grown, wandered = max(device) - device[0], max(process[_SETTLED:]) - process[_SETTLED - 1]
    ok = grown == 0 and wandered <= _RESIDENT_SLACK and stats.blocks_used == 0 and stats.n_running == 0
    print(
        f"{'ok   ' if ok else 'FAIL '} {stats.requests_submitted} requests in {time.monotonic() - begin:.1f} s: "
        f"device memory grew by {grown:,} B, resident memory by {wandered:,} B, {stats.blocks_used} blocks left over"
    )
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
