"""One conversation: its messages, its settings, and asking.

Owns the history and the rule of what enters it: a turn is kept when the model said anything at all, even if it was
stopped half-way; a question without a word of answer is taken back. Refuses to know the terminal: it takes text and
yields pieces of text. Invariant: `messages` alternates user and assistant and never ends with a user message, except
while an answer runs. Runs on the event loop's thread.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from qwen3app.chat.errors import ContextFull
from qwen3app.chat.settings import ChatSettings

if TYPE_CHECKING:
    from qwen3app.runtime.generation import Generation
    from qwen3app.runtime.loaded_model import LoadedModel
    from qwen3app.runtime.params import GenerationParams
    from qwen3app.runtime.runtime import Runtime
    from qwen3app.text.template import RenderedPrompt


@dataclass(frozen=True, slots=True)
class Piece:
    """Text as it comes: of the thought or of the answer."""

    kind: Literal["thought", "answer"]
    text: str


@dataclass(slots=True)
class TurnStats:
    """One answer in numbers. Seconds are wall time since the question was asked."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    thought_tokens: int = 0
    seconds: float = 0.0
    first_seconds: float | None = None  # None: no token came
    decode_seconds: float | None = None  # first token to last event by the engine's clock; None: it has not ended
    finish: str | None = None  # "stop", "length", "abort", "error"
    context_full: bool = False  # the context's end cut the answer, not max_tokens
    more_context: str = "--max-ctx"  # the flag that makes room for more

    @property
    def tokens_per_second(self) -> float | None:
        """Speed after the first token, whose time is the prompt's; None where there is nothing to measure."""
        if self.first_seconds is None or self.tokens < 2:
            return None
        seconds = self.decode_seconds or self.seconds - self.first_seconds
        return (self.tokens - 1) / seconds if seconds > 0 else None


@dataclass(slots=True)
class _Turn:
    question: dict[str, Any]
    thought: list[str] = field(default_factory=list)
    answer: list[str] = field(default_factory=list)


class ChatSession:
    def __init__(
        self, model: LoadedModel, runtime: Runtime, settings: ChatSettings | None = None, *, think: bool = True
    ) -> None:
        self.model = model
        self.settings = settings if settings is not None else ChatSettings()
        self.think = think
        self.messages: list[dict[str, Any]] = []
        self.stats = TurnStats()  # of the last answer
        self._runtime = runtime
        self._generation: Generation | None = None

    def reset(self) -> None:
        """Forgets the conversation; settings stay."""
        self.messages.clear()

    def stop(self) -> None:
        """Ends the running answer; `ask` then ends by itself. Without one, nothing."""
        if self._generation is not None:
            self._generation.cancel()

    def effective(self, name: str) -> float | int | None:
        """What a sampling setting comes to: the user's value, else the model's default, else None."""
        value = getattr(self.settings, name)
        return value if value is not None else getattr(self.model.defaults, name, None)

    async def ask(self, text: str) -> AsyncGenerator[Piece, None]:
        """Asks and yields the answer as it comes. Afterwards `stats` describes it and `messages` holds the turn.

        Close the iterator (aclosing) when leaving it early: that stops the answer and keeps what came. Raises
        AppError or TextError, each one sentence.
        """
        from qwen3app.runtime.loaded_model import more_context

        question = {"role": "user", "content": text}
        self.stats = stats = TurnStats()
        started = time.monotonic()
        prompt = self._render(question)
        stats.prompt_tokens = len(prompt.ids)
        limit = self.model.info.max_context
        room = limit - stats.prompt_tokens
        if room < 1:
            advice = "use /reset to begin a new one" if self.messages else "ask something shorter"
            flag = more_context(self.model.info)
            how = f"a larger {flag}" if flag == "--max-ctx" else flag
            raise ContextFull(
                f"The conversation has {stats.prompt_tokens} tokens and the context holds {limit}: {advice}, "
                f"or start the chat with {how}."
            )
        max_tokens = min(room, self.settings.max_tokens or room)
        turn = _Turn(question)
        try:
            generation = self._runtime.generate(
                prompt.ids, self._params(max_tokens), thinking=prompt.thinking, split_reasoning=True
            )
            self._generation = generation
            async with aclosing(generation):
                async for deltas in generation:
                    for delta in deltas:
                        if stats.first_seconds is None:
                            stats.first_seconds = time.monotonic() - started
                        if delta.reasoning:
                            turn.thought.append(delta.reasoning)
                            yield Piece("thought", delta.reasoning)
                        if delta.content:
                            turn.answer.append(delta.content)
                            yield Piece("answer", delta.content)
                        if delta.finish_reason is not None:
                            stats.finish = delta.finish_reason
        finally:
            stats.seconds = time.monotonic() - started
            if self._generation is not None:
                usage = self._generation.usage
                stats.decode_seconds = self._generation.timings.decode
                stats.tokens = usage.completion_tokens
                stats.cached_tokens = usage.cached_tokens
                stats.thought_tokens = usage.reasoning_tokens
            self._generation = None
            stats.more_context = more_context(self.model.info)
            stats.context_full = stats.finish == "length" and max_tokens == room
            self._keep(turn)

    def _render(self, question: dict[str, Any]) -> RenderedPrompt:
        system = self.settings.system
        messages = [{"role": "system", "content": system}] if system else []
        messages += [*self.messages, question]
        return self.model.template.render(messages, template_kwargs={"enable_thinking": self.think})

    def _params(self, max_tokens: int) -> GenerationParams:
        from qwen3app.runtime.params import GenerationParams

        settings = self.settings
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
        )

    def _keep(self, turn: _Turn) -> None:
        thought, answer = "".join(turn.thought), "".join(turn.answer)
        if not thought and not answer:
            return
        reply = {"role": "assistant", "content": answer}
        if thought:
            reply["reasoning_content"] = thought  # the template decides how long a thought is remembered
        self.messages += [turn.question, reply]
