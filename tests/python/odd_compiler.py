"""The process that compiles constraints, as it is but for regular expressions that name what may go wrong with one."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qwen3app.abi.matchers import Vocabulary
from qwen3app.compiler import child
from qwen3app.compiler.messages import frame
from qwen3app.text.grammars import ConstraintSpec

COMMAND = [sys.executable, str(Path(__file__).resolve())]


def odd_check(vocabulary: Vocabulary, control_tokens: Mapping[str, int], spec: ConstraintSpec) -> str:
    word, _, argument = str(spec.value).partition(" ")
    if word == "waits":  # says that it has begun, and goes on when the file is gone
        Path(argument).touch()
        while Path(argument).exists():
            time.sleep(0.01)
    elif word == "hangs":
        Path(argument).touch()
        time.sleep(1e6)
    elif word == "hangs-with-the-lock":  # of Python: a match gives it to nobody
        Path(argument).touch()
        re.match(r"(a+)+$", "a" * 64 + "b")
    elif word == "crashes":
        ctypes.string_at(0)
    elif word == "ends":
        os.kill(os.getpid(), signal.SIGKILL)
    elif word == "exits":
        os._exit(3)
    elif word == "takes":  # as many bytes
        bytearray(int(argument))
    elif word == "noisy":
        for descriptor in (1, 2):
            os.write(descriptor, b"noise " * 100_000)
    elif word == "errs":
        raise KeyError("a bug")
    elif word == "panics":
        raise SystemExit(argument)
    elif word == "raves":
        child.frame = lambda content: frame(bytes.fromhex(argument))
    return _check(vocabulary, control_tokens, spec)


_check: Any = child.check

if __name__ == "__main__":
    child.check = odd_check
    child.run_child()
