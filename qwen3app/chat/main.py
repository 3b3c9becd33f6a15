"""`qwen3-8b chat`: loads a model, or finds one behind a URL, and holds the conversation or asks one question.

Owns the choice between the two (a question by --once or on stdin, else a terminal) and the order of starting and
ending. Refuses to know flags: it takes ChatOptions. Runs on the main thread; heavy packages are imported only here,
inside the functions that need them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from qwen3app import __version__
from qwen3app.chat.errors import ChatError
from qwen3app.chat.settings import ChatSettings
from qwen3app.errors import UsageError
from qwen3app.hub.names import model_name
from qwen3app.settings import EngineSettings

if TYPE_CHECKING:
    from qwen3app.chat.backend import Backend
    from qwen3app.chat.session import ChatSession
    from qwen3app.runtime.loaded_model import LoadedModel

_TERMINATED = 128 + signal.SIGTERM


@dataclass(frozen=True)
class ChatOptions:
    model_dir: Path | None  # None with a url
    engine: EngineSettings
    settings: ChatSettings = field(default_factory=ChatSettings)
    think: bool = True
    once: str | None = None
    show_thinking: bool | None = None  # None: shown in a conversation, not with one question
    url: str | None = None  # of a server that answers instead of a model in this process
    api_key: str | None = None
    remote_model: str | None = None  # None: the server's first
    show_stats: bool = False  # with one question; a conversation always shows them


def run_chat(options: ChatOptions) -> int:
    """Runs the whole command and returns the exit code; AppError: one sentence."""
    question = _question(options)
    body = _converse(options) if question is None else _ask_once(question, options)
    model = _load(options) if options.url is None else None
    try:
        asyncio.run(_with_session(_local(model) if model is not None else _remote(options), options, body))
    except asyncio.CancelledError:
        return _TERMINATED
    finally:
        if model is not None:
            model.close()
    return 0


def _question(options: ChatOptions) -> str | None:
    """The one question to ask, or None for a conversation."""
    from qwen3app.chat.once import read_question, with_piped_text

    if options.once is not None:
        if not options.once.strip():
            raise UsageError('--once needs a question, like --once "How high is Mount Everest?".')
        try:
            options.once.encode()
        except UnicodeEncodeError:
            raise UsageError("The question given with --once is not UTF-8.") from None
    try:
        if options.once is not None:
            return with_piped_text(options.once, sys.stdin, sys.stderr)
        if not sys.stdin.isatty():
            return read_question(sys.stdin.buffer)
    except ChatError as error:
        raise UsageError(str(error)) from None
    if not sys.stdout.isatty():
        raise UsageError('A conversation needs a terminal, and stdout is none: ask with --once "question" instead.')
    return None


def _load(options: ChatOptions) -> LoadedModel:
    from qwen3app.chat.loading import load_with_progress
    from qwen3app.runtime.loaded_model import LoadedModel

    directory = options.model_dir
    assert directory is not None
    return load_with_progress(
        lambda progress: LoadedModel.load(directory, options.engine.options(), progress),
        model_name(directory) or str(directory),
        sys.stderr,
    )


_Body = Callable[["ChatSession"], Awaitable[None]]


async def _with_session(opened: AbstractAsyncContextManager[Backend], options: ChatOptions, body: _Body) -> None:
    from qwen3app.chat.session import ChatSession

    # Without this a SIGTERM at the prompt would leave the terminal without echo.
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with opened as backend:
        await body(ChatSession(backend, options.settings, think=options.think))


@asynccontextmanager
async def _local(model: LoadedModel) -> AsyncIterator[Backend]:
    from qwen3app.chat.local import LocalBackend
    from qwen3app.runtime.runtime import Runtime

    runtime = Runtime(model)
    await runtime.start()
    try:
        yield LocalBackend(model, runtime)
    finally:
        await runtime.stop(0)


@asynccontextmanager
async def _remote(options: ChatOptions) -> AsyncIterator[Backend]:
    from qwen3app.chat.remote import RemoteBackend

    assert options.url is not None
    async with RemoteBackend(options.url, options.api_key, options.remote_model) as backend:
        yield backend


def _ask_once(question: str, options: ChatOptions) -> _Body:
    from qwen3app.chat.once import ask_once

    async def body(session: ChatSession) -> None:
        await ask_once(
            session,
            question,
            sys.stdout,
            sys.stderr,
            show_thinking=bool(options.show_thinking),
            show_stats=options.show_stats,
        )

    return body


def _converse(options: ChatOptions) -> _Body:
    async def body(session: ChatSession) -> None:
        from rich.console import Console

        from qwen3app.chat.history import history_path, open_history
        from qwen3app.chat.render import Renderer
        from qwen3app.chat.repl import Repl

        renderer = Renderer(Console(highlight=False), show_thinking=options.show_thinking is not False)
        backend = session.backend
        room = "" if backend.max_context is None else f", {backend.max_context:,} tokens of context"
        renderer.notice(f"qwen3-8b {__version__}: {backend.name} on {backend.place}{room}. /help lists the commands.")
        if backend.notice:
            renderer.notice(backend.notice)
        await Repl(session, renderer, open_history(history_path(os.environ))).run()

    return body
