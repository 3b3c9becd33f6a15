"""The process that compiles constraints one by one for the server that started it: `qwen3-8b compile-constraints`.

Owns: the process's limits and its end. Refuses to know: what a constraint is (checking.py) and when it takes too long:
the server ends it then, as it ends a constraint that makes it crash.
The rules:
- It ends with its server: the main thread does nothing but read, and the end of that pipe is the end of the process,
  whatever is being compiled. Where the interpreter cannot even run that thread, the limit of processor time ends it.
- Signals that end a server, or a terminal's whole group, do not end it.
- What anything prints goes to stderr, which the server keeps for itself; stdout belongs to the replies.

Threads: the main one reads, another one compiles, with the stack that this needs.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from queue import SimpleQueue
from typing import NoReturn

import msgspec

from qwen3app.abi.matchers import Vocabulary
from qwen3app.compiler import COMMAND
from qwen3app.compiler.checking import STACK_BYTES, check
from qwen3app.compiler.messages import LENGTH, OUT_OF_MEMORY, Reply, Setup, frame, read_spec
from qwen3app.errors import RequestError, UsageError

# Of the processor, for one compilation: far more than a server waits, for a child that has no server any more.
_CPU_SECONDS = 20


def run_child() -> NoReturn:
    """Raises UsageError where a person started it."""
    if os.isatty(0):
        raise UsageError(f"`{COMMAND}` is for `qwen3-8b serve`, which starts it when it needs it.")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _limit(resource.RLIMIT_CORE, 0)
    with contextlib.suppress(OSError):  # where memory is short, this goes before the server
        Path("/proc/self/oom_score_adj").write_text("1000")
    replies = os.dup(1)
    os.dup2(2, 1)
    messages: SimpleQueue[bytes] = SimpleQueue()
    threading.stack_size(STACK_BYTES)
    threading.Thread(target=_compile, args=(messages, replies), name="compile", daemon=True).start()
    while head := _read(LENGTH.size):
        messages.put(_read(LENGTH.unpack(head)[0]))
    os._exit(0)


def _read(n: int) -> bytes:
    """n bytes, or none at the end of the pipe."""
    parts: list[bytes] = []
    while n:
        part = os.read(0, min(n, 1 << 20))
        if not part:
            return b""
        parts.append(part)
        n -= len(part)
    return b"".join(parts)


def _compile(messages: SimpleQueue[bytes], replies: int) -> None:
    try:
        setup = msgspec.msgpack.decode(messages.get(), type=Setup)
        vocabulary = Vocabulary(setup.tokens)
        _write(replies, Reply())
        while True:
            message = messages.get()
            _limit(resource.RLIMIT_CPU, int(time.process_time()) + _CPU_SECONDS)
            _limit(resource.RLIMIT_DATA, _data_bytes() + setup.memory_bytes)
            _write(replies, answer(vocabulary, setup.control_tokens, message))
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def answer(vocabulary: Vocabulary, control_tokens: dict[str, int], message: bytes) -> Reply:
    """message: a constraint as messages.write_spec has it."""
    try:
        return Reply(grammar=check(vocabulary, control_tokens, read_spec(message)))
    except RequestError as error:
        return Reply(fault=str(error), param=error.param)
    except MemoryError:
        raise
    except Exception:
        return Reply(bug=traceback.format_exc())


def _write(replies: int, reply: Reply) -> None:
    left = memoryview(frame(msgspec.msgpack.encode(reply)))
    while left:
        left = left[os.write(replies, left) :]


def _data_bytes() -> int:
    """What counts for RLIMIT_DATA: memory that can be written and is nobody else's, not what is merely reserved."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    except OSError:  # no /proc is mounted
        return 0


def _limit(what: int, value: int) -> None:
    _, hard = resource.getrlimit(what)
    resource.setrlimit(what, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))
