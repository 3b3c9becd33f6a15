"""A runtime over a scripted engine, with the tiny checkpoint's real tokenizer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from patience import PATIENCE
from serving import TextParts, load_text, make_model

from qwen3app.compiler.process import Compilers
from qwen3app.runtime import Runtime
from qwen3app.runtime.constraints import Constraints, GrammarTokens
from qwen3app.text.generation_config import SamplingDefaults


@pytest.fixture(scope="session")
def text_parts(tiny_model_dir: Path) -> TextParts:
    return load_text(tiny_model_dir)


@pytest.fixture(scope="session")
def tokens(text_parts: TextParts) -> GrammarTokens:
    return GrammarTokens(text_parts.tokenizer)


@pytest.fixture(scope="session")
def compilers(tokens: GrammarTokens) -> Iterator[Compilers]:
    """Of all tests, since they take a while to start. However busy the machine is, a compilation may take its time."""
    shared = Compilers(lambda: (tokens.token_bytes, dict(tokens.control_tokens)), seconds=4 * PATIENCE)
    yield shared
    shared.close()


@pytest.fixture
def constraints(text_parts: TextParts, tokens: GrammarTokens, compilers: Compilers) -> Constraints:
    return Constraints(text_parts.tokenizer, tokens, compilers)


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
