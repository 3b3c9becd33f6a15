"""Random checkpoints of the large official shapes, written fast: values come from the GPU.

Same layout, names and statistics as build_tools/make_checkpoint.py, whose plan of tensors it uses; other random
numbers.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch

from build_tools.make_checkpoint import SHAPES, config_json, model_tensors

OFFICIAL = Path(__file__).parent.parent / "data" / "qwen3"


def write(out: Path, name: str, layers: int | None = None) -> None:
    """One model.safetensors in bfloat16, config.json, and the official tokenizer."""
    shape = SHAPES[name] if layers is None else replace(SHAPES[name], layers=layers)
    out.mkdir(parents=True, exist_ok=True)
    tensors = list(model_tensors(shape))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        end = offset + 2 * tensor.elements
        header[tensor.name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    generator = torch.Generator("cuda").manual_seed(1)
    with (out / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            values = torch.randn(tensor.elements, device="cuda", generator=generator) * tensor.std + tensor.mean
            file.write(values.bfloat16().view(torch.uint8).cpu().numpy().data)
    (out / "config.json").write_text(json.dumps(config_json(shape, 4, 151643, 151645)))
    for source in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        (out / source).write_bytes((OFFICIAL / source).read_bytes())


if __name__ == "__main__":
    write(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else None)
