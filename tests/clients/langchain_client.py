"""LangChain's ChatOpenAI against a server: plain, streamed, batch, tools, structured output. Usage: URL/v1 MODEL"""

from __future__ import annotations

import asyncio
import sys
from typing import Literal

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field


@tool
def weather(city: Literal["Rome", "Oslo"]) -> str:
    """Tells the weather of a city."""
    return f"sunny in {city}"


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=99)


def main(url: str, model: str) -> None:
    chat = ChatOpenAI(base_url=url, api_key="none", model=model, temperature=0, max_tokens=24, max_retries=0, seed=5)
    messages = [SystemMessage("You are brief."), HumanMessage("Tell me of a fox.")]

    plain = chat.invoke(messages)
    assert isinstance(plain, AIMessage) and plain.content, plain
    assert plain.usage_metadata is not None and plain.usage_metadata["output_tokens"] == 24, plain.usage_metadata
    assert plain.response_metadata["finish_reason"] == "length"

    chunks = list(chat.stream(messages, stream_usage=True))
    assert "".join(str(chunk.content) for chunk in chunks) == plain.content
    assert [chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata] == [24]

    several = chat.batch([messages, [HumanMessage("And of a dog.")], messages])
    assert several[0].content == several[2].content == plain.content

    async def ask() -> str:
        return "".join([str(chunk.content) async for chunk in chat.astream(messages)])

    assert asyncio.run(ask()) == plain.content

    person = ChatOpenAI(base_url=url, api_key="none", model=model, temperature=0.8, max_tokens=200, max_retries=0)
    made = person.with_structured_output(Person, method="json_schema").invoke("Make up a person.")
    assert isinstance(made, Person), made

    # a call that the server must make, and the turn that carries its result
    calling = person.bind_tools([weather], tool_choice="weather", strict=True)
    call = calling.invoke([HumanMessage("How is the weather in Rome?")])
    assert [each["name"] for each in call.tool_calls] == ["weather"], call
    assert call.tool_calls[0]["args"]["city"] in ("Rome", "Oslo"), call.tool_calls
    result = ToolMessage("sunny in Rome", tool_call_id=call.tool_calls[0]["id"])
    after = chat.bind_tools([weather]).invoke([HumanMessage("How is the weather in Rome?"), call, result])
    assert isinstance(after, AIMessage)

    made = person.with_structured_output(Person, method="function_calling", strict=True).invoke("Make up a person.")
    assert isinstance(made, Person), made
    print("langchain: ok")


if __name__ == "__main__":
    main(*sys.argv[1:3])
