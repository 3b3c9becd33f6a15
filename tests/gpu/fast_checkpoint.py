"""Random checkpoints of the large official shapes, written fast: values come from the GPU, shards are written at once.

    python tests/gpu/fast_checkpoint.py OUT_DIR SHAPE [LAYERS]

Same names and statistics as build_tools/make_checkpoint.py, whose plan of tensors it uses; other random numbers, which
depend on a tensor's place alone. In the official layout: an index and shards, as one file takes one write at a time.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent.parent))
from build_tools.make_checkpoint import SHAPES, Tensor, config_json, model_tensors

OFFICIAL = Path(__file__).parent.parent / "data" / "qwen3"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
N_SHARDS = 8


def in_shards(tensors: list[Tensor]) -> list[list[tuple[int, Tensor]]]:
    """(place, tensor) pairs in N_SHARDS parts of about the same size: the largest first, into the emptiest part."""
    shards: list[list[tuple[int, Tensor]]] = [[] for _ in range(N_SHARDS)]
    sizes = [0] * N_SHARDS
    for place, tensor in sorted(enumerate(tensors), key=lambda pair: -pair[1].elements):
        emptiest = sizes.index(min(sizes))
        shards[emptiest].append((place, tensor))
        sizes[emptiest] += tensor.elements
    return [shard for shard in shards if shard]


def write_shard(path: Path, shard: list[tuple[int, Tensor]]) -> None:
    """One safetensors file in bfloat16."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for _, tensor in shard:
        end = offset + 2 * tensor.elements
        header[tensor.name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for place, tensor in shard:
            generator = torch.Generator(DEVICE).manual_seed(place)
            values = torch.randn(tensor.elements, device=DEVICE, generator=generator) * tensor.std + tensor.mean
            file.write(values.bfloat16().view(torch.uint8).cpu().numpy().data)


def write(out: Path, name: str, layers: int | None = None) -> None:
    """Shards with their index, config.json, and the official tokenizer."""
    shape = SHAPES[name] if layers is None else replace(SHAPES[name], layers=layers)
    out.mkdir(parents=True, exist_ok=True)
    shards = in_shards(list(model_tensors(shape)))
    names = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    with ThreadPoolExecutor(N_SHARDS) as pool:
        list(pool.map(write_shard, [out / name for name in names], shards))
    weight_map = {tensor.name: name for name, shard in zip(names, shards, strict=True) for _, tensor in shard}
    size = 2 * sum(tensor.elements for shard in shards for _, tensor in shard)
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    (out / "model.safetensors.index.json").write_text(json.dumps(index))
    (out / "config.json").write_text(json.dumps(config_json(shape, 4, 151643, 151645)))
    for source in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        (out / source).write_bytes((OFFICIAL / source).read_bytes())


if __name__ == "__main__":
    write(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else None)
