"""The official openai package of PyPI against a server: chat, streams, its helpers, parsed answers, the tools loop,
completions, errors. Usage: URL/v1 MODEL"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any, Literal

import openai
from openai import AsyncOpenAI, LengthFinishReasonError, OpenAI
from pydantic import BaseModel, Field


class Person(BaseModel):
    name: str = Field(max_length=8)
    colour: Literal["red", "blue"]
    age: int = Field(ge=0, le=99)


class Weather(BaseModel):
    """Tells the weather of a city."""

    city: Literal["Rome", "Oslo"]


def chat(client: OpenAI, asked: dict[str, Any]) -> None:
    plain = client.chat.completions.create(**asked)
    text = plain.choices[0].message.content
    assert text and plain.choices[0].finish_reason == "length"
    assert plain.usage is not None and plain.usage.completion_tokens == 16
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 16
    seen = ""
    try:
        with client.chat.completions.stream(**asked) as stream:
            for event in stream:
                seen += event.delta if event.type == "content.delta" else ""
            stream.get_final_completion()
    except LengthFinishReasonError as error:  # the helper calls an answer that was cut an error
        assert error.completion.choices[0].message.content == text
    assert seen == text
    raw = client.chat.completions.with_raw_response.create(**asked)
    assert raw.headers["x-request-id"] and raw.parse().choices[0].message.content == text


def structured(client: OpenAI, asked: dict[str, Any]) -> None:
    formed = asked | {"max_tokens": 1500, "temperature": 0.8, "seed": 3, "response_format": Person}
    parsed = client.chat.completions.parse(**formed).choices[0].message.parsed
    assert isinstance(parsed, Person)
    with client.chat.completions.stream(**formed) as stream:
        stream.until_done()
    assert stream.get_final_completion().choices[0].message.parsed == parsed


def tools_loop(client: OpenAI, asked: dict[str, Any]) -> None:
    tool = openai.pydantic_function_tool(Weather, name="weather")
    forced = {"type": "function", "function": {"name": "weather"}}
    calling = asked | {"max_tokens": 200, "tools": [tool], "tool_choice": forced}
    reply = client.chat.completions.parse(**calling).choices[0]
    assert reply.finish_reason == "tool_calls" and reply.message.tool_calls
    (call,) = reply.message.tool_calls
    assert isinstance(call.function.parsed_arguments, Weather)
    with client.chat.completions.stream(**calling) as stream:
        stream.until_done()
    streamed = stream.get_final_completion().choices[0].message.tool_calls
    assert streamed and streamed[0].function.arguments == call.function.arguments
    messages = [
        *asked["messages"],
        reply.message,
        {"role": "tool", "tool_call_id": call.id, "content": json.dumps({"sky": "sunny"})},
    ]
    after = client.chat.completions.create(**(asked | {"messages": messages, "tools": [tool]}))
    assert after.usage is not None and after.usage.completion_tokens == 16


def completions(client: OpenAI, model: str) -> None:
    options: dict[str, Any] = {"model": model, "max_tokens": 4, "temperature": 0}
    several = client.completions.create(**options, prompt=["The fox", "A dog"], n=2, logprobs=2, echo=True)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    assert several.choices[0].text == several.choices[1].text and several.choices[2].text.startswith("A dog")
    assert several.choices[0].logprobs is not None and several.choices[0].logprobs.token_logprobs is not None
    stream = client.completions.create(**options, prompt="The fox", stream=True)
    assert several.choices[0].text == "The fox" + "".join(chunk.choices[0].text for chunk in stream)


def errors(client: OpenAI, asked: dict[str, Any]) -> None:
    long = [{"role": "user", "content": "word " * 9000}]
    for kind, place, wrong in (
        (openai.BadRequestError, "temperature", {"temperature": -1}),
        (openai.BadRequestError, "context_length_exceeded", {"messages": long}),
        (openai.NotFoundError, "model_not_found", {"model": "no-such-model"}),
    ):
        for stream in (False, True):
            try:
                client.chat.completions.create(**(asked | wrong), stream=stream)
            except kind as error:
                assert place in (error.param, error.code), error
                continue
            raise AssertionError(f"no {kind.__name__}")


async def many(url: str, asked: dict[str, Any]) -> None:
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        replies = await asyncio.gather(*(client.chat.completions.create(**asked) for _ in range(20)))
    assert len({reply.choices[0].message.content for reply in replies}) == 1


def main(url: str, model: str) -> None:
    client = OpenAI(base_url=url, api_key="none", max_retries=0)
    assert [each.id for each in client.models.list()] == [model]
    messages = [{"role": "user", "content": "Tell me of a fox."}]
    asked: dict[str, Any] = {"model": model, "messages": messages, "max_tokens": 16, "temperature": 0}
    chat(client, asked)
    structured(client, asked)
    tools_loop(client, asked)
    completions(client, model)
    errors(client, asked)
    asyncio.run(many(url, asked))
    print("openai: ok")


if __name__ == "__main__":
    main(*sys.argv[1:3])
