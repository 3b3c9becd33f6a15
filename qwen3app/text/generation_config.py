"""Sampling defaults that the model's authors ship in generation_config.json.

Owns: which fields count and which values are possible. Refuses to know: requests, and the engine's own defaults.
Threads: pure, any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qwen3app.sampling_limits import MAX_REPETITION_PENALTY, MAX_TEMPERATURE, MIN_REPETITION_PENALTY, written
from qwen3app.text.errors import TextError
from qwen3app.text.files import read_optional_json_object


@dataclass(frozen=True)
class SamplingDefaults:
    """None means that the model says nothing about the parameter."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None  # 0 or -1: off
    min_p: float | None = None
    repetition_penalty: float | None = None


def _number(path: Path, fields: dict[str, Any], name: str, low: float, high: float) -> float | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TextError(f"{path}: {name} is {value!r}, not a number; correct the file.")
    if not low <= value <= high:
        limits = f"from {written(low)} to {written(high)}"
        raise TextError(f"{path}: {name} is {value!r} but must be {limits}; correct the file.")
    return float(value)


def load_sampling_defaults(model_dir: Path) -> SamplingDefaults:
    """Reads generation_config.json; a missing file gives no defaults, a wrong value TextError.

    `do_sample: false` means greedy, whatever temperature stands beside it.
    """
    path = model_dir / "generation_config.json"
    fields = read_optional_json_object(path)
    do_sample = fields.get("do_sample")
    if do_sample is not None and not isinstance(do_sample, bool):
        raise TextError(f"{path}: do_sample is {do_sample!r}, not true or false; correct the file.")
    top_k = fields.get("top_k")
    if top_k is not None and (isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < -1):
        raise TextError(f"{path}: top_k is {top_k!r} but must be an integer of -1 or more; correct the file.")
    temperature = _number(path, fields, "temperature", 0, MAX_TEMPERATURE)
    return SamplingDefaults(
        temperature=0.0 if do_sample is False else temperature,
        top_p=_number(path, fields, "top_p", 0, 1),
        top_k=top_k,
        min_p=_number(path, fields, "min_p", 0, 1),
        repetition_penalty=_number(path, fields, "repetition_penalty", MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY),
    )
