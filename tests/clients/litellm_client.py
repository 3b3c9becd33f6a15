"""LiteLLM against a server: chat, stream, text completion, n, errors, extra fields. Usage: URL/v1 MODEL"""

from __future__ import annotations

import sys
from typing import Any

import litellm


def main(url: str, model: str) -> None:
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    options: dict[str, Any] = {"model": f"openai/{model}", "api_base": url, "api_key": "none", "num_retries": 0}
    messages = [{"role": "user", "content": "Tell me of a fox."}]
    sampled = {**options, "messages": messages, "max_tokens": 16, "temperature": 0}

    plain = litellm.completion(**sampled)
    text = plain.choices[0].message.content
    assert text and plain.usage.completion_tokens == 16 and plain.choices[0].finish_reason == "length"

    chunks = list(litellm.completion(**sampled, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    assert [chunk.usage.completion_tokens for chunk in chunks if getattr(chunk, "usage", None)] == [16]

    several = litellm.completion(**(sampled | {"temperature": 1.0}), n=3, seed=7)
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in several.choices}) == 3

    completed = litellm.text_completion(**options, prompt="The fox", max_tokens=8, temperature=0)
    assert completed.choices[0].text

    # what it forwards in extra_body: a salt of its own finds nothing in the cache
    long = [{"role": "user", "content": "A long beginning that fills blocks. " * 20}]
    cached = []
    for salt in ("a", "a", "b"):
        reply = litellm.completion(**(sampled | {"messages": long}), extra_body={"cache_salt": salt})
        cached.append(reply.usage.prompt_tokens_details.cached_tokens or 0)
    assert cached[0] == 0 and cached[1] > 0 and cached[2] == 0, cached

    for kind, wrong in (
        (litellm.ContextWindowExceededError, {"messages": [{"role": "user", "content": "word " * 9000}]}),
        (litellm.BadRequestError, {"temperature": -1}),
        (litellm.NotFoundError, {"model": "openai/no-such-model"}),
    ):
        try:
            litellm.completion(**(sampled | wrong))
        except kind:
            continue
        raise AssertionError(f"no {kind.__name__}")
    print("litellm: ok")


if __name__ == "__main__":
    main(*sys.argv[1:3])
