"""stream == plain in completions, field by field, for whatever way the engine's events arrive (chat:
test_server_splits.py); usage and timings."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterable
from typing import Any

import pytest
from fake_engine import FakeEngine
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import TextParts, deliver, events_of, make_model, serving

from qwen3app.abi import EngineRequest, Event, EventBatch
from qwen3app.runtime import ChoiceDelta, Generation, GenerationParams
from qwen3app.runtime.observations import Observations
from qwen3app.server.completions import CompletionChunks, CompletionReply, CompletionShape, Prompt
from qwen3app.server.replies import to_json
from qwen3app.server.requests import CompletionBody, StreamOptions
from qwen3app.text.output import OutputStream

PIECES = [
    "<think>",
    "</think>",
    "\n\n",
    "hm",
    " STOP",
    "👩‍👩‍👧‍👦",
    "世界",
    "é",
    " ",
    '"quoted" \\ \u2028',
    "<|im_end|>",
    "x",
]
PROMPT = "Once upon 👍"


def run(
    parts: TextParts,
    scripts: list[list[int]],
    splits: list[int],
    params: GenerationParams,
) -> tuple[Generation, list[list[ChoiceDelta]]]:
    """One prompt, one sample per script; the events cut into batches at `splits`, read after each."""
    prompt = parts.tokenizer.encode_raw(PROMPT)
    engine = FakeEngine(lambda request, sample: scripts[sample])
    engine.submit(
        EngineRequest(
            prompt,
            n=len(scripts),
            logprobs=params.logprobs,
            top_logprobs=params.top_logprobs,
            prompt_logprobs=params.prompt_logprobs,
        )
    )
    batch: EventBatch = engine.poll(0)

    def make() -> OutputStream:
        return OutputStream(
            parts.tokenizer,
            thinking=False,
            split_reasoning=False,
            stops=params.stop,
            include_stop=params.include_stop,
        )

    stop_ids = frozenset(parts.tokenizer.eos_ids)
    generation = Generation([prompt], params, make, stop_ids, lambda *_: None, Observations())
    # samples take turns, as in an engine's steps
    order = sorted(range(len(batch.events)), key=lambda i: (batch.events[i][2] != 2, batch.events[i][10], i))
    order.sort(key=lambda i: batch.events[i][2] == 3)
    events: list[Event] = [batch.events[i] for i in order]
    bounds = sorted({0, len(events), *(split % (len(events) + 1) for split in splits)})
    reads = []
    for begin, end in itertools.pairwise(bounds):
        deliver(generation, events[begin:end], batch.logprobs)
        if generation._ready:
            deltas = generation._collect()
            if deltas:
                reads.append(deltas)
    return generation, reads


def chunks_of(data: Iterable[bytes]) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in b"".join(data).decode().split("\n\n") if line]


def gathered(chunks: list[dict[str, Any]], n: int) -> list[dict[str, Any]]:
    """Each choice of a stream as a plain reply would give it."""
    choices: list[dict[str, Any]] = []
    for index in range(n):
        mine = [c["choices"][0] for c in chunks if c["choices"] and c["choices"][0]["index"] == index]
        result: dict[str, Any] = {"index": index, "logprobs": None, "finish_reason": None, "stop_reason": None}
        result["text"] = "".join(choice["text"] for choice in mine)
        for choice in mine:
            logprobs = choice["logprobs"]
            if logprobs is not None:
                if result["logprobs"] is None:
                    result["logprobs"] = {name: [] for name in logprobs}
                for name, values in logprobs.items():
                    result["logprobs"][name] += values or []
            result["token_ids"] = result.get("token_ids", []) + choice["token_ids"]
            assert result["finish_reason"] is None, "a chunk after the last"
            result["finish_reason"] = choice["finish_reason"]
            result["stop_reason"] = choice.get("stop_reason")
        choices.append(result)
    return choices


scripts = st.lists(st.lists(st.sampled_from(PIECES), max_size=9), min_size=1, max_size=3)
cuts = st.lists(st.integers(0, 1000), max_size=8)
stops = st.sampled_from([(), (" STOP",), ("世", "x")])
PROPERTY = settings(max_examples=80)


@given(scripts, cuts, stops, st.booleans(), st.sampled_from([None, 0, 2]))
@PROPERTY
def test_completion_stream_equals_plain(
    text_parts: TextParts,
    pieces: list[list[str]],
    splits: list[int],
    stop: tuple[str, ...],
    echo: bool,
    n_top: int | None,
) -> None:
    ids = [text_parts.tokenizer.encode_raw("".join(each)) for each in pieces]
    params = GenerationParams(
        n=len(ids),
        stop=stop,
        logprobs=n_top is not None,
        top_logprobs=n_top or 0,
        prompt_logprobs=echo and n_top is not None,
        return_tokens=True,
    )
    body = CompletionBody(
        prompt=PROMPT,
        logprobs=n_top,
        echo=echo,
        return_token_ids=True,
        stream_options=StreamOptions(include_usage=True),
    )
    prompts = [Prompt(text_parts.tokenizer.encode_raw(PROMPT), PROMPT)]

    def shape(generation: Generation) -> CompletionShape:
        return CompletionShape("m", body, generation, text_parts.tokenizer, prompts)

    whole, whole_reads = run(text_parts, ids, [], params)
    reply = CompletionReply(shape(whole))
    for deltas in whole_reads:
        reply.take(deltas)
    plain = json.loads(to_json(reply.finish()))
    for places in (splits, list(range(1000))):
        generation, reads = run(text_parts, ids, places, params)
        encoder = CompletionChunks(shape(generation))
        *chunks, last = chunks_of([encoder.encode(deltas) for deltas in reads] + [encoder.end()])
        assert last["usage"] == plain["usage"] and last["timings"] == plain["timings"]
        for choice, stream in zip(plain["choices"], gathered(chunks, len(ids)), strict=True):
            for name in ("index", "text", "finish_reason", "stop_reason", "token_ids"):
                assert choice[name] == stream[name], name
            empty: dict[str, list[Any]] = {}
            kept = {name: values for name, values in (choice["logprobs"] or empty).items() if values}
            assert kept == {name: values for name, values in (stream["logprobs"] or empty).items() if values}


def says(parts: TextParts, text: str) -> Any:
    ids = [*parts.tokenizer.encode_raw(text), parts.tokenizer.eos_ids[-1]]
    return lambda request, sample: ids


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_timings(text_parts: TextParts, path: str) -> None:
    engine = FakeEngine(says(text_parts, "one two three four"), step=0.01, delay=0.02)
    body = {"messages": [{"role": "user", "content": "hi"}], "prompt": "hello there, you", "n": 2}
    async with serving(make_model(text_parts, engine)) as server:
        reply = (await server.post(path, body)).json()
        stream = {**body, "stream": True, "stream_options": {"include_usage": True}}
        chunks = events_of((await server.post(path, stream)).text)
        bare = events_of((await server.post(path, {**body, "stream": True})).text)
    usage = reply["usage"]
    n_tokens = len(text_parts.tokenizer.encode_raw("one two three four")) + 1
    for timings in (reply["timings"], chunks[-1]["timings"]):
        assert timings["predicted_n"] == usage["completion_tokens"] == 2 * n_tokens
        assert timings["cache_n"] == usage["prompt_tokens_details"]["cached_tokens"]
        assert timings["prompt_n"] == usage["prompt_tokens"] - timings["cache_n"]
        assert timings["queue_ms"] >= 0 and timings["prompt_ms"] == pytest.approx(20, abs=1)
        assert timings["predicted_ms"] == pytest.approx(10 * (n_tokens - 1), abs=1)
        assert timings["predicted_per_second"] == pytest.approx(
            2 * (n_tokens - 1) / timings["predicted_ms"] * 1e3, rel=0.01
        )
        assert timings["prompt_per_second"] == pytest.approx(timings["prompt_n"] / timings["prompt_ms"] * 1e3, rel=0.01)
    assert not any("timings" in chunk for chunk in [*chunks[:-1], *bare])


async def test_timings_of_what_did_not_happen(text_parts: TextParts) -> None:
    async with serving(make_model(text_parts, FakeEngine(says(text_parts, "one")))) as server:
        scored = (await server.complete({"echo": True, "max_tokens": 0, "logprobs": 1})).json()["timings"]
        one = (await server.complete({"max_tokens": 1})).json()["timings"]
    assert (scored["predicted_n"], scored["predicted_ms"], scored["predicted_per_second"]) == (0, None, None)
    assert (one["predicted_n"], one["predicted_per_second"]) == (1, None)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_b65_b76_an_error_is_the_last_event(text_parts: TextParts, path: str) -> None:
    """Also with usage asked for and two choices: what was said, the error, and the end; no finish reason, no [DONE]."""
    engine = FakeEngine(says(text_parts, "one two three"), step=0.2)
    body = {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "n": 2, "stream": True}
    body |= {"stream_options": {"include_usage": True}}
    async with serving(make_model(text_parts, engine)) as server:
        asyncio.get_running_loop().call_later(0.3, engine.fail)
        response = await server.post(path, body)
    assert response.status_code == 200
    events = [json.loads(line[6:]) for line in response.text.split("\n\n") if line.startswith("data: ")]
    *chunks, last = events
    assert "error" in last and set(last["error"]) == {"message", "type", "param", "code"}
    assert chunks and all(chunk["choices"] and "usage" not in chunk for chunk in chunks)
    assert all(choice["finish_reason"] is None for chunk in chunks for choice in chunk["choices"])
    assert "[DONE]" not in response.text
