"""The demo's own tokenizer: byte-level BPE of 4,096 ids with Qwen3's splitting rules and control tokens.

The control tokens have the official strings and flags but ids of their own, at the end of the vocabulary.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from make_checkpoint import OFFICIAL, train_tokenizer
from tokenizers import AddedToken, Tokenizer

VOCAB = 4_096


def official_added_tokens() -> list[dict[str, Any]]:
    """The official control tokens in the order of their ids."""
    decoder = json.loads((OFFICIAL / "tokenizer_config.json").read_text(encoding="utf-8"))["added_tokens_decoder"]
    return [decoder[key] for key in sorted(decoder, key=int)]


def make_tokenizer(texts: Iterable[str], vocab: int = VOCAB) -> Tokenizer:
    added = official_added_tokens()
    return train_tokenizer(texts, vocab - len(added), [AddedToken(**token) for token in added], min_frequency=2)


def token_id(tokenizer: Tokenizer, token: str) -> int:
    found = tokenizer.token_to_id(token)
    if found is None:
        raise ValueError(f"the tokenizer has no token {token}")
    return found


def write_tokenizer(tokenizer: Tokenizer, out: Path, *, context: int) -> None:
    """tokenizer.json, tokenizer_config.json and chat_template.jinja as a published directory has them."""
    tokenizer.save(str(out / "tokenizer.json"))
    config = json.loads((OFFICIAL / "tokenizer_config.json").read_text(encoding="utf-8"))
    added = official_added_tokens()
    config["added_tokens_decoder"] = {str(tokenizer.token_to_id(token["content"])): token for token in added}
    config["model_max_length"] = context
    config.pop("chat_template", None)  # the file beside it is the one
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    (out / "tokenizer_config.json").write_text(text, encoding="utf-8")
    shutil.copyfile(OFFICIAL / "chat_template.jinja", out / "chat_template.jinja")
