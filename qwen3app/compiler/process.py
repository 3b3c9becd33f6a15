"""`Compilers`: the processes that compile for a server, from its side.

Owns: their start, what they are asked, and their end: with the server's, or where one takes too long. Refuses to know:
what a constraint is, and which threads ask.
The rules:
- None is started before it is needed, and no more than ask at the same time. One that has answered waits for the next.
- A process that takes longer than its time is killed, and with it what it compiled. Whatever way one ends in the middle
  of an answer, it costs the one request that asked; the next one gets a new process.
- One that works for somebody who has gone (`Asking.give_up`) is killed as well: a process cannot be asked to stop.
- They leave the server's process group, so that no terminal's signal reaches them, and end when their pipe does: also
  when the server is killed.

Threads: `ask` blocks the thread that calls it, and any may; `close` and `Asking.give_up` from another one.
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from qwen3app.abi.matchers import TokenBytes
from qwen3app.compiler import COMMAND
from qwen3app.compiler.messages import LENGTH, OUT_OF_MEMORY, Reply, Setup, frame
from qwen3app.errors import EngineError, GenerationError, RequestError, Status

COMPILE_SECONDS = 5.0
# Above what the process has before it. What passes takes as much in the server, too, and some of it stays there: 90 MB
# is the most that was seen.
MEMORY_BYTES = 256 << 20
# What a process has to start in, on whatever busy machine; 0.3 s where nothing else runs.
_START_SECONDS = 120.0
_PART = 1 << 16  # bytes that a pipe holds
_TAIL = 2000  # bytes of stderr that are told
_RUST_OUT_OF_MEMORY = b"memory allocation of"  # what it says before it ends the process

_log = logging.getLogger(__name__)


def child_command() -> list[str]:
    """This program's own, packed or not."""
    if getattr(sys, "frozen", False):
        return [sys.executable, COMMAND]
    return [sys.executable, "-P", "-m", "qwen3app", COMMAND]


class Asking:
    """One question to a process, which whoever put it may give up on any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: _Process | None = None  # that works on it
        self._given_up = False

    def give_up(self) -> None:
        """Nobody waits for the answer any more."""
        with self._lock:
            self._given_up = True
            if self._process is not None:
                self._process.kill()  # the thread that asks it sees that, and does the rest

    def begin(self, process: _Process) -> bool:
        """False: it is given up already. Else the process is this question's own until `end`."""
        with self._lock:
            if not self._given_up:
                self._process = process
            return not self._given_up

    def end(self) -> bool:
        """True: it has been given up, and the process killed."""
        with self._lock:
            self._process = None
            return self._given_up


class Compilers:
    """See the file's head."""

    def __init__(
        self,
        tokens: Callable[[], tuple[TokenBytes, dict[str, int]]],
        *,
        seconds: float = COMPILE_SECONDS,
        memory_bytes: int = MEMORY_BYTES,
        command: Sequence[str] = (),
    ) -> None:
        """tokens: the vocabulary and its control tokens, asked for when a process starts. seconds, memory_bytes: what
        one compilation may take. command: instead of this program's own."""
        self._tokens = tokens
        self._memory_bytes = memory_bytes
        self._seconds = seconds
        self._command = command or child_command()
        self._lock = threading.Lock()
        self._all: set[_Process] = set()
        self._idle: list[_Process] = []
        self._closed = False

    def ask(self, constraint: bytes, param: str, asking: Asking) -> Reply:
        """The reply to a constraint (messages.write_spec). param: its place. asking: a new one. Raises RequestError
        where its process had to be ended, or ended by itself, GenerationError where none can be started, EngineError
        after `close` or once it is given up."""
        process = self._idling() or self._start()
        if not asking.begin(process):
            self._keep(process)
            raise _given_up()
        try:
            try:
                reply = self._ask(process, constraint, self._seconds)
            finally:
                given_up = asking.end()
            if given_up:  # and the process killed, though it had answered
                self._end(process)
                raise _given_up()
        except TimeoutError:
            reason = f"{param} takes longer than {self._seconds:g} s to compile; make it simpler."
        except EOFError:
            if process.out_of_memory():
                reason = f"{param} takes more than {_gib(self._memory_bytes)} of memory to compile; make it simpler."
            else:
                reason = f"{param} could not be compiled: it ended the compiler ({process.ending}); make it simpler."
        else:
            self._keep(process)
            if reply.bug:
                _log.error("a constraint met a fault of the program: %s", reply.bug)
                raise GenerationError("The constraint failed, which is a fault of the server; its log says more.")
            return reply
        if given_up:
            raise _given_up()
        if self._closed:
            raise shutting_down()
        _log.warning("a process that compiles constraints was ended: %s (%s)", reason, process.said())
        raise RequestError(reason, param, "constraint_too_complex")

    def close(self) -> None:
        """Ends all processes, what they compile too."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            for process in self._all.difference(idle):
                process.kill()  # the thread that asks it sees that, and does the rest
        for process in idle:
            self._end(process)

    # --------------------------------------------------------------------------------------- their beginning and end

    def _idling(self) -> _Process | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                process = self._idle.pop()
            if process.alive():
                return process
            self._end(process)  # somebody else has killed it

    def _start(self) -> _Process:
        setup = msgspec.msgpack.encode(Setup(*self._tokens(), self._memory_bytes))
        try:
            with self._lock:
                if self._closed:
                    raise shutting_down()
                process = _Process(self._command)
                self._all.add(process)
        except OSError as error:
            raise _cannot_start(str(error)) from None
        try:
            self._ask(process, setup, _START_SECONDS)
        except (TimeoutError, EOFError) as error:
            if self._closed:
                raise shutting_down() from None
            how = process.ending if isinstance(error, EOFError) else f"nothing within {_START_SECONDS:g} s"
            raise _cannot_start(f"{how}; {process.said()}") from None
        return process

    def _ask(self, process: _Process, content: bytes, seconds: float) -> Reply:
        """As the process's own `ask`, whose error is the process's end."""
        try:
            return process.ask(content, seconds)
        except BaseException:
            self._end(process)
            raise

    def _keep(self, process: _Process) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(process)
                return
        self._end(process)

    def _end(self, process: _Process) -> None:
        process.end()
        with self._lock:
            self._all.discard(process)


def _gib(n: int) -> str:
    return f"{n / 2**30:.2g} GiB"


def shutting_down() -> EngineError:
    return EngineError(Status.CLOSED, "The server is shutting down.")


def _given_up() -> EngineError:
    return EngineError(Status.CANCELLED, "Nobody waits for this constraint any more.")


def _cannot_start(why: str) -> GenerationError:
    _log.error("the process that compiles constraints cannot be started: %s", why)
    return GenerationError("The process that compiles constraints cannot be started; the server's log says more.")


class _Process:
    """One process. Belongs to one thread at a time, but for `kill`."""

    def __init__(self, command: Sequence[str]) -> None:
        """Raises OSError."""
        self._stderr = os.memfd_create("compiler")
        fcntl.fcntl(self._stderr, fcntl.F_SETFL, os.O_APPEND)
        try:
            self._process = subprocess.Popen(
                command,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                # Of a Python that is not packed: it finds what the server has found, in the same order.
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                start_new_session=True,
            )
        except BaseException:
            os.close(self._stderr)
            raise
        assert self._process.stdin is not None and self._process.stdout is not None
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._to, False)
        self._said = b""

    def ask(self, content: bytes, seconds: float) -> Reply:
        """Raises TimeoutError, or EOFError where the process has ended; it is of no use then."""
        deadline = time.monotonic() + seconds
        os.ftruncate(self._stderr, 0)
        unsent, received = memoryview(frame(content)), bytearray()
        pipes = select.poll()
        pipes.register(self._to, select.POLLOUT)
        pipes.register(self._from, select.POLLIN)
        while len(received) < LENGTH.size or len(received) < LENGTH.size + LENGTH.unpack_from(received)[0]:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            for pipe, _ in pipes.poll(math.ceil(left * 1000)):
                if pipe == self._to:
                    try:
                        unsent = unsent[os.write(self._to, unsent[:_PART]) :]
                    except BrokenPipeError:
                        raise EOFError from None
                    if not unsent:
                        pipes.unregister(self._to)
                else:
                    part = os.read(self._from, _PART)
                    if not part:
                        raise EOFError
                    received += part
        try:
            return msgspec.msgpack.decode(memoryview(received)[LENGTH.size :], type=Reply)
        except (msgspec.MsgspecError, RecursionError):  # it is out of its mind
            raise EOFError from None

    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> None:
        """Kills it where it lives, and keeps nothing of it but how it ended."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        n = os.fstat(self._stderr).st_size
        self._said = os.pread(self._stderr, _TAIL, max(n - _TAIL, 0))
        os.close(self._stderr)

    # After `end`:

    @property
    def ending(self) -> str:
        code = self._process.returncode
        try:
            return signal.Signals(-code).name if code < 0 else f"exit code {code}"
        except ValueError:
            return f"signal {-code}"

    def said(self) -> str:
        words = " ".join(self._said.decode("utf-8", "replace").split())
        return f"it said: {words}" if words else "it said nothing"

    def out_of_memory(self) -> bool:
        return self._process.returncode == OUT_OF_MEMORY or _RUST_OUT_OF_MEMORY in self._said
