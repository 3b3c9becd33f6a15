"""What evaluation tools rely on, on the real engine: scores are those of generation, to the last bit; biases hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from served import RealServer

from qwen3app.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tiny_model_dir: Path) -> Tokenizer:
    return Tokenizer.from_dir(tiny_model_dir)


def test_b64_scores_of_a_text_are_those_of_its_generation(real_server: RealServer, tokenizer: Tokenizer) -> None:
    """As lm-evaluation-harness asks: a batch of id lists with echo, one token more, logprobs 1, temperature 0."""
    texts = ["The sky is blue because", "Two and two", "👩‍👩‍👧‍👦 世界"]
    prompts = [tokenizer.encode_raw(text) for text in texts]
    asked = {"logprobs": 1, "temperature": 0, "seed": 1234, "ignore_eos": True, "return_token_ids": True}
    grown = real_server.post("/v1/completions", {"prompt": prompts, "max_tokens": 12, **asked})["choices"]
    whole = [prompt + choice["token_ids"] for prompt, choice in zip(prompts, grown, strict=True)]
    scored = real_server.post("/v1/completions", {"prompt": whole, "max_tokens": 1, "echo": True, **asked})["choices"]
    assert [choice["index"] for choice in scored] == [0, 1, 2]
    for prompt, ids, first, second in zip(prompts, whole, grown, scored, strict=True):
        told, logprobs = first["logprobs"], second["logprobs"]
        begin, end = len(prompt), len(ids)
        assert logprobs["token_logprobs"][begin:end] == told["token_logprobs"]
        assert logprobs["top_logprobs"][begin:end] == told["top_logprobs"]
        assert logprobs["tokens"][begin:end] == told["tokens"]
        assert len(logprobs["tokens"]) == end + 1
        # greedy: what was said is the best there was
        assert all(
            value == max(top.values()) for value, top in zip(told["token_logprobs"], told["top_logprobs"], strict=True)
        )
        offsets = logprobs["text_offset"]
        assert offsets[0] == 0 and offsets == sorted(offsets)
        assert second["text"].startswith(tokenizer.decode(prompt, skip_special=False))


def test_b64_text_and_ids_are_the_same_prompt(real_server: RealServer, tokenizer: Tokenizer) -> None:
    text = "Your answer: Yes"
    asked = {"echo": True, "max_tokens": 0, "logprobs": 1}
    by_text = real_server.post("/v1/completions", {"prompt": text, **asked})
    by_ids = real_server.post("/v1/completions", {"prompt": [tokenizer.encode_raw(text)], **asked})
    assert by_text["choices"] == by_ids["choices"]
    assert by_text["choices"][0]["text"] == text and by_text["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_logit_bias_forces_and_forbids(real_server: RealServer, tokenizer: Tokenizer, path: str) -> None:
    token = tokenizer.encode_raw("x")[0]
    body = {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "max_tokens": 6, "temperature": 0}
    body |= {"return_token_ids": True, "ignore_eos": True}
    forced = real_server.post(path, {**body, "logit_bias": {str(token): 100}})["choices"][0]["token_ids"]
    assert forced == [token] * 6
    free = real_server.post(path, body)["choices"][0]["token_ids"]
    without = real_server.post(path, {**body, "logit_bias": {str(token): -100 for token in free}})
    assert not set(free).intersection(without["choices"][0]["token_ids"])
    assert real_server.post(path, {**body, "logit_bias": {}})["choices"][0]["token_ids"] == free


def test_timings_are_true(real_server: RealServer) -> None:
    body = {"prompt": "A long way. " * 40, "max_tokens": 40, "ignore_eos": True}
    cold, warm = (real_server.post("/v1/completions", body) for _ in range(2))
    for reply in (cold, warm):
        timings, usage = reply["timings"], reply["usage"]
        assert timings["prompt_n"] + timings["cache_n"] == usage["prompt_tokens"]
        assert timings["predicted_n"] == 40 and timings["queue_ms"] >= 0
        rate = timings["prompt_n"] / timings["prompt_ms"] * 1e3
        assert timings["prompt_per_second"] == pytest.approx(rate, rel=0.01)
        assert timings["predicted_per_second"] == pytest.approx(39 / timings["predicted_ms"] * 1e3, rel=0.01)
    assert cold["timings"]["cache_n"] == 0 < warm["timings"]["cache_n"] < warm["usage"]["prompt_tokens"]
