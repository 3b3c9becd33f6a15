"""What a request says about thinking: on or off, how long, and whether it is shown.

Owns: the fields that clients use for it, and which one wins. Refuses to know: templates (they get variables), how a
thought is cut short (runtime/thought_budget.py), what is inside a thought: that is what the rendered prompt says.

On or off; the first that says something wins:
  1. chat_template_kwargs.enable_thinking   2. enable_thinking   3. reasoning.enabled, thinking.type
  4. a budget of 0: off                     5. reasoning_effort, reasoning.effort: "none" is off, any other is on
  6. the server's --no-think                7. the template's own default
How many tokens a thought may have:
  1. chat_template_kwargs.thinking_budget   2. thinking_budget, thinking_token_budget
  3. thinking.budget_tokens, reasoning.max_tokens
  4. reasoning_effort, reasoning.effort (EFFORT_BUDGETS)   5. the server's --thinking-budget
-1 means no limit. The soft switches `/think` and `/no_think` are the model's own: they stay in the text, and matter
only while thinking is on, as the model card says.
Pure functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from qwen3app.errors import RequestError

if TYPE_CHECKING:
    from qwen3app.server.requests import ChatBody, TokenizeBody
    from qwen3app.settings import ServeSettings

# reasoning_effort -> tokens of a thought; None: no limit. Qwen3 knows no efforts, so they become budgets: most thoughts
# of the model end within 8,192 tokens by themselves.
EFFORT_BUDGETS: dict[str, int | None] = {
    "none": 0,
    "minimal": 512,
    "low": 2048,
    "medium": 8192,
    "high": None,
    "xhigh": None,
    "max": None,
}
_NO_LIMIT = -1


class Thinking(NamedTuple):
    """What came out of it."""

    template_kwargs: dict[str, Any]
    off: bool  # no thought is wanted, whatever the template knows of it
    budget: int | None  # tokens; None: no limit
    shown: bool  # replies carry the reasoning


def thinking_of(body: ChatBody | TokenizeBody, settings: ServeSettings) -> Thinking:
    """Raises RequestError for values that mean nothing."""
    kwargs = dict(body.chat_template_kwargs or {})
    reasoning = _object(body.reasoning, "reasoning")
    thinking = _object(body.thinking, "thinking")
    effort = _effort(body.reasoning_effort, "reasoning_effort")
    if effort is None:
        effort = _effort(reasoning.get("effort"), "reasoning.effort")
    asked = _first(
        _budget(kwargs.get("thinking_budget"), "chat_template_kwargs.thinking_budget"),
        _budget(body.thinking_budget, "thinking_budget"),
        _budget(body.thinking_token_budget, "thinking_token_budget"),
        _budget(thinking.get("budget_tokens"), "thinking.budget_tokens"),
        _budget(reasoning.get("max_tokens"), "reasoning.max_tokens"),
    )
    enabled = _first(
        _flag(kwargs.pop("enable_thinking", None), "chat_template_kwargs.enable_thinking"),
        body.enable_thinking,
        _flag(reasoning.get("enabled"), "reasoning.enabled"),
        _type(thinking.get("type")),
        False if asked == 0 else None,
        None if effort is None else effort != "none",
        None if settings.thinking else False,
    )
    if enabled is not None:
        kwargs["enable_thinking"] = enabled
    budget = asked
    if budget is None and effort is not None and effort != "none":
        budget = EFFORT_BUDGETS[effort]
        budget = _NO_LIMIT if budget is None else budget
    if budget is None:
        budget = settings.thinking_budget
    hidden = body.include_reasoning is False or _flag(reasoning.get("exclude"), "reasoning.exclude") is True
    return Thinking(kwargs, enabled is False or asked == 0, None if budget == _NO_LIMIT else budget, not hidden)


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _object(value: Any, param: str) -> dict[str, Any]:
    if value is None or isinstance(value, dict):
        return value or {}
    raise RequestError(f"{param} must be an object, got {value!r:.50}.", param)


def _flag(value: Any, param: str) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    raise RequestError(f"{param} must be true or false, got {value!r:.50}.", param)


def _budget(value: Any, param: str) -> int | None:
    if value is None or (type(value) is int and value >= _NO_LIMIT):
        return value
    raise RequestError(f"{param} must be a number of tokens from 0, or -1 for no limit, got {value!r:.50}.", param)


def _effort(value: Any, param: str) -> str | None:
    if value is None or (isinstance(value, str) and value in EFFORT_BUDGETS):
        return value
    raise RequestError(f"{param} must be one of {', '.join(EFFORT_BUDGETS)}, got {value!r:.50}.", param)


def _type(value: Any) -> bool | None:
    """`thinking: {"type": ...}` as DeepSeek's and Anthropic's clients send it."""
    if value is None or value in ("auto", "adaptive"):
        return None
    if value in ("enabled", "disabled"):
        return bool(value == "enabled")
    raise RequestError(f'thinking.type must be "enabled" or "disabled", got {value!r:.50}.', "thinking.type")
