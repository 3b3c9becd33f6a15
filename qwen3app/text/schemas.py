"""JSON schemas as llguidance reads them: where schemas lie inside a schema, and what must not reach it as it is.

Owns: the places of schemas, the numbers and references that are refused, and how patterns are spelled for llguidance.
Refuses to know: grammars, limits of size (text/grammars.py), how a schema is enforced.
The rules:
- llguidance reads numbers as floats. Bounds and constants that a float does not tell from their neighbours are refused:
  it would hold an answer to another number. (The constant -2^63 ends the process.)
- It follows references by calling itself, and where a thread's stack ends the process does. So no chain of references
  may be longer than MAX_REFERENCE_STEPS, whichever way it is followed. None leads into what is data (`default`).
- It makes a state for each remainder of a `multipleOf`, at once and without counting them as work: of one million they
  take seconds, of ten million all memory. Trailing zeros cost nothing, and several meet as their common multiple.
- It closes an open end that is a whole number where the other end lies before the next one (0 as `exclusiveMinimum`
  beside the maximum 0.5). Such an end is written a little farther in.
- It knows a count (`minLength`) only as a whole number without a point. 1.0 is the integer 1 to JSON Schema, so it is
  written as 1.
- A class of characters in a pattern that has all 32 control characters takes an escaped quote and backslash in
  llguidance 1.9, also where it leaves them out (`[^"]`). So every class is written without NUL, which no answer needs.
Threads: pure functions. Linear in the size of the schema.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from math import lcm
from typing import Any, TypeGuard
from urllib.parse import unquote

import msgspec

from qwen3app.text.errors import TextError

# Levels of JSON that references may lead through, one behind the other. Each takes up to 3.8 KB of stack (a chain of
# {"items": {"$ref": ...}} ends 8 MiB after 2,250), and compiler/ compiles with 16 MiB.
MAX_REFERENCE_STEPS = 1500
MAX_REMAINDERS = 1 << 16  # 0.2 s and 40 MB
_MAX_EXACT = 1 << 53  # of a number: whole numbers up to here are exact as floats
_INT64_MAX = (1 << 63) - 1  # exact as well, as a maximum: the float above it is cut to it

_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems", "items"})
_SINGLE = frozenset({"items", "additionalItems", "additionalProperties"})
_LITTLE = 1e-9
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_DATA = frozenset({"enum", "const", "default", "examples"})  # what stands there is no schema
_COUNTS = frozenset(f"{end}{what}" for end in ("min", "max") for what in ("Length", "Items", "Properties"))
_COUNT_WITH_POINT = re.compile(rf'"(?:{"|".join(sorted(_COUNTS))})":-?\d+[.e]')
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")

_PATTERN_PART = re.compile(r"\\[pP]\{[^}\\]*+\}|\\[pP]?.|\[\^?(?:-+|\])?|\]|[^\\\[\]]+", re.S)


def subschemas(schema: Any) -> Iterator[tuple[str, Any]]:
    """(place, schema) of the schemas directly inside one, in order; places begin with "." or "["."""
    if not isinstance(schema, Mapping):
        return
    for key, value in schema.items():
        if key in _MAPS and isinstance(value, Mapping):
            yield from ((f".{key}.{name}", each) for name, each in value.items())
        elif key in _LISTS and isinstance(value, list):
            yield from ((f".{key}[{i}]", each) for i, each in enumerate(value))
        elif key in _SINGLE:
            yield f".{key}", value


def definitions(schema: Any) -> dict[str, Any]:
    """What references of a schema's parts may point to."""
    return {key: schema[key] for key in ("$defs", "definitions") if isinstance(schema, Mapping) and key in schema}


def check_schema(schema: Any, param: str) -> None:
    """TextError with the place of what llguidance would hold wrongly, or fall over. The schema's size is checked."""
    _check_numbers(schema, param)
    _check_references(schema, param)


def schema_json(schema: Any) -> str:
    """The schema's text for llguidance. By msgspec, which keeps Python's lock for a tenth of the time that the json
    module takes in one go."""
    text = msgspec.json.encode(schema).decode()
    if '"pattern' in text or '"exclusiveM' in text or _COUNT_WITH_POINT.search(text):
        return msgspec.json.encode(_respelled(schema, names=False)).decode()
    return text


# ------------------------------------------------------------------------------------------------------------- numbers


def _check_numbers(schema: Any, param: str) -> None:
    for place, each in _objects(schema, param):
        for key in _BOUNDS:
            bound = each.get(key)
            if not isinstance(bound, int | float) or (key == "maximum" and bound == _INT64_MAX):
                continue
            if abs(bound) > _MAX_EXACT or (abs(bound) == _MAX_EXACT and key.startswith("exclusive")):
                raise TextError(
                    f"{place}.{key} is {bound}; a bound is held exactly only within {_MAX_EXACT - 1} (2^53 - 1) "
                    "of 0. Bring it there, or leave it out.",
                    f"{place}.{key}",
                )
        for key in ("const", "enum"):
            if key in each:
                _check_constants(each[key], f"{place}.{key}")


def check_multiples(schemas: Iterable[tuple[str, Any]]) -> None:
    """TextError where the `multipleOf` of these schemas, which make one grammar, take too many states."""
    n_remainders = 1
    for param, schema in schemas:
        for place, each in _objects(schema, param):
            value = each.get("multipleOf")
            if isinstance(value, int | float) and value:
                n_remainders = lcm(n_remainders, _without_zeros(value))
            if n_remainders > MAX_REMAINDERS:
                raise TextError(
                    f"{place}.multipleOf is {value}, which takes {n_remainders} remainders to follow, together with "
                    f"others of the request; the limit is {MAX_REMAINDERS}. Take a rounder number, or leave it out.",
                    f"{place}.multipleOf",
                )


def _without_zeros(value: float) -> int:
    """The digits of a number, without the decimal point and the zeros at both ends."""
    return int("".join(map(str, Decimal(repr(abs(value))).normalize().as_tuple().digits)))


def _objects(schema: Any, param: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(place, object) of all that may be read as a schema: references may point anywhere."""
    stack: list[tuple[str, Any, bool]] = [(param, schema, False)]
    while stack:
        place, item, names = stack.pop()
        if isinstance(item, list):
            stack += [(f"{place}[{i}]", each, False) for i, each in enumerate(item) if isinstance(each, list | Mapping)]
        elif isinstance(item, Mapping):
            if not names:
                yield place, item
            stack += [
                (f"{place}.{key}", each, not names and key in _MAPS)
                for key, each in item.items()
                if isinstance(each, list | Mapping) and (names or key not in _DATA)
            ]


def _check_constants(value: Any, place: str) -> None:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, Mapping):
            stack += item.values()
        elif isinstance(item, list):
            stack += item
        elif isinstance(item, int | float) and abs(item) > _MAX_EXACT:
            raise TextError(
                f"{place} has the number {item}; numbers are held exactly only within {_MAX_EXACT} (2^53) of 0. "
                "Make it a string.",
                place,
            )


# ---------------------------------------------------------------------------------------------------------- references


def _check_references(schema: Any, param: str) -> None:
    """Each reference is followed once, so no chain is longer than what all of them lead through together."""
    heights, references = _measured(schema)
    if not references:
        return
    for reference in sorted(references):
        if (key := _data_in(reference)) is not None:
            raise TextError(
                f"{param} has the reference {reference[:100]!r} into {key}, which holds values and no schemas; move "
                "what it is to find there to $defs.",
                param,
            )
    whole = heights[id(schema)]
    n_steps = whole
    for reference in references:
        target = _target(schema, reference)
        n_steps += whole if target is None else heights.get(id(target), 1)
    if n_steps > MAX_REFERENCE_STEPS:
        raise TextError(
            f"{param} has {len(references)} different references, which lead through up to {n_steps} levels; the limit "
            f"is {MAX_REFERENCE_STEPS}. Use fewer definitions, or flatter ones.",
            param,
        )


def _data_in(reference: str) -> str | None:
    """The keyword of _DATA that a JSON pointer leads into. There nothing is checked, nor spelled for llguidance."""
    names = False
    for step in unquote(reference.partition("#")[2]).split("/")[1:]:
        if step in _DATA and not names:
            return step
        names = not names and step in _MAPS
    return None


def _measured(schema: Any) -> tuple[dict[int, int], set[str]]:
    """(levels below each object and list, itself included, by id; all references)."""
    order: list[tuple[Any, int]] = [(schema, -1)]  # with the index of what it lies in
    references: set[str] = set()
    for index, (item, _) in enumerate(order):
        if isinstance(item, Mapping):
            references.update(each for each in map(item.get, _REFERENCES) if isinstance(each, str))
            order += [(each, index) for each in item.values() if isinstance(each, list | Mapping)]
        elif isinstance(item, list):
            order += [(each, index) for each in item if isinstance(each, list | Mapping)]
    levels = [1] * len(order)
    for index in range(len(order) - 1, 0, -1):
        parent = order[index][1]
        levels[parent] = max(levels[parent], levels[index] + 1)
    return {id(item): level for (item, _), level in zip(order, levels, strict=True)}, references


def _target(schema: Any, reference: str) -> Any:
    """What a JSON pointer shows, None where it is none or is spelled unusually."""
    if not reference.startswith("#/"):
        return None
    item = schema
    for step in reference[2:].split("/"):
        if isinstance(item, Mapping) and step in item:
            item = item[step]
        elif isinstance(item, list) and step.isdecimal() and int(step[:9]) < len(item):
            item = item[int(step[:9])]
        else:
            return None
    return item


# ------------------------------------------------------------------------------------------------------------ spelling


def _respelled(item: Any, *, names: bool) -> Any:
    """A copy with patterns, open ends and counts as llguidance needs them. names: the keys are no keywords."""
    if isinstance(item, list):
        return [_respelled(each, names=False) for each in item]
    if not isinstance(item, Mapping):
        return item
    result = {}
    for key, each in item.items():
        if names:
            result[key] = _respelled(each, names=False)
        elif key == "pattern" and isinstance(each, str):
            result[key] = pattern_without_nul(each)
        elif key == "patternProperties" and isinstance(each, Mapping):
            result[key] = {pattern_without_nul(name): _respelled(inner, names=False) for name, inner in each.items()}
        elif key in _COUNTS and isinstance(each, float) and each.is_integer() and abs(each) <= _MAX_EXACT:
            result[key] = int(each)
        else:
            result[key] = each if key in _DATA else _respelled(each, names=key in _MAPS)
    if not names:
        _move_open_ends(result)
    return result


def _move_open_ends(schema: dict[str, Any]) -> None:
    """See the head's rule on open ends."""
    for key, others, inwards in (
        ("exclusiveMinimum", ("maximum", "exclusiveMaximum"), 1),
        ("exclusiveMaximum", ("minimum", "exclusiveMinimum"), -1),
    ):
        end = schema.get(key)
        if not _is_number(end) or end != int(end) or end * inwards < 0:
            continue  # of the ends farther from 0 it knows
        ends = [other for other in map(schema.get, others) if _is_number(other)]
        if any(0 < (other - end) * inwards < 1 for other in ends):
            schema[key] = end + inwards * max(_LITTLE, abs(end) * 2**-50)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def pattern_without_nul(pattern: str) -> str:
    """The regular expression with every class of characters without NUL, unchanged otherwise."""
    if "[" not in pattern and "\\p" not in pattern and "\\P" not in pattern:
        return pattern
    parts, depth = [], 0
    for match in _PATTERN_PART.finditer(pattern):
        part = match[0]
        if part[0] == "[":
            parts.append("[" + part if depth == 0 else part)
            depth += 1
        elif part == "]" and depth:
            depth -= 1
            parts.append("]&&[^\\x00]]" if depth == 0 else part)
        elif part[:2] in ("\\p", "\\P") and not depth:
            parts.append(f"[{part}&&[^\\x00]]")
        else:
            parts.append(part)
    return pattern if depth else "".join(parts)
