"""HTTP rows against vLLM's: starts the server, runs tests/bench/serve_bench.py over peers.json's rows, compares.

    python tests/gpu/serve_rows.py MODEL_DIR [--quick] [--json FILE] [--device cuda:0]

Exits with 77 where the server's Python packages are missing, 1 if a request fails.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
PEERS: dict[str, dict[str, float]] = json.loads((Path(__file__).parent / "peers.json").read_text())
PACKAGES = (
    "cffi",
    "tokenizers",
    "litestar",
    "llguidance",
    "msgspec",
    "uvicorn",
    "uvloop",
    "httptools",
    "jinja2",
    "prometheus_client",
)
# Row -> prompts, as in peers.json's source.
ROWS = {"1x128": 8, "32x128": 256, "32x512": 256, "32x1024": 256, "128x512": 512}
QUICK = ("1x128", "32x512")
HEADER = (
    f"{'row':10s}{'out tok/s':>10s}{'vLLM':>8s}{'ratio':>7s}{'TTFT ms':>10s}{'vLLM':>8s}{'TPOT ms':>9s}{'vLLM':>8s}"
)


def wait_until_ready(server: subprocess.Popen[bytes], url: str) -> None:
    while server.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise SystemExit(f"serve_rows: the server ended with {server.returncode} before it was ready.")


def line_of(name: str, row: dict[str, Any]) -> str:
    peer = PEERS[f"http {name}"]
    rate, ttft, tpot = row["output_tokens_per_s"], row["ttft_ms"]["mean"], row["tpot_ms"]["mean"]
    return (
        f"{name:10s}{rate:10.0f}{peer['output tok/s']:8.0f}{rate / peer['output tok/s']:7.2f}"
        f"{ttft:10.1f}{peer['mean TTFT ms']:8.1f}{tpot:9.2f}{peer['mean TPOT ms']:8.2f}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK)}")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        print(f"the server's Python packages are missing: {', '.join(missing)}")
        return 77
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "qwen3app", "serve", "--model", str(arguments.model), "--device", arguments.device]
    command += ["--port", str(port), "--slots", "128", "--no-prefix-cache", "--log-level", "warning"]
    names = QUICK if arguments.quick else tuple(ROWS)
    bench = [sys.executable, str(ROOT / "tests" / "bench" / "serve_bench.py"), "--url", url]
    for name in names:
        bench += ["--row", f"{name}:{ROWS[name]}"]
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, subprocess.Popen(command, cwd=ROOT) as server:
        try:
            wait_until_ready(server, url)
            print(f"ready in {time.monotonic() - started:.1f} s", flush=True)
            measured = Path(folder) / "rows.json"
            status = subprocess.run([*bench, "--tokenizer", str(arguments.model), "--json", str(measured)]).returncode
            rows = json.loads(measured.read_text())["rows"] if measured.exists() else []
        finally:
            server.terminate()
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                server.kill()
    table = [HEADER, *(line_of(name, row) for name, row in zip(names, rows, strict=True))] if rows else []
    print("\n".join(table))
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows, "table": table}, indent=1))
    return 1 if status or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
