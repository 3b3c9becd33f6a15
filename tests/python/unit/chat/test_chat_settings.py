"""Names, ranges and sentences of the settings."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen3app.chat.errors import ChatError
from qwen3app.chat.settings import SETTINGS, ChatSettings, find_setting, set_value


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("temp", "0.7", "temperature", 0.7),
        ("temperature", "0", "temperature", 0.0),
        ("Top-P", "1", "top_p", 1.0),
        ("top_k", "-1", "top_k", -1),
        ("min_p", "0.05", "min_p", 0.05),
        ("seed", "18", "seed", 18),
        ("max_tokens", "200", "max_tokens", 200),
        ("system", "You are a cat.", "system", "You are a cat."),
        ("repetition_penalty", "1.1", "repetition_penalty", 1.1),
        ("presence_penalty", "-2", "presence_penalty", -2.0),
        ("frequency_penalty", "2", "frequency_penalty", 2.0),
    ],
)
def test_values_are_set_and_given_back(name: str, text: str, field: str, value: object) -> None:
    settings = ChatSettings()
    set_value(settings, name, text)
    assert getattr(settings, field) == value
    set_value(settings, name, "default")
    assert getattr(settings, field) is None


def test_a_temperature_has_one_limit_everywhere() -> None:
    """The engine refuses what is above it (native/src/engine/request.cpp); the chat and the page say the same."""
    from qwen3app.sampling_limits import MAX_TEMPERATURE
    from qwen3app.server.page import assets

    settings = ChatSettings()
    set_value(settings, "temp", str(MAX_TEMPERATURE))
    assert settings.temperature == MAX_TEMPERATURE
    with pytest.raises(ChatError, match=r"a number from 0 to 1000000 "):
        set_value(settings, "temp", str(MAX_TEMPERATURE * 1.01))
    page = assets()["/"].body.decode()
    assert f'name="temperature" type="number" inputmode="decimal" min="0" max="{MAX_TEMPERATURE:.0f}"' in page


@pytest.mark.parametrize(
    ("value", "is_allowed"),
    [
        *((value, True) for value in (1.2e-38, 0.5, 100.0, 101.0, 3.4e38)),
        *((value, False) for value in (-1.0, 0.0, 1e-46, 1.19e-38, 3.41e38, 1e39, float("inf"), float("nan"))),
    ],
)
def test_a_repetition_penalty_has_one_limit_everywhere(tmp_path: Path, value: float, is_allowed: bool) -> None:
    """The chat, requests and a model's own defaults: what the engine, which computes in float32, can take."""
    from qwen3app.errors import RequestError
    from qwen3app.runtime.params import GenerationParams, check_params
    from qwen3app.text.errors import TextError
    from qwen3app.text.generation_config import load_sampling_defaults

    (tmp_path / "generation_config.json").write_text(json.dumps({"repetition_penalty": value}))
    for error, take in (
        (ChatError, lambda: set_value(ChatSettings(), "repetition_penalty", repr(value))),
        (RequestError, lambda: check_params(GenerationParams(repetition_penalty=value), 10)),
        (TextError, lambda: load_sampling_defaults(tmp_path)),
    ):
        with (
            contextlib.nullcontext()
            if is_allowed
            else pytest.raises(error, match=r"repetition_penalty.* from 1\.2e-38 to 3\.4e\+38")
        ):
            take()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("temp", "-1"),
        ("temp", "nan"),
        ("temp", "inf"),
        ("temp", "warm"),
        ("top_p", "1.01"),
        ("top_k", "1.5"),
        ("top_k", "-2"),
        ("min_p", "2"),
        ("seed", "-1"),
        ("seed", "x"),
        ("max_tokens", "0"),
        ("repetition_penalty", "0"),
        ("repetition_penalty", "nan"),
        ("presence_penalty", "2.1"),
    ],
)
def test_a_wrong_value_gives_one_sentence_and_changes_nothing(name: str, text: str) -> None:
    settings = ChatSettings()
    with pytest.raises(ChatError, match=rf"^{name} must be a (whole |32-bit )?number (from|above) .*\.$"):
        set_value(settings, name, text)
    assert settings == ChatSettings()


def test_an_unknown_name_suggests_the_closest() -> None:
    with pytest.raises(ChatError, match="did you mean top_p"):
        find_setting("topp")
    with pytest.raises(ChatError, match="there are temp, top_p"):
        find_setting("zzz")


@given(st.sampled_from(SETTINGS), st.text())
def test_no_text_crashes_a_parser(setting: object, text: str) -> None:
    try:
        set_value(ChatSettings(), setting.name, text)  # type: ignore[attr-defined]
    except ChatError as error:
        assert str(error).endswith(".")
