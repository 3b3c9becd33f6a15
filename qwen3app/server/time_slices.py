"""Asks the kernel to run the event loop's thread soon and briefly.

A thread that wakes waits for those that run to use up their time slices, some 3 ms on a machine whose cores are all
busy, be it with the engine's own steps on the CPU: longer than the loop needs to write a step's tokens. Linux (6.12 and
newer) lets a thread have shorter slices, which makes it go before others and changes nothing of its share. No right is
needed for it. Older kernels ignore the request; where it cannot be made, nothing is lost but that.

Knows nothing of the server. For the calling thread and those that it starts from then on.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct

SLICE_NS = 100_000  # the shortest that the kernel gives
# sched_setattr(2), which has no wrapper in libc.
_SYSCALLS = {"x86_64": 314, "aarch64": 274}
_SCHED_OTHER = 0
# struct sched_attr: size, policy, flags, nice, priority, runtime (the slice), deadline, period, two hints.
_ATTRIBUTES = struct.Struct("=IIQiIQQQII")


def shorten_time_slices() -> bool:
    """For the calling thread. False: the system does not know how, or the thread is not scheduled as usual."""
    number = _SYSCALLS.get(platform.machine())
    if number is None or os.sched_getscheduler(0) != _SCHED_OTHER:
        return False
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, _SCHED_OTHER, 0, nice, 0, SLICE_NS, 0, 0, 0, 0)
    return bool(ctypes.CDLL(None).syscall(number, 0, attributes, 0) == 0)
