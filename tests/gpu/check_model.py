"""The whole model on the GPU against transformers on the same GPU, and against itself: exact and deterministic.

    python tests/gpu/check_model.py MODEL_DIR [--lengths 1,2,31,33,257,1025,4096] [--kernels auto,generic]

Prints one line per check and exits with 1 if any fails. docs/numerics.md explains the bars.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

sys.path.insert(0, str(Path(__file__).parent.parent.parent))
from qwen3app.abi.engine import Engine
from qwen3app.abi.types import EngineOptions, EngineRequest

FAILURES: list[str] = []


def report(ok: bool, line: str) -> None:
    print(("ok    " if ok else "FAIL  ") + line, flush=True)
    if not ok:
        FAILURES.append(line)


def gpu_options(**changed: Any) -> EngineOptions:
    return EngineOptions(device="cuda:0", **changed)


def logits(engine: Engine, tokens: list[int], first: int) -> torch.Tensor:
    scores = np.frombuffer(engine.score_logits(tokens, first), dtype=np.float32)
    return torch.from_numpy(scores.copy()).view(len(tokens) - first, -1).cuda()


def rms(difference: torch.Tensor) -> torch.Tensor:
    return difference.double().square().mean(-1).sqrt()


def run(engine: Engine, requests: list[EngineRequest]) -> list[list[tuple[int, float]]]:
    """Tokens with log-probabilities of each request, all submitted at once."""
    places = {engine.submit(request): i for i, request in enumerate(requests)}
    out: list[list[tuple[int, float]]] = [[] for _ in requests]
    open_ = len(requests)
    while open_:
        for event in engine.poll(60_000).events:
            if event[2] == 1:
                out[places[event[0]]].append((event[4], event[5]))
            elif event[2] == 3:
                open_ -= 1
                if event[8] not in (1, 2):
                    report(False, f"request {event[0]} ended with reason {event[8]}")
    return out


def check_exact(model: str, lengths: list[int], kernels: list[str]) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    load = transformers.AutoModelForCausalLM.from_pretrained
    rounded = load(model, dtype=torch.bfloat16, attn_implementation="sdpa").cuda().eval()
    exact = load(model, dtype=torch.bfloat16, attn_implementation="sdpa").float().cuda().eval()
    vocab = rounded.config.vocab_size
    engines = {
        (k, budget): Engine.open(
            model, EngineOptions(device="cuda:0", kernels=k, kv_bytes=3 << 30, token_budget=budget)
        )
        for k in kernels
        for budget in (512, 4096)
    }
    for n in lengths:
        tokens = random.Random(n).choices(range(vocab), k=n)
        first = max(0, n - 256)
        ids = torch.tensor([tokens], device="cuda")
        with torch.inference_mode():
            a = exact(ids, logits_to_keep=n - first, use_cache=False).logits[0]
            b = rounded(ids, logits_to_keep=n - first, use_cache=False).logits[0].float()
        yardstick = rms(b - a)
        reference: torch.Tensor | None = None
        for key, engine in engines.items():
            ours = logits(engine, tokens, first)
            distance = rms(ours - a)
            mean, worst = (distance.mean() / yardstick.mean()).item(), (distance / yardstick).max().item()
            report(mean <= 1.0 and worst <= 1.25, f"exact {key} n={n}: mean {mean:.3f} worst {worst:.3f}")
            if reference is None:
                reference = ours
            else:
                same = torch.equal(reference, ours)
                report(
                    same, f"bits  {key} n={n} equal to the first engine's: {(reference != ours).sum().item()} differ"
                )
    for engine in engines.values():
        engine.close()
    del rounded, exact
    torch.cuda.empty_cache()


def check_deterministic(model: str, vocab: int) -> None:
    rng = random.Random(7)
    lengths = [1, 17, 31, 32, 33, 64, 65, 200, 300, 700, 5, 9] * 6
    requests = [
        EngineRequest(
            prompt=rng.choices(range(vocab), k=n),
            max_tokens=40,
            temperature=0.0 if i % 2 else 0.8,
            top_p=0.9 if i % 3 else 1.0,
            top_k=50 if i % 5 == 0 else 0,
            seed=i,
            ignore_eos=True,
            logprobs=True,
        )
        for i, n in enumerate(lengths[:64])
    ]
    engine = Engine.open(model, gpu_options(kv_bytes=2 << 30, max_slots=64, token_budget=1024))
    alone = [run(engine, [request])[0] for request in requests[:16]]
    together = run(engine, requests)
    report(alone == together[:16], "deterministic: alone (warm cache) == in a batch of 64")
    report(together == run(engine, requests), "deterministic: run twice, prefix cache warm")
    engine.close()
    changes = {
        "no prefix cache, budget 64": gpu_options(kv_bytes=2 << 30, max_slots=64, token_budget=64, prefix_cache=False),
        "generic kernels": gpu_options(kernels="generic", kv_bytes=2 << 30, max_slots=64),
        "small pool (preemption)": gpu_options(kv_bytes=engine_bytes(model, 80), max_slots=64),
    }
    for name, options in changes.items():
        engine = Engine.open(model, options)
        result = run(engine, requests)
        bad = [i for i in range(64) if result[i] != together[i]]
        preemptions = engine.stats().preemptions
        report(not bad, f"deterministic: {name} ({preemptions} preemptions); differing requests {bad[:8]}")
        engine.close()


def engine_bytes(model: str, blocks: int) -> int:
    engine = Engine.open(model, gpu_options(kv_bytes=1 << 30))
    info = engine.info()
    engine.close()
    return blocks * info.kv_bytes // info.n_blocks


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--lengths", default="1,2,31,33,257,1025,4096")
    parser.add_argument("--kernels", default="auto,generic")
    arguments = parser.parse_args()
    check_exact(arguments.model, [int(n) for n in arguments.lengths.split(",")], arguments.kernels.split(","))
    probe = Engine.open(arguments.model, gpu_options(kv_bytes=1 << 28))
    vocab = probe.info().vocab
    probe.close()
    check_deterministic(arguments.model, vocab)
    print(f"{len(FAILURES)} failed")
    return 1 if FAILURES else 0


if __name__ == "__main__":
    sys.exit(main())
