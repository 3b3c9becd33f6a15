"""The engine's limits of sampling fields that several faces check: requests, the terminal, files of models.

Owns the numbers and the words for them. Imports nothing: the command line needs it to build its parser.
Threads: constants and pure functions.
"""

from __future__ import annotations

MAX_TEMPERATURE = 1e6
# The engine computes in float32: what is smaller would be 0 there, what is larger infinite.
MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY = 2.0**-126, (2 - 2.0**-23) * 2.0**127
REPETITION_PENALTY_RULE = "a 32-bit number above 0"


def is_repetition_penalty(value: float) -> bool:
    """Whether it is in REPETITION_PENALTY_RULE; NaN is not."""
    return MIN_REPETITION_PENALTY <= value <= MAX_REPETITION_PENALTY
