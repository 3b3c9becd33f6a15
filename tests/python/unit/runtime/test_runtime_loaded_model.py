"""LoadedModel.load on good and broken directories."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from qwen3app.abi import Engine, EngineOptions
from qwen3app.abi.types import EngineInfo
from qwen3app.errors import AppError, EngineError, ModelError, Status
from qwen3app.runtime import GenerationParams, LoadedModel, Runtime
from qwen3app.runtime.loaded_model import _count_token_ids, more_context

SMALL = EngineOptions(device="cpu", threads=1, kv_bytes=64 << 20, max_context=1024)


@pytest.fixture
def copy(tiny_model_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model_dir, tmp_path / "copy"))


async def test_load_and_generate(tiny_model_dir: Path) -> None:
    phases: list[str] = []
    began = time.perf_counter()
    model = LoadedModel.load(tiny_model_dir, SMALL, lambda phase, done, total: phases.append(phase))
    try:
        assert model.name == "tiny" and model.info.n_token_ids == model.tokenizer.n_ids
        assert list(dict.fromkeys(phases)) == ["map", "weights", "kv"]
        assert list(model.load_phases) == ["ids", "library", "map", "weights", "kv", "text"]
        # The phases have no gaps, so that they add up; what is between the clocks is all that they may differ by.
        assert 0 < sum(model.load_phases.values()) <= time.perf_counter() - began
        assert model.text_seconds > 0
        runtime = Runtime(model)
        await runtime.start()
        prompt = model.template.render([{"role": "user", "content": "hi"}])
        generation = runtime.generate(prompt.ids, GenerationParams(max_tokens=8, ignore_eos=True))
        deltas = [delta async for batch in generation for delta in batch]
        assert deltas[-1].finish_reason == "length" and generation.usage.completion_tokens == 8
        await runtime.stop()
    finally:
        model.close()
        model.close()


@pytest.mark.parametrize(
    ("max_context", "kv_bytes", "flag"),
    [(0, 1 << 20, "a larger --kv-gb"), (64, 1 << 20, "a larger --max-ctx"), (64, 0, "a larger --max-ctx")],
)
def test_what_makes_room_for_more(tiny_model_dir: Path, max_context: int, kv_bytes: int, flag: str) -> None:
    options = EngineOptions(device="cpu", max_context=max_context, kv_bytes=kv_bytes, max_slots=1, threads=1)
    model = LoadedModel.load(tiny_model_dir, options)
    assert more_context(model.info, model.kv_limits) == flag
    model.close()


@pytest.mark.parametrize(
    ("model_max", "flag"),
    [(40_960, "--yarn"), (2_048, None), (131_072, None)],  # released; the model in the box; extended already
)
def test_yarn_is_offered_where_it_is_of_use(model_max: int, flag: str | None) -> None:
    full = cast(EngineInfo, SimpleNamespace(max_context=model_max, model_max_context=model_max))
    assert more_context(full) == flag


def test_the_count_of_ids_is_the_tokenizers(tiny_model_dir: Path, tmp_path: Path) -> None:
    official = Path(__file__).resolve().parents[3] / "data" / "qwen3" / "tokenizer.json"
    assert _count_token_ids(official) == 151_669
    odd = tmp_path / "tokenizer.json"
    assert _count_token_ids(odd) is None
    odd.write_text('{"model": {"vocab": [["a", 1]]}}')
    assert _count_token_ids(odd) is None
    odd.write_text('{"model": {"vocab": {}}}')
    assert _count_token_ids(odd) == 0


def _remove(name: str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).unlink()


def _write(name: str, text: str) -> Callable[[Path], None]:
    def write(directory: Path) -> None:
        (directory / name).write_text(text)

    return write


@pytest.mark.parametrize(
    ("break_it", "word"),
    [
        (_remove("config.json"), "config.json"),
        (_remove("tokenizer.json"), "tokenizer.json"),
        (_write("tokenizer.json", "{"), "tokenizer.json"),
        (_write("tokenizer.json", '{"model": {"vocab": {"a": 0}}}'), "tokenizer.json"),
        (_write("chat_template.jinja", "{% for %}"), "chat_template"),
        (_write("generation_config.json", '{"temperature": "hot"}'), "generation_config.json"),
        (_write("config.json", "{"), "config.json"),
        (_remove("model.safetensors"), "safetensors"),
    ],
)
def test_broken_directories_are_one_sentence(copy: Path, break_it: Callable[[Path], None], word: str) -> None:
    break_it(copy)
    with pytest.raises(AppError) as caught:
        LoadedModel.load(copy, SMALL)
    assert word in str(caught.value) and "\n" not in str(caught.value)


def test_paths_that_are_no_models(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, word in (
        (tmp_path / "none", "no model directory"),
        (tmp_path / "file", "is a file"),
        (tmp_path, "config"),
    ):
        with pytest.raises(ModelError, match=word):
            LoadedModel.load(path, SMALL)


def test_a_tokenizer_of_another_model(copy: Path) -> None:
    path = copy / "tokenizer.json"
    data = json.loads(path.read_text())
    data["added_tokens"].append({**data["added_tokens"][-1], "id": 5000, "content": "<|far|>"})
    path.write_text(json.dumps(data))
    with pytest.raises(ModelError, match="belongs to another model"):
        LoadedModel.load(copy, SMALL)


def test_the_tokenizers_own_count_wins(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Engine] = []
    close = Engine.close
    monkeypatch.setattr("qwen3app.runtime.loaded_model._count_token_ids", lambda path: 1200)
    monkeypatch.setattr(Engine, "close", lambda self: (closed.append(self), close(self))[1])
    model = LoadedModel.load(copy, SMALL)
    assert len(closed) == 1 and model.info.n_token_ids == model.tokenizer.n_ids
    model.close()


def test_options_out_of_range_name_the_flags(tiny_model_dir: Path) -> None:
    for options, flag in (
        (EngineOptions(max_context=1_000_000), "--max-ctx is 1000000"),
        (EngineOptions(threads=-3), "--threads is -3"),
    ):
        with pytest.raises(AppError, match=flag):
            LoadedModel.load(tiny_model_dir, options)


def test_memory_that_does_not_suffice_names_the_flags(tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise EngineError(Status.OUT_OF_MEMORY, "no room; raise gpu_memory_fraction or lower token_budget")

    monkeypatch.setattr(Engine, "open", refuse)
    with pytest.raises(EngineError, match="no room; raise --gpu-memory-fraction or lower --token-budget"):
        LoadedModel.load(tiny_model_dir, SMALL)


def test_a_pipe_in_place_of_the_tokenizer_is_refused_at_once(copy: Path) -> None:
    (copy / "tokenizer.json").unlink()
    os.mkfifo(copy / "tokenizer.json")
    with pytest.raises(ModelError, match="is not a regular file"):
        LoadedModel.load(copy, SMALL)
