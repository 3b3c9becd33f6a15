"""What coded weights rest on (native/src/backend/cuda/kernels.h), looked up in trained weights: the exponents of a row
lie within 16 of each other but for one weight in ten thousand, and a block has room for those."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

np = pytest.importorskip("numpy")

from qwen3app.settings import DEMO_MODEL  # noqa: E402

WINDOW = 16  # exponents that a row's codes can tell apart
ESCAPES = 8  # weights outside of it that a block of 16 rows and 64 columns has room for
BLOCK_ROWS, BLOCK_COLUMNS = 16, 64
# A block of gate_up has 8 rows of each, so what holds for every 8 rows, by halves, holds for every block.
HALF_ROWS, HALF_ESCAPES = BLOCK_ROWS // 2, ESCAPES // 2


def matrices() -> Iterator[tuple[str, np.ndarray]]:
    """The model's matrices, as the bits of bfloat16. [rows, columns] uint16"""
    with (DEMO_MODEL / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        begin = file.tell()
        for name, tensor in header.items():
            if name == "__metadata__" or len(tensor["shape"]) != 2:
                continue
            assert tensor["dtype"] == "BF16"
            start, end = tensor["data_offsets"]
            file.seek(begin + start)
            yield name, np.frombuffer(file.read(end - start), "<u2").reshape(tensor["shape"])


def escapes(bits: np.ndarray) -> np.ndarray:
    """Which weights lie outside the 16 exponents that hold most of their row. [rows, columns] bool"""
    exponents = (bits >> 7 & 255).astype(np.int64)
    counts = np.stack([np.bincount(row, minlength=256) for row in exponents])
    below = np.pad(counts.cumsum(1), ((0, 0), (1, 0)))  # of each exponent: weights with a smaller one
    base = (below[:, WINDOW:] - below[:, :-WINDOW]).argmax(1)[:, None]
    return (exponents < base) | (exponents >= base + WINDOW)


def most(outside: np.ndarray, rows: int) -> int:
    """The most escapes in so many rows and a block's columns; the last columns may be fewer."""
    n_rows, n_columns = outside.shape
    assert n_rows % rows == 0
    blocks = np.pad(outside, ((0, 0), (0, -n_columns % BLOCK_COLUMNS)))
    return int(blocks.reshape(n_rows // rows, rows, -1, BLOCK_COLUMNS).sum((1, 3)).max())


def test_escapes_are_counted() -> None:
    bits = np.full((16, 100), 100 << 7, np.uint16)
    bits[0, :16] = np.arange(100, 116) << 7  # a full window
    assert not escapes(bits).any()
    bits[0, 20] = 116 << 7
    bits[1, 70] = 0x8000  # minus zero
    bits[2, 99] = 85 << 7 | 0x807F  # negative, the window's first exponent
    bits[3, :99] = np.arange(99) % 16 + 1 << 7  # a window of its own
    assert [tuple(place) for place in np.argwhere(escapes(bits))] == [(0, 20), (1, 70), (3, 99)]
    assert most(escapes(bits), 16) == 2 and most(escapes(bits), 2) == 1


def test_trained_weights_have_the_coded_form() -> None:
    n_weights = n_escapes = 0
    for name, bits in matrices():
        outside = escapes(bits)
        assert outside.mean() < 1e-3, name
        assert most(outside, HALF_ROWS) <= HALF_ESCAPES, name
        n_weights += outside.size
        n_escapes += int(outside.sum())
    assert n_weights > 5_000_000
    assert n_escapes / n_weights < 1e-4
