"""Chat messages as clients send them -> messages as chat templates expect them.

Owns: which roles and contents are accepted and what equals what. Refuses to know: templates, tokens, HTTP.
The rules:
- content "" and [] are the same: "". In an assistant's and a tool's message so are null and missing: a call has no
  content, nor has an answer that was cut within its thought, or a tool that has nothing to say. A list of text parts is
  joined with newlines (as vLLM and llama.cpp do); parts of any other type are refused. developer is system; a role
  outside the five is refused.
- An assistant's thoughts may come as `reasoning_content` or `reasoning`; the former wins when both are given.
- tool_calls: with or without the `function` wrapper; arguments as an object, or as a string that is kept to the letter
  (even when it is not JSON: a call cut off by max_tokens comes back that way); null, "" and missing mean {}.
- Other fields pass through as they are.
Invariants: what comes out has no lone surrogate anywhere, and shares no dict of messages with the caller.
Threads: pure, any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from qwen3app.text.errors import TextError, check_unicode

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
_CONTENT = "a string or a list of text parts"
# JSON nested deeper than this is refused; the deepest real tool schemas have about 30 levels.
_MAX_DEPTH = 200


def check_json(value: Any, param: str) -> None:
    """TextError unless value is made of JSON types and valid Unicode; the error names the place."""
    try:
        msgspec.json.encode(value)  # one pass in C, taken by every honest request
        return
    except (TypeError, ValueError, RecursionError, OverflowError):
        pass  # invalid, or a type that msgspec refuses but json.dumps does not (a Mapping, a huge integer)
    _check_slowly(value, param, 0)


def _check_slowly(value: Any, param: str, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise TextError(
            f"{param[:200]} is nested more than {_MAX_DEPTH} levels deep; send a flatter value.", param[:200]
        )
    if isinstance(value, str):
        check_unicode(value, param)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TextError(f"{param} has a key that is not a string ({key!r}); send JSON.", param)
            check_unicode(key, f"a key of {param}")
            _check_slowly(item, f"{param}.{key}", depth + 1)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check_slowly(item, f"{param}[{index}]", depth + 1)
    elif value is not None and not isinstance(value, bool | int | float):
        raise TextError(f"{param} is a {type(value).__name__}, which is not a JSON value; send JSON.", param)


def texts_in(value: Any, param: str) -> Iterator[tuple[str, str]]:
    """(place, text) of every string in a JSON value. The key of an object stands where the object does."""
    stack = [(param, value)]
    while stack:
        place, item = stack.pop()
        if isinstance(item, str):
            yield place, item
        elif isinstance(item, Mapping):
            yield from ((place, key) for key in item)
            stack += [(f"{place}.{key}", each) for key, each in item.items()]
        elif isinstance(item, list | tuple):
            stack += [(f"{place}[{index}]", each) for index, each in enumerate(item)]


def normalise_messages(messages: Any, param: str = "messages") -> list[dict[str, Any]]:
    """Messages for the template, by the rules in the file's head; TextError with the place of the fault."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise TextError(f"{param} must be a list of messages, not {_kind(messages)}.", param)
    if not messages:
        raise TextError(f"{param} is empty; send at least one message.", param)
    check_json(messages, param)
    return [_normalise_message(message, f"{param}[{index}]") for index, message in enumerate(messages)]


def _normalise_message(message: Any, param: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise TextError(f"{param} must be an object with role and content, not {_kind(message)}.", param)
    result = dict(message)
    role = result.get("role")
    if not isinstance(role, str):
        raise _wrong(result, "role", param, "one of system, developer, user, assistant and tool")
    if role not in ROLES:
        raise TextError(
            f"{param}.role is {role[:50]!r}; use one of system, developer, user, assistant and tool.", f"{param}.role"
        )
    result["role"] = "system" if role == "developer" else role
    if result.get("content") is None and role not in ("assistant", "tool"):
        raise _wrong(result, "content", param, _CONTENT)
    result["content"] = _text_of(result.get("content"), f"{param}.content")
    for name in ("name", "tool_call_id"):
        value = result.get(name)
        if value is None:
            result.pop(name, None)
        elif not isinstance(value, str):
            raise TextError(f"{param}.{name} must be a string, not {_kind(value)}.", f"{param}.{name}")
    _normalise_reasoning(result, param)
    calls = result.get("tool_calls")
    if calls is None or calls == []:
        result.pop("tool_calls", None)
    elif role != "assistant":
        raise TextError(f"{param}.tool_calls: only an assistant message can call tools.", f"{param}.tool_calls")
    elif not isinstance(calls, list | tuple):
        raise TextError(f"{param}.tool_calls must be a list, not {_kind(calls)}.", f"{param}.tool_calls")
    else:
        result["tool_calls"] = [_normalise_call(call, f"{param}.tool_calls[{j}]") for j, call in enumerate(calls)]
    return result


def _text_of(content: Any, param: str) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if not isinstance(content, list | tuple):
        raise TextError(f"{param} must be {_CONTENT}, not {_kind(content)}.", param)
    texts = []
    for index, part in enumerate(content):
        place = f"{param}[{index}]"
        if isinstance(part, str):
            texts.append(part)
            continue
        if not isinstance(part, Mapping):
            raise TextError(f"{place} must be an object with type and text, not {_kind(part)}.", place)
        if "type" not in part:
            raise TextError(f'{place} has no type; send {{"type": "text", "text": ...}}.', place)
        if part["type"] != "text":
            raise TextError(
                f"{place} is of type {str(part['type'])[:50]!r}; this model reads text only, "
                'send {"type": "text", "text": ...}.',
                place,
            )
        text = part.get("text")
        if not isinstance(text, str):
            raise _wrong(part, "text", place, "a string")
        texts.append(text)
    return "\n".join(texts)


def _normalise_reasoning(message: dict[str, Any], param: str) -> None:
    for name in ("reasoning_content", "reasoning"):
        value = message.get(name)
        if value is None:
            message.pop(name, None)
        elif not isinstance(value, str):
            raise TextError(f"{param}.{name} must be a string, not {_kind(value)}.", f"{param}.{name}")
    reasoning = message.pop("reasoning", None)
    if reasoning is not None and message["role"] == "assistant":
        message.setdefault("reasoning_content", reasoning)


def _normalise_call(call: Any, param: str) -> dict[str, Any]:
    if not isinstance(call, Mapping):
        raise TextError(f"{param} must be an object, not {_kind(call)}.", param)
    result = dict(call)
    inner = result
    if result.get("function") is not None or ("function" in result and "name" not in result):
        param = f"{param}.function"
        if not isinstance(result["function"], Mapping):
            raise TextError(
                f"{param} must be an object with name and arguments, not {_kind(result['function'])}.", param
            )
        inner = result["function"] = dict(result["function"])
    if not isinstance(result.get("id"), str | None):
        where = f"{param.removesuffix('.function')}.id"
        raise TextError(f"{where} must be a string, not {_kind(result['id'])}.", where)
    name = inner.get("name")
    if not isinstance(name, str) or not name:
        raise _wrong(inner, "name", param, "the called tool's name")
    arguments = inner.get("arguments")
    if arguments is None or arguments == "":
        inner["arguments"] = {}
    elif not isinstance(arguments, str | Mapping):
        raise TextError(
            f"{param}.arguments must be an object or its JSON as a string, not {_kind(arguments)}.",
            f"{param}.arguments",
        )
    return result


def normalise_tools(tools: Any, param: str = "tools") -> list[Any] | None:
    """Tool definitions for the template: None, or a list of JSON objects, passed on as they are."""
    if tools is None:
        return None
    if not isinstance(tools, Sequence) or isinstance(tools, str | bytes):
        raise TextError(f"{param} must be a list of tool definitions, not {_kind(tools)}.", param)
    for index, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise TextError(f"{param}[{index}] must be an object, not {_kind(tool)}.", f"{param}[{index}]")
    check_json(tools, param)
    return list(tools)


def _wrong(holder: Mapping[str, Any], name: str, param: str, wanted: str) -> TextError:
    """The error of a field that is not `wanted`, or not there at all. param: the holder's place."""
    place = f"{param}.{name}"
    if name not in holder:
        return TextError(f"{place} is missing; send {wanted}.", place)
    return TextError(f"{place} must be {wanted}, not {_kind(holder[name])}.", place)


def _kind(value: Any) -> str:
    """How a JSON user would name the value's type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string" if value else "an empty string"
    if isinstance(value, Mapping):
        return "an object"
    return "a list" if isinstance(value, list | tuple) else f"a {type(value).__name__}"
