"""Speed through the C ABI against the project's bars and vLLM: start, decode, prefill, offline throughput.

    python tests/gpu/speed.py MODEL_DIR [--quick] [--only decode --only "16 x 2048"] [--kernels auto] [--repeat N]
        [--json FILE]

The rows, their bars and the peers' numbers (peers.json) are data; `ratio` is above 1 where we are better than the bar.
Bars are known for the 8B and 0.6B shapes on an H200. Prefix cache off, greedy, ignore_eos, random prompts.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))
from qwen3app.abi.engine import Engine
from qwen3app.abi.types import EngineInfo, EngineOptions, EngineRequest, EventKind
from qwen3app.commands.workload import until_ended

PEERS: dict[str, dict[str, float]] = json.loads((Path(__file__).parent / "peers.json").read_text())
OPTIONS = EngineOptions(max_slots=256, token_budget=8192, prefix_cache=False, max_context=33_000)
BANDWIDTH, TENSOR_RATE = 4.5e12, 750e12  # bytes/s and FLOP/s that the bar of batched decode is made of


@dataclass(frozen=True)
class Row:
    kind: str  # decode: ms per step; prefill, throughput: tok/s; start: s
    n_requests: int
    n_prompt: int
    n_output: int
    quick: bool = False

    @property
    def name(self) -> str:
        if self.kind == "start":
            return "process start to first token"
        if self.kind == "decode":
            context = f", context {self.n_prompt} to {self.n_prompt + self.n_output}"
            return f"decode {self.n_requests}{'' if self.n_requests == 1 else context}"
        return f"{self.kind} {self.n_requests} x {self.n_prompt}"

    @property
    def unit(self) -> str:
        return {"start": "s", "decode": "ms"}.get(self.kind, "tok/s")


ROWS = [
    Row("start", 1, 128, 1, quick=True),
    Row("decode", 1, 128, 256, quick=True),
    *(Row("decode", n, 448, 128, quick=n in (8, 64)) for n in (8, 32, 64, 128, 256)),
    Row("prefill", 16, 2048, 1, quick=True),
    *(Row("prefill", 1, n, 1) for n in (512, 8192, 32000)),
    *(
        Row("throughput", n, prompt, 128, quick=(prompt, n) in ((128, 64), (512, 128)))
        for prompt in (128, 512, 1024)
        for n in (32, 64, 128, 256)
    ),
]

# Shape -> bars that do not follow from a formula or a peer.
SHAPES = {(4096, 36): "8b", (1024, 28): "0.6b"}
BARS = {
    "8b": {"decode 1": 3.80, "prefill 16 x 2048": 42_000, "process start to first token": 6.0},
    "0.6b": {"decode 1": 0.50, "process start to first token": 1.5},
}


def bar(row: Row, info: EngineInfo, shape: str) -> float | None:
    """What the row should reach: at most (ms, s) or at least (tok/s)."""
    if row.kind == "throughput":
        return PEERS.get(row.name, {}).get(shape)
    if row.kind == "decode" and row.n_requests > 1 and shape == "8b":
        parameters = info.n_parameters - (0 if info.tied else info.vocab * info.hidden)  # an embedding row is one row
        context = row.n_prompt + row.n_output / 2
        kv = 4 * info.n_layers * info.n_kv_heads * info.head_dim * context * row.n_requests
        compute = max(2 * parameters / BANDWIDTH, 2 * parameters * row.n_requests / TENSOR_RATE)
        return 1.15 * (compute + kv / BANDWIDTH) * 1e3
    return BARS.get(shape, {}).get(row.name)


def random_requests(row: Row, vocab: int) -> list[EngineRequest]:
    rng = random.Random(row.n_requests * 1_000_003 + row.n_prompt)
    return [
        EngineRequest(rng.choices(range(vocab), k=row.n_prompt), row.n_output, temperature=0.0, ignore_eos=True)
        for _ in range(row.n_requests)
    ]


def play(engine: Engine, row: Row, vocab: int, answers: list[list[int]] | None = None) -> float:
    """Runs the row's requests, all at once, and gives the row's value. Times are the engine's own per token.

    answers: is given the tokens of each request.
    """
    requests = random_requests(row, vocab)
    started = time.monotonic()
    tokens: dict[int, list[int]] = {engine.submit(request): [] for request in requests}
    all_first, last = started, started
    for event in until_ended(engine, len(requests)):
        if event.kind == EventKind.TOKEN:
            tokens[event.request].append(event.token)
            last = event.time_ns * 1e-9
            if event.index == 0:
                all_first = last
    if answers is not None:
        answers.extend(tokens.values())
    if row.kind == "decode":  # steps in which every request decodes
        return (last - all_first) / (row.n_output - 1) * 1e3
    if row.kind == "prefill":
        return row.n_requests * row.n_prompt / (all_first - started)
    return sum(map(len, tokens.values())) / (last - started)


def first_token(model: str, options: EngineOptions) -> int:
    """What the start row's process does."""
    with Engine.open(model, options) as engine:
        play(engine, Row("throughput", 1, 128, 1), engine.info().vocab)
        print("first token", flush=True)
    return 0


def start(model: str, options: EngineOptions) -> float:
    """From the start of a process to its first token."""
    command = [
        sys.executable,
        __file__,
        model,
        "--device",
        options.device,
        "--kernels",
        options.kernels,
        "--first-token",
    ]
    started = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = time.monotonic() - started
    if line != "first token\n" or process.returncode != 0:
        raise SystemExit("speed: the process that should show the start has failed.")
    return seconds


def result(row: Row, value: float, info: EngineInfo, shape: str) -> dict[str, object]:
    out: dict[str, object] = {"row": row.name, "value": value, "unit": row.unit}
    peer = PEERS.get(row.name, {}).get(shape)
    for name, ratio, other in (("bar", "ratio", bar(row, info, shape)), ("vllm", "ratio_vllm", peer)):
        out[name] = other
        out[ratio] = None if other is None else value / other if row.unit == "tok/s" else other / value
    return out


HEADER = f"{'row':34s}{'value':>10s} {'unit':6s}{'bar':>10s}{'ratio':>7s}{'vLLM':>10s}{'ratio':>7s}"


def line_of(r: dict[str, object]) -> str:
    def number(value: object, places: int) -> str:
        return f"{value:,.{places}f}" if isinstance(value, float | int) else ""

    places = 0 if r["unit"] == "tok/s" else 3
    return (
        f"{r['row']!s:34s}{number(r['value'], places):>10s} {r['unit']!s:6s}{number(r['bar'], places):>10s}"
        f"{number(r['ratio'], 2):>7s}{number(r['vllm'], places):>10s}{number(r['ratio_vllm'], 2):>7s}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--quick", action="store_true", help="a few rows")
    parser.add_argument(
        "--only", action="append", metavar="TEXT", help="rows whose name contains this (may be repeated)"
    )
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each row; the best counts")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--first-token", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    options = replace(OPTIONS, device=arguments.device, kernels=arguments.kernels)
    if arguments.first_token:
        return first_token(arguments.model, options)
    wanted = arguments.only or [""]
    rows = [row for row in ROWS if (row.quick or not arguments.quick) and any(text in row.name for text in wanted)]
    starts = [start(arguments.model, options) for row in rows if row.kind == "start"]
    engine = Engine.open(arguments.model, options)
    info = engine.info()
    shape = SHAPES.get((info.hidden, info.n_layers), "")
    print(
        f"{info.device_name}, kernels {info.kernels}, KV {info.n_blocks * info.block_size} tokens, weights "
        f"{info.weight_bytes / 1e9:.2f} GB, coded {info.coded_bytes / 1e9:.2f} GB\n{HEADER}",
        flush=True,
    )
    play(engine, Row("decode", 1, 128, 16), info.vocab)  # loads kernels
    results = []
    for row in rows:
        warm = 1 if row.kind == "decode" else 0  # decode steps are recorded in their second run
        n = warm + arguments.repeat
        values = starts if row.kind == "start" else [play(engine, row, info.vocab) for _ in range(n)][warm:]
        results.append(result(row, max(values) if row.unit == "tok/s" else min(values), info, shape))
        print(line_of(results[-1]), flush=True)
    engine.close()
    if arguments.json:
        table = [HEADER, *map(line_of, results)]
        document = {"shape": shape, "peers": PEERS["source"], "rows": results, "table": table}
        arguments.json.write_text(json.dumps(document, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
