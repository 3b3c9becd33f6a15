"""Fields that constrain an answer: which constraint they mean, and what is wrong with them."""

from __future__ import annotations

from typing import Any

import pytest

from qwen3app.errors import RequestError
from qwen3app.server.requests import ChatBody
from qwen3app.server.structured import constraint_of
from qwen3app.text.grammars import ConstraintSpec

SCHEMA = {"type": "object"}


@pytest.mark.parametrize(
    ("fields", "spec"),
    [
        ({}, None),
        ({"response_format": None, "guided_json": None, "structured_outputs": None}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, ConstraintSpec("json", SCHEMA, "response_format")),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": SCHEMA, "strict": True},
                }
            },
            ConstraintSpec("json", SCHEMA, "response_format.json_schema.schema"),
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": True}}},
            ConstraintSpec("json", True, "response_format.json_schema.schema"),
        ),
        ({"guided_json": SCHEMA}, ConstraintSpec("json", SCHEMA, "guided_json")),
        ({"guided_json": "{}"}, ConstraintSpec("json", "{}", "guided_json")),
        ({"guided_regex": "a+"}, ConstraintSpec("regex", "a+", "guided_regex")),
        ({"guided_choice": ["a"]}, ConstraintSpec("choice", ["a"], "guided_choice")),
        ({"guided_grammar": "start: x"}, ConstraintSpec("grammar", "start: x", "guided_grammar")),
        ({"structured_outputs": {"regex": "a"}}, ConstraintSpec("regex", "a", "structured_outputs.regex")),
        ({"structured_outputs": {"choice": ["a"]}}, ConstraintSpec("choice", ["a"], "structured_outputs.choice")),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True, "regex": None}},
            ConstraintSpec("json", SCHEMA, "structured_outputs.json", white_space=False),
        ),
        (
            {
                "structured_outputs": {"json_object": True, "whitespace_pattern": " ?"},
                "response_format": {"type": "text"},
            },
            ConstraintSpec("json", SCHEMA, "structured_outputs.json_object", white_space_pattern=" ?"),
        ),
    ],
)
def test_what_the_fields_mean(fields: dict[str, Any], spec: ConstraintSpec | None) -> None:
    assert constraint_of(ChatBody(messages=[], **fields)) == spec


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "structural_tag"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strict": "yes"}}},
            "response_format.json_schema.strict",
        ),
        ({"structured_outputs": "json"}, "structured_outputs"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"jsno": {}}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"json": {}, "whitespace_pattern": 1}}, "structured_outputs.whitespace_pattern"),
        ({"guided_json": {}, "guided_regex": "a"}, "guided_regex"),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            "structured_outputs.regex",
        ),
        ({"grammar": "root ::= x"}, "grammar"),
        ({"json_schema": {}}, "json_schema"),
        ({"regex": "a"}, "regex"),
        ({"ebnf": "a"}, "ebnf"),
    ],
)
def test_a_constraint_is_never_dropped_silently(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        constraint_of(ChatBody(messages=[], **fields))
    assert caught.value.param == param
    assert str(caught.value).endswith(".")
