"""The whole model on the GPU against transformers on the same GPU, and against itself: exact and deterministic.

    python tests/gpu/check_model.py MODEL_DIR [--lengths 1,2,31,33,257,1025,4096,32768] [--kernels auto,generic]

Exact (docs/numerics.md): for prompts of each length, the distance of our logits to transformers in float32, in units of
its own bfloat16's distance, over the last 256 positions. Deterministic: 64 requests give the same tokens and
log-probabilities alone and together, run twice, with a warm prefix cache and without one, in other chunks, after
preemption, from the other kernel set; and the log-probabilities of decode steps, which are replayed graphs, are those
of one prefill over the same tokens, which is not. All of it as equality. One line per check; exits with 1 if any fails.
With --device cpu the same checks run on the CPU backend, to test the checks.
"""

from __future__ import annotations

import argparse
import random
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

sys.path.insert(0, str(Path(__file__).parent.parent.parent))
from exercise import Answers, run

from qwen3app.abi.engine import Engine
from qwen3app.abi.types import EngineOptions, EngineRequest

KEPT = 256  # positions at the end of a prompt that are compared
CHUNK = 4096  # tokens that transformers takes at once; longer prompts go through its cache
N_REQUESTS = 64
N_ALONE = 16
N_SCORED = 24

failures = 0


def report(ok: bool, line: str) -> None:
    global failures
    print(("ok    " if ok else "FAIL  ") + line, flush=True)
    failures += not ok


def rms(difference: torch.Tensor) -> torch.Tensor:
    return difference.double().square().mean(-1).sqrt()


@dataclass
class Prompt:
    """Random tokens with what transformers makes of their last positions."""

    tokens: list[int]
    first: int  # compared from here on
    exact: torch.Tensor  # [kept, vocab] float32
    yardstick: torch.Tensor  # [kept] float64: distance of transformers' bfloat16


def forward(model: Any, tokens: list[int], kept: int, device: str) -> torch.Tensor:
    """transformers' logits of the last `kept` positions: [kept, vocab] float32."""
    ids = torch.tensor([tokens], device=device)
    if len(tokens) <= CHUNK:
        return model(ids, logits_to_keep=kept, use_cache=False).logits[0].float()
    cache = transformers.DynamicCache()
    for begin in range(0, len(tokens), CHUNK // 2):
        piece = ids[:, begin : begin + CHUNK // 2]
        out = model(piece, past_key_values=cache, use_cache=True, logits_to_keep=min(kept, piece.shape[1]))
    return out.logits[0].float()


def references(model_dir: str, lengths: list[int], device: str) -> list[Prompt]:
    torch.backends.cuda.matmul.allow_tf32 = False
    load = transformers.AutoModelForCausalLM.from_pretrained
    model = load(model_dir, dtype=torch.bfloat16, attn_implementation="sdpa").to(device).eval()
    vocab = model.config.vocab_size
    prompts = []
    with torch.inference_mode():
        for n in lengths:
            tokens = random.Random(n).choices(range(vocab), k=n)
            kept = min(KEPT, n, max(1, n % CHUNK) if n > CHUNK and n % (CHUNK // 2) else n)
            rounded = forward(model, tokens, kept, device)
            prompts.append(Prompt(tokens, n - kept, rounded, torch.empty(0)))
        model = model.float()
        for prompt in prompts:
            exact = forward(model, prompt.tokens, len(prompt.tokens) - prompt.first, device)
            prompt.yardstick = rms(prompt.exact - exact)
            prompt.exact = exact
    del model
    if device != "cpu":
        torch.cuda.empty_cache()
    return prompts


def random_requests(vocab: int) -> list[EngineRequest]:
    """Prompts around the borders of blocks and splits; the last ones grow by several blocks, which a pool that is full
    when they begin cannot hold."""
    rng = random.Random(7)
    lengths = [1, 17, 31, 32, 33, 64, 65, 200, 300, 700, 5, 9] * 4
    return [
        EngineRequest(
            prompt=rng.choices(range(vocab), k=lengths[i] if i < 40 else 20),
            max_tokens=40 if i < 40 else 150,
            temperature=0.0 if i % 2 else 0.8,
            top_p=0.9 if i % 3 else 1.0,
            top_k=50 if i % 5 == 0 else 0,
            seed=i,
            ignore_eos=True,
            logprobs=True,
        )
        for i in range(N_REQUESTS)
    ]


class Checks:
    """The checks of one model; the first engine's results are what all others must equal."""

    def __init__(self, prompts: list[Prompt], requests: list[EngineRequest], device: str) -> None:
        self.prompts = prompts
        self.requests = requests
        self.device = device
        self.scores: list[torch.Tensor] = []
        self.answers: Answers = []

    def exact(self, engine: Engine, name: str) -> None:
        for i, prompt in enumerate(self.prompts):
            n = len(prompt.tokens)
            scores = np.frombuffer(engine.score_logits(prompt.tokens, prompt.first), dtype=np.float32)
            ours = torch.from_numpy(scores.copy()).view(n - prompt.first, -1).to(self.device)
            distance = rms(ours - prompt.exact)
            mean = (distance.mean() / prompt.yardstick.mean()).item()
            worst = (distance / prompt.yardstick).max().item()
            report(mean <= 1.0 and worst <= 1.25, f"exact, {n} tokens, {name}: mean {mean:.3f}, worst {worst:.3f}")
            if i == len(self.scores):
                self.scores.append(ours)
            else:
                differing = int((self.scores[i] != ours).sum().item())
                report(differing == 0, f"bits, {n} tokens, {name}: {differing} logits differ from the first engine's")

    def alone_together_twice(self, engine: Engine) -> None:
        alone = [run(engine, [request])[0] for request in self.requests[:N_ALONE]]
        self.answers = run(engine, self.requests)
        report(alone == self.answers[:N_ALONE], f"{N_ALONE} requests alone equal those in a batch of {N_REQUESTS}")
        report(run(engine, self.requests) == self.answers, "run twice, prefix cache warm: equal")
        differing = []
        for i, request in enumerate(self.requests[:N_SCORED]):
            tokens = [*request.prompt, *(token for token, _ in self.answers[i])]
            scored = list(engine.score_logprobs(tokens))[len(request.prompt) :]
            if scored != [logprob for _, logprob in self.answers[i]]:
                differing.append(i)
        report(not differing, f"decode in recorded steps equals one prefill, not recorded; differing: {differing}")

    def same_answers(self, engine: Engine, name: str) -> None:
        answers = run(engine, self.requests)
        differing = [i for i in range(N_REQUESTS) if answers[i] != self.answers[i]]
        report(not differing, f"requests, {name}: differing {differing[:8]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--lengths", default="1,2,31,33,257,1025,4096,32768")
    parser.add_argument("--kernels", default="auto,generic", help="the second set must equal the first")
    parser.add_argument("--device", default="cuda:0")
    arguments = parser.parse_args()
    lengths = [int(n) for n in arguments.lengths.split(",")]
    first, second = arguments.kernels.split(",")
    prompts = references(arguments.model, lengths, arguments.device)
    print(f"transformers has made its {len(prompts)} references", flush=True)

    base = EngineOptions(
        device=arguments.device, kernels=first, kv_bytes=8 << 30, max_slots=N_REQUESTS, token_budget=8192
    )
    if arguments.device == "cpu":
        base = replace(base, kv_bytes=64 << 20)
    with Engine.open(arguments.model, base) as engine:
        info = engine.info()
        checks = Checks(prompts, random_requests(info.vocab), arguments.device)
        checks.exact(engine, info.kernels)
        checks.alone_together_twice(engine)
    chunked = replace(base, token_budget=512, prefix_cache=False)
    with Engine.open(arguments.model, chunked) as engine:
        checks.exact(engine, f"{info.kernels}, chunks of 512")
        checks.same_answers(engine, "chunks of 512, no prefix cache")
    with Engine.open(arguments.model, replace(base, kernels=second, token_budget=1024)) as engine:
        checks.exact(engine, f"{engine.info().kernels}, chunks of 1,024")
        checks.same_answers(engine, f"{engine.info().kernels} kernels")
    # Less than the requests need together, and small chunks.
    few = replace(base, kv_bytes=65 * (info.kv_bytes // info.n_blocks), max_context=2048, token_budget=300)
    with Engine.open(arguments.model, few) as engine:
        checks.same_answers(engine, "65 KV blocks, chunks of 300")
        preemptions = engine.stats().preemptions
        report(preemptions > 0, f"the small pool made {preemptions} preemptions")
    print(f"check_model: {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
