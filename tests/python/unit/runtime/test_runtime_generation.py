"""Generations over a scripted engine: text, ends, cancels, counts."""

from __future__ import annotations

import asyncio
import gc
import math
import weakref
from collections.abc import Awaitable, Callable

import pytest
from fake_engine import FakeEngine, Reply, endless, make_info
from hypothesis import given
from hypothesis import strategies as st
from patience import PATIENCE, until
from serving import TextParts, content_of, read

from qwen3app.abi import EngineRequest, FinishCode
from qwen3app.abi.types import EventBatch
from qwen3app.errors import ContextLengthError, EngineError, GenerationError, RequestError, Status
from qwen3app.runtime import Generation, GenerationParams, Runtime
from qwen3app.runtime.generation import Alternatives
from qwen3app.text.generation_config import SamplingDefaults

Start = Callable[..., Awaitable[Runtime]]


def says(parts: TextParts, text: str, end: bool = True) -> Reply:
    """An engine that answers with a text and the EOS token."""
    ids = parts.tokenizer.encode_raw(text) + ([parts.tokenizer.eos_ids[-1]] if end else [])
    return lambda request, sample: ids


async def test_text_usage_and_reason(start: Start, text_parts: TextParts) -> None:
    engine = FakeEngine(says(text_parts, "Hello, wörld 👩‍👩‍👧‍👦!"), step=0.001)
    runtime = await start(engine)
    generation = runtime.generate([1, 2, 3], GenerationParams())
    deltas = await read(generation)
    assert content_of(deltas) == "Hello, wörld 👩‍👩‍👧‍👦!"
    assert [delta.finish_reason for delta in deltas][-1] == "stop"
    assert sum(delta.finish_reason is not None for delta in deltas) == 1
    assert all("\ufffd" not in delta.content for delta in deltas)
    n_ids = len(text_parts.tokenizer.encode_raw("Hello, wörld 👩‍👩‍👧‍👦!"))
    assert (generation.usage.prompt_tokens, generation.usage.cached_tokens) == (3, 3)
    assert generation.usage.completion_tokens == n_ids + 1  # the EOS token counts, as in the engine
    assert generation.timings.total is not None and generation.timings.total > 0
    assert runtime.n_active == 0
    assert not engine.cancelled  # nothing is aborted after a normal end (B86)


async def test_b61_every_eos_of_the_tokenizer_reaches_the_engine(start: Start, text_parts: TextParts) -> None:
    tokenizer = text_parts.tokenizer
    for eos in tokenizer.eos_ids:
        engine = FakeEngine(lambda request, sample, eos=eos: [*tokenizer.encode_raw("ab"), eos, 5, 6])
        runtime = await start(engine)
        deltas = await read(runtime.generate([1], GenerationParams()))
        assert content_of(deltas) == "ab"
        assert deltas[-1].finish_reason == "stop"
        assert set(engine.requests[1].stop_ids) == set(tokenizer.eos_ids)


async def test_ignore_eos_goes_on_and_hides_the_token(start: Start, text_parts: TextParts) -> None:
    tokenizer = text_parts.tokenizer
    ids = [*tokenizer.encode_raw("ab"), tokenizer.eos_ids[0], *tokenizer.encode_raw("cd")]
    engine = FakeEngine(lambda request, sample: ids)
    deltas = await read((await start(engine)).generate([1], GenerationParams(ignore_eos=True, max_tokens=len(ids))))
    assert content_of(deltas) == "abcd"
    assert deltas[-1].finish_reason == "length"
    assert engine.requests[1].stop_ids == ()


async def test_stop_token_ids(start: Start, text_parts: TextParts) -> None:
    ids = text_parts.tokenizer.encode_raw("one two")
    stop = text_parts.tokenizer.encode_raw("!")[0]
    engine = FakeEngine(lambda request, sample: [*ids, stop, *ids])
    deltas = await read((await start(engine)).generate([1], GenerationParams(stop_token_ids=[stop])))
    assert content_of(deltas) == "one two"
    assert (deltas[-1].finish_reason, deltas[-1].matched_stop) == ("stop", stop)


@pytest.mark.parametrize("at_once", [True, False])
async def test_b53_b55_stop_strings_cancel_the_sample(start: Start, text_parts: TextParts, at_once: bool) -> None:
    engine = FakeEngine() if at_once else endless(0.001)
    ids = text_parts.tokenizer.encode_raw(" delta epsilon zeta eta theta iota kappa")
    engine.reply = lambda request, sample: [*ids, text_parts.tokenizer.eos_ids[-1]] if at_once else ids + [70] * 10_000
    runtime = await start(engine)
    generation = runtime.generate([1], GenerationParams(stop=[" zeta eta theta"]))
    deltas = await read(generation)
    assert content_of(deltas) == " delta epsilon"
    assert (deltas[-1].finish_reason, deltas[-1].matched_stop) == ("stop", " zeta eta theta")
    # counted up to the token that completed the stop string, however the tokens arrived
    until_stop = text_parts.tokenizer.encode_raw(" delta epsilon zeta eta theta")
    assert generation.usage.completion_tokens == len(until_stop)
    assert generation.usage.cached_tokens == 3
    if not at_once:
        assert engine.cancelled == [(1, 0)]
    assert runtime.n_active == 0 and not engine.open_samples


async def test_include_stop(start: Start, text_parts: TextParts) -> None:
    engine = FakeEngine(says(text_parts, "one two three"))
    deltas = await read((await start(engine)).generate([1], GenerationParams(stop=["two"], include_stop=True)))
    assert content_of(deltas) == "one two"


async def test_reasoning_is_split(start: Start, text_parts: TextParts) -> None:
    engine = FakeEngine(says(text_parts, "<think>\nhm, hm\n</think>\n\nanswer"))
    runtime = await start(engine)
    generation = runtime.generate([1], GenerationParams(), split_reasoning=True)
    deltas = await read(generation)
    assert "".join(delta.reasoning for delta in deltas).strip() == "hm, hm"
    assert content_of(deltas) == "answer"
    assert generation.usage.reasoning_tokens == runtime.observations.reasoning_tokens > 0


async def test_b26_cut_inside_a_thought_is_reasoning_only(start: Start, text_parts: TextParts) -> None:
    engine = FakeEngine(says(text_parts, "<think>\none two three four five six", end=False))
    generation = (await start(engine)).generate([1], GenerationParams(max_tokens=5), split_reasoning=True)
    deltas = await read(generation)
    assert content_of(deltas) == "" and "".join(delta.reasoning for delta in deltas)
    assert deltas[-1].finish_reason == "length"


async def test_b66_samples_have_their_own_choices(start: Start, text_parts: TextParts) -> None:
    tokenizer = text_parts.tokenizer
    engine = FakeEngine(lambda request, sample: [*tokenizer.encode_raw(f"sample {sample}"), tokenizer.eos_ids[0]])
    generation = (await start(engine)).generate([1, 2], GenerationParams(n=4, seed=7))
    deltas = await read(generation)
    assert [content_of(deltas, i) for i in range(4)] == [f"sample {i}" for i in range(4)]
    assert sorted(delta.choice for delta in deltas if delta.finish_reason) == [0, 1, 2, 3]
    assert generation.usage.prompt_tokens == 2  # the shared prompt counts once
    assert generation.usage.cached_tokens == 3
    assert engine.requests[1].seed == 7 and engine.requests[1].n == 4
    assert generation.finish_reasons == ["stop"] * 4


async def test_many_prompts_are_one_stream(start: Start, text_parts: TextParts) -> None:
    tokenizer = text_parts.tokenizer

    def reply(request: EngineRequest, sample: int) -> list[int]:
        return [*tokenizer.encode_raw(f"p{request.prompt[0]}s{sample}"), tokenizer.eos_ids[0]]

    generation = (await start(FakeEngine(reply))).generate_batch([[1], [2], [3]], GenerationParams(n=2))
    deltas = await read(generation)
    assert [content_of(deltas, i) for i in range(6)] == ["p1s0", "p1s1", "p2s0", "p2s1", "p3s0", "p3s1"]
    assert generation.usage.prompt_tokens == 3 and generation.usage.cached_tokens == 9


async def test_a_batch_is_taken_as_a_whole_or_not_at_all(start: Start) -> None:
    engine = FakeEngine()
    engine.max_queue = 2
    runtime = await start(engine)
    with pytest.raises(EngineError) as caught:
        runtime.generate_batch([[1], [2], [3]], GenerationParams())
    assert caught.value.status == Status.QUEUE_FULL
    assert str(caught.value) == "The queue has no room for this request (--max-queue is 1024); try again later."
    await until(lambda: not engine.open_samples and runtime.n_active == 0)
    assert engine.cancelled == [(1, -1), (2, -1)]


async def test_other_tasks_have_their_turns_while_many_prompts_are_begun(start: Start, text_parts: TextParts) -> None:
    engine = FakeEngine(says(text_parts, "a"))
    runtime = await start(engine)
    begun: list[int] = []

    async def look() -> None:
        while True:
            begun.append(len(engine.requests))
            await asyncio.sleep(0)

    looking = asyncio.create_task(look())
    generation = await runtime.generate_in_turns([[1]] * 100, GenerationParams(n=2))
    assert runtime.n_active == 1 and len(engine.requests) == 100
    looking.cancel()
    assert {16, 32, 48, 64, 80, 96} <= set(begun)
    deltas = await read(generation)
    assert [content_of(deltas, i) for i in range(200)] == ["a"] * 200
    assert runtime.n_active == 0 and not engine.cancelled


@pytest.mark.parametrize("how", ["cancelled", "full", "failed", "closed"])
async def test_a_batch_that_is_not_begun_to_its_end_leaves_nothing(start: Start, how: str) -> None:
    engine = FakeEngine()
    runtime = await start(engine)
    beginning = asyncio.create_task(runtime.generate_in_turns([[1]] * 200, GenerationParams()))
    while not engine.requests:
        await asyncio.sleep(0)
    n = len(engine.requests)
    assert 0 < n < 200 and runtime.n_active == 1
    expected: type[BaseException] = EngineError
    if how == "cancelled":
        beginning.cancel()
        expected = asyncio.CancelledError
    elif how == "full":
        engine.max_queue = n
    elif how == "failed":
        engine.fail("CUDA error")
        engine.submit_error = EngineError(Status.DEVICE_ERROR, "CUDA error")
    else:
        engine.submit_error = EngineError(Status.CLOSED, "closing")
    with pytest.raises(expected):
        await beginning
    assert engine.cancelled == [(i + 1, -1) for i in range(n)]
    assert not runtime._routes and runtime.n_active == 0


async def test_logprobs_and_prompt_logprobs(start: Start, text_parts: TextParts) -> None:
    engine = FakeEngine(says(text_parts, "a b"))
    params = GenerationParams(logprobs=True, top_logprobs=2, prompt_logprobs=True)
    generation = (await start(engine)).generate([7, 8, 9], params)
    first = await anext(generation)
    prompt = generation.prompt_logprobs
    assert prompt is not None and [info.id for info in prompt] == [7, 8, 9]  # complete before the first delta
    assert math.isnan(prompt[0].logprob) and not prompt[0].top
    assert list(prompt[1].top) == [(8, -0.5), (9, -1.5)]
    deltas = first + await read(generation)
    infos = [info for delta in deltas for info in delta.tokens or []]
    assert [info.id for info in infos] == text_parts.tokenizer.encode_raw("a b")  # without the EOS token
    assert all(info.top[0] == (info.id, -0.5) and len(info.top) == 2 for info in infos)
    plain = (await start(FakeEngine(says(text_parts, "a")))).generate([1], GenerationParams())
    assert plain.prompt_logprobs is None
    assert all(delta.tokens is None for delta in await read(plain))


async def test_b64_scoring_a_prompt_generates_nothing(start: Start) -> None:
    generation = (await start(FakeEngine())).generate([1, 2], GenerationParams(max_tokens=0, prompt_logprobs=True))
    deltas = await read(generation)
    assert [(delta.content, delta.finish_reason) for delta in deltas] == [("", "length")]
    assert generation.usage.completion_tokens == 0
    assert generation.timings.time_to_first_token is None


async def test_everything_that_waits_comes_at_once(start: Start, text_parts: TextParts) -> None:
    engine = FakeEngine()
    generation = (await start(engine)).generate([1], GenerationParams())
    ids = text_parts.tokenizer.encode_raw("one two three")
    for token in ids:
        engine.emit(1, 0, [token])
    await until(lambda: len(generation._choices[0].pending) == len(ids))
    deltas = await anext(generation)
    assert [delta.content for delta in deltas] == ["one two three"]
    engine.finish(1, 0, FinishCode.LENGTH)
    assert [delta.finish_reason for delta in await read(generation)] == ["length"]
    with pytest.raises(StopAsyncIteration):
        await anext(generation)


async def test_b86_leaving_cancels_in_the_engine(start: Start) -> None:
    engine = endless()
    runtime = await start(engine)
    left = runtime.generate([1], GenerationParams())
    await anext(left)
    await left.aclose()
    await left.aclose()  # twice is harmless
    async with runtime.generate([1], GenerationParams()) as scoped:
        await anext(scoped)
    third = runtime.generate([1], GenerationParams())
    reader = asyncio.create_task(read(third))
    await until(lambda: third.usage.completion_tokens)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    await until(lambda: not engine.open_samples and runtime.n_active == 0)
    assert engine.cancelled == [(1, -1), (2, -1), (3, -1)]
    assert runtime.observations.finished == {"abort": 3}


async def test_cancel_ends_the_stream_with_abort(start: Start) -> None:
    engine = endless()
    generation = (await start(engine)).generate([1], GenerationParams())
    await anext(generation)
    generation.cancel()
    deltas = await read(generation)
    assert deltas[-1].finish_reason == "abort"
    generation.cancel()  # late is harmless
    assert engine.cancelled == [(1, -1)]


async def test_wake_gives_an_empty_list(start: Start) -> None:
    engine = FakeEngine()
    generation = (await start(engine)).generate([1], GenerationParams())
    waiting = asyncio.ensure_future(anext(generation))
    await asyncio.sleep(0.02)
    generation.wake()
    assert await waiting == []


async def test_b89_a_failed_engine_reaches_every_reader(start: Start) -> None:
    engine = FakeEngine()
    failures: list[str] = []
    runtime = await start(engine, on_failure=failures.append)
    generations = [runtime.generate([1], GenerationParams()) for _ in range(3)]
    engine.emit(1, 0, [70])
    readers = [asyncio.create_task(read(generation)) for generation in generations]
    await asyncio.sleep(0.02)
    engine.fail("CUDA error: an illegal memory access was encountered")
    results = await asyncio.gather(*readers, return_exceptions=True)
    assert all(isinstance(result, GenerationError) and "illegal memory" in str(result) for result in results)
    assert len(failures) == 1 and runtime.failure == failures[0] and runtime.n_active == 0
    with pytest.raises(EngineError) as caught:
        runtime.generate([1], GenerationParams())
    assert caught.value.status == Status.DEVICE_ERROR
    generations[0].cancel()


async def test_error_events_deliver_the_sound_tokens_first(start: Start, text_parts: TextParts) -> None:
    engine = FakeEngine()
    runtime = await start(engine)
    generation = runtime.generate([1], GenerationParams())
    engine.emit(1, 0, text_parts.tokenizer.encode_raw("so far"))
    engine.failed = True
    engine.finish(1, 0, FinishCode.ERROR)
    deltas: list[str] = []
    with pytest.raises(GenerationError, match=r"^The engine's device failed\.$"):
        async for batch in generation:
            deltas += [delta.content for delta in batch]
    assert deltas == ["so far"]
    assert runtime.failure is not None


async def test_a_request_that_fails_alone_has_broken_weights(start: Start) -> None:
    engine = FakeEngine()
    runtime = await start(engine)
    generation, other = runtime.generate([1], GenerationParams()), runtime.generate([1], GenerationParams())
    engine.finish(1, 0, FinishCode.ERROR)
    with pytest.raises(GenerationError, match="no finite numbers"):
        await read(generation)
    assert runtime.failure is None
    other.cancel()


async def test_submit_failure_is_a_failed_engine(start: Start) -> None:
    engine = FakeEngine()
    runtime = await start(engine)
    engine.submit_error = EngineError(Status.DEVICE_ERROR, "gone")
    with pytest.raises(EngineError):
        runtime.generate([1], GenerationParams())
    assert runtime.failure == "gone"


async def test_an_unreadable_event_is_a_failed_engine(start: Start) -> None:
    engine = FakeEngine()
    runtime = await start(engine)
    generation = runtime.generate([1], GenerationParams())
    engine.poll = lambda timeout_ms: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    engine.emit(1, 0, [5])
    with pytest.raises(GenerationError, match="could not be read"):
        await read(generation)


async def test_b71_lengths_are_refused_with_three_numbers(start: Start) -> None:
    engine = FakeEngine(lambda request, sample: [5] * 10, info=make_info(max_context=32))
    runtime = await start(engine)
    exact = runtime.generate([1] * 22, GenerationParams(max_tokens=10))  # exactly full is allowed
    assert (await read(exact))[-1].finish_reason == "length"
    with pytest.raises(ContextLengthError) as caught:
        runtime.generate([1] * 22, GenerationParams(max_tokens=11), param="messages")
    assert caught.value.code == "context_length_exceeded" and caught.value.param == "messages"
    assert all(number in str(caught.value) for number in ("32", "22", "11"))
    for length, param in ((31, "max_tokens"), (32, "messages")):
        with pytest.raises(ContextLengthError) as caught:
            runtime.generate([1] * length, GenerationParams(max_tokens=11), param="messages", length_param="max_tokens")
        assert caught.value.param == param
    for length in (32, 33, 96):
        with pytest.raises(ContextLengthError):
            runtime.generate([1] * length, GenerationParams())
    await read(runtime.generate([1] * 31, GenerationParams()))
    await read(runtime.generate([1] * 32, GenerationParams(max_tokens=0, prompt_logprobs=True)))
    with pytest.raises(RequestError, match="min_tokens"):
        runtime.generate([1] * 30, GenerationParams(min_tokens=3))
    with pytest.raises(RequestError, match="no tokens"):
        runtime.generate([], GenerationParams())
    engine.submit_error = EngineError(Status.CONTEXT_OVERFLOW, "too long for the pool")
    with pytest.raises(ContextLengthError):
        runtime.generate([1], GenerationParams())
    engine.submit_error = EngineError(Status.INVALID_ARGUMENT, "request.top_p is odd")
    with pytest.raises(RequestError, match="top_p is odd"):
        runtime.generate([1], GenerationParams())


async def test_defaults_come_from_the_model(start: Start, text_parts: TextParts) -> None:
    engine = FakeEngine(says(text_parts, "a"))
    runtime = await start(engine, SamplingDefaults(0.6, 0.95, 20, 0.1, 1.05))
    await read(runtime.generate([1], GenerationParams()))
    await read(runtime.generate([1], GenerationParams(temperature=0, top_p=0.5, top_k=-1, min_p=0.0, seed=-1)))
    first, second = engine.requests[1], engine.requests[2]
    assert (first.temperature, first.top_p, first.top_k, first.min_p) == (0.6, 0.95, 20, 0.1)
    assert first.repetition_penalty == 1.05
    assert (second.temperature, second.top_p, second.top_k, second.min_p) == (0, 0.5, 0, 0)
    assert second.seed == 2**64 - 1
    assert first.max_tokens == -1


async def test_stop_drains_then_cancels(start: Start, text_parts: TextParts) -> None:
    engine = FakeEngine(says(text_parts, "short"), step=0.02)
    runtime = await start(engine)
    reader = asyncio.create_task(read(runtime.generate([1], GenerationParams())))
    await asyncio.sleep(0)
    await runtime.stop(PATIENCE)
    assert (await reader)[-1].finish_reason == "stop"
    with pytest.raises(EngineError) as caught:
        runtime.generate([1], GenerationParams())
    assert caught.value.status == Status.CLOSED

    second = await start(endless())
    reader = asyncio.create_task(read(second.generate([1], GenerationParams())))
    await asyncio.sleep(0)
    await second.stop(0.1)
    with pytest.raises(EngineError, match="cut this answer off") as caught:  # half an answer does not look like a whole
        await reader
    assert caught.value.status == Status.CLOSED
    await second.stop()  # twice is harmless


async def test_a_closed_engine_ends_the_readers(start: Start) -> None:
    engine = FakeEngine()
    runtime = await start(engine)
    generation = runtime.generate([1], GenerationParams())
    engine.close()
    with pytest.raises(GenerationError):
        await read(generation)


async def test_observations(start: Start, text_parts: TextParts) -> None:
    engine = FakeEngine(says(text_parts, "one two three four"), step=0.002)
    runtime = await start(engine)
    await read(runtime.generate([1, 2, 3], GenerationParams(max_tokens=50)))
    seen = runtime.observations
    n_tokens = len(text_parts.tokenizer.encode_raw("one two three four")) + 1
    assert seen.generation_tokens.sum == n_tokens and seen.generation_tokens.count == 1
    assert seen.inter_token.count == n_tokens - 1
    assert seen.inter_token.sum == pytest.approx((n_tokens - 1) * 0.002, rel=0.01)
    assert seen.time_to_first_token.count == seen.e2e.count == seen.queue.count == seen.prefill.count == 1
    assert seen.params_max_tokens.sum == 50 and seen.prompt_tokens.sum == 3
    buckets = seen.inter_token.buckets()
    assert buckets[-1] == ("+Inf", n_tokens - 1) and dict(buckets)["0.001"] == 0


async def test_books_say_what_readers_were_told(start: Start, text_parts: TextParts) -> None:
    """A stop string ends an answer when the engine may be further; its FINISHED says something else then."""
    encode = text_parts.tokenizer.encode_raw
    whole = encode("one two three four")
    engine = FakeEngine(says(text_parts, "one two three four", end=False))
    runtime = await start(engine)
    seen = runtime.observations
    params = GenerationParams(max_tokens=len(whole), stop=("two",), n=2)
    generation = runtime.generate_batch([[1], [2, 3], [4, 5, 6]], params)
    while engine.open_samples:  # all is there before anything is read
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.05)
    deltas = await read(generation)
    assert [content_of(deltas, choice) for choice in range(6)] == ["one "] * 6
    n_tokens = generation.usage.completion_tokens
    assert n_tokens < 6 * len(whole)
    assert seen.finished == {"stop": 6}
    assert (seen.generation_tokens.count, seen.generation_tokens.sum) == (6, n_tokens)
    assert (seen.max_generation_tokens.count, seen.max_generation_tokens.sum) == (3, n_tokens / 2)
    # each prompt is a request
    assert (seen.prompt_tokens.count, seen.prompt_tokens.sum) == (3, 6)
    assert (seen.params_n.count, seen.params_n.sum) == (3, 6)
    assert seen.e2e.count == seen.queue.count == seen.prefill.count == seen.time_to_first_token.count == 3
    assert seen.params_max_tokens.sum == 3 * len(whole)


async def test_books_of_those_who_left_and_of_a_dead_engine(start: Start) -> None:
    engine = FakeEngine(lambda request, sample: [5] * 3)
    runtime = await start(engine)
    unread = runtime.generate([1], GenerationParams(max_tokens=3))
    while runtime.n_active:
        await asyncio.sleep(0.001)
    await unread.aclose()
    await unread.aclose()
    assert runtime.observations.finished == {"length": 1}  # the engine had ended it
    assert runtime.observations.generation_tokens.sum == 3

    silent = FakeEngine()
    second = await start(silent)
    running = second.generate([1], GenerationParams(max_tokens=3, n=2))
    silent.finish(1, 0, FinishCode.STOP)
    await anext(running)
    silent.fail()
    with pytest.raises(GenerationError):
        await read(running)
    assert second.observations.finished == {"stop": 1, "error": 1}


async def test_readers_run_before_more_is_taken(start: Start) -> None:
    """What a busy loop has not taken waits in the engine, which learns by that how far its host is."""
    engine = FakeEngine()
    runtime = await start(engine)
    generations = [runtime.generate([1], GenerationParams()) for _ in range(3)]
    n_read = 0
    taken: list[tuple[int, int]] = []  # events of a poll, deltas that had been read before it
    poll = engine.poll

    def counting_poll(timeout_ms: int) -> EventBatch:
        batch = poll(timeout_ms)
        if batch.events:
            taken.append((len(batch.events), n_read))
        return batch

    async def count(generation: Generation) -> None:
        nonlocal n_read
        async for deltas in generation:
            n_read += len(deltas)

    engine.poll = counting_poll  # type: ignore[method-assign]
    readers = [asyncio.create_task(count(generation)) for generation in generations]
    await asyncio.sleep(0)
    for identity in (1, 2, 3):
        engine.emit(identity, 0, [70])
    while not taken:
        await asyncio.sleep(0)
    for identity in (1, 2, 3):
        engine.finish(identity, 0, FinishCode.STOP)
    await asyncio.gather(*readers)
    assert taken == [(3, 0), (3, 3)] and n_read == 6


async def test_what_is_over_leaves_no_cycles(start: Start) -> None:
    """The collector's pauses are delays of all streams, so requests leave nothing to it."""
    runtime = await start(FakeEngine(lambda request, sample: [70, 71, 72]))
    params = GenerationParams(n=2, stop=("never",), max_tokens=3)
    await read(runtime.generate_batch([[1], [2]], params))
    gc.collect()
    gc.disable()
    try:
        generation = runtime.generate_batch([[1], [2]], params)
        gone = weakref.ref(generation)
        await read(generation)
        del generation
        await asyncio.sleep(0)
        assert gone() is None
    finally:
        gc.enable()


@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.floats(allow_nan=False)), max_size=30), st.integers(0, 40))
def test_alternatives_are_their_pairs(pairs: list[tuple[int, float]], n: int) -> None:
    held = Alternatives(pairs)
    assert list(held) == pairs and len(held) == len(pairs) and held[:n] == pairs[:n]
    assert [held[i] for i in range(len(pairs))] == pairs
