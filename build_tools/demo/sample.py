"""What a training conversation is, and how a recipe draws one.

Owns: Sample, Turn and Expect, the random source `Draw`, and the border between what is trained on and what is held out.
Refuses to know: any subject, tokens, the chat template.
The border is a property of the content, not of chance: `is_held(key)` hashes what a question is about (a pair of
operands, a function's name with its parameters, a country with a phrasing). A recipe draws again until its key is on
the side that it is asked for, so no held-out question can turn up in training, whatever the seeds. What must have been
seen to be known (`Draw.fact`) has one way of asking that is always trained on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2s
from typing import Any, Literal, TypeVar

Split = Literal["train", "held"]
T = TypeVar("T")
Call = tuple[str, dict[str, Any]]  # name, arguments

HELD_ONE_IN = 16  # about 6% of all content is never trained on
_TRIES = 10_000


def is_held(*key: object) -> bool:
    """Whether this content belongs to the held-out side. (A CRC would not do: it is linear, so keys of one form share
    their fate, and once all ways of asking one fact were held out together.)"""
    return blake2s(repr(key).encode(), digest_size=2).digest()[0] % HELD_ONE_IN == 0


@dataclass(frozen=True)
class Expect:
    """What a right answer to the last turn is. All that is given must hold; nothing given: the protocol only."""

    answer: tuple[str, ...] = ()  # one of these stands in the content as whole words
    says: tuple[str, ...] = ()  # all of these stand in the content as whole words
    exact: str | None = None  # the content is this
    calls: tuple[Call, ...] | None = None  # exactly these calls, in order; (): no call
    json: Any = None  # the content is JSON that equals this


@dataclass(frozen=True)
class Turn:
    """One question with its worked thought and its answer, before it becomes part of a conversation."""

    kind: str
    question: str
    thought: str
    answer: str
    expect: Expect = field(default_factory=Expect)
    short: str | None = None  # the bare answer (a number, a name), for system prompts that ask for nothing else
    worked: bool = False  # too hard to answer at once: without a thought the answer shows the steps


@dataclass(frozen=True)
class Sample:
    """One conversation whose last message, the assistant's, is to be learnt."""

    kind: str
    messages: list[dict[str, Any]]
    thinking: bool
    tools: list[dict[str, Any]] | None = None
    expect: Expect = field(default_factory=Expect)
    given: str = ""  # how the answer begins that is there already: read, and never learnt

    def renamed(self, kind: str) -> Sample:
        return replace(self, kind=kind)


class Draw:
    """A seeded source of choices for one side of the border."""

    def __init__(self, rng: random.Random, split: Split) -> None:
        self.rng = rng
        self.split = split

    def one(self, items: Sequence[T]) -> T:
        return items[int(self.rng.random() * len(items))]

    def some(self, items: Sequence[T], n: int) -> list[T]:
        return self.rng.sample(items, n)

    def number(self, low: int, high: int) -> int:
        """low to high, both included."""
        return low + int(self.rng.random() * (high - low + 1))

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def keyed(self, family: str, make: Callable[[], T], key: Callable[[T], object] = lambda made: made) -> T:
        """Draws with `make` until the key is on this side of the border."""
        for _ in range(_TRIES):
            made = make()
            if is_held(family, key(made)) == (self.split == "held"):
                return made
        raise ValueError(f"{family}: {_TRIES} draws gave nothing for the {self.split} side; give it more to draw from")

    def fact(
        self,
        family: str,
        make: Callable[[], T],
        patterns: Sequence[str] | Callable[[T], Sequence[str]],
        key: Callable[[T], object] = lambda made: made,
    ) -> tuple[T, str]:
        """Something that must have been seen to be known, and a way of asking for it on this side of the border. The
        first way is always trained on. Capital letters and the last sign make no other question."""
        for _ in range(_TRIES):
            made = make()
            ways = patterns(made) if callable(patterns) else patterns
            pattern = self.one(ways)
            plain, first = (way.lower().rstrip("?.! ") for way in (pattern, ways[0]))
            if (plain != first and is_held(family, key(made), plain)) == (self.split == "held"):
                return made, pattern
        raise ValueError(f"{family}: {_TRIES} draws gave nothing for the {self.split} side; give it more ways to ask")

    def phrase(self, patterns: Sequence[str], **values: object) -> str:
        """One of the patterns, filled."""
        return self.one(patterns).format(**values)


def join_words(words: Sequence[str]) -> str:
    """a, b and c."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def first_upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def with_article(word: str) -> str:
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"
