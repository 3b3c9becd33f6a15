"""Names of models on the Hub, and where the Hub's cache keeps them on this machine.

Owns the form of a name and the reading half of the cache's layout, which all tools of the Hub share:
`models--OWNER--NAME/{refs/REVISION, snapshots/COMMIT/FILE -> ../../blobs/HASH}`. Refuses to touch the network. Pure
functions over the file system; any thread.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from qwen3app.errors import ModelError
from qwen3app.weights_index import weight_files

_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_NAME = re.compile(rf"({_PART}/{_PART})(?:@([A-Za-z0-9][A-Za-z0-9._/-]*))?")
COMMIT = re.compile(r"[0-9a-f]{40}")
_MAX_NAME = 96  # the Hub's own limit for each name
_FOLDER_PREFIX = "models--"
_OFFICIAL_OWNER = "Qwen"
_OFFICIAL = {  # the dense models of Qwen3, by their names in small letters
    name.lower(): name
    for name in (
        *(f"Qwen3-{size}B" for size in ("0.6", "1.7", "4", "8", "14", "32")),
        *(f"Qwen3-{size}B-Base" for size in ("0.6", "1.7", "4", "8", "14")),
        "Qwen3-4B-Instruct-2507",
        "Qwen3-4B-Thinking-2507",
    )
}
_SITES = ("huggingface.co", "www.huggingface.co", "hf.co")


@dataclass(frozen=True)
class HubName:
    repo: str  # OWNER/NAME
    revision: str = "main"  # a branch, a tag or a commit

    def __str__(self) -> str:
        return self.repo if self.revision == "main" else f"{self.repo}@{self.revision}"

    def folder(self, cache: Path) -> Path:
        """Where the cache keeps all revisions of this model."""
        return cache / (_FOLDER_PREFIX + self.repo.replace("/", "--"))


def parse_name(text: str) -> HubName | None:
    """OWNER/NAME, OWNER/NAME@REVISION, or the address of a model's page; None for what cannot be a name on the Hub."""
    text = _without_site(text)
    match = _NAME.fullmatch(text)
    if match is None or len(match[1]) > _MAX_NAME or "--" in match[1] or ".." in text:
        return None
    return HubName(match[1], match[2] or "main")


def official_name(text: str) -> str | None:
    """The official model that the last part of a path is called after, in any letter case: OWNER/NAME, or None."""
    name = _OFFICIAL.get(text.rstrip("/").rpartition("/")[2].lower())
    return name and f"{_OFFICIAL_OWNER}/{name}"


def means_a_folder(repo: str, folder: str) -> bool:
    """Whether who wrote OWNER/NAME meant a directory rather than a model on the Hub: OWNER is `folder`, where models
    are kept, and NAME an official model's. Others publish models of these names on the Hub, too."""
    owner, _, name = repo.partition("/")
    return owner == folder and official_name(name) is not None


def pull_command(official: str, folder: str) -> str:
    """What puts an official model into a folder."""
    return f"qwen3-8b pull {official} --dir {shlex.quote(folder)}"


def _without_site(text: str) -> str:
    """The name in an address of the Hub, as people copy it from a browser; any other text as it is."""
    bare = _scheme_off(text)
    for site in (*_SITES, _scheme_off(os.environ.get("HF_ENDPOINT", ""))):
        if site and bare.startswith(f"{site.rstrip('/')}/"):
            owner, _, rest = re.split(r"[?#]", bare[len(site.rstrip("/")) + 1 :])[0].strip("/").partition("/")
            name, *more = rest.split("/")
            if len(more) >= 2 and more[0] in ("tree", "blob", "resolve", "commit"):
                return f"{owner}/{name}@{unquote(more[1])}"
            return "/".join([owner, name, *more])
    return text


def _scheme_off(address: str) -> str:
    return re.sub(r"^https?://", "", address)


def cache_directory() -> Path:
    """The Hub's cache: $HF_HUB_CACHE, else $HF_HOME/hub, else ~/.cache/huggingface/hub."""
    try:
        from huggingface_hub import constants
    except ValueError as error:  # of a variable that must be a number
        raise ModelError(
            f"A variable of the Hub's is no number ({error}); look for those that begin with HF_."
        ) from None
    return Path(constants.HF_HUB_CACHE)


def find_cached(name: HubName, cache: Path) -> Path | None:
    """The directory of a model that is in the cache with all its weights, else None."""
    folder = name.folder(cache)
    commit = name.revision
    if not COMMIT.fullmatch(commit):
        try:
            commit = (folder / "refs" / name.revision).read_text("ascii").strip()
        except (OSError, ValueError):
            return None
    directory = folder / "snapshots" / commit
    return directory if is_complete(directory) else None


def is_complete(directory: Path) -> bool:
    """Whether a model directory has its configuration, its tokenizer and every file of weights that it names."""
    try:
        weights = weight_files(directory)
    except ModelError:
        return False
    needed = [directory / "config.json", directory / "tokenizer.json", *weights]
    return bool(weights) and all(path.is_file() for path in needed)


def model_name(directory: Path) -> str:
    """What to call a model: its name on the Hub for a directory of the Hub's cache, else the directory's own."""
    path = directory.resolve()
    folder = path.parent.parent.name
    if path.parent.name == "snapshots" and folder.startswith(_FOLDER_PREFIX):
        return folder.removeprefix(_FOLDER_PREFIX).replace("--", "/", 1)
    return shown_path(Path(path.name))


def shown_path(path: Path) -> str:
    """A path as a text that can be sent and logged: bytes that are no UTF-8 become question marks."""
    return str(path).encode("utf-8", "replace").decode()
