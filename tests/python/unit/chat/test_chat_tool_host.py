"""The program that runs tools, in the test's own process; test_chat_tools.py has it as a process."""

from __future__ import annotations

import enum
import inspect
import json
import os
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE

from qwen3app.chat import tool_host
from qwen3app.chat.tool_host import Wrong, call, describe, fits, load, schema_of


class Unit(enum.Enum):
    C = "celsius"
    K = "kelvin"


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (str, {"type": "string"}),
        (None.__class__, {"type": "null"}),
        (Any, {}),
        (inspect.Parameter.empty, {}),
        (list, {"type": "array"}),
        (list[float], {"type": "array", "items": {"type": "number"}}),
        (tuple[int, str], {"type": "array"}),
        (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
        (dict, {"type": "object"}),
        (
            dict[str, list[bool]],
            {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "boolean"}}},
        ),
        (typing.Literal[1, 2], {"enum": [1, 2], "type": "integer"}),
        (typing.Literal[1, "a"], {"enum": [1, "a"]}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (typing.Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}),  # noqa: UP045 - what files write
        (typing.Annotated[int, 3, "how many"], {"type": "integer", "description": "how many"}),
        (Unit, {"enum": ["celsius", "kelvin"], "type": "string"}),
    ],
)
def test_schemas(hint: Any, schema: dict[str, Any]) -> None:
    assert schema_of(hint) == schema


@pytest.mark.parametrize("hint", [bytes, list[bytes], Path, typing.Callable])
def test_what_has_no_json_form(hint: Any) -> None:
    with pytest.raises(Wrong, match="has no JSON form"):
        schema_of(hint)


@pytest.mark.parametrize(
    ("value", "schema", "does"),
    [
        (1, {"type": "number"}, True),
        (1.5, {"type": "integer"}, False),
        (True, {"type": "integer"}, False),
        (True, {"type": "boolean"}, True),
        (None, {"type": "string"}, False),
        (None, {"type": "null"}, True),
        (True, {"enum": [1]}, False),
        (["a", 1], {"type": "array", "items": {"type": "string"}}, False),
        ([], {"type": "array"}, True),
        ({"a": 1}, {"type": "object", "additionalProperties": {"type": "integer"}}, True),
        ({"a": "x"}, {"type": "object", "additionalProperties": {"type": "integer"}}, False),
        ("x", {"type": "object"}, False),
        ([], {"type": "string"}, False),
        ("x", {"anyOf": [{"type": "null"}, {"type": "string"}]}, True),
        ("x", {}, True),
    ],
)
def test_fitting(value: Any, schema: dict[str, Any], does: bool) -> None:
    assert fits(value, schema) is does


def convert(value: float, to: Unit, tags: set[str] = frozenset(), note: typing.Annotated[str, "free"] = "") -> Any:  # type: ignore[assignment]
    """Converts.

    A longer line.
    :param value: the number
    :param to: the unit
    :return: not for the model
    """
    return [value, to.name, sorted(tags), note]


def test_a_function_is_described_and_called() -> None:
    tool = describe("convert", convert)
    function = tool["function"]
    assert (function["name"], function["description"]) == ("convert", "Converts.\n\nA longer line.")
    properties = function["parameters"]["properties"]
    assert properties["value"] == {"type": "number", "description": "the number"}
    assert properties["to"]["description"] == "the unit" and properties["note"]["description"] == "free"
    assert function["parameters"]["required"] == ["value", "to"]
    given = {"value": 1, "to": "kelvin", "tags": ["b", "a"], "note": "x"}
    assert call(convert, tool, given) == '[1, "K", ["a", "b"], "x"]'
    assert json.loads(call(convert, tool, {"value": 1, "to": "x"}))["error"].startswith("the argument to must fit")


def many(
    a: Unit | None = None,
    b: list[Unit] = [],  # noqa: B006
    c: dict[str, set[int]] = {},  # noqa: B006
    d: int | tuple[Unit, ...] = 0,
) -> str:
    """Takes enums in other types."""
    return repr((a, b, c, d))


def test_enums_inside_other_types_arrive_as_such() -> None:
    tool = describe("many", many)
    given = {"a": "kelvin", "b": ["celsius"], "c": {"k": [1, 1]}, "d": ["kelvin"]}
    assert call(many, tool, given) == repr((Unit.K, [Unit.C], {"k": {1}}, (Unit.K,)))
    assert call(many, tool, {"a": None, "d": 3}) == repr((None, [], {}, 3))


def test_an_interrupt_ends_a_call() -> None:
    def stop() -> None:
        """Stops."""
        raise KeyboardInterrupt

    assert json.loads(call(stop, describe("stop", stop), {})) == {"error": "The user stopped this call."}


def test_all_chooses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "qwen3_tools", sys)
    path = tmp_path / "t.py"
    path.write_text("from os.path import join\n__all__ = ['_a', 'join']\ndef _a(): ...\ndef b(): ...\n")
    assert list(load(str(path))) == ["_a", "join"]
    path.write_text("from os.path import join\n# a line more: another size\ndef b(): ...\n")
    assert list(load(str(path))) == ["b"]


def test_it_needs_no_package_and_ends_with_its_input(tmp_path: Path) -> None:
    path = tmp_path / "t.py"
    path.write_text('def f(n: int) -> int:\n    """Doubles."""\n    print("seen")\n    return 2 * n\n')
    done = subprocess.run(
        [sys.executable, "-I", "-S", tool_host.__file__, str(path)],
        input=b'{"name": "f", "arguments": {"n": 4}}\n',
        capture_output=True,
        timeout=PATIENCE,
        env={"PATH": os.environ["PATH"]},
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[0]["tools"][0]["function"]["name"] == "f"
    assert lines[1:] in ([], [{"result": "8", "printed": "seen\n"}])  # the input's end may come first


def test_of_what_is_printed_the_beginning_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_host, "MOST_RESULT", 10)
    printed = tool_host.Printed()
    for _ in range(1000):
        print("abc", file=printed)
    printed.writelines(["x", "y"])
    assert printed.write("more") == 4 and printed.getvalue() == "abc\nabc\nab"
