"""Thoughts that use up their budget: what closes them, what continues, and that arrival times change nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from fake_engine import FakeEngine, make_info
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import PATIENCE, until
from serving import TextParts, content_of, make_model, read

from qwen3app.abi import EngineRequest
from qwen3app.errors import EngineError, GenerationError, RequestError, Status
from qwen3app.runtime import GenerationParams, Runtime
from qwen3app.runtime.thought_budget import CLOSING_TEXT, ThoughtBudget

Start = Callable[..., Awaitable[Runtime]]
SENTENCE = CLOSING_TEXT.partition("\n</think>")[0]


def closing_of(parts: TextParts) -> list[int]:
    return parts.tokenizer.encode_raw(CLOSING_TEXT)


def thinker(
    parts: TextParts, thought: str, answer: str = "The answer."
) -> Callable[[EngineRequest, int], Sequence[int]]:
    """Thinks without end; behind the closing words it answers."""
    closing = closing_of(parts)
    thinks = parts.tokenizer.encode_raw(thought)
    answers = [*parts.tokenizer.encode_raw(answer), parts.tokenizer.eos_ids[0]]

    def reply(request: EngineRequest, sample: int) -> Sequence[int]:
        closed = list(request.prompt[-len(closing) :]) == closing
        return answers if closed else thinks

    return reply


THOUGHT = "<think>\n" + "one two three four " * 40


@pytest.mark.parametrize("step", [0.0, 0.001])
async def test_b37_the_thought_is_closed_and_answered(start: Start, text_parts: TextParts, step: float) -> None:
    engine = FakeEngine(thinker(text_parts, THOUGHT), step=step)
    runtime = await start(engine)
    generation = runtime.generate([5, 6], GenerationParams(thinking_budget=20), split_reasoning=True)
    deltas = await read(generation)
    ids = text_parts.tokenizer.encode_raw(THOUGHT)
    closing = closing_of(text_parts)
    thought = text_parts.tokenizer.decode(ids[1:21]).lstrip("\n")
    assert "".join(delta.reasoning for delta in deltas) == thought + SENTENCE
    assert content_of(deltas) == "The answer."
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == ["stop"]
    # a thought of exactly 20 tokens, and what the second request was given
    first, second = engine.requests[1], engine.requests[2]
    assert list(second.prompt) == [5, 6, *ids[:21], *closing]
    assert (second.n, second.max_tokens, second.priority) == (1, -1, first.priority - 1)
    answer = text_parts.tokenizer.encode_raw("The answer.")
    usage = generation.usage
    assert usage.prompt_tokens == 2 and usage.cached_tokens == 3  # of the first request
    assert usage.completion_tokens == 21 + len(closing) + len(answer) + 1
    assert usage.reasoning_tokens == 20 + len(closing) - 2  # all but </think> and the empty line
    assert runtime.n_active == 0 and not engine.open_samples
    assert runtime.observations.generation_tokens.sum == usage.completion_tokens
    timings = generation.timings
    assert timings.time_to_first_token is not None and timings.decode is not None and timings.decode >= 0


async def test_b37_budgets_around_the_thoughts_length(start: Start, text_parts: TextParts) -> None:
    """A thought that ends by itself within its budget, the last token included, is left alone."""
    text = "<think>\none two three\n</think>\n\nfour"
    ids = text_parts.tokenizer.encode_raw(text)
    close = text_parts.tokenizer.control_tokens["</think>"]
    n_thought = ids.index(close) - 1
    engine = FakeEngine(lambda request, sample: [*ids, text_parts.tokenizer.eos_ids[0]])
    runtime = await start(engine)
    generation = runtime.generate([5], GenerationParams(thinking_budget=n_thought + 1), split_reasoning=True)
    assert content_of(await read(generation)) == "four"
    assert len(engine.requests) == 1 and generation.usage.reasoning_tokens == n_thought
    # one that reaches it is closed behind its last token, although the model was about to close it
    generation = runtime.generate([5], GenerationParams(thinking_budget=n_thought), split_reasoning=True)
    deltas = await read(generation)
    assert len(engine.requests) == 3
    assert "".join(delta.reasoning for delta in deltas) == "one two three" + "\n" + SENTENCE
    # no thought, no budget
    generation = runtime.generate([5], GenerationParams(thinking_budget=1), split_reasoning=False)
    assert content_of(await read(generation)) == text


async def test_a_budget_of_zero_leaves_an_empty_thought(start: Start, text_parts: TextParts) -> None:
    empty = text_parts.tokenizer.encode_raw("<think>\n\n</think>\n\n")
    thinks = text_parts.tokenizer.encode_raw(THOUGHT)

    def reply(request: EngineRequest, sample: int) -> Sequence[int]:
        return text_parts.tokenizer.encode_raw("four") if list(request.prompt[-len(empty) :]) == empty else thinks

    engine = FakeEngine(reply)
    runtime = await start(engine)
    generation = runtime.generate([5], GenerationParams(thinking_budget=0), split_reasoning=True)
    deltas = await read(generation)
    assert content_of(deltas) == "four" and not any(delta.reasoning for delta in deltas)
    assert list(engine.requests[2].prompt) == [5, *empty]  # as the official template writes it


async def test_samples_have_their_own_thoughts_and_seeds(start: Start, text_parts: TextParts) -> None:
    long, short = thinker(text_parts, THOUGHT), text_parts.tokenizer.encode_raw("<think>\nhm\n</think>\n\nshort")
    eos = text_parts.tokenizer.eos_ids[0]

    def reply(request: EngineRequest, sample: int) -> Sequence[int]:
        return [*short, eos] if request.n == 3 and sample == 1 else long(request, sample)

    engine = FakeEngine(reply)
    runtime = await start(engine)
    params = GenerationParams(thinking_budget=8, n=3, seed=2**64 - 2, max_tokens=200, min_tokens=60, logprobs=True)
    generation = runtime.generate([5], params, split_reasoning=True)
    deltas = await read(generation)
    assert [content_of(deltas, choice) for choice in range(3)] == ["The answer.", "short", "The answer."]
    n_earlier = 9 + len(closing_of(text_parts))
    second, third = engine.requests[2], engine.requests[3]
    assert [second.seed, third.seed] == [2**64 - 2, 0]  # seed + sample, in 64 bits
    assert second.max_tokens == third.max_tokens == 200 - n_earlier
    assert second.min_tokens == max(60 - n_earlier, 0)
    # the tokens of a choice are one list, the closing words among them with certainty
    tokens = [info for delta in deltas if delta.choice == 0 for info in delta.tokens or ()]
    assert [info.id for info in tokens[9:n_earlier]] == closing_of(text_parts)
    assert {info.logprob for info in tokens[9:n_earlier]} == {0.0}
    assert {info.logprob for info in tokens[:9]} == {-0.5}


async def test_alternatives_keep_their_tokens(start: Start, text_parts: TextParts) -> None:
    """Output positions of the continuation begin at 0 again; what waits unread must not be mixed up."""
    engine = FakeEngine(thinker(text_parts, THOUGHT))
    runtime = await start(engine)
    params = GenerationParams(thinking_budget=8, top_logprobs=1)
    generation = runtime.generate([5], params, split_reasoning=True)
    await asyncio.sleep(0.2)  # everything waits
    tokens = [info for delta in await read(generation) for info in delta.tokens or ()]
    assert all(info.top[0][0] == info.id for info in tokens if info.top)
    assert sum(not info.top for info in tokens) == len(closing_of(text_parts))


@pytest.mark.parametrize("limit", ["max_tokens", "context"])
async def test_without_room_for_an_answer_the_thought_goes_on(start: Start, text_parts: TextParts, limit: str) -> None:
    n_closed = 9 + len(closing_of(text_parts))
    for room, closed in ((n_closed, False), (n_closed + 1, True)):
        info = make_info(max_context=1 + room) if limit == "context" else make_info()
        engine = FakeEngine(thinker(text_parts, THOUGHT), info)
        runtime = await start(engine)
        params = GenerationParams(thinking_budget=8, max_tokens=room if limit == "max_tokens" else None)
        generation = runtime.generate([5], params, split_reasoning=True)
        deltas = await read(generation)
        assert deltas[-1].finish_reason == "length"
        assert generation.usage.completion_tokens == room
        assert (SENTENCE in "".join(delta.reasoning for delta in deltas)) is closed
        assert bool(content_of(deltas)) is closed
        assert generation.usage.reasoning_tokens <= 8 + len(closing_of(text_parts))


async def test_a_character_is_finished_first(text_parts: TextParts) -> None:
    ids = text_parts.tokenizer.encode_raw("<think>\n" + "👩‍👩‍👧‍👦" * 3)
    for n in range(1, len(ids) - 4):
        budget = ThoughtBudget(text_parts.tokenizer, n, thinking=False)
        n_taken = next(i for i, token in enumerate(ids, 1) if budget.push(token)) - 1
        assert n <= n_taken <= n + 8
        assert "\ufffd" not in text_parts.tokenizer.decode(ids[: n_taken + 1])


async def test_a_full_queue_delays_the_answer_and_changes_nothing(start: Start, text_parts: TextParts) -> None:
    engine = FakeEngine(thinker(text_parts, THOUGHT), step=0.001)
    runtime = await start(engine)
    generation = runtime.generate([5], GenerationParams(thinking_budget=8), split_reasoning=True)
    engine.submit_error = EngineError(Status.QUEUE_FULL, "full")
    asyncio.get_running_loop().call_later(0.1, setattr, engine, "submit_error", None)
    deltas = await read(generation)
    assert content_of(deltas) == "The answer." and generation.timings.total is not None
    assert runtime.n_active == 0


async def test_leaving_between_the_two_requests(start: Start, text_parts: TextParts) -> None:
    engine = FakeEngine(thinker(text_parts, THOUGHT))
    runtime = await start(engine)
    generation = runtime.generate([5], GenerationParams(thinking_budget=8), split_reasoning=True)
    engine.submit_error = EngineError(Status.QUEUE_FULL, "full")
    await asyncio.sleep(0.05)
    generation.cancel()
    deltas = await asyncio.wait_for(read(generation), PATIENCE)
    assert deltas[-1].finish_reason == "abort"
    await until(lambda: runtime.n_active == 0 and not engine.open_samples and not runtime._routes)


@pytest.mark.parametrize("status", [Status.OUT_OF_MEMORY, Status.DEVICE_ERROR, Status.CLOSED])
async def test_b89_an_engine_that_refuses_the_rest(start: Start, text_parts: TextParts, status: Status) -> None:
    engine = FakeEngine(thinker(text_parts, THOUGHT))
    runtime = await start(engine)
    generation = runtime.generate([5], GenerationParams(thinking_budget=8), split_reasoning=True)
    engine.submit_error = EngineError(status, "no")
    with pytest.raises(GenerationError):
        await asyncio.wait_for(read(generation), PATIENCE)
    assert runtime.n_active == 0


async def test_cancel_behind_the_closed_thought(start: Start, text_parts: TextParts) -> None:
    thought = text_parts.tokenizer.encode_raw(THOUGHT)
    engine = FakeEngine(lambda request, sample: thought * 100, make_info(max_context=100 * len(thought)), step=0.01)
    runtime = await start(engine)
    generation = runtime.generate([5], GenerationParams(thinking_budget=2), split_reasoning=True)
    async for deltas in generation:
        if any(delta.content for delta in deltas):
            break
    generation.cancel()
    assert (await read(generation))[-1].finish_reason == "abort"
    await until(lambda: not engine.open_samples)
    assert (2, -1) in engine.cancelled


async def test_stop_strings_hold_for_the_answer(start: Start, text_parts: TextParts) -> None:
    engine = FakeEngine(thinker(text_parts, THOUGHT, "one two STOP three"), step=0.001)
    runtime = await start(engine)
    params = GenerationParams(thinking_budget=8, stop=("STOP", "user"))  # "user" is one of the closing words
    deltas = await read(runtime.generate([5], params, split_reasoning=True))
    assert content_of(deltas) == "one two "
    assert (deltas[-1].finish_reason, deltas[-1].matched_stop) == ("stop", "STOP")


async def test_a_negative_budget_is_refused(start: Start) -> None:
    runtime = await start(FakeEngine())
    with pytest.raises(RequestError, match="thinking_budget"):
        runtime.generate([5], GenerationParams(thinking_budget=-1), split_reasoning=True)


@given(
    thought=st.lists(
        st.sampled_from(["hm", "\n", " a b", "👩‍👩‍👧‍👦", "世界", "<think>", "</think>", "x" * 9]), max_size=12
    ),
    budget=st.integers(0, 12),
    thinking=st.booleans(),
    ends=st.booleans(),
    n=st.integers(1, 2),
    max_tokens=st.sampled_from([None, 5, 40, 60]),
)
@settings(max_examples=40)
def test_stream_equals_plain(
    text_parts: TextParts,
    thought: list[str],
    budget: int,
    thinking: bool,
    ends: bool,
    n: int,
    max_tokens: int | None,
) -> None:
    """The same requests with tokens that come one by one, and with all of them at once and read late."""
    text = ("" if thinking else "<think>\n") + "".join(thought)
    script = thinker(text_parts, text + "</think>\n\nend" * ends)

    async def run(step: float, late: float) -> object:
        engine = FakeEngine(script, step=step)
        runtime = Runtime(make_model(text_parts, engine))
        await runtime.start()
        params = GenerationParams(thinking_budget=budget, n=n, max_tokens=max_tokens, logprobs=True, seed=1)
        generation = runtime.generate([5], params, split_reasoning=True, thinking=thinking)
        await asyncio.sleep(late)
        deltas = await read(generation)
        await runtime.stop()
        usage = generation.usage
        mine = [[delta for delta in deltas if delta.choice == choice] for choice in range(n)]
        texts = [("".join(d.reasoning for d in each), "".join(d.content for d in each)) for each in mine]
        tokens = [[info.id for delta in each for info in delta.tokens or ()] for each in mine]
        counts = (usage.completion_tokens, usage.reasoning_tokens)
        return (
            texts,
            tokens,
            [each[-1].finish_reason for each in mine],
            counts,
            sorted(map(_key, engine.requests.values())),
        )

    def _key(request: EngineRequest) -> tuple[list[int], int]:
        return list(request.prompt), request.seed

    async def both() -> None:
        assert await run(0.001, 0.0) == await run(0.0, 0.05)

    asyncio.run(both())
