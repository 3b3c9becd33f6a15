"""The words that the model can explain: definitions.tsv read, and all words that it learns to spell.

Owns the reading. Refuses to know how they are asked for. definitions.tsv is made by wordnet.py.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from demo.facts import ANIMALS, CITIES, COLOURS, COUNTRIES, ITEMS, NAMES, THINGS, TRIED, WORDS

DEFINITIONS = Path(__file__).with_name("definitions.tsv")  # part of speech, word, definition


@cache
def definitions() -> tuple[tuple[str, str, str], ...]:
    """(part of speech, word, definition)."""
    rows = DEFINITIONS.read_text(encoding="utf-8").splitlines()
    return tuple((row.split("\t")[0], row.split("\t")[1], row.split("\t")[2]) for row in rows)


@cache
def words_of(part: str) -> tuple[tuple[str, str, str], ...]:
    return tuple(row for row in definitions() if row[0] == part)


@cache
def spelling_words() -> tuple[str, ...]:
    """Small letters only, each once, in a fixed order."""
    names = [name.lower() for name in (*NAMES, *CITIES, *(row[0] for row in COUNTRIES)) if name.isalpha()]
    words = [*WORDS, *TRIED, *ANIMALS, *ITEMS, *THINGS, *COLOURS, *names, *(word for _, word, _ in definitions())]
    return tuple(dict.fromkeys(words))
