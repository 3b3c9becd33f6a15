"""The chat's session on the real engine: the cache between turns, stopping, the edge of the context."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
from served import StartServer

from qwen3app.abi.types import EngineOptions
from qwen3app.chat.errors import ContextFull
from qwen3app.chat.local import LocalBackend
from qwen3app.chat.remote import RemoteBackend
from qwen3app.chat.session import ChatSession
from qwen3app.chat.settings import ChatSettings
from qwen3app.commands.model_files import read_tensors
from qwen3app.errors import GenerationError
from qwen3app.runtime.loaded_model import LoadedModel
from qwen3app.runtime.runtime import Runtime

CONTEXT = 512


@pytest.fixture
async def session(tiny_model_dir: Path) -> AsyncIterator[ChatSession]:
    options = EngineOptions(device="cpu", max_context=CONTEXT, max_slots=1, threads=2, kv_bytes=64 << 20)
    model = LoadedModel.load(tiny_model_dir, options)
    runtime = Runtime(model)
    await runtime.start()
    settings = ChatSettings(temperature=0.0, max_tokens=16)
    yield ChatSession(LocalBackend(model, runtime), settings, think=False)
    await runtime.stop()
    stats = model.engine.stats()
    assert stats.blocks_used == 0 and stats.n_running == 0
    model.close()


async def ask(session: ChatSession, text: str) -> str:
    async with aclosing(session.ask(text)) as pieces:
        return "".join([piece.text async for piece in pieces])


async def test_the_prompt_is_read_from_the_cache_on_the_next_turn(session: ChatSession) -> None:
    question = "Tell me a story about a lighthouse and the sea. " * 4
    first = await ask(session, question)
    n_prompt = session.stats.prompt_tokens
    assert session.stats.cached_tokens == 0 and session.stats.tokens == 16
    await ask(session, "And then?")
    assert session.stats.cached_tokens >= (n_prompt - 8) // 32 * 32 > 0  # whole blocks up to the first answer
    session.reset()
    assert await ask(session, question) == first
    assert session.stats.prompt_tokens == n_prompt and session.stats.cached_tokens > 0


async def test_weights_that_are_no_numbers_are_named(tiny_model_dir: Path, tmp_path: Path) -> None:
    directory = tmp_path / "broken"
    shutil.copytree(tiny_model_dir, directory)
    weights = directory / "model.safetensors"
    tensor = next(each for each in read_tensors(weights) if each.name.endswith("layers.1.mlp.down_proj.weight"))
    data = bytearray(weights.read_bytes())
    data[tensor.begin : tensor.end] = b"\xc0\x7f" * tensor.elements  # NaN
    weights.write_bytes(data)
    model = LoadedModel.load(directory, EngineOptions(device="cpu", max_context=64, max_slots=1, threads=1))
    runtime = Runtime(model)
    await runtime.start()
    session = ChatSession(LocalBackend(model, runtime))
    with pytest.raises(GenerationError, match=r"no finite numbers \(NaN\).*`qwen3-8b verify --model DIR` checks"):
        await ask(session, "Hi")
    assert session.messages == [] and runtime.failure is None
    await runtime.stop()
    model.close()


async def test_tools_stand_in_the_prompt(session: ChatSession) -> None:
    await ask(session, "Hi")
    without = session.stats.prompt_tokens
    session.reset()
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    session.tools = [{"type": "function", "function": {"name": "weather", "parameters": parameters}}]
    session.settings.max_tokens = 1  # too short for a call
    await ask(session, "Hi")
    assert session.stats.prompt_tokens > without + len("weather")


async def test_stopping_frees_the_engine_and_keeps_the_words(session: ChatSession) -> None:
    session.settings.max_tokens = None
    session.settings.temperature = 50.0
    session.settings.seed = 1
    words = ""
    async with aclosing(session.ask("Hi")) as pieces:
        async for piece in pieces:
            words += piece.text
            session.stop()
    assert session.stats.finish in ("abort", "stop", "length")
    reply = session.messages[-1]
    assert reply.get("reasoning_content", "") + reply["content"] == words
    session.settings.max_tokens = 4
    await ask(session, "Again")
    assert 1 <= session.stats.tokens <= 4


async def test_a_server_counts_as_the_engine_at_home_does(
    session: ChatSession, start_server: StartServer, tiny_model_dir: Path
) -> None:
    server = start_server(tiny_model_dir, "--max-ctx", str(CONTEXT), "--no-think")
    async with RemoteBackend(server.url, None, None) as backend:
        there = ChatSession(backend, session.settings, think=False)
        async with aclosing(there.ask("Hello")) as pieces:
            async for _ in pieces:
                there.stop()
        assert there.context_tokens is None and len(there.messages) == 2
        await there.recount()
        assert there.context_tokens == session.backend.count(there.messages, None, False)
    assert server.stop() == 0


async def test_the_last_token_of_the_context_can_be_used(session: ChatSession) -> None:
    template = session.backend._model.template  # type: ignore[attr-defined]
    low, high = 1, CONTEXT * 8  # the longest question that leaves room for one token

    def n_tokens(length: int) -> int:
        message = {"role": "user", "content": "x" * length}
        return len(template.render([message], template_kwargs={"enable_thinking": False}).ids)

    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if n_tokens(middle) < CONTEXT else (low, middle - 1)
    room = CONTEXT - n_tokens(low)
    session.settings.max_tokens = None
    await ask(session, "x" * low)
    assert 1 <= session.stats.tokens <= room
    assert session.stats.context_full == (session.stats.finish == "length")
    with pytest.raises(ContextFull, match=f"the context holds {CONTEXT}"):
        await ask(session, "x")
    session.reset()
    assert await ask(session, "Hi") is not None
