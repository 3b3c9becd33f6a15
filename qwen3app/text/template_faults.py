"""What made a chat template fail: one of the variables that the request gives it, or its messages.

Owns: a failed render's place and reason, and the search among the variables. Refuses to know: how a template is
rendered (text/template.py), and what of it is limited (text/sandbox.py).
The rule: a variable is at fault where the template does not fail without it, or fails over the same expression in
another way, as it does where it needs the variable. An expression before that one says nothing of the fault.
Threads: pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from qwen3app.text.errors import TextError
from qwen3app.text.sandbox import BUDGET_KEY, Budget

CODE = "<chat template>"  # the file that a compiled template says it is from


class RefusalError(Exception):
    """The template failed. str() is its reason."""

    def __init__(self, reason: str, lines: list[int], *, is_limit: bool) -> None:
        """lines: as lines_of has them. is_limit: it asks for more than a template may take."""
        super().__init__(reason)
        self.lines = lines
        self.is_limit = is_limit


def lines_of(error: Exception) -> list[int]:
    """The lines of the template's code that led to an error. Each of its expressions has lines of its own."""
    lines, step = [], error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == CODE:
            lines.append(step.tb_lineno)
        step = step.tb_next
    return lines


def stumbles_over(
    refusal: RefusalError, write: Callable[[dict[str, Any]], str], variables: Mapping[str, Any], keys: Sequence[str]
) -> str:
    """The place of what made a template fail: one of `keys`, variables that chat_template_kwargs has, else all of them
    together, else the messages. write: renders. To find it costs one render's budget in all."""
    budget = Budget()

    def is_needless(names: Collection[str]) -> bool | None:
        """Whether it also fails without these; None: over the same expression, but in another way."""
        try:
            write({**{key: value for key, value in variables.items() if key not in names}, BUDGET_KEY: budget})
        except RefusalError as other:
            missed = other.lines == refusal.lines and str(other) != str(refusal) and not other.is_limit
            return None if missed else True
        except TextError:  # of a message to continue: the template itself does not fail
            return False
        return False

    missed = []
    for key in keys:
        needless = is_needless([key])
        if needless is None:
            missed.append(key)
        elif not needless:
            return f"chat_template_kwargs.{key}"
    if len(missed) == 1:
        return f"chat_template_kwargs.{missed[0]}"
    together = missed or (len(keys) > 1 and not is_needless(keys))
    return "chat_template_kwargs" if together else "messages"
