"""What a user may change in a chat: one table for flags, `/set`, `/show`, `/help` and tab completion.

Owns names, ranges and the sentences for wrong values. Refuses to know the terminal, argparse and the engine.
A value of None means the model's own default (generation_config.json), and where that is silent, no filter at all.
Light: the command line imports it to build its parser. Any thread.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from qwen3app.chat.errors import ChatError
from qwen3app.sampling_limits import MAX_TEMPERATURE, REPETITION_PENALTY_RULE, is_repetition_penalty, written

Value = float | int | str | None


@dataclass(frozen=True, slots=True)
class Setting:
    name: str  # as in /set
    field: str  # attribute of ChatSettings
    parse: Callable[[str], Value]  # raises ValueError with the range as its text
    help: str
    unset: str = "off"  # what /show says where neither the user nor the model has a value


@dataclass(slots=True)
class ChatSettings:
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    system: str | None = None


def _number(low: float, high: float) -> Callable[[str], Value]:
    return _float(f"a number from {written(low)} to {written(high)}", lambda value: low <= value <= high)


def _float(rule: str, holds: Callable[[float], bool]) -> Callable[[str], Value]:
    """holds: says of every float, NaN too, whether the rule allows it."""

    def parse(text: str) -> Value:
        try:
            value = float(text)
        except ValueError:
            raise ValueError(rule) from None
        if not holds(value):
            raise ValueError(rule)
        return value

    return parse


def _integer(low: int, high: int, high_name: str = "") -> Callable[[str], Value]:
    rule = f"a whole number from {low} to {high_name or high}"

    def parse(text: str) -> Value:
        try:
            value = int(text)
        except ValueError:
            raise ValueError(rule) from None
        if not low <= value <= high:
            raise ValueError(rule)
        return value

    return parse


def _text(text: str) -> Value:
    return text


SETTINGS: tuple[Setting, ...] = (
    Setting("temp", "temperature", _number(0, MAX_TEMPERATURE), "temperature; 0 always takes the likeliest token", "1"),
    Setting(
        "top_p", "top_p", _number(0, 1), "keep the likeliest tokens that reach this probability together; 1 is off"
    ),
    Setting("top_k", "top_k", _integer(-1, 2**31 - 1, "2^31-1"), "keep the k likeliest tokens; 0 is off"),
    Setting(
        "min_p", "min_p", _number(0, 1), "keep tokens with this share of the likeliest one's probability; 0 is off"
    ),
    Setting(
        "seed", "seed", _integer(0, 2**63 - 1, "2^63-1"), "equal seeds give equal answers", "a new one for each answer"
    ),
    Setting(
        "max_tokens",
        "max_tokens",
        _integer(1, 2**31 - 1, "2^31-1"),
        "most tokens of one answer, thoughts included",
        "what the context holds",
    ),
    Setting("system", "system", _text, "the system prompt", "none"),
    Setting(
        "repetition_penalty",
        "repetition_penalty",
        _float(REPETITION_PENALTY_RULE, is_repetition_penalty),
        "above 1: repeat less; 1 is off",
    ),
    Setting("presence_penalty", "presence_penalty", _number(-2, 2), "above 0: avoid tokens of the answer so far"),
    Setting("frequency_penalty", "frequency_penalty", _number(-2, 2), "above 0: avoid its frequent tokens more"),
)
BY_NAME = {setting.name: setting for setting in SETTINGS}
ALIASES = {"temperature": "temp"}


def canonical(name: str) -> str:
    """A setting's name as the table has it: `-` and `_` are alike, and so are large and small letters."""
    key = name.lower().replace("-", "_")
    return ALIASES.get(key, key)


def find_setting(name: str, others: Iterable[str] = ()) -> Setting:
    """The setting of that name; ChatError with the closest one otherwise. others: names that are not of this table, but
    may be meant."""
    key = canonical(name)
    if key in BY_NAME:
        return BY_NAME[key]
    close = difflib.get_close_matches(key, [*BY_NAME, *ALIASES, *others], n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join([*BY_NAME, *others])}."
    raise ChatError(f"Unknown setting {name}; {hint}")


def set_value(settings: ChatSettings, name: str, text: str) -> Setting:
    """Parses `text` into the named field. `default` gives it back to the model."""
    setting = find_setting(name)
    if text.strip().lower() == "default":
        setattr(settings, setting.field, None)
        return setting
    try:
        value = setting.parse(text)
    except ValueError as error:
        raise ChatError(f"{setting.name} must be {error} (or `default`), not {text!r}.") from None
    setattr(settings, setting.field, value)
    return setting
