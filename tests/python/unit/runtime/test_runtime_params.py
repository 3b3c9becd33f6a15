"""check_params: every range, each with the field's name."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import pytest

from qwen3app.errors import RequestError
from qwen3app.runtime import GenerationParams
from qwen3app.runtime.params import check_params, with_defaults
from qwen3app.text.generation_config import SamplingDefaults


def test_b68_the_grid_of_samplings_is_accepted() -> None:
    grid = itertools.product([0, 1e-4, 1e-10, 2, 100], [0, 1e-9, 1], [-1, 0, 1, 151936, 10**9], [0, 0.1, 1])
    for temperature, top_p, top_k, min_p in grid:
        check_params(GenerationParams(temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p), 100)


def test_limits_are_written_as_a_person_would() -> None:
    for fields, limits in (
        ({"temperature": 2e6}, "0 to 1000000"),
        ({"presence_penalty": 3.0}, "-2 to 2"),
        ({"repetition_penalty": 0}, "1.2e-38 to 3.4e+38"),
    ):
        with pytest.raises(RequestError, match=re.escape(f" from {limits}, got ")):
            check_params(GenerationParams(**fields), 100)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": -1}, "top_p"),
        ({"min_p": 1.5}, "min_p"),
        ({"top_k": -2}, "top_k"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": math.nan}, "repetition_penalty"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"max_tokens": 3, "min_tokens": 4}, "min_tokens"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"priority": 2**31}, "priority"),
        ({"stop": [""]}, "stop[0]"),
        ({"stop": ["a", "\ud800"]}, "stop[1]"),
        ({"stop": ["a" * 5000]}, "stop[0]"),
        ({"stop": ["a" * 4096] * 4 + ["b"]}, "stop"),
        ({"stop": ["a"] * 65}, "stop"),
        ({"stop_token_ids": [5, 100]}, "stop_token_ids[1]"),
        ({"logit_bias": {100: 1.0}}, "logit_bias"),
        ({"logit_bias": {1: 101.0}}, "logit_bias"),
        ({"logit_bias": {1: math.nan}}, "logit_bias"),
        ({"cache_salt": "\udc00"}, "cache_salt"),
        ({"cache_salt": "a\0b"}, "cache_salt"),
        ({"cache_salt": "a" * 4097}, "cache_salt"),
    ],
)
def test_what_is_out_of_range_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_params(GenerationParams(**fields), 100)
    assert caught.value.param == param
    assert str(caught.value).endswith(".") and param.split("[")[0] in str(caught.value)


def test_zero_tokens_only_for_scoring() -> None:
    check_params(GenerationParams(max_tokens=0, prompt_logprobs=True), 100)


def test_seeds_are_random_unless_given() -> None:
    seeds = {with_defaults(GenerationParams(), SamplingDefaults()).seed for _ in range(8)}
    assert len(seeds) == 8
    assert with_defaults(GenerationParams(seed=5), SamplingDefaults()).seed == 5
