"""The ledger of a start: where the memory went and where the seconds went. Functions over LoadedModel and the clock."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from qwen3app.hub.names import shown_path
from qwen3app.runtime import LoadedModel
from qwen3app.sizes import format_memory

_STAT = Path("/proc/self/stat")
_IMPORTED = time.clock_gettime(time.CLOCK_BOOTTIME)


def kv_bytes_per_token(model: LoadedModel) -> int:
    """Bytes of KV that one token takes, over all layers (bf16)."""
    info = model.info
    return 2 * info.n_layers * info.n_kv_heads * info.head_dim * 2


def process_seconds() -> float:
    """How long this process has been there, to a hundredth: the one file's unpacking counts. Where the system does not
    tell (a root without /proc), since this module was imported."""
    try:
        # The name, the second field, may hold anything; behind its parenthesis the 20th is the start in ticks since
        # boot.
        began = int(_STAT.read_text("ascii", "replace").rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        began = _IMPORTED
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began


def start_seconds(model: LoadedModel, before: float, now: float) -> dict[str, float]:
    """Where the seconds of a start went: phases without gaps, which add up to the total. before: from the process's
    begin to that of loading; now: to this moment."""
    load = model.load_phases
    return {"program": before, **load, "listen": now - before - sum(load.values()), "total": now}


def ledger(model: LoadedModel, seconds: dict[str, float]) -> dict[str, Any]:
    """Fields of the log line. seconds: of start_seconds."""
    info = model.info
    tokens = info.n_blocks * info.block_size
    return {
        "model": shown_path(model.directory),
        "parameters": info.n_parameters,
        "device": info.device,
        "device_name": info.device_name,
        "kernels": info.kernels,
        "threads": info.threads,
        "slots": info.max_slots,
        "token_budget": info.token_budget,
        "max_context": info.max_context,
        "weight_bytes": info.weight_bytes,
        "coded_bytes": info.coded_bytes,
        "kv_bytes": info.kv_bytes,
        "kv_bytes_per_token": kv_bytes_per_token(model),
        "kv_tokens": tokens,
        "kv_full_requests": round(tokens / info.max_context, 2) if info.max_context else None,
        "workspace_bytes": info.workspace_bytes,
        "graph_bytes": info.graph_bytes,
        "free_bytes_before": info.free_bytes,
        "total_bytes": info.total_bytes,
        "prefix_cache": info.prefix_cache,
        "start_seconds": {phase: round(value, 3) for phase, value in seconds.items()},
        "text_seconds": round(model.text_seconds, 3),
        "template": model.template.name,
        "message": sentence(model, seconds["total"]),
    }


def sentence(model: LoadedModel, total: float) -> str:
    """The ledger in one line."""
    info = model.info
    tokens = info.n_blocks * info.block_size
    coded = f" and coded {format_memory(info.coded_bytes)}" if info.coded_bytes else ""
    gpu = (
        f", graphs {format_memory(info.graph_bytes)}, of {format_memory(info.total_bytes)} in all"
        if info.total_bytes
        else ""
    )
    return (
        f"weights {format_memory(info.weight_bytes)}{coded}, KV {format_memory(info.kv_bytes)} = {tokens:,} tokens = "
        f"{tokens / max(info.max_context, 1):.1f} requests of {info.max_context:,} tokens, "
        f"workspace {format_memory(info.workspace_bytes)}{gpu}; ready {total:.2f} s after the start"
    )


_PHASES = {
    "program": "program: unpacked, imported",
    "ids": "token ids counted",
    "library": "library and device opened",
    "map": "files opened",
    "weights": "weights read, moved",
    "kv": "workspace and KV cache",
    "text": "tokenizer, what was left",
    "listen": "server imported, listening",
    "total": "total",
}


def table(model: LoadedModel, seconds: dict[str, float]) -> str:
    """The ledger for a terminal."""
    info = model.info
    requests = info.n_blocks * info.block_size / max(info.max_context, 1)
    beside = {"text": f"{model.text_seconds:.2f} s beside the others"}
    memory = [
        ("weights", info.weight_bytes, ""),
        ("weights, coded", info.coded_bytes, "for steps of few tokens"),
        ("KV cache", info.kv_bytes, f"{requests:.1f} requests of {info.max_context:,} tokens"),
        ("workspace", info.workspace_bytes, ""),
        ("recorded steps", info.graph_bytes, ""),
        ("free before", info.free_bytes, ""),
    ]
    rows = [("Start", "seconds", "")]
    rows += [(f"  {_PHASES[phase]}", f"{value:.3f}", beside.get(phase, "")) for phase, value in seconds.items()]
    rows += [(f"Memory of {info.device}", "", "")]
    rows += [(f"  {name}", format_memory(size), note) for name, size, note in memory if size]
    width = max(len(name) for name, _, _ in rows)
    return "".join(f"{f'{name:{width}} {value:>10}  {note}'.rstrip()}\n" for name, value, note in rows)
