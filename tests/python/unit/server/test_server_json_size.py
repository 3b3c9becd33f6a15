"""Bodies that would become too many objects are refused before they do. The counts must be those of a true reader."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fake_engine import FakeEngine
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import TextParts, make_model, serving

from qwen3app.errors import RequestError
from qwen3app.server import json_size as module
from qwen3app.server.json_size import JsonSize, check_size, json_size

_texts = st.text(st.sampled_from('\\"[]{}:,aé\n'), max_size=8)
_scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), _texts)
_values = st.recursive(
    _scalars, lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(_texts, inner, max_size=5))
)


def counted(value: Any) -> JsonSize:
    """The same by walking through what a reader makes."""
    if not isinstance(value, list | dict):
        return JsonSize()
    inner = [counted(each) for each in (value.values() if isinstance(value, dict) else value)]
    return JsonSize(
        nests=1 + sum(each.nests for each in inner),
        names=(len(value) if isinstance(value, dict) else 0) + sum(each.names for each in inner),
        values=max(len(value) - 1, 0) + sum(each.values for each in inner),
    )


@settings(max_examples=300)
@given(_values, st.booleans(), st.sampled_from([1, 2, 3, 7, 64]))
def test_counts_are_those_of_a_reader(value: Any, ascii_only: bool, piece: int) -> None:
    data = json.dumps(value, ensure_ascii=ascii_only).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_PIECE", piece)
        assert json_size(data) == counted(value)


@pytest.mark.parametrize(
    ("item", "limit", "what"),
    [
        (b"[]", module.MAX_NESTS, "lists and objects"),
        (b'{"":{}}', module.MAX_NESTS // 2, "lists and objects"),
        (b'{"a":1,"b":2,"c":3}', module.MAX_NAMES // 3, "names of fields"),
        (b"0", module.MAX_VALUES, "values"),
        (b'"[\\",]"', module.MAX_VALUES, "values"),
    ],
)
def test_as_much_as_the_limit_is_taken_and_no_more(item: bytes, limit: int, what: str) -> None:
    check_size(b"[" + b",".join([item] * (limit - 1)) + b"]")
    with pytest.raises(RequestError, match=rf"The body has [0-9,]+ {what}; one request may have [0-9,]+\.") as caught:
        check_size(b"[" + b",".join([item] * (limit + 2)) + b"]")
    assert caught.value.code == "body_too_complex"


def test_text_is_no_structure() -> None:
    text = json.dumps({"prompt": '[{"a": 1, "b": [2, 3]}], \\" \n' * 50_000}).encode()
    assert json_size(text) == JsonSize(nests=1, names=1)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"])
async def test_every_route_refuses_them(text_parts: TextParts, path: str) -> None:
    async with serving(make_model(text_parts, FakeEngine())) as server:
        for junk in (b"[" * 70_000, b"[" + b"{}," * 70_000 + b"0]", b"{" + b'"a":{"b":1},' * 70_000 + b'"a":1}'):
            response = await server.client.post(path, content=b'{"junk":%b}' % junk)
            error = response.json()["error"]
            assert (response.status_code, error["code"], error["type"]) == (
                400,
                "body_too_complex",
                "invalid_request_error",
            )
