"""A model and a runtime without an engine: answers are scripts of (thought, answer) steps."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from qwen3app.chat.local import LocalBackend
from qwen3app.chat.render import Renderer
from qwen3app.chat.session import ChatSession
from qwen3app.errors import GenerationError
from qwen3app.runtime.generation import ChoiceDelta, Timings, Usage
from qwen3app.runtime.params import GenerationParams
from qwen3app.text.errors import TextError
from qwen3app.text.generation_config import SamplingDefaults
from qwen3app.text.template import RenderedPrompt

Step = tuple[Any, ...]  # thought, answer, and calls, if any


class FakeTemplate:
    """One token per character of all messages; a question of "broken" is refused as the text layer refuses."""

    notice: str | None = None

    def __init__(self) -> None:
        self.calls: list[tuple[list[dict[str, Any]], dict[str, Any]]] = []

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        tools: Any = None,
        add_generation_prompt: bool = True,
        template_kwargs: dict[str, Any],
    ) -> RenderedPrompt:
        self.calls.append((list(messages), template_kwargs))
        text = "".join(message["content"] for message in messages)
        if text.endswith("broken"):
            raise TextError("messages[0].content holds something that is not text.")
        return RenderedPrompt(ids=[1] * len(text), text=text, thinking=False)


@dataclass
class FakeModel:
    name: str = "tiny"
    template: FakeTemplate = field(default_factory=FakeTemplate)
    defaults: SamplingDefaults = field(default_factory=lambda: SamplingDefaults(temperature=0.6, top_p=0.95, top_k=20))
    info: Any = field(
        default_factory=lambda: SimpleNamespace(
            max_context=1000, model_max_context=1000, n_blocks=50, block_size=32, device="cpu", kernels="avx2"
        )
    )
    kv_limits: bool = False
    closed: bool = False

    def close(self) -> None:
        self.closed = True


class FakeGeneration:
    """Yields one batch per step. `hang`: after the script it waits for cancel() instead of ending."""

    def __init__(self, n_prompt: int, script: Sequence[Step], finish: str, hang: bool, fails: bool) -> None:
        self.usage = Usage(prompt_tokens=n_prompt, cached_tokens=min(2, n_prompt))
        self.timings = Timings()
        self.cancelled = asyncio.Event()
        self.closed = False
        self._steps = list(script)
        self._finish: str | None = finish
        self._hang = hang
        self._fails = fails
        self._ignore_cancel = False

    def ignore_cancel(self) -> None:
        self._ignore_cancel = True

    def __aiter__(self) -> FakeGeneration:
        return self

    async def __anext__(self) -> list[ChoiceDelta]:
        await asyncio.sleep(0)
        if self._steps and not self.cancelled.is_set():
            thought, answer, *calls = self._steps.pop(0)
            self.usage = replace(
                self.usage,
                completion_tokens=self.usage.completion_tokens + 1,
                reasoning_tokens=self.usage.reasoning_tokens + bool(thought),
            )
            return [ChoiceDelta(0, answer, thought, None, None, None, calls)]
        if self._fails:
            raise GenerationError("The engine failed.")
        if self._hang and self._finish is not None:
            while self._ignore_cancel:
                await asyncio.sleep(3600)
            await self.cancelled.wait()
        if self._finish is None:
            raise StopAsyncIteration
        reason, self._finish = "abort" if self.cancelled.is_set() else self._finish, None
        return [ChoiceDelta(0, "", "", None, reason, None)]

    def cancel(self) -> None:
        self.cancelled.set()

    async def aclose(self) -> None:
        self.closed = True
        self.cancel()


class FakeRuntime:
    def __init__(self) -> None:
        self.script: list[Step] = [("", "Hello"), ("", " there")]
        self.finish = "stop"
        self.hang = False
        self.fails = False
        self.stuck = False
        self.params: list[GenerationParams] = []
        self.generations: list[FakeGeneration] = []
        self.on_generate: Callable[[FakeGeneration], None] = lambda generation: None

    def generate(
        self, prompt_ids: Sequence[int], params: GenerationParams, *, thinking: bool, split_reasoning: bool
    ) -> FakeGeneration:
        assert split_reasoning
        self.params.append(params)
        generation = FakeGeneration(len(prompt_ids), self.script, self.finish, self.hang, self.fails)
        if self.stuck:
            generation.ignore_cancel()
        self.generations.append(generation)
        self.on_generate(generation)
        return generation


@pytest.fixture
def model() -> FakeModel:
    return FakeModel()


@pytest.fixture
def runtime() -> FakeRuntime:
    return FakeRuntime()


@pytest.fixture
def session(model: FakeModel, runtime: FakeRuntime) -> ChatSession:
    return ChatSession(LocalBackend(model, runtime))  # type: ignore[arg-type]


@pytest.fixture
def screen() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def renderer(screen: io.StringIO) -> Renderer:
    return Renderer(Console(file=screen, width=80, color_system=None))
