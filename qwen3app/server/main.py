"""`run_server`: the life of a server process: socket, loading, serving, draining, end.

Order: resolve the model, bind the port (both fail with one sentence before anything slow happens), begin to load in a
thread, listen (503 with progress), serve, and on SIGTERM or SIGINT drain: new work is refused with 503 while running
answers finish, for at most `drain_seconds`; a second signal ends at once. An engine that fails makes /health say so
for a few seconds and then ends the process with code 1, so that a supervisor can start it anew.

Threads: the event loop's, one that loads, the engine's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import sys
import threading
import time
from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING, Any

from qwen3app.errors import AppError
from qwen3app.hub.names import model_name
from qwen3app.server.listener import BACKLOG, bind, raise_file_limit, tls_context
from qwen3app.settings import LOG_LEVELS, ServeSettings, resolve_model_dir

if TYPE_CHECKING:
    import socket
    import ssl
    from pathlib import Path

    from qwen3app.hub.progress import Lines
    from qwen3app.runtime import LoadedModel
    from qwen3app.server.access_log import Log
    from qwen3app.server.state import ServerState

# How long a server whose engine has failed goes on saying so before it ends: two rounds of a 5 s health check.
FAILED_SECONDS = 10.0
# `timeout` and others signal a process and then its group, which it is in: what comes so soon is the same signal.
_ECHO_SECONDS = 0.1
# After the answers have ended, how long slow readers get for the last bytes.
_FLUSH_SECONDS = 3
# The collector of cycles runs when there are so many objects more than at its last run; a stream has some 150.
_GC_OBJECTS = 100_000
# How long a thread keeps Python's lock while others wait for it; 5 ms by default. Beside a thread that writes a large
# grammar the event loop waits three times that long, once per callback of a turn.
_SWITCH_SECONDS = 0.001


def run_server(settings: ServeSettings) -> int:
    """Serves until a signal ends it. Returns the exit code; raises AppError where it cannot even begin."""
    directory = resolve_model_dir(
        settings.engine.model, partial(_log_download, settings.log_level), partial(_log_demo, settings.log_level)
    )
    tls = tls_context(settings.guards)
    listener = bind(settings.host, settings.port)
    loader = Loader(directory, settings)  # before the heavy imports below: it loads while they do
    raise_file_limit()
    try:
        from qwen3app.server.access_log import Log

        log = Log(settings.log_level)
        _route_logging(log)
        with log.in_background():
            return _loop_runner(Life(settings, directory, listener, loader, log, tls))
    finally:
        loader.abandon()
        listener.close()


def _log_download(log_level: str) -> Lines:
    """A download before the start tells how far it is in the log."""
    from qwen3app.hub.progress import Lines
    from qwen3app.server.access_log import Log

    log = Log(log_level)
    return Lines(lambda sentence: log.write("download", message=sentence))


def _log_demo(log_level: str, sentence: str) -> None:
    from qwen3app.server.access_log import Log

    Log(log_level).write("demo", "warning", message=sentence)


class Loader:
    """Loads the model in a thread of its own, and can be told to stop."""

    def __init__(self, directory: Path, settings: ServeSettings) -> None:
        self.progress: tuple[str, int, int] = ("start", 0, 0)
        self._log: Log | None = None
        self._early: list[tuple[int, str]] = []  # the engine's lines from before there is a log
        self._directory = directory
        self._settings = settings
        self._model: LoadedModel | None = None
        self._error: BaseException | None = None
        self._abandoned = False
        self.began = 0.0  # when loading began, in seconds of process_seconds
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._load, name="load-model", daemon=True)
        self._thread.start()

    def _load(self) -> None:
        try:
            from qwen3app.runtime.loaded_model import LoadedModel
            from qwen3app.server.ledger import process_seconds

            self.began = process_seconds()
            self._model = LoadedModel.load(
                self._directory,
                self._settings.engine.options(),
                self._note,
                name=self._settings.served_model_name,
                on_log=self._on_log,
                constraints=True,
            )
        except BaseException as error:
            self._error = error
        self._done.set()

    def _note(self, phase: str, done: int, total: int) -> bool:
        self.progress = (phase, done, total)
        return not self._abandoned

    def _on_log(self, level: int, line: str) -> None:
        if self._log is None:
            self._early.append((level, line))
        else:
            self._log.write("engine", LOG_LEVELS[min(max(level, 0), 3)], message=line)

    def log_to(self, log: Log) -> None:
        """Where the engine's lines go from now on."""
        self._log = log
        while self._early:
            self._on_log(*self._early.pop(0))

    async def wait(self) -> LoadedModel:
        """The model, or the error that loading met."""
        while not self._done.is_set():  # a thread pool would be joined at exit, so it is polled: 100 looks a second
            await asyncio.sleep(0.01)
        if self._error is not None:
            raise self._error
        assert self._model is not None
        return self._model

    def abandon(self) -> None:
        """Stops loading, or closes what was loaded. May be called twice."""
        self._abandoned = True
        self._thread.join()
        model, self._model = self._model, None
        if model is not None:
            model.close()


def _loop_runner(life: Life) -> int:
    import uvloop

    sys.setswitchinterval(_SWITCH_SECONDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(life.run())


class Life:
    """One server from listening to its end. On the event loop's thread."""

    def __init__(
        self,
        settings: ServeSettings,
        directory: Path,
        listener: socket.socket,
        loader: Loader,
        log: Log,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        from qwen3app.server.access_log import HttpObservations
        from qwen3app.server.sse import Heartbeat
        from qwen3app.server.state import ServerState

        self._settings = settings
        self._listener = listener
        self._loader = loader
        self._log = log
        self._tls = tls
        name = settings.served_model_name or model_name(directory)
        self.state: ServerState = ServerState(settings, name, HttpObservations(), Heartbeat())
        self._error: BaseException | None = None
        self._signal: int | None = None
        self._first_signal = 0, 0.0  # and when it came
        self._tasks: set[asyncio.Task[None]] = set()
        self._began = time.perf_counter()
        self._server: Any = None
        self._page = ""  # address of the chat page

    async def run(self) -> int:
        """Serves to the end. Raises what loading raised."""
        with self._signals():  # before all else: one that comes while packages are imported ends it the same way
            await self._serve()
        if self.state.serving is not None:
            await self.state.serving.runtime.stop(0.0)
        await asyncio.to_thread(self._loader.abandon)
        self._log.write("stopped", seconds=round(time.perf_counter() - self._began, 2))
        if self._error is not None:
            raise self._error
        if self._signal is not None:
            return 128 + self._signal
        return 1 if self.state.failure is not None else 0

    async def _serve(self) -> None:
        """Listens, loads and answers until it is told to end."""
        import uvicorn
        import uvicorn.lifespan.off  # uvicorn finds it by name, which a packer of executables cannot see

        from qwen3app.server.access_log import note_refusal
        from qwen3app.server.app import make_app
        from qwen3app.server.protocol import make_protocol
        from qwen3app.time_slices import shorten_time_slices

        shorten_time_slices()  # other threads keep the usual ones
        tls = self._tls
        self._loader.log_to(self._log)
        config = uvicorn.Config(
            make_app(self.state, self._log),
            loop="none",
            http=make_protocol(self._settings.guards, partial(note_refusal, self._log, self.state.http)),
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            ssl_context_factory=None if tls is None else lambda _config, _default: tls,
            timeout_graceful_shutdown=_FLUSH_SECONDS,
        )
        host, port = self._listener.getsockname()[:2]
        self._server = _make_server(config)
        scheme = "http" if tls is None else "https"
        self._page = f"{scheme}://{_url_host(_reachable(host))}:{port}/"
        self._log.write("listening", address=f"{host}:{port}", message=f"{scheme}://{_url_host(host)}:{port}")
        loading = self._task(self._load())
        watching = self._task(self._watch_progress())
        await self._server.serve(sockets=[self._listener])
        for task in (loading, watching, *self._tasks):
            task.cancel()
        await asyncio.gather(loading, watching, *self._tasks, return_exceptions=True)

    def _task(self, coroutine: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _load(self) -> None:
        try:
            model = await self._loader.wait()
            if not self.state.draining:  # else the loader closes it
                await self._begin(model)
        except Exception as error:
            self._error = error
            self.state.failure = str(error) or type(error).__name__
            self._log.write("failed", "error", message=self.state.failure)
            if isinstance(error, AppError):
                error.is_told = not sys.stderr.isatty()  # a person reads no JSON
            self._server.should_exit = True

    async def _begin(self, model: LoadedModel) -> None:
        """Begins to serve the model that has been loaded."""
        from qwen3app.runtime import Runtime
        from qwen3app.server.greeting import load_greeting
        from qwen3app.server.ledger import ledger, process_seconds, start_seconds, table
        from qwen3app.server.state import Serving

        runtime = Runtime(model, self._on_engine_failure)
        await runtime.start()
        seconds = start_seconds(model, self._loader.began, process_seconds())
        self._log.write("ledger", **ledger(model, seconds))
        if sys.stderr.isatty():
            self._log.write_text(table(model, seconds))
        if model.template.notice:
            self._log.write("template", "warning", message=model.template.notice)
        self.state.greeting = load_greeting(model.directory)
        if self.state.greeting.problem:
            self._log.write("suggestions", "warning", message=self.state.greeting.problem)
        # What lives until the end need not be looked at by every full collection: 65,000 objects, 75 ms in which no
        # stream gets a token (0.01 ms after this).
        gc.freeze()
        # Requests leave no cycles, so what is young is alive, and looking it through is a pause for nothing: 4 ms, four
        # times a second, with 256 streams and Python's own thresholds.
        gc.set_threshold(_GC_OBJECTS)
        self.state.serving = Serving(model, runtime)
        if self.state.draining:
            await runtime.drain()
        self._log.write("ready", model=self.state.model_name, seconds=round(process_seconds(), 3), page=self._page)
        if sys.stderr.isatty():
            self._log.write_text(f"\nOpen {self._page} in a browser to chat; programs use {self._page}v1\n\n")

    async def _watch_progress(self) -> None:
        from qwen3app.server.state import Progress

        while self.state.serving is None:
            self.state.progress = Progress(*self._loader.progress)
            await asyncio.sleep(0.05)

    # ------------------------------------------------------------------------------------------------------------- ends

    @contextlib.contextmanager
    def _signals(self) -> Generator[None]:
        loop = asyncio.get_running_loop()
        # A terminal that closes sends SIGHUP; under nohup, which has it ignored, it stays so.
        heard = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            heard.append(signal.SIGHUP)
        for number in heard:
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            yield
        finally:
            for number in heard:
                loop.remove_signal_handler(number)

    def _on_signal(self, number: int) -> None:
        if self.state.draining:
            first, since = self._first_signal
            if number == first and time.perf_counter() - since < _ECHO_SECONDS:
                return
            self._signal = int(number)
            self._log.write("signal", "warning", message="A second signal: ending at once.")
            if self.state.serving is not None:
                self.state.serving.runtime.cut_off()
            self._server.force_exit = True
            self._server.should_exit = True
            return
        self.state.draining = True
        self._first_signal = number, time.perf_counter()
        serving = self.state.serving
        n_active = serving.runtime.n_active if serving is not None else 0
        self._log.write(
            "draining",
            n_requests=n_active,
            seconds=self._settings.drain_seconds,
            message="Running requests may finish; a second signal ends at once.",
        )
        self._task(self._drain())

    async def _drain(self) -> None:
        serving = self.state.serving
        if serving is not None:
            await serving.runtime.drain()
            deadline = time.monotonic() + self._settings.drain_seconds
            while serving.runtime.n_active and time.monotonic() < deadline:
                await asyncio.sleep(0.02)
            if serving.runtime.n_active:
                self._log.write("draining", "warning", message=f"Answers cut off: {serving.runtime.n_active}.")
                serving.runtime.cut_off()
                await asyncio.sleep(0.1)
        self._server.should_exit = True

    def _on_engine_failure(self, sentence: str) -> None:
        self.state.failure = sentence
        self._log.write("engine_failed", "error", message=sentence)
        self._task(self._end_after_failure())

    async def _end_after_failure(self) -> None:
        await asyncio.sleep(FAILED_SECONDS)
        self._server.should_exit = True


def _make_server(config: Any) -> Any:
    import uvicorn

    class Server(uvicorn.Server):
        """uvicorn without its signal handlers: signals are Life's."""

        @contextlib.contextmanager
        def capture_signals(self) -> Generator[None]:
            yield

    return Server(config)


def _reachable(host: str) -> str:
    """An address that a browser on this machine can open: "all interfaces" is none."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def _url_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _route_logging(log: Log) -> None:
    """What libraries say through `logging` becomes JSON lines too."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info is not None and isinstance(record.exc_info[1], asyncio.CancelledError):
                return  # a slow reader cut off at the end, which uvicorn also says in one sentence for all
            level = record.levelname.lower()
            log.write("log", level if level in LOG_LEVELS else "error", logger=record.name, message=record.getMessage())

    root = logging.getLogger()
    root.handlers[:] = [Handler()]
    root.setLevel(logging.WARNING)
