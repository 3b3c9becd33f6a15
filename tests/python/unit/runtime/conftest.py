"""A runtime over a scripted engine, with the tiny checkpoint's real tokenizer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from serving import TextParts, load_text, make_model

from qwen3app.compiler.child import answer
from qwen3app.compiler.messages import Reply
from qwen3app.compiler.process import Asking
from qwen3app.runtime import Runtime
from qwen3app.runtime.constraints import Constraints, GrammarTokens
from qwen3app.text.generation_config import SamplingDefaults


@pytest.fixture(scope="session")
def text_parts(tiny_model_dir: Path) -> TextParts:
    return load_text(tiny_model_dir)


@pytest.fixture(scope="session")
def tokens(text_parts: TextParts) -> GrammarTokens:
    return GrammarTokens(text_parts.tokenizer)


class CompilersHere:
    """Compilers without processes: what is compiled, not where, is what most tests are about."""

    def __init__(self, tokens: GrammarTokens) -> None:
        self._tokens = tokens

    def ask(self, constraint: bytes, param: str, asking: Asking) -> Reply:
        return answer(self._tokens.vocabulary, dict(self._tokens.control_tokens), constraint)

    def close(self) -> None:
        pass


@pytest.fixture
def compilers(tokens: GrammarTokens) -> CompilersHere:
    return CompilersHere(tokens)


@pytest.fixture
def constraints(text_parts: TextParts, tokens: GrammarTokens, compilers: CompilersHere) -> Constraints:
    return Constraints(text_parts.tokenizer, tokens, compilers)  # type: ignore[arg-type]


@pytest.fixture
async def start(text_parts: TextParts) -> AsyncIterator[Callable[..., Awaitable[Runtime]]]:
    """Starts runtimes over scripted engines; they are stopped behind the test."""
    runtimes: list[Runtime] = []

    async def make(engine: FakeEngine, defaults: SamplingDefaults | None = None, **options: object) -> Runtime:
        runtime = Runtime(make_model(text_parts, engine, defaults), **options)  # type: ignore[arg-type]
        await runtime.start()
        runtimes.append(runtime)
        return runtime

    yield make
    for runtime in runtimes:
        await runtime.stop()
