"""Writes a trained model as a published Qwen3 directory: weights in bfloat16, configs, tokenizer, chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from make_checkpoint import Shape as FileShape
from make_checkpoint import config_json
from safetensors.torch import save_file
from tokenizers import Tokenizer

from demo.model import DemoModel
from demo.tokenizer import token_id, write_tokenizer

# Greedy by default: so small a model is more often right with its first choice.
GENERATION: dict[str, Any] = {"do_sample": False}


def write_model(model: DemoModel, tokenizer: Tokenizer, out: Path) -> int:
    """Writes the directory and returns the bytes of its weights file."""
    out.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"model.{name}": value.detach().to("cpu", torch.bfloat16).contiguous()
        for name, value in model.state_dict().items()
    }
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)  # the library writes it for its owner alone
    shape = model.shape
    file_shape = FileShape(
        shape.hidden, shape.intermediate, shape.layers, shape.heads, shape.kv_heads, True, shape.vocab
    )
    end, turn_end = token_id(tokenizer, "<|endoftext|>"), token_id(tokenizer, "<|im_end|>")
    config = config_json(file_shape, 4, end, turn_end)
    config |= {
        "max_position_embeddings": shape.context,
        "rope_theta": int(shape.rope_theta),
        "rms_norm_eps": shape.rms_eps,
    }
    generation = {"bos_token_id": end, "eos_token_id": [turn_end, end], "pad_token_id": end, **GENERATION}
    for name, value in (("config.json", config), ("generation_config.json", generation)):
        (out / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    write_tokenizer(tokenizer, out, context=shape.context)
    return (out / "model.safetensors").stat().st_size
