"""A model in this process: prompt by its template, answer by its runtime. Event loop's thread."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from qwen3app.chat.backend import Call, Piece, TurnStats
from qwen3app.chat.errors import ContextFull
from qwen3app.chat.settings import ChatSettings
from qwen3app.text.errors import TextError

if TYPE_CHECKING:
    from qwen3app.runtime.generation import Generation
    from qwen3app.runtime.loaded_model import LoadedModel
    from qwen3app.runtime.params import GenerationParams
    from qwen3app.runtime.runtime import Runtime


class LocalBackend:
    """See backend.Backend."""

    def __init__(self, model: LoadedModel, runtime: Runtime) -> None:
        self._model = model
        self._runtime = runtime
        self._generation: Generation | None = None

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def place(self) -> str:
        return f"{self._model.info.device} ({self._model.info.kernels})"

    @property
    def max_context(self) -> int:
        return self._model.info.max_context

    @property
    def notice(self) -> str | None:
        return self._model.template.notice

    @property
    def unset(self) -> None:
        return None

    @property
    def kv_tokens(self) -> int:
        return self._model.info.n_blocks * self._model.info.block_size

    def default(self, name: str) -> float | int | None:
        value: float | int | None = getattr(self._model.defaults, name, None)
        return value

    def count(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None, think: bool
    ) -> int | None:
        kwargs = {"enable_thinking": think}
        try:
            prompt = self._model.template.render(
                messages, tools=tools, add_generation_prompt=False, template_kwargs=kwargs
            )
        except TextError:  # the next question will say so
            return None
        return len(prompt.ids)

    async def ask_count(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None, think: bool
    ) -> int | None:
        return self.count(messages, tools, think)

    def stop(self) -> None:
        if self._generation is not None:
            self._generation.cancel()

    async def answer(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None,
        settings: ChatSettings,
        think: bool,
        stats: TurnStats,
    ) -> AsyncGenerator[Piece | Call, None]:
        from qwen3app.runtime.loaded_model import more_context

        started = time.monotonic()
        stats.more_context = more_context(self._model.info, self._model.kv_limits)
        prompt = self._model.template.render(messages, tools=tools, template_kwargs={"enable_thinking": think})
        stats.prompt_tokens = len(prompt.ids)
        room = self.max_context - stats.prompt_tokens
        if room < 1:
            raise ContextFull(self._no_room(messages, tools, think, stats))
        max_tokens = min(room, settings.max_tokens or room)
        try:
            generation = self._runtime.generate(
                prompt.ids,
                _params(settings, max_tokens, look_for_calls=bool(tools)),
                thinking=prompt.thinking,
                split_reasoning=True,
            )
            self._generation = generation
            async with aclosing(generation):
                async for deltas in generation:
                    for delta in deltas:
                        if stats.first_seconds is None:
                            stats.first_seconds = time.monotonic() - started
                        if delta.reasoning:
                            yield Piece("thought", delta.reasoning)
                        if delta.content:
                            yield Piece("answer", delta.content)
                        for call in delta.calls:
                            yield Call(f"call_{secrets.token_hex(12)}", call.name, call.arguments)
                        if delta.finish_reason is not None:
                            stats.finish = delta.finish_reason
        finally:
            stats.seconds = time.monotonic() - started
            if self._generation is not None:
                usage = self._generation.usage
                stats.decode_seconds = self._generation.timings.decode
                stats.tokens = usage.completion_tokens
                stats.cached_tokens = usage.cached_tokens
            self._generation = None
            stats.context_full = stats.finish == "length" and max_tokens == room

    def _no_room(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None,
        think: bool,
        stats: TurnStats,
    ) -> str:
        """The sentence for a prompt that leaves no room for an answer: a new conversation helps where the last question
        alone would have had some."""
        last = max(i for i, message in enumerate(messages) if message["role"] == "user")
        alone = [message for i, message in enumerate(messages) if i >= last or message["role"] == "system"]
        what, n_tokens, advice = "conversation", stats.prompt_tokens, "use /reset to begin a new one"
        n_alone = len(self._model.template.render(alone, tools=tools, template_kwargs={"enable_thinking": think}).ids)
        if n_alone >= self.max_context:
            roles = {message["role"] for message in alone}
            beside = {"the system prompt": "system" in roles, "the tools": tools, "their results": "tool" in roles}
            names = " and ".join(name for name, is_there in beside.items() if is_there)
            what, n_tokens, advice = f"question{names and f' with {names}'}", n_alone, "ask something shorter"
        more = f", or start the chat with {stats.more_context}" if stats.more_context else ""
        return f"The {what} has {n_tokens} tokens and the context holds {self.max_context}: {advice}{more}."


def _params(settings: ChatSettings, max_tokens: int, *, look_for_calls: bool) -> GenerationParams:
    from qwen3app.runtime.params import GenerationParams
    from qwen3app.text.call_stream import CallPolicy

    return GenerationParams(
        temperature=settings.temperature,
        top_p=settings.top_p,
        top_k=settings.top_k,
        min_p=settings.min_p,
        repetition_penalty=settings.repetition_penalty,
        presence_penalty=settings.presence_penalty or 0.0,
        frequency_penalty=settings.frequency_penalty or 0.0,
        seed=settings.seed,
        max_tokens=max_tokens,
        calls=CallPolicy.MANY if look_for_calls else None,
    )
