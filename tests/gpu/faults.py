"""What the GPU backend says when memory does not suffice, and what happens when the GPU fails.

    python tests/gpu/faults.py MODEL_DIR [--server COMMAND]

memory: options that cannot be met are refused with a sentence that names needs and limits.
fault: while requests run, another thread breaks the CUDA context (fault.cu); each ends with an error event, the engine
  is failed and refuses work with the cause.
server: the same in a server started by COMMAND ("python -m qwen3app", or the packed file) with fault.cu preloaded:
  streams end with an error, /healthz turns 503, the process ends with code 1. MODEL_DIR needs a tokenizer.
Prints one line per check and exits with 1 if any fails.
"""

from __future__ import annotations

import argparse
import ctypes
import http.client
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))
from qwen3app.abi.engine import Engine
from qwen3app.abi.types import EngineOptions, EngineRequest, EventKind, FinishCode
from qwen3app.errors import EngineError

FAILURES: list[str] = []
TIB = 1 << 40


def report(ok: bool, line: str) -> None:
    print(("ok    " if ok else "FAIL  ") + line, flush=True)
    if not ok:
        FAILURES.append(line)


def build(directory: Path) -> Path:
    """fault.cu as a library."""
    library = directory / "libfault.so"
    source = Path(__file__).parent / "fault.cu"
    subprocess.run(
        ["nvcc", "-shared", "-Xcompiler", "-fPIC", "-arch=native", "-o", str(library), str(source)], check=True
    )
    return library


def check_refusals(model: str) -> None:
    cases = [
        (EngineOptions(device="cuda:0", kv_bytes=TIB), r"a KV pool of 1024\.00 GiB was asked for, but .* are left"),
        (EngineOptions(device="cuda:0", kv_bytes=TIB), r"the largest context that fits is \d{4,}"),
        (EngineOptions(device="cuda:0", gpu_memory_fraction=0.0001), r"the model does not fit: .* gpu_memory_fraction"),
        (EngineOptions(device="cuda:99"), r"there (is one GPU|are \d+ GPUs), numbered from 0"),
        (EngineOptions(device="cuda:0", kernels="volta"), r"is no kernel set of a GPU"),
    ]
    for options, wanted in cases:
        try:
            Engine.open(model, options).close()
            report(False, f"memory: {options} was accepted")
        except EngineError as error:
            report(re.search(wanted, str(error)) is not None, f"memory: {error}")
    for fraction in (0.05, 0.5):
        engine = Engine.open(model, EngineOptions(device="cuda:0", gpu_memory_fraction=fraction))
        info = engine.info()
        taken = info.weight_bytes + info.coded_bytes + info.workspace_bytes + info.graph_bytes + info.kv_bytes
        share = taken / info.total_bytes
        capped = info.n_blocks * info.block_size >= info.max_slots * info.max_context
        report(
            share <= fraction and (capped or share > 0.97 * fraction),
            f"memory: fraction {fraction}: MiB of weights {info.weight_bytes >> 20}, coded {info.coded_bytes >> 20}, "
            f"workspace {info.workspace_bytes >> 20}, KV {info.kv_bytes >> 20} = "
            f"{info.n_blocks * info.block_size:,} tokens, "
            f"{share:.3f} of the card, budget {info.token_budget}, slots {info.max_slots}",
        )
        engine.close()


def check_fault(model: str, library: Path) -> None:
    lines: list[str] = []
    engine = Engine.open(
        model, EngineOptions(device="cuda:0", kv_bytes=1 << 29), on_log=lambda _level, line: lines.append(line)
    )
    ids = [
        engine.submit(EngineRequest(prompt=[1 + i, 2, 3], max_tokens=3000, temperature=0.0, ignore_eos=True))
        for i in range(8)
    ]
    n_tokens = 0
    while n_tokens < 200:
        n_tokens += sum(event.kind == EventKind.TOKEN for event in engine.poll(10_000).events)
    thread = threading.Thread(target=ctypes.CDLL(str(library)).fault_now)
    began = time.monotonic()
    thread.start()
    ends: dict[int, int] = {}
    while len(ends) < len(ids) and time.monotonic() < began + 20:
        for event in engine.poll(1000).events:
            if event.kind == EventKind.FINISHED:
                ends[event.request] = event.finish_reason
    thread.join()
    seconds = time.monotonic() - began
    report(
        ends == dict.fromkeys(ids, FinishCode.ERROR),
        f"fault: {len(ends)} of {len(ids)} ended with an error, {seconds:.2f} s",
    )
    report(engine.stats().failed, "fault: the engine is failed")
    for what, call in {
        "submit": lambda: engine.submit(EngineRequest(prompt=[1])),
        "score": lambda: engine.score_logits([1, 2], 0),
    }.items():
        try:
            call()
            report(False, f"fault: {what} was accepted")
        except EngineError as error:
            report("illegal memory access" in str(error), f"fault: {what}: {error}")
    report(any("the device failed" in line for line in lines), f"fault: the log says {lines[-1]!r}")
    engine.close()
    report(True, "fault: closed")


def request(port: int, method: str, path: str, body: object = None) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    text = None if body is None else json.dumps(body)
    connection.request(method, path, text, {"content-type": "application/json"})
    return connection.getresponse()


def check_server(model: str, command: str, library: Path, directory: Path) -> None:
    trigger = directory / "now"
    process = subprocess.Popen(
        [*shlex.split(command), "serve", "--model", model, "--port", "0", "--device", "cuda:0", "--kv-gb", "1"],
        env={**os.environ, "LD_PRELOAD": str(library), "FAULT_FILE": str(trigger)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    port = 0
    lines: list[str] = []
    for line in process.stderr:
        lines.append(line)
        found = re.search(r'"http://127\.0\.0\.1:(\d+)"', line)
        port = int(found.group(1)) if found else port
        if '"event":"ready"' in line.replace(" ", ""):
            break
    threading.Thread(target=lambda: lines.extend(process.stderr or ()), daemon=True).start()
    body = {"model": Path(model).name, "prompt": [1, 2, 3], "max_tokens": 3000, "stream": True, "ignore_eos": True}
    stream = request(port, "POST", "/v1/completions", body)
    first = stream.readline()
    trigger.touch()
    rest = stream.read().decode()
    report(first.startswith(b"data:") and '"error"' in rest, f"server: the stream ends with {rest.strip()[-160:]!r}")
    health = request(port, "GET", "/healthz")
    report(health.status == 503, f"server: /healthz {health.status} {health.read().decode()}")
    refused = request(port, "POST", "/v1/completions", {**body, "stream": False})
    report(refused.status == 503, f"server: a new request {refused.status} {refused.read().decode()}")
    try:
        code = process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        code = -1
    report(code == 1, f"server: ended with code {code}")
    if FAILURES:
        print("".join(lines[-20:]))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--server", metavar="COMMAND")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        library = build(Path(name))
        check_refusals(arguments.model)
        if arguments.server:
            check_server(arguments.model, arguments.server, library, Path(name))
        check_fault(arguments.model, library)  # last: no CUDA call works in this process afterwards
    print(f"{len(FAILURES)} failed")
    return 1 if FAILURES else 0


if __name__ == "__main__":
    sys.exit(main())
