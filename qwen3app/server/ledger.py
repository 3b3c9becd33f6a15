"""The ledger of a start: where the memory went and where the seconds went. Pure functions over LoadedModel."""

from __future__ import annotations

from typing import Any

from qwen3app.runtime import LoadedModel
from qwen3app.sizes import format_memory


def kv_bytes_per_token(model: LoadedModel) -> int:
    """Bytes of KV that one token takes, over all layers (bf16)."""
    info = model.info
    return 2 * info.n_layers * info.n_kv_heads * info.head_dim * 2


def ledger(model: LoadedModel) -> dict[str, Any]:
    """Fields of the log line."""
    info = model.info
    tokens = info.n_blocks * info.block_size
    return {
        "model": str(model.directory),
        "parameters": info.n_parameters,
        "device": info.device,
        "device_name": info.device_name,
        "kernels": info.kernels,
        "threads": info.threads,
        "slots": info.max_slots,
        "token_budget": info.token_budget,
        "max_context": info.max_context,
        "weight_bytes": info.weight_bytes,
        "kv_bytes": info.kv_bytes,
        "kv_bytes_per_token": kv_bytes_per_token(model),
        "kv_tokens": tokens,
        "kv_full_requests": round(tokens / info.max_context, 2) if info.max_context else None,
        "workspace_bytes": info.workspace_bytes,
        "graph_bytes": info.graph_bytes,
        "free_bytes_before": info.free_bytes,
        "total_bytes": info.total_bytes,
        "prefix_cache": info.prefix_cache,
        "load_seconds": {phase: round(seconds, 3) for phase, seconds in model.load_phases.items()},
        "template": model.template.name,
        "message": sentence(model),
    }


def sentence(model: LoadedModel) -> str:
    """The ledger for a person."""
    info = model.info
    tokens = info.n_blocks * info.block_size
    gpu = (
        f", graphs {format_memory(info.graph_bytes)}, of {format_memory(info.total_bytes)} in all"
        if info.total_bytes
        else ""
    )
    return (
        f"weights {format_memory(info.weight_bytes)}, KV {format_memory(info.kv_bytes)} = {tokens:,} tokens = "
        f"{tokens / max(info.max_context, 1):.1f} requests of {info.max_context:,} tokens, "
        f"workspace {format_memory(info.workspace_bytes)}{gpu}; loaded in {model.load_phases.get('total', 0.0):.2f} s"
    )
