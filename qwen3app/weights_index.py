"""The files of a model directory that say which files hold its weights. Refuses to judge a model: whether it can run
is the engine's word. Pure functions; any thread."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

from qwen3app.errors import ModelError
from qwen3app.text import files
from qwen3app.text.errors import TextError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_MAX_JSON = 64 << 20


def check_regular(path: Path) -> None:
    """Opening a pipe would wait for a writer for ever."""
    if path.exists() and not path.is_file():
        raise ModelError(f"{path} is not a regular file; put the file itself there.")


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; ModelError with one sentence otherwise."""
    try:
        if path.is_file() and path.stat().st_size > _MAX_JSON:
            raise ModelError(f"{path} has {path.stat().st_size} bytes, too many for a JSON file of a model.")
        return files.read_json_object(path)
    except TextError as error:
        raise ModelError(str(error)) from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}.") from None


def weight_files(model_dir: Path) -> list[Path]:
    """The safetensors files that make up the model: those of the index if there is one, else the single file."""
    index = model_dir / INDEX
    if not index.exists():
        return [model_dir / SINGLE] if (model_dir / SINGLE).exists() else []
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise ModelError(f"{index} has no weight_map from tensors to files.")
    names = sorted(set(weight_map.values()))
    for name in names:
        if not stays_inside(name):
            raise ModelError(f"{index} names {name!r}, which lies outside the model directory.")
    return [model_dir / name for name in names]


def stays_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\0" not in name
