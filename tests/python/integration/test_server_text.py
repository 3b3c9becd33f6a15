"""Text of a real engine on its way out: the model is held to a text by `structured_outputs.choice`, so that what
clients must see is known to the letter. And what fits into the context, to the token."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from patience import PATIENCE
from served import RealServer

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
WORLD = "👩‍👩‍👧‍👦 🇨🇳 삼겹살 ďábelské 日本語 e\u0301 \ufffd\u2028 end"


def ask(server: RealServer, path: str, text: str, **fields: Any) -> dict[str, Any]:
    """The first choice of a reply that says `text`, unless something ends it earlier: content, logprobs (per token text
    and bytes), finish_reason, stop_reason."""
    body: dict[str, Any] = {"max_tokens": 400, "seed": 7, "structured_outputs": {"choice": [text]}} | fields
    body |= (
        {"messages": [{"role": "user", "content": "hi"}], "enable_thinking": False}
        if path == CHAT
        else {"prompt": "hi"}
    )
    choice: dict[str, Any] = server.post(path, body)["choices"][0]
    reply = httpx.post(f"{server.url}{path}", json={**body, "stream": True}, timeout=PATIENCE)
    assert reply.status_code == 200 and reply.text.endswith("\n\ndata: [DONE]\n\n")
    chunks = [json.loads(event.removeprefix("data: "))["choices"][0] for event in reply.text.split("\n\n")[:-2]]
    streamed = [chunk["delta"].get("content", "") if path == CHAT else chunk["text"] for chunk in chunks]
    whole = choice["message"]["content"] if path == CHAT else choice["text"]
    assert "".join(streamed) == (whole or "")
    for name in ("finish_reason", "stop_reason"):
        assert chunks[-1][name] == choice[name]
    assert [chunk["finish_reason"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    tokens = []
    if choice["logprobs"] is not None and path == CHAT:
        tokens = choice["logprobs"]["content"]
        assert [token for chunk in chunks for token in (chunk["logprobs"] or {"content": []})["content"]] == tokens
    return {"content": whole or "", "streamed": streamed, "tokens": tokens, **choice}


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_b50_b60_characters_of_many_tokens(real_server: RealServer, path: str) -> None:
    logprobs = {"logprobs": True, "top_logprobs": 5} if path == CHAT else {}
    got = ask(real_server, path, WORLD, **logprobs)
    assert (got["content"], got["finish_reason"]) == (WORLD, "stop")
    assert sum(piece.count("\ufffd") for piece in got["streamed"]) == 1  # the one that the text has
    if path == CHAT:
        assert b"".join(bytes(token["bytes"]) for token in got["tokens"]).decode() == WORLD
        for token in got["tokens"]:
            shown, true = token["token"], bytes(token["bytes"])
            assert shown.encode() == true or shown == "bytes:" + "".join(f"\\x{byte:02x}" for byte in true)
            assert len(token["top_logprobs"]) == 5
        assert any(token["token"].startswith("bytes:") for token in got["tokens"])


STORY = "alpha beta gamma delta epsilon zeta eta theta"


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    ("stop", "content", "matched"),
    [
        ([" zeta eta theta"], "alpha beta gamma delta epsilon", " zeta eta theta"),
        (" zeta", "alpha beta gamma delta epsilon", " zeta"),
        (["theta", "eta t", "zeta"], "alpha beta gamma delta epsilon ", "zeta"),
        (["delta epsilon", "gamma", "ta g"], "alpha be", "ta g"),
        (["alpha"], "", "alpha"),
        (["a"], "", "a"),
        ([" zeta eta iota", "ETA", "theta "], STORY, None),  # begun, but never completed
        (["zzz", "theta"], STORY.removesuffix("theta"), "theta"),
    ],
)
def test_b53_b55_stop_strings(real_server: RealServer, path: str, stop: Any, content: str, matched: str | None) -> None:
    got = ask(real_server, path, STORY, stop=stop)
    assert (got["content"], got["stop_reason"], got["finish_reason"]) == (content, matched, "stop")
    included = ask(real_server, path, STORY, stop=stop, include_stop_str_in_output=True)
    assert included["content"] == content + (matched or "")
    many = real_server.post(
        TEXT,
        {"prompt": ["a", "b"], "n": 2, "max_tokens": 200, "stop": stop, "structured_outputs": {"choice": [STORY]}},
    )
    assert [choice["text"] for choice in many["choices"]] == [content] * 4


def test_a_stop_string_between_characters_and_inside_one_that_many_tokens_make(real_server: RealServer) -> None:
    for stop, content in (
        ("🇨🇳", "👩‍👩‍👧‍👦 "),
        ("👧", "👩‍👩‍"),
        ("\u200d", "👩"),
        ("\ufffd", WORLD.partition("\ufffd")[0]),
    ):
        got = ask(real_server, CHAT, WORLD, stop=[stop])
        assert (got["content"], got["stop_reason"]) == (content, stop)


# -------------------------------------------------------------------------------------------------- what fits (B71)


@pytest.mark.parametrize("stream", [False, True])
def test_b71_the_context_is_used_to_its_last_token(real_server: RealServer, stream: bool) -> None:
    limit = httpx.get(f"{real_server.url}/v1/models", timeout=PATIENCE).json()["data"][0]["max_model_len"]

    def complete(n_prompt: int, **fields: Any) -> httpx.Response:
        body = {"prompt": [7] * n_prompt, "ignore_eos": True, "stream": stream} | fields
        return httpx.post(f"{real_server.url}{TEXT}", json=body, timeout=PATIENCE)

    for n_prompt, max_tokens in ((limit - 1, 1), (limit - 5, 5), (1, limit - 1)):
        assert complete(n_prompt, max_tokens=max_tokens, return_token_ids=True).status_code == 200
    assert complete(limit, max_tokens=0, echo=True, logprobs=1).status_code == 200  # scored, nothing is added
    for n_prompt, max_tokens in (
        (limit, 1),
        (limit + 1, 1),
        (3 * limit, 1),
        (limit - 5, 6),
        (limit - 15, None),
        (1, limit),
    ):
        reply = complete(n_prompt, max_tokens=max_tokens)
        error = reply.json()["error"]
        assert (reply.status_code, error["code"], error["type"]) == (
            400,
            "context_length_exceeded",
            "invalid_request_error",
        )
        for number in (limit, n_prompt, 16 if max_tokens is None else max_tokens):
            assert str(number) in error["message"]
    batch = {"prompt": [[7] * 3, [7] * (limit + 1)], "max_tokens": 1, "stream": stream}
    reply = httpx.post(f"{real_server.url}{TEXT}", json=batch, timeout=PATIENCE)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "context_length_exceeded")
    whole = httpx.post(
        f"{real_server.url}{CHAT}",
        json={"messages": [{"role": "user", "content": "x " * 500}], "ignore_eos": True},
        timeout=PATIENCE,
    ).json()
    assert whole["usage"]["total_tokens"] == limit and whole["choices"][0]["finish_reason"] == "length"
