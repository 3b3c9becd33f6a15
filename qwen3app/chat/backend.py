"""Who answers: the interface between a conversation and a model, which is in this process or behind a URL.

Owns the words that both sides use: pieces of text, tool calls, the numbers of an answer. Refuses to know how a prompt
is made and how bytes travel: local.py and remote.py do. Runs on the event loop's thread.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from qwen3app.chat.settings import ChatSettings


@dataclass(frozen=True, slots=True)
class Piece:
    """Text as it comes: of the thought or of the answer."""

    kind: Literal["thought", "answer"]
    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """The model wants a function to be run. arguments: JSON text, as the model wrote it."""

    id: str
    name: str
    arguments: str

    @classmethod
    def from_message_part(cls, part: dict[str, Any]) -> Call:
        """The call in an entry of tool_calls, in any of the forms that messages.py takes."""
        function = part.get("function") or part
        arguments = function["arguments"]
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        return cls(str(part.get("id") or ""), function["name"], text)

    def as_message_part(self) -> dict[str, Any]:
        """An entry of an assistant message's tool_calls, as OpenAI has it."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(slots=True)
class TurnStats:
    """One answer in numbers. Seconds are wall time since the question was asked, without the time tools took. An answer
    with tool calls takes several rounds of the model; `add` puts them together."""

    has_usage: bool = True  # False: not told, as by a server whose answer was stopped; then no number of tokens counts
    prompt_tokens: int = 0  # of the last round, which holds those before it
    cached_tokens: int | None = 0  # None: not told
    tokens: int = 0
    seconds: float = 0.0
    first_seconds: float | None = None  # None: no token came
    decode_seconds: float | None = None  # first token to last event by the engine's clock; None: it has not ended
    finish: str | None = None  # "stop", "length", "tool_calls", "abort", "error"
    is_empty: bool = False  # the last round ended by itself, with neither words nor calls
    cut_in_thought: bool = False  # the last round was cut before the first word of its answer
    context_full: bool = False  # the context's end cut the answer, not max_tokens
    more_context: str | None = "a larger --max-ctx"  # what makes room for more, if anything does
    rounds: int = 1
    last_tokens: int | None = None  # of the last round; None: there was one

    @property
    def tokens_per_second(self) -> float | None:
        """Speed after each round's first token, whose time is the prompt's; None where there is nothing to measure."""
        if self.first_seconds is None or not self.has_usage or self.tokens <= self.rounds:
            return None
        seconds = self.decode_seconds or self.seconds - self.first_seconds
        return (self.tokens - self.rounds) / seconds if seconds > 0 else None

    @property
    def last_round_tokens(self) -> int:
        return self.tokens if self.last_tokens is None else self.last_tokens

    @property
    def context_tokens(self) -> int | None:
        """What the conversation takes of the context now; None: not told."""
        if not self.has_usage:
            return None
        return self.prompt_tokens + self.last_round_tokens

    def add(self, later: TurnStats) -> None:
        """Makes these the numbers of this and the next round."""
        self.rounds += 1
        self.has_usage = self.has_usage and later.has_usage
        self.prompt_tokens, self.cached_tokens = later.prompt_tokens, later.cached_tokens
        self.tokens += later.tokens
        self.last_tokens = later.tokens
        self.seconds += later.seconds
        if self.first_seconds is None:
            self.first_seconds = later.first_seconds
        if self.decode_seconds is not None and later.decode_seconds is not None:
            self.decode_seconds += later.decode_seconds
        else:
            self.decode_seconds = None
        self.finish, self.context_full, self.more_context = later.finish, later.context_full, later.more_context


class Backend(Protocol):
    """A model to talk to."""

    @property
    def name(self) -> str:
        """The model's name."""

    @property
    def place(self) -> str:
        """Where it runs, for a person: "cpu (avx2)", or an address."""

    @property
    def max_context(self) -> int | None:
        """Tokens of prompt and answer together; None: not known."""

    @property
    def notice(self) -> str | None:
        """A sentence that the user should read before the first question, if any."""

    @property
    def kv_tokens(self) -> int | None:
        """Tokens that the KV cache has room for, of all conversations together; None: not known."""

    @property
    def unset(self) -> str | None:
        """What a default of None means: words for "not known", or None where nothing is filtered then."""

    def default(self, name: str) -> float | int | None:
        """What the model samples with where the user has no wish; None: see `unset`."""

    def count(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None, think: bool
    ) -> int | None:
        """Tokens that a conversation takes of the context; None: not known here."""

    async def ask_count(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None, think: bool
    ) -> int | None:
        """As `count`, where somebody else may have to be asked; None: nobody knows. Takes at most a few seconds."""

    def answer(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None,
        settings: ChatSettings,
        think: bool,
        stats: TurnStats,
    ) -> AsyncGenerator[Piece | Call, None]:
        """One round: yields what the model says and fills `stats` until it is closed. Raises AppError or TextError."""

    def stop(self) -> None:
        """Ends the running round; `answer` then ends by itself. Without one, nothing."""
