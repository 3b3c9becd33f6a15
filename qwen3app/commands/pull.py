"""`qwen3-8b pull`: the flags around hub/pull.py, and what it says at the end."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from qwen3app.errors import ModelError, UsageError
from qwen3app.hub.client import UnknownName
from qwen3app.hub.names import means_a_folder, official_name, parse_name, pull_command
from qwen3app.hub.progress import progress_on
from qwen3app.hub.pull import pull
from qwen3app.settings import DEFAULT_MODEL


def add_pull_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name",
        metavar="NAME",
        help="OWNER/NAME on the Hub, like Qwen/Qwen3-8B, or its address there; @REVISION may follow",
    )
    parser.add_argument(
        "--dir",
        metavar="DIR",
        help="put the files into this folder (default: the Hub's cache, which other tools share: $HF_HUB_CACHE, else "
        "$HF_HOME/hub, else ~/.cache/huggingface/hub)",
    )


def run_pull(args: argparse.Namespace) -> int:
    """Prints the model's directory on stdout; the rest goes to stderr."""
    name = parse_name(args.name)
    is_directory = os.path.isdir(args.name)  # noqa: PTH112 - a text that can be no path is none
    # As a name it would be asked for on the Hub, where anybody may have put something there.
    is_folder = name is not None and name.repo == args.name and means_a_folder(args.name, str(DEFAULT_MODEL.parent))
    if is_folder and not is_directory:
        raise UsageError(
            f"{args.name} is a folder's name, not a model's on the Hub; "
            f"`{pull_command(str(official_name(args.name)), args.name)}` puts the model there."
        )
    if is_directory and (name is None or is_folder):
        raise UsageError(
            f"{args.name} is a directory here, not a name on the Hub; a model in it needs no download "
            f"(--model {args.name}). Give OWNER/NAME, like Qwen/Qwen3-8B."
        )
    if name is None:
        raise UsageError(f"{args.name!r} is no name on the Hub; give OWNER/NAME, like Qwen/Qwen3-8B.")
    if args.dir == "":
        raise UsageError("--dir is empty; give a folder.")
    folder = None if args.dir is None else Path(args.dir)
    if folder is not None and folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} (--dir) is a file; give a folder.")
    try:
        directory = pull(name, progress_on(sys.stderr), folder)
    except UnknownName as error:
        if not is_directory:
            raise
        raise ModelError(
            f"{error} But {args.name} is a directory here: a model in it needs no download, only --model {args.name}."
        ) from None
    print(directory)
    return 0
