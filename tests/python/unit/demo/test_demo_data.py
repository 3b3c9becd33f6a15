"""The demo model's training text: deterministic, held out by content, right in every step, read back by our parsers."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from demo import arithmetic, calendar_time, corpus, tools
from demo.check import Reply, fault, protocol_fault
from demo.corpus import PROMPT_WEIGHT, SAMPLES, TURNS, WEIGHT_UNIT, Encoder, held_out, render, samples, shard
from demo.lexicon import definitions
from demo.sample import Draw, Expect, Sample, Split, is_held
from demo.tool_domains import DOMAINS
from demo.unknown import LOST
from tokenizers import Tokenizer as HfTokenizer

from qwen3app.runtime.thought_budget import CLOSING_TEXT
from qwen3app.text.call_stream import CallPolicy
from qwen3app.text.output import OutputStream
from qwen3app.text.template import ChatTemplate
from qwen3app.text.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parents[4]
BEGUN = ("lost thoughts", "cut thoughts", "forced JSON")  # only trained on
RECIPES = [recipe for _, recipe in (*TURNS, *SAMPLES)]


def draw(split: Split, seed: object = 0) -> Draw:
    return Draw(random.Random(str(seed)), split)


def asked(sample: Sample) -> str:
    return str(next(m["content"] for m in reversed(sample.messages) if m["role"] == "user"))


@pytest.fixture(scope="module")
def many() -> list[Sample]:
    return list(islice(samples("test"), 3_000))


# ---- determinism


def test_the_same_seed_gives_the_same_text() -> None:
    first = [render(sample) for sample in islice(samples(3), 200)]
    assert first == [render(sample) for sample in islice(samples(3), 200)]
    assert first != [render(sample) for sample in islice(samples(4), 200)]


def test_another_process_gives_the_same_text() -> None:
    """No set or hash of Python's, which differ from process to process, has a say."""
    program = (
        "import sys, zlib; sys.path.insert(0, 'build_tools'); from itertools import islice\n"
        "from demo.corpus import held_out, render, samples\n"
        "made = [*islice(samples(7), 300), *(s for kind in held_out(3).values() for s in kind)]\n"
        "print(zlib.crc32(repr([render(s) for s in made]).encode()))"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1


def test_shards_are_the_same_again_and_differ(tokenizer_dir: Path) -> None:
    encoder = Encoder(HfTokenizer.from_file(str(tokenizer_dir / "tokenizer.json")))
    tokens, weights = shard(encoder, 5, 2, 6, 1_024)
    again, weights_again = shard(encoder, 5, 2, 6, 1_024)
    assert np.array_equal(tokens, again)
    assert np.array_equal(weights, weights_again)
    assert not np.array_equal(tokens, shard(encoder, 5, 3, 6, 1_024)[0])
    assert tokens.shape == weights.shape == (6, 1_025)
    assert tokens.max() < encoder.tokenizer.get_vocab_size()


# ---- held out


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.__name__)
def test_no_held_out_question_is_trained_on(recipe: object) -> None:
    def questions(split: Split) -> set[str]:
        source = draw(split)
        made = [recipe(source) for _ in range(400 if split == "train" else 100)]  # type: ignore[operator]
        # With functions, what is held out is the schema: the request may be the same.
        return {
            repr((asked(m), m.messages, m.tools)) if isinstance(m, Sample) else m.question.lower().rstrip("?.!")
            for m in made
        }

    assert not questions("train") & questions("held")


def test_held_out_operands_are_in_no_training_question(many: list[Sample]) -> None:
    pairs = set()
    for sample in many:
        for message in sample.messages:
            found = re.fullmatch(
                r"\D*?(\d+)(?: \+ | - |\+|-| plus | minus | and | from )(\d+)\D*", str(message["content"])
            )
            if message["role"] == "user" and found and sample.tools is None and "larger" not in found[0]:
                pairs.add((found[0], tuple(sorted((int(found[1]), int(found[2]))))))
    sums = [pair for text, pair in pairs if re.search(r"[+\-]|plus|minus|[Aa]dd|sum of|[Ss]ubtract|difference", text)]
    assert len(sums) > 300
    assert not [pair for pair in sums if is_held("operands", pair) and max(pair) < 100_000]  # longer ones are refused
    held = [is_held("operands", (a, b)) for a in range(10, 100) for b in range(a, 100)]
    assert 0.04 < sum(held) / len(held) < 0.09


def test_held_out_functions_are_in_no_training_schema(many: list[Sample]) -> None:
    fixed = {name for domain in DOMAINS for name in domain.names.split()}
    unseen = {name for domain in DOMAINS if domain.unseen for name in domain.names.split()}
    for sample in many:
        for tool in sample.tools or []:
            function = tool["function"]
            name = function["name"]
            assert name not in unseen
            if name in fixed:
                assert not is_held("function", (name, *function["parameters"]["properties"]))
    asked_for = {sample.expect.calls[0][0] for sample in held_out(20)["tool calls"] if sample.expect.calls}
    assert len(asked_for) > 5


def test_held_out_has_every_kind() -> None:
    kinds = held_out(20)
    assert {sample.kind for sample in islice(samples(0), 4_000)} <= {*kinds, *BEGUN}
    assert {"tool calls, unseen subject", "tool calls, late"} < set(kinds)
    assert all(len(made) >= 3 for made in kinds.values())


# ---- right in every step


def equations(text: str) -> list[tuple[str, str]]:
    return re.findall(r"(?<![\d:.])((?:-?\d+ [+*/-] )+-?\d+) = (-?\d+(?: with remainder \d+)?)(?![\d:])", text)


def value_of(term: str) -> str:
    left, sign, *rest = term.split(" ")
    if sign == "/":
        quotient, remainder = divmod(int(left), int(rest[0]))
        return f"{quotient} with remainder {remainder}" if remainder else str(quotient)
    if sign == "*":
        return str(int(left) * int(rest[0]))
    total, tokens = int(left), [sign, *rest]
    for operator, number in zip(tokens[::2], tokens[1::2], strict=True):
        total += int(number) if operator == "+" else -int(number)
    return str(total)


def test_value_of_a_term() -> None:
    terms = ("7 + 5 + 1", "3 - 8", "30 / 7", "30 / 6", "4 * 12")
    assert [value_of(term) for term in terms] == ["13", "-5", "4 with remainder 2", "5", "48"]


WORKED = [
    arithmetic.add,
    arithmetic.subtract,
    arithmetic.small,
    arithmetic.three_digits,
    arithmetic.many_digits,
    arithmetic.multiply,
    arithmetic.divide,
    arithmetic.story_sum,
    arithmetic.add_many,
    calendar_time.date_after,
    calendar_time.date_before,
    calendar_time.clock,
    calendar_time.convert,
]


@pytest.mark.parametrize("recipe", WORKED, ids=lambda recipe: recipe.__name__)
@pytest.mark.parametrize("split", ["train", "held"])
def test_every_equation_of_a_thought_is_true(recipe: corpus.TurnRecipe, split: Split) -> None:
    source, n_seen = draw(split, "steps"), 0
    for _ in range(400):
        turn = recipe(source)
        found = equations(turn.thought) + equations(turn.answer)
        n_seen += len(found)
        for term, value in found:
            assert value_of(term) == value, turn
        assert turn.short is not None
        assert any(answer in turn.answer for answer in turn.expect.answer), turn
    assert n_seen >= 400


def test_column_addition_to_the_letter() -> None:
    assert arithmetic.add_steps(47, 85) == [
        "Ones: 7 + 5 = 12. Write 2, carry 1.",
        "Tens: 4 + 8 + 1 = 13. Write 3, carry 1.",
        "Hundreds: write 1.",
        "So 47 + 85 = 132.",
    ]
    assert arithmetic.add_steps(0, 0) == ["Ones: 0 + 0 = 0. Write 0.", "So 0 + 0 = 0."]


def test_column_subtraction_to_the_letter() -> None:
    assert arithmetic.subtract_steps(503, 148) == [
        "Ones: 3 is less than 8, borrow 10: 13 - 8 = 5.",
        "Tens: 0 - 1 = -1. -1 is less than 4, borrow 10: 9 - 4 = 5.",
        "Hundreds: 5 - 1 = 4. 4 - 1 = 3.",
        "So 503 - 148 = 355.",
    ]
    assert arithmetic.subtract_steps(12, 40)[-2:] == ["40 - 12 = 28.", "So 12 - 40 = -28."]


@pytest.mark.parametrize("pair", [(0, 0), (9, 1), (99, 99), (100, 1), (999, 999), (101, 99)])
def test_results_by_column(pair: tuple[int, int]) -> None:
    a, b = pair
    assert arithmetic.add_steps(a, b)[-1] == f"So {a} + {b} = {a + b}."
    assert arithmetic.subtract_steps(a, b)[-1] == f"So {a} - {b} = {a - b}."
    written = re.findall(r"[Ww]rite (\d)", "\n".join(arithmetic.add_steps(a, b)))
    assert int("".join(reversed(written))) == a + b


# ---- as our parsers read it


@pytest.fixture(scope="module")
def parsers(tokenizer_dir: Path) -> tuple[Tokenizer, ChatTemplate, Encoder]:
    tokenizer = Tokenizer.from_dir(tokenizer_dir)
    encoder = Encoder(HfTokenizer.from_file(str(tokenizer_dir / "tokenizer.json")))
    return tokenizer, ChatTemplate.from_dir(tokenizer_dir, tokenizer), encoder


def test_prompts_are_what_the_product_renders(
    many: list[Sample], parsers: tuple[Tokenizer, ChatTemplate, Encoder]
) -> None:
    _, template, encoder = parsers
    some = many[:700]
    for sample, (ids, weights) in zip(some, encoder.encode_many(some), strict=True):
        prompt = template.render(
            sample.messages[:-1], tools=sample.tools, template_kwargs={"enable_thinking": sample.thinking}
        )
        assert prompt.text + sample.given == render(sample)[0]
        assert ids[: len(prompt.ids)] == prompt.ids
        n = len(ids) - 1 - sum(weight == WEIGHT_UNIT for weight in weights)
        assert n == len(prompt.ids) or sample.given
        assert set(weights[n:-1]) == {WEIGHT_UNIT}
        assert set(weights[:n]) <= {0, PROMPT_WEIGHT}
        assert weights[n - 1] == 0  # how a turn begins is not learnt from prompts


def test_a_thought_that_went_wrong_is_closed_and_not_learnt(
    many: list[Sample], parsers: tuple[Tokenizer, ChatTemplate, Encoder]
) -> None:
    _, _, encoder = parsers
    lost = [sample for sample in many if sample.kind == "lost thoughts"]
    assert len(lost) > 10
    assert all(bool(sample.given) == (sample.kind in BEGUN) for sample in many)
    assert not [sample for made in held_out(4).values() for sample in made if sample.given]
    for ids, weights in encoder.encode_many(lost):
        learnt = [token for token, weight in zip(ids, weights, strict=True) if weight == WEIGHT_UNIT]
        assert encoder.tokenizer.decode(learnt, skip_special_tokens=False) == f"</think>\n\n{LOST}<|im_end|>"


def test_a_thought_cut_short_ends_as_a_budget_ends_it_and_the_answer_is_learnt(
    many: list[Sample], parsers: tuple[Tokenizer, ChatTemplate, Encoder]
) -> None:
    _, _, encoder = parsers
    cut = [sample for sample in many if sample.kind == "cut thoughts"]
    assert len(cut) > 10 and any(sample.messages[-1].get("tool_calls") for sample in cut)
    for sample, (ids, weights) in zip(cut, encoder.encode_many(cut), strict=True):
        assert sample.given.endswith(CLOSING_TEXT) and len(sample.given) > len("<think>\n" + CLOSING_TEXT)
        learnt = [token for token, weight in zip(ids, weights, strict=True) if weight == WEIGHT_UNIT]
        text = encoder.tokenizer.decode(learnt, skip_special_tokens=False)
        assert text.endswith("<|im_end|>") and "<think>" not in text
        assert text.startswith(sample.messages[-1]["content"] or "<tool_call>")


def test_of_forced_json_only_the_value_is_learnt(
    many: list[Sample], parsers: tuple[Tokenizer, ChatTemplate, Encoder]
) -> None:
    _, _, encoder = parsers
    forced = [sample for sample in many if sample.kind == "forced JSON"]
    assert len(forced) > 2
    for sample, (ids, weights) in zip(forced, encoder.encode_many(forced), strict=True):
        learnt = [token for token, weight in zip(ids, weights, strict=True) if weight == WEIGHT_UNIT]
        text = encoder.tokenizer.decode(learnt, skip_special_tokens=False).removesuffix("<|im_end|>")
        whole = json.loads(sample.messages[-1]["content"])
        *_, (key, value) = whole.items()
        assert sample.given.endswith(f'"{key}":') and json.loads(text.strip().removesuffix("}")) == value
        said = value if isinstance(value, list) else [value]
        assert all(isinstance(part, bool) or str(part) in asked(sample) for part in said)


def reply_of(sample: Sample, ids: list[int], tokenizer: Tokenizer) -> Reply:
    """The recipe's own answer, token by token through the product's parsers."""
    stream = OutputStream(
        tokenizer, thinking=False, split_reasoning=True, calls=CallPolicy.MANY if sample.tools else None
    )
    reply = Reply(finish="stop")
    deltas = [stream.push([token]) for token in ids]
    for delta in [*deltas, stream.finish()]:
        reply.reasoning += delta.reasoning
        reply.content += delta.content
        reply.calls += [(call.name, call.arguments) for call in delta.calls]
    return reply


def test_every_dialogue_parses_back_and_scores_full_marks(
    many: list[Sample], parsers: tuple[Tokenizer, ChatTemplate, Encoder]
) -> None:
    tokenizer, _, encoder = parsers
    held = [sample for kind in held_out(6).values() for sample in kind]
    conversations = [*many[:1_000], *held]
    for sample, (ids, weights) in zip(conversations, encoder.encode_many(conversations), strict=True):
        if sample.given:
            continue
        answer = [token for token, weight in zip(ids, weights, strict=True) if weight == WEIGHT_UNIT]
        assert answer[-1] == encoder.tokenizer.token_to_id("<|im_end|>")
        reply = reply_of(sample, answer[:-1], tokenizer)
        last = sample.messages[-1]
        assert reply.content.strip() == last["content"].strip()
        assert reply.reasoning.strip() == last.get("reasoning_content", "").strip()
        wanted = [(call["function"]["name"], call["function"]["arguments"]) for call in last.get("tool_calls", [])]
        assert [(name, json.loads(arguments)) for name, arguments in reply.calls] == wanted
        assert protocol_fault(sample, reply) is None, sample
        assert fault(sample, reply) is None, sample


def test_arguments_fit_their_schemas_and_results_are_tool_messages(many: list[Sample]) -> None:
    n_calls = 0
    for sample in many:
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in sample.tools or []}
        assert len(schemas) == len(sample.tools or []), "two functions of one name"
        for schema in schemas.values():
            jsonschema.Draft202012Validator.check_schema(schema)
        for message in sample.messages:
            for call in message.get("tool_calls", []):
                jsonschema.validate(call["function"]["arguments"], schemas[call["function"]["name"]])
                n_calls += 1
    assert n_calls > 500


def test_functions_made_up_differ_in_name() -> None:
    source = draw("train")
    for _ in range(300):
        offered = [tool["function"]["name"] for tool in tools.made_up_call(source).tools or []]
        assert len(set(offered)) == len(offered)


# ---- what is scored


def right(sample: Sample) -> Reply:
    last = sample.messages[-1]
    return Reply(last.get("reasoning_content", ""), last["content"], finish="stop")


SUM = Sample(
    "sum",
    [{"role": "user", "content": "47 + 85"}, {"role": "assistant", "content": "47 + 85 = 132."}],
    False,
    expect=Expect(answer=("132",)),
)


@pytest.mark.parametrize("said", ["47 + 85 = 133.", "47 + 85 = 1132.", "132\nNo, it is 133.", "47 + 85 = -132."])
def test_a_wrong_number_is_wrong(said: str) -> None:
    assert fault(SUM, right(SUM)) is None
    assert fault(SUM, replace(right(SUM), content=said)) == "expected '132'"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"finish": "length"}, "ends with length"),
        ({"reasoning": "Hm."}, "a thought where none belongs"),
        ({"content": " "}, "neither words nor a call"),
        ({"content": "132 </think>"}, "stray </think>"),
        ({"calls": [("f", "{}")]}, "a call without tools"),
    ],
)
def test_a_broken_protocol_is_seen(change: dict[str, object], sentence: str) -> None:
    assert protocol_fault(SUM, right(SUM)) is None
    assert protocol_fault(SUM, replace(right(SUM), **change)) == sentence  # type: ignore[arg-type]


def test_thoughts_belong_where_they_are_wanted() -> None:
    thinking = replace(SUM, thinking=True)
    assert protocol_fault(thinking, right(SUM)) == "no thought"
    assert protocol_fault(thinking, replace(right(SUM), reasoning="7 + 5 = 12.")) is None
    switched = replace(thinking, messages=[{"role": "user", "content": "47 + 85 /no_think"}, SUM.messages[-1]])
    assert protocol_fault(switched, right(SUM)) is None


CALL = Sample(
    "call",
    [{"role": "user", "content": "Weather in Rome?"}, {"role": "assistant", "content": ""}],
    False,
    [{"type": "function", "function": {"name": "weather", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}],
    Expect(calls=(("weather", {"city": "Rome"}),)),
)  # fmt: skip


@pytest.mark.parametrize(
    ("calls", "sentence"),
    [
        ([("weather", '{"city": "Rome"}')], None),
        ([("weather", '{"city": "Oslo"}')], "expected"),
        ([("forecast", '{"city": "Rome"}')], "there is no function forecast"),
        ([("weather", '{"town": "Rome"}')], "required property"),
        ([("weather", '{"city": 7}')], "not of type"),
        ([], "expected"),
        ([("weather", '{"city": "Rome"}')] * 2, "expected"),
    ],
)
def test_calls_are_compared_whole(calls: list[tuple[str, str]], sentence: str | None) -> None:
    found = fault(CALL, Reply(calls=calls, finish="tool_calls"))
    assert found is None if sentence is None else found is not None and sentence in found


def test_definitions_are_plain_and_each_word_is_there_once() -> None:
    rows = definitions()
    assert len(rows) == len({word for _, word, _ in rows}) == 2_420
    assert {part for part, _, _ in rows} == {"noun", "verb", "adjective"}
    for _, word, text in rows:
        assert re.fullmatch("[a-z]{3,11}", word)
        assert re.fullmatch(r"[a-z][a-z ,'-]+", text), text
