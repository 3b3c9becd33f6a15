"""Finds the library and its header, and turns qwen3.h into declarations that cffi's parser takes.

The header that lies beside the library is the one read, so the two cannot drift apart. What is dropped: comments,
preprocessor lines, the export macro. What is resolved: macros used as array sizes. A test compares the result with
the header, declaration by declaration.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from qwen3app.errors import UsageError

_PACKAGE = Path(__file__).resolve().parent.parent
_CHECKOUT = _PACKAGE.parent


class LibraryFiles(NamedTuple):
    library: Path
    header: Path


def find_library() -> LibraryFiles:
    """QWEN3_LIBRARY, else the installed library, else the one built in this checkout."""
    installed_header = _PACKAGE / "_native" / "qwen3.h"
    headers = [installed_header, _CHECKOUT / "native" / "include" / "qwen3.h"]
    override = os.environ.get("QWEN3_LIBRARY")
    if override:
        library = Path(override)
        if not library.is_file():
            raise UsageError(f"QWEN3_LIBRARY names {override}, which is not a file.")
        headers.insert(0, library.parent / "qwen3.h")
        headers.insert(1, headers.pop())  # an override is for a checkout: its header comes before the installed one
    else:
        candidates = [_PACKAGE / "_native" / "libqwen3.so", _CHECKOUT / "build" / "native" / "libqwen3.so"]
        found = [path for path in candidates if path.is_file()]
        if not found:
            raise UsageError(
                f"The engine's library libqwen3.so is missing (looked at {candidates[0]} and {candidates[1]}); "
                "build it with `make`, or set QWEN3_LIBRARY to its path."
            )
        library = found[0]
        if library != candidates[0]:
            headers.reverse()
    for header in headers:
        if header.is_file():
            return LibraryFiles(library, header)
    raise UsageError(f"The header qwen3.h that belongs to {library} is missing; build again with `make`.")


def integer_macros(header: str) -> dict[str, int]:
    """The header's `#define NAME NUMBER` lines."""
    return {name: int(value) for name, value in re.findall(r"^#define (\w+)[ \t]+(\d+)[ \t]*$", header, re.M)}


def declarations(header: str) -> str:
    """The C declarations of the header's text, for cffi's `cdef`."""
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.S)
    macros = integer_macros(text)
    text = re.sub(r"^#ifdef __cplusplus$.*?^#endif$", "", text, flags=re.S | re.M)
    text = re.sub(r"^#.*$", "", text, flags=re.M)
    text = re.sub(r"\bQWEN3_API\s+", "", text)
    for name, value in macros.items():
        text = re.sub(rf"\b{name}\b", str(value), text)
    return re.sub(r"\n\s*\n+", "\n", text).strip() + "\n"
