"""The official openai client against a real server on the tiny checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from openai import OpenAI
from patience import PATIENCE
from served import RealServer

MESSAGES = [{"role": "user", "content": "Tell me a story about a fox."}]


@pytest.fixture
def client(real_server: RealServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=real_server.url + "/v1", api_key="none", max_retries=0, timeout=PATIENCE) as client:
        yield client


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-4")
    assert caught.value.code == "model_not_found"


def test_chat_plain_equals_streamed(client: OpenAI) -> None:
    for temperature in (0.0, 0.8):
        options = {"model": "tiny", "messages": MESSAGES, "max_tokens": 48, "temperature": temperature, "seed": 11}
        plain = client.chat.completions.create(**options)
        stream = client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True})
        chunks = list(stream)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == (plain.choices[0].message.content or "")
        finishes = [
            chunk.choices[0].finish_reason for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason
        ]
        assert finishes == [plain.choices[0].finish_reason]
        assert chunks[-1].choices == [] and chunks[-1].usage is not None and plain.usage is not None
        assert chunks[-1].usage.completion_tokens == plain.usage.completion_tokens
        assert plain.usage.total_tokens == plain.usage.prompt_tokens + plain.usage.completion_tokens


def test_the_clients_stream_helper(client: OpenAI) -> None:
    """The helper accumulates deltas. It calls an answer that max_tokens cut an error, and hands the answer over."""
    with (
        pytest.raises(openai.LengthFinishReasonError) as caught,
        client.chat.completions.stream(model="tiny", messages=MESSAGES, max_tokens=12, seed=3) as stream,
    ):
        stream.get_final_completion()
    plain = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=12, seed=3)
    choice = caught.value.completion.choices[0]
    assert (choice.finish_reason, choice.message.content) == ("length", plain.choices[0].message.content)


def test_b66_samples(client: OpenAI) -> None:
    options = {"model": "tiny", "messages": MESSAGES, "max_tokens": 24, "n": 4, "seed": 7, "temperature": 1.0}
    first = client.chat.completions.create(**options)
    again = client.chat.completions.create(**options)
    texts = [choice.message.content for choice in first.choices]
    assert [choice.index for choice in first.choices] == [0, 1, 2, 3]
    assert len(set(texts)) == 4  # different samples ...
    assert texts == [choice.message.content for choice in again.choices]  # ... and the same ones each time
    streamed = ["", "", "", ""]
    for chunk in client.chat.completions.create(**options, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == [text or "" for text in texts]
    assert first.usage is not None
    single = client.chat.completions.create(**{**options, "n": 1})
    assert single.usage is not None and first.usage.prompt_tokens == single.usage.prompt_tokens
    assert single.choices[0].message.content == texts[0]


def test_logprobs(client: OpenAI) -> None:
    reply = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=12, temperature=0, logprobs=True, top_logprobs=5
    )
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    for entry in logprobs.content:
        assert len(entry.top_logprobs) == 5 and entry.logprob <= 0
        assert entry.token == entry.top_logprobs[0].token  # greedy: the best one was taken
        assert [top.logprob for top in entry.top_logprobs] == sorted(
            (top.logprob for top in entry.top_logprobs), reverse=True
        )
    joined = b"".join(bytes(entry.bytes or []) for entry in logprobs.content)
    assert joined.decode("utf-8", "replace") == reply.choices[0].message.content


def test_completions_echo_and_scores(client: OpenAI) -> None:
    prompt = "The quick brown fox"
    scored = client.completions.create(model="tiny", prompt=prompt, max_tokens=0, echo=True, logprobs=1)
    logprobs = scored.choices[0].logprobs
    assert scored.choices[0].text == prompt and logprobs is not None and logprobs.token_logprobs is not None
    assert logprobs.token_logprobs[0] is None and all(value <= 0 for value in logprobs.token_logprobs[1:])
    assert scored.usage is not None and scored.usage.completion_tokens == 0
    grown = client.completions.create(model="tiny", prompt=prompt, max_tokens=8, echo=True, logprobs=1, temperature=0)
    assert grown.choices[0].text.startswith(prompt)
    assert grown.choices[0].logprobs is not None and grown.choices[0].logprobs.token_logprobs is not None
    n_prompt = len(logprobs.token_logprobs)
    assert grown.choices[0].logprobs.token_logprobs[:n_prompt] == logprobs.token_logprobs  # equal bits
    many = client.completions.create(model="tiny", prompt=["a b c", "d e f"], max_tokens=4, temperature=0, n=2)
    assert [choice.index for choice in many.choices] == [0, 1, 2, 3]
    assert many.choices[0].text == many.choices[1].text


def test_stop_strings(client: OpenAI) -> None:
    options = {"model": "tiny", "messages": MESSAGES, "max_tokens": 64, "temperature": 0}
    text = client.chat.completions.create(**options).choices[0].message.content or ""
    # some piece of the middle of the answer that is there only once
    stop = next(text[i : i + 4] for i in range(len(text) // 2, len(text) - 4) if text.count(text[i : i + 4]) == 1)
    cut = client.chat.completions.create(**options, stop=[stop])
    assert cut.choices[0].message.content == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    chunks = client.chat.completions.create(**options, stop=[stop], stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text[: text.index(stop)]


def test_errors_are_the_clients_errors(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "word " * 9000}])
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=-1)
    assert caught.value.param == "temperature"


def test_prefix_cache_is_reported(client: OpenAI) -> None:
    messages = [{"role": "user", "content": "An unusual beginning: " + "zebra crossing " * 60}]
    for expected in (False, True):
        reply = client.chat.completions.create(model="tiny", messages=messages, max_tokens=4, temperature=0)
        assert reply.usage is not None and reply.usage.prompt_tokens_details is not None
        cached = reply.usage.prompt_tokens_details.cached_tokens or 0
        assert (cached > 0) is expected
        assert cached < reply.usage.prompt_tokens
    salted = client.chat.completions.create(
        model="tiny", messages=messages, max_tokens=4, temperature=0, extra_body={"cache_salt": "other tenant"}
    )
    assert salted.usage is not None and salted.usage.prompt_tokens_details is not None
    assert salted.usage.prompt_tokens_details.cached_tokens == 0  # B81
