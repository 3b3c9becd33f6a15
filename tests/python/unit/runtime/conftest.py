"""A runtime over a scripted engine, with the tiny checkpoint's real tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest
from serving import TextParts, load_text


@pytest.fixture(scope="session")
def text_parts(tiny_model_dir: Path) -> TextParts:
    return load_text(tiny_model_dir)
