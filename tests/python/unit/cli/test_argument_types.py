"""Numbers on the command line are written plainly."""

from __future__ import annotations

import argparse

import pytest

from qwen3app.argument_types import number, whole_number


def test_numbers() -> None:
    takes = number(-1.0, 100.0)
    assert [takes(text) for text in ("1", "0.5", "1e1", "-1", "+2", ".25")] == [1.0, 0.5, 10.0, -1.0, 2.0, 0.25]
    for text in ("1_0", "１", "", " 1", "1 ", "one", "0x1"):
        with pytest.raises(argparse.ArgumentTypeError, match="is not a number"):
            takes(text)
    for text in ("nan", "inf", "-inf", "101", "1e400"):
        with pytest.raises(argparse.ArgumentTypeError, match="must be from -1 to 100, got"):
            takes(text)


def test_whole_numbers() -> None:
    takes = whole_number(0, 100)
    assert takes("7") == 7
    for text in ("1_0", "１", "", " 1", "1.0", "1e1"):
        with pytest.raises(argparse.ArgumentTypeError, match="is not a whole number"):
            takes(text)
