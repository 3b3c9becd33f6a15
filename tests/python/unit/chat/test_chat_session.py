"""The conversation: what is asked of the runtime, what is kept, what is counted."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import pytest

from qwen3app.chat.backend import Call, Piece, TurnStats
from qwen3app.chat.errors import ContextFull
from qwen3app.chat.session import ChatSession
from qwen3app.errors import GenerationError
from qwen3app.text.errors import TextError


async def ask(session: ChatSession, text: str) -> list[Piece]:
    async with aclosing(session.ask(text)) as pieces:
        return [piece async for piece in pieces]


async def test_an_answer_streams_and_enters_the_history(session: ChatSession, runtime: Any, model: Any) -> None:
    runtime.script = [("Hmm", ""), (" ok", ""), ("", "Hi"), ("", "!")]
    pieces = await ask(session, "Hello")
    assert pieces == [Piece("thought", "Hmm"), Piece("thought", " ok"), Piece("answer", "Hi"), Piece("answer", "!")]
    assert session.messages == [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi!", "reasoning_content": "Hmm ok"},
    ]
    stats = session.stats
    assert (stats.tokens, stats.prompt_tokens, stats.cached_tokens) == (4, 5, 2)
    assert stats.finish == "stop" and not stats.context_full and not stats.is_empty
    assert stats.first_seconds is not None and 0 <= stats.first_seconds <= stats.seconds
    await ask(session, "More")
    messages, kwargs = model.template.calls[-1]
    assert [message["content"] for message in messages] == ["Hello", "Hi!", "More"]
    assert kwargs == {"enable_thinking": True}


async def test_an_answer_without_words_is_noticed(session: ChatSession, runtime: Any) -> None:
    for script, is_empty in (([("Hmm", "")], True), ([("", "\n\n")], True), ([], True), ([("", "Hi")], False)):
        runtime.script = script
        await ask(session, "Hello")
        assert session.stats.is_empty == is_empty
    runtime.script, runtime.finish = [("Hmm", "")], "length"
    await ask(session, "Hello")
    assert not session.stats.is_empty, "it was cut, which is another sentence"


async def test_settings_reach_the_runtime(session: ChatSession, runtime: Any, model: Any) -> None:
    session.think = False
    session.settings.system = "Be brief."
    session.settings.temperature = 0.0
    session.settings.seed = 5
    session.settings.presence_penalty = 1.5
    session.settings.max_tokens = 10
    await ask(session, "Hello")
    messages, kwargs = model.template.calls[0]
    assert messages[0] == {"role": "system", "content": "Be brief."}
    assert kwargs == {"enable_thinking": False}
    params = runtime.params[0]
    assert (params.temperature, params.seed, params.presence_penalty, params.max_tokens) == (0.0, 5, 1.5, 10)
    assert params.top_p is None  # the model's own default, which the runtime fills in
    assert session.effective("top_p") == 0.95 and session.effective("temperature") == 0.0
    assert session.effective("seed") == 5 and session.effective("min_p") is None


async def test_without_a_limit_an_answer_may_fill_the_context(session: ChatSession, runtime: Any) -> None:
    runtime.finish = "length"
    await ask(session, "x" * 990)
    assert runtime.params[0].max_tokens == 10
    assert session.stats.context_full
    session.reset()
    session.settings.max_tokens = 10_000
    await ask(session, "x" * 900)
    assert runtime.params[1].max_tokens == 100


async def test_a_cut_by_max_tokens_is_not_a_full_context(session: ChatSession, runtime: Any) -> None:
    runtime.finish = "length"
    session.settings.max_tokens = 2
    await ask(session, "Hello")
    assert session.stats.finish == "length" and not session.stats.context_full


@pytest.mark.parametrize("length", [1000, 1001, 3000])
async def test_a_full_context_is_one_sentence_with_advice(
    session: ChatSession, runtime: Any, model: Any, length: int
) -> None:
    alone = f"The question has {length} tokens and the context holds 1000: ask something shorter"
    with pytest.raises(ContextFull, match=rf"^{alone}\.$"):
        await ask(session, "x" * length)
    await ask(session, "x" * 999)
    with pytest.raises(ContextFull, match=r"^The conversation has 1011 tokens .*: use /reset to begin a new one\.$"):
        await ask(session, "y")
    with pytest.raises(ContextFull, match=rf"^{alone}\.$"):  # what no new conversation would change
        await ask(session, "x" * length)
    model.info.model_max_context = 40_960
    with pytest.raises(ContextFull, match=rf"^{alone}, or start the chat with a larger --max-ctx\.$"):
        await ask(session, "x" * length)
    with pytest.raises(ContextFull, match=r"or start the chat with a larger --max-ctx\.$"):
        await ask(session, "y")
    model.kv_limits = True
    with pytest.raises(ContextFull, match=r"or start the chat with a larger --kv-gb\.$"):
        await ask(session, "y")
    session.settings.system = "Be kind."
    with pytest.raises(ContextFull, match=r"^The question with the system prompt has 1008 tokens"):
        await ask(session, "x" * 1000)
    assert len(runtime.generations) == 1
    assert [message["role"] for message in session.messages] == ["user", "assistant"]


async def test_stop_keeps_the_partial_answer(session: ChatSession, runtime: Any) -> None:
    runtime.hang = True
    pieces = []
    async with aclosing(session.ask("Hello")) as stream:
        async for piece in stream:
            pieces.append(piece)
            if len(pieces) == 2:
                session.stop()
    assert session.stats.finish == "abort"
    assert session.messages[-1] == {"role": "assistant", "content": "Hello there"}
    assert runtime.generations[0].closed


async def test_leaving_early_keeps_the_partial_answer_and_cancels(session: ChatSession, runtime: Any) -> None:
    async with aclosing(session.ask("Hello")) as stream:
        async for _ in stream:
            break
    assert session.messages[-1]["content"] == "Hello"
    assert runtime.generations[0].cancelled.is_set()
    assert session.stats.tokens == 1
    session.stop()  # nothing runs: nothing happens


async def test_a_question_without_any_answer_is_taken_back(session: ChatSession, runtime: Any) -> None:
    runtime.script = []
    await ask(session, "Hello")
    assert session.messages == []
    assert session.stats.first_seconds is not None  # the end itself arrived
    with pytest.raises(TextError):
        await ask(session, "broken")
    assert session.messages == [] and len(runtime.generations) == 1


async def test_a_failing_engine_keeps_what_came(session: ChatSession, runtime: Any) -> None:
    runtime.fails = True
    with pytest.raises(GenerationError):
        await ask(session, "Hello")
    assert session.messages[-1]["content"] == "Hello there"
    assert session.stats.tokens == 2


async def test_an_answer_that_stayed_a_thought_is_kept(session: ChatSession, runtime: Any) -> None:
    runtime.script = [("thinking", "")]
    runtime.finish = "length"
    await ask(session, "Hello")
    assert session.messages[-1] == {"role": "assistant", "content": "", "reasoning_content": "thinking"}
    assert session.stats.cut_in_thought


@pytest.mark.parametrize(
    ("script", "think", "finish", "cut"),
    [
        ([("thinking", ""), ("", "\n")], True, "length", True),
        ([("thinking", "")], False, "length", True),  # a model that knows no switch
        ([("thinking", "")], True, "stop", False),
        ([("thinking", ""), ("", "Hi")], True, "length", False),
        ([("", "")], True, "length", True),  # the thought's opening tag alone
        ([("", "")], False, "length", False),
        ([("thinking", "", Call("c", "add", "{}"))], True, "length", False),
    ],
)
async def test_a_cut_in_the_thought_is_told(
    session: ChatSession, runtime: Any, script: list[Any], think: bool, finish: str, cut: bool
) -> None:
    async def run_call(call: Call) -> str:
        session.stop()
        return ""

    session.run_call = run_call
    session.think = think
    runtime.script, runtime.finish = script, finish
    await ask(session, "Hello")
    assert session.stats.cut_in_thought is cut


def test_speed_counts_the_tokens_after_the_first() -> None:
    assert TurnStats(tokens=11, seconds=3.0, first_seconds=1.0).tokens_per_second == 5.0
    assert TurnStats(tokens=11, seconds=3.0, first_seconds=1.0, decode_seconds=0.5).tokens_per_second == 20.0
    assert TurnStats(tokens=1, seconds=3.0, first_seconds=1.0).tokens_per_second is None
    assert TurnStats(tokens=5, seconds=3.0).tokens_per_second is None
    assert TurnStats(tokens=5, seconds=1.0, first_seconds=1.0).tokens_per_second is None
