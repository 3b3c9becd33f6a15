"""`@path` in a typed question: the file's text goes along with it.

Owns which words are paths and how their text stands in the question: the words stay as they are, without the @, and
the files follow behind, each in a fence that its text cannot close. Refuses to know the terminal. A word that names
nothing is left alone, as an @ also begins names and decorators; `notes` says so where it looks like a path. Only what
a person types is read this way, never a block between triple quotes, what a pipe or a model says. Any thread.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path

from qwen3app.chat.errors import ChatError

MAX_BYTES = 4 << 20  # more than any context holds

_WORD = re.compile(r'(?<!\S)@(?:"([^"\n]+)"|(\S+))')
_TAIL = ".,;:!?)]}'\""  # what may stand behind a path in a sentence


@dataclass
class Question:
    """text: what the model gets. notes: sentences for the user about what was added, and what was not."""

    text: str
    notes: list[str] = field(default_factory=list)


def with_files(typed: str) -> Question:
    """The typed question with the files that it names; ChatError for one that cannot be sent."""
    question = Question(typed)
    files: dict[Path, str] = {}

    def replace(match: re.Match[str]) -> str:
        quoted, bare = match.groups()
        written = quoted or bare
        tail = "" if quoted else written[len(written.rstrip(_TAIL)) :]
        for name, rest in ((written, ""), (written.removesuffix(tail), tail)) if tail else ((written, ""),):
            place = os.path.expanduser(name)  # noqa: PTH111 - an unknown ~user stays as it is
            if os.path.isfile(place):  # noqa: PTH113 - a word that can be no path at all is none, too
                path = Path(place)
                if path not in files:
                    files[path] = read_text(path)
                return f"{name}{rest}"
        bare = written.removesuffix(tail)
        if os.path.isdir(os.path.expanduser(bare)):  # noqa: PTH111, PTH112 - as above
            question.notes.append(f"{bare} is a directory, and only files can be added: @{bare} is sent as it stands.")
        elif quoted or "/" in written or re.search(r"\w\.\w{1,5}\W*$", written):
            question.notes.append(f"{written} is no file: @{written} is sent as it stands.")
        return match.group()

    text = _WORD.sub(replace, typed)
    for path, content in files.items():
        fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", content)), default=0))
        end = "" if content.endswith("\n") else "\n"
        text += f"\n\n{path}:\n{fence}{path.suffix.removeprefix('.')}\n{content}{end}{fence}"
        lines = len(content.splitlines())
        question.notes.append(f"{path}: {lines} line{'' if lines == 1 else 's'} added.")
    question.text = text
    return question


def read_text(path: Path, most: int = MAX_BYTES, holder: str = "a context") -> str:
    """A file's UTF-8 text; ChatError names what is wrong with it. most: bytes that `holder` holds."""
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # opening a pipe would wait for a writer
            raise ChatError(f"{path} is no regular file.")
        with path.open("rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise ChatError(f"{path} cannot be read: {error.strerror}.") from None
    if len(data) > most:
        raise ChatError(f"{path} is larger than {most >> 20} MiB, more than {holder} holds.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ChatError(f"{path} is not UTF-8 text: byte {error.start} is 0x{data[error.start]:02x}.") from None
    if "\0" in text:
        raise ChatError(f"{path} holds NUL characters; is it a text?")
    return text
