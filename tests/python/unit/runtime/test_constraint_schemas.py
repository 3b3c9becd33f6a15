"""What of a schema must not reach llguidance as it is: numbers, chains of references, classes in patterns."""

from __future__ import annotations

import contextlib
import json
import re
import time
from typing import Any

import jsonschema
import pytest
from serving import TextParts

from qwen3app.errors import RequestError
from qwen3app.runtime.constraints import Constraints, GrammarTokens
from qwen3app.text.errors import TextError
from qwen3app.text.grammars import MAX_CHARACTERS, ConstraintSpec, build_grammar, tool_call_spec
from qwen3app.text.schemas import MAX_REFERENCE_STEPS, check_schema, pattern_without_nul


class Judge:
    """Says whether a constraint takes a text."""

    def __init__(self, parts: TextParts, tokens: GrammarTokens, spec: ConstraintSpec) -> None:
        self._tokenizer = parts.tokenizer
        self._matcher = tokens.matcher(build_grammar(spec, tokens.control_tokens).text)
        assert self._matcher.error() is None

    def takes(self, text: str) -> bool:
        matcher = self._matcher.clone()
        for token in [*self._tokenizer.encode_plain(text), self._tokenizer.eos_ids[0]]:
            mask = matcher.mask()
            if mask is None or not mask[token >> 3] >> (token & 7) & 1:
                return False
            if token not in self._tokenizer.eos_ids:
                matcher.consume(token)
        return True


# -------------------------------------------------------------------------------------------------------------- counts

COUNTS = [f"{end}{what}" for end in ("min", "max") for what in ("Length", "Items", "Properties")]


def text_of(kind: Any, value: Any) -> str:
    return build_grammar(ConstraintSpec(kind, value, "p"), {}).text


@pytest.mark.parametrize("key", COUNTS)
def test_a_count_may_be_an_integer_with_a_point(key: str) -> None:
    """1.0 is the integer 1 to JSON Schema, wherever a schema may stand."""

    def everywhere(count: float) -> list[str]:
        schema = {"properties": {key: {"items": {key: count}}}, "$defs": {key: {key: count}}, "const": {key: 2.0}}
        tools = tool_call_spec([("f", schema)], parallel=True, free_text=True)
        return [
            *(text_of("json", each) for each in (schema, json.dumps(schema))),
            text_of("grammar", f"start: %json {json.dumps(schema)}"),
            build_grammar(tools, {}).text,
        ]

    assert everywhere(2.0) == everywhere(2) and everywhere(-0.0) == everywhere(0) and everywhere(2e2) == everywhere(200)
    for text in everywhere(2):
        assert f'"{key}":2.0' in text, "a constant is kept as it is"


@pytest.mark.parametrize(
    ("schema", "allowed", "forbidden"),
    [
        ({"type": "string", "minLength": 1.0, "maxLength": 2.0}, '"ab"', ['""', '"abc"']),
        ({"items": {"const": 1}, "type": "array", "minItems": 1.0, "maxItems": 2.0}, "[1,1]", ["[]", "[1,1,1]"]),
        (
            {"additionalProperties": {"const": 1}, "type": "object", "minProperties": 1.0, "maxProperties": 1.0},
            '{"a":1}',
            ["{}", '{"a":1,"b":1}'],
        ),
        ({"type": "integer", "multipleOf": 2.0}, "4", ["3"]),
    ],
)
def test_counts_with_a_point_are_held(
    text_parts: TextParts, tokens: GrammarTokens, schema: Any, allowed: str, forbidden: list[str]
) -> None:
    judge = Judge(text_parts, tokens, ConstraintSpec("json", schema, "p"))
    assert judge.takes(allowed) and not any(map(judge.takes, forbidden))


@pytest.mark.parametrize("count", [1.5, -1.0, 1e300, "1", True])
async def test_other_counts_stay_refused(constraints: Constraints, count: Any) -> None:
    with pytest.raises(RequestError, match="positive integer for 'minLength'") as caught:
        await constraints.compile(ConstraintSpec("json", {"items": {"type": "string", "minLength": count}}, "p"))
    assert caught.value.param == "p.items"


@pytest.mark.parametrize("kind", ["json", "regex"])
async def test_a_count_that_is_too_large_is_named(constraints: Constraints, kind: Any) -> None:
    schema = {"items": {"type": "string", "maxLength": 2.0**32}}
    value, place = (schema, "p.items") if kind == "json" else ("a{4294967296}", "p")
    with pytest.raises(RequestError, match=f"^{place} cannot be used .* is larger than 4294967295;") as caught:
        await constraints.compile(ConstraintSpec(kind, value, "p"))
    assert caught.value.param == place
    schema["items"]["maxLength"] = 2.0**32 - 1
    await constraints.compile(ConstraintSpec("json", schema, "p"))


# ------------------------------------------------------------------------------------------- schemas inside a grammar


@pytest.mark.parametrize("key", ["minimum", "exclusiveMinimum", "multipleOf", "minLength", "const", "default", "x"])
@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
async def test_what_python_alone_takes_for_json_is_refused(constraints: Constraints, key: str, number: str) -> None:
    grammar = f'start: %json {{"{key}": {number}}}'
    with pytest.raises(RequestError, match='failed to parse "%json"') as caught:
        await constraints.compile(ConstraintSpec("grammar", grammar, "p"))
    assert caught.value.param == "p"


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (r'{"minLength": 1, "default": "\ud800"}', "p.%json.default"),
        (r'{"pattern": "[a\ud800]"}', "p.%json.pattern"),
        (r'{"properties": {"\ud800": {"minimum": 1e300}}}', "p.%json.properties"),
        (r'{"enum": ["a", "\udc00"]}', "p.%json.enum[1]"),
    ],
)
async def test_half_a_character_is_named(constraints: Constraints, schema: str, place: str) -> None:
    with pytest.raises(RequestError, match="holds half of a surrogate pair") as caught:
        await constraints.compile(ConstraintSpec("grammar", f"start: %json {schema}", "p"))
    assert caught.value.param == place and str(caught.value).startswith(f"{place} holds")


# ------------------------------------------------------------------------------------------------------------ patterns

CHARACTERS = ['"', "\\", "a", "b", "]", "^", "-", "/", ".", " ", "\n", "\t", "\x01", "é", "日", "😀", "2"]
PATTERNS = [
    *('[^"]', r"[^\\]", r'[^"\\]', "[^a]", "[^]]", "[^-a]", "[^a-c/]", r'[^"\n]', r"[^\s]", r"[^\w]", "[ab]", "[]a]"),
    *(r"[\x00-!#-~]", r"[\x01-\x1f]", r"[^\x01-\x1f]", '[[^"]&&[^a]]', '[^"[a-c]]', r'[\W--"]', "[-a]"),
    *("[[:cntrl:]]", "[^[:alpha:]]", r"\P{P}", r"\p{Cc}", r"\pL", r"[\p{L}2]", r"[^\p{L}]", r"\W", r"\S", "."),
    *(r"\[\^a\]", r"a|[^\]\[]", '(?i)[^"A]'),
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_class_takes_what_it_says_also_in_json(text_parts: TextParts, tokens: GrammarTokens, pattern: str) -> None:
    """As the same expression takes them alone, where nothing is escaped."""
    quoted = Judge(text_parts, tokens, ConstraintSpec("json", {"type": "string", "pattern": f"^(?:{pattern})$"}, "p"))
    alone = Judge(text_parts, tokens, ConstraintSpec("regex", pattern, "p"))
    # in a schema \w is ASCII's, as ECMAScript has it
    characters = [each for each in CHARACTERS if each.isascii() or not re.search(r"\\[wW]", pattern)]
    said = {each: quoted.takes(json.dumps(each, ensure_ascii=False)) for each in characters}
    assert said == {each: alone.takes(each) for each in characters}


def test_names_of_properties_follow_their_patterns(text_parts: TextParts, tokens: GrammarTokens) -> None:
    schema = {"type": "object", "patternProperties": {r'^[^"]+$': {"const": 1}}, "additionalProperties": False}
    for spec in (
        ConstraintSpec("json", schema, "p"),
        ConstraintSpec("grammar", f"start: %json {json.dumps(schema)}", "p"),
    ):
        judge = Judge(text_parts, tokens, spec)
        assert judge.takes('{"a b":1}')
        assert not judge.takes(r'{"a\"b":1}')


def test_only_classes_are_respelled() -> None:
    for pattern in ("", "a+(b|c)?$", r"\[\^a\]", r"a\]b", r"\d\W\S.", "]", "[a", r"[\]", "(?<x>a)"):
        assert pattern_without_nul(pattern) == pattern
    assert pattern_without_nul(r"^[^a]+\p{L}[\[\]b]$") == r"^[[^a]&&[^\x00]]+[\p{L}&&[^\x00]][[\[\]b]&&[^\x00]]$"


def test_data_is_left_alone(text_parts: TextParts, tokens: GrammarTokens) -> None:
    """`pattern` is a keyword only where a schema stands."""
    constant = {"pattern": "[^a]", "patternProperties": {"[^a]": 1}}
    schema = {
        "type": "object",
        "properties": {"pattern": {"const": constant}, "enum": {"type": "string", "pattern": '^[^"]$'}},
        "required": ["pattern", "enum"],
    }
    judge = Judge(text_parts, tokens, ConstraintSpec("json", schema, "p"))
    assert judge.takes(json.dumps({"pattern": constant, "enum": "a"}))
    assert not judge.takes(json.dumps({"pattern": constant, "enum": '"'}))


# ------------------------------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize("number", [2**53 + 1, 10**18, -(2**63), -(2**63) + 1, 2**64, -9.3e18, 1e300])
def test_constants_that_a_float_does_not_tell_apart(number: float) -> None:
    """-2^63 would end the process."""
    for schema, place in (
        ({"const": number}, "p.const"),
        ({"items": {"enum": ["a", {"b": [number]}]}}, "p.items.enum"),
        ({"$ref": "#/x/y", "x": {"y": {"const": number}}}, "p.x.y.const"),
        ({"prefixItems": [{"anyOf": [{"enum": [number]}]}]}, "p.prefixItems[0].anyOf[0].enum"),
    ):
        with pytest.raises(TextError, match=re.escape("2^53")) as caught:
            build_grammar(ConstraintSpec("json", schema, "p"), {})
        assert caught.value.param == place
        with pytest.raises(TextError, match=re.escape("2^53")) as caught:
            build_grammar(ConstraintSpec("grammar", f"start: x\nx: %json\n {json.dumps(schema)}", "g"), {})
        assert caught.value.param == place.replace("p.", "g.%json.", 1)


@pytest.mark.parametrize("number", [0, -1, 0.1, 1.5, 2**31, 2**53, -(2**53), 2**53 - 1])
def test_constants_are_themselves(text_parts: TextParts, tokens: GrammarTokens, number: float) -> None:
    judge = Judge(text_parts, tokens, ConstraintSpec("json", {"enum": [number]}, "p"))
    assert judge.takes(json.dumps(number))
    assert not judge.takes(json.dumps(number + 1)) and not judge.takes(json.dumps(number - 1))


@pytest.mark.parametrize("low", [-2, -1, 0, 1, 10, 12345678])
@pytest.mark.parametrize("width", [0.05, 0.5, 0.75, 1, 1.5])
def test_open_ends_are_open(text_parts: TextParts, tokens: GrammarTokens, low: int, width: float) -> None:
    """Also where no whole number lies between."""
    high = low + width
    for ends in (
        {"exclusiveMinimum": low, "maximum": high},
        {"exclusiveMinimum": low, "exclusiveMaximum": high},
        {"minimum": -high, "exclusiveMaximum": -low},
        {"exclusiveMinimum": -high, "exclusiveMaximum": -low},
    ):
        judge = Judge(text_parts, tokens, ConstraintSpec("json", {"type": "number", **ends}, "p"))
        validator = jsonschema.Draft202012Validator(ends)
        for value in (low, high, low + 0.01, high - 0.01, high + 0.01, low - 0.01, low + 1, high - 1):
            for each in (round(value, 2), -round(value, 2)):
                number = int(each) if each == int(each) else each
                assert judge.takes(json.dumps(number)) == validator.is_valid(number), (ends, number)


def test_numbers_that_are_no_constants_are_not_looked_at() -> None:
    check_schema(
        {"default": 2**60, "examples": [2**60], "properties": {"const": {"description": "a"}}, "title": "x"}, "p"
    )
    check_schema({"properties": {"const": {"type": "integer"}, "enum": {"const": "a"}}}, "p")


def multiple(of: float) -> dict[str, Any]:
    return {"type": "number", "multipleOf": of}


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (multiple(2**31), "p"),  # would take all memory, and a thread for ever
        (multiple(-(2**31)), "p"),
        (multiple(1000003.0), "p"),
        (multiple(3.14159), "p"),
        ({"allOf": [multiple(997), multiple(991)]}, "p.allOf[0]"),
        ({"$ref": "#/x", "multipleOf": 997, "x": multiple(991)}, "p.x"),
        ({"properties": {str(i): multiple(101 + i) for i in range(20)}}, "p.properties"),
    ],
)
def test_multiples_have_a_limit(schema: Any, place: str) -> None:
    for spec in (
        ConstraintSpec("json", schema, "p"),
        ConstraintSpec("grammar", f"start: %json {json.dumps(schema)}", "p"),
    ):
        with pytest.raises(TextError, match="remainders") as caught:
            build_grammar(spec, {})
        assert caught.value.param is not None
        assert caught.value.param.replace(".%json", "").startswith(place)
        assert caught.value.param.endswith(".multipleOf")


def test_multiples_of_several_tools_meet() -> None:
    calls = [("f", multiple(997)), ("g", {"properties": {"a": multiple(991)}})]
    tools = [(name, {"type": "object", "properties": {"x": schema}}) for name, schema in calls]
    with pytest.raises(TextError, match="remainders"):
        build_grammar(tool_call_spec(tools, parallel=True, free_text=False), {})


@pytest.mark.parametrize(
    ("of", "yes", "no"), [(60, 180, 90), (0.01, 12.34, 0.005), (1000000, 3000000, 1500000), (86400, 86400, 3600)]
)
def test_usual_multiples(text_parts: TextParts, tokens: GrammarTokens, of: float, yes: float, no: float) -> None:
    judge = Judge(text_parts, tokens, ConstraintSpec("json", {"anyOf": [multiple(of), {"type": "null"}]}, "p"))
    assert judge.takes(json.dumps(yes)) and not judge.takes(json.dumps(no))


# ---------------------------------------------------------------------------------------------------------- references


def chain(n: int, link: Any) -> dict[str, Any]:
    definitions = {f"a{i}": link({"$ref": f"#/$defs/a{i + 1}"}) for i in range(n)}
    return {"$defs": {**definitions, f"a{n}": {"type": "null"}}, "$ref": "#/$defs/a0"}


LINKS: dict[str, tuple[Any, int]] = {  # and the levels of one link
    "alone": (lambda reference: reference, 1),
    "items": (lambda reference: {"items": reference}, 2),
    "properties": (lambda reference: {"properties": {"x": reference}, "required": ["x"]}, 3),
    "anyOf": (lambda reference: {"anyOf": [reference, {"type": "null"}]}, 3),
    "allOf": (lambda reference: {"allOf": [reference], "title": "x"}, 3),
}


@pytest.mark.parametrize("link", LINKS)
async def test_a_chain_of_references_has_a_limit(constraints: Constraints, link: str) -> None:
    """Without it a schema of 100 KB is the end of the thread's stack, and of the process."""
    make, levels = LINKS[link]
    n = (MAX_REFERENCE_STEPS - 10) // levels
    assert (await constraints.compile(ConstraintSpec("json", chain(n, make), "p"))).param == "p"
    for spec in (
        ConstraintSpec("json", chain(n + 10, make), "p"),
        ConstraintSpec("grammar", f"start: %json {json.dumps(chain(n + 10, make))}", "p"),
    ):
        with pytest.raises(RequestError, match="different references") as caught:
            await constraints.compile(spec)
        assert caught.value.code == "invalid_constraint" and len(str(caught.value)) < 300


def test_references_count_once_however_they_are_spelled() -> None:
    node = {"anyOf": [{"$ref": "#/$defs/node"}, {"$ref": "#"}, {"type": "null"}]}
    check_schema({"$defs": {"node": node}, "properties": {str(i): {"$ref": "#/$defs/node"} for i in range(2000)}}, "p")
    # unusual spellings are taken for references to the tallest thing there is
    n = MAX_REFERENCE_STEPS // 4
    for references in ([f"#anchor{i}" for i in range(n)], [f"#/%24defs/a{i}" for i in range(n)]):
        with pytest.raises(TextError, match="different references"):
            check_schema(
                {"anyOf": [{"$ref": reference} for reference in references], "$defs": {"a": {"items": {}}}}, "p"
            )


@pytest.mark.parametrize(
    ("reference", "key"),
    [
        ("#/default", "default"),
        ("#/%64efault", "default"),
        ("#/$defs/a/enum/1", "enum"),
        ("#/$defs/properties/const", "const"),
        ("http://a/#/properties/default/examples/0", "examples"),
        ("#/$defs/default", None),
        ("#/properties/enum/items/properties/const", None),
        ("#default", None),
        ("default", None),
    ],
)
def test_no_reference_leads_into_data(reference: str, key: str | None) -> None:
    """It would be a schema that nothing has checked: of one with 2^53 + 1 llguidance makes another number."""
    for word in ("$ref", "$dynamicRef"):
        schema = {"items": {word: reference}}
        if key is None:
            check_schema(schema, "p")
            continue
        with pytest.raises(TextError, match=f" into {key}, which holds values and no schemas") as caught:
            check_schema(schema, "p")
        assert caught.value.param == "p" and repr(reference) in str(caught.value)


def test_a_large_schema_of_real_life_passes() -> None:
    """200 models that refer to each other, as pydantic writes them."""
    models = {
        f"Model{i}": {
            "type": "object",
            "properties": {"next": {"anyOf": [{"$ref": f"#/$defs/Model{(i * 7 + 1) % 200}"}, {"type": "null"}]}},
        }
        for i in range(200)
    }
    check_schema({"$defs": models, "$ref": "#/$defs/Model0"}, "p")


# ------------------------------------------------------------------------------------------------------------ grammars


def test_terminals_are_not_combined() -> None:
    """/(a{97})*/ & /(a{89})*/ & ... would keep a thread that compiles for hours."""
    for grammar in (
        "start: X\nX: /(a{97})*/ & /(a{89})*/",
        "start: X\nX: ~/(a{97})*/",
        'start: X\nX: "b" | ~(/a/ | /b/)  // c',
        'start: "\\"" X\nX: /\\// & /b/',
    ):
        with pytest.raises(TextError, match="has & or ~") as caught:
            build_grammar(ConstraintSpec("grammar", grammar, "g"), {})
        assert caught.value.param == "g"


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        ('start: "a" ~ 2..3', "aaa"),
        ('start: "a"~2', "aa"),
        ('start: "a & ~b" // & ~', "a & ~b"),
        (r"start: /[&~]\/&/", "&/&"),
        ('start: %json {"const": "&~"}', '"&~"'),
        ('root ::= "&" | "~"', "~"),
    ],
)
def test_the_characters_are_free_elsewhere(
    text_parts: TextParts, tokens: GrammarTokens, grammar: str, text: str
) -> None:
    assert Judge(text_parts, tokens, ConstraintSpec("grammar", grammar, "g")).takes(text)


@pytest.mark.parametrize(
    "unit", ['"\\"', "\\/", '\\"', "~ ", "%json ", "%json {", '%json {"a":"', "[^", "\\p{", "\\p", "[]", "//", "/\\"]
)
def test_reading_is_linear(unit: str) -> None:
    """Ten times the text takes less than fifty times as long; read anew from each place it would take a hundred."""

    def seconds(n: int) -> float:
        text = '"' + unit * (n // len(unit))
        begin = time.thread_time()
        for spec in (ConstraintSpec("grammar", text, "g"), ConstraintSpec("json", {"pattern": text[1:]}, "p")):
            with contextlib.suppress(TextError):
                build_grammar(spec, {})
        return time.thread_time() - begin

    assert min(seconds(MAX_CHARACTERS - 20) for _ in range(3)) < 0.05 + 50 * min(
        seconds(MAX_CHARACTERS // 10) for _ in range(3)
    )


# ----------------------------------------------------------------------------------------------------------- sentences

CLOSED = {"type": "object", "additionalProperties": False}
TOO_MUCH_WORK = "take too much work to follow; make them simpler, or fewer"
PRIMES = (2, 3, 5, 7, 11, 13, 17, 19)
SENTENCES: list[tuple[Any, str, str]] = [
    # the schema false is no fault by itself
    (
        {**CLOSED, "properties": {"a": {**CLOSED, "required": ["b"]}}, "required": ["a"]},
        "p.properties.a",
        "property 'b' is unsat",
    ),
    (
        {"properties": {"a": False, "b": {"uniqueItems": True}}},
        "p.properties.b",
        '"uniqueItems" says cannot be enforced',
    ),
    ({**CLOSED, "dependentRequired": {}}, "p", '"dependentRequired" says cannot be enforced'),
    ({"items": {"type": "string", "format": "path"}}, "p.items", 'format "path" is not known'),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "p", "use anyOf"),
    # limits of work
    ({"properties": {f"p{i}": {"format": "uri"} for i in range(3000)}}, "p", TOO_MUCH_WORK),
    ({"type": "string", "allOf": [{"pattern": f"^([a-z]{{{n}}})*$"} for n in PRIMES]}, "p", TOO_MUCH_WORK),
    ({"properties": {f"p{i}": {"enum": [[0], [1]]} for i in range(5000)}}, "p", "has more than 50000 symbols"),
    ({"items": {"type": "string", "allOf": [{"pattern": f"a.{{{n}}}b"} for n in PRIMES]}}, "p.items", "any text meets"),
]


@pytest.mark.parametrize(("schema", "place", "reason"), SENTENCES)
async def test_refusals_say_where_and_what_to_do(
    constraints: Constraints, schema: Any, place: str, reason: str
) -> None:
    with pytest.raises(RequestError, match=re.escape(reason)) as caught:
        await constraints.compile(ConstraintSpec("json", schema, "p"))
    assert caught.value.param == place
