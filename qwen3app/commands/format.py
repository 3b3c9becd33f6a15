"""How the commands write counts, names and JSON. Pure functions."""

from __future__ import annotations

import json
from typing import Any, TextIO


def format_count(count: int) -> str:
    """A number of parameters: 8.19 B, 596 M."""
    for limit, unit in ((1e9, " B"), (1e6, " M"), (1e3, " k")):
        if count >= limit:
            return f"{count / limit:.3g}{unit}"
    return str(count)


def shown(text: str) -> str:
    """A name or value from a file, on one line and without control characters."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


def print_json(value: Any, stream: TextIO) -> None:
    json.dump(value, stream, indent=2, ensure_ascii=True)
    stream.write("\n")
