#!/usr/bin/env python3
"""Runs a command and, all along, stops processes that belong to it for moments, as a machine does that has more to do
than it can. A test that counts on being quick fails under it. Usage, in the repository's root:

    .venv/bin/python tests/stalls.py [--seed N] [--longest SECONDS] .venv/bin/python -m pytest tests/python/unit
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import time

import psutil

_ALL_AT_ONCE = 0.2  # share of the stalls that hold the whole tree


def tree_of(root: psutil.Process) -> list[int]:
    with contextlib.suppress(psutil.Error):
        return [each.pid for each in (root, *root.children(recursive=True)) if each.status() != psutil.STATUS_ZOMBIE]
    return []


def send(number: signal.Signals, processes: list[int]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--longest", type=float, default=1.5, metavar="SECONDS", help="of a stall (default: 1.5)")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    if not arguments.command:
        parser.error("which command?")
    chance = random.Random(arguments.seed)
    process = subprocess.Popen(arguments.command)
    root = psutil.Process(process.pid)
    while process.poll() is None:
        time.sleep(chance.uniform(0.02, 0.5))
        processes = tree_of(root)
        if processes and chance.random() >= _ALL_AT_ONCE:
            processes = [chance.choice(processes)]
        send(signal.SIGSTOP, processes)
        time.sleep(chance.choice((0.05, 0.2, 0.5, arguments.longest)))
        send(signal.SIGCONT, processes)
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
