"""The training text as a stream of shards, made by processes of its own while the device works.

Owns the pool and the options of a run. Refuses to know torch: what the processes import must be small, for there are as
many as cores. Shard i is made from (seed, i) and taken in order, so what is learnt does not depend on who is faster.
"""

from __future__ import annotations

import os
import time
from collections import deque
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context

from tokenizers import Tokenizer

from demo.corpus import Encoder, Rows, render, samples, shard


@dataclass(frozen=True)
class TrainOptions:
    seconds: float = 400.0  # of the whole run, from `begin` on, export not counted
    steps: int = 0  # 0: as many as the time allows
    seed: int = 0
    rows: int = 64  # of one step
    length: int = 2_048
    shard_rows: int = 2_048
    workers: int = 0  # 0: all cores but two
    tokenizer_samples: int = 40_000
    compile: bool = True
    device: str = "auto"
    log_every: int = 20


_encoder: Encoder | None = None


def _open_worker(tokenizer_json: str) -> None:
    global _encoder
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _encoder = Encoder(Tokenizer.from_str(tokenizer_json)) if tokenizer_json else None


def _make_shard(seed: int, index: int, n_rows: int, length: int) -> Rows:
    assert _encoder is not None
    return shard(_encoder, seed, index, n_rows, length)


def _some_texts(seed: str, n: int) -> list[str]:
    return ["".join(render(sample)) for sample in islice(samples(seed), n)]


def tokenizer_texts(options: TrainOptions, n_workers: int) -> list[str]:
    """The text that the tokenizer is trained on."""
    parts = 40
    with ProcessPoolExecutor(n_workers, get_context("spawn"), _open_worker, ("",)) as pool:
        futures = [
            pool.submit(_some_texts, f"{options.seed}/tokenizer/{part}", options.tokenizer_samples // parts)
            for part in range(parts)
        ]
        return [text for future in futures for text in future.result()]


class ShardStream:
    """Shards in order, some made ahead."""

    def __init__(self, options: TrainOptions, tokenizer: Tokenizer, n_workers: int) -> None:
        self._options = options
        self._pool = ProcessPoolExecutor(n_workers, get_context("spawn"), _open_worker, (tokenizer.to_str(),))
        self._ahead: deque[Future[Rows]] = deque()
        self._next = 0
        self.idle_seconds = 0.0  # that the device has waited
        for _ in range(n_workers + 2):
            self._order()

    def _order(self) -> None:
        o = self._options
        self._ahead.append(self._pool.submit(_make_shard, o.seed, self._next, o.shard_rows, o.length))
        self._next += 1

    def take(self) -> Rows:
        begin = time.perf_counter()
        rows = self._ahead.popleft().result()
        self.idle_seconds += time.perf_counter() - begin
        self._order()
        return rows

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
