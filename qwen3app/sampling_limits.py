"""The engine's limits of sampling fields that several faces check: requests, the terminal, files of models.

Owns the numbers and the words for them. Imports nothing: the command line needs it to build its parser.
Threads: constants and pure functions.
"""

from __future__ import annotations

MAX_TEMPERATURE = 1e6
# The engine computes in float32, whose full precision begins at 1.1755e-38 and which ends at 3.4028e38.
MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY = 1.2e-38, 3.4e38
REPETITION_PENALTY_RULE = f"a number from {MIN_REPETITION_PENALTY:g} to {MAX_REPETITION_PENALTY:g}"


def written(limit: float) -> str:
    """A limit as a person writes it: 2, 0.001, 1000000; {:g} would make 1e+06 of the last."""
    return f"{limit:.15g}"


def is_repetition_penalty(value: float) -> bool:
    """Whether it is in REPETITION_PENALTY_RULE; NaN is not."""
    return MIN_REPETITION_PENALTY <= value <= MAX_REPETITION_PENALTY
