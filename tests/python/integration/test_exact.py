"""Exactness: the whole model against transformers, on random checkpoints in the proportions of the official ones.

The reference is transformers in float32 (sdpa, weights rounded to bfloat16 first). The yardstick is transformers' own
bfloat16 forward: at each position, the root mean square over the vocabulary of our distance to float32 is compared with
its distance. docs/numerics.md derives the bars.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from build_tools.make_checkpoint import KINDS, make_checkpoint
from qwen3app.abi.engine import Engine
from qwen3app.abi.types import EngineOptions, EngineRequest, EventKind
from qwen3app.settings import DEMO_MODEL
from qwen3app.text.template import ChatTemplate
from qwen3app.text.tokenizer import Tokenizer

torch = pytest.importorskip("torch", reason="the reference is transformers on torch (pip install .[reference])")
transformers = pytest.importorskip("transformers")

MEAN_BAR = 1.0  # mean over positions of our distance, in units of transformers' bfloat16 distance
POSITION_BAR = 1.25  # the same at each position
LENGTHS = (1, 2, 31, 33, 257, 1025)
GREEDY_TOKENS = 64
# Two ids may swap ranks if their float32 margin is below the error of a difference of two logits. The errors over a
# vocabulary are close to normal; six standard deviations are passed once in 5e8 pairs.
MARGIN_SIGMAS = 6 * 2**0.5

Floats = npt.NDArray[np.float32]


@dataclass
class Reference:
    """transformers' two forwards of one checkpoint."""

    exact: Any  # float32
    rounded: Any  # bfloat16

    @classmethod
    def load(cls, directory: Path) -> Reference:
        load = transformers.AutoModelForCausalLM.from_pretrained
        rounded = load(directory, dtype=torch.bfloat16, attn_implementation="sdpa").eval()
        exact = load(directory, dtype=torch.bfloat16, attn_implementation="sdpa").float().eval()
        return cls(exact, rounded)

    def logits(self, tokens: list[int], first: int = 0) -> tuple[Floats, Floats]:
        """(float32, bfloat16) logits of positions first.., [n - first, vocab]."""
        ids = torch.tensor([tokens])
        keep = len(tokens) - first
        with torch.inference_mode():
            exact = self.exact(ids, logits_to_keep=keep, use_cache=False).logits[0]
            rounded = self.rounded(ids, logits_to_keep=keep, use_cache=False).logits[0].float()
        return exact.numpy(), rounded.numpy()


def rms(difference: Floats) -> npt.NDArray[np.float64]:
    return np.sqrt(np.mean(np.square(difference, dtype=np.float64), axis=-1))


def check_distance(ours: Floats, exact: Floats, rounded: Floats, what: str) -> None:
    assert np.isfinite(ours).all(), what
    distance, yardstick = rms(ours - exact), rms(rounded - exact)
    assert distance.mean() <= MEAN_BAR * yardstick.mean(), (
        f"{what}: mean {distance.mean():.4g} of {yardstick.mean():.4g}"
    )
    worst = int(np.argmax(distance / yardstick))
    assert distance[worst] <= POSITION_BAR * yardstick[worst], f"{what}: position {worst}"


def random_tokens(n: int, vocab: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(vocab), k=n)


def engine_logits(engine: Engine, tokens: list[int], first: int = 0) -> Floats:
    return np.frombuffer(engine.score_logits(tokens, first), dtype=np.float32).reshape(len(tokens) - first, -1)


def greedy(engine: Engine, prompt: list[int], n: int) -> list[int]:
    engine.submit(EngineRequest(prompt=prompt, max_tokens=n, temperature=0.0, ignore_eos=True))
    output: list[int] = []
    while True:
        for event in engine.poll(10_000).events:
            if event.kind == EventKind.TOKEN:
                output.append(event.token)
            if event.kind == EventKind.FINISHED:
                return output


@pytest.fixture(scope="module", params=KINDS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    kind: str = request.param
    return make_checkpoint(tmp_path_factory.mktemp("exact") / kind, kind, layout=5 if kind == "8b-ratio" else 4)


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> Reference:
    return Reference.load(checkpoint)


def test_logits_are_closer_to_float32_than_bfloat16_is(checkpoint: Path, reference: Reference) -> None:
    engine = Engine.open(checkpoint, EngineOptions(kv_bytes=64 << 20))
    try:
        for n in LENGTHS:
            tokens = random_tokens(n, engine.info().vocab, seed=n)
            exact, rounded = reference.logits(tokens)
            check_distance(engine_logits(engine, tokens), exact, rounded, f"{checkpoint.name}, {n} tokens")
    finally:
        engine.close()


def test_greedy_continuations_agree_wherever_the_margin_exceeds_the_tolerance(
    checkpoint: Path, reference: Reference
) -> None:
    vocab = reference.exact.config.vocab_size
    n_token_ids = vocab - 100  # the reference suppresses the same ids
    engine = Engine.open(checkpoint, EngineOptions(kv_bytes=64 << 20, n_token_ids=n_token_ids))
    n_decided = 0
    try:
        for n in (1, 33, 257):
            prompt = random_tokens(n, vocab, seed=100 + n)
            output = greedy(engine, prompt, GREEDY_TOKENS)
            assert len(output) == GREEDY_TOKENS
            assert max(output) < n_token_ids
            # Given our own tokens, what would the reference have chosen at each step?
            exact, rounded = reference.logits((prompt + output)[:-1], first=n - 1)
            tolerance = MARGIN_SIGMAS * POSITION_BAR * rms(rounded - exact)
            sampleable = exact[:, :n_token_ids]
            margin = sampleable.max(axis=-1) - sampleable[np.arange(GREEDY_TOKENS), output]
            assert (margin <= tolerance).all(), (
                f"{checkpoint.name}, {n} tokens: step {int(np.argmax(margin - tolerance))}"
            )
            best_two = np.sort(sampleable, axis=-1)[:, -2:]
            n_decided += int((best_two[:, 1] - best_two[:, 0] > tolerance).sum())
    finally:
        engine.close()
    assert n_decided > GREEDY_TOKENS / 2, f"only {n_decided} steps had a margin that decides: the test proves little"


@pytest.mark.parametrize("question", ["What is 57 + 38?", "Tell me a story about a fox."])
def test_trained_weights_are_exact_on_their_own_words(question: str) -> None:
    """Random weights have flat distributions; a model that was trained has outliers, and answers that can be read."""
    template = ChatTemplate.from_dir(DEMO_MODEL, Tokenizer.from_dir(DEMO_MODEL))
    prompt = list(template.render([{"role": "user", "content": question}]).ids)
    engine = Engine.open(DEMO_MODEL, EngineOptions(kv_bytes=64 << 20))
    try:
        tokens = prompt + greedy(engine, prompt, GREEDY_TOKENS)
        ours = engine_logits(engine, tokens[:-1])
    finally:
        engine.close()
    exact, rounded = Reference.load(DEMO_MODEL).logits(tokens[:-1])
    check_distance(ours, exact, rounded, question)
    first = len(prompt) - 1
    margin = exact[first:].max(axis=-1) - exact[first:][np.arange(GREEDY_TOKENS), tokens[len(prompt) :]]
    assert (margin <= MARGIN_SIGMAS * POSITION_BAR * rms(rounded - exact)[first:]).all()


@pytest.mark.parametrize("kernels", ["scalar", "avx2", "avx512", "avx512bf16"])
def test_every_kernel_set_of_this_machine_is_exact(kernels: str, tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path / "8b-ratio", "8b-ratio")
    from qwen3app.errors import EngineError

    try:
        engine = Engine.open(directory, EngineOptions(kernels=kernels, kv_bytes=64 << 20))
    except EngineError as error:
        pytest.skip(f"this processor cannot run it: {error}")
    try:
        assert engine.info().kernels == kernels
        tokens = random_tokens(257, engine.info().vocab, seed=5)
        exact, rounded = Reference.load(directory).logits(tokens)
        check_distance(engine_logits(engine, tokens), exact, rounded, kernels)
    finally:
        engine.close()


@pytest.mark.long
@pytest.mark.skipif(not os.environ.get("QWEN3_LONG"), reason="takes minutes: make test-long")
def test_yarn_beyond_the_original_context(tmp_path: Path) -> None:
    """One prompt of 41,500 tokens, past the 40,960 that the model has without YaRN."""
    directory = make_checkpoint(tmp_path / "yarn", "yarn")
    engine = Engine.open(directory, EngineOptions(max_context=42_000))
    try:
        tokens = random_tokens(41_500, engine.info().vocab, seed=9)
        first = len(tokens) - 512
        ours = engine_logits(engine, tokens, first)
    finally:
        engine.close()
    exact, rounded = Reference.load(directory).logits(tokens, first)
    check_distance(ours, exact, rounded, "41,500 tokens")
