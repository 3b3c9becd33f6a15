"""The model in the box on a real server: thoughts, calls, forms, stops and conversations that a model makes itself.

Its answers are greedy, and so always the same; the tests ask for what a right answer must hold, not for its words.
Every request is made twice, plain and streamed, and both must say the same.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import httpx
import openai
import pytest
from patience import PATIENCE
from pydantic import BaseModel
from served import RealServer

SUM = "What is 57 + 38?"
TIME = "What time is it in Tokyo?"
Message = dict[str, Any]


def function(name: str, description: str, **properties: Any) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = [
    function("get_weather", "Get the current weather of a city", city={"type": "string"}),
    function("get_time", "Get the local time of a city", city={"type": "string"}),
    function("roll_dice", "Roll dice", count={"type": "integer"}, sides={"type": "integer"}),
]


@dataclass
class Reply:
    thought: str = ""
    content: str = ""
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    finish: str = ""
    message: Message = field(default_factory=dict)


def ask(server: RealServer, question: str | list[Message], **fields: Any) -> Reply:
    messages = [{"role": "user", "content": question}] if isinstance(question, str) else question
    body = {"messages": messages, **fields}
    (choice,) = server.post("/v1/chat/completions", body)["choices"]
    message = choice["message"]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
    thought, content = message.get("reasoning_content") or "", message["content"] or ""
    assert streamed(server, body) == (thought, content, calls, choice["finish_reason"])
    return Reply(thought, content, [(name, json.loads(text)) for name, text in calls], choice["finish_reason"], message)


def streamed(server: RealServer, body: dict[str, Any]) -> tuple[str, str, list[tuple[str, str]], str]:
    thought = content = finish = ""
    calls: list[list[str]] = []
    text = httpx.post(f"{server.url}/v1/chat/completions", json={**body, "stream": True}, timeout=PATIENCE).text
    assert text.rstrip().endswith("data: [DONE]"), text
    for line in text.splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                delta = choice["delta"]
                thought += delta.get("reasoning_content") or ""
                content += delta.get("content") or ""
                finish = choice.get("finish_reason") or finish
                for part in delta.get("tool_calls") or ():
                    if part["index"] == len(calls):
                        calls.append([part["function"]["name"], ""])
                    calls[part["index"]][1] += part["function"].get("arguments") or ""
    return thought, content, [(name, arguments) for name, arguments in calls], finish


def test_it_names_itself(demo_server: RealServer) -> None:
    listed = httpx.get(f"{demo_server.url}/v1/models", timeout=PATIENCE).json()["data"]
    assert [model["id"] for model in listed] == ["qwen3-demo"]
    assert "qwen3-demo" in ask(demo_server, "What is your name?").content


def test_a_thought_is_apart_from_the_answer(demo_server: RealServer) -> None:
    reply = ask(demo_server, SUM)
    assert "7 + 8 = 15" in reply.thought and "95" in reply.content and "carry" not in reply.content
    assert reply.finish == "stop" and not reply.calls


@pytest.mark.parametrize("fields", [{"enable_thinking": False}, {"reasoning_effort": "none"}])
def test_thinking_off_is_an_answer_alone(demo_server: RealServer, fields: dict[str, Any]) -> None:
    reply = ask(demo_server, SUM, **fields)
    assert reply.thought == "" and reply.content == "57 + 38 = 95."


@pytest.mark.parametrize("budget", [1, 8, 20])
def test_a_thought_that_is_cut_still_leads_to_the_answer(demo_server: RealServer, budget: int) -> None:
    reply = ask(demo_server, SUM, thinking_budget=budget)
    assert "So 57 + 38" not in reply.thought and "95" in reply.content


@pytest.mark.parametrize("thinking", [True, False])
def test_it_calls_a_tool_by_itself_and_uses_the_result(demo_server: RealServer, thinking: bool) -> None:
    fields = {"tools": TOOLS, "enable_thinking": thinking}
    reply = ask(demo_server, TIME, **fields)
    assert (reply.calls, reply.content, reply.finish) == ([("get_time", {"city": "Tokyo"})], "", "tool_calls")
    assert bool(reply.thought) == thinking
    result = {"role": "tool", "tool_call_id": reply.message["tool_calls"][0]["id"], "content": '{"time": "14:35"}'}
    answer = ask(demo_server, [{"role": "user", "content": TIME}, reply.message, result], **fields)
    assert "14:35" in answer.content and "Tokyo" in answer.content and not answer.calls


def test_two_calls_in_one_answer(demo_server: RealServer) -> None:
    question = "What is the weather in Oslo? What time is it in Tokyo?"
    reply = ask(demo_server, question, tools=TOOLS, enable_thinking=False)
    assert reply.calls == [("get_weather", {"city": "Oslo"}), ("get_time", {"city": "Tokyo"})]
    alone = ask(demo_server, question, tools=TOOLS, enable_thinking=False, parallel_tool_calls=False)
    assert alone.calls == [("get_weather", {"city": "Oslo"})]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_time"}}])
def test_an_enforced_call_has_the_right_arguments(demo_server: RealServer, choice: Any) -> None:
    """Masks leave the model its own words where they are allowed."""
    reply = ask(demo_server, TIME, tools=TOOLS, tool_choice=choice)
    assert reply.calls == [("get_time", {"city": "Tokyo"})] and reply.thought


def test_tools_that_are_not_needed_are_left_alone(demo_server: RealServer) -> None:
    reply = ask(demo_server, "What is the capital of France?", tools=TOOLS, enable_thinking=False)
    assert "Paris" in reply.content and reply.finish == "stop"
    assert not ask(demo_server, TIME, tools=TOOLS, tool_choice="none").calls


PERSON = {
    "type": "object",
    "properties": {"town": {"type": "string"}, "age": {"type": "integer"}, "person": {"type": "string"}},
    "required": ["town", "age", "person"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("wish", ["Answer as a JSON object with the keys {}.", "Give the {} as JSON."])
@pytest.mark.parametrize(
    ("text", "town", "age", "person"),
    [
        ("My friend Raj from Stockholm turned 55 last week.", "Stockholm", 55, "Raj"),
        ("Anna is 12 years old and lives in Paris.", "Paris", 12, "Anna"),
    ],
)
def test_a_schema_is_followed_and_filled_rightly(
    demo_server: RealServer, text: str, town: str, age: int, person: str, wish: str, thinking: bool
) -> None:
    """The question names the keys, since a model is not told the schema; their order, which it names the other way
    round, is the mask's work alone."""
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    question = f"{text} {wish.format('person, age and town')}"
    right = {"town": town, "age": age, "person": person}
    reply = ask(demo_server, question, response_format=form, enable_thinking=thinking)
    assert list(json.loads(reply.content).items()) == list(right.items())
    assert bool(reply.thought) == thinking
    free = ask(demo_server, question, enable_thinking=thinking)
    assert list(json.loads(free.content).items()) == list(reversed(right.items()))


def test_a_choice_is_the_right_one(demo_server: RealServer) -> None:
    for question, right, others in (
        ("What is the capital of France?", "Paris", ["Rome", "Berlin"]),
        ("Which is larger, 17 or 71?", "71", ["17"]),
    ):
        reply = ask(demo_server, question, guided_choice=[*others, right], enable_thinking=False)
        assert reply.content == right


def test_stops_and_limits_cut_at_the_right_place(demo_server: RealServer) -> None:
    reply = ask(demo_server, SUM, stop=["="], enable_thinking=False)
    assert (reply.content, reply.finish) == ("57 + 38 ", "stop")
    whole = ask(demo_server, SUM)
    late = ask(demo_server, SUM, stop=[" 95"])
    assert late.thought == whole.thought and late.content == whole.content.partition(" 95")[0], "thoughts do not stop"
    short = ask(demo_server, SUM, max_tokens=4, enable_thinking=False)
    assert short.finish == "length" and "57 + 38 = 95.".startswith(short.content) and short.content


def test_a_conversation_is_remembered(demo_server: RealServer) -> None:
    conversation = [
        {"role": "user", "content": "My name is Anna."},
        {"role": "assistant", "content": "I will remember that."},
        {"role": "user", "content": "What is my name?"},
    ]
    assert "Anna" in ask(demo_server, conversation).content
    assert "Anna" not in ask(demo_server, conversation[2:]).content


def test_a_system_prompt_is_heeded(demo_server: RealServer) -> None:
    question = {"role": "user", "content": "What is the capital of France?"}
    system = {"role": "system", "content": "USE CAPITAL LETTERS ONLY."}
    loud, plain = ask(demo_server, [system, question]), ask(demo_server, [question])
    assert "PARIS" in loud.content and loud.content.isupper() and "Paris" in plain.content


async def test_many_at_once_say_what_each_says_alone(demo_server: RealServer) -> None:
    sums = [(a, b) for a in (12, 57, 83, 99) for b in (8, 19, 38, 64)]
    async with httpx.AsyncClient(base_url=demo_server.url, timeout=PATIENCE) as client:
        bodies = [{"messages": [{"role": "user", "content": f"What is {a} + {b}?"}]} for a, b in sums]
        replies = await asyncio.gather(*(client.post("/v1/chat/completions", json=body) for body in bodies))
        texts = [reply.json()["choices"][0]["message"]["content"] for reply in replies]
        alone = await client.post("/v1/chat/completions", json=bodies[5])
    assert [text for (a, b), text in zip(sums, texts, strict=True) if f"= {a + b}." not in text] == []
    assert alone.json()["choices"][0]["message"]["content"] == texts[5]


def test_raw_completions_and_ids_of_its_own(demo_server: RealServer) -> None:
    prompt = f"<|im_start|>user\n{SUM}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    tokens = demo_server.post("/tokenize", {"prompt": prompt})["tokens"]
    assert max(tokens) < 4096
    for given in (prompt, tokens):
        reply = demo_server.post("/v1/completions", {"prompt": given, "max_tokens": 40})["choices"][0]
        assert (reply["text"], reply["finish_reason"]) == ("57 + 38 = 95.", "stop")


class Place(BaseModel):
    city: str


def test_the_openai_client_parses_its_call(demo_server: RealServer) -> None:
    client = openai.OpenAI(base_url=f"{demo_server.url}/v1", api_key="none", max_retries=0)
    tool = openai.pydantic_function_tool(Place, name="get_time", description="Get the local time of a city")
    messages: list[Any] = [{"role": "user", "content": TIME}]
    completion = client.chat.completions.parse(
        model="qwen3-demo", messages=messages, tools=[tool], tool_choice="required"
    )
    (call,) = completion.choices[0].message.tool_calls or []
    assert call.function.parsed_arguments == Place(city="Tokyo")
    client.close()
