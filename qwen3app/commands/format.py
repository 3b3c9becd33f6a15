"""How the commands write numbers, names and JSON. Pure functions."""

from __future__ import annotations

import json
from typing import Any, TextIO


def format_bytes(count: int) -> str:
    """Decimal units, as disks and downloads count."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{count} B" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB" if size < 1000 else f"{size:,.0f} TB"


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
