"""The checkpoint maker, against the safetensors library, transformers, and the engine's own reader."""

import hashlib
import importlib.util
import json
import math
import os
import subprocess
import sys
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from tokenizers import Tokenizer

REPO = Path(__file__).resolve().parents[3]
SCRIPT = REPO / "build_tools" / "make_checkpoint.py"


def _load_script() -> ModuleType:
    """The script as a module, without a place on sys.path."""
    spec = importlib.util.spec_from_file_location("make_checkpoint_under_test", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


maker = _load_script()


def read_config(directory: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    return config


def files_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def reference_listing(directory: Path) -> dict[str, str]:
    """name -> "DTYPE dims crc" of every tensor, read by the safetensors library and, for the bytes, by numpy."""
    listing = {}
    for path in sorted(directory.glob("*.safetensors")):
        raw = np.memmap(path, dtype=np.uint8, mode="r")
        header_bytes = int.from_bytes(raw[:8].tobytes(), "little")
        header = json.loads(raw[8 : 8 + header_bytes].tobytes())
        with safe_open(path, framework="np") as file:
            for name in file.keys():  # noqa: SIM118 (not a dict)
                view = file.get_slice(name)
                begin, end = (8 + header_bytes + offset for offset in header[name]["data_offsets"])
                dims = " ".join(str(d) for d in view.get_shape())
                listing[name] = f"{view.get_dtype()} {dims} crc {zlib.crc32(raw[begin:end]):08x}"
    return listing


def test_the_same_arguments_give_the_same_bytes(tmp_path: Path) -> None:
    maker.make_checkpoint(tmp_path / "a")
    maker.make_checkpoint(tmp_path / "b", shards=3, layers=3)  # leftovers that the next call must remove
    maker.make_checkpoint(tmp_path / "b")
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")
    maker.make_checkpoint(tmp_path / "b", seed=1)
    assert (tmp_path / "a/model.safetensors").read_bytes() != (tmp_path / "b/model.safetensors").read_bytes()


def test_the_bytes_are_the_same_everywhere(tmp_path: Path) -> None:
    maker.make_checkpoint(tmp_path)
    digests = {
        name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()[:16]
        for name in ("model.safetensors", "tokenizer.json", "config.json")
    }
    # Pinned: other tests keep golden numbers of this checkpoint. Change them only together.
    assert digests == {
        "model.safetensors": "8981e85d2149c3bb",
        "tokenizer.json": "8ea4cbe49a21d876",
        "config.json": "3124c7c0d76bbe58",
    }


@pytest.mark.parametrize("kind", maker.KINDS)
def test_kinds_keep_to_their_limits(kind: str) -> None:
    shape = maker.SHAPES[kind]
    assert shape.layers <= 4
    assert sum(tensor.elements for tensor in maker.model_tensors(shape)) <= 50_000_000
    assert shape.heads % shape.kv_heads == 0


def test_kinds_are_the_kinds_that_exactness_needs() -> None:
    shapes = [maker.SHAPES[kind] for kind in maker.KINDS]
    assert {shape.dtype for shape in shapes} == {"bf16", "fp16", "fp32"}
    assert {shape.tied for shape in shapes} == {True, False}
    assert any(shape.yarn for shape in shapes)
    assert maker.SHAPES["4b-ratio"].heads * 128 > maker.SHAPES["4b-ratio"].hidden
    assert maker.SHAPES["32b-ratio"].heads * 128 > maker.SHAPES["32b-ratio"].hidden


@pytest.mark.parametrize("size", ["0.6B", "1.7B", "4B", "8B", "14B", "32B"])
def test_full_shapes_have_the_official_config(size: str) -> None:
    official = json.loads((maker.OFFICIAL / "configs" / f"Qwen3-{size}.json").read_text(encoding="utf-8"))
    assert maker.config_json(maker.SHAPES[size.lower()], 4, 151643, 151645) == official


def test_statistics_of_the_weights(tmp_path: Path) -> None:
    maker.make_checkpoint(tmp_path, dtype="fp32")
    with safe_open(tmp_path / "model.safetensors", framework="np") as file:
        names = set(file.keys())
        assert names == {tensor.name for tensor in maker.model_tensors(maker.SHAPES["tiny"])}
        for tensor in maker.model_tensors(maker.SHAPES["tiny"]):
            values = file.get_tensor(tensor.name)
            assert values.shape == tensor.shape
            assert np.isfinite(values).all()
            # Four standard errors of a mean and of a deviation.
            assert abs(values.mean() - tensor.mean) < 4 * tensor.std / math.sqrt(tensor.elements)
            assert abs(values.std() / tensor.std - 1) < 4 / math.sqrt(2 * tensor.elements)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize(
    ("tied", "shards", "layout", "yarn"),
    [(True, 1, 4, None), (False, 3, 5, None), (True, 2, 4, 4.0), (False, 1, 5, 2.0)],
)
def test_transformers_loads_the_same_values(
    tmp_path: Path, dtype: str, tied: bool, shards: int, layout: int, yarn: float | None
) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    maker.make_checkpoint(tmp_path, dtype=dtype, tied=tied, shards=shards, layout=layout, yarn=yarn)
    model, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto", output_loading_info=True)
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert model.dtype == {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[dtype]
    rope = model.config.rope_parameters
    assert rope["rope_theta"] == 1_000_000
    assert rope.get("factor") == yarn
    loaded = model.state_dict()
    listing = reference_listing(tmp_path)
    assert ("lm_head.weight" in listing) == (not tied)
    for name, line in listing.items():
        tensor = loaded[name].contiguous()
        raw = tensor.view(torch.int32 if dtype == "fp32" else torch.int16).numpy().tobytes()
        assert line.endswith(f"crc {zlib.crc32(raw):08x}"), name
    if tied:
        assert torch.equal(loaded["lm_head.weight"], loaded["model.embed_tokens.weight"])


def native_tests() -> Path | None:
    programs = sorted(REPO.glob("build/*/native_tests"), key=lambda path: path.stat().st_mtime)
    return programs[-1] if programs else None


needs_native_tests = pytest.mark.skipif(
    native_tests() is None, reason="the native tests are not built (make test-native)"
)


def engine_listing(directory: Path) -> dict[str, str]:
    """As reference_listing, by the engine's reader."""
    program = native_tests()
    assert program is not None
    done = subprocess.run(
        [program, "checkpoint: list"],
        env=os.environ | {"QWEN3_LIST_MODEL": str(directory)},
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " crc " in line)


@needs_native_tests
@pytest.mark.parametrize(
    "arguments", [{}, {"shards": 4, "tied": False, "layout": 5}, {"dtype": "fp16"}, {"dtype": "fp32"}]
)
def test_the_engine_reads_what_the_reference_library_reads(tmp_path: Path, arguments: dict[str, Any]) -> None:
    maker.make_checkpoint(tmp_path, **arguments)
    assert engine_listing(tmp_path) == reference_listing(tmp_path)


@needs_native_tests
@pytest.mark.parametrize("yarn", [None, 4.0])
def test_the_engine_reads_what_transformers_writes(tmp_path: Path, yarn: float | None) -> None:
    """A checkpoint that transformers loaded and saved again, in its own layout and shards."""
    transformers = pytest.importorskip("transformers")
    transformers.logging.disable_progress_bar()
    maker.make_checkpoint(tmp_path / "ours", yarn=yarn)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", dtype="auto")
    model.save_pretrained(tmp_path / "theirs", max_shard_size="1MB")
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 1
    config = read_config(tmp_path / "theirs")
    assert "rope_parameters" in config  # the layout of transformers 5
    assert "dtype" in config
    assert engine_listing(tmp_path / "theirs") == reference_listing(tmp_path / "ours")


def test_sharded_files_and_index(tmp_path: Path) -> None:
    maker.make_checkpoint(tmp_path, shards=3, layers=3)
    names = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert names == [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text(encoding="utf-8"))
    assert set(index["weight_map"].values()) == set(names)
    assert set(index["weight_map"]) == set(reference_listing(tmp_path))
    assert index["metadata"]["total_size"] == 2 * sum(
        tensor.elements for tensor in maker.model_tensors(maker.replace(maker.SHAPES["tiny"], layers=3))
    )


@given(
    sizes=st.lists(st.integers(1, 10_000), min_size=1, max_size=60),
    data=st.data(),
)
def test_every_plan_of_shards_keeps_all_tensors(sizes: list[int], data: st.DataObject) -> None:
    tensors = [maker.Tensor(str(i), (size,), 0.0, 1.0) for i, size in enumerate(sizes)]
    n_shards = data.draw(st.integers(1, len(sizes)))
    shards = maker._plan_shards(tensors, n_shards)
    assert len(shards) == n_shards
    assert all(shards)
    assert [tensor for shard in shards for tensor in shard] == tensors


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**127), max_value=2.0**127)))
def test_bf16_rounds_to_nearest_even(values: list[float]) -> None:
    torch = pytest.importorskip("torch")
    array = np.array(values, dtype=np.float32)
    ours = maker.to_bf16_bits(array)
    theirs = torch.from_numpy(array.copy()).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    assert (ours == theirs).all()


TEXTS = [
    "Hello, what's up?",
    "早上好,世界 123",
    "emoji 👩‍👩‍👧‍👦\n\n\tend",
    "",
    " leading and  double",
    "Zażółć gęślą jaźń",
]


def test_small_tokenizer_round_trips_and_pads(tmp_path: Path) -> None:
    maker.make_checkpoint(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text
    config = read_config(tmp_path)
    assert 1_000 < tokenizer.get_vocab_size() < config["vocab_size"]  # some ids have no token
    assert config["eos_token_id"] == tokenizer.token_to_id("<|im_end|>")
    generation = json.loads((tmp_path / "generation_config.json").read_text(encoding="utf-8"))
    assert generation["eos_token_id"] == [tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")]
    assert generation["top_k"] == 20


def test_small_tokenizer_follows_the_official_one(tmp_path: Path) -> None:
    maker.make_checkpoint(tmp_path)
    ours = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    official = json.loads((maker.OFFICIAL / "tokenizer.json").read_text(encoding="utf-8"))
    for key in ("normalizer", "pre_tokenizer", "post_processor", "truncation", "padding"):
        assert ours[key] == official[key], key
    without_id = [[{**token, "id": 0} for token in each["added_tokens"]] for each in (ours, official)]
    assert without_id[0] == without_id[1]
    assert (tmp_path / "chat_template.jinja").read_bytes() == (maker.OFFICIAL / "chat_template.jinja").read_bytes()


def test_transformers_reads_the_small_tokenizer(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    maker.make_checkpoint(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in TEXTS:
        assert tokenizer(text).input_ids == ours.encode(text).ids
    messages = [{"role": "user", "content": "hi"}]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendered == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_another_tokenizer_sets_the_vocabulary(tmp_path: Path) -> None:
    maker.make_checkpoint(tmp_path / "official", layers=1, tokenizer=maker.OFFICIAL)
    config = read_config(tmp_path / "official")
    assert (config["vocab_size"], config["eos_token_id"], config["bos_token_id"]) == (151936, 151645, 151643)
    maker.make_checkpoint(tmp_path / "small")
    maker.make_checkpoint(tmp_path / "copied", tokenizer=tmp_path / "small")
    n_tokens = Tokenizer.from_file(str(tmp_path / "small/tokenizer.json")).get_vocab_size()
    copied = read_config(tmp_path / "copied")
    assert copied["vocab_size"] % 128 == 0
    assert n_tokens < copied["vocab_size"] <= n_tokens + 128
    assert copied["eos_token_id"] == read_config(tmp_path / "small")["eos_token_id"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"shape": "9b"}, "shape is '9b', expected one of tiny"),
        ({"dtype": "int8"}, "dtype is 'int8', expected one of bf16"),
        ({"shards": 0}, "shards is 0, expected 1 to 24"),
        ({"shards": 25}, "shards is 25, expected 1 to 24"),
        ({"layout": 3}, "layout is 3, expected 4 or 5"),
    ],
)
def test_wrong_arguments_get_a_sentence(tmp_path: Path, arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        maker.make_checkpoint(tmp_path / "out", **arguments)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "model"
    assert maker.main(["--out", str(out), "--layers", "1", "--untied", "--layout", "5", "--yarn", "4"]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    config = read_config(out)
    assert config["num_hidden_layers"] == 1
    assert config["tie_word_embeddings"] is False
    assert config["rope_parameters"] == {
        "rope_theta": 1_000_000,
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32_768,
    }
    assert maker.main(["--out", str(out), "--tokenizer", str(tmp_path / "none")]) == 1
    assert "tokenizer.json does not exist; --tokenizer takes a directory" in capsys.readouterr().err
    for wrong in (["--shape", "9b"], ["--layers", "0"], ["--yarn", "x"]):
        with pytest.raises(SystemExit):
            maker.main(["--out", str(out), *wrong])
