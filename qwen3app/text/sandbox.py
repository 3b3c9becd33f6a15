"""The jinja2 environment in which a model's own chat template runs: what transformers offers, with bounds.

Owns: filters, globals and limits. Refuses to know: tokens and messages.
A template comes with a downloaded model, so it is foreign code. jinja2's sandbox keeps it from Python's internals; what
it leaves open is time and memory. Here every loop pass and every macro call costs one step of a budget, every string
that an operator, a method or a filter makes costs its length, and the few operations that blow up in one go
(repetition, powers, padding, replace, join, formats) are checked before they run. Every list, tuple and dict that the
template makes is weighed: how long it would be if it were written out, with what it holds twice counted twice. So what
walks through one (to compare it, to make JSON or text of it) is bounded too. There are no bytes.
Invariants: a render ends after at most MAX_STEPS steps, MAX_SECONDS seconds (checked at steps) or MAX_CHARACTERS built
characters, with a TemplateLimitError. The result is otherwise that of transformers' environment.
Threads: the environment is immutable after creation; each render has its own Budget.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import wraps
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.exceptions import TemplateError, TemplateRuntimeError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

# A conversation of 10,000 messages takes the official template 20,000 steps.
MAX_STEPS = 250_000
MAX_SECONDS = 5.0
# One string. 262,144 tokens, the longest context of the family, are 1 to 2 million characters.
MAX_LENGTH = 1 << 24
MAX_ITEMS = 1 << 20  # of a list
# All strings made on the way; the official template copies a content about eight times.
MAX_CHARACTERS = 1 << 27
MAX_WIDTH = 10_000
MAX_DEPTH = 200  # of lists and objects in each other

_DICT_ATTRIBUTES = frozenset(dir(dict))
# str.format and format_map are left to jinja2, which replaces them.
_STR_METHODS = frozenset(name for name in dir(str) if not name.startswith(("_", "format", "encode")))
_BYTES_MAKERS = ("encode", "to_bytes")
_LOOP_ATTRIBUTES = frozenset(("index", "index0", "first", "last", "length"))

# Not an identifier, so no template can name it and no keyword of a request can hide it.
BUDGET_KEY = "render budget"


class TemplateLimitError(TemplateRuntimeError):
    """The template asks for more time or memory than a chat template may take."""


def _refuse_length(length: int, kind: Any) -> None:
    limit = MAX_LENGTH if isinstance(kind, str) else MAX_ITEMS
    if length > limit:
        raise TemplateLimitError(f"it makes a {'text' if isinstance(kind, str) else 'list'} longer than {limit:,}")


class Budget:
    """What one render may still spend."""

    __slots__ = ("_characters", "_deadline", "_n_kept", "_steps", "_weights")

    def __init__(self) -> None:
        self._steps = MAX_STEPS
        # By id, of containers, which nothing can change; the youngest, of MAX_ITEMS items together, are kept.
        self._weights: dict[int, tuple[Any, int]] = {}
        self._n_kept = 0
        self._characters = MAX_CHARACTERS
        self._deadline = time.monotonic() + MAX_SECONDS

    def _step(self) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise TemplateLimitError(f"it takes more than {MAX_STEPS:,} loop steps")
        if time.monotonic() > self._deadline:
            raise TemplateLimitError(f"it takes longer than {MAX_SECONDS:g} seconds")

    def _charge(self, value: Any) -> None:
        if isinstance(value, str | list | tuple):
            length = len(value)
            if length > MAX_ITEMS:  # the smaller limit
                _refuse_length(length, value)
            self._characters -= length
            if self._characters < 0:
                raise TemplateLimitError(f"it builds more than {MAX_CHARACTERS:,} characters")
        if isinstance(value, list | tuple | dict) and self._weigh(value) > MAX_LENGTH:
            raise TemplateLimitError(f"it makes a list or object that holds more than {MAX_LENGTH:,} characters")

    def _weigh(self, value: Any, depth: int = 0) -> int:
        """Characters and items of a value and of all that it holds, each as often as it occurs."""
        if isinstance(value, str):
            return len(value)
        if not isinstance(value, list | tuple | dict):
            return 1
        known = self._weights.get(id(value))
        if known is None:
            if depth > MAX_DEPTH:
                raise TemplateLimitError(f"it nests lists or objects more than {MAX_DEPTH} deep")
            held = (*value, *value.values()) if isinstance(value, dict) else value
            return self._keep(value, 1 + len(held) + sum(self._weigh(item, depth + 1) for item in held))
        return known[1]

    def _keep(self, value: Any, weight: int) -> int:
        while self._n_kept + len(value) > MAX_ITEMS and self._weights:
            oldest, _ = self._weights.pop(next(iter(self._weights)))
            self._n_kept -= len(oldest)
        self._weights[id(value)] = (value, weight)  # the value too, so that its id is nobody else's
        self._n_kept += len(value)
        return weight

    def _weigh_sum(self, left: Any, right: Any, result: Any) -> None:
        """Of left + right, without walking through it: templates build lists of messages one by one."""
        self._keep(result, self._weigh(left) + self._weigh(right))


def _budget(context: Context) -> Budget | None:
    budget = context.parent.get(BUDGET_KEY)
    return budget if isinstance(budget, Budget) else None


@pass_context
def _step_filter(context: Context, value: Any) -> Any:
    budget = _budget(context)
    if budget is not None:
        budget._step()
    return value


@pass_context
def _charge_filter(context: Context, value: Any) -> Any:
    budget = _budget(context)
    if budget is not None:
        budget._charge(value)
    return value


def _refuse_width(value: Any) -> None:
    if isinstance(value, int) and abs(value) > MAX_WIDTH:
        raise TemplateLimitError(f"it pads or repeats {value:,} times, more than {MAX_WIDTH:,}")


_WIDE_FORMAT = re.compile(
    r"%(\([^)]*\))?[^a-zA-Z%]*(\d{4}|\*)"  # %99999d, %(name)99999d, %.99999f, %*d
    r"|\{[^{}]*:[^{}]*(\d{4}|\{)"  # {:>99999}, {:{width}}
)


def _refuse_format(pattern: str) -> None:
    if _WIDE_FORMAT.search(re.sub("%%|{{|}}", "", pattern)):
        raise TemplateLimitError("it formats with a computed or very large width")


def _check_method(name: str, text: str, args: tuple[Any, ...]) -> None:
    """Refuses a str method call that would make a text beyond MAX_LENGTH in one go."""
    if name in ("center", "ljust", "rjust", "zfill", "expandtabs"):
        for argument in args:
            _refuse_width(argument)
    elif name == "replace" and len(args) >= 2 and isinstance(args[0], str) and isinstance(args[1], str):
        times = text.count(args[0]) if args[0] else len(text) + 1
        _refuse_length(len(text) + times * len(args[1]), text)
    elif name == "join" and args and isinstance(args[0], list | tuple):
        _refuse_length(sum(len(item) for item in args[0] if isinstance(item, str)) + len(text) * len(args[0]), text)
    elif name in ("format", "format_map"):
        _refuse_format(text)


def _bounded_filter(function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter, refusing widths, counts and formats that blow up."""

    @wraps(function)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        for argument in (*args, *kwargs.values()):
            _refuse_width(argument)
        return function(*args, **kwargs)

    return bounded


def _format_filter(value: Any, *args: Any, **kwargs: Any) -> str:
    _refuse_format(str(value))
    return str(FILTERS["format"](value, *args, **kwargs))


def _replace_filter(text: Any, old: Any, new: Any, count: int | None = None) -> str:
    _check_method("replace", str(text), (str(old), str(new)))
    return str(text).replace(str(old), str(new), -1 if count is None else count)


def _join_filter(value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    items = [str(_attribute_of(item, attribute)) for item in value]
    _check_method("join", str(d), (items,))
    return str(d).join(items)


def _attribute_of(item: Any, attribute: str | int | None) -> Any:
    if attribute is None:
        return item
    for part in str(attribute).split("."):
        key: Any = int(part) if part.isdigit() else part
        item = item[key] if isinstance(item, dict | list | tuple) else ""
    return item


def _tojson_filter(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers: keys in their order, characters kept, no HTML escapes (jinja2's own escapes and sorts)."""
    _refuse_width(indent)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: Any) -> None:
    raise TemplateError(str(message))


def _strftime_now(pattern: str) -> str:
    _refuse_format(pattern)
    return datetime.now().strftime(pattern)


class _GenerationBlock(Extension):
    """`{% generation %}...{% endgeneration %}`: marks assistant text for training; for a server it is its body."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """See the file's head."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols])
        self.filters["tojson"] = _tojson_filter
        for name in ("batch", "center", "indent", "slice", "truncate", "wordwrap"):
            self.filters[name] = _bounded_filter(FILTERS[name])
        self.filters["format"] = _format_filter
        self.filters["replace"] = _replace_filter
        self.filters["join"] = _join_filter
        self.filters["render step"] = _step_filter
        self.filters["render charge"] = _charge_filter
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        del self.globals["lipsum"]

    def getattr(self, obj: Any, attribute: str) -> Any:
        """As the base class, with shortcuts for `message.content`, `content.startswith`, `loop.index0` and `ns.x`, the
        bulk of all look-ups: no attribute to prefer to the item, and no doubt that the attribute is safe."""
        kind = type(obj)
        if kind is dict and attribute not in _DICT_ATTRIBUTES:
            try:
                return obj[attribute]
            except KeyError:
                return self.undefined(obj=obj, name=attribute)
        if (kind is str and attribute in _STR_METHODS) or (kind is LoopContext and attribute in _LOOP_ATTRIBUTES):
            return getattr(obj, attribute)
        if kind is Namespace and not attribute.startswith("_"):
            try:
                return getattr(obj, attribute)
            except AttributeError:
                return self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr not in _BYTES_MAKERS and super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for text, times in ((left, right), (right, left)):
                if isinstance(text, str | list | tuple) and isinstance(times, int):
                    _refuse_length(len(text) * times, text)
            if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > 4096:
                raise TemplateLimitError("it computes an enormous number")
        elif operator == "**":
            if isinstance(right, int) and isinstance(left, int) and abs(right) * max(left.bit_length(), 1) > 4096:
                raise TemplateLimitError("it computes an enormous number")
        elif operator == "%" and isinstance(left, str):
            _refuse_format(left)
        result = self.binop_table[operator](left, right)
        if operator == "+" and isinstance(result, list | tuple) and (budget := _budget(context)) is not None:
            budget._weigh_sum(left, right, result)
        if isinstance(result, str | list | tuple):
            _charge_filter(context, result)
        return result

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        method = getattr(__obj, "__wrapped__", __obj)  # jinja2 wraps str.format
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            _check_method(method.__name__, owner, args)
        if type(owner) is str and method is __obj:
            kwargs.pop("_loop_vars", None)  # what jinja2 passes along for macros
            kwargs.pop("_block_vars", None)
            result = __obj(*args, **kwargs)
        else:
            result = super().call(__context, __obj, *args, **kwargs)
        if isinstance(result, str | list | tuple | dict):
            _charge_filter(__context, result)
        return result


def add_limits(tree: nodes.Template) -> None:
    """Puts a budget step into every loop and macro body, and a charge on every `~`, filter result, list and object."""

    def visit(node: nodes.Node) -> Any:
        for field, value in node.iter_fields():
            if isinstance(value, list):
                setattr(node, field, [visit(item) if isinstance(item, nodes.Node) else item for item in value])
            elif isinstance(value, nodes.Node):
                setattr(node, field, visit(value))
        if isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock):
            one = nodes.Const(None, lineno=node.lineno)
            step = nodes.Filter(one, "render step", [], [], None, None, lineno=node.lineno)
            node.body = [nodes.ExprStmt(step, lineno=node.lineno), *node.body]
        elif (
            isinstance(node, nodes.Concat)
            or (isinstance(node, nodes.Filter) and node.name != "length")
            or (isinstance(node, nodes.List | nodes.Dict) and _holds_expressions(node))
            or (isinstance(node, nodes.Tuple) and node.ctx == "load" and _holds_expressions(node))
        ):
            return nodes.Filter(node, "render charge", [], [], None, None, lineno=node.lineno)
        return node

    visit(tree)


def _holds_expressions(node: nodes.List | nodes.Dict | nodes.Tuple) -> bool:
    """Whether it holds more than constants: these are no larger than the template's text."""
    return any(not isinstance(item, nodes.Const) for item in (node.items if node.items else ()))


def joined(pieces: Iterator[str]) -> str:
    """The rendered text; TemplateLimitError as soon as it is longer than MAX_LENGTH."""
    parts: list[str] = []
    length = 0
    for piece in pieces:
        length += len(piece)
        if length > MAX_LENGTH:
            raise TemplateLimitError(f"it renders a prompt longer than {MAX_LENGTH:,} characters")
        parts.append(piece)
    return "".join(parts)
