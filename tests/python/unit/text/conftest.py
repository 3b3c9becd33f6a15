"""Fixtures of the text layer's tests: the official tokenizer and template, golden files, small self-made tokenizers."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as HfTokenizer

from qwen3app.text.template import ChatTemplate
from qwen3app.text.tokenizer import Tokenizer

TESTS = Path(__file__).resolve().parents[3]
OFFICIAL = TESTS / "data" / "qwen3"


def seconds_allowed(seconds: float) -> float:
    """A limit of processor time: `make test-long` holds to it. Elsewhere it is ten times as long, because on a busy
    machine a core does less in its time; what is quadratic where it should be linear does not end in that time either.
    While coverage traces every line, MEGABYTE is a tenth too, so that there is the same room."""
    return seconds * (1 if os.environ.get("QWEN3_LONG") else 10)


# Characters of a long text: a megabyte, but for coverage runs.
MEGABYTE = 100_000 if sys.gettrace() else 1_000_000


def golden(name: str) -> list[Any]:
    """pytest params of one golden file, named as the cases are."""
    lines = (TESTS / "golden" / f"{name}.jsonl").read_text(encoding="ascii").splitlines()
    rows = [json.loads(line) for line in lines]
    return [pytest.param(row, id=row["name"]) for row in rows]


@pytest.fixture(scope="session")
def official() -> Path:
    return OFFICIAL


@cache
def official_tokenizer() -> Tokenizer:
    """For hypothesis tests, which want no fixtures."""
    return Tokenizer.from_dir(OFFICIAL)


@cache
def official_template() -> ChatTemplate:
    return ChatTemplate.from_dir(OFFICIAL, official_tokenizer())


@pytest.fixture
def tokenizer() -> Tokenizer:
    return official_tokenizer()


@pytest.fixture
def template() -> ChatTemplate:
    return official_template()


@pytest.fixture(scope="session")
def template_source() -> str:
    return (OFFICIAL / "chat_template.jinja").read_text(encoding="utf-8")


def small_tokenizer(added: list[AddedToken | str], *, in_vocab: tuple[str, ...] = ()) -> HfTokenizer:
    """A byte-level BPE with the 256 bytes and no merges. in_vocab: further entries, found whole (ignore_merges)."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {piece: i for i, piece in enumerate([*alphabet, *in_vocab])}
    hf = HfTokenizer(models.BPE(vocab=vocab, merges=[], ignore_merges=bool(in_vocab)))
    hf.normalizer = normalizers.NFC()
    hf.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    hf.decoder = decoders.ByteLevel()
    hf.add_tokens(added)
    return hf


@pytest.fixture
def model_dir(tmp_path: Path) -> Callable[..., Path]:
    """Writes a model directory: a small tokenizer plus any other files, JSON values or texts."""

    def write(added: list[AddedToken | str] | None = None, *, in_vocab: tuple[str, ...] = (), **files: Any) -> Path:
        tokens = ["<|im_start|>", "<|im_end|>", "<think>", "</think>"] if added is None else added
        small_tokenizer(list(tokens), in_vocab=in_vocab).save(str(tmp_path / "tokenizer.json"))
        for name, value in files.items():
            path = tmp_path / (f"{name}.jinja" if name == "chat_template" else f"{name}.json")
            path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
        return tmp_path

    return write
