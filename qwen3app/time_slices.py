"""Asks the kernel to let a thread run soon and briefly, as the event loop does.

A thread that wakes waits for those that run to use up their time slices, some 3 ms on a machine whose cores are all
busy, be it with the engine's own steps on the CPU: longer than the loop needs to write a step's tokens. Linux (6.12 and
newer) lets a thread have slices of its own: short ones make it go before others, and its share stays what it was. No
right is needed for it. Older kernels ignore the request; where it cannot be made, nothing is lost but that.

Knows nothing of the server. For the calling thread alone: those that it starts have the usual slices.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import struct

SHORT_NS = 100_000  # the shortest that the kernel gives
# sched_setattr(2), which has no wrapper in libc.
_SYSCALLS = {"x86_64": 314, "aarch64": 274}
_SCHED_OTHER = 0
_RESET_ON_FORK = 1  # a flag of sched_setattr
# struct sched_attr: size, policy, flags, nice, priority, runtime (the slice), deadline, period, two hints.
_ATTRIBUTES = struct.Struct("=IIQiIQQQII")


def shorten_time_slices() -> bool:
    """False: the system does not know how, or the thread is not scheduled as usual."""
    number = _SYSCALLS.get(platform.machine())
    if number is None or os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK != _SCHED_OTHER:
        return False
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, _SCHED_OTHER, _RESET_ON_FORK, nice, 0, SHORT_NS, 0, 0, 0, 0)
    return bool(_libc().syscall(number, 0, attributes, 0) == 0)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
