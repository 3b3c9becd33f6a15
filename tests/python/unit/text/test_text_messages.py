"""Messages as clients send them: what is accepted, what equals what, what the errors name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from qwen3app.text.errors import TextError
from qwen3app.text.messages import normalise_messages, normalise_tools


def refused(messages: Any) -> tuple[str, str | None]:
    with pytest.raises(TextError) as caught:
        normalise_messages(messages)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    message.encode()  # the error itself can be sent
    return message, caught.value.param


def test_input_is_not_changed() -> None:
    call = {"function": {"name": "f", "arguments": ""}}
    messages = [{"role": "developer", "content": []}, {"role": "assistant", "reasoning": "r", "tool_calls": [call]}]
    assert normalise_messages(messages) == [
        {"role": "system", "content": ""},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "r",
            "tool_calls": [{"function": {"name": "f", "arguments": {}}}],
        },
    ]
    assert messages[0] == {"role": "developer", "content": []}
    assert call == {"function": {"name": "f", "arguments": ""}}


@pytest.mark.parametrize("message", [{"content": None}, {}, {"content": ""}, {"content": []}])
def test_b16_no_content_is_empty_content(message: dict[str, Any]) -> None:
    for role in ("assistant", "tool"):
        assert normalise_messages([{"role": role, **message}]) == [{"role": role, "content": ""}]


@pytest.mark.parametrize("role", ["system", "developer", "user"])
def test_only_an_assistant_and_a_tool_may_say_nothing(role: str) -> None:
    user = {"role": "user", "content": ""}
    missing, param = refused([user, {"role": role}])
    assert (missing, param) == (
        "messages[1].content is missing; send a string or a list of text parts.",
        "messages[1].content",
    )
    null, param = refused([user, {"role": role, "content": None}])
    assert (null, param) == (
        "messages[1].content must be a string or a list of text parts, not null.",
        "messages[1].content",
    )
    for content in ("", []):
        assert normalise_messages([{"role": role, "content": content}])[0]["content"] == ""


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ({"content": "x"}, "messages[0].role is missing"),
        ({"role": "user", "content": [{"text": "x"}]}, "messages[0].content[0] has no type"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text is missing"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "messages[0].tool_calls[0].function.name is missing"),
    ],
)
def test_what_is_missing_is_not_called_null(message: dict[str, Any], place: str) -> None:
    sentence, _ = refused([message])
    assert sentence.startswith(f"{place}; send "), sentence


@pytest.mark.parametrize(("function", "kind"), [(None, "null"), ("f", "a string"), ([], "a list")])
def test_what_is_called_is_an_object(function: Any, kind: str) -> None:
    place = "messages[0].tool_calls[0].function"
    assert refused([{"role": "assistant", "tool_calls": [{"function": function}]}]) == (
        f"{place} must be an object with name and arguments, not {kind}.",
        place,
    )


def test_a_call_without_a_wrapper_may_have_a_null_one() -> None:
    messages = normalise_messages([{"role": "assistant", "tool_calls": [{"name": "f", "function": None}]}])
    assert messages[0]["tool_calls"] == [{"name": "f", "function": None, "arguments": {}}]


def test_b23_text_parts_are_joined_with_newlines() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": {}}, "c"]
    for role in ("user", "tool", "system", "assistant"):
        assert normalise_messages([{"role": role, "content": parts}])[0]["content"] == "a\nb\nc"
    assert normalise_messages([{"role": "tool", "content": parts[:1]}])[0]["content"] == "a"


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        (None, "messages"),
        (5, "messages"),
        ("hi", "messages"),
        ({"role": "user"}, "messages"),
        ([{}], "messages[0].role"),
        ([None], "messages[0]"),
        (["hi"], "messages[0]"),
        ([{"role": None}], "messages[0].role"),
        ([{"role": 1, "content": "x"}], "messages[0].role"),
        ([{"role": "wizard", "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": True}], "messages[0].content"),
        ([{"role": "user", "content": {"type": "text"}}], "messages[0].content"),
        ([{"role": "user", "content": [5]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": [{"text": "x"}]}], "messages[0].content[0]"),
        (
            [{"role": "user", "content": "x"}] * 2 + [{"role": "user", "content": [{"type": "image_url"}]}],
            "messages[2].content[0]",
        ),
        ([{"role": "user", "content": ["a", {"type": "input_audio"}]}], "messages[0].content[1]"),
        ([{"role": "user", "content": "x", "name": 5}], "messages[0].name"),
        ([{"role": "tool", "content": "x", "tool_call_id": []}], "messages[0].tool_call_id"),
        ([{"role": "assistant", "reasoning_content": 5}], "messages[0].reasoning_content"),
        ([{"role": "assistant", "reasoning": ["x"]}], "messages[0].reasoning"),
        ([{"role": "assistant", "tool_calls": "x"}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": ["x"]}], "messages[0].tool_calls[0]"),
        ([{"role": "assistant", "tool_calls": [{"function": "x"}]}], "messages[0].tool_calls[0].function"),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0].name"),
        ([{"role": "assistant", "tool_calls": [{"name": ""}]}], "messages[0].tool_calls[0].name"),
        ([{"role": "user", "content": "x", "tool_calls": [{"name": "f"}]}], "messages[0].tool_calls"),
    ],
)
def test_b69_malformed_messages_are_named(messages: Any, param: str) -> None:
    message, found = refused(messages)
    assert found == param
    assert message.startswith(param)


def test_b69_the_refused_part_type_is_named() -> None:
    message, _ = refused([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])
    assert "'image_url'" in message


@pytest.mark.parametrize("arguments", [None, "", {}])
def test_b14_no_arguments_are_an_empty_object(arguments: Any) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    result = normalise_messages([{"role": "assistant", "tool_calls": [call, {"name": "g"}]}])[0]["tool_calls"]
    assert result == [{"function": {"name": "f", "arguments": {}}}, {"name": "g", "arguments": {}}]


@pytest.mark.parametrize("arguments", ['"Beijing"', "[1]", "{bad", '{"a": 1}'])
def test_b14_argument_strings_are_kept_to_the_letter(arguments: str) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    result = normalise_messages([{"role": "assistant", "tool_calls": [call]}])[0]
    assert result["tool_calls"][0]["function"]["arguments"] == arguments


@pytest.mark.parametrize("arguments", [5, [1], True, 0.5])
def test_b14_other_arguments_are_refused(arguments: Any) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    _, param = refused([{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{"name": "g"}, call]}])
    assert param == "messages[1].tool_calls[1].function.arguments"


BAD = "ab\ud800c"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"content": BAD}, "messages[0].content"),
        ({"content": [{"type": "text", "text": BAD}]}, "messages[0].content[0].text"),
        ({"name": BAD}, "messages[0].name"),
        ({"reasoning_content": BAD}, "messages[0].reasoning_content"),
        ({"tool_call_id": BAD}, "messages[0].tool_call_id"),
        ({"tool_calls": [{"id": BAD, "name": "f"}]}, "messages[0].tool_calls[0].id"),
        ({"tool_calls": [{"function": {"name": BAD}}]}, "messages[0].tool_calls[0].function.name"),
        (
            {"tool_calls": [{"function": {"name": "f", "arguments": {"k": [1, BAD]}}}]},
            "messages[0].tool_calls[0].function.arguments.k[1]",
        ),
        ({"tool_calls": [{"name": "f", "arguments": {BAD: 1}}]}, "a key of messages[0].tool_calls[0].arguments"),
        ({"extra": {"deep": BAD}}, "messages[0].extra.deep"),
    ],
)
def test_b58_lone_surrogates_are_refused_with_their_position(message: dict[str, Any], param: str) -> None:
    text, found = refused([{"role": "assistant", **message}])
    assert found == param
    assert "U+D800) at character 2" in text


def test_b58_surrogates_in_tools() -> None:
    with pytest.raises(TextError, match="at character 2") as caught:
        normalise_tools([{"name": "f"}, {"description": BAD}])
    assert caught.value.param == "tools[1].description"


def test_whole_characters_beyond_the_bmp_pass() -> None:
    assert normalise_messages([{"role": "user", "content": "a😀𠀀\uffff"}])[0]["content"] == "a😀𠀀\uffff"


@pytest.mark.parametrize("roles", ["usu", "ssu", "du", "uas", "ssssa", "t", "a", "uu"])
def test_b70_system_messages_anywhere(roles: str) -> None:
    names = {"u": "user", "s": "system", "d": "developer", "a": "assistant", "t": "tool"}
    result = normalise_messages([{"role": names[letter], "content": letter} for letter in roles])
    assert [message["role"] for message in result] == [names[letter].replace("developer", "system") for letter in roles]


def test_b34_both_names_of_the_thought_are_read() -> None:
    def thought(message: dict[str, Any]) -> Any:
        return normalise_messages([{"role": "assistant", **message}])[0].get("reasoning_content")

    assert thought({"reasoning": "r"}) == "r"
    assert thought({"reasoning_content": "c"}) == "c"
    assert thought({"reasoning": "r", "reasoning_content": "c"}) == "c"
    assert thought({"reasoning": "r", "reasoning_content": ""}) == ""
    assert thought({"reasoning": "r", "reasoning_content": None}) == "r"
    assert thought({"reasoning": None}) is None
    assert "reasoning" not in normalise_messages([{"role": "user", "content": "x", "reasoning": "r"}])[0]


def test_deep_nesting_is_refused() -> None:
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    message, param = refused([{"role": "assistant", "tool_calls": [{"name": "f", "arguments": {"a": deep}}]}])
    assert "nested" in message
    assert param is not None
    with pytest.raises(TextError, match="nested"):
        normalise_tools([{"parameters": deep}])


def test_values_that_are_not_json_are_refused() -> None:
    assert refused([{"role": "user", "content": "x", "extra": {1: 2}, "y": object()}])[1] == "messages[0].extra"
    assert refused([{"role": "user", "content": "x", "extra": object()}])[1] == "messages[0].extra"


def test_mappings_and_huge_numbers_are_json_too() -> None:
    message: Mapping[str, Any] = MappingProxyType({"role": "user", "content": "x", "n": 10**40})
    assert normalise_messages((message,)) == [dict(message)]
    assert normalise_tools([MappingProxyType({"n": 10**40})]) == [{"n": 10**40}]


def test_tools() -> None:
    assert normalise_tools(None) is None
    assert normalise_tools([]) == []
    tool = {"type": "function", "function": {"name": "f"}}
    assert normalise_tools([tool]) == [tool]
    for tools, param in (("x", "tools"), (5, "tools"), ({}, "tools"), ([tool, "x"], "tools[1]"), ([None], "tools[0]")):
        with pytest.raises(TextError) as caught:
            normalise_tools(tools)
        assert caught.value.param == param
