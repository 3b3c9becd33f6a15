"""argparse types that several commands' flags share. A wrong value becomes one sentence."""

from __future__ import annotations

import argparse
import math
import re

from qwen3app.sampling_limits import written


class whole_number:
    """A whole number within limits."""

    def __init__(self, low: int, high: int) -> None:
        self._low = low
        self._high = high

    def __call__(self, text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,40}", text):
            raise argparse.ArgumentTypeError(f"{text[:60]!r} is not a whole number")
        value = int(text)
        if not self._low <= value <= self._high:
            raise argparse.ArgumentTypeError(f"must be from {self._low} to {self._high}, got {value}")
        return value


class number:
    """A finite number within limits."""

    def __init__(self, low: float, high: float) -> None:
        self._low = low
        self._high = high

    def __call__(self, text: str) -> float:
        try:
            value = float(text) if re.fullmatch(r"[-+.0-9a-zA-Z]+", text) else float("_")  # no 1_000, no wide digits
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
        if not math.isfinite(value) or not self._low <= value <= self._high:
            raise argparse.ArgumentTypeError(f"must be from {written(self._low)} to {written(self._high)}, got {text}")
        return value
