"""What a request says about the form of its answer: response_format, structured_outputs, guided_*.

Owns: the fields that clients use for it, and that only one of them may speak. Refuses to know: what the constraint
means (text/grammars.py) and how it is enforced.
The rules:
- response_format: OpenAI's {"type": "text" | "json_object" | "json_schema"}. A schema is enforced, strict or not.
  `structured_outputs`: vLLM's object. guided_json, guided_regex, guided_choice, guided_grammar: its older form.
- Two constraints in one request are refused, and so is every field that would constrain the answer in another server
  and means nothing here: silence would give an answer that is not constrained.
- JSON mode leaves thinking as it is: the constraint begins behind the thought.
Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from qwen3app.errors import RequestError
from qwen3app.text.grammars import ConstraintSpec

if TYPE_CHECKING:
    from qwen3app.server.requests import SamplingBody

_GUIDED = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}
# Fields of other servers: name -> what to send instead.
_FOREIGN = {
    "grammar": "structured_outputs.grammar",
    "json_schema": "response_format",
    "regex": "structured_outputs.regex",
    "ebnf": "structured_outputs.grammar",
    "structural_tag": "tools with strict true",
    "guided_json_object": "response_format",
}


def constraint_of(body: SamplingBody) -> ConstraintSpec | None:
    """The request's constraint, None for a free answer. Raises RequestError with the place of a fault."""
    for name, instead in _FOREIGN.items():
        if getattr(body, name) not in (None, False):
            raise _unsupported(f"{name} is not a field of this server; use {instead}.", name)
    found = [
        spec
        for spec in (
            _response_format(body.response_format),
            _structured_outputs(body.structured_outputs),
            *_guided(body),
        )
        if spec is not None
    ]
    if len(found) > 1:
        raise RequestError(
            f"{found[0].param} and {found[1].param} both constrain the answer; send one of them.", found[1].param
        )
    return found[0] if found else None


def _response_format(value: Any) -> ConstraintSpec | None:
    if value is None:
        return None
    where = "response_format"
    if not isinstance(value, Mapping):
        raise RequestError(f"{where} must be an object with a type.", where)
    kind = value.get("type", "text")
    if kind == "text":
        return None
    if kind == "json_object":
        if value.get("schema") is not None:  # as llama.cpp and Together take it
            return ConstraintSpec("json", value["schema"], f"{where}.schema")
        return ConstraintSpec("json", {"type": "object"}, where)
    if kind != "json_schema":
        raise _unsupported(
            f"{where}.type is {str(kind)[:50]!r}; it is text, json_object or json_schema.", f"{where}.type"
        )
    inner, where = value.get("json_schema"), f"{where}.json_schema"
    if not isinstance(inner, Mapping):
        raise RequestError(f"{where} must be an object with a schema.", where)
    if inner.get("strict") not in (None, True, False):
        raise RequestError(f"{where}.strict must be true or false.", f"{where}.strict")
    if inner.get("schema") is None:
        raise RequestError(f"{where}.schema is missing; it is the JSON schema of the answer.", f"{where}.schema")
    return ConstraintSpec("json", inner["schema"], f"{where}.schema")


def _structured_outputs(value: Any) -> ConstraintSpec | None:
    if value is None:
        return None
    where = "structured_outputs"
    if not isinstance(value, Mapping):
        raise RequestError(f"{where} must be an object with one of json, regex, choice, grammar, json_object.", where)
    for name in value:
        if name not in _STRUCTURED:
            raise _unsupported(f"{where} has the field {str(name)[:50]!r}, which this server does not know.", where)
    if value.get("structural_tag") is not None or value.get("disable_additional_properties"):
        name = "structural_tag" if value.get("structural_tag") is not None else "disable_additional_properties"
        raise _unsupported(f"{where}.{name} is not supported by this server.", f"{where}.{name}")
    asked = [name for name in ("json", "regex", "choice", "grammar") if value.get(name) is not None]
    if value.get("json_object"):
        asked.append("json_object")
    if len(asked) != 1:
        what = f"has {' and '.join(asked)}" if asked else "says nothing"
        raise RequestError(f"{where} {what}; send exactly one of json, regex, choice, grammar, json_object.", where)
    name = asked[0]
    if name == "json_object":
        return _json({"type": "object"}, f"{where}.json_object", value, where)
    if name == "json":
        return _json(value["json"], f"{where}.json", value, where)
    return ConstraintSpec(name, value[name], f"{where}.{name}")  # type: ignore[arg-type]


_STRUCTURED = {
    "json", "regex", "choice", "grammar", "json_object", "structural_tag", "whitespace_pattern",
    "disable_any_whitespace", "disable_additional_properties", "disable_fallback", "backend",
    "_backend", "_backend_was_auto",
}  # fmt: skip


def _json(schema: Any, param: str, options: Mapping[str, Any], where: str) -> ConstraintSpec:
    pattern = options.get("whitespace_pattern")
    if pattern is not None and (not isinstance(pattern, str) or len(pattern) > 1000):
        raise RequestError(f"{where}.whitespace_pattern must be a short string.", f"{where}.whitespace_pattern")
    blank = not options.get("disable_any_whitespace")
    return ConstraintSpec("json", schema, param, white_space=blank, white_space_pattern=pattern)


def _guided(body: SamplingBody) -> list[ConstraintSpec]:
    specs = []
    for field, kind in _GUIDED.items():
        value = getattr(body, field)
        if value is None:
            continue
        if kind == "json":
            pattern = body.guided_whitespace_pattern
            specs.append(_json(value, field, {"whitespace_pattern": pattern}, "guided_json"))
        else:
            specs.append(ConstraintSpec(kind, value, field))  # type: ignore[arg-type]
    return specs


def _unsupported(message: str, param: str) -> RequestError:
    return RequestError(message, param, "unsupported_parameter")
