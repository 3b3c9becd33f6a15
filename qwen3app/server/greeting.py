"""What the chat page greets with: questions that suit the model, and whether the model is only the toy in the box.

Owns the form of suggestions.json, which a model directory may bring. Refuses to know the page; without a right file it
has suggestions of its own. Runs once, when the model is ready.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from qwen3app.settings import DEMO_MODEL, DEMO_NOTE
from qwen3app.text.errors import TextError
from qwen3app.text.files import read_text

MOST_SUGGESTIONS = 6
MOST_CHARACTERS = 120  # of one; two lines on a phone
_MOST_BYTES = 65_536


@dataclass(frozen=True)
class Greeting:
    suggestions: tuple[str, ...] | None = None  # None: the page's own
    note: str | None = None  # one sentence about the model
    problem: str | None = None  # why a suggestions.json is ignored, for the log


def load_greeting(directory: Path) -> Greeting:
    note = DEMO_NOTE if directory.resolve() == DEMO_MODEL else None
    path = directory / "suggestions.json"
    try:
        return Greeting(_suggestions(path), note)
    except (OSError, TextError) as error:
        return Greeting(None, note, f"{error} The page shows its own suggestions.")


def _suggestions(path: Path) -> tuple[str, ...] | None:
    if not path.exists():
        return None
    if (size := path.stat().st_size) > _MOST_BYTES:
        raise TextError(f"{path} has {size:,} bytes, more than {_MOST_BYTES:,}.")
    text = read_text(path)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise TextError(f"{path} is not valid JSON.") from None
    if not isinstance(found, list) or not 1 <= len(found) <= MOST_SUGGESTIONS:
        raise TextError(f"{path} must be a JSON list of 1 to {MOST_SUGGESTIONS} strings.")
    for place, text in enumerate(found, 1):
        if not isinstance(text, str) or not text.strip() or not text.isprintable() or len(text) > MOST_CHARACTERS:
            raise TextError(f"{path}: entry {place} must be a line of 1 to {MOST_CHARACTERS} printable characters.")
    return tuple(found)
