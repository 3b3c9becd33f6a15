"""How definitions are chosen from WordNet's files: common words, the first sense, plain text."""

from __future__ import annotations

from pathlib import Path

import pytest
from demo.wordnet import choose

DATA = {
    "noun": {
        "00000010": '06 n 01 lamp 0 000 | an artificial source of light (usually electric); "a lamp"',
        "00000020": "09 n 01 valley 0 000 | a long depression in the land; between hills",
        "00000030": "09 n 01 valley 1 000 | another sense that must not be taken",
        "00000040": "06 n 01 lamplight 0 000 | light from a lamp",
        "00000050": "10 n 01 walker 0 000 | someone who walks",
        "00000060": "04 n 01 run 0 000 | a score in baseball made by a runner",
        "00000070": "04 n 01 roman 0 000 | a resident of Rome in Italy",
        "00000080": "04 n 01 walk 0 000 | the act of going somewhere on foot",
    },
    "verb": {"00000090": "38 v 01 walk 0 000 | go on foot at a slow speed"},
    "adj": {},
}
INDEX = {
    "noun": ["lamp n 1 0 1 0 00000010", "valley n 2 0 2 0 00000020 00000030", "lamplight n 1 0 1 0 00000040",
             "walker n 1 0 1 0 00000050", "run n 1 0 1 0 00000060",
             "roman n 1 0 1 0 00000070", "walk n 1 0 1 0 00000080"],
    "verb": ["walk v 1 0 1 0 00000090"],
    "adj": [],
}  # fmt: skip


@pytest.fixture
def wordnet(tmp_path: Path) -> Path:
    for part in DATA:
        licence = "  1 This software and database is being provided to you | licence\n"
        lines = [f"{offset} {rest}\n" for offset, rest in DATA[part].items()]
        (tmp_path / f"data.{part}").write_text(licence + "".join(lines), encoding="latin-1")
        (tmp_path / f"index.{part}").write_text(
            licence + "".join(f"{line}\n" for line in INDEX[part]), encoding="latin-1"
        )
    counts = [
        "valley%1:17:00:: 1 30",
        "lamp%1:06:00:: 1 9",
        "lamp%1:06:01:: 2 99",
        "walk%1:04:00:: 1 3",
        "walk%2:38:00:: 1 40",
    ]
    (tmp_path / "cntlist.rev").write_text("\n".join(counts) + "\n", encoding="latin-1")
    return tmp_path


def test_words_are_chosen_by_count_and_each_once(wordnet: Path) -> None:
    """Words that explain themselves, names, and the rarer part of speech are left out."""
    found = [
        row for row in choose(wordnet) if row[1] in ("lamp", "valley", "lamplight", "walker", "run", "roman", "walk")
    ]
    assert found == [
        ("noun", "valley", "a long depression in the land"),
        ("noun", "lamp", "an artificial source of light"),
        ("verb", "walk", "go on foot at a slow speed"),
    ]
