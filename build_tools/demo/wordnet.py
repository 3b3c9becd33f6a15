"""Makes definitions.tsv from WordNet 3.0 (Debian's package wordnet-base): common words with short, plain definitions.

    python build_tools/demo/wordnet.py /usr/share/wordnet

Owns the choice of words. Needed only to make the file anew: it is in the repository (WordNet's licence allows it and
stands in qwen3app/qwen3-demo/WordNet.LICENSE).
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

OUT = Path(__file__).with_name("definitions.tsv")
# part of speech -> the digit of its sense keys, how many words
_PARTS = {"noun": ("1", 1_600), "verb": ("2", 400), "adjective": ("35", 400)}
_FILES = {"noun": "noun", "verb": "verb", "adjective": "adj"}
# Everyday things rank higher than their count in old newspapers says: animals, artefacts, body, food, nature, plants.
_EVERYDAY = {"05", "06", "08", "13", "17", "20"}
_LONGEST = 80
# Everyday words whose first definition in WordNet is a scholar's.
_OWN = (
    ("cat", "a small furry animal that is kept as a pet and catches mice"),
    ("dog", "an animal that barks, is kept as a pet and guards the house"),
    ("bread", "food made from flour, water and yeast, and baked"),
    ("teacher", "a person who helps others to learn, at a school for example"),
    ("house", "a building in which people live"),
    ("tree", "a tall plant with a trunk of wood, branches and leaves"),
    ("water", "the clear liquid that falls as rain and fills rivers and seas"),
    ("computer", "a machine that stores data and works with it as programs say"),
    ("book", "many printed pages that are bound together"),
    ("school", "a place where children are taught"),
    ("car", "a vehicle with four wheels and an engine"),
    ("sun", "the star that gives the earth light and warmth"),
    ("moon", "the round body that circles the earth and shines at night"),
    ("bird", "an animal with feathers, wings and a beak"),
    ("fish", "an animal that lives in water and breathes through gills"),
    ("horse", "a large animal that people ride"),
    ("friend", "a person whom one likes and trusts"),
    ("music", "sounds of voices or instruments that are pleasant to hear"),
    ("garden", "a piece of land where flowers, fruit or vegetables are grown"),
    ("clock", "an instrument that shows the time"),
)
_UNWANTED = re.compile(
    r"sex|prostitut|rape|genital|kill|murder|racial|race|slur|negro|drug|penis|vagina|nazi|suicid|devil|god|christ|jew"
    r"|islam|muslim|bible|nude|naked|torture|slave|excre|feces|urin|copulat|breast|buttock|homosex|alcohol"
)


def _first_sense_counts(folder: Path, digits: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    for line in (folder / "cntlist.rev").read_text(encoding="latin-1").splitlines():
        key, sense, count = line.split()
        word, rest = key.split("%")
        if rest[0] in digits and sense == "1":
            counts[word] += int(count)
    return counts


def _definition(gloss: str) -> str:
    text = re.sub(r"\([^)]*\)", "", gloss.split(";")[0])
    return " ".join(text.split()).replace(" ,", ",")


def choose(folder: Path) -> list[tuple[str, str, str]]:
    """(part of speech, word, definition), the same for the same WordNet."""
    own = {word for word, _ in _OWN}
    best: dict[str, tuple[int, str, str]] = {}  # word -> the part of speech that it is most often
    for part, (digits, _) in _PARTS.items():
        counts = _first_sense_counts(folder, digits)
        lines = (folder / f"data.{_FILES[part]}").read_text(encoding="latin-1").splitlines()
        data = {line[:8]: line for line in lines if not line.startswith(" ")}
        for line in (folder / f"index.{_FILES[part]}").read_text(encoding="latin-1").splitlines():
            fields = line.split()
            word = fields[0]
            if line.startswith(" ") or not re.fullmatch("[a-z]{3,11}", word):
                continue
            record, gloss = data[fields[-int(fields[2])]].split(" | ", 1)
            text = _definition(gloss)
            stem = word[:4] if len(word) > 4 else word
            plain = (
                re.fullmatch(r"[a-z](?:[a-z ,']|-(?!-)){9,}(?<! of)(?<! to)(?<! with)", text) and len(text) <= _LONGEST
            )
            if not plain or re.search(rf"\b{stem}", text) or _UNWANTED.search(f"{word} {text}"):
                continue
            bonus = 15 if record.split()[1] in _EVERYDAY and counts[word] else 0
            best[word] = max(best.get(word, (0, "", "")), (counts[word] + bonus, part, text))
    rows = [("noun", word, text) for word, text in _OWN]
    for part, (_, n_words) in _PARTS.items():
        found = [(-count, word, text) for word, (count, of, text) in best.items() if of == part and word not in own]
        rows += [(part, word, text) for _, word, text in sorted(found)[:n_words]]
    return rows


if __name__ == "__main__":
    OUT.write_text("".join("\t".join(row) + "\n" for row in choose(Path(sys.argv[1]))), encoding="utf-8")
