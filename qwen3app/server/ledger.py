"""The ledger of a start: where the memory went and where the seconds went. Pure functions over LoadedModel."""

from __future__ import annotations

from typing import Any

from qwen3app.runtime import LoadedModel


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
        "template": model.template.notice,
        "message": sentence(model),
    }


def sentence(model: LoadedModel) -> str:
    """The ledger for a person."""
    info = model.info
    tokens = info.n_blocks * info.block_size
    gpu = f", graphs {_size(info.graph_bytes)}, of {_size(info.total_bytes)} in all" if info.total_bytes else ""
    return (
        f"weights {_size(info.weight_bytes)}, KV {_size(info.kv_bytes)} = {tokens:,} tokens = "
        f"{tokens / max(info.max_context, 1):.1f} requests of {info.max_context:,} tokens, "
        f"workspace {_size(info.workspace_bytes)}{gpu}; loaded in {model.load_phases.get('total', 0.0):.2f} s"
    )


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.2f} GB" if n_bytes >= 1e8 else f"{n_bytes / 1e6:.1f} MB"
