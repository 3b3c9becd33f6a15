"""Are the files of a model directory that concern text sound: tokenizer, chat template, sampling defaults?

Owns the list of them; what is wrong with one is its reader's sentence. Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from qwen3app.text.errors import TextError
from qwen3app.text.generation_config import load_sampling_defaults
from qwen3app.text.template import ChatTemplate
from qwen3app.text.tokenizer import Tokenizer


def text_problems(model_dir: Path, tokenizer: Tokenizer | None = None) -> Iterator[str]:
    """One sentence per problem. tokenizer: the directory's, where it has been read already."""
    try:
        ChatTemplate.from_dir(model_dir, tokenizer or Tokenizer.from_dir(model_dir))
    except (TextError, OSError) as error:
        yield str(error)
    try:
        load_sampling_defaults(model_dir)
    except (TextError, OSError) as error:
        yield str(error)
