"""`tools`, `tool_choice` and `parallel_tool_calls` of a chat request: what they mean for prompt, parsing and sampling.

Owns: their validation, and tool calls as OpenAI's objects. Refuses to know: how calls are spelled in text.
The rules:
- A tool is {"type": "function", "function": {"name", ...}}; a bare {"name", ...} is taken too. The template gets the
  definitions as they are, key order and unknown fields included.
- Names are of any printable characters but spaces: OpenAI's, those with dots, colons and slashes that tell whose a tool
  is, and words of any language. Two tools with one name are refused: a call would not say which it means.
- "auto" (the default with tools): the model decides. "none": the prompt has no tools, the token that opens a call is
  biased away, and nothing is a call. "required" and a named function are enforced while sampling, as are strict: true
  and "allowed_tools", which leaves all tools in the prompt and lets some of them be called.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qwen3app.errors import RequestError
from qwen3app.text.call_stream import CallPolicy
from qwen3app.text.grammars import ConstraintSpec, tool_call_spec
from qwen3app.text.tool_calls import CALL_OPEN

if TYPE_CHECKING:
    from qwen3app.server.requests import ChatBody
    from qwen3app.text.tokenizer import Tokenizer
    from qwen3app.text.tool_calls import ToolCall

_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
MAX_TOOLS = 4096  # 6 ms of the event loop
_MOST_NAME = 128  # characters
NEVER = -100.0  # the strongest logit_bias


@dataclass(frozen=True, slots=True)
class ToolFunction:
    """One function that may be called. parameters: a JSON schema, None for no arguments."""

    name: str
    parameters: Mapping[str, Any] | None
    strict: bool
    place: str  # where the function stands in the request

    @property
    def schema(self) -> Mapping[str, Any]:
        """What arguments are held to."""
        return _NO_PARAMETERS if self.parameters is None else self.parameters

    @property
    def param(self) -> str:
        """Where the parameters stand in the request."""
        return f"{self.place}.parameters"


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """What a request says about tools. policy None: none are given. forced: one of `functions` has to be called.
    restricted: other tools are in the prompt."""

    definitions: list[Any] | None  # for the template
    policy: CallPolicy | None
    functions: tuple[ToolFunction, ...] = ()  # that may be called
    forced: bool = False
    restricted: bool = False


def tool_request(body: ChatBody) -> ToolRequest:
    """The request's tools; RequestError with the place of a fault."""
    functions = tool_functions(body.tools)
    choice: Any = "auto" if body.tool_choice is None else body.tool_choice
    if not functions:
        if choice not in ("auto", "none"):
            raise RequestError("tool_choice asks for a call, but there are no tools; send some.", "tool_choice")
        return ToolRequest(None, None)
    policy = CallPolicy.ONE if body.parallel_tool_calls is False else CallPolicy.MANY
    if choice == "none":
        return ToolRequest(None, CallPolicy.NONE)
    if choice in ("auto", "required"):
        return ToolRequest(body.tools, policy, functions, forced=choice == "required")
    kind = choice.get("type", "function") if isinstance(choice, Mapping) else None
    inner = choice.get(kind, choice) if isinstance(kind, str) else None
    if kind == "allowed_tools" and isinstance(inner, Mapping) and isinstance(inner.get("tools"), list):
        mode = inner.get("mode", "auto")
        if mode not in ("auto", "required"):
            raise RequestError('tool_choice.allowed_tools.mode must be "auto" or "required".', "tool_choice")
        allowed = tuple(_named(_inner(tool), functions) for tool in inner["tools"])
        if allowed:
            return ToolRequest(body.tools, policy, allowed, forced=mode == "required", restricted=True)
    if kind == "function":
        return ToolRequest(body.tools, CallPolicy.ONE, (_named(inner, functions),), forced=True)
    raise _wrong_choice()


def tool_functions(tools: Sequence[Any] | None) -> tuple[ToolFunction, ...]:
    """What the tools say of themselves; RequestError with the place of a fault."""
    if tools is not None and len(tools) > MAX_TOOLS:
        raise RequestError(f"tools takes at most {MAX_TOOLS} tools, got {len(tools)}.", "tools")
    functions = tuple(_function(tool, f"tools[{i}]") for i, tool in enumerate(tools or ()))
    _check_names(functions)
    return functions


def _named(choice: Any, functions: Sequence[ToolFunction]) -> ToolFunction:
    """The function that {"name": ...} names; it may stand in a "function" or, as the newer API writes it, alone."""
    name = choice.get("name") if isinstance(choice, Mapping) else None
    if not isinstance(name, str) or not name:
        raise _wrong_choice()
    for function in functions:
        if function.name == name:
            return function
    raise RequestError(f"tool_choice names {name[:100]!r}, which is not among the tools.", "tool_choice")


def _inner(tool: Any) -> Any:
    return tool.get("function", tool) if isinstance(tool, Mapping) else None


def _wrong_choice() -> RequestError:
    return RequestError(
        'tool_choice must be "auto", "none", "required", {"type": "function", "function": {"name": ...}} or '
        '{"type": "allowed_tools", "allowed_tools": {"mode": ..., "tools": [...]}}.',
        "tool_choice",
    )


def _function(tool: Any, param: str) -> ToolFunction:
    if not isinstance(tool, Mapping):
        raise RequestError(f"{param} must be an object.", param)
    if tool.get("type", "function") != "function":
        raise RequestError(f"{param}.type is {str(tool['type'])[:50]!r}; only 'function' is known.", f"{param}.type")
    inner: Any = tool
    if "function" in tool or "name" not in tool:
        inner, param = tool.get("function"), f"{param}.function"
        if not isinstance(inner, Mapping):
            raise RequestError(f"{param} must be an object with the function's name and parameters.", param)
    name, parameters, strict = inner.get("name"), inner.get("parameters"), inner.get("strict")
    if not isinstance(name, str) or not name:
        what = "must be" if "name" in inner else "is missing; send"
        raise RequestError(f"{param}.name {what} the function's name, a string.", f"{param}.name")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise RequestError(f"{param}.parameters must be a JSON schema, an object.", f"{param}.parameters")
    if strict is not None and not isinstance(strict, bool):
        raise RequestError(f"{param}.strict must be true or false.", f"{param}.strict")
    return ToolFunction(name, parameters, bool(strict), param)


def _check_names(functions: Sequence[ToolFunction]) -> None:
    names = set()
    for function in functions:
        name, place = function.name, f"{function.place}.name"
        if len(name) > _MOST_NAME:
            raise RequestError(f"{place} has {len(name)} characters; at most {_MOST_NAME} are taken.", place)
        if not name.isprintable() or " " in name:
            raise RequestError(f"{place} is {name!r}; a tool's name has no spaces and no control characters.", place)
        if name in names:
            raise RequestError(f"{place} is {name!r}, as another tool's is; give each tool a name of its own.", place)
        names.add(name)


def answer_constraint(tools: ToolRequest, form: ConstraintSpec | None) -> ConstraintSpec | None:
    """What the answer is held to while sampling, given the form that the request wants of an answer in words.

    Forced calls follow their schemas, strict or not, and leave no room for words. Otherwise only strict functions
    are held to theirs, and an answer without calls has the form. A function without parameters takes none."""
    if not tools.functions:
        return form
    free = not tools.forced and form is None
    if free and not tools.restricted and not any(function.strict for function in tools.functions):
        return None
    return tool_call_spec(
        [(each.name, each.schema if tools.forced or each.strict else None) for each in tools.functions],
        parallel=tools.policy == CallPolicy.MANY,
        free_text=free,
        instead=None if tools.forced else form,
        params=[function.param for function in tools.functions],
    )


def bias_against_calls(bias: Mapping[int, float], tokenizer: Tokenizer) -> dict[int, float]:
    """logit_bias with the token that opens a call made impossible, where the tokenizer has one."""
    opening = {token: NEVER for token, added in tokenizer.added_tokens.items() if added.content == CALL_OPEN}
    return {**bias, **opening}


def call_object(call: ToolCall) -> dict[str, Any]:
    """A call as OpenAI's object, with an id of its own."""
    return {
        "id": f"call_{secrets.token_hex(12)}",
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
