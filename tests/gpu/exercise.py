"""Every path of the engine in little time, for the memory and race checkers: compute-sanitizer python3 exercise.py DIR.

    python tests/gpu/exercise.py MODEL_DIR [--device cuda:0] [--kernels auto,generic] [--small]

Prefill whole and in chunks, contexts over several splits of attention, decode steps of several sizes often enough that
they are recorded and replayed, every kind of sampling, preemption, scoring, a sequence by hand. The answers of all
kernel sets must be equal. No torch: what the checker sees is ours alone.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))
from qwen3app.abi.engine import Engine
from qwen3app.abi.types import EngineOptions, EngineRequest, EventKind
from qwen3app.commands.workload import until_ended

Answers = list[list[tuple[int, float]]]


def run(engine: Engine, requests: list[EngineRequest]) -> Answers:
    """Tokens with log-probabilities of each request, all submitted at once. Constrained ones may choose even ids."""
    numbers = {engine.submit(request): i for i, request in enumerate(requests)}
    mask = bytes([0b01010101]) * (4 * ((engine.info().vocab + 31) // 32))
    for number, i in numbers.items():
        if requests[i].constrained:
            engine.set_mask(number, 0, 0, mask)
    answers: Answers = [[] for _ in requests]
    for event in until_ended(engine, len(requests)):
        if event.kind == EventKind.TOKEN:
            i = numbers[event.request]
            answers[i].append((event.token, event.logprob if requests[i].logprobs else 0.0))
            if requests[i].constrained and len(answers[i]) < requests[i].max_tokens:
                engine.set_mask(event.request, 0, len(answers[i]), mask)
    return answers


def request(rng: random.Random, vocab: int, n_prompt: int, n_output: int, kind: int) -> EngineRequest:
    """One request; `kind` walks through the ways to sample."""
    plain = EngineRequest(
        prompt=rng.choices(range(vocab), k=n_prompt),
        max_tokens=n_output,
        temperature=0.0 if kind in (0, 7) else 0.9,
        seed=kind,
        ignore_eos=True,
    )
    if kind == 1:
        plain.top_k = 20
    elif kind == 2:
        plain.top_p = 0.8
    elif kind == 3:
        plain.min_p = 0.05
    elif kind == 4:
        plain.repetition_penalty, plain.presence_penalty, plain.frequency_penalty = 1.2, 0.5, 0.1
    elif kind == 5:
        plain.logit_bias = [(5, 4.0), (6, -100.0)]
        plain.top_k, plain.top_p = 50, 0.9
    elif kind == 6:
        plain.logprobs, plain.top_logprobs, plain.prompt_logprobs = True, 5, True
    elif kind == 7:
        plain.constrained = True
    return plain


def exercise(model: str, device: str, kernels: str, small: bool) -> tuple[Answers, bytes]:
    rng = random.Random(3)
    options = EngineOptions(
        device=device, kernels=kernels, token_budget=96, max_slots=24, max_context=800, kv_bytes=25 << 16
    )
    with Engine.open(model, options) as engine:
        vocab = engine.info().n_token_ids
        answers = run(engine, [request(rng, vocab, 1, 5, 0)])
        answers += run(engine, [request(rng, vocab, 300 if small else 700, 5, 0)])
        for size in (3, 9) if small else (2, 3, 7, 9, 20):
            answers += run(engine, [request(rng, vocab, rng.randint(1, 60), 6, i % 8) for i in range(size)])
        if not small:  # together they outgrow the pool
            answers += run(engine, [request(rng, vocab, 30, 70, i % 8) for i in range(16)])
        scored = engine.score_logits(rng.choices(range(vocab), k=40 if small else 150), 0)
        by_hand = engine.open_sequence()
        by_hand.prefill([1, 2, 3])
        logits = by_hand.decode(4)
        by_hand.close()
        stats = engine.stats()
        print(f"{engine.info().kernels}: {stats.steps} steps, {stats.preemptions} preemptions", flush=True)
        return answers, scored.tobytes() + logits.tobytes()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--kernels", default="auto,generic")
    parser.add_argument("--small", action="store_true", help="for racecheck, which is slow")
    arguments = parser.parse_args()
    results = [
        exercise(arguments.model, arguments.device, kernels, arguments.small)
        for kernels in arguments.kernels.split(",")
    ]
    equal = all(result == results[0] for result in results)
    print(f"exercise: {len(results[0][0])} requests, kernel sets {'equal' if equal else 'DIFFER'}")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
