"""What `bench` and `profile` share: number lists of flags, an engine to be measured, Ctrl-C, saying what was measured.

Refuses to know what is measured. Every wrong value becomes one sentence.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from qwen3app import __version__
from qwen3app.argument_types import whole_number
from qwen3app.errors import EngineError, UsageError
from qwen3app.hub.names import model_name
from qwen3app.hub.progress import progress_on
from qwen3app.settings import EngineSettings, add_engine_arguments, resolve_model_dir

if TYPE_CHECKING:
    from qwen3app.abi.engine import Engine
    from qwen3app.abi.types import EngineInfo

T = TypeVar("T")


def whole_numbers(low: int, high: int) -> Callable[[str], list[int]]:
    """argparse type: whole numbers within limits, separated by commas."""
    number = whole_number(low, high)
    return lambda text: [number(part.strip()) for part in text.split(",")]


def add_measuring_arguments(parser: argparse.ArgumentParser) -> None:
    """The engine's flags, as far as they mean something here, and --kernels."""
    parser.add_argument(
        "--kernels",
        metavar="NAME",
        default="auto",
        help="a lower kernel set to compare with: scalar, avx2, avx512, avx512bf16; on a GPU generic (default: auto)",
    )
    add_engine_arguments(parser, has_prefix_cache=False)
    # As many slots as are measured at once; prompts as fast as they go, so that all sequences soon decode together.
    parser.set_defaults(slots=0, prefill_spread=0)


@contextmanager
def measured_engine(args: argparse.Namespace, slots: int) -> Iterator[tuple[Engine, EngineInfo]]:
    """The model of --model, opened for `slots` sequences at once, without the prefix cache."""
    from qwen3app.abi.engine import Engine
    from qwen3app.runtime.interruptible import load_interruptibly

    if args.slots and args.slots < slots:
        raise UsageError(f"{slots} sequences at once need {slots} slots, but --slots is {args.slots}.")
    settings = EngineSettings.from_args(args)
    options = replace(settings.options(), kernels=args.kernels, max_slots=args.slots or slots)
    directory = resolve_model_dir(args.model, lambda: progress_on(sys.stderr))
    try:
        engine = load_interruptibly(lambda progress: Engine.open(directory, options, progress))
    except EngineError as error:
        from qwen3app.runtime.loaded_model import opening_error

        raise opening_error(error) from None
    with engine:
        yield engine, engine.info()


def interruptible(engine: Engine, work: Callable[[], T]) -> T:
    """What work() gives. Its calls into the library may take long, and Python sees Ctrl-C only between calls: so they
    run on a thread of their own, and Ctrl-C closes the engine, which ends the one under way."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work)
        try:
            return done.result()
        except KeyboardInterrupt:
            engine.close()
            raise


def check_writable(*paths: Path | None) -> None:
    """Raises OSError or UsageError for result files that cannot be written, before the measurement instead of after."""
    given = [path for path in paths if path is not None]
    for path in given:
        path.touch()  # not open: the reader of a named pipe would see it end
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    if len({path.resolve() for path in given}) < len(given):
        raise UsageError(f"Two results cannot go to the same file {given[0]}; name two files.")


@contextmanager
def result_file(path: Path) -> Iterator[TextIO]:
    """The file that a result goes to. Every OSError names it, also that of a full disk, which comes without a name."""
    try:
        with path.open("w", encoding="utf-8") as file:
            yield file
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def check_room(info: EngineInfo, n_sequences: int, n_tokens: int) -> None:
    """UsageError unless so many sequences of so many tokens fit at once."""
    if n_tokens > info.max_context:
        raise UsageError(f"A sequence of {n_tokens} tokens is measured, but the context holds {info.max_context}.")
    if n_sequences > info.max_slots:
        raise UsageError(
            f"{n_sequences} sequences at once are measured, but only {info.max_slots} can run "
            f"(--token-budget is {info.token_budget})."
        )
    blocks = n_sequences * -(-n_tokens // info.block_size)
    if blocks > info.n_blocks:
        raise UsageError(
            f"{n_sequences} sequences of {n_tokens} tokens take {blocks} KV blocks of {info.block_size} tokens, but "
            f"there are {info.n_blocks}: measure fewer or shorter ones, or give more memory (--kv-gb)."
        )


def described(model_dir: Path, info: EngineInfo) -> dict[str, Any]:
    """What was measured, when and where, for JSON."""
    return {
        "program": f"qwen3-8b {__version__}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": {
            "name": model_name(model_dir),
            "parameters": info.n_parameters,
            "weight_bytes": info.weight_bytes,
            "layers": info.n_layers,
        },
        "backend": {
            "device": info.device,
            "device_name": info.device_name,
            "kernels": info.kernels,
            "threads": info.threads,
            "token_budget": info.token_budget,
        },
    }


def backend_name(info: EngineInfo) -> str:
    """ "cpu avx512bf16 x 2", "cuda:0 hopper"."""
    threads = f" x {info.threads}" if info.threads else ""
    return f"{info.device} {info.kernels}{threads}"
