"""Thinking over HTTP: who decides on it, how it ends, and how it is shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine, make_info
from serving import TextParts, events_of, load_text, make_model, serving

from qwen3app.abi import EngineRequest
from qwen3app.runtime.thought_budget import CLOSING_TEXT
from qwen3app.server.thinking import EFFORT_BUDGETS
from qwen3app.text.template import ChatTemplate

EMPTY = "<think>\n\n</think>\n\n"
USER = [{"role": "user", "content": "hi"}]
Reply = Callable[[EngineRequest, int], list[int]]


def says(parts: TextParts, text: str, end: bool = True) -> Reply:
    ids = parts.tokenizer.encode_raw(text) + ([parts.tokenizer.eos_ids[-1]] if end else [])
    return lambda request, sample: ids


def thinker(parts: TextParts, thought: str, answer: str) -> Reply:
    """Thinks without end; behind the closing words it answers."""
    closing = parts.tokenizer.encode_raw(CLOSING_TEXT)
    answers = says(parts, answer)
    thinks = says(parts, thought, end=False)
    return lambda request, sample: (answers if list(request.prompt[-len(closing) :]) == closing else thinks)(request, 0)


def prompt_text(parts: TextParts, engine: FakeEngine, request: int = 1) -> str:
    return parts.tokenizer.decode(engine.requests[request].prompt, skip_special=False)


def with_template(parts: TextParts, change: Callable[[str], str]) -> TextParts:
    return TextParts(
        parts.tokenizer, ChatTemplate(change(parts.template.source), parts.tokenizer, "a changed template")
    )


def opens_the_thought(source: str) -> str:
    """Thinking-2507: the template opens every thought and knows no switch."""
    begin, end = source.index("{%- if enable_thinking is defined"), source.rindex("{%- endif %}")
    return source[:begin] + "{{- '<think>\\n' }}" + source[end:]


def never_thinks(source: str) -> str:
    """Instruct-2507: no thought, no switch."""
    begin, end = source.index("{%- if enable_thinking is defined"), source.rindex("{%- endif %}")
    return source[:begin] + source[end:]


def closes_the_thought(source: str) -> str:
    """A template that always writes an empty thought, whatever the request says."""
    return source.replace("{%- if enable_thinking is defined and enable_thinking is false %}", "{%- if true %}")


def streamed(text: str, index: int = 0) -> dict[str, Any]:
    """The message of one choice, put together from the events."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "reasoning": "", "finish_reason": None}
    for chunk in events_of(text):
        for choice in chunk["choices"]:
            if choice["index"] != index:
                continue
            for name, part in choice["delta"].items():
                message[name] = part if name == "role" else message[name] + part
            message["finish_reason"] = choice["finish_reason"] or message["finish_reason"]
    return message


def assert_equal(plain: dict[str, Any], stream: dict[str, Any]) -> None:
    for name in ("content", "reasoning_content", "reasoning"):
        assert (plain["message"][name] or "") == stream[name], name
    assert plain["finish_reason"] == stream["finish_reason"] and stream["role"] == "assistant"


@pytest.mark.parametrize(
    ("fields", "thinks"),
    [
        ({"reasoning": {"enabled": False}}, False),
        ({"reasoning": {"enabled": True}, "reasoning_effort": "none"}, True),
        ({"reasoning": {"effort": "none"}}, False),
        ({"reasoning": {"effort": "none"}, "reasoning_effort": "low"}, True),
        ({"reasoning": {}}, True),
        ({"thinking": {"type": "disabled"}}, False),
        ({"thinking": {"type": "enabled", "budget_tokens": 100}}, True),
        ({"thinking": None, "reasoning": None}, True),
        ({"thinking_budget": 0}, False),
        ({"thinking_token_budget": 0}, False),
        ({"chat_template_kwargs": {"thinking_budget": 0}, "thinking_budget": 5}, False),
        ({"thinking_budget": 0, "enable_thinking": True}, True),
        ({"thinking_budget": 0, "reasoning_effort": "high"}, False),
        ({"thinking_budget": -1}, True),
        ({"chat_template_kwargs": {"enable_thinking": None}, "enable_thinking": False}, False),
        ({"chat_template_kwargs": {"enable_thinking": True}, "enable_thinking": False}, True),
    ],
)
async def test_b30_every_way_to_say_it(text_parts: TextParts, fields: dict[str, Any], thinks: bool) -> None:
    engine = FakeEngine(says(text_parts, "answer"))
    async with serving(make_model(text_parts, engine)) as server:
        response = await server.chat(fields)
        assert response.status_code == 200, response.text
        count = (await server.post("/tokenize", {"messages": USER, **fields})).json()["count"]
    assert prompt_text(text_parts, engine).endswith(EMPTY) is not thinks
    assert count == len(engine.requests[1].prompt)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning_effort": "banana"}, "reasoning_effort"),
        ({"reasoning_effort": 3}, "reasoning_effort"),
        ({"reasoning": {"effort": "banana"}}, "reasoning.effort"),
        ({"reasoning": "high"}, "reasoning"),
        ({"reasoning": {"enabled": "no"}}, "reasoning.enabled"),
        ({"reasoning": {"max_tokens": "5"}}, "reasoning.max_tokens"),
        ({"thinking": {"type": "perhaps"}}, "thinking.type"),
        ({"thinking": {"budget_tokens": -2}}, "thinking.budget_tokens"),
        ({"thinking_budget": -2}, "thinking_budget"),
        ({"thinking_budget": 1.5}, "thinking_budget"),
        ({"thinking_token_budget": True}, "thinking_token_budget"),
        ({"chat_template_kwargs": {"enable_thinking": "false"}}, "chat_template_kwargs.enable_thinking"),
        ({"chat_template_kwargs": {"thinking_budget": "many"}}, "chat_template_kwargs.thinking_budget"),
        ({"enable_thinking": "no"}, "enable_thinking"),
        ({"include_reasoning": "no"}, "include_reasoning"),
    ],
)
async def test_b30_what_means_nothing_is_400(text_parts: TextParts, fields: dict[str, Any], param: str) -> None:
    engine = FakeEngine(says(text_parts, "answer"))
    async with serving(make_model(text_parts, engine)) as server:
        for stream in (False, True):
            response = await server.chat({**fields, "stream": stream})
            assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text
    assert not engine.requests


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", ["thinking_budget", "thinking_token_budget"])
async def test_b37_budgets(text_parts: TextParts, name: str, stream: bool) -> None:
    thought = "<think>\n" + "one two three four " * 100
    engine = FakeEngine(thinker(text_parts, thought, "The answer."))
    n_closing = len(text_parts.tokenizer.encode_raw(CLOSING_TEXT))
    async with serving(make_model(text_parts, engine)) as server:
        for budget in (0, 1, 50):
            body = {name: budget, "enable_thinking": True, "max_tokens": 300, "n": 2}
            reply = (await server.chat(body)).json()
            if budget:
                for choice in reply["choices"]:
                    assert choice["message"]["content"] == "The answer." and choice["finish_reason"] == "stop"
                    assert choice["message"]["reasoning"].endswith("based on the thinking directly now.")
            details = reply["usage"]["completion_tokens_details"]
            assert details["reasoning_tokens"] <= 2 * (budget + n_closing)
            text = (await server.chat({**body, "stream": True})).text
            for index in range(2):
                assert_equal(reply["choices"][index], streamed(text, index))


async def test_efforts_are_budgets(text_parts: TextParts) -> None:
    """Every effort is honoured: by thinking off, by a budget, or by none."""
    thought = "<think>\n" + "a " * 9000
    n_closing = len(text_parts.tokenizer.encode_raw(CLOSING_TEXT))
    engine = FakeEngine(thinker(text_parts, thought, "end"), make_info(max_context=40_000))
    async with serving(make_model(text_parts, engine), thinking_budget=50) as server:
        for effort, budget in EFFORT_BUDGETS.items():
            engine.requests.clear()
            reply = (await server.chat({"reasoning_effort": effort, "max_tokens": 9000})).json()
            n_thought = reply["usage"]["completion_tokens_details"]["reasoning_tokens"]
            if effort == "none":
                assert prompt_text(text_parts, engine, min(engine.requests)).endswith(EMPTY)
            elif budget is None:
                assert reply["choices"][0]["finish_reason"] == "length" and n_thought == 8999
            else:
                assert budget < n_thought < budget + n_closing and reply["choices"][0]["message"]["content"] == "end"
        # nothing said: the server's own budget
        n_thought = (await server.chat({})).json()["usage"]["completion_tokens_details"]["reasoning_tokens"]
        assert 50 < n_thought < 50 + n_closing
        # a budget of the request wins over its effort and the server's
        reply = (await server.chat({"thinking_budget": 70, "reasoning_effort": "low"})).json()
        assert 70 < reply["usage"]["completion_tokens_details"]["reasoning_tokens"] < 70 + n_closing
        reply = (await server.chat({"thinking_budget": -1, "max_tokens": 200})).json()
        assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] == 199


async def test_b27_a_template_that_opens_the_thought(text_parts: TextParts) -> None:
    """Thinking-2507: no opening tag in the output, no flag in the request."""
    parts = with_template(text_parts, opens_the_thought)
    engine = FakeEngine(says(parts, "abc</think>\n\nhi"), step=0.001)
    async with serving(make_model(parts, engine)) as server:
        for fields in ({}, {"enable_thinking": True}, {"thinking_budget": 50}):
            reply = (await server.chat(fields)).json()["choices"][0]
            assert (reply["message"]["reasoning"], reply["message"]["content"]) == ("abc", "hi")
            assert_equal(reply, streamed((await server.chat({**fields, "stream": True})).text))
        # B26: cut short it is all reasoning
        cut = (await server.chat({"max_completion_tokens": 1})).json()["choices"][0]
        assert cut["message"]["content"] is None and cut["message"]["reasoning"] and cut["finish_reason"] == "length"
        assert_equal(cut, streamed((await server.chat({"max_completion_tokens": 1, "stream": True})).text))
    assert prompt_text(parts, engine).endswith("<think>\n")


@pytest.mark.parametrize(
    "fields", [{"thinking_budget": 0}, {"enable_thinking": False}, {"reasoning_effort": "none"}, None]
)
async def test_b27_b30_off_closes_what_the_template_opened(
    text_parts: TextParts, fields: dict[str, Any] | None
) -> None:
    """Also by the server's default (None here). A message that is to be continued stays open."""
    parts = with_template(text_parts, opens_the_thought)
    engine = FakeEngine(says(parts, "hi"))
    asked = fields or {}
    begun = [*USER, {"role": "assistant", "reasoning_content": "hm", "content": ""}]
    async with serving(make_model(parts, engine), thinking=fields is not None) as server:
        message = (await server.chat(asked)).json()["choices"][0]["message"]
        count = (await server.post("/tokenize", {"messages": USER, **asked})).json()["count"]
        await server.chat({**asked, "messages": begun, "continue_final_message": True, "max_tokens": 1})
    assert (message["content"], message["reasoning"]) == ("hi", None)
    assert prompt_text(parts, engine).endswith(EMPTY) and count == len(engine.requests[1].prompt)
    assert prompt_text(parts, engine, 2).endswith("<think>\nhm")


async def test_b27_a_template_that_never_thinks(text_parts: TextParts) -> None:
    """Instruct-2507."""
    parts = with_template(text_parts, never_thinks)
    engine = FakeEngine(says(parts, "hi"))
    async with serving(make_model(parts, engine)) as server:
        for fields in ({}, {"enable_thinking": True}, {"enable_thinking": False}, {"thinking_budget": 5}):
            reply = (await server.chat(fields)).json()["choices"][0]
            assert (reply["message"]["content"], reply["message"]["reasoning"]) == ("hi", None)
            assert_equal(reply, streamed((await server.chat({**fields, "stream": True})).text))
    assert {tuple(request.prompt) for request in engine.requests.values()} == {tuple(engine.requests[1].prompt)}
    assert prompt_text(parts, engine).endswith("<|im_start|>assistant\n")


async def test_b25_the_prompt_tells_not_the_flag(text_parts: TextParts) -> None:
    parts = with_template(text_parts, closes_the_thought)
    engine = FakeEngine(says(parts, "the answer"))
    async with serving(make_model(parts, engine)) as server:
        for fields in ({}, {"enable_thinking": True}, {"reasoning_effort": "high"}):
            reply = (await server.chat(fields)).json()["choices"][0]
            assert (reply["message"]["content"], reply["message"]["reasoning"]) == ("the answer", None)
            assert_equal(reply, streamed((await server.chat({**fields, "stream": True})).text))


@pytest.mark.parametrize("switch", ["/think", "/no_think"])
@pytest.mark.parametrize("enabled", [True, False])
async def test_b29_soft_switches_are_the_models(text_parts: TextParts, switch: str, enabled: bool) -> None:
    """They reach the model as text. The empty thought that it writes for /no_think leaves nothing behind; with thinking
    off it is the template that writes one, whatever the switch says."""
    engine = FakeEngine(says(text_parts, (EMPTY if enabled else "") + "hello"), step=0.001)
    messages = [{"role": "user", "content": f"hi {switch}"}]
    async with serving(make_model(text_parts, engine)) as server:
        body = {"messages": messages, "enable_thinking": enabled}
        reply = (await server.post("/v1/chat/completions", body)).json()["choices"][0]
        stream = (await server.post("/v1/chat/completions", {**body, "stream": True})).text
    assert (reply["message"]["content"], reply["message"]["reasoning"]) == ("hello", None)
    assert_equal(reply, streamed(stream))
    text = prompt_text(text_parts, engine)
    assert f"hi {switch}<|im_end|>" in text and text.endswith(EMPTY) is not enabled


@pytest.mark.parametrize("names", [("reasoning_content",), ("reasoning",), ("reasoning_content", "reasoning")])
async def test_b34_reasoning_fields(text_parts: TextParts, names: tuple[str, ...]) -> None:
    engine = FakeEngine(says(text_parts, "<think>\nhm\n</think>\n\nhi"), step=0.001)
    async with serving(make_model(text_parts, engine), reasoning_fields=names) as server:
        message = (await server.chat({})).json()["choices"][0]["message"]
        chunks = events_of((await server.chat({"stream": True})).text)
    other = {"reasoning_content", "reasoning"}.difference(names)
    assert all(message[name] == "hm" for name in names) and not other.intersection(message)
    for name in names:
        assert "".join(chunk["choices"][0]["delta"].get(name, "") for chunk in chunks) == "hm"
    assert not any(other.intersection(chunk["choices"][0]["delta"]) for chunk in chunks)


@pytest.mark.parametrize("fields", [{"include_reasoning": False}, {"reasoning": {"exclude": True}}])
async def test_reasoning_can_be_left_out(text_parts: TextParts, fields: dict[str, Any]) -> None:
    engine = FakeEngine(says(text_parts, "<think>\nhm hm hm\n</think>\n\nhi"), step=0.001)
    async with serving(make_model(text_parts, engine)) as server:
        reply = (await server.chat(fields)).json()
        chunks = events_of((await server.chat({**fields, "stream": True})).text)
        cut = (await server.chat({**fields, "max_tokens": 3})).json()["choices"][0]
    message = reply["choices"][0]["message"]
    assert message["content"] == "hi" and not {"reasoning", "reasoning_content"}.intersection(message)
    assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant" and chunks[0]["choices"][0]["delta"]["content"]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "hi"
    assert (cut["message"]["content"], cut["finish_reason"]) == (None, "length")


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_b34_b35_thoughts_in_history(text_parts: TextParts, name: str) -> None:
    """Accepted under both names, and inside content; older thoughts go, those of the running tool chain stay."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    chain = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "1", name: "old thought"},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": "", name: "new thought", "tool_calls": [call]},
        {"role": "tool", "content": "42", "tool_call_id": "c"},
    ]
    inside = [
        {
            **{k: v for k, v in message.items() if k != name},
            "content": f"<think>\n{message[name]}\n</think>\n\n{message['content']}",
        }
        if name in message
        else message
        for message in chain
    ]
    engine = FakeEngine(says(text_parts, "a"))
    async with serving(make_model(text_parts, engine)) as server:
        for messages in (chain, inside):
            response = await server.post("/v1/chat/completions", {"messages": messages})
            assert response.status_code == 200, response.text
    text = prompt_text(text_parts, engine, 1)
    assert "old thought" not in text and "<think>\nnew thought\n</think>" in text
    assert prompt_text(text_parts, engine, 2) == text


def test_the_changed_templates_are_what_they_say(tiny_model_dir: Path) -> None:
    parts = load_text(tiny_model_dir)
    for change, thinking in ((opens_the_thought, True), (never_thinks, False), (closes_the_thought, False)):
        prompt = with_template(parts, change).template.render(USER, template_kwargs={"enable_thinking": True})
        assert prompt.thinking is thinking
