"""Helpers of the runtime and server tests: a model over a FakeEngine, and a server in the test's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from fake_engine import FakeEngine
from patience import PATIENCE

from qwen3app.abi.types import Event, EventKind
from qwen3app.runtime import ChoiceDelta, Generation, LoadedModel
from qwen3app.server.access_log import Log
from qwen3app.server.listener import bind, tls_context
from qwen3app.server.main import Life
from qwen3app.settings import ServeSettings
from qwen3app.text.generation_config import SamplingDefaults
from qwen3app.text.template import ChatTemplate
from qwen3app.text.tokenizer import Tokenizer


class TextParts(NamedTuple):
    tokenizer: Tokenizer
    template: ChatTemplate


def load_text(directory: Path) -> TextParts:
    tokenizer = Tokenizer.from_dir(directory)
    return TextParts(tokenizer, ChatTemplate.from_dir(directory, tokenizer))


def make_model(parts: TextParts, engine: FakeEngine, defaults: SamplingDefaults | None = None) -> LoadedModel:
    return LoadedModel(
        directory=Path("models/fake"),
        name="fake",
        tokenizer=parts.tokenizer,
        template=parts.template,
        defaults=defaults or SamplingDefaults(),
        engine=engine,  # type: ignore[arg-type]
        info=engine.info(),
        load_phases={"ids": 0.125, "weights": 0.5},
        text_seconds=0.25,
    )


async def read(generation: Generation) -> list[ChoiceDelta]:
    """All deltas of a generation."""
    return [delta async for deltas in generation for delta in deltas]


def deliver(generation: Generation, events: Sequence[Event], logprobs: Sequence[tuple[int, float]]) -> None:
    """Gives a generation events as the runtime does, for tests that decide how they come; `_collect` has the deltas."""
    for event in events:
        choice = generation._choices[event.sample]
        top = logprobs[event.first_logprob : event.first_logprob + event.n_logprobs]
        if event.kind == EventKind.PROMPT_TOKEN:
            generation._post_prompt_token(choice, event, top)
            continue
        if top:
            choice.tops[event.request, event.index] = top
        if event.kind == EventKind.FINISHED:
            generation._post_finished(choice, event)
        if not choice.pending:
            generation._ready.append(choice)
        choice.pending.append(event)


def content_of(deltas: list[ChoiceDelta], choice: int = 0) -> str:
    return "".join(delta.content for delta in deltas if delta.choice == choice)


class FakeLoader:
    """Loader's interface: hands over a model when told to."""

    def __init__(self, model: LoadedModel | None, error: BaseException | None = None) -> None:
        self.progress = ("weights", 1, 4)
        self.began = 0.25
        self.ready = asyncio.Event()
        self._model = model
        self._error = error
        if model is not None:
            self.ready.set()

    async def wait(self) -> LoadedModel:
        await self.ready.wait()
        if self._error is not None:
            raise self._error
        assert self._model is not None
        return self._model

    def log_to(self, log: Log) -> None:
        log.write("engine", "debug", message="the fake engine's log")

    def abandon(self) -> None:
        if self._model is not None:
            self._model.close()


@dataclass
class TestServer:
    """A server that runs beside the test. `task` gives the exit code."""

    __test__ = False

    life: Life
    client: httpx.AsyncClient
    host: str
    port: int
    task: asyncio.Task[int]

    async def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return await self.client.post(path, json=body, **options)

    async def chat(self, body: dict[str, Any], **options: Any) -> httpx.Response:
        return await self.post(
            "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], **body}, **options
        )

    async def complete(self, body: dict[str, Any], **options: Any) -> httpx.Response:
        return await self.post("/v1/completions", {"prompt": "hi", **body}, **options)


@contextlib.asynccontextmanager
async def serving(
    model: LoadedModel | None, loader: FakeLoader | None = None, **settings: Any
) -> AsyncIterator[TestServer]:
    """Runs the whole server (all but the process) on a free port."""
    listener = bind("127.0.0.1", 0)
    host, port = listener.getsockname()[:2]
    options = ServeSettings(**{"drain_seconds": 5.0, "served_model_name": "fake", **settings})
    loader = loader or FakeLoader(model)
    life = Life(options, Path("models/fake"), listener, loader, Log("info"), tls_context(options.guards))  # type: ignore[arg-type]
    task = asyncio.create_task(life.run())
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=PATIENCE) as client:
        while life._server is None or not life._server.started or (model is not None and life.state.serving is None):
            await asyncio.sleep(0.005)
            if task.done():
                break
        try:
            yield TestServer(life, client, host, port, task)
        finally:
            if life._server is not None:
                life._server.should_exit = True
            with contextlib.suppress(Exception):
                await asyncio.wait_for(asyncio.shield(task), PATIENCE)
            listener.close()


def events_of(text: str) -> list[Any]:
    """The JSON of each event of an SSE body; the closing [DONE] must be there and is left out."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]", lines[-1]
    return [json.loads(line) for line in lines[:-1]]
