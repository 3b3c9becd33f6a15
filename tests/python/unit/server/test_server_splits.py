"""Property: a chat stream adds up to the plain reply, field by field, however the engine's events come: at every token,
at every byte, in any mixture of the samples. With thoughts, tool calls, stop strings, logprobs, n and token ids."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Any

import msgspec
import pytest
from fake_engine import FakeEngine
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import TextParts, deliver, events_of

from qwen3app.abi import EngineRequest
from qwen3app.runtime import GenerationParams
from qwen3app.runtime.generation import Generation
from qwen3app.runtime.observations import Observations
from qwen3app.server.chat_completions import ChatChunks, ChatReply, chat_params, with_tools
from qwen3app.server.replies import to_json
from qwen3app.server.reply_types import ChatCompletion, ChatCompletionChunk
from qwen3app.server.requests import ChatBody, StreamOptions
from qwen3app.server.tools import tool_request
from qwen3app.text.output import OutputStream
from qwen3app.text.tokenizer import Tokenizer

FIELDS = ("reasoning_content", "reasoning")
TOOLS = [{"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "ls"}}]
LS = '<tool_call>\n{"name": "ls", "arguments": {}}\n</tool_call>'
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "STOP </tool_call> 世\\n", "b": [1, {"k": "}"}]}}\n</tool_call>'
PIECES = [
    *(
        "<think>",
        "</think>",
        "\n",
        "\n\n",
        " ",
        "hm",
        " STOP",
        "STOP",
        "世界",
        "é",
        "👩‍👩‍👧‍👦",
        "<|im_end|>",
        "\u2028",
        LS,
        CALL,
    ),
    *('<tool_call>\n{"name": "f", ', '"arguments": {"a": "', '"}}\n</tool_call>', "<tool_call>", "</tool_call>", "{"),
]


@cache
def _byte_ids(tokenizer: Tokenizer) -> dict[int, int]:
    pieces = ((token, tokenizer.token_bytes(token)) for token in range(tokenizer.n_ids))
    plain = ((token, piece) for token, piece in pieces if token not in tokenizer.added_tokens)
    return {piece[0]: token for token, piece in plain if len(piece) == 1}


def ids_of(tokenizer: Tokenizer, text: str, *, by_bytes: bool) -> list[int]:
    """by_bytes: one token a byte, but for control tokens."""
    if not by_bytes:
        return tokenizer.encode_raw(text)
    control = tokenizer.control_tokens
    ids: list[int] = []
    for part in re.split("(" + "|".join(map(re.escape, control)) + ")", text):
        ids += [control[part]] if part in control else [_byte_ids(tokenizer)[byte] for byte in part.encode()]
    return ids


class Case:
    """A request and what the engine says to it, one list of ids a sample."""

    def __init__(self, tokenizer: Tokenizer, fields: dict[str, Any], says: Sequence[Sequence[int]], thinking: bool):
        self.tokenizer = tokenizer
        common = {"tools": TOOLS, "logprobs": True, "return_token_ids": True, "n": len(says)}
        self.body = ChatBody(messages=[], **common, **fields, stream_options=StreamOptions(include_usage=True))
        self.params: GenerationParams = with_tools(chat_params(self.body), tool_request(self.body), tokenizer)
        self.thinking = thinking
        params = self.params
        engine = FakeEngine(lambda request, sample: says[sample])
        engine.submit(
            EngineRequest(
                [1], n=params.n, max_tokens=params.max_tokens or 4000, logprobs=True, top_logprobs=params.top_logprobs
            )
        )
        self.events = engine.poll(0)

    def _output(self) -> OutputStream:
        params = self.params
        return OutputStream(
            self.tokenizer,
            thinking=self.thinking,
            split_reasoning=True,
            stops=params.stop,
            skip_special=params.skip_special,
            include_stop=params.include_stop,
            calls=params.calls,
        )

    def _generation(self) -> Generation:
        eos = frozenset(self.tokenizer.eos_ids)
        return Generation([[1]], self.params, self._output, eos, lambda request, sample: None, Observations())

    def plain(self) -> dict[str, Any]:
        generation = self._generation()
        reply = ChatReply(generation, self.tokenizer, FIELDS)
        deliver(generation, self.events.events, self.events.logprobs)
        reply.take(generation._collect())
        result = msgspec.json.decode(to_json(reply.finish("m", self.body)))
        msgspec.convert(result, ChatCompletion)
        return result

    def stream(self, splits: Sequence[int], mixed: Random | None = None) -> list[Any]:
        """The chunks of a stream whose events come in batches. mixed: the samples' events mingle."""
        events = self.events.events
        if mixed is not None:
            queues = [[event for event in events if event.sample == sample] for sample in range(self.params.n)]
            order = [sample for sample, queue in enumerate(queues) for _ in queue]
            mixed.shuffle(order)
            events = [queues[sample].pop(0) for sample in order]
        generation = self._generation()
        chunks = ChatChunks("m", self.body, generation, self.tokenizer, FIELDS)
        data = b""
        bounds = sorted({0, len(events), *(split % (len(events) + 1) for split in splits)})
        for begin, end in itertools.pairwise(bounds):
            deliver(generation, events[begin:end], self.events.logprobs)
            data += chunks.encode(generation._collect())
        data += chunks.end()
        return events_of(data.decode() + "data: [DONE]\n\n")


def summed(chunks: list[Any]) -> dict[str, Any]:
    """The plain reply's choices and usage that a stream adds up to, without the calls' ids; checks each chunk."""
    messages: dict[int, dict[str, Any]] = {}
    usage = timings = None
    for chunk in chunks:
        msgspec.convert(chunk, ChatCompletionChunk)
        usage, timings = chunk.get("usage"), chunk.get("timings")
        assert bool(chunk["choices"]) != bool(usage)
        for choice in chunk["choices"]:
            delta = choice["delta"]
            if choice["index"] not in messages:
                assert choice["index"] == len(messages), "choices begin in order"
                assert delta.pop("role") == "assistant"
                assert not choice["index"] or choice["logprobs"] is None
                empty: dict[str, Any] = {"content": "", "reasoning": "", "calls": [], "tokens": [], "ids": []}
                messages[choice["index"]] = {**empty, "finish": None, "stop": None}
            mine = messages[choice["index"]]
            assert mine["finish"] is None, "a chunk behind the end"
            assert len(delta) == 1 or set(delta) in (set(), set(FIELDS)), "a delta is one thing"
            assert delta.get("reasoning") == delta.get("reasoning_content")
            assert not (delta.get("reasoning") and (mine["content"] or mine["calls"])), "a thought behind the answer"
            mine["reasoning"] += delta.get("reasoning", "")
            mine["content"] += delta.get("content", "")
            for call in delta.get("tool_calls", ()):
                if call["index"] == len(mine["calls"]):
                    assert set(call) == {"index", "id", "type", "function"} and call["function"]["arguments"] == ""
                    mine["calls"].append(call["function"])
                else:
                    assert set(call) == {"index", "function"} and set(call["function"]) == {"arguments"}
                    assert call["index"] == len(mine["calls"]) - 1
                    mine["calls"][-1]["arguments"] += call["function"]["arguments"]
            mine["tokens"] += (choice["logprobs"] or {}).get("content", ())
            mine["ids"] += choice["token_ids"]
            mine["finish"], mine["stop"] = choice["finish_reason"], choice.get("stop_reason")
    return {"choices": [messages[index] for index in sorted(messages)], "usage": usage, "timings": timings}


def expected(plain: dict[str, Any]) -> dict[str, Any]:
    choices = []
    for choice in plain["choices"]:
        message = choice["message"]
        assert message["reasoning"] == message["reasoning_content"]
        calls = [call["function"] for call in message.get("tool_calls", ())]
        for call in calls:
            assert isinstance(msgspec.json.decode(call["arguments"]), dict)
        assert (choice["finish_reason"] == "tool_calls") == bool(calls)
        choices.append(
            {
                "content": message["content"] or "",
                "reasoning": message["reasoning"] or "",
                "calls": calls,
                "tokens": choice["logprobs"]["content"],
                "ids": choice["token_ids"],
                "finish": choice["finish_reason"],
                "stop": choice["stop_reason"],
            }
        )
    return {"choices": choices, "usage": plain["usage"], "timings": plain["timings"]}


@given(
    texts=st.lists(st.lists(st.sampled_from(PIECES), max_size=10).map("".join), min_size=1, max_size=3),
    splits=st.lists(st.integers(0, 2000), max_size=8),
    seed=st.integers(0, 2**32),
    thinking=st.booleans(),
    by_bytes=st.booleans(),
    ends=st.sampled_from(["eos", "by itself", "limit"]),
    fields=st.fixed_dictionaries(
        {},
        optional={
            "tool_choice": st.just("none"),
            "parallel_tool_calls": st.just(False),
            "stop": st.sampled_from([["STOP"], ["\n\n", "世"], ["}"], [" ", "<"], ["STOP</tool_call>"]]),
            "include_stop_str_in_output": st.just(True),
            "skip_special_tokens": st.just(False),
            "top_logprobs": st.just(2),
        },
    ),
)
@settings(max_examples=150)
def test_a_stream_adds_up_to_the_plain_reply(
    text_parts: TextParts,
    texts: list[str],
    splits: list[int],
    seed: int,
    thinking: bool,
    by_bytes: bool,
    ends: str,
    fields: dict[str, Any],
) -> None:
    tokenizer = text_parts.tokenizer
    says = [ids_of(tokenizer, text, by_bytes=by_bytes) for text in texts]
    if ends == "eos":
        says = [[*ids, tokenizer.eos_ids[0]] for ids in says]
    elif ends == "limit":
        fields = {**fields, "max_tokens": max(1, *map(len, says))}
    case = Case(tokenizer, fields, says, thinking)
    whole = expected(case.plain())
    for chunks in (
        case.stream([]),
        case.stream(range(len(case.events.events))),
        case.stream(splits, Random(seed)),
    ):
        assert summed(chunks) == whole


@pytest.mark.parametrize("by_bytes", [True, False])
@pytest.mark.parametrize(
    ("text", "fields"),
    [
        (f"<think>\nhm {LS} 世\n</think>\n\né {CALL}\n{LS} end", {}),
        (f"<think>\nhm {LS}", {}),
        (f"a STOP b {CALL} c", {"stop": ["STOP", "c"]}),
        (f"a {CALL} b\n{LS} c STOP d", {"stop": ["STOP"]}),
        (f"{CALL} b {LS}", {"parallel_tool_calls": False}),
        (f"a {CALL} b", {"tool_choice": "none"}),
        (CALL[:-20], {"max_tokens": 300}),
        ('<tool_call>{"name": "f", "arguments": {"a": "print("x")"}}</tool_call> ok ' + LS, {}),
    ],
)
def test_every_split(text_parts: TextParts, text: str, fields: dict[str, Any], by_bytes: bool) -> None:
    """In two parts, at every place."""
    ids = ids_of(text_parts.tokenizer, text, by_bytes=by_bytes)
    case = Case(text_parts.tokenizer, fields, [ids], thinking=False)
    whole = expected(case.plain())
    for split in range(len(case.events.events) + 1):
        assert summed(case.stream([split])) == whole
