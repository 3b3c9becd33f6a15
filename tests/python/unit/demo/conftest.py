"""What the tests of the demo model share: its modules on the path, and a small tokenizer trained on its text."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
sys.path.insert(0, str(ROOT / "build_tools"))

from demo.corpus import render, samples  # noqa: E402
from demo.tokenizer import make_tokenizer, write_tokenizer  # noqa: E402


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the tokenizer files only."""
    directory = tmp_path_factory.mktemp("demo_tokenizer")
    texts = ["".join(render(sample)) for sample in islice(samples("tokenizer"), 800)]
    write_tokenizer(make_tokenizer(texts, 1_024), directory, context=2_048)
    return directory
