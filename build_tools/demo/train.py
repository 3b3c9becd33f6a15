"""Trains the demo model: a stream of fresh conversations, Muon for the matrices and AdamW for the rest, one pass.

Owns the loop, the log and the loss curve. No row is seen twice: stream.py makes new ones while the device works.
With `steps` given the run is reproducible up to the device's own rounding; with `seconds` the schedule follows the
clock, and the log says how many steps it came to.
"""

from __future__ import annotations

import csv
import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from demo.corpus import RECIPE, WEIGHT_UNIT, Encoder, held_out
from demo.model import DemoModel, DemoShape, Muon
from demo.stream import ShardStream, TrainOptions, tokenizer_texts
from demo.tokenizer import make_tokenizer

_WARM_UP_STEPS = 60
_LAST_RATE = 0.02  # of the highest, at the end of the cosine
_MUON_RATE = 0.02
_ADAM_RATE = 3e-3
_FEWEST_STEPS = 20  # however short the time


# ---- the loop


def batches(stream: ShardStream, rows: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        tokens, weights = stream.take()
        all_tokens = torch.from_numpy(tokens.astype("int16")).to(device)
        all_weights = torch.from_numpy(weights).to(device)
        for begin in range(0, len(all_tokens) - rows + 1, rows):
            yield all_tokens[begin : begin + rows].long(), all_weights[begin : begin + rows]


def _rate(progress: float, step: int) -> float:
    warm = min(1.0, (step + 1) / _WARM_UP_STEPS)
    return warm * (_LAST_RATE + (1 - _LAST_RATE) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))


class Trainer:
    """One model being trained."""

    def __init__(self, shape: DemoShape, options: TrainOptions, begin: float) -> None:
        self.options = options
        self.begin = begin
        name = ("cuda" if torch.cuda.is_available() else "cpu") if options.device == "auto" else options.device
        self.device = torch.device(name)
        self.n_workers = options.workers or max(1, (os.cpu_count() or 1) - 2)
        torch.set_float32_matmul_precision("high")
        self.model = DemoModel(shape, options.seed).to(self.device)
        self.log: list[dict[str, float]] = []
        matrices: list[nn.Parameter] = []
        rest: list[nn.Parameter] = []
        for name, param in self.model.named_parameters():
            (matrices if name.startswith("layers.") and param.ndim == 2 else rest).append(param)
        self._muon = Muon(matrices)
        fused = self.device.type == "cuda"
        self._adam = torch.optim.AdamW(rest, lr=_ADAM_RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=fused)
        self._loss: Callable[[Tensor, Tensor], Tensor] = self.model.loss
        if options.compile and self.device.type == "cuda":
            self._loss = torch.compile(self.model.loss, dynamic=False)

    def _elapsed(self) -> float:
        return time.perf_counter() - self.begin

    def train_tokenizer(self) -> Tokenizer:
        tokenizer = make_tokenizer(tokenizer_texts(self.options, self.n_workers), self.model.shape.vocab)
        print(f"{self._elapsed():6.1f} s  tokenizer of {tokenizer.get_vocab_size()} ids", flush=True)
        return tokenizer

    def run(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """Trains; returns what the log's head says."""
        options = self.options
        stream = ShardStream(options, tokenizer, self.n_workers)
        try:
            steps, seconds = self._loop(batches(stream, options.rows, self.device))
        finally:
            stream.close()
        tokens = steps * options.rows * options.length
        return {
            "device": torch.cuda.get_device_name() if self.device.type == "cuda" else platform.machine(),
            "torch": torch.__version__,
            "parameters": sum(param.numel() for param in self.model.parameters()),
            "shape": asdict(self.model.shape),
            "recipe": RECIPE,
            "options": asdict(options),
            "steps": steps,
            "tokens": tokens,
            "seconds": round(seconds, 1),
            "tokens_per_second": round(tokens / seconds),
            "seconds_waiting_for_data": round(stream.idle_seconds, 1),
            "final_loss": self.log[-1]["loss"] if self.log else None,
        }

    def _loop(self, source: Iterator[tuple[Tensor, Tensor]]) -> tuple[int, float]:
        """The steps made, and their seconds without the first one's, which compiles."""
        options, start = self.options, self._elapsed()
        losses: list[Tensor] = []
        for step, (rows, weights) in enumerate(source):
            passed = self._elapsed()
            if step == 1:
                start = passed
            progress = step / options.steps if options.steps else (passed - start) / max(1.0, options.seconds - start)
            if progress >= 1 and (options.steps or step >= _FEWEST_STEPS):
                return step, passed - start
            rate = _rate(progress, step)
            losses.append(self._step(rows, weights, rate))
            if step % options.log_every == 0:  # reading a loss waits for the device, so the clock is honest here
                loss = float(torch.stack(losses).mean())
                losses.clear()
                seen = (step + 1) * options.rows * options.length
                self.log.append(
                    {"step": step, "seconds": round(self._elapsed(), 1), "tokens": seen, "loss": round(loss, 4)}
                )
                if step % (10 * options.log_every) == 0:
                    print(
                        f"{self._elapsed():6.1f} s  step {step}  {seen / 1e6:.1f} M tokens  loss {loss:.4f}", flush=True
                    )
        raise AssertionError("the stream of batches has no end")

    def _step(self, rows: Tensor, weights: Tensor, rate: float) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16):
            try:
                loss = self._loss(rows, weights)
            except Exception as error:
                if self._loss == self.model.loss:
                    raise
                # A compiler that this machine lacks is no reason to give its time back: without it takes twice as long.
                print(f"torch.compile failed, going on without: {error}"[:500], flush=True)
                self._loss = self.model.loss
                loss = self._loss(rows, weights)
        loss.backward()  # type: ignore[no-untyped-call]
        self._muon.step(_MUON_RATE * rate)
        for group in self._adam.param_groups:
            group["lr"] = _ADAM_RATE * rate
        self._adam.step()
        self.model.zero_grad(set_to_none=True)
        return loss.detach()

    @torch.no_grad()
    def held_out(self, tokenizer: Tokenizer, n: int) -> dict[str, dict[str, float]]:
        """Of held-out conversations per kind: the loss a token, and how many answers greedy decoding would write to the
        letter as the recipe does. Rounded to bfloat16 first, as the file is."""
        for param in self.model.parameters():
            param.copy_(param.bfloat16().float())
        encoder, result = Encoder(tokenizer), {}
        for kind, conversations in held_out(n).items():
            losses, exact = [], 0
            for ids, weight in encoder.encode_many(conversations):
                if len(ids) > self.model.shape.context:
                    continue
                tokens = torch.tensor([ids], device=self.device)
                target = torch.tensor(weight[1:], device=self.device) == WEIGHT_UNIT
                logits = self.model(tokens[:, :-1])[0][target].float()
                right = tokens[0, 1:][target]
                losses.append(F.cross_entropy(logits, right))
                exact += bool((logits.argmax(-1) == right).all())
            if losses:
                loss = round(float(torch.stack(losses).mean()), 4)
                result[kind] = {"loss": loss, "exact": round(exact / len(losses), 3)}
        return result


# ---- the log


def write_log(out: Path, head: dict[str, Any], log: list[dict[str, float]]) -> None:
    """training.json, loss.csv and loss.svg."""
    (out / "training.json").write_text(json.dumps(head, indent=2) + "\n", encoding="utf-8")
    with (out / "loss.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["step", "seconds", "tokens", "loss"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(log)
    (out / "loss.svg").write_text(loss_svg(log), encoding="utf-8")


def loss_svg(log: list[dict[str, float]]) -> str:
    """The loss over tokens, both axes logarithmic."""
    width, height, left, top = 640, 360, 60, 20
    right, bottom = width - 20, height - 40
    xs = [math.log10(max(1.0, row["tokens"])) for row in log]
    ys = [math.log10(max(1e-3, row["loss"])) for row in log]
    x0, x1 = min(xs), max(max(xs), min(xs) + 0.1)
    y0, y1 = min(ys) - 0.05, max(ys) + 0.05

    def x_of(value: float) -> float:
        return left + (value - x0) / (x1 - x0) * (right - left)

    def y_of(value: float) -> float:
        return bottom - (value - y0) / (y1 - y0) * (bottom - top)

    points = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in zip(xs, ys, strict=True))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="#444"/>',
    ]
    for loss in (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10):
        if y0 <= math.log10(loss) <= y1:
            y = y_of(math.log10(loss))
            parts.append(f'<path d="M{left} {y:.1f}H{right}" stroke="#ddd"/>')
            parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{loss}</text>')
    for power in range(math.ceil(x0), math.floor(x1) + 1):
        name = {6: "1 M", 7: "10 M", 8: "100 M", 9: "1 G"}.get(power, f"{10**power:,}")
        parts.append(f'<text x="{x_of(power):.1f}" y="{bottom + 16}" text-anchor="middle">{name}</text>')
    parts += [
        f'<text x="{(left + right) / 2}" y="{height - 6}" text-anchor="middle">training tokens</text>',
        f'<text transform="translate(14 {(top + bottom) / 2}) rotate(-90)" text-anchor="middle">loss</text>',
        f'<polyline points="{points}" fill="none" stroke="#0b62a4" stroke-width="1.5"/>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def load_tokenizer(path: Path) -> Tokenizer:
    return Tokenizer.from_file(str(path))
