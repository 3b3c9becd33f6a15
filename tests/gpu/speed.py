"""Speed through the C ABI: start, decode of one sequence, decode in batches, prefill, offline throughput.

python tests/gpu/speed.py MODEL_DIR [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))
from qwen3app.abi.engine import Engine
from qwen3app.abi.types import EngineOptions, EngineRequest

RESULT: dict[str, float] = {}


def note(name: str, value: float, unit: str) -> None:
    RESULT[name] = value
    print(f"{name:44s} {value:10.3f} {unit}", flush=True)


def requests(n: int, n_prompt: int, n_output: int, vocab: int, seed: int) -> list[EngineRequest]:
    rng = random.Random(seed)
    prompts = [rng.choices(range(vocab), k=n_prompt) for _ in range(n)]
    return [EngineRequest(prompt=p, max_tokens=n_output, temperature=0.0, ignore_eos=True) for p in prompts]


def run(engine: Engine, batch: list[EngineRequest]) -> tuple[float, float, float, int]:
    """(seconds to the last token, to the first tokens of all, in all-decode steps, tokens)."""
    started = time.monotonic()
    for request in batch:
        engine.submit(request)
    open_, n_tokens, n_first = len(batch), 0, 0
    all_first = last = started
    while open_:
        for event in engine.poll(60_000).events:
            if event[2] == 1:
                n_tokens += 1
                last = event[11] * 1e-9
                if event[10] == 0:
                    n_first += 1
                    all_first = last
            elif event[2] == 3:
                open_ -= 1
    return last - started, all_first - started, last - all_first, n_tokens


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    started = time.monotonic()
    options = EngineOptions(
        device=arguments.device, max_slots=256, token_budget=8192, prefix_cache=False, max_context=33_000
    )
    engine = Engine.open(arguments.model, options)
    info = engine.info()
    note("open", time.monotonic() - started, "s")
    run(engine, requests(1, 128, 8, info.vocab, 0))
    note("open and first tokens", time.monotonic() - started, "s")
    print(f"{info.device_name}, kernels {info.kernels}, KV {info.n_blocks * info.block_size} tokens")
    for _ in range(2):
        _, first, decode, n = run(engine, requests(1, 128, 256, info.vocab, 1))
    note("decode, batch 1, prompt 128", decode / (n - 1) * 1e3, "ms/token")
    note("time to first token, prompt 128", first * 1e3, "ms")
    for size in (8, 64) if arguments.quick else (8, 32, 64, 128, 256):
        _, first, decode, n = run(engine, requests(size, 448, 128, info.vocab, 2))
        note(f"decode, batch {size}, context 448..576", decode / 127 * 1e3, "ms/step")
    for n_requests, n_prompt in ((16, 2048),) if arguments.quick else ((16, 2048), (1, 512), (1, 8192), (1, 32000)):
        total, first, _, _ = run(engine, requests(n_requests, n_prompt, 1, info.vocab, 3))
        note(f"prefill, {n_requests} x {n_prompt}", n_requests * n_prompt / first, "tok/s")
    grid = [(p, n) for p in (128, 512, 1024) for n in (32, 64, 128, 256)]
    if arguments.quick:
        grid = [(128, 64), (512, 128)]
    for n_prompt, n_requests in grid:
        total, _, _, n = run(engine, requests(n_requests, n_prompt, 128, info.vocab, 4))
        note(f"throughput, {n_requests} x {n_prompt} in, 128 out", n / total, "tok/s")
    stats = engine.stats()
    note("steps", stats.steps, "")
    engine.close()
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(RESULT, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
