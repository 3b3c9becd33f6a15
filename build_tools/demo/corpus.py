"""The mixture of all recipes, single turns made into conversations, and conversations made into token rows.

Owns: how often each recipe is drawn, system prompts and earlier turns around a question, the loss weights, packing.
Everything is a function of the seed and a number: shard i of seed s is the same on every machine.

What is learnt: the last message of the assistant with weight 1, as it is generated: behind the prompt that the official
template writes, tokenized apart from it. The rest of the prompt has a small weight, for its English; the first token of
earlier answers has none, since the template leaves their thoughts out and the model must not learn to do so. Nor is a
thought that went wrong on purpose learnt, only how to come out of it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from demo import arithmetic, calendar_time, dialogues, knowledge, stories, talk, tools, unknown, words
from demo.dialogues import Message, assistant, system, user
from demo.sample import Draw, Sample, Split, Turn
from demo.tokenizer import token_id

TEMPLATE = Path(__file__).resolve().parents[2] / "qwen3app" / "text" / "qwen3_chat_template.jinja"
# Goes up when what is held out changes: of a model of another number nobody knows what it has seen.
RECIPE = 3
WEIGHT_UNIT = 20  # weights are stored in twentieths
PROMPT_WEIGHT = 1  # 0.05
_LOST = 0.03  # of all thoughts: a thought that went wrong is closed all the same, and an answer follows
_CUT = 0.02  # of all thoughts: one that the host cut short with this sentence, and the answer follows
CUT = "Considering the limited time by the user, I have to give the solution based on the thinking directly now."
_NEEDS_THE_THOUGHT = ("no tool fits", "wishes of a system prompt")  # their answers have no steps
_OPENING = "<|im_start|>assistant\n"
_NO_THOUGHT = "<think>\n\n</think>\n\n"

TurnRecipe = Callable[[Draw], Turn]
SampleRecipe = Callable[[Draw], Sample]

# How often each is drawn, relative to the others. Tool dialogues are three times as long as the rest.
TURNS: tuple[tuple[float, TurnRecipe], ...] = (
    (8, arithmetic.add), (8, arithmetic.subtract), (2, arithmetic.small), (4, arithmetic.three_digits),
    (4, arithmetic.many_digits), (4, arithmetic.multiply), (4, arithmetic.divide), (3, arithmetic.story_sum),
    (2, arithmetic.add_many), (2, arithmetic.compare), (1.5, arithmetic.too_hard),
    (5, words.spell), (4, words.count_letter), (2, words.word_length), (3, words.reverse), (2, words.end_letter),
    (3, words.sort_numbers), (1.5, words.sort_words), (2, words.extreme), (1.5, words.count_items),
    (1.5, words.pick_from_list), (3, words.grammar), (3, words.repeat),
    (3, calendar_time.weekday), (2.5, calendar_time.month), (0.8, calendar_time.month_days),
    (0.7, calendar_time.leap_year), (2, calendar_time.date_after),
    (1.5, calendar_time.date_before), (2.5, calendar_time.clock), (3, calendar_time.convert),
    (2.5, knowledge.capital), (1.5, knowledge.country_of), (1, knowledge.city_in), (1.5, knowledge.continent),
    (2.5, knowledge.small_fact),
    (11, knowledge.define), (1.5, unknown.unknown_word), (1.3, unknown.unknown_place), (8, unknown.unknown),
    (1.5, unknown.nonsense),
    (7, talk.small_talk), (3, talk.project), (2, stories.story),
)  # fmt: skip
SAMPLES: tuple[tuple[float, SampleRecipe], ...] = (
    (3, dialogues.remember), (3, dialogues.read_text), (2, dialogues.shop), (4, dialogues.wish),
    (4, dialogues.json_answer),
    (11, tools.one_call), (16, tools.made_up_call), (6, tools.parallel_calls), (6, tools.no_call),
    (4, tools.missing_function),
)  # fmt: skip


# ---- conversations


def plain_answer(turn: Turn) -> str:
    """The answer where nothing was thought before: hard questions show their steps."""
    return f"{turn.thought}\n{turn.answer}" if turn.worked else turn.answer


def conversation(draw: Draw, turn: Turn, thinking: bool) -> Sample:
    """A turn with what may stand before it: a system prompt, earlier questions of any kind."""
    messages: list[Message] = []
    if draw.chance(0.35):
        messages.append(system(draw.one(tools.SYSTEMS)))
    if draw.chance(0.25):
        for _ in range(draw.one((1, 1, 1, 1, 2, 2, 3, 4, 6, 12))):
            earlier = _pick(draw, _TURN_TABLE)(draw)
            answer = plain_answer(earlier) if draw.chance(0.5) else earlier.answer
            messages += [user(earlier.question), assistant(answer, "", False)]
    question, thought = turn.question, turn.thought
    answer = turn.answer if thinking else plain_answer(turn)
    if thinking and draw.split == "train" and draw.chance(_LOST):
        thought = unknown.lost_thought(draw, thought)
        messages += [user(question), assistant(unknown.LOST, thought, True)]
        return Sample("lost thoughts", messages, True, given=f"<think>\n{thought}\n")
    if thinking and draw.split == "train" and draw.chance(_CUT):
        messages += [user(question), assistant(plain_answer(turn), thought, True)]
        return _cut_short(draw, Sample(turn.kind, messages, True))
    if thinking and draw.chance(0.06):  # the soft switches of Qwen3
        if draw.chance(0.7):
            question, thought, answer = f"{question} /no_think", "", plain_answer(turn)
        else:
            question = f"{question} /think"
    messages += [user(question), assistant(answer, thought, thinking)]
    return Sample(turn.kind, messages, thinking, expect=turn.expect)


def _cut_short(draw: Draw, sample: Sample) -> Sample:
    """Where a budget of thinking ends."""
    last = sample.messages[-1]
    thought = last["reasoning_content"]
    thought = f"{thought[: draw.number(1, len(thought))]}\n\n{CUT}"
    messages = [*sample.messages[:-1], last | {"reasoning_content": thought}]
    return replace(sample, kind="cut thoughts", messages=messages, given=f"<think>\n{thought}\n</think>\n\n")


def _table(weighted: Iterable[tuple[float, Any]]) -> tuple[list[Any], list[float]]:
    items, sums, total = [], [], 0.0
    for weight, item in weighted:
        total += weight
        items.append(item)
        sums.append(total)
    return items, sums


_TURN_TABLE = _table(TURNS)
_ALL = _table([*((w, ("turn", r)) for w, r in TURNS), *((w, ("sample", r)) for w, r in SAMPLES)])


def _pick(draw: Draw, table: tuple[list[Any], list[float]]) -> Any:
    return draw.rng.choices(table[0], cum_weights=table[1])[0]


def samples(seed: object, split: Split = "train") -> Iterator[Sample]:
    """Endlessly many conversations."""
    draw = Draw(random.Random(str(seed)), split)
    while True:
        kind, recipe = _pick(draw, _ALL)
        if kind == "turn":
            yield conversation(draw, recipe(draw), draw.chance(0.5))
            continue
        sample = recipe(draw)
        may_cut = sample.thinking and not sample.given and sample.kind not in _NEEDS_THE_THOUGHT
        yield _cut_short(draw, sample) if may_cut and draw.chance(_CUT) else sample


def held_out(n: int, seed: int = 1) -> dict[str, list[Sample]]:
    """About n held-out conversations of each kind, half of them with thoughts where both exist."""
    found: dict[str, list[Sample]] = {}
    for recipe in [recipe for _, recipe in TURNS]:
        draw = Draw(random.Random(f"{seed}/{recipe.__name__}"), "held")
        for i in range(n):
            sample = conversation(draw, recipe(draw), i % 2 == 0)
            found.setdefault(sample.kind, []).append(sample)
    for sample_recipe in [*(recipe for _, recipe in SAMPLES), tools.unseen_call, tools.late_call]:
        draw = Draw(random.Random(f"{seed}/{sample_recipe.__name__}"), "held")
        for _ in range(n):
            sample = sample_recipe(draw)
            found.setdefault(sample.kind, []).append(sample)
    return found


# ---- text and tokens


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8"))


def render(sample: Sample) -> tuple[str, str]:
    """(the prompt with what is given of the answer, what the model is to write), by the official template."""
    text = _template().render(messages=sample.messages, tools=sample.tools)
    opening = text.rindex(_OPENING) + len(_OPENING)
    if not sample.thinking:
        opening += len(_NO_THOUGHT)
    if sample.given:
        assert text.startswith(sample.given, opening)
        opening += len(sample.given)
    return text[:opening], text[opening:].removesuffix("\n")


@dataclass
class Encoder:
    """Conversations to token ids and weights (in twentieths)."""

    tokenizer: Tokenizer

    def __post_init__(self) -> None:
        self.end = token_id(self.tokenizer, "<|endoftext|>")
        self.opening = self._ids(_OPENING)

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def encode_many(self, conversations: list[Sample]) -> Iterator[tuple[list[int], list[int]]]:
        texts = [text for sample in conversations for text in render(sample)]
        encoded = self.tokenizer.encode_batch(texts, add_special_tokens=False)
        for prompt, target in zip(encoded[::2], encoded[1::2], strict=True):
            yield self._weighted(prompt.ids, target.ids)

    def _weighted(self, prompt: list[int], target: list[int]) -> tuple[list[int], list[int]]:
        weights = [PROMPT_WEIGHT] * len(prompt)
        n, first = len(self.opening), self.opening[0]
        last = 0
        for i, token in enumerate(prompt):
            if token == first and prompt[i : i + n] == self.opening:
                weights[i + n : i + n + 1] = [0] * len(weights[i + n : i + n + 1])
                last = i
        weights[last:] = [0] * (len(prompt) - last)
        return [*prompt, *target, self.end], [*weights, *[WEIGHT_UNIT] * len(target), PROMPT_WEIGHT]


Rows = tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint8]]


def shard(encoder: Encoder, seed: int, index: int, n_rows: int, length: int) -> Rows:
    """Rows of `length` + 1 tokens packed with whole conversations, and the weight of each token as a target."""
    tokens = np.full((n_rows, length + 1), encoder.end, dtype=np.uint16)
    weights = np.zeros((n_rows, length + 1), dtype=np.uint8)
    source = samples(f"{seed}/{index}")
    waiting: list[tuple[list[int], list[int]]] = []
    for row in range(n_rows):
        used = 0
        while True:
            if len(waiting) < 16:
                batch = [next(source) for _ in range(256)]
                waiting += [made for made in encoder.encode_many(batch) if len(made[0]) <= length + 1]
            # The oldest that fits, looking at a few: little is wasted and nothing is left lying.
            place = next((i for i in range(16) if len(waiting[i][0]) <= length + 1 - used), None)
            if place is None:
                break
            ids, weight = waiting.pop(place)
            tokens[row, used : used + len(ids)] = ids
            weights[row, used : used + len(ids)] = weight
            used += len(ids)
    return tokens, weights
