"""Runs the functions of one Python file for a chat: a process of its own, a program of its own.

Owns: which functions of the file are offered, their JSON schemas, checking arguments, running. Refuses to know models
and terminals. It needs nothing but Python's standard library (3.9 or newer), so that it runs under the user's own
Python with the user's own packages, also where the chat is the packed program. Usage: python tool_host.py FILE.

Speaks JSON lines on the streams it was started with. First it says {"tools": [...]} or {"error": sentence}; then for
each {"name", "arguments"} it says {"result": text, "printed": text}. What the file itself prints is collected, never
mixed in. A thread reads, so that the process ends when its chat does, whatever runs; an interrupt ends the call alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import importlib.util
import inspect
import io
import json
import os
import queue
import re
import sys
import threading
import types
import typing

MOST_RESULT = 200_000  # characters; more would not fit a context
_SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_ARGUMENT = re.compile(r"^\s*(?::param (?:\w+ )?)?(\w+)\s*(?:\([^)]*\))?:\s*(.+)$")
_SECTION = re.compile(r"^\s*(Args|Arguments|Parameters|Returns?|Raises|Yields|Examples?|Note)s?:\s*$")


class Wrong(Exception):
    """One sentence about a file or a call."""


# ------------------------------------------------------------------------------------------------------------ schemas


def schema_of(hint: typing.Any) -> dict[str, typing.Any]:
    """The JSON schema of a type hint; Wrong where there is none."""
    if hint is typing.Any or hint is inspect.Parameter.empty:
        return {}
    if hint in _SIMPLE:
        return {"type": _SIMPLE[hint]}
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        words = [part for part in parts[1:] if isinstance(part, str)]
        return {**schema_of(parts[0]), **({"description": words[0]} if words else {})}
    if origin is typing.Literal:
        kinds = {_SIMPLE.get(type(part)) for part in parts}
        return {"enum": list(parts), **({"type": kinds.pop()} if len(kinds) == 1 and None not in kinds else {})}
    if origin is typing.Union or (hasattr(types, "UnionType") and origin is types.UnionType):
        return {"anyOf": [schema_of(part) for part in parts]}
    if hint in (list, tuple, set) or origin in (list, tuple, set):
        items = [part for part in parts if part is not Ellipsis]
        return {"type": "array", **({"items": schema_of(items[0])} if len(items) == 1 else {})}
    if hint is dict or origin is dict:
        return {"type": "object", **({"additionalProperties": schema_of(parts[1])} if parts else {})}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return schema_of(typing.Literal[tuple(member.value for member in hint)])
    raise Wrong(f"the type {getattr(hint, '__name__', hint)} has no JSON form")


def describe(name: str, function: typing.Callable[..., typing.Any]) -> dict[str, typing.Any]:
    """The function as a tool, as OpenAI has it, by the name that it has in the file: a decorator may have given it
    another. Wrong: why it cannot be one."""
    text = inspect.getdoc(function)
    if not text:
        raise Wrong(f"{name} has no docstring, which tells the model what it is for (a name with _ stays private)")
    meaning, about = _read_docstring(text)
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except Exception as error:
        raise Wrong(f"{name} has a type hint that cannot be read: {error}") from None
    properties: dict[str, typing.Any] = {}
    required = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise Wrong(f"{name} takes {parameter}; a tool's parameters have names")
        try:
            schema = schema_of(hints.get(parameter.name, inspect.Parameter.empty))
        except Wrong as error:
            raise Wrong(f"{name}({parameter.name}): {error}") from None
        if parameter.name in about:
            schema.setdefault("description", about[parameter.name])
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        properties[parameter.name] = schema
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": meaning, "parameters": parameters}}


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """What the function does, and what its arguments mean, by `Args:` sections or `:param name:` lines."""
    meaning: list[str] = []
    about: dict[str, str] = {}
    section = ""
    for line in text.splitlines():
        if match := _SECTION.match(line):
            section = match.group(1)
        elif section.startswith(("Arg", "Param")) or line.strip().startswith(":param"):
            if match := _ARGUMENT.match(line):
                about[match.group(1)] = match.group(2).strip()
            elif about and line.strip():
                last = next(reversed(about))
                about[last] += " " + line.strip()
        elif not section and not line.strip().startswith((":return", ":raises")):
            meaning.append(line)
    return "\n".join(meaning).strip(), about


def load(path: str) -> dict[str, typing.Callable[..., typing.Any]]:
    """The file's own public functions, or those that its __all__ names."""
    spec = importlib.util.spec_from_file_location("qwen3_tools", path)
    if spec is None or spec.loader is None:
        raise Wrong("it is no Python file; its name must end with .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["qwen3_tools"] = module
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))  # noqa: PTH100, PTH120 - as Python itself does
    spec.loader.exec_module(module)
    names = getattr(module, "__all__", None)
    if names is None:
        own = inspect.getmembers(module, inspect.isfunction)
        names = [name for name, each in own if each.__module__ == module.__name__ and not name.startswith("_")]
    found = {name: getattr(module, name) for name in names}
    if not found:
        raise Wrong("it defines no public function")
    return found


# -------------------------------------------------------------------------------------------------------------- calls


def fits(value: typing.Any, schema: dict[str, typing.Any]) -> bool:
    """Whether a JSON value has the type that the schema asks for; an enum's members are compared."""
    if "anyOf" in schema:
        return any(fits(value, each) for each in schema["anyOf"])
    if "enum" in schema:
        return any(type(value) is type(each) and bool(value == each) for each in schema["enum"])
    kind = schema.get("type")
    if kind is None:
        return True
    if isinstance(value, bool) or value is None:
        return bool(kind == ("null" if value is None else "boolean"))
    if kind == "number":
        return isinstance(value, (int, float))
    if kind == "array" and isinstance(value, list):
        return all(fits(each, schema.get("items", {})) for each in value)
    if kind == "object" and isinstance(value, dict):
        return all(fits(each, schema.get("additionalProperties", {})) for each in value.values())
    expected = {"string": str, "integer": int}.get(kind)
    return expected is not None and isinstance(value, expected)


def check(arguments: typing.Any, parameters: dict[str, typing.Any]) -> dict[str, typing.Any]:
    """The arguments, if the function can be called with them; the sentence is for the model."""
    if not isinstance(arguments, dict):
        raise Wrong("the arguments must be a JSON object")
    properties = parameters["properties"]
    if unknown := [name for name in arguments if name not in properties]:
        raise Wrong(f"there is no argument {unknown[0]}; the arguments are {', '.join(properties) or 'none'}")
    if missing := [name for name in parameters["required"] if name not in arguments]:
        raise Wrong(f"the argument {missing[0]} is missing")
    for name, value in arguments.items():
        if not fits(value, properties[name]):
            raise Wrong(f"the argument {name} must fit {json.dumps(properties[name])}")
    return arguments


def _typed(value: typing.Any, hint: typing.Any) -> typing.Any:
    """The JSON value as the hint's own type, where that is an enum or a container that JSON does not have, or holds
    such."""
    origin, parts = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin is typing.Annotated:
        return _typed(value, parts[0])
    if origin is typing.Union or (hasattr(types, "UnionType") and origin is types.UnionType):
        return next((_typed(value, each) for each in parts if fits(value, schema_of(each))), value)
    if isinstance(origin, type) and issubclass(origin, enum.Enum):
        return origin(value)
    if origin in (list, tuple, set):
        items = [part for part in parts if part is not Ellipsis]
        return origin([_typed(each, items[0]) for each in value] if len(items) == 1 else value)
    if origin is dict and parts:
        return {name: _typed(each, parts[1]) for name, each in value.items()}
    return value


def _name(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def call(function: typing.Callable[..., typing.Any], tool: dict[str, typing.Any], arguments: typing.Any) -> str:
    """The result as text for the model: a string as it is, anything else as JSON, an exception as {"error": ...}."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
        given = check(arguments, tool["function"]["parameters"])
        result = function(**{name: _typed(value, hints.get(name)) for name, value in given.items()})
        if inspect.iscoroutine(result):
            result = asyncio.run(result)
        text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)
    except Wrong as error:
        text = json.dumps({"error": f"{error}."})
    except KeyboardInterrupt:
        text = json.dumps({"error": "The user stopped this call."})
    except BaseException as error:  # SystemExit too: a tool ends a call, not the chat
        text = json.dumps({"error": _name(error)}, ensure_ascii=False)
    return text if len(text) <= MOST_RESULT else f"{text[:MOST_RESULT]}... (cut, {len(text)} characters)"


# ------------------------------------------------------------------------------------------------------------ process


class Printed(io.StringIO):
    """The beginning of what the file prints: a call that prints without end must not fill the memory."""

    def write(self, text: str) -> int:
        super().write(text[: max(0, MOST_RESULT - self.tell())])
        return len(text)


def main(path: str) -> None:
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):  # what the file's C libraries write must not get between the lines
        os.dup2(null, number)

    def say(**reply: typing.Any) -> None:
        replies.write(json.dumps(reply) + "\n")
        replies.flush()

    printed = Printed()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            functions = load(path)
            tools = {name: describe(name, function) for name, function in functions.items()}
    except Wrong as error:
        say(error=f"{error}.")
        return
    except KeyboardInterrupt:
        say(error="Loading was stopped.")
        return
    except BaseException as error:
        say(error=f"{_name(error)}.")
        return
    say(tools=list(tools.values()))
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        for line in requests:
            waiting.put(line)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    while True:
        with contextlib.suppress(KeyboardInterrupt):  # between two calls there is nothing to interrupt
            request = json.loads(waiting.get())
            printed = Printed()
            name = request["name"]
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                result = call(functions[name], tools[name], request["arguments"])
            say(result=result, printed=printed.getvalue())


if __name__ == "__main__":
    main(sys.argv[1])
