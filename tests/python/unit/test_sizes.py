"""Sizes for people: decimal for files, binary for memory."""

from qwen3app.sizes import format_bytes, format_memory


def test_memory_is_binary_and_files_are_decimal() -> None:
    sizes = (0, 512, 114_688, 1 << 20, 3_938_320, 100 << 20, 1 << 30, 15_140_000_000)
    shown = ["0.0 KiB", "0.5 KiB", "112.0 KiB", "1.0 MiB", "3.8 MiB", "0.10 GiB", "1.00 GiB", "14.10 GiB"]
    assert [format_memory(size) for size in sizes] == shown
    assert [format_bytes(size) for size in (999, 114_688, 15_140_000_000)] == ["999 B", "115 kB", "15.1 GB"]
