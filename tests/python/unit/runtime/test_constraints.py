"""Constraints by themselves: phases of a sample, places of faults, limits, tool calls, and the masks' thread."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import odd_compiler
import psutil
import pytest
from patience import PATIENCE, until, wait_until
from serving import TextParts, load_text

from qwen3app.abi.matchers import Matcher
from qwen3app.abi.types import Event
from qwen3app.compiler.process import Compilers
from qwen3app.errors import AppError, EngineError, RequestError, Status
from qwen3app.runtime import constraints as module
from qwen3app.runtime.constraints import Constraint, Constraints, GrammarTokens, Phase, SampleConstraint
from qwen3app.runtime.masks import ConstrainedSample, Masks
from qwen3app.text import grammars
from qwen3app.text.errors import TextError
from qwen3app.text.grammars import MAX_CHARACTERS, MAX_CHOICES, MAX_DEPTH, ConstraintSpec, tool_call_spec

COMPACT = {"white_space": False}


@pytest.fixture
async def odd(
    monkeypatch: pytest.MonkeyPatch, text_parts: TextParts, tokens: GrammarTokens
) -> AsyncIterator[tuple[Constraints, Compilers]]:
    """Constraints of one thread, whose process does what odd_compiler.py says. They may take their time."""
    monkeypatch.setattr(module, "_THREADS", 1)
    monkeypatch.setattr(module, "_WAIT_SECONDS", 4 * PATIENCE)
    compilers = Compilers(
        lambda: (tokens.token_bytes, dict(tokens.control_tokens)), seconds=4 * PATIENCE, command=odd_compiler.COMMAND
    )
    constraints = Constraints(text_parts.tokenizer, tokens, compilers)
    yield constraints, compilers
    await constraints.close()


def regex(value: str) -> ConstraintSpec:
    return ConstraintSpec("regex", value, "p")


@pytest.fixture(scope="module")
def official() -> Iterator[Constraints]:
    tokenizer = load_text(Path(__file__).parents[3] / "data" / "qwen3").tokenizer
    tokens = GrammarTokens(tokenizer)
    compilers = Compilers(lambda: (tokens.token_bytes, dict(tokens.control_tokens)), seconds=4 * PATIENCE)
    constraints = Constraints(tokenizer, tokens, compilers)
    yield constraints
    asyncio.run(constraints.close())


class Walk:
    """A sample's way through its phases and its grammar, as the masks' threads and the engine go it."""

    def __init__(self, sample: SampleConstraint) -> None:
        self.sample = sample
        self.matcher: Matcher | None = None
        self._settle()

    def _settle(self) -> None:
        if self.matcher is None and self.sample.phase is Phase.ANSWER:
            self.matcher = self.sample.matcher()
        mask = self.sample.mask if self.matcher is None else self.matcher.mask()
        assert mask is not None, self.matcher and self.matcher.error()
        self.mask = mask

    def push(self, token: int) -> None:
        if self.matcher is None:
            self.sample.push(token)
        else:
            assert self.matcher.consume(token)
        self._settle()

    @property
    def over(self) -> bool:
        """Nothing but an end may follow."""
        return self.matcher is not None and self.matcher.is_stopped() and self.matcher.is_accepting()


def begin(constraint: Constraint, *, thinking: bool = False, may_think: bool = False) -> Walk:
    return Walk(constraint.sample(thinking=thinking, may_think=may_think))


def ids(mask: bytes) -> set[int]:
    bits = int.from_bytes(mask, "little")
    return {i for i in range(len(mask) * 8) if bits >> i & 1}


def answer(parts: TextParts, sample: Walk, seed: int, limit: int = 3000) -> list[int]:
    """What a model of random numbers says, without the end."""
    source, said = random.Random(seed), list[int]()
    while len(said) < limit:
        token = source.choice(sorted(ids(sample.mask)))
        if token in parts.tokenizer.eos_ids:
            return said
        said.append(token)
        sample.push(token)
    raise AssertionError(parts.tokenizer.decode(said, skip_special=False))


def push_text(parts: TextParts, sample: Walk, text: str) -> None:
    for token in parts.tokenizer.encode_raw(text):
        assert token in ids(sample.mask), (text, parts.tokenizer.token_text(token))
        sample.push(token)


async def test_an_end_and_control_tokens_come_only_where_they_may(
    text_parts: TextParts, constraints: Constraints
) -> None:
    tokenizer = text_parts.tokenizer
    eos = set(tokenizer.eos_ids)
    constraint = await constraints.compile(ConstraintSpec("regex", "a+(.|\n)*z", "x"))
    sample = begin(constraint)
    push_text(text_parts, sample, "a <|im_end")
    assert ids(sample.mask).isdisjoint(tokenizer.added_tokens)
    push_text(text_parts, sample, "z")
    assert ids(sample.mask) & set(tokenizer.added_tokens) == eos
    assert max(ids(sample.mask)) < tokenizer.n_ids


async def test_b49_the_official_tokens_that_begin_an_object(official: Constraints) -> None:
    """`{"` is one token of the official tokenizer, and a legal first one with thinking off and on."""
    for schema in ({"type": "object"}, {"properties": {"a": {"type": "string"}}, "required": ["a"]}):
        constraint = await official.compile(ConstraintSpec("json", schema, "p"))
        for thinking, may_think in ((False, False), (False, True), (True, True)):
            sample = begin(constraint, thinking=thinking, may_think=may_think)
            if thinking:
                sample.push(151668)  # </think>
                sample.push(271)  # an empty line
            assert {90, 4913} <= ids(sample.mask)  # `{` and `{"`
            sample.push(4913)
            assert ids(sample.mask) and 151645 not in ids(sample.mask)


async def test_phases_of_a_thought(text_parts: TextParts, constraints: Constraints) -> None:
    tokenizer = text_parts.tokenizer
    opening, closing = tokenizer.think_open_id, tokenizer.think_close_id
    assert opening is not None and closing is not None
    constraint = await constraints.compile(ConstraintSpec("choice", ["yes", "no"], "x"))
    free = set(range(tokenizer.n_ids)) - set(tokenizer.eos_ids)
    first = ids(begin(constraint).mask)
    assert opening not in first and tokenizer.encode_raw("y")[0] in first

    sample = begin(constraint, may_think=True)
    assert ids(sample.mask) == first | {opening}
    sample.push(opening)
    assert ids(sample.mask) == free  # all but an end
    push_text(text_parts, sample, "hm {\n")
    assert ids(sample.mask) == free
    sample.push(closing)
    newlines = {i for i in range(tokenizer.n_ids) if tokenizer.token_bytes(i) in (b"\n", b"\n\n")}
    assert ids(sample.mask) == first | newlines
    sample.push(newlines.pop())
    assert ids(sample.mask) == first
    push_text(text_parts, sample, "no")
    assert ids(sample.mask) == set(tokenizer.eos_ids) and sample.over

    inside = begin(constraint, thinking=True, may_think=True)
    assert ids(inside.mask) == free
    inside.push(closing)
    push_text(text_parts, inside, "yes")
    assert inside.over
    skipped = begin(constraint, may_think=True)
    push_text(text_parts, skipped, "yes")
    assert skipped.over


PLACES: list[tuple[Any, str, str]] = [
    ({"properties": {"foo": "bar"}}, "p.properties.foo", "object or boolean"),
    ({"items": {"anyOf": [{"type": "string"}, {"type": "objekt"}]}}, "p.items.anyOf[1]", "objekt"),
    ({"$defs": {"a": {"not": {}}}, "items": {"$ref": "#/$defs/a"}}, "p.$defs.a", "not"),
    ({"items": {"$ref": "http://x.y/z"}}, "p.items", "x.y"),
    ({"additionalProperties": {"pattern": "(", "type": "string"}}, "p.additionalProperties", "unclosed group"),
    ({"$ref": "#"}, "p", "no text"),
    ({"prefixItems": [{"format": "zipcode", "type": "string"}]}, "p.prefixItems[0]", "zipcode"),
    # bounds that a float does not tell from their neighbours
    ({"items": {"type": "integer", "minimum": 2**53 + 1}}, "p.items.minimum", "2^53"),
    ({"anyOf": [{"maximum": -(10**18)}]}, "p.anyOf[0].maximum", "2^53"),
    ({"exclusiveMinimum": 2**53}, "p.exclusiveMinimum", "2^53"),
    ({"exclusiveMaximum": 2**63 - 1}, "p.exclusiveMaximum", "2^53"),
    ({"type": "number", "exclusiveMaximum": 1e300}, "p.exclusiveMaximum", "2^53"),
    ({"properties": {"minimum": {"minimum": 2**64}}}, "p.properties.minimum.minimum", "2^53"),
    (False, "p", "false"),
    ("{", "p", "not valid JSON"),
    (3, "p", "must be a JSON schema"),
    ({"enum": ["x" * MAX_CHARACTERS]}, "p", "larger"),
    ({"enum": [None] * MAX_CHARACTERS}, "p", "larger"),
    ({"x" * MAX_CHARACTERS: 1}, "p", "larger"),
    (json.loads('{"items":' * MAX_DEPTH + "{}" + "}" * MAX_DEPTH), "p", "nested"),
]


@pytest.mark.parametrize(("schema", "place", "reason"), PLACES)
async def test_faults_have_a_place(constraints: Constraints, schema: Any, place: str, reason: str) -> None:
    with pytest.raises(RequestError) as caught:
        await constraints.compile(ConstraintSpec("json", schema, "p"))
    assert caught.value.param == place, str(caught.value)
    assert reason in str(caught.value) and len(str(caught.value)) < 600
    assert caught.value.code == "invalid_constraint"


BOUNDS = [0, 1, -1, 2, 7, 99, 100, -7, 0.5, 1.5, 0.1, 1e3, 12.25, 2**31, 2**53 - 1, -(2**53) + 1, 2**63 - 1]
VALUES: list[Any] = [
    *(0, 1, -1, 2, 3, 4, 7, 8, 98, 99, 100, 101, -7, -8, 0.5, -0.5, 1.5, 0.1, 0.25, 1000, 12.25, 2**31, 2**31 + 1),
    *(2**53 - 1, 2**53, -(2**53), 2**63 - 1, 2**63, -(2**63), 10**30, "", "a", "b", "ab", "ba", "é", "12", "日本語"),
    *(None, True, False, [], [1], [1, 2], [1, 2, 1], ["x"], [1, "x"], [1, "x", 1], {}, {"a": 1}, {"a": "x"}, {"b": 1}),
    *({"b": "x"}, {"a": 1, "b": "x"}, {"c": 1}, {"a": 1, "c": 2}, {"a": 1, "b": "x", "c": "y"}, {"é": 1}),
]


def random_schema(draw: random.Random) -> dict[str, Any]:
    def some(fields: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in fields.items() if draw.random() < 0.4}

    kind = draw.choice(["integer", "number", "string", "array", "object"])
    if kind in ("integer", "number"):
        names = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
        fields = some({name: draw.choice(BOUNDS) for name in names} | {"multipleOf": draw.choice([1, 2, 7])})
    elif kind == "string":
        pattern = draw.choice(["a", "^a", "b$", "^[ab]+$", ".", "^\\d{2}$", "a|b", "^$", "^(?:a|b)c?$"])
        fields = some({"minLength": draw.randrange(4), "maxLength": draw.randrange(4), "pattern": pattern})
    elif kind == "array":
        fields = some({"minItems": draw.randrange(4), "maxItems": draw.randrange(4)})
        fields |= some({"prefixItems": [{"const": 1}, {"type": "string"}][: draw.randrange(1, 3)]})
        fields["items"] = draw.choice([{"type": "integer"}, {"enum": [1, 2]}, True, False])
    else:
        inner = [{"const": 1}, {"type": "string"}, True]
        fields = some({"minProperties": draw.randrange(3), "maxProperties": draw.randrange(3)})
        fields |= some(
            {"patternProperties": {draw.choice(["^a", "b$", "."]): draw.choice([{"type": "integer"}, True])}}
        )
        fields |= some({"additionalProperties": draw.choice([False, True, {"type": "integer"}])})
        fields["properties"] = {name: draw.choice(inner) for name in draw.sample(["a", "b", "é"], draw.randrange(3))}
        fields["required"] = draw.sample(["a", "b", "c"], draw.randrange(3))
    schema = {"type": kind, **fields}
    if draw.random() < 0.2:
        return {"anyOf": [schema, {"type": "null"}]}
    if draw.random() < 0.2:
        return {"allOf": [schema, draw.choice([{"minimum": 2}, {"maxLength": 2}, {"maxItems": 2}, {}])]}
    return schema


async def test_b47_nothing_passes_that_a_schema_forbids(text_parts: TextParts, constraints: Constraints) -> None:
    """An independent validator says what a schema means. What is taken must be allowed; of numbers, strings and arrays
    all that is allowed must be taken as well (an object's properties have to come in the schema's order)."""
    draw, n_schemas, n_taken = random.Random(47), 0, 0
    for _ in range(250):
        schema = random_schema(draw)
        try:
            constraint = await constraints.compile(ConstraintSpec("json", schema, "p"))
        except RequestError:
            continue  # met by nothing, or refused
        n_schemas += 1
        validator = jsonschema.Draft202012Validator(schema)
        for value in VALUES:
            sample = begin(constraint)
            taken = True
            for token in text_parts.tokenizer.encode_plain(json.dumps(value, ensure_ascii=False)):
                taken = bool(sample.mask[token >> 3] >> (token & 7) & 1)
                if not taken:
                    break
                sample.push(token)
            taken = taken and not ids(sample.mask).isdisjoint(text_parts.tokenizer.eos_ids)
            n_taken += taken
            assert not taken or validator.is_valid(value), (schema, value)
            assert taken or isinstance(value, dict) or not validator.is_valid(value), (schema, value)
    assert n_schemas > 150 and n_taken > 1000


@pytest.mark.parametrize(
    ("kind", "value", "place"),
    [
        ("regex", 3, "p"),
        ("regex", "(", "p"),
        ("regex", "a" * (MAX_CHARACTERS + 1), "p"),
        ("regex", "\ud800", "p"),
        ("choice", [], "p"),
        ("choice", "abc", "p"),
        ("choice", ["a", 1], "p[1]"),
        ("choice", ["a", "\udc00"], "p[1]"),
        ("choice", ["a"] * (MAX_CHOICES + 1), "p"),
        ("grammar", "start: nothing", "p"),
        ("grammar", "root ::= (", "p"),
        ("grammar", "start: <no_such_token>", "p"),
        ("grammar", "start: " + "(" * 5000 + '"a"' + ")" * 5000, "p"),
        ("grammar", "", "p"),
        ("grammar", 'start: "a\0" "b"', "p"),
        ("grammar", None, "p"),
    ],
)
async def test_other_kinds_have_their_faults_too(constraints: Constraints, kind: Any, value: Any, place: str) -> None:
    for _ in range(2):  # the second comes from the cache
        with pytest.raises(RequestError) as caught:
            await constraints.compile(ConstraintSpec(kind, value, "p"))
        assert caught.value.param == place
        assert len(str(caught.value)) < 600


async def test_an_expression_that_takes_too_much_work_is_told_so(official: Constraints) -> None:
    with pytest.raises(RequestError, match="take too much work to follow; make them simpler"):
        await official.compile(regex("a?" * 1000))


async def test_what_is_known_is_not_compiled_again(
    constraints: Constraints, compilers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    ask = compilers.ask
    monkeypatch.setattr(
        compilers, "ask", lambda constraint, param, *more: asked.append(param) or ask(constraint, param, *more)
    )
    tools = tool_call_spec([("f", {"properties": {"a": {"type": "integer"}}})], parallel=True, free_text=True)
    specs = [
        ConstraintSpec("json", {"enum": [1]}, "p"),
        ConstraintSpec("json", {"enum": [1.5]}, "p"),
        ConstraintSpec("json", {"enum": [1]}, "q"),
        ConstraintSpec("json", {"enum": [1]}, "p", white_space=False),
        ConstraintSpec("choice", ["1"], "p"),
        tools,
        replace(tools, parallel=False),
    ]
    first = [await constraints.compile(spec) for spec in specs]
    again = [await constraints.compile(spec) for spec in specs]
    assert all(a is b for a, b in zip(first, again, strict=True))
    assert len(set(map(id, first))) == len(specs)
    assert asked == [spec.param for spec in specs]
    for place in ("p", "q"):  # a fault is told with the place of its own request
        for _ in range(2):
            with pytest.raises(RequestError) as caught:
                await constraints.compile(ConstraintSpec("json", {"enum": []}, place))
            assert caught.value.param == place and place in str(caught.value)


def nested(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"items": value}
    return value


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("json", nested(5000), "nested more than"),
        ("json", {"const": "\ud800"}, "cannot be written as JSON"),
        ("choice", nested(5000), "must be a list"),
        ("regex", "\ud800", "surrogate"),
    ],
)
async def test_what_is_no_json_has_its_fault_named(
    constraints: Constraints, kind: Any, value: Any, reason: str
) -> None:
    with pytest.raises(RequestError, match=reason) as caught:
        await constraints.compile(ConstraintSpec(kind, value, "p"))
    assert caught.value.param is not None and caught.value.param.startswith("p")
    assert caught.value.code == "invalid_constraint"


async def test_nul_characters_are_kept_where_they_can_be_written(
    text_parts: TextParts, constraints: Constraints
) -> None:
    for kind, value in (("choice", ["a\0b"]), ("regex", "a\0b"), ("json", {"const": "a\0b"})):
        constraint = await constraints.compile(ConstraintSpec(kind, value, "p"))  # type: ignore[arg-type]
        text = text_parts.tokenizer.decode(answer(text_parts, begin(constraint), 1))
        assert text == ('"a\\u0000b"' if kind == "json" else "a\0b")


async def test_what_never_compiles_costs_its_own_request_alone(
    odd: tuple[Constraints, Compilers], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    constraints, compilers = odd
    known = await constraints.compile(regex("ab"))
    for value, reason in (
        (f"hangs {tmp_path}/begun", "takes longer than 0.2 s"),
        ("crashes", "SIGSEGV"),
        ("ends", "SIGKILL"),
    ):
        if value.startswith("hangs"):
            compilers._seconds = 0.2
        before = {thread.name for thread in threading.enumerate()}
        (child,) = [process._process.pid for process in compilers._all]
        for _ in range(2):  # such an end is not kept: another time it may go well
            with pytest.raises(RequestError, match=reason) as caught:
                await constraints.compile(regex(value))
            assert caught.value.param == "p" and caught.value.code == "constraint_too_complex"
            assert reason in caplog.text
        compilers._seconds = 4 * PATIENCE
        assert not psutil.pid_exists(child) and not compilers._all
        assert {thread.name for thread in threading.enumerate()} <= before
        assert await constraints.compile(regex("ab")) is known and not compilers._all
        assert isinstance(await constraints.compile(regex(f"then {value}")), Constraint)


async def test_who_finds_no_thread_in_time_is_told_to_try_later(
    odd: tuple[Constraints, Compilers], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    constraints, _ = odd
    first = asyncio.create_task(constraints.compile(regex(f"waits {tmp_path}/begun")))
    await until((tmp_path / "begun").exists)
    monkeypatch.setattr(module, "_WAIT_SECONDS", 0.05)
    with pytest.raises(EngineError, match="being compiled; try later") as caught:
        await constraints.compile(regex("quick"))
    assert caught.value.status == Status.QUEUE_FULL
    monkeypatch.setattr(module, "_MAX_WAITING", 1)
    await until(lambda: constraints._n_waiting == 1)
    with pytest.raises(EngineError, match="wait to be compiled") as caught:
        await constraints.compile(regex("quick"))
    assert caught.value.status == Status.QUEUE_FULL
    (tmp_path / "begun").unlink()
    assert isinstance(await first, Constraint)
    await until(lambda: constraints._n_waiting == 0)


async def test_a_request_that_ends_while_it_waits_to_be_compiled_waits_no_more(
    odd: tuple[Constraints, Compilers], tmp_path: Path
) -> None:
    constraints, _ = odd
    first = asyncio.create_task(constraints.compile(regex(f"waits {tmp_path}/begun")))
    await until((tmp_path / "begun").exists)
    second = asyncio.create_task(constraints.compile(regex(f"hangs {tmp_path}/second")))
    await until(lambda: constraints._n_waiting == 2)
    second.cancel()
    await until(lambda: constraints._n_waiting == 1)
    (tmp_path / "begun").unlink()
    assert isinstance(await first, Constraint)
    assert isinstance(await constraints.compile(regex("third")), Constraint)
    assert not (tmp_path / "second").exists()


async def test_a_request_that_ends_while_it_is_compiled_frees_thread_and_process(
    odd: tuple[Constraints, Compilers], tmp_path: Path
) -> None:
    constraints, compilers = odd
    await constraints.compile(regex("ab"))
    gone = asyncio.create_task(constraints.compile(regex(f"hangs {tmp_path}/begun")))
    await until((tmp_path / "begun").exists)
    (child,) = [process._process.pid for process in compilers._all]
    second = asyncio.create_task(constraints.compile(regex("then")))  # there is one thread
    await until(lambda: constraints._n_waiting == 2)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert isinstance(await second, Constraint)
    assert not psutil.pid_exists(child) and len(compilers._all) == 1
    await until(lambda: constraints._n_waiting == 0)


async def test_what_is_known_waits_for_no_other(odd: tuple[Constraints, Compilers], tmp_path: Path) -> None:
    constraints, _ = odd
    known = await constraints.compile(regex("ab"))
    with pytest.raises(RequestError, match="cannot be used as a constraint") as fault:
        await constraints.compile(regex("(ab"))
    first = asyncio.create_task(constraints.compile(regex(f"waits {tmp_path}/begun")))
    await until((tmp_path / "begun").exists)
    assert await constraints.compile(regex("ab")) is known
    with pytest.raises(RequestError) as caught:
        await constraints.compile(regex("(ab"))
    assert str(caught.value) == str(fault.value)
    with pytest.raises(RequestError, match="surrogate"):
        await constraints.compile(regex("\ud800"))
    assert not first.done()
    (tmp_path / "begun").unlink()
    assert isinstance(await first, Constraint)


async def test_the_same_constraint_of_many_requests_is_compiled_once(
    odd: tuple[Constraints, Compilers], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    constraints, compilers = odd
    asked: list[bytes] = []
    ask = compilers.ask
    monkeypatch.setattr(compilers, "ask", lambda constraint, *more: asked.append(constraint) or ask(constraint, *more))
    spec = regex(f"waits {tmp_path}/begun")
    tasks = [asyncio.create_task(constraints.compile(spec)) for _ in range(5)]
    await until((tmp_path / "begun").exists)
    await until(lambda: constraints._n_waiting == 5)
    (tmp_path / "begun").unlink()
    assert len(set(map(id, await asyncio.gather(*tasks)))) == 1 and len(asked) == 1


async def test_closing_ends_what_is_being_compiled_and_what_waits(
    odd: tuple[Constraints, Compilers], tmp_path: Path
) -> None:
    constraints, compilers = odd
    known = regex("ab")
    await constraints.compile(known)
    tasks = [asyncio.create_task(constraints.compile(regex(f"hangs {tmp_path}/{i}"))) for i in range(2)]
    await until(lambda: constraints._n_waiting == 2 and any(tmp_path.iterdir()))
    (child,) = [process._process.pid for process in compilers._all]
    for _ in range(2):
        await constraints.close()
    for waiting in (*tasks, constraints.compile(known)):
        with pytest.raises(EngineError) as caught:
            await waiting
        assert caught.value.status == Status.CLOSED
    assert not psutil.pid_exists(child)


async def test_what_a_refused_request_held_is_let_go_of_at_once(constraints: Constraints) -> None:
    """A cycle would keep it until the collector comes, which then takes 85 ms, Python's lock in hand."""
    gc.disable()
    try:
        for spec in (ConstraintSpec("json", {"enum": ["x" * 9] * 90_000}, "p"), ConstraintSpec("regex", "(", "p")):
            gone: list[weakref.ref[RequestError]] = []
            try:
                await constraints.compile(spec)
            except RequestError as error:
                gone.append(weakref.ref(error))
            await until(lambda gone=gone: gone[0]() is None)  # type: ignore[misc]
    finally:
        gc.enable()


def cost(value: Any) -> int:
    """What a constraint's size counts, by definition."""
    if isinstance(value, str):
        return len(value) + 1
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return 1 + sum(map(len, value if isinstance(value, dict) else ())) + sum(map(cost, inner))


async def test_the_limit_of_size_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(5)
    for _ in range(200):
        schema = {"enum": [random_json(rng, 4) for _ in range(3)]}
        monkeypatch.setattr(grammars, "MAX_CHARACTERS", cost(schema))
        grammars.build_grammar(ConstraintSpec("json", schema, "p"), {})
        monkeypatch.setattr(grammars, "MAX_CHARACTERS", cost(schema) - 1)
        with pytest.raises(TextError, match="is larger than"):
            grammars.build_grammar(ConstraintSpec("json", schema, "p"), {})


def random_json(rng: random.Random, depth: int) -> Any:
    kind = rng.randrange(6 if depth else 4)
    if kind < 4:
        return (rng.randrange(99), None, True, "x" * rng.randrange(5))[kind]
    items = [random_json(rng, depth - 1) for _ in range(rng.randrange(4))]
    return items if kind == 4 else {f"k{i}" * rng.randrange(3) + str(i): each for i, each in enumerate(items)}


TOOLS = [
    (
        "get",
        {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False},
    ),
    (
        'put "it"',
        {"type": "object", "properties": {"s": {"enum": ["x", "</tool_call>", "日"]}}, "additionalProperties": False},
    ),
    ("stop", None),
]


@pytest.mark.parametrize("parallel", [True, False])
async def test_tool_calls(text_parts: TextParts, constraints: Constraints, parallel: bool) -> None:
    spec = tool_call_spec(TOOLS[:2], parallel=parallel, free_text=False)
    constraint = await constraints.compile(spec)
    schemas, numbers = dict(TOOLS), set()
    for seed in range(30):
        said = answer(text_parts, begin(constraint), seed)
        text = text_parts.tokenizer.decode(said, skip_special=False)
        opening = text_parts.tokenizer.control_tokens["<tool_call>"]
        assert said[0] == opening and said[-1] == text_parts.tokenizer.control_tokens["</tool_call>"]
        numbers.add(said.count(opening))
        calls = text.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>").split("\n</tool_call>\n<tool_call>\n")
        assert len(calls) == said.count(opening)
        for call in map(json.loads, calls):
            assert list(call) == ["name", "arguments"]
            jsonschema.validate(call["arguments"], schemas[call["name"]])
    assert numbers == {1} if not parallel else len(numbers) > 1


async def test_text_may_stand_around_strict_calls(text_parts: TextParts, constraints: Constraints) -> None:
    constraint = await constraints.compile(tool_call_spec(TOOLS, parallel=True, free_text=True))
    sample = begin(constraint)
    eos = set(text_parts.tokenizer.eos_ids)
    assert eos <= ids(sample.mask)
    push_text(text_parts, sample, "Let me see:\n")
    push_text(text_parts, sample, '<tool_call>\n{"name": "get", "arguments": {"n": ')
    assert eos.isdisjoint(ids(sample.mask)) and text_parts.tokenizer.encode_raw("x")[0] not in ids(sample.mask)
    push_text(text_parts, sample, "12}}\n</tool_call>\n")
    push_text(text_parts, sample, '<tool_call>\n{"name": "stop", "arguments": {"any": [1]}}\n</tool_call> done')
    assert eos <= ids(sample.mask)


@pytest.mark.parametrize(
    "schema",
    [
        None,
        True,
        {},
        {"type": ["null", "object"], "maxProperties": 1},
        {"properties": {"n": {"type": "boolean"}}, "additionalProperties": False},
        {"anyOf": [{"properties": {"n": {"type": "null"}}, "additionalProperties": False}, {"type": "string"}]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"n": {"enum": [1]}}, "additionalProperties": False}}},
    ],
)
async def test_arguments_are_an_object_whatever_their_schema_leaves_open(
    text_parts: TextParts, constraints: Constraints, schema: Any
) -> None:
    constraint = await constraints.compile(tool_call_spec([("f", schema)], parallel=False, free_text=False))
    sample = begin(constraint)
    push_text(text_parts, sample, '<tool_call>\n{"name": "f", "arguments": ')
    begins = {text_parts.tokenizer.decode([token]).lstrip()[:1] for token in ids(sample.mask)}
    assert "{" in begins and begins <= {"{", ""}


async def test_arguments_that_cannot_be_an_object_are_refused(constraints: Constraints) -> None:
    tools = [("a", None), ("f", {"type": "string"})]
    with pytest.raises(RequestError) as caught:
        await constraints.compile(tool_call_spec(tools, parallel=True, free_text=False))
    assert caught.value.param == "tools[1].function.parameters.type"
    assert str(caught.value) == (
        'tools[1].function.parameters.type must be "object", since the arguments of a call are a JSON object.'
    )


async def test_a_spelled_tag_cannot_begin_a_call_that_nothing_checks(
    text_parts: TextParts, constraints: Constraints
) -> None:
    constraint = await constraints.compile(tool_call_spec(TOOLS, parallel=True, free_text=True))
    for text in ("<tool_call>", "a < b <<tool_call>"):
        sample = begin(constraint)
        spelled = text_parts.tokenizer.encode_plain(text)
        push = [token for token in spelled[:-1] if sample.push(token) is None]
        assert push == spelled[:-1] and spelled[-1] not in ids(sample.mask)


async def test_an_answer_without_calls_has_its_form(text_parts: TextParts, constraints: Constraints) -> None:
    form = ConstraintSpec("choice", ["yes", "no"], "guided_choice")
    constraint = await constraints.compile(tool_call_spec(TOOLS, parallel=True, free_text=False, instead=form))
    sample = begin(constraint)
    push_text(text_parts, sample, "yes")
    assert sample.over
    sample = begin(constraint)
    push_text(text_parts, sample, '<tool_call>\n{"name": "get", "arguments": {"n":1}}\n</tool_call>')
    assert set(text_parts.tokenizer.eos_ids) <= ids(sample.mask)


async def test_a_tools_schema_at_fault_is_named(constraints: Constraints) -> None:
    tools = [("a", {"type": "object"}), ("none", None), ("b", {"properties": {"x": {"type": "objekt"}}})]
    with pytest.raises(RequestError) as caught:
        await constraints.compile(tool_call_spec(tools, parallel=True, free_text=False))
    assert caught.value.param == "tools[2].function.parameters.properties.x"


# ------------------------------------------------------------------------------------------------------------- masks


class MaskEngine:
    """Takes masks and matchers, and cancels."""

    def __init__(self) -> None:
        self.masks: list[tuple[int, int, int, bytes]] = []
        self.matchers: list[tuple[int, int, int, Matcher]] = []
        self.cancelled: list[tuple[int, int]] = []
        self.error: Exception | None = None

    def set_mask(self, request: int, sample: int, index: int, mask: bytes) -> None:
        if self.error is not None:
            raise self.error
        self.masks.append((request, sample, index, mask))

    def set_matcher(self, request: int, sample: int, index: int, matcher: Matcher, *, slow: bool) -> None:
        if self.error is not None:
            raise self.error
        self.matchers.append((request, sample, index, matcher))

    def cancel(self, request: int, sample: int = -1) -> bool:
        self.cancelled.append((request, sample))
        return True


def event(kind: int, request: int, sample: int, token: int = -1, index: int = 0, reason: int = 0) -> Event:
    return Event(request, kind=kind, sample=sample, token=token, index=index, finish_reason=reason)


@pytest.mark.parametrize("light", [True, False])
async def test_a_sample_without_a_thought_gets_its_matcher_at_once(
    text_parts: TextParts, constraints: Constraints, light: bool
) -> None:
    constraint = await constraints.compile(ConstraintSpec("regex", "[ac][bd]", "p"))
    constraint.light = light
    engine = MaskEngine()
    masks = Masks(engine)  # type: ignore[arg-type]
    a, b = text_parts.tokenizer.encode_raw("a")[0], text_parts.tokenizer.encode_raw("b")[0]
    masks.add(ConstrainedSample(constraint.sample(thinking=False, may_think=False), 0), 7, 1)
    wait_until(lambda: engine.matchers)
    (*where, matcher) = engine.matchers[0]
    assert where == [7, 1, 0] and a in ids(matcher.mask() or b"")
    masks.take([event(1, 7, 1, a, 0), event(1, 7, 1, b, 1)])  # the engine's own affair
    masks.take([event(3, 7, 1, reason=1)])
    masks.close()
    assert len(engine.matchers) == 1 and not engine.masks and not engine.cancelled and not masks._samples


@pytest.mark.parametrize("path", ["thought", "thought and newline", "no thought"])
async def test_masks_lead_through_a_thought_to_the_matcher(
    text_parts: TextParts, constraints: Constraints, path: str
) -> None:
    tokenizer = text_parts.tokenizer
    opening, closing = tokenizer.think_open_id, tokenizer.think_close_id
    assert opening is not None and closing is not None
    yes, newline = tokenizer.encode_raw("yes"), tokenizer.encode_raw("\n")
    constraint = await constraints.compile(ConstraintSpec("choice", ["yes", "no"], "p"))
    thought = [opening, *tokenizer.encode_raw("hm"), closing] if "thought" in path[:7] else []
    said = [*thought, *(newline if "newline" in path else ()), *(() if "newline" in path else yes[:1])]
    engine = MaskEngine()
    masks = Masks(engine)  # type: ignore[arg-type]
    masks.add(ConstrainedSample(constraint.sample(thinking=False, may_think=True), 0), 3, 0)
    for i, token in enumerate(said):
        assert [mask[2] for mask in engine.masks] == list(range(i + 1)) and not engine.matchers
        assert token in ids(engine.masks[-1][3])
        masks.take([event(1, 3, 0, token, i), event(1, 4, 0, token, i)])
    wait_until(lambda: engine.matchers)
    (*where, matcher) = engine.matchers[0]
    assert where == [3, 0, len(said)]
    for token in yes if "newline" in path else yes[1:]:
        assert token in ids(matcher.mask() or b"") and matcher.consume(token)
    assert matcher.is_stopped() and matcher.is_accepting()
    masks.take([event(3, 3, 0, reason=1)])
    assert not masks._samples and not masks._led and not engine.cancelled
    masks.close()


@pytest.mark.parametrize(("eos_ends_from", "ended"), [(None, True), (5, True), (0, False)])
async def test_an_answer_that_must_be_empty_ends_at_once(
    constraints: Constraints, tokens: GrammarTokens, eos_ends_from: int | None, ended: bool
) -> None:
    constraint = await constraints.compile(ConstraintSpec("choice", [""], "p"))
    engine = MaskEngine()
    masks = Masks(engine)  # type: ignore[arg-type]
    sample = ConstrainedSample(constraint.sample(thinking=False, may_think=False), eos_ends_from)
    masks.add(sample, 1, 0)
    assert sample.ended is ended and sample.error is None
    assert engine.cancelled == ([(1, 0)] if ended else [])
    assert engine.masks == ([] if ended else [(1, 0, 0, tokens.end_mask)])
    masks.close()


async def test_a_sample_that_cannot_go_on_ends_with_an_error(constraints: Constraints) -> None:
    constraint = await constraints.compile(ConstraintSpec("regex", "ab", "p"))
    for wrong in ("matcher", "engine", "ours"):
        engine = MaskEngine()
        masks = Masks(engine)  # type: ignore[arg-type]
        sample = ConstrainedSample(constraint.sample(thinking=False, may_think=False), 0)
        if wrong == "engine":
            engine.error = EngineError(Status.INVALID_ARGUMENT, "no")
        elif wrong == "ours":
            engine.error = KeyError("/secret/place")
        masks.add(sample, 1, 0)
        if wrong != "matcher":
            wait_until(lambda engine=engine: engine.cancelled == [(1, 0)])
        masks.take([event(3, 1, 0, reason=5 if wrong == "matcher" else 3)])
        assert isinstance(sample.error, AppError) and not sample.ended
        says = {"matcher": "too complex", "engine": "no", "ours": "a fault of the server"}
        assert says[wrong] in str(sample.error) and "secret" not in str(sample.error)
        masks.close()
