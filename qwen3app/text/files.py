"""Reading the small JSON files of a model directory.

Owns: the sentences for files that are missing, unreadable, not JSON or only git-lfs pointers.
Threads: pure, any thread.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from qwen3app.text.errors import TextError

_LFS_POINTER = "version https://git-lfs.github.com/spec/"


def pointer_problem(path: Path, beginning: str | bytes) -> str | None:
    """What is wrong with a file that begins like this, if it is a git-lfs pointer: a clone without git-lfs has these in
    the place of large files."""
    if isinstance(beginning, bytes):
        beginning = beginning[: len(_LFS_POINTER)].decode("ascii", "replace")
    if not beginning.startswith(_LFS_POINTER):
        return None
    return f"{path} is a git-lfs pointer, not the file itself; run `git lfs pull` in the model directory."


def read_text(path: Path) -> str:
    """The file's text; TextError when it is missing, unreadable, not UTF-8 or a git-lfs pointer."""
    if path.exists() and not path.is_file():  # opening a pipe would wait for a writer for ever
        raise TextError(f"{path} is not a regular file; put the file itself there.")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise TextError(f"{path} is missing; a model directory needs it, download the model again.") from None
    except UnicodeDecodeError as error:
        raise TextError(f"{path} is not UTF-8 text (byte {error.start}); download the file again.") from None
    except OSError as error:
        raise TextError(f"{path} cannot be read: {error.strerror or error}.") from None
    if problem := pointer_problem(path, text):
        raise TextError(problem)
    return text


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in the file; TextError as read_text, and when it is not JSON or not an object."""
    text = read_text(path)
    try:
        value = json.loads(text)
    except ValueError as error:  # json.JSONDecodeError, and int strings beyond Python's digit limit
        raise TextError(f"{path} is not valid JSON ({error}); download the file again.") from None
    except RecursionError:
        raise TextError(f"{path} is nested too deeply to be read; download the file again.") from None
    if not isinstance(value, dict):
        raise TextError(f"{path} holds a JSON {type(value).__name__}, not an object; download the file again.")
    return value


def read_optional_json_object(path: Path) -> dict[str, Any]:
    """Like read_json_object, but a missing file is an empty object."""
    return read_json_object(path) if path.exists() else {}
