"""Loading that Ctrl-C ends.

Python delivers no interrupt while its main thread is inside the library. So the load runs on a thread of its own; on an
interrupt the library is asked to stop, and where it sits in one long step the process ends at once. Call it from the
main thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
Progress = Callable[[str, int, int], bool | None]  # phase, done, total; returning False stops the loading

_STOP_SECONDS = 2.0  # the time a load has to notice that it shall stop
_INTERRUPTED = 130


def load_interruptibly(
    load: Callable[[Progress], T],
    show: Callable[[str, int, int], None] = lambda phase, done, total: None,
    before_exit: Callable[[], None] = lambda: None,
) -> T:
    """What `load` gives, or its error; KeyboardInterrupt stops it. show: told how far it is, on its thread."""
    stopping, done = threading.Event(), threading.Event()
    result: list[T] = []
    failure: list[BaseException] = []

    def progress(phase: str, n_done: int, total: int) -> bool:
        show(phase, n_done, total)
        return not stopping.is_set()

    def run() -> None:
        try:
            result.append(load(progress))
        except BaseException as error:  # handed to the caller's thread
            failure.append(error)
        finally:
            done.set()

    threading.Thread(target=run, name="load", daemon=True).start()
    try:
        done.wait()  # not Thread.join: Python 3.11 takes a thread for ended when its join is interrupted
    except KeyboardInterrupt:
        stopping.set()
        if not done.wait(_STOP_SECONDS):
            before_exit()
            os._exit(_INTERRUPTED)  # the thread is inside the library: nothing to save, and no other way to end it
        raise
    if failure:
        raise failure[0]
    return result[0]
