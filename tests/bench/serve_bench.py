"""Load for an OpenAI-compatible server, closed loop (a number of requests at once) or open loop (a rate of arrivals).

    python tests/bench/serve_bench.py --url http://127.0.0.1:8000 --row 1x128:8 --row 32x512:256 --row 128x512:512
    python tests/bench/serve_bench.py --url ... --rate 20 --row 0x512x128:400        # Poisson arrivals, no limit

A row is CONCURRENCY x INPUT [x OUTPUT] : NUMBER OF PROMPTS, tokens per request; concurrency 0 sets no limit. Prompts
are random and differ within and between rows. Greedy, ignore_eos, streamed. What is measured: serving_metrics.py.
Needs the standard library alone, and Linux.

Owns: arguments, the table and the JSON; the load is serving_load.py's.
Exit status: 0 if every request of every row succeeded, 1 if not, 2 if nothing could be measured, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import datetime
import http.client
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from serving_load import Row, Schedule, Target, play, within
from serving_metrics import summarize

# Ids below the official Qwen3's first control token.
_QWEN3_TEXT_IDS = 151_643
_BUSY = 0.7  # share of a core from which a client process falls behind the streams it times


# ---------------------------------------------------------------------------------------------------- what is asked


def give_up(sentence: str) -> NoReturn:
    print(f"serve_bench: {sentence}", file=sys.stderr)
    sys.exit(2)


def find_target(options: argparse.Namespace) -> Target:
    """The server of --url, the name of its model, and the ids of random prompts. Exits with a sentence."""
    try:
        url = urlsplit(options.url if "//" in options.url else f"http://{options.url}")
        host, port = url.hostname if url.scheme == "http" else None, url.port or 80
    except ValueError:  # a port above 65535, half a bracket
        host = None
    if not host:
        give_up(f"--url {options.url!r} is no address of the form http://HOST:PORT.")
    prefix = url.path.rstrip("/").removesuffix("/v1")
    ids = text_ids(options.tokenizer) if options.tokenizer else list(range(_QWEN3_TEXT_IDS))
    model = options.model or first_model(host, port, prefix, options.api_key)
    return Target(host, port, prefix, model, options.prompt, options.api_key, ids)


def first_model(host: str, port: int, prefix: str, api_key: str | None) -> str:
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    try:
        connection = http.client.HTTPConnection(host, port, timeout=30)
        connection.request("GET", f"{prefix}/v1/models", headers=headers)
        return str(json.loads(connection.getresponse().read())["data"][0]["id"])
    except (OSError, ValueError, LookupError, TypeError, http.client.HTTPException) as error:
        give_up(f"{host}:{port} does not name its models ({error!r}); is the server ready? Else give --model.")


def text_ids(directory: Path) -> list[int]:
    """Ids of a tokenizer's text tokens: all but the added ones, which may be control tokens."""
    try:
        tokenizer = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
        added = {token["id"] for token in tokenizer["added_tokens"]}
        ids = sorted(set(tokenizer["model"]["vocab"].values()) - added)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        give_up(f"--tokenizer: {directory}/tokenizer.json cannot be read ({error!r}).")
    return ids or give_up(f"--tokenizer: {directory}/tokenizer.json has no text tokens.")


def printable_ascii(text: str) -> str:
    """argparse type: what may stand in a header."""
    if not text or not text.isascii() or not text.isprintable():
        raise argparse.ArgumentTypeError("must be printable ASCII characters")
    return text


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="http://HOST:PORT of the server")
    parser.add_argument("--row", type=Row.parse, action="append", required=True, metavar="CxI[xO][:N]")
    parser.add_argument(
        "--rate", type=within(float, 1e-3, 1e6), help="requests per second (default: as many as the concurrency allows)"
    )
    parser.add_argument("--even", action="store_true", help="with --rate: equal distances instead of Poisson arrivals")
    parser.add_argument(
        "--prompt",
        choices=("ids", "text", "chat"),
        default="ids",
        help="random token ids or words to /v1/completions, or words to /v1/chat/completions (default: ids)",
    )
    parser.add_argument(
        "--tokenizer", type=Path, metavar="DIR", help="model directory that says which ids are text (default: Qwen3's)"
    )
    parser.add_argument("--model", help="model name in requests (default: the first of /v1/models)")
    parser.add_argument("--api-key", type=printable_ascii, help="key to send (default: none)")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts and arrivals (default: 0)")
    parser.add_argument(
        "--warmup", type=within(int, 0, 10_000), default=1, metavar="N", help="requests before each row (default: 1)"
    )
    parser.add_argument(
        "--timeout", type=within(float, 0.001, 1e6), default=600.0, help="seconds until a request fails (default: 600)"
    )
    parser.add_argument(
        "--processes", type=within(int, 0, 64), default=0, help="client processes (default: up to 4, by cores)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured")
    options = parser.parse_args(arguments)
    if options.rate is None and any(row.concurrency == 0 for row in options.row):
        parser.error("a row without a limit (concurrency 0) needs --rate")
    if options.even and options.rate is None:
        parser.error("--even says how requests arrive at a --rate; there is none")
    if options.json:
        try:
            options.json.touch()  # a place that cannot be written is found now, not after the measurement
        except OSError as error:
            parser.error(f"--json {options.json}: {error.strerror}")
    return options


# ------------------------------------------------------------------------------------------------------ what is shown

_COLUMNS = (
    ("ttft", "ttft_ms", ("mean", "median", "p90", "p99")),
    ("tpot", "tpot_ms", ("mean", "median", "p90", "p99")),
    ("itl", "itl_ms", ("mean", "p99")),
    ("e2e", "e2e_ms", ("mean", "p99")),
)


def header() -> str:
    parts = [f"{'row':>18} {'ok':>5} {'fail':>4} {'req/s':>7} {'out tok/s':>9} {'tok/s':>9}"]
    for name, _, statistics in _COLUMNS:
        parts.append(" ".join(f"{name + ' ' + statistic.replace('median', 'p50'):>9}" for statistic in statistics))
    return " ".join(parts) + "  (ms)"


def line(row: Row, summary: dict[str, Any]) -> str:
    parts = [
        f"{row!s:>18} {summary['completed']:>5} {summary['failed']:>4} {summary['requests_per_s']:>7.2f} "
        f"{summary['output_tokens_per_s']:>9.1f} {summary['total_tokens_per_s']:>9.1f}"
    ]
    for _, key, statistics in _COLUMNS:
        values = summary[key]
        parts.append(" ".join(f"{values[name]:>9.2f}" if values else f"{'-':>9}" for name in statistics))
    return " ".join(parts)


def notes(summary: dict[str, Any], busy: float) -> list[str]:
    """What a reader of the numbers has to know."""
    found = [f"{n} failed: {sentence}" for sentence, n in summary["errors"].items()]
    if summary["short"]:
        found.append(f"{summary['short']} answers are shorter than asked for: the server does not honour ignore_eos.")
    if summary["cached_prompt_tokens"]:
        found.append(f"{summary['cached_prompt_tokens']} prompt tokens came from the server's prefix cache.")
    if busy > _BUSY:
        found.append(f"A client process used {busy:.0%} of a core: times are too long; give more --processes.")
    return found


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    target = find_target(options)
    schedule = Schedule(options.rate, not options.even, options.processes, options.timeout)
    report: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "url": options.url,
        "model": target.model,
        "prompt": options.prompt,
        "seed": options.seed,
        "rate": options.rate,
        "arrivals": None if options.rate is None else "poisson" if schedule.poisson else "even",
        "rows": [],
    }
    print(header(), flush=True)
    for number, row in enumerate(options.row):
        if options.warmup:
            warm = Row(options.warmup, row.n_input, row.n_output, options.warmup)
            play(target, warm, replace(schedule, rate=None), f"{options.seed} {number} warm")
        results, busy = play(target, row, schedule, f"{options.seed} {number}")
        summary = summarize(results, row.n_output)
        print(line(row, summary), flush=True)
        for note in notes(summary, busy):
            print(f"{'':>18} {note}", flush=True)
        shape = {"row": str(row), "concurrency": row.concurrency, "input": row.n_input, "output": row.n_output}
        report["rows"].append(shape | {"prompts": row.n_prompts, "client_busy": round(busy, 3)} | summary)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if any(row["failed"] for row in report["rows"]) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # what has been measured is printed; the client processes go with this one
        sys.exit(130)
