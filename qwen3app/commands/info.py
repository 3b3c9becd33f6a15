"""`qwen3-8b info`: what a model is, what it needs, and what it would get on this machine.

Owns the three parts and how they are shown. The first two are read from the files' headers, so that they can be told
of a model that does not fit; the third is the engine's own word: it is opened as `serve` would open it and closed again
(on the CPU that maps the files and reads none of the weights). Refuses to judge files: that is `verify`.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from qwen3app.commands.format import format_count, print_json, shown
from qwen3app.commands.model_files import TensorEntry, read_tensors
from qwen3app.errors import AppError, EngineError, ModelError
from qwen3app.sizes import format_bytes, format_memory
from qwen3app.weights_index import read_json_object, weight_files

if TYPE_CHECKING:
    from qwen3app.abi.types import EngineInfo, EngineOptions

_BF16_BYTES = 2  # the engine computes with bf16 weights and keeps bf16 keys and values, whatever the file's dtype


@dataclass(frozen=True)
class _Config:
    """config.json as far as it can be shown; what is missing or of a wrong type is None."""

    fields: dict[str, Any]

    def number(self, name: str) -> int | None:
        value = self.fields.get(name)
        return value if type(value) is int else None

    @property
    def head_dim(self) -> int | None:
        return self.number("head_dim")

    @property
    def rope(self) -> dict[str, Any]:
        """Of transformers 5 (rope_parameters) or 4 (rope_theta and rope_scaling)."""
        parameters = self.fields.get("rope_parameters")
        if isinstance(parameters, dict):
            return parameters
        scaling = self.fields.get("rope_scaling")
        return {"rope_theta": self.fields.get("rope_theta"), **(scaling if isinstance(scaling, dict) else {})}


def describe(model_dir: Path, options: EngineOptions) -> dict[str, Any]:
    """All that `info --json` prints."""
    config = _Config(read_json_object(model_dir / "config.json"))
    tensors = [tensor for path in weight_files(model_dir) for tensor in read_tensors(path)]
    if not tensors:
        raise ModelError(f"{model_dir} holds no weights (model.safetensors, or shards with an index).")
    model = _model(model_dir, config, tensors)
    needs = _needs(config, model)
    return {"model": model, "needs": needs, "machine": _machine(model_dir, options, needs["kv_bytes_per_token"])}


def _model(model_dir: Path, config: _Config, tensors: list[TensorEntry]) -> dict[str, Any]:
    tied = config.fields.get("tie_word_embeddings") is True
    counted = [
        tensor for tensor in tensors if not (tied and tensor.name == "lm_head.weight")
    ]  # a copy of the embedding
    rope = config.rope
    scaling = rope.get("rope_type", rope.get("type"))
    architectures = config.fields.get("architectures")
    model: dict[str, Any] = {
        "directory": str(model_dir),
        "architecture": architectures[0] if isinstance(architectures, list) and architectures else None,
        "parameters": sum(tensor.elements for tensor in counted),
        "layers": config.number("num_hidden_layers"),
        "hidden": config.number("hidden_size"),
        "intermediate": config.number("intermediate_size"),
        "heads": config.number("num_attention_heads"),
        "kv_heads": config.number("num_key_value_heads"),
        "head_dim": config.head_dim,
        "vocab": config.number("vocab_size"),
        "tied": tied,
        "dtypes": sorted({tensor.dtype for tensor in tensors}),
        "file_bytes": sum(path.stat().st_size for path in weight_files(model_dir)),
        "context": config.number("max_position_embeddings"),
        "rope_theta": rope.get("rope_theta"),
        "rope_scaling": None if scaling in (None, "default") else {"type": scaling, "factor": rope.get("factor")},
    }
    return model | _text(model_dir)


def _text(model_dir: Path) -> dict[str, Any]:
    from qwen3app.text.check import text_problems
    from qwen3app.text.errors import TextError
    from qwen3app.text.tokenizer import Tokenizer

    sources = ("chat_template.jinja", "tokenizer_config.json")
    source = next((name for name in sources if _holds_template(model_dir / name)), "built in (the model brings none)")
    tokenizer: Tokenizer | None = None
    eos: list[dict[str, Any]] = []
    try:
        tokenizer = Tokenizer.from_dir(model_dir)
        about: dict[str, Any] = {"ids": tokenizer.n_ids, "control_tokens": len(tokenizer.control_tokens)}
        eos = [{"id": token, "text": tokenizer.decode([token], skip_special=False)} for token in tokenizer.eos_ids]
    except (TextError, AppError) as error:
        about = {"error": str(error)}
    problems = list(text_problems(model_dir, tokenizer))
    return {"tokenizer": about, "eos": eos, "chat_template": source, "problems": problems}


def _holds_template(path: Path) -> bool:
    try:
        return path.exists() and (path.suffix == ".jinja" or bool(read_json_object(path).get("chat_template")))
    except ModelError:  # the tokenizer will say so
        return False


def _needs(config: _Config, model: dict[str, Any]) -> dict[str, Any]:
    layers, heads, head_dim = model["layers"], model["kv_heads"], model["head_dim"]
    per_token = 2 * layers * heads * head_dim * _BF16_BYTES if layers and heads and head_dim else None
    return {
        "weight_bytes": model["parameters"] * _BF16_BYTES,
        "kv_bytes_per_token": per_token,
        "kv_bytes_full_context": per_token * model["context"] if per_token and model["context"] else None,
    }


def _machine(model_dir: Path, options: EngineOptions, per_token: int | None) -> dict[str, Any]:
    """What the engine gets here, or the sentence why it gets nothing."""
    from qwen3app.abi.engine import Engine
    from qwen3app.runtime.interruptible import load_interruptibly
    from qwen3app.runtime.loaded_model import in_flags

    machine: dict[str, Any] = {"cores": len(os.sched_getaffinity(0)), "memory_available_bytes": memory_available()}
    try:
        engine = load_interruptibly(lambda progress: Engine.open(model_dir, options, progress))
    except EngineError as error:
        return machine | {"error": in_flags(str(error))}
    try:
        info = engine.info()
    finally:
        engine.close()
    return machine | _granted(info)


def _granted(info: EngineInfo) -> dict[str, Any]:
    kv_tokens = info.n_blocks * info.block_size
    return {
        "device": info.device,
        "device_name": info.device_name,
        "kernels": info.kernels,
        "threads": info.threads,
        "device_free_bytes": info.free_bytes,
        "weight_bytes": info.weight_bytes,
        "coded_bytes": info.coded_bytes,
        "kv_bytes": info.kv_bytes,
        "workspace_bytes": info.workspace_bytes,
        "kv_tokens": kv_tokens,
        "max_context": info.max_context,
        "model_max_context": info.model_max_context,
        "full_requests": kv_tokens // info.max_context if info.max_context else 0,
        "slots": info.max_slots,
    }


def memory_available(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """What Linux estimates new programs can take without swapping."""
    try:
        for line in meminfo.read_text("ascii", "replace").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def run_info(
    model_dir: Path,
    options: EngineOptions,
    *,
    as_json: bool = False,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
) -> int:
    """Prints the description on stdout. 1 if the model cannot run here with these options: stderr says why, too."""
    from qwen3app.runtime.loaded_model import check_directory

    stdout, stderr = stdout or sys.stdout, stderr or sys.stderr
    check_directory(model_dir)
    description = describe(model_dir, options)
    if as_json:
        print_json(description, stdout)
    else:
        stdout.write(to_text(description))
    problems = [*filter(None, [description["machine"].get("error")]), *description["model"]["problems"]]
    for problem in problems:
        stderr.write(f"qwen3-8b: cannot run: {shown(problem)}\n")
    return 1 if problems else 0


def to_text(description: dict[str, Any]) -> str:
    model, needs, machine = description["model"], description["needs"], description["machine"]
    rope = f"theta {_number(model['rope_theta'])}"
    if model["rope_scaling"]:
        rope += f", {model['rope_scaling']['type']} by {_number(model['rope_scaling']['factor'])}"
    tokenizer = model["tokenizer"]
    eos = ", ".join(f"{token['id']} {token['text']}" for token in model["eos"]) or "none"
    is_rows = [
        ("architecture", str(model["architecture"])),
        ("parameters", format_count(model["parameters"]) + (" (head tied to the embedding)" if model["tied"] else "")),
        ("shape", f"{model['layers']} layers, hidden {model['hidden']}, intermediate {model['intermediate']}"),
        ("attention", f"{model['heads']} heads, {model['kv_heads']} KV heads of {model['head_dim']}"),
        ("vocabulary", f"{_number(model['vocab'])} rows; " + _tokenizer(tokenizer)),
        ("file", f"{format_bytes(model['file_bytes'])} of {', '.join(model['dtypes'])}"),
        ("context", f"{_number(model['context'])} tokens; RoPE {rope}"),
        ("ends at", eos),
        ("template", model["chat_template"]),
    ]
    needs_rows = [
        ("weights", format_memory(needs["weight_bytes"]) + " in bf16"),
        ("KV per token", _bytes(needs["kv_bytes_per_token"])),
        ("KV of a full request", _bytes(needs["kv_bytes_full_context"])),
    ]
    here_rows = [
        ("processor", f"{machine['cores']} usable cores, {_bytes(machine['memory_available_bytes'])} available")
    ]
    if "error" in machine:
        here_rows.append(("cannot run", machine["error"]))
    else:
        threads = f", {machine['threads']} threads" if machine["threads"] else ""
        full = machine["full_requests"]
        coded = f", and coded {format_memory(machine['coded_bytes'])}" if machine["coded_bytes"] else ""
        here_rows += [
            ("device", f"{machine['device']}: {machine['device_name']}, {machine['kernels']} kernels{threads}"),
            ("weights", format_memory(machine["weight_bytes"]) + coded),
            ("KV pool", f"{format_memory(machine['kv_bytes'])}: {machine['kv_tokens']:,} tokens"),
            ("workspace", format_memory(machine["workspace_bytes"])),
            ("longest request", f"{machine['max_context']:,} of the model's {machine['model_max_context']:,} tokens"),
            (
                "at once",
                f"{full:,} such request{'' if full == 1 else 's'}"
                + (f", up to {machine['slots']:,} shorter ones" if full < machine["slots"] else ""),
            ),
        ]
    parts = [(model["directory"], is_rows), ("Needs", needs_rows), ("Gets on this machine", here_rows)]
    width = max(len(name) for _, rows in parts for name, _ in rows)
    lines = []
    for title, rows in parts:
        lines.append(shown(title))
        lines += [f"  {name:{width}}  {shown(value)}" for name, value in rows]
    return "\n".join(lines) + "\n"


def _tokenizer(tokenizer: dict[str, Any]) -> str:
    if "error" in tokenizer:
        return str(tokenizer["error"])
    return f"the tokenizer knows {tokenizer['ids']:,} ids, {tokenizer['control_tokens']} of them control tokens"


def _number(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return f"{value:,}" if isinstance(value, int | float) else "unknown"


def _bytes(count: int | None) -> str:
    return "unknown" if count is None else format_memory(count)
