"""Qwen3 in plain torch, for training: the same arithmetic as the engine's forward pass, with gradients.

Owns the shape, the initial weights, the forward pass and the loss. Parameter names are those of Hugging Face, so that
the state dict is the checkpoint.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HEAD_DIM = 128  # of every Qwen3


@dataclass(frozen=True)
class DemoShape:
    """The default is the demo: 5.94 M parameters, 11.87 MB in bfloat16."""

    vocab: int = 4_096
    hidden: int = 256
    intermediate: int = 368
    layers: int = 8
    heads: int = 4
    kv_heads: int = 1
    context: int = 2_048
    rope_theta: float = 10_000.0
    rms_eps: float = 1e-6


class Norm(nn.RMSNorm):
    """RMSNorm in float32, whatever comes in."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.float())


class Layer(nn.Module):
    def __init__(self, shape: DemoShape) -> None:
        super().__init__()
        q, kv = shape.heads * HEAD_DIM, shape.kv_heads * HEAD_DIM
        self.shape = shape
        self.input_layernorm = Norm(shape.hidden, eps=shape.rms_eps)
        self.post_attention_layernorm = Norm(shape.hidden, eps=shape.rms_eps)
        self.self_attn = nn.ModuleDict(
            {
                "q_proj": nn.Linear(shape.hidden, q, bias=False),
                "k_proj": nn.Linear(shape.hidden, kv, bias=False),
                "v_proj": nn.Linear(shape.hidden, kv, bias=False),
                "o_proj": nn.Linear(q, shape.hidden, bias=False),
                "q_norm": Norm(HEAD_DIM, eps=shape.rms_eps),
                "k_norm": Norm(HEAD_DIM, eps=shape.rms_eps),
            }
        )
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(shape.hidden, shape.intermediate, bias=False),
                "up_proj": nn.Linear(shape.hidden, shape.intermediate, bias=False),
                "down_proj": nn.Linear(shape.intermediate, shape.hidden, bias=False),
            }
        )

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # x [batch, n, hidden]; cos, sin [n, 128]
        batch, n, _ = x.shape
        a = self.self_attn
        h = self.input_layernorm(x)
        q = a["q_norm"](a["q_proj"](h).view(batch, n, -1, HEAD_DIM)).transpose(1, 2)
        k = a["k_norm"](a["k_proj"](h).view(batch, n, -1, HEAD_DIM)).transpose(1, 2)
        v = a["v_proj"](h).view(batch, n, -1, HEAD_DIM).transpose(1, 2)
        q, k = rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + a["o_proj"](mixed.transpose(1, 2).reshape(batch, n, -1))
        h = self.post_attention_layernorm(x)
        m = self.mlp
        down: Tensor = m["down_proj"](F.silu(m["gate_proj"](h)) * m["up_proj"](h))
        return x + down


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE on halves."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class DemoModel(nn.Module):
    """The embedding is the head too (tied)."""

    cos: Tensor  # [context, 128], buffers that are not saved
    sin: Tensor

    def __init__(self, shape: DemoShape, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden, eps=shape.rms_eps)
        inverse = shape.rope_theta ** (-torch.arange(0, HEAD_DIM, 2, dtype=torch.float64) / HEAD_DIM)
        angles = torch.outer(torch.arange(shape.context, dtype=torch.float64), inverse).repeat(1, 2)
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                std = 0.02 if name == "embed_tokens.weight" else 0.5 / math.sqrt(weight.shape[1])
                # What is added to the residual begins small, the less the more layers add to it.
                last = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(weight, std=std / math.sqrt(2 * shape.layers) if last else std)

    def forward(self, tokens: Tensor) -> Tensor:  # [batch, n] -> [batch, n, vocab]
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return F.linear(self.norm(x), self.embed_tokens.weight)

    def loss(self, rows: Tensor, weights: Tensor) -> Tensor:
        """The weighted mean of the negative log-likelihood. rows, weights [batch, n + 1]; weights[i] is that of
        predicting rows[i]."""
        logits = self(rows[:, :-1])
        each = F.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten(), reduction="none")
        weight = weights[:, 1:].flatten().float()
        return (each * weight).sum() / weight.sum()


class Muon:
    """Momentum whose matrices are orthogonalised (Newton-Schulz) before each step; equal shapes go in one batch.

    For the matrices inside the layers. What it gains over AdamW here is measured in the training log.
    """

    def __init__(self, params: list[nn.Parameter], momentum: float = 0.95, weight_decay: float = 0.01) -> None:
        self.momentum, self.weight_decay = momentum, weight_decay
        shapes: dict[tuple[int, ...], list[nn.Parameter]] = {}
        for param in params:
            shapes.setdefault(tuple(param.shape), []).append(param)
        self._groups = list(shapes.values())
        self._buffers = [torch.zeros(len(group), *group[0].shape, device=group[0].device) for group in self._groups]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        for group, buffer in zip(self._groups, self._buffers, strict=True):
            gradient = torch.stack([param.grad for param in group if param.grad is not None])
            buffer.lerp_(gradient, 1 - self.momentum)
            update = orthogonal(gradient.lerp(buffer, self.momentum))
            rows, columns = group[0].shape
            scale = rate * max(1.0, rows / columns) ** 0.5
            torch._foreach_mul_(list(group), 1 - rate * self.weight_decay)
            torch._foreach_add_(list(group), list(update.to(group[0].dtype).unbind()), alpha=-scale)


def orthogonal(x: Tensor) -> Tensor:
    """About the nearest matrix with singular values of 1, for a batch [b, rows, columns]: five quintic steps."""
    y = x.bfloat16() if x.is_cuda else x
    wide = y.shape[-2] <= y.shape[-1]
    if not wide:
        y = y.mT
    y = y / (y.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        square = y @ y.mT
        y = 3.4445 * y + (-4.7750 * square + 2.0315 * (square @ square)) @ y
    result: Tensor = y if wide else y.mT
    return result
