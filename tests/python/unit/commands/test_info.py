"""`info` tells what can be told, whatever is missing."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from qwen3app.abi import engine as abi_engine
from qwen3app.abi.types import EngineInfo, EngineOptions
from qwen3app.commands import info
from qwen3app.commands.info import describe, memory_available, run_info, to_text
from qwen3app.errors import EngineError, ModelError, Status
from qwen3app.text import template, tokenizer
from qwen3app.text.errors import TextError

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 28,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000.0,
}


class FakeTokenizer:
    def __init__(self) -> None:
        self.n_ids = 151669
        self.control_tokens = {"<|im_end|>": 151645}
        self.eos_ids = (151643, 151645)

    def decode(self, ids: list[int], *, skip_special: bool) -> str:
        return {151643: "<|endoftext|>", 151645: "<|im_end|>"}[ids[0]]


class FakeEngine:
    closed = 0

    @classmethod
    def open(cls, model_dir: Path, options: EngineOptions, progress: object) -> FakeEngine:
        return cls()

    def info(self) -> EngineInfo:
        return EngineInfo(
            hidden=1024,
            intermediate=3072,
            n_layers=28,
            n_heads=16,
            n_kv_heads=8,
            head_dim=128,
            vocab=151936,
            tied=True,
            n_token_ids=151669,
            eos_ids=(151645,),
            n_parameters=596049920,
            max_context=40960,
            model_max_context=40960,
            block_size=32,
            n_blocks=3000,
            max_slots=32,
            token_budget=512,
            threads=2,
            prefix_cache=True,
            weight_bytes=1192099840,
            kv_bytes=11010048000,
            workspace_bytes=1 << 20,
            free_bytes=1 << 34,
            open_seconds=0.1,
            device="cpu",
            device_name="A Processor",
            kernels="avx2",
            graph_bytes=0,
            total_bytes=0,
            coded_bytes=0,
        )

    def close(self) -> None:
        FakeEngine.closed += 1


@pytest.fixture
def model_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(abi_engine, "Engine", FakeEngine)
    monkeypatch.setattr(tokenizer.Tokenizer, "from_dir", lambda path: FakeTokenizer())
    monkeypatch.setattr(template.ChatTemplate, "from_dir", lambda path, tokenizer: None)
    write(tmp_path, CONFIG)
    header = {
        "model.embed_tokens.weight": {"dtype": "BF16", "shape": [4, 2], "data_offsets": [0, 16]},
        "lm_head.weight": {"dtype": "BF16", "shape": [4, 2], "data_offsets": [16, 32]},
    }
    text = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(32))
    return tmp_path


def write(directory: Path, config: dict[str, Any]) -> None:
    (directory / "config.json").write_text(json.dumps(config))


def test_a_model_that_runs(model_dir: Path) -> None:
    before = FakeEngine.closed
    found = describe(model_dir, EngineOptions())
    assert FakeEngine.closed == before + 1
    assert found["model"]["parameters"] == 8  # the copy of the tied head is not counted
    assert found["model"]["eos"][1] == {"id": 151645, "text": "<|im_end|>"}
    assert found["needs"] == {
        "weight_bytes": 16,
        "kv_bytes_per_token": 114688,
        "kv_bytes_full_context": 114688 * 40960,
    }
    assert found["machine"]["kv_tokens"] == 96000 and found["machine"]["full_requests"] == 2
    text = to_text(found)
    for part in (
        "Qwen3ForCausalLM",
        "28 layers",
        "112.0 KiB",
        "theta 1,000,000",
        "151645 <|im_end|>",
        "built in (the model brings none)",
        "cpu: A Processor, avx2 kernels, 2 threads",
        "96,000 tokens",
        "2 such requests, up to 32 shorter ones",
    ):
        assert part in text, part
    assert found["machine"]["coded_bytes"] == 0 and "coded" not in text
    found["machine"]["coded_bytes"] = 900 << 20
    assert "  1.11 GiB, and coded 0.88 GiB\n" in to_text(found)
    found["machine"]["full_requests"] = 32
    at_once = next(line for line in to_text(found).splitlines() if "at once" in line)
    assert at_once.split(maxsplit=2)[2] == "32 such requests", (
        "shorter ones are no more when every slot holds a full one"
    )


def test_text_and_json(model_dir: Path) -> None:
    out = io.StringIO()
    assert run_info(model_dir, EngineOptions(), as_json=True, stdout=out) == 0
    assert json.loads(out.getvalue())["model"]["layers"] == 28
    out = io.StringIO()
    assert run_info(model_dir, EngineOptions(), stdout=out) == 0
    assert out.getvalue().startswith(f"{model_dir}\n  architecture")


def test_a_model_that_cannot_run_is_still_described(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Any:
        raise EngineError(Status.OUT_OF_MEMORY, "The weights need 16 GB.")

    def broken(*_: object) -> Any:
        raise TextError("tokenizer.json is broken.")

    monkeypatch.setattr(FakeEngine, "open", refuse)
    monkeypatch.setattr(tokenizer.Tokenizer, "from_dir", broken)
    monkeypatch.setattr(info, "memory_available", lambda: 3 << 30)  # described twice; it changes all the time
    text = to_text(describe(model_dir, EngineOptions()))
    out, err = io.StringIO(), io.StringIO()
    assert run_info(model_dir, EngineOptions(), stdout=out, stderr=err) == 1
    assert out.getvalue() == text and err.getvalue().splitlines() == [
        "qwen3-8b: cannot run: The weights need 16 GB.",
        "qwen3-8b: cannot run: tokenizer.json is broken.",
    ]
    assert "cannot run" in text and "The weights need 16 GB." in text
    assert "tokenizer.json is broken." in text and "ends at" in text


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (
            {"rope_theta": None, "rope_parameters": {"rope_theta": 5e6, "rope_type": "yarn", "factor": 4.0}},
            "theta 5,000,000, yarn by 4",
        ),
        ({"rope_scaling": {"type": "yarn", "factor": 2.5}}, "theta 1,000,000, yarn by 2.5"),
        ({"rope_scaling": {"rope_type": "default"}}, "RoPE theta 1,000,000\n"),
        ({"rope_theta": "x"}, "theta unknown"),
        ({"architectures": None, "num_hidden_layers": "x"}, "KV per token          unknown"),
        ({"tie_word_embeddings": False}, "parameters            16\n"),
        ({"architectures": ["evil\x1b[2J"]}, "evil\ufffd[2J"),
    ],
)
def test_other_configs(model_dir: Path, change: dict[str, Any], part: str) -> None:
    write(model_dir, CONFIG | change)
    text = to_text(describe(model_dir, EngineOptions()))
    assert part in text
    assert "\x1b" not in text


def test_where_the_template_comes_from(model_dir: Path) -> None:
    (model_dir / "tokenizer_config.json").write_text("{}")
    assert "built in" in describe(model_dir, EngineOptions())["model"]["chat_template"]
    (model_dir / "tokenizer_config.json").write_text('{"chat_template": "x"}')
    assert describe(model_dir, EngineOptions())["model"]["chat_template"] == "tokenizer_config.json"
    (model_dir / "chat_template.jinja").write_text("x")
    assert describe(model_dir, EngineOptions())["model"]["chat_template"] == "chat_template.jinja"


def test_broken_text_files_are_a_reason_not_to_run(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Any:
        raise TextError("chat_template.jinja has an error in line 1.")

    monkeypatch.setattr(template.ChatTemplate, "from_dir", broken)
    (model_dir / "generation_config.json").write_text("{")
    err = io.StringIO()
    assert run_info(model_dir, EngineOptions(), as_json=True, stdout=io.StringIO(), stderr=err) == 1
    first, second = err.getvalue().splitlines()
    assert first == "qwen3-8b: cannot run: chat_template.jinja has an error in line 1."
    assert second.startswith(f"qwen3-8b: cannot run: {model_dir}/generation_config.json is not valid JSON")
    (model_dir / "tokenizer_config.json").write_text("[]")
    assert describe(model_dir, EngineOptions())["model"]["chat_template"].startswith("built in")


def test_no_weights_or_no_directory(model_dir: Path) -> None:
    (model_dir / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="holds no weights"):
        describe(model_dir, EngineOptions())
    with pytest.raises(ModelError, match="no model directory"):
        run_info(model_dir / "nowhere", EngineOptions())


def test_memory(tmp_path: Path) -> None:
    assert memory_available() is None or memory_available() > 0  # type: ignore[operator]
    meminfo = tmp_path / "meminfo"
    assert memory_available(meminfo) is None
    meminfo.write_text("MemTotal: 5 kB\nMemAvailable:    3 kB\n")
    assert memory_available(meminfo) == 3072
    for broken in ("MemAvailable: x kB\n", "MemAvailable:\n", "MemTotal: 1 kB\n"):
        meminfo.write_text(broken)
        assert memory_available(meminfo) is None


def test_what_the_engine_refuses_is_said_in_flags(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Any:
        raise EngineError(Status.INVALID_ARGUMENT, "max_context is 9; extend it with yarn_factor.")

    monkeypatch.setattr(FakeEngine, "open", refuse)
    assert "--max-ctx is 9; extend it with --yarn." in to_text(describe(model_dir, EngineOptions()))
