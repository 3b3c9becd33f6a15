"""Makes random Qwen3 checkpoints in the official layout, for tests, benches and the demo.

Owns the shapes, the statistics of the random weights, and a small tokenizer trained on the text below. Writes what a
published model directory holds: config.json (transformers 4 or 5 layout), generation_config.json, safetensors (one file
or shards with an index), tokenizer.json, tokenizer_config.json, chat_template.jinja. Deterministic: the same arguments
give the same bytes on any machine. Tensors are generated and written piece by piece, so memory stays under 200 MB
whatever the shape. Needs numpy and tokenizers, no torch.

The weights imitate a trained network where it matters to numerics. Every matrix keeps the size of what passes through;
the blocks together outgrow the embedding far enough that a tied head does not simply repeat the last token; the logits
have a standard deviation near 2.5, so greedy choices have real margins (median 0.5). q_norm and k_norm stay near 1: at
1.6 attention amplifies rounding so much that bf16's error triples (RMS 0.10 to 0.35 over 513 tokens of 0.6b-ratio).

    python build_tools/make_checkpoint.py --out models/tiny --shape tiny
    python build_tools/make_checkpoint.py --out models/0.6b --shape 0.6b
"""

import argparse
import json
import math
import shutil
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

OFFICIAL = Path(__file__).resolve().parents[1] / "tests" / "data" / "qwen3"
OFFICIAL_TOKENS = 151_669  # ids that the official tokenizer knows
OFFICIAL_VOCAB = 151_936  # rows of embed_tokens: padded
SMALL_VOCAB = 1_536  # padded too: the small tokenizer knows fewer, and no padding id may ever be sampled
LOGIT_STD = 2.5
SILU_GATE_RMS = 0.6  # rms of silu(a) * b for independent standard normal a and b
CHUNK = 1 << 24  # elements generated at a time


@dataclass(frozen=True)
class Shape:
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    tied: bool
    vocab: int = OFFICIAL_VOCAB
    dtype: str = "bf16"
    yarn: float | None = None


_RATIO_0_6B = Shape(512, 1_536, 4, 8, 4, tied=True, vocab=SMALL_VOCAB)

SHAPES: dict[str, Shape] = {
    "tiny": Shape(256, 512, 2, 4, 2, tied=True, vocab=SMALL_VOCAB),
    "0.6b": Shape(1_024, 3_072, 28, 16, 8, tied=True),
    "1.7b": Shape(2_048, 6_144, 28, 16, 8, tied=True),
    "4b": Shape(2_560, 9_728, 36, 32, 8, tied=True),
    "8b": Shape(4_096, 12_288, 36, 32, 8, tied=False),
    "14b": Shape(5_120, 17_408, 40, 40, 8, tied=False),
    "32b": Shape(5_120, 25_600, 64, 64, 8, tied=False),
    # The proportions of the official sizes in at most 4 layers and 50 M parameters.
    "0.6b-ratio": _RATIO_0_6B,
    "8b-ratio": Shape(1_024, 3_072, 2, 8, 2, tied=False, vocab=SMALL_VOCAB),
    "4b-ratio": Shape(640, 2_432, 3, 8, 2, tied=True, vocab=SMALL_VOCAB),  # q is 1,024 wide, hidden 640
    "32b-ratio": Shape(640, 3_200, 3, 8, 1, tied=False, vocab=SMALL_VOCAB),  # q is 1,024 wide, hidden 640
    "fp16": replace(_RATIO_0_6B, dtype="fp16"),
    "fp32": replace(_RATIO_0_6B, dtype="fp32"),
    "yarn": replace(_RATIO_0_6B, layers=2, yarn=4.0),
}

# What the exactness tests run over.
KINDS = ("0.6b-ratio", "8b-ratio", "4b-ratio", "32b-ratio", "fp16", "fp32", "yarn")

HEAD_DIM = 128
MAX_POSITIONS = 40_960
YARN_ORIGINAL = 32_768
ROPE_THETA = 1_000_000
CONFIG_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
FILE_DTYPES = {"bf16": "BF16", "fp16": "F16", "fp32": "F32"}


# ---- tensors


@dataclass(frozen=True)
class Tensor:
    """One tensor to write: normal values around `mean` with deviation `std`."""

    name: str
    shape: tuple[int, ...]
    mean: float
    std: float

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


def model_tensors(shape: Shape) -> Iterator[Tensor]:
    """All tensors of a model in file order, with their statistics."""
    hidden, q, kv = shape.hidden, shape.heads * HEAD_DIM, shape.kv_heads * HEAD_DIM
    head_std = LOGIT_STD / math.sqrt(hidden)
    # A token's own embedding meets a tied head sqrt(hidden) times more coherently than chance does: the 2 * layers
    # blocks must outgrow it by about that much, or the model only echoes its input.
    growth = math.sqrt(hidden)
    block = head_std * growth / math.sqrt(2 * shape.layers)

    def linear(name: str, rows: int, columns: int, gain: float = 1.0) -> Tensor:
        return Tensor(name, (rows, columns), 0.0, gain / math.sqrt(columns))

    def norm(name: str, size: int) -> Tensor:
        return Tensor(name, (size,), 1.0, 0.1)

    yield Tensor("model.embed_tokens.weight", (shape.vocab, hidden), 0.0, head_std)
    for i in range(shape.layers):
        prefix = f"model.layers.{i}."
        yield norm(prefix + "input_layernorm.weight", hidden)
        yield linear(prefix + "self_attn.q_proj.weight", q, hidden)
        yield linear(prefix + "self_attn.k_proj.weight", kv, hidden)
        yield linear(prefix + "self_attn.v_proj.weight", kv, hidden)
        yield norm(prefix + "self_attn.q_norm.weight", HEAD_DIM)
        yield norm(prefix + "self_attn.k_norm.weight", HEAD_DIM)
        yield linear(prefix + "self_attn.o_proj.weight", hidden, q, block)
        yield norm(prefix + "post_attention_layernorm.weight", hidden)
        yield linear(prefix + "mlp.gate_proj.weight", shape.intermediate, hidden)
        yield linear(prefix + "mlp.up_proj.weight", shape.intermediate, hidden)
        yield linear(prefix + "mlp.down_proj.weight", hidden, shape.intermediate, block / SILU_GATE_RMS)
    yield norm("model.norm.weight", hidden)
    if not shape.tied:
        yield Tensor("lm_head.weight", (shape.vocab, hidden), 0.0, head_std)


def _quantiles() -> npt.NDArray[np.float64]:
    """The standard normal at 65,536 equal steps of probability: a table that turns random uint16 into normal values."""
    normal = NormalDist()
    half = np.array([normal.inv_cdf((i + 0.5) / 65_536) for i in range(32_768)])
    return np.concatenate([half, -half[::-1]])


def to_bf16_bits(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Round to nearest even, as torch does; the values are finite."""
    bits = values.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded >> np.uint32(16)).astype(np.uint16)


def _write_tensor(file: BinaryIO, tensor: Tensor, dtype: str, seed: int, quantiles: npt.NDArray[np.float64]) -> None:
    table = (tensor.mean + tensor.std * quantiles).astype(np.float32)
    coded: npt.NDArray[Any] = table
    if dtype == "bf16":
        coded = to_bf16_bits(table)
    elif dtype == "fp16":
        coded = table.astype(np.float16)
    # Raw bits of PCG64 are the same in every numpy; each tensor has its own stream, so --layers changes no others.
    stream = np.random.PCG64([seed, zlib.crc32(tensor.name.encode())])
    left = tensor.elements
    while left > 0:
        count = min(left, CHUNK)
        picks = stream.random_raw((count + 3) // 4).view(np.uint16)[:count]
        file.write(coded[picks].data)
        left -= count


def _plan_shards(tensors: list[Tensor], n_shards: int) -> list[list[Tensor]]:
    """Cuts the list into n_shards runs of about equal size, none empty."""
    if not 1 <= n_shards <= len(tensors):
        raise ValueError(f"shards is {n_shards}, expected 1 to {len(tensors)}, the number of tensors")
    target = sum(t.elements for t in tensors) / n_shards
    shards: list[list[Tensor]] = [[]]
    written = 0
    for i, tensor in enumerate(tensors):
        open_after = n_shards - len(shards)
        if shards[-1] and open_after and (written >= target * len(shards) or len(tensors) - i == open_after):
            shards.append([])
        shards[-1].append(tensor)
        written += tensor.elements
    while len(shards) < n_shards:  # one tensor larger than the rest together
        longest = max(range(len(shards)), key=lambda j: len(shards[j]))
        shards.insert(longest + 1, [shards[longest].pop()])
    return shards


def write_safetensors(path: Path, tensors: list[Tensor], dtype: str, seed: int) -> int:
    """Writes one file and returns the bytes of its tensors."""
    size = 4 if dtype == "fp32" else 2
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        end = offset + tensor.elements * size
        entry = {"dtype": FILE_DTYPES[dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        header[tensor.name] = entry
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # data starts at a multiple of 8
    quantiles = _quantiles()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            _write_tensor(file, tensor, dtype, seed, quantiles)
    return offset


def _write_weights(out: Path, shape: Shape, n_shards: int, seed: int) -> None:
    shards = _plan_shards(list(model_tensors(shape)), n_shards)
    if n_shards == 1:
        write_safetensors(out / "model.safetensors", shards[0], shape.dtype, seed)
        return
    weight_map: dict[str, str] = {}
    total = 0
    for i, tensors in enumerate(shards, 1):
        name = f"model-{i:05}-of-{n_shards:05}.safetensors"
        total += write_safetensors(out / name, tensors, shape.dtype, seed)
        weight_map |= {tensor.name: name for tensor in tensors}
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    _write_json(out / "model.safetensors.index.json", index)


# ---- config and tokenizer


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def config_json(shape: Shape, layout: int, bos: int, eos: int) -> dict[str, Any]:
    """config.json as transformers 4 or 5 writes it."""
    config: dict[str, Any] = {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": bos,
        "eos_token_id": eos,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": MAX_POSITIONS,
        "max_window_layers": shape.layers,
        "model_type": "qwen3",
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": 1e-6,
        "sliding_window": None,
        "tie_word_embeddings": shape.tied,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": shape.vocab,
    }
    scaling: dict[str, Any] | None = None
    if shape.yarn is not None:
        scaling = {"rope_type": "yarn", "factor": shape.yarn, "original_max_position_embeddings": YARN_ORIGINAL}
    if layout == 4:
        config |= {
            "rope_scaling": scaling,
            "rope_theta": ROPE_THETA,
            "torch_dtype": CONFIG_DTYPES[shape.dtype],
            "transformers_version": "4.51.0",
        }
    elif layout == 5:
        config |= {
            "dtype": CONFIG_DTYPES[shape.dtype],
            "layer_types": ["full_attention"] * shape.layers,
            "rope_parameters": {"rope_theta": ROPE_THETA, **(scaling or {"rope_type": "default"})},
            "transformers_version": "5.0.0",
        }
    else:
        raise ValueError(f"layout is {layout}, expected 4 or 5 (the major version of transformers)")
    return dict(sorted(config.items()))


def train_tokenizer(texts: Iterable[str], n_ids: int, added: list[AddedToken], *, min_frequency: int = 1) -> Tokenizer:
    """A byte-level BPE of n_ids with the official splitting rules, trained on the texts, `added` at its end."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=n_ids,
        min_frequency=min_frequency,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens(added)
    return tokenizer


def train_small_tokenizer(added: list[AddedToken]) -> Tokenizer:
    """The tokenizer of the small shapes, trained on TRAINING_TEXT."""
    return train_tokenizer([TRAINING_TEXT], 1_280, added)


def _write_small_tokenizer(out: Path) -> dict[str, int]:
    """Trains and writes the small tokenizer; returns the ids of the added tokens."""
    config = json.loads((OFFICIAL / "tokenizer_config.json").read_text(encoding="utf-8"))
    official = [config["added_tokens_decoder"][key] for key in sorted(config["added_tokens_decoder"], key=int)]
    tokenizer = train_small_tokenizer([AddedToken(**token) for token in official])
    tokenizer.save(str(out / "tokenizer.json"))
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    ids = {token["content"]: vocab[token["content"]] for token in official}
    config["added_tokens_decoder"] = {str(ids[token["content"]]): token for token in official}
    _write_json(out / "tokenizer_config.json", config)
    return ids


def _copy_tokenizer(source: Path, out: Path) -> tuple[dict[str, int], int]:
    """Copies a tokenizer; returns the ids of its added tokens and one more than the largest id."""
    path = source / "tokenizer.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; --tokenizer takes a directory that holds tokenizer.json")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (source / name).is_file():
            shutil.copyfile(source / name, out / name)
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    added = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    return added, 1 + max([*tokenizer["model"]["vocab"].values(), *added.values()])


def make_checkpoint(
    out: Path | str,
    shape: str = "tiny",
    *,
    dtype: str | None = None,
    shards: int = 1,
    tied: bool | None = None,
    layers: int | None = None,
    yarn: float | None = None,
    layout: int = 4,
    seed: int = 0,
    tokenizer: Path | str | None = None,
) -> Path:
    """Writes one checkpoint into the directory `out` (made if missing) and returns its path.

    What is None comes from SHAPES[shape]; `tokenizer` None means the small one for shapes of SMALL_VOCAB, else the
    official one.
    """
    if shape not in SHAPES:
        raise ValueError(f"shape is {shape!r}, expected one of {', '.join(SHAPES)}")
    spec = SHAPES[shape]
    spec = replace(
        spec,
        dtype=dtype or spec.dtype,
        tied=spec.tied if tied is None else tied,
        layers=layers or spec.layers,
        yarn=yarn or spec.yarn,
    )
    if spec.dtype not in FILE_DTYPES:
        raise ValueError(f"dtype is {spec.dtype!r}, expected one of {', '.join(FILE_DTYPES)}")
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    # A shape made here before may have had another number of files.
    for stale in [*out.glob("model*.safetensors"), out / "model.safetensors.index.json"]:
        stale.unlink(missing_ok=True)

    if tokenizer is None and spec.vocab == SMALL_VOCAB:
        ids = _write_small_tokenizer(out)
        shutil.copyfile(OFFICIAL / "chat_template.jinja", out / "chat_template.jinja")
    else:
        ids, n_tokens = _copy_tokenizer(OFFICIAL if tokenizer is None else Path(tokenizer), out)
        padded = OFFICIAL_VOCAB if n_tokens == OFFICIAL_TOKENS else -(-(n_tokens + 1) // 128) * 128
        spec = replace(spec, vocab=padded)
    bos, eos = ids["<|endoftext|>"], ids["<|im_end|>"]
    _write_json(out / "config.json", config_json(spec, layout, bos, eos))
    generation = json.loads((OFFICIAL / "generation_config.json").read_text(encoding="utf-8"))
    generation |= {"bos_token_id": bos, "eos_token_id": [eos, bos], "pad_token_id": bos}
    _write_json(out / "generation_config.json", generation)
    _write_weights(out, spec, shards, seed)
    return out


# Made for this file: a little of everything that the tokenizer's splitting rules tell apart.
TRAINING_TEXT = """\
The sea was calm in the morning, and the fishermen pushed their boats into the water before the sun came up. Nobody
spoke.
When they returned in the evening, the whole village stood on the beach and counted the baskets: twelve, thirteen,
fourteen!
"How many did you catch?" asked the child. "More than yesterday," said her father, "but fewer than we hoped for."
She didn't believe him; she'd seen the nets, and they weren't empty. It's always like that, isn't it? We'll see. I'm
sure you've heard.

Please answer the following question. What is the capital of France? The capital of France is Paris. You are a
helpful assistant.
Let me think about this step by step. First, we need to find out what the user wants. Then we can write the answer.
Okay, so the
user is asking about the weather in London today. I should call the function get_weather with the city as its argument.
Hello! How can I help you today? Thank you very much. Tell me a short story about a dragon and a computer that could
not sleep.
The quick brown fox jumps over the lazy dog. A large language model predicts the next token from the tokens that came
before it.
Numbers: 0, 1, 2, 3, 10, 42, 100, 1000, 2024, 3.14159, 1e-6, 50%, $19.99, 7:30 pm, 12/05/1987, +49 30 1234567, #1,
2^10 = 1024.

Die Fischer schoben ihre Boote ins Wasser, bevor die Sonne aufging. Über den Dächern hing noch der Nebel, und es war
so still, dass
man die Möwen hörte. Schöne Grüße aus München! Wie geht es dir? Mir geht es gut, danke. Straße, Fuß, Äpfel, Öl, Übung.
Le matin, la mer était calme et les pêcheurs poussaient leurs bateaux dans l'eau. Où êtes-vous ? Ça va très bien,
merci beaucoup.
El niño preguntó: ¿cuántos peces habéis cogido hoy? Más que ayer, respondió su padre. ¡Mañana será otro día!
Утром море было спокойным, и рыбаки молча спускали лодки на воду. Как дела? Спасибо, хорошо. Привет, мир!
早上,大海很平静,渔民们在太阳升起之前把船推进水里。你好!请问今天的天气怎么样?谢谢你的帮助。我是一个人工智能助手。
朝、海は静かで、漁師たちは日の出前に船を水に押し出した。こんにちは、お元気ですか。ありがとうございます。
아침에 바다는 잔잔했고 어부들은 해가 뜨기 전에 배를 물에 밀어 넣었다. 안녕하세요? 감사합니다.
Emoji: 😀 🎉 👍 ❤️ 🚀 👩‍👩‍👧‍👦 🇨🇳 and symbols: → ← ≤ ≥ ≠ ∞ √ π α β γ € £ ¥ © ® ™ … – — “quoted” ‘single’ «guillemets».

def count_words(text: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for word in text.lower().split():
        counts[word] = counts.get(word, 0) + 1
    return counts

if __name__ == "__main__":
    print(count_words("the cat and the dog"))

#include <stdio.h>
int main(int argc, char** argv) {
\tfor (int i = 0; i < argc; ++i) {
\t\tprintf("%d: %s\\n", i, argv[i]);
\t}
\treturn 0;
}

{"name": "get_weather", "arguments": {"city": "London", "unit": "celsius", "days": 3, "detailed": true, "note": null}}
{"type": "function", "function": {"name": "search", "description": "Search the web.", "parameters": {"type": "object",
"properties": {"query": {"type": "string"}, "limit": {"type": "integer"}}, "required": ["query"]}}}
<html><body class="main"><h1>Title</h1><p>A paragraph with a <a
href="https://example.com/index.html">link</a>.</p></body></html>
| column | value |
|--------|-------|
| first  | 1     |
1. One item
2. Another item
   - nested *emphasis* and **strong** and `code`

SELECT id, name FROM users WHERE age >= 18 ORDER BY name ASC LIMIT 10;
curl -X POST http://localhost:8000/v1/chat/completions -H "Content-Type: application/json" -d @request.json
"""


def _tied_flag(parser: argparse.ArgumentParser) -> None:
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--tied", dest="tied", action="store_true", default=None, help="lm_head is embed_tokens")
    group.add_argument("--untied", dest="tied", action="store_false", default=None, help="lm_head is its own tensor")


def _positive(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"{text} is not a positive number")
        return value

    parse.__name__ = f"positive {kind.__name__}"
    return parse


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Makes a random Qwen3 checkpoint in the official layout.")
    parser.add_argument("--out", required=True, type=Path, help="directory to write; made if missing")
    parser.add_argument("--shape", choices=list(SHAPES), default="tiny")
    parser.add_argument("--dtype", choices=list(FILE_DTYPES), help="default: the shape's, bf16 for most")
    parser.add_argument("--shards", type=_positive(int), default=1, help="number of safetensors files")
    _tied_flag(parser)
    parser.add_argument("--layers", type=_positive(int), help="number of layers instead of the shape's")
    parser.add_argument("--yarn", type=_positive(float), metavar="FACTOR", help="YaRN factor in config.json")
    parser.add_argument("--layout", type=int, choices=(4, 5), default=4, help="config.json of transformers 4 or 5")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokenizer", type=Path, metavar="DIR", help="take tokenizer and chat template from there")
    options = vars(parser.parse_args(arguments))
    try:
        out = make_checkpoint(options.pop("out"), options.pop("shape"), **options)
    except (OSError, ValueError) as error:
        print(f"make_checkpoint: {error}", file=sys.stderr)
        return 1
    print(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
