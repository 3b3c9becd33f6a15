"""How sizes are written: files and downloads in decimal units, memory in binary ones. Pure functions."""

from __future__ import annotations


def format_bytes(count: int) -> str:
    """Decimal units, as disks and downloads count."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{count} B" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB" if size < 1000 else f"{size:,.0f} TB"


def format_memory(count: int) -> str:
    """Binary units, as memory and --kv-gb count."""
    if count >= 100 << 20:
        return f"{count / (1 << 30):.2f} GiB"
    return f"{count / (1 << 20):.1f} MiB" if count >= 1 << 20 else f"{count / (1 << 10):.1f} KiB"
