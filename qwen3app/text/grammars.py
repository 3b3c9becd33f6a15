"""What a request may hold an answer to, written as a grammar of llguidance.

Owns: the kinds of constraint, their limits of size, their spelling as a grammar, and where in a schema a fault lies.
Refuses to know: tokens, engines, HTTP; runtime/constraints.py compiles and enforces.
The rules:
- Nothing that a constraint says is dropped: what llguidance does not know is an error, also where a schema itself asks
  for leniency (its "x-guidance" is replaced).
- JSON may have white space between its parts, up to 40 characters in a row: without that limit a small model fills its
  whole answer with newlines.
- Every text is measured before anything is built from it, so a request of 16 MB costs no more than one of 256 KB.
Threads: pure functions, called from the threads that compile. Linear in the size of the constraint.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from qwen3app.text.errors import TextError, check_unicode
from qwen3app.text.messages import texts_in
from qwen3app.text.schemas import check_multiples, check_schema, schema_json

MAX_CHARACTERS = 1 << 18  # of one constraint, keys and strings together
MAX_DEPTH = 100  # of a schema; llguidance reads JSON 128 levels deep
MAX_CHOICES = 10_000
_SCHEMA_BEGINS = re.compile(r"%json[ \t\r\n]*(?=\{)")
# Of a Lark grammar: strings, expressions, comments, or what makes two terminals one: A & B, ~A (but A~3 repeats). What
# is not closed goes to the end, so that no text is read twice.
_LARK_PART = re.compile(r'"(?:[^"\\]|\\.)*+"?|//[^\n]*|/(?:[^/\\]|\\.)++/?|(?P<operator>&|~(?![ \t]*+\d))', re.S)
_WHITE_SPACE = r"[ \n\r\t]{1,40}"

Kind = Literal["json", "regex", "choice", "grammar", "tools"]


@dataclass(frozen=True, slots=True)
class ConstraintSpec:
    """A constraint as a request states it, not checked yet.

    value, by kind: json: a schema (a mapping, a boolean, or its JSON text); regex: the expression; choice: a list of
    strings; grammar: Lark's or GBNF's text; tools: a list of ToolSchema. param: the field that errors name.
    """

    kind: Kind
    value: Any
    param: str
    white_space: bool = True  # json: False allows none between the parts
    white_space_pattern: str | None = None  # json: instead of the limit above
    parallel: bool = True  # tools: several calls may follow each other
    free_text: bool = False  # tools: text may stand before, between and behind calls, and no call is fine
    instead: ConstraintSpec | None = None  # tools: what an answer without calls is held to; json or choice


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """One function that may be called. parameters: a JSON schema, or None for any object."""

    name: str
    parameters: Any
    param: str  # where the schema stands in the request


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar's text, and the schemas in it with their places."""

    text: str
    param: str
    schemas: tuple[tuple[str, Any], ...] = ()


def tool_call_spec(
    tools: Sequence[tuple[str, Any]],
    *,
    parallel: bool,
    free_text: bool,
    instead: ConstraintSpec | None = None,
    params: Sequence[str] | None = None,
) -> ConstraintSpec:
    """Calls of these functions (name, JSON schema of the parameters) as the Hermes template writes them.

    params: where each schema stands in the request. Without free_text the answer is calls and nothing else, or what
    `instead` says and no call.
    """
    if instead is not None and instead.kind not in ("json", "choice"):
        raise TextError(
            f"{instead.param} is a {instead.kind}, which cannot be combined with tools; "
            "send a JSON schema, or tool_choice 'none' or 'required'.",
            instead.param,
        )
    places = params or [f"tools[{i}].function.parameters" for i in range(len(tools))]
    schemas = [ToolSchema(name, schema, place) for (name, schema), place in zip(tools, places, strict=True)]
    return ConstraintSpec("tools", schemas, "tools", parallel=parallel, free_text=free_text, instead=instead)


def build_grammar(spec: ConstraintSpec, control_tokens: Mapping[str, int]) -> Grammar:
    """The grammar of a constraint. Raises TextError with the place of a fault."""
    grammar = _BUILDERS[spec.kind](spec, control_tokens)
    check_multiples(grammar.schemas)
    return grammar


def _json(spec: ConstraintSpec, _: Mapping[str, int]) -> Grammar:
    schema = spec.value
    if isinstance(schema, str):
        schema = _parsed(schema, spec.param)
    text = _schema_text(schema, spec.param, _white_space(spec))
    return Grammar(f"start: %json {text}\n", spec.param, ((spec.param, schema),))


def _regex(spec: ConstraintSpec, _: Mapping[str, int]) -> Grammar:
    import llguidance

    _check_text(spec.value, spec.param, "a regular expression")
    return Grammar(llguidance.LLMatcher.grammar_from_regex(spec.value), spec.param)


def _choice(spec: ConstraintSpec, _: Mapping[str, int]) -> Grammar:
    choices = spec.value
    if not isinstance(choices, list | tuple) or not choices:
        raise TextError(f"{spec.param} must be a list of at least one string.", spec.param)
    if len(choices) > MAX_CHOICES:
        raise TextError(f"{spec.param} has {len(choices)} choices; at most {MAX_CHOICES} are taken.", spec.param)
    for i, choice in enumerate(choices):
        if not isinstance(choice, str):
            raise TextError(f"{spec.param}[{i}] must be a string.", f"{spec.param}[{i}]")
        check_unicode(choice, f"{spec.param}[{i}]")
    _check_size(list(choices), spec.param)
    return Grammar("start: " + " | ".join(map(_quoted, dict.fromkeys(choices))) + "\n", spec.param)


def _lark(spec: ConstraintSpec, _: Mapping[str, int]) -> Grammar:
    from llguidance.gbnf_to_lark import any_to_lark

    _check_text(spec.value, spec.param, "a grammar")
    try:
        text = any_to_lark(spec.value)
    except Exception as error:  # the converter raises bare Exceptions
        reason = " ".join(str(error).split())[:300]
        raise TextError(f"{spec.param} is no grammar in Lark's or GBNF's form: {reason}.", spec.param) from None
    if any(match["operator"] for match in _LARK_PART.finditer(text)):
        # llguidance looks through all states of both together, and does not count it as work
        raise TextError(
            f"{spec.param} has & or ~ between terminals, whose work has no limit; write what is allowed without them.",
            spec.param,
        )
    return _with_checked_schemas(text, spec.param)


def _with_checked_schemas(text: str, param: str) -> Grammar:
    """A Lark grammar whose schemas (`%json {...}`) are checked, and spelled for llguidance."""
    parts, copied, schemas = [], 0, []
    decoder = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)
    for match in _SCHEMA_BEGINS.finditer(text):
        begin = match.end()
        if begin < copied:
            continue
        try:
            schema, end = decoder.raw_decode(text, begin)
        except (ValueError, RecursionError):
            continue  # no JSON to llguidance either
        place = f"{param}.%json"
        _check_size(schema, place)
        for where, each in texts_in(schema, place):
            check_unicode(each, where)
        check_schema(schema, place)
        parts += [text[copied:begin], schema_json(schema)]
        schemas.append((place, schema))
        copied = end
    return Grammar("".join([*parts, text[copied:]]), param, tuple(schemas))


def _finite(number: str) -> float:
    """Python reads NaN, Infinity and 1e999, too, which are no JSON: ValueError."""
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number} is no number of JSON")
    return value


def _tools(spec: ConstraintSpec, control_tokens: Mapping[str, int]) -> Grammar:
    """Hermes' form: <tool_call>, a line of {"name": ..., "arguments": ...}, </tool_call>; the tags are control tokens
    where the tokenizer has them."""
    tools: Sequence[ToolSchema] = spec.value
    opening, closing = (tag if tag in control_tokens else _quoted(tag) for tag in ("<tool_call>", "</tool_call>"))
    rules = []
    for i, tool in enumerate(tools):
        check_unicode(tool.name, tool.param)
        head = json.dumps(tool.name, ensure_ascii=False) + ', "arguments": '
        schema = _arguments(tool)
        rules.append(f"call_{i}: {_quoted(head)} arguments_{i}")
        rules.append(f"arguments_{i}: %json {_schema_text(schema, tool.param, _white_space(spec))}")
    call = f'{opening} {_quoted(chr(10) + chr(123) + chr(34) + "name" + chr(34) + ": ")} function "}}\\n" {closing}'
    if spec.free_text:
        start = "TEXT (call TEXT)*" if spec.parallel else "TEXT (call)?"
    else:
        start = r'call ("\n" call)*' if spec.parallel else "call"
    schemas = [(tool.param, tool.parameters) for tool in tools if tool.parameters is not None]
    if spec.instead is not None:
        form = build_grammar(spec.instead, control_tokens)
        start += " | instead"
        rules.append("instead" + form.text.removeprefix("start"))
        schemas += form.schemas
    any_function = " | ".join(f"call_{i}" for i in range(len(tools)))
    lines = [f"start: {start}", f"call: {call}", f"function: {any_function}", *rules]
    if spec.free_text:
        # An opening tag that is spelled with ordinary tokens would begin a call that nothing holds to its schema.
        lines.append(r"TEXT: /(.|\n)*/ & ~/(.|\n)*<tool_call>(.|\n)*/")
    return Grammar("\n".join(lines) + "\n", spec.param, tuple(schemas))


def _arguments(tool: ToolSchema) -> Any:
    """A schema of arguments, which are an object also where it does not say so."""
    schema = {} if tool.parameters in (None, True) else tool.parameters
    if not isinstance(schema, Mapping):
        return schema  # an error, told by what comes next
    kind = schema.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        place = f"{tool.param}.type"
        raise TextError(f'{place} must be "object", since the arguments of a call are a JSON object.', place)
    return {**schema, "type": "object"}


_BUILDERS: Mapping[Kind, Callable[[ConstraintSpec, Mapping[str, int]], Grammar]] = {
    "json": _json,
    "regex": _regex,
    "choice": _choice,
    "grammar": _lark,
    "tools": _tools,
}


# ------------------------------------------------------------------------------------------------------------- schemas


def schema_grammar(schema: Any) -> str:
    """A schema alone, to find out whether it is at fault."""
    return f"start: %json {schema_json(schema)}\n"


def _schema_text(schema: Any, param: str, white_space: Mapping[str, Any]) -> str:
    if not isinstance(schema, Mapping | bool):
        raise TextError(f"{param} must be a JSON schema: an object or a boolean.", param)
    _check_size(schema, param)
    check_schema(schema, param)
    if isinstance(schema, bool):
        if not schema:
            raise TextError(f"{param} is the schema false, which no value meets.", param)
        schema = {}
    return schema_json({**schema, "x-guidance": {**white_space, "lenient": False}})


def _white_space(spec: ConstraintSpec) -> dict[str, Any]:
    if not spec.white_space:
        return {"whitespace_flexible": False}
    return {"whitespace_pattern": spec.white_space_pattern or _WHITE_SPACE}


def _parsed(text: str, param: str) -> Any:
    if len(text) > MAX_CHARACTERS:
        _too_large(param)
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        raise TextError(f"{param} is a string that is not valid JSON; send the schema as an object.", param) from None


def _check_text(value: Any, param: str, what: str) -> None:
    if not isinstance(value, str):
        raise TextError(f"{param} must be {what}, a string.", param)
    if len(value) > MAX_CHARACTERS:
        _too_large(param)
    check_unicode(value, param)


def _check_size(value: Any, param: str) -> None:
    """Measures JSON, and stops at the first limit that it passes. Each value counts, so that empty ones do too. Makes
    no object for a text or a number: of many, the collector of cycles would look through them all."""
    left = MAX_CHARACTERS
    stack: list[tuple[Any, int]] = [([value], 0)]  # lists and mappings, and how deep they lie
    while stack:
        item, depth = stack.pop()
        if depth == MAX_DEPTH and item:
            raise TextError(f"{param} is nested more than {MAX_DEPTH} levels deep.", param)
        if isinstance(item, Mapping):
            left -= sum(map(len, item))
            item = item.values()
        if len(item) > left:
            _too_large(param)
        for each in item:
            if isinstance(each, str):
                left -= len(each) + 1
            else:
                left -= 1
                if isinstance(each, list | Mapping):
                    stack.append((each, depth + 1))
            if left < 0:
                _too_large(param)


def _too_large(param: str) -> None:
    raise TextError(f"{param} is larger than {MAX_CHARACTERS} characters, the most that one constraint may be.", param)


def _quoted(text: str) -> str:
    """A literal string of a Lark grammar."""
    return json.dumps(text, ensure_ascii=False)
