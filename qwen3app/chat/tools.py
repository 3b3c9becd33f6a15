"""The functions of a Python file, offered to the model: /tools FILE.py.

Owns the process that runs them (tool_host.py), and the rule that nothing runs before the user has said yes to this
call, or `always` to this function; one that does not fit its schema goes back to the model unasked. Refuses to know how
functions become schemas. The process has a session of its own,
so that Ctrl-C reaches it through stop() alone, and ends with the chat. Event loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

from qwen3app.chat.backend import Call
from qwen3app.chat.errors import ChatError
from qwen3app.chat.render import Renderer
from qwen3app.chat.session import STOPPED_CALL, ChatSession
from qwen3app.chat.tool_host import Wrong, check

Consent = Literal["yes", "no", "always"]
Ask = Callable[[Call], Awaitable[Consent]]

_STOP_SECONDS = 1.0  # what an interrupted call has to end by itself
_MOST_LINE = 16 << 20  # bytes of one reply


def find_python() -> str:
    """The Python that runs tools: this one, or beside the packed program, which is none, the user's."""
    if not getattr(sys, "frozen", False):
        return sys.executable
    found = shutil.which("python3")
    if found is None:
        raise ChatError("Tools are run by Python, and there is no python3 on the PATH; install it (3.9 or newer).")
    return found


class _Task:
    """A call, or the loading of a file."""

    def __init__(self) -> None:
        self.stopped = False  # by the user


class ToolProcess:
    """One process with one file's functions. It is started again when a call had to be killed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._process: asyncio.subprocess.Process | None = None
        self._task: _Task | None = None  # what the process does now

    async def start(self) -> list[dict[str, Any]]:
        """Loads the file and returns its tools; ChatError says what is wrong with it."""
        environment = dict(os.environ)
        if getattr(sys, "frozen", False):  # the packed program's own libraries are not for another Python
            before = environment.pop("LD_LIBRARY_PATH_ORIG", None)
            environment.pop("LD_LIBRARY_PATH", None)
            if before:
                environment["LD_LIBRARY_PATH"] = before
        process = await asyncio.create_subprocess_exec(
            find_python(),
            str(Path(__file__).with_name("tool_host.py")),
            str(self._path),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            limit=_MOST_LINE,
            env=environment,
        )
        self._process = process
        hello = await self._exchange(process, _Task(), None)
        if "tools" not in hello:
            await self.close()
            raise ChatError(f"{self._path}: {hello.get('error') or 'Python ended while it loaded the file.'}")
        tools: list[dict[str, Any]] = hello["tools"]
        return tools

    async def call(self, name: str, arguments: Any) -> tuple[str, str]:
        """Runs one function and returns its result and what it printed."""
        try:
            request = json.dumps({"name": name, "arguments": arguments}).encode() + b"\n"
        except RecursionError:
            return '{"error": "The arguments are nested too deeply."}', ""
        if self._process is None:
            await self.start()
        process, task = self._process, _Task()
        assert process is not None
        reply = await self._exchange(process, task, request)
        if "result" in reply:
            return reply["result"], reply["printed"]
        await self.close()  # it died, or was killed: the next call has a new one
        if task.stopped:
            return STOPPED_CALL, ""
        return '{"error": "The process of the tools ended during the call."}', ""

    def stop(self) -> None:
        """Interrupts the running call, and kills it where that does not end it. Without one, nothing."""
        process, task = self._process, self._task
        if process is None or task is None:
            return
        task.stopped = True
        _send(process, signal.SIGINT)
        asyncio.get_running_loop().call_later(_STOP_SECONDS, self._kill, process, task)

    def _kill(self, process: asyncio.subprocess.Process, task: _Task) -> None:
        if task is self._task:
            _send(process, signal.SIGKILL)

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            _send(process, signal.SIGKILL)
            await process.wait()

    async def _exchange(
        self, process: asyncio.subprocess.Process, task: _Task, request: bytes | None
    ) -> dict[str, Any]:
        """The reply to a request, or with None what the process says first. {}: it has ended."""
        self._task = task
        try:
            if request is not None:
                assert process.stdin is not None
                with contextlib.suppress(ConnectionError):  # what cannot be written shows in the reply: there is none
                    process.stdin.write(request)
                    await process.stdin.drain()
            return await self._reply(process)
        except BaseException:  # nobody waits any more: a reply that still comes must not be taken for another call's
            self._process = None
            _send(process, signal.SIGKILL)
            raise
        finally:
            self._task = None

    async def _reply(self, process: asyncio.subprocess.Process) -> dict[str, Any]:
        """The next line, {} at the end."""
        assert process.stdout is not None
        try:
            line = await process.stdout.readline()
            reply = json.loads(line) if line.endswith(b"\n") else {}
        except ValueError:  # longer than any reply, or no JSON: not what tool_host.py says
            return {}
        return reply if isinstance(reply, dict) else {}


def _send(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


class Tools:
    """What /tools has loaded, and the user's consent. `ask` shows nothing: the call is on the screen already."""

    def __init__(self, session: ChatSession, renderer: Renderer, ask: Ask) -> None:
        self._session = session
        self._renderer = renderer
        self._ask = ask
        self._process: ToolProcess | None = None
        self._loading: ToolProcess | None = None
        self._always: set[str] = set()

    async def load(self, path: Path) -> list[str]:
        """Offers the file's functions instead of those before, and returns their names."""
        if not os.path.isfile(path):  # noqa: PTH113 - a name that no file can have is none, too
            raise ChatError(f"There is no file {path}.")
        process = self._loading = ToolProcess(path.absolute())
        try:
            tools = await process.start()
        except BaseException:
            await process.close()
            raise
        finally:
            self._loading = None
        await self.close()
        self._process = process
        self._session.tools = tools
        self._session.run_call = self.run
        return [tool["function"]["name"] for tool in tools]

    async def close(self) -> None:
        """Offers nothing any more."""
        self._session.tools = self._session.run_call = None
        self._always.clear()
        if self._process is not None:
            process, self._process = self._process, None
            await process.close()

    def stop(self) -> None:
        """Interrupts what runs: a call, or the loading of a file."""
        for process in (self._process, self._loading):
            if process is not None:
                process.stop()

    async def run(self, call: Call) -> str:
        """The call's result, whatever becomes of it; one that cannot be run is not asked about."""
        known = {tool["function"]["name"]: tool["function"] for tool in self._session.tools or ()}
        if call.name not in known:
            return self._refused(f"There is no function {call.name}; there are {', '.join(sorted(known))}.")
        try:
            arguments = json.loads(call.arguments or "{}")
        except (ValueError, RecursionError):
            return self._refused("The arguments are no JSON.")
        try:
            check(arguments, known[call.name]["parameters"])
        except Wrong as error:
            return self._refused(f"{error}.")
        if call.name not in self._always:
            consent = await self._ask(call)
            if consent == "no":
                return self._refused("permission denied by user")
            if consent == "always":
                self._always.add(call.name)
        assert self._process is not None
        try:
            result, printed = await self._process.call(call.name, arguments)
        except ChatError as error:  # the file cannot be loaded any more
            return self._refused(str(error))
        except asyncio.CancelledError:  # the answer is left, and what the session notes of the call is shown
            self._shown(STOPPED_CALL)
            raise
        result = result.encode("utf-8", "replace").decode()  # half a character is no text for a model
        return self._shown(result, printed)

    def _refused(self, sentence: str) -> str:
        return self._shown(json.dumps({"error": sentence}, ensure_ascii=False))

    def _shown(self, result: str, printed: str = "") -> str:
        self._renderer.tool_result(result, printed)
        return result
