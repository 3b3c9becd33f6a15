"""The line under the prompt."""

from __future__ import annotations

from typing import Any

import pytest

from qwen3app.chat.backend import TurnStats
from qwen3app.chat.session import ChatSession
from qwen3app.chat.status_bar import status_line


@pytest.fixture
def asked(session: ChatSession) -> ChatSession:
    session.messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    session.stats = TurnStats(prompt_tokens=80, tokens=21, seconds=3, first_seconds=1, decode_seconds=2)
    session.context_tokens = 101
    return session


def test_what_is_known_is_shown(asked: ChatSession) -> None:
    assert status_line(asked, 80) == "tiny · context 101 of 1,000 (10%) · 10.0 tok/s · KV 6.3%"


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        (50, "tiny · context 101 of 1,000 (10%) · 10.0 tok/s"),
        (41, "context 101 of 1,000 (10%) · 10.0 tok/s"),
        (30, "context 101 of 1,000 (10%)"),
        (11, "context 101"),
        (0, ""),
    ],
)
def test_a_narrow_window_drops_what_matters_least(asked: ChatSession, columns: int, line: str) -> None:
    assert status_line(asked, columns) == line


def test_before_the_first_answer_and_after_undo(asked: ChatSession) -> None:
    asked.undo()
    assert status_line(asked, 80) == "tiny · context 0 of 1,000 (0%) · KV 0%"
    asked.replace([{"role": "user", "content": "xyz"}, {"role": "assistant", "content": "y"}])
    assert status_line(asked, 80) == "tiny · context 4 of 1,000 (0.4%) · KV 0.2%"
    asked.context_tokens = None
    assert status_line(asked, 80) == "tiny · context ? of 1,000"


def test_rounds_are_put_together(session: ChatSession, model: Any) -> None:
    stats = TurnStats(prompt_tokens=10, tokens=5, seconds=1, first_seconds=0.5, decode_seconds=0.4, finish="tool_calls")
    stats.add(TurnStats(prompt_tokens=30, tokens=7, seconds=2, first_seconds=0.1, decode_seconds=0.6, finish="stop"))
    assert (stats.prompt_tokens, stats.tokens, stats.seconds, stats.first_seconds) == (30, 12, 3, 0.5)
    assert stats.tokens_per_second == 10.0 and stats.finish == "stop" and stats.context_tokens == 37
