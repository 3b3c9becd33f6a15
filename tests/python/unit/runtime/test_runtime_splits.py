"""Property: text, ends and counts of a generation do not depend on how its events arrive (stream == plain)."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from fake_engine import FakeEngine
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import TextParts, deliver

from qwen3app.abi import EngineRequest, Event
from qwen3app.runtime import GenerationParams
from qwen3app.runtime.generation import Generation
from qwen3app.runtime.observations import Observations
from qwen3app.text.call_stream import CallPolicy
from qwen3app.text.output import OutputStream

PIECES = [
    "<think>",
    "</think>",
    "\n",
    "\n\n",
    "hm",
    " stop",
    "STOP",
    " here",
    "👩‍👩‍👧‍👦",
    "世界",
    "é",
    " ",
    "a b",
    "<|im_end|>",
    '<tool_call>\n{"name": "f", "arguments": {"a": "STOP 世"}}\n</tool_call>',
    '<tool_call>{"name": "f", ',
    "}}</tool_call>",
]


def events_of(ids: list[int], params: GenerationParams) -> list[Event]:
    """What the engine would send for one sample that says `ids`."""
    request = EngineRequest([1], n=1, logprobs=params.logprobs, max_tokens=params.max_tokens or 1000)
    engine = FakeEngine(lambda request, sample: ids)
    engine.submit(request)
    return engine.poll(0).events


async def collect(
    parts: TextParts, events: list[Event], splits: list[int], params: GenerationParams, options: dict[str, Any]
) -> tuple[Any, ...]:
    """Feeds the events in batches cut at `splits`, taking everything that waits after each."""
    stop_ids = frozenset(parts.tokenizer.eos_ids)
    cancelled: list[tuple[int, int]] = []

    def make() -> OutputStream:
        return OutputStream(parts.tokenizer, stops=params.stop, calls=params.calls, **options)

    generation = Generation([[1]], params, make, stop_ids, lambda *key: cancelled.append(key), Observations())
    content, reasoning, tokens, calls, ends = "", "", [], [], []
    bounds = sorted({0, len(events), *(split % (len(events) + 1) for split in splits)})
    for begin, end in itertools.pairwise(bounds):
        deliver(generation, events[begin:end], [])
        for delta in generation._collect():
            assert not ends, "a delta after the end"
            content += delta.content
            reasoning += delta.reasoning
            tokens += [info.id for info in delta.tokens or []]
            calls += delta.calls
            if delta.finish_reason is not None:
                ends.append((delta.finish_reason, delta.matched_stop))
    assert len(ends) == 1
    usage = generation.usage
    assert (ends[0][0] == "tool_calls") == bool(calls)
    return content, reasoning, tokens, calls, ends, usage.completion_tokens, usage.reasoning_tokens


@given(
    pieces=st.lists(st.sampled_from(PIECES), max_size=14),
    splits=st.lists(st.integers(0, 1000), max_size=8),
    stop=st.sampled_from([(), ("STOP",), (" stop here", "世"), ("\n\n",)]),
    thinking=st.booleans(),
    split_reasoning=st.booleans(),
    ends=st.sampled_from(["eos", "by itself", "limit"]),
    calls=st.sampled_from([None, *CallPolicy]),
)
@settings(max_examples=250)
def test_stream_equals_plain(
    text_parts: TextParts,
    pieces: list[str],
    splits: list[int],
    stop: tuple[str, ...],
    thinking: bool,
    split_reasoning: bool,
    ends: str,
    calls: CallPolicy | None,
) -> None:
    ids = text_parts.tokenizer.encode_raw("".join(pieces))
    limit = max(len(ids), 1) if ends == "limit" else 1000
    ids += [text_parts.tokenizer.eos_ids[0]] if ends == "eos" else []
    params = GenerationParams(stop=stop, logprobs=True, max_tokens=limit, calls=calls)
    options = {"thinking": thinking and split_reasoning, "split_reasoning": split_reasoning}
    events = events_of(ids, params)

    async def both() -> None:
        plain = await collect(text_parts, events, [], params, options)
        each = await collect(text_parts, events, list(range(len(events))), params, options)
        some = await collect(text_parts, events, splits, params, options)
        assert plain[0] == each[0] == some[0] and plain[1] == each[1] == some[1]
        assert plain == each == some

    asyncio.run(both())
