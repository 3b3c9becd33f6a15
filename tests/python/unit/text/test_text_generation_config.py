"""Sampling defaults from generation_config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qwen3app.text.errors import TextError
from qwen3app.text.generation_config import SamplingDefaults, load_sampling_defaults


def test_official_defaults(official: Path) -> None:
    expected = SamplingDefaults(temperature=0.6, top_p=0.95, top_k=20, min_p=None, repetition_penalty=None)
    assert load_sampling_defaults(official) == expected


def test_missing_file_gives_no_defaults(tmp_path: Path) -> None:
    assert load_sampling_defaults(tmp_path) == SamplingDefaults()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, SamplingDefaults()),
        ({"temperature": None, "do_sample": None}, SamplingDefaults()),
        ({"do_sample": False, "temperature": 0.6, "top_p": 0.9}, SamplingDefaults(temperature=0.0, top_p=0.9)),
        ({"do_sample": True, "temperature": 1}, SamplingDefaults(temperature=1.0)),
        ({"top_k": -1, "min_p": 0.05, "repetition_penalty": 1.05}, SamplingDefaults(None, None, -1, 0.05, 1.05)),
        ({"top_k": 0, "top_p": 0}, SamplingDefaults(top_p=0.0, top_k=0)),
        ({"eos_token_id": [1], "bos_token_id": 3, "max_new_tokens": 2048}, SamplingDefaults()),
    ],
)
def test_fields(tmp_path: Path, fields: dict[str, Any], expected: SamplingDefaults) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(fields))
    assert load_sampling_defaults(tmp_path) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"temperature": "0.6"}', "temperature is '0.6', not a number"),
        ('{"temperature": true}', "temperature is True, not a number"),
        ('{"temperature": -0.1}', "temperature is -0.1 but must be from 0 to 1000000;"),
        ('{"temperature": 1e7}', "temperature is 10000000.0 but must be"),
        ('{"temperature": NaN}', "temperature is nan but must be"),
        ('{"temperature": Infinity}', "temperature is inf but must be"),
        ('{"top_p": 1.5}', "top_p is 1.5 but must be from 0 to 1;"),
        ('{"min_p": -1}', "min_p is -1 but must be"),
        ('{"repetition_penalty": 0}', "repetition_penalty is 0 but must be from 1.2e-38 to 3.4e+38;"),
        ('{"top_k": 1.5}', "top_k is 1.5 but must be an integer"),
        ('{"top_k": -2}', "top_k is -2 but must be"),
        ('{"do_sample": "yes"}', "do_sample is 'yes', not true or false"),
        ("[]", "holds a JSON list"),
        ("{", "is not valid JSON"),
    ],
)
def test_wrong_values_get_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(TextError, match=r"generation_config\.json") as caught:
        load_sampling_defaults(tmp_path)
    assert message in str(caught.value)
