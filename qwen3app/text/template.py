"""The model's chat template: messages to prompt ids in which only the template can write control tokens.

Owns: finding and compiling the template, rendering, and the border between what the template writes and what users do.
Refuses to know: requests, the engine.

How text is kept from becoming control tokens. After parsing, every control token in the template's own literals
(`<|im_start|>` and the like) is replaced by one lone surrogate character, U+D800 + its place among the added tokens.
User text is never changed; it cannot hold lone surrogates (messages.py refuses them), so it cannot write a control
token, whatever it spells and however it joins with its neighbours, and template logic on it (`startswith`, `split`)
sees the true text. The rendered text is cut at the surrogates; they become ids, and what lies between is encoded as
plain text in one piece, so pieces merge over the border of template and user text as they do in transformers.

Literals that are searched for, not written (operands of comparisons, arguments of `split`, `startswith`, ...), keep
their text, but for think tags: these are the one thing that assistant messages may write (`<think>` and `</think>` in
their content are marked before rendering; in reasoning_content they are words of the thought, as they are in what the
model writes), so searches for them are marked too. Hence a template that looks for think tags elsewhere does not find
them; none of the known ones does.
A template that puts control tokens together from pieces (`'<|' + role + '|>'`) writes plain text here; `notice` says
so, found by comparing a rendered probe with transformers' way.

Invariants: for messages that spell no control token, ids and text equal transformers' apply_chat_template.
Threads: any; nothing is changed after creation.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Template, nodes
from jinja2.exceptions import TemplateError, TemplateSyntaxError

from qwen3app.text.errors import TextError
from qwen3app.text.files import read_optional_json_object, read_text
from qwen3app.text.messages import check_json, normalise_messages, normalise_tools, texts_in
from qwen3app.text.sandbox import BUDGET_KEY, Budget, ChatEnvironment, TemplateLimitError, add_limits, joined
from qwen3app.text.template_faults import CODE, RefusalError, lines_of, stumbles_over
from qwen3app.text.tokenizer import THINK_CLOSE, THINK_OPEN, Tokenizer

_FIRST_MARK = 0xD800
_CONTINUE_MARK = "\udfff"  # stands at the end of the message to continue
_MARKS = re.compile("([\ud800-\udfff])")

# Methods whose arguments are searched for in the text, not written.
_SEARCHING = frozenset(
    (
        *("startswith", "endswith", "find", "rfind", "index", "rindex", "count", "get"),
        *("split", "rsplit", "partition", "rpartition"),
        *("strip", "lstrip", "rstrip", "removeprefix", "removesuffix"),
    )
)
_RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message", BUDGET_KEY})

_PROBE = [
    {"role": "system", "content": "a"},
    {"role": "user", "content": "b"},
    {"role": "assistant", "content": "c"},
    {"role": "user", "content": "d"},
]


@dataclass(frozen=True)
class RenderedPrompt:
    """A prompt ready for the engine."""

    ids: list[int]
    text: str
    thinking: bool  # the prompt ends inside a thought, so the model's first words continue it


class _Marks:
    """Control tokens <-> their marks (see the file's head)."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokens = tokenizer.added_tokens
        if len(tokens) >= ord(_CONTINUE_MARK) - _FIRST_MARK:
            raise TextError(f"the tokenizer has {len(tokens):,} added tokens; at most 2,047 are supported.")
        self.ids = {chr(_FIRST_MARK + place): token for place, token in enumerate(tokens)}
        self.texts = {mark: tokens[token].content for mark, token in self.ids.items()}
        self._marks = {text: mark for mark, text in self.texts.items()}
        self.think_open = self._marks.get(THINK_OPEN)
        self.think_close = self._marks.get(THINK_CLOSE)
        # The longest token first, as the tokenizer matches.
        longest_first = sorted(self._marks, key=len, reverse=True)
        self._find = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self._unmark = {ord(mark): text for mark, text in self.texts.items()}
        # Added tokens may swallow the white space beside them (none of the official ones does).
        self.swallow_before = frozenset(mark for mark, token in self.ids.items() if tokens[token].lstrip)
        self.swallow_after = frozenset(mark for mark, token in self.ids.items() if tokens[token].rstrip)

    def mark(self, text: str) -> str:
        return self._find.sub(lambda match: self._marks[match[0]], text) if self._find else text

    def mark_think(self, text: str) -> str:
        if self.think_open is not None:
            text = text.replace(THINK_OPEN, self.think_open)
        if self.think_close is not None:
            text = text.replace(THINK_CLOSE, self.think_close)
        return text

    def unmark(self, text: str) -> str:
        return text.translate(self._unmark)


def _mark_literals(tree: nodes.Template, marks: _Marks) -> None:
    """Marks the control tokens in all literals of the template that it writes, think tags in those it searches for."""

    def each(items: Sequence[nodes.Node], searched: bool) -> list[Any]:
        return [visit(item, searched) for item in items]

    def visit(node: nodes.Node, searched: bool) -> Any:
        if isinstance(node, nodes.TemplateData):
            node.data = marks.mark(node.data)
        elif isinstance(node, nodes.Const):
            if isinstance(node.value, str):
                node.value = marks.mark_think(node.value) if searched else marks.mark(node.value)
        elif isinstance(node, nodes.Add):
            node.left, node.right = visit(node.left, searched), visit(node.right, searched)
        elif isinstance(node, nodes.Compare | nodes.Operand | nodes.Test):
            for child in node.iter_child_nodes():
                visit(child, True)
        elif isinstance(node, nodes.Getitem):
            visit(node.node, searched)
            visit(node.arg, True)
        elif isinstance(node, nodes.Call):
            visit(node.node, searched)
            method = node.node.attr if isinstance(node.node, nodes.Getattr) else ""
            for place, argument in enumerate(node.args):
                visit(argument, searched or method in _SEARCHING or (method == "replace" and place == 0))
            each([*node.kwargs], searched)
        elif isinstance(node, nodes.Filter):
            if node.node is not None:
                visit(node.node, searched)
            for place, argument in enumerate(node.args):
                visit(argument, searched or (node.name == "replace" and place == 0))
            each([*node.kwargs], searched)
        else:
            for child in node.iter_child_nodes():
                visit(child, searched)
        return node

    visit(tree, False)


def _fold(node: nodes.Node) -> nodes.Node:
    """Joins literals that the template adds up ('<|im_' + 'start|>'), so that tokens across the seam are seen."""
    for field, value in node.iter_fields():
        if isinstance(value, list):
            setattr(node, field, [_fold(item) if isinstance(item, nodes.Node) else item for item in value])
        elif isinstance(value, nodes.Node):
            setattr(node, field, _fold(value))
    if isinstance(node, nodes.Add):
        parts: list[nodes.Expr] = [node.left, node.right]
    elif isinstance(node, nodes.Concat):
        parts = node.nodes
    else:
        return node
    values = [part.value if isinstance(part, nodes.Const) else None for part in parts]
    if all(isinstance(value, str) for value in values):
        return nodes.Const("".join(str(value) for value in values), lineno=node.lineno)
    return node


class ChatTemplate:
    """See the file's head. Make one with `from_dir`."""

    def __init__(self, source: str, tokenizer: Tokenizer, name: str, notice: str | None = None) -> None:
        """source: the jinja2 text. name: where it is from, for error messages."""
        self.source = source
        self.name = name
        self.notice = notice
        self._tokenizer = tokenizer
        self._marks = _Marks(tokenizer)
        environment = ChatEnvironment()
        try:
            tree = environment.parse(source)
            self._names = frozenset(node.name for node in tree.find_all(nodes.Name))
            _fold(tree)
            _mark_literals(tree, self._marks)
            add_limits(tree)
            tree.set_environment(environment)
            code = environment.compile(tree, "chat template", CODE)
            self._template = Template.from_code(environment, code, environment.globals)
        except TemplateSyntaxError as error:
            raise TextError(
                f"{name}: the chat template has an error in line {error.lineno}: {error.message}."
            ) from None
        except (TemplateError, SyntaxError, RecursionError, ValueError, OverflowError, TypeError) as error:
            raise TextError(f"{name}: the chat template cannot be compiled: {error}.") from None
        self._variables = {
            key: [self._marks.mark(text) for text in value] if isinstance(value, list) else self._marks.mark(value)
            for key, value in tokenizer.special_tokens.items()
        }
        self._probe()

    @classmethod
    def from_dir(cls, model_dir: Path, tokenizer: Tokenizer) -> ChatTemplate:
        """chat_template.jinja, else tokenizer_config.json's chat_template, else Qwen3's own with a notice."""
        path = model_dir / "chat_template.jinja"
        if path.exists():
            return cls(read_text(path), tokenizer, str(path))
        path = model_dir / "tokenizer_config.json"
        value = read_optional_json_object(path).get("chat_template")
        if value is not None:
            return cls(_choose_template(value, path), tokenizer, str(path))
        source = resources.files("qwen3app.text").joinpath("qwen3_chat_template.jinja").read_text(encoding="utf-8")
        notice = f"{model_dir} has no chat template; the built-in one of Qwen3 is used."
        return cls(source, tokenizer, "the built-in Qwen3 template", notice)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        asked_kwargs: Collection[str] = (),
    ) -> RenderedPrompt:
        """The prompt for a conversation; TextError for messages or settings that cannot be rendered.

        continue_final_message: the prompt ends with the text of the last message, an assistant's, for the model to
        go on with: its content, or its thought when that has no end or no answer follows it; add_generation_prompt
        then has no effect. template_kwargs: further variables (enable_thinking). asked_kwargs: which of them the
        request itself calls chat_template_kwargs; where one makes the template fail, the error names it.
        """
        kwargs = dict(template_kwargs or {})
        for key in _RESERVED.intersection(kwargs):
            raise TextError(
                f"chat_template_kwargs.{key} is set by the server; remove it.", f"chat_template_kwargs.{key}"
            )
        check_json(kwargs, "chat_template_kwargs")
        chat = normalise_messages(messages)
        for message in chat:
            if message["role"] == "assistant":
                message["content"] = self._marks.mark_think(message["content"])
        variables = {
            **self._variables,
            **kwargs,
            "messages": chat,
            "tools": normalise_tools(tools),
            "add_generation_prompt": add_generation_prompt,
        }
        write = self._render
        if continue_final_message:
            write, variables["add_generation_prompt"] = self._continued, False
        try:
            marked = write(variables)
        except RefusalError as refusal:
            keys = sorted(self._names.intersection(kwargs, asked_kwargs))
            param = stumbles_over(refusal, lambda rest: write({**self._variables, **rest}), variables, keys)
            what = "these messages" if param == "messages" else param
            raise TextError(f"the model's chat template refuses {what}: {refusal}.", param) from None
        try:
            return self._encode(marked)
        except TextError as error:  # a text that cannot be cut: whose is it?
            for param, value in (("messages", messages), ("tools", tools), ("chat_template_kwargs", kwargs)):
                for place, text in texts_in(value, param):
                    self._tokenizer.check_plain(text, place)
            raise TextError(str(error), "messages") from None

    def without_thought(self, prompt: RenderedPrompt) -> RenderedPrompt:
        """The prompt with the thought that it leaves open closed, as the official template writes an empty one."""
        if not prompt.thinking:
            return prompt
        closing = f"\n{THINK_CLOSE}\n\n"
        return RenderedPrompt([*prompt.ids, *self._tokenizer.encode_raw(closing)], prompt.text + closing, False)

    def _continued(self, variables: dict[str, Any]) -> str:
        """Rendered and cut right behind the text of the last message."""
        *earlier, last = variables["messages"]
        if last["role"] != "assistant":
            raise TextError(
                f"continue_final_message needs the last message to be the assistant's, not the {last['role']}'s.",
                "continue_final_message",
            )
        if "tool_calls" in last:
            raise TextError(
                "continue_final_message cannot go on with a message that calls tools; remove its tool_calls.",
                "continue_final_message",
            )
        ways = [{**last, "content": last["content"] + _CONTINUE_MARK}]
        thought = self._open_thought(last)
        if thought is not None:
            # As content, the official template would put an empty thought before it.
            ways.insert(0, {**last, "reasoning_content": thought + _CONTINUE_MARK, "content": ""})
        for way in ways:
            marked = self._render({**variables, "messages": [*earlier, way]})
            end = marked.rfind(_CONTINUE_MARK)
            if end >= 0:
                return marked[:end].replace(_CONTINUE_MARK, "")
        raise TextError(
            "continue_final_message does not work with this model's chat template: it drops the last message.",
            "continue_final_message",
        )

    def _open_thought(self, message: Mapping[str, Any]) -> str | None:
        """The thought that a message breaks off in: `<think>` without an end, or a thought without an answer."""
        content: str = message["content"]
        thought: str | None = message.get("reasoning_content")
        if thought is not None:
            return thought if thought and not content else None
        opening, closing = self._marks.mark_think(THINK_OPEN), self._marks.mark_think(THINK_CLOSE)
        text = content.lstrip()
        return text.removeprefix(opening) if text.startswith(opening) and closing not in text else None

    def _render(self, variables: dict[str, Any]) -> str:
        """The template's output, control tokens as marks. Raises RefusalError."""
        variables = {BUDGET_KEY: Budget(), **variables}
        try:
            return joined(self._template.root_render_func(self._template.new_context(variables)))
        except Exception as error:  # a template can raise anything: TypeError, KeyError, ZeroDivisionError, ...
            reason, lines, is_limit = self._reason(error), lines_of(error), isinstance(error, TemplateLimitError)
        raise RefusalError(reason, lines, is_limit=is_limit)

    def _reason(self, error: Exception) -> str:
        if isinstance(error, RecursionError):
            return "it or its input is nested too deeply"
        if isinstance(error, MemoryError):
            return "it asks for too much memory"
        reason = str(error) if isinstance(error, TemplateError) else f"{type(error).__name__}: {error}"
        return self._marks.unmark(reason).encode("utf-8", "replace").decode().strip().rstrip(".")

    def _encode(self, marked: str) -> RenderedPrompt:
        parts = _MARKS.split(marked)  # text, mark, text, mark, ..., text
        spans, marks = parts[::2], parts[1::2]
        if self._marks.swallow_before or self._marks.swallow_after:
            for place, mark in enumerate(marks):
                if mark in self._marks.swallow_before:
                    spans[place] = spans[place].rstrip()
                if mark in self._marks.swallow_after:
                    spans[place + 1] = spans[place + 1].lstrip()
        encoded = self._tokenizer.encode_plain_spans(spans)
        ids = encoded[0]
        for mark, span_ids in zip(marks, encoded[1:], strict=True):
            ids.append(self._marks.ids[mark])
            ids += span_ids
        parts[1::2] = [self._marks.texts[mark] for mark in marks]
        text = "".join(parts)
        return RenderedPrompt(ids, text, self._ends_in_thought(ids, text))

    def _ends_in_thought(self, ids: list[int], text: str) -> bool:
        """Whether the last think tag of the turn that the prompt leaves open is an opening one."""
        opening, closing = self._tokenizer.think_open_id, self._tokenizer.think_close_id
        if opening is None or closing is None:
            # Think tags are ordinary text to this tokenizer: only a prompt that ends with the tag counts, since an
            # earlier one may be anybody's words.
            return text.rstrip().endswith(THINK_OPEN)
        borders = self._tokenizer.special_ids.difference((opening, closing)).union(self._tokenizer.eos_ids)
        for token in reversed(ids):
            if token == opening:
                return True
            if token == closing or token in borders:
                return False
        return False

    def _probe(self) -> None:
        """Sets `notice` when an innocent conversation gets other ids than transformers would give it."""
        if self.notice is not None:
            return
        try:
            prompt = self.render(_PROBE)
        except TextError:
            return  # a template may refuse such a conversation; requests will tell why
        if prompt.ids != self._tokenizer.encode_raw(prompt.text):
            self.notice = (
                f"{self.name} puts control tokens together from pieces; they reach the model as plain text. "
                "Write each control token as one literal."
            )


def _choose_template(value: Any, path: Path) -> str:
    """A chat_template entry: one string, or a list of {"name", "template"} of which "default" is taken."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        named = {item.get("name"): item.get("template") for item in value}
        chosen = named.get("default", next(iter(named.values())) if len(named) == 1 else None)
        if isinstance(chosen, str):
            return chosen
        raise TextError(f"{path}: chat_template is a list without a template named 'default'; add one.")
    raise TextError(f"{path}: chat_template must be a string or a list of named templates; correct the file.")
