"""Functions for the terminal chat: `/tools docs/example_tools.py`, and then ask for one of the things below.

    What time is it in Tokyo?
    Roll 3 dice with 6 sides.
    Use the calculator for 17 * 24.
    Convert 10 miles to kilometers.

They need nothing but Python. Each answers with a JSON object of few and short values, and with {"error": "not found"}
or {"error": "invalid request"} where it cannot: a small model copies no more than that into its answer. qwen3-demo
knows such functions from its training; /reset before asking it for another one.
"""

from __future__ import annotations

import ast
import operator
import random
from datetime import datetime
from typing import Literal
from zoneinfo import ZoneInfo, available_timezones

_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
_METRIC = {
    "miles": ("kilometers", 1.609344),
    "pounds": ("kilograms", 0.45359237),
    "gallons": ("liters", 3.785411784),
    "acres": ("hectares", 0.40468564224),
}


def get_time(city: str) -> dict[str, str]:
    """Get the local time of a city.

    Args:
        city: The city
    """
    place = city.strip().replace(" ", "_").lower()
    for zone in sorted(available_timezones()):
        if zone.lower().endswith(f"/{place}"):
            return {"time": datetime.now(ZoneInfo(zone)).strftime("%H:%M")}
    return {"error": "not found"}


def roll_dice(count: int, sides: int = 6) -> dict[str, int]:
    """Roll dice.

    Args:
        count: How many dice
        sides: Sides of each
    """
    return {"sum": sum(random.randint(1, sides) for _ in range(count))}


def calculator(expression: str) -> dict[str, object]:
    """Evaluate an arithmetic expression.

    Args:
        expression: The expression
    """
    try:
        value = round(_value(ast.parse(expression, mode="eval").body), 1)
        return {"value": int(value) if value == int(value) else value}
    except (ArithmeticError, RecursionError, SyntaxError, ValueError):
        return {"error": "invalid request"}


def convert_units(
    amount: float,
    from_unit: Literal["miles", "pounds", "gallons", "acres"],
    to_unit: Literal["kilometers", "kilograms", "liters", "hectares"],
) -> dict[str, object]:
    """Convert a value from one unit to another.

    Args:
        amount: The value to convert
        from_unit: The unit of the value
        to_unit: The unit of the result
    """
    target, factor = _METRIC[from_unit]
    return {"value": round(amount * factor, 1)} if to_unit == target else {"error": "invalid request"}


def _value(node: ast.expr) -> float:
    """Of numbers and + - * / alone: what a model writes is not run as a program."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError("neither a number nor + - * /")
