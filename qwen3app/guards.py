"""Flags of `serve` that guard it: keys, other origins, TLS, and limits of size and time.

Owns the flags, their checks and the reading of the key file. Refuses to know HTTP: server/ keeps what is promised here.
Importing this costs nothing but argparse. Every wrong value becomes one sentence (argparse's error, or UsageError).
"""

from __future__ import annotations

import argparse
import os
import re
from dataclasses import dataclass
from pathlib import Path

from qwen3app.argument_types import number, whole_number
from qwen3app.errors import UsageError

_MAX_KEY_FILE = 1 << 20
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#@]+")


@dataclass(frozen=True)
class GuardSettings:
    """What `serve` was told about who may come, how much they may send, and for how long."""

    api_keys: tuple[str, ...] = ()  # none: everybody may come
    open_metrics: bool = False
    cors_origins: tuple[str, ...] = ()  # "*": any
    tls_cert: Path | None = None  # with tls_key: HTTPS
    tls_key: Path | None = None
    max_body_mb: float = 4.0
    max_head_kb: int = 256  # request line and headers together
    request_timeout: float = 0.0  # seconds from the head of a request to the end of its answer; 0: no limit
    idle_timeout: float = 75.0  # seconds in which a connection neither sends what it owes nor reads what it is sent

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> GuardSettings:
        """From a parser that went through add_guard_arguments. Raises UsageError."""
        if (args.tls_cert is None) != (args.tls_key is None):
            missing = "--tls-key" if args.tls_key is None else "--tls-cert"
            raise UsageError(f"{missing} is missing; HTTPS needs both --tls-cert and --tls-key.")
        keys = list(args.api_key or ())
        for path in args.api_key_file or ():
            keys += read_keys(path)
        from_environment = os.environ.get("QWEN3_API_KEY")
        if not keys and from_environment is not None:  # an empty one may be a secret that did not arrive
            try:
                keys = [api_key(from_environment)]
            except argparse.ArgumentTypeError as error:
                raise UsageError(f"The key in QWEN3_API_KEY {error}.") from None
        return cls(
            api_keys=tuple(dict.fromkeys(keys)),
            open_metrics=args.open_metrics,
            cors_origins=tuple(dict.fromkeys(args.cors_origin or ())),
            tls_cert=args.tls_cert,
            tls_key=args.tls_key,
            max_body_mb=args.max_body_mb,
            max_head_kb=args.max_head_kb,
            request_timeout=args.request_timeout,
            idle_timeout=args.idle_timeout,
        )


def add_guard_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of GuardSettings."""
    group = parser.add_argument_group("guards")
    group.add_argument(
        "--api-key",
        type=api_key,
        action="append",
        metavar="KEY",
        help="key that clients must send, as `Authorization: Bearer KEY` or `x-api-key: KEY`; may be given several "
        "times, and holders of different keys then share no cached prompts (default: $QWEN3_API_KEY, else none is "
        "needed)",
    )
    group.add_argument(
        "--api-key-file",
        type=Path,
        action="append",
        metavar="FILE",
        help="file with one key a line, beside those of --api-key; blank lines and lines that begin with # are skipped",
    )
    group.add_argument(
        "--open-metrics",
        action="store_true",
        help="let /metrics be read without a key, as /health, /healthz and /readyz always can be",
    )
    group.add_argument(
        "--cors-origin",
        type=_origin,
        action="append",
        metavar="ORIGIN",
        help="web pages of this origin, like http://localhost:3000, may use the server from a browser; may be given "
        "several times; * lets all in (default: none)",
    )
    group.add_argument("--tls-cert", type=Path, metavar="FILE", help="serve HTTPS with this certificate chain (PEM)")
    group.add_argument("--tls-key", type=Path, metavar="FILE", help="private key of --tls-cert (PEM, no passphrase)")
    group.add_argument(
        "--max-body-mb", type=number(0.001, 4096), default=4.0, metavar="MB", help="largest body (default: 4)"
    )
    group.add_argument(
        "--max-head-kb",
        type=whole_number(1, 65536),
        default=256,
        metavar="KB",
        help="largest request line and headers together (default: 256)",
    )
    group.add_argument(
        "--request-timeout",
        type=number(0, 1e9),
        default=0.0,
        metavar="SECONDS",
        help="longest time from a request to the end of its answer, waiting for a slot included; 0 for no limit "
        "(default: 0)",
    )
    group.add_argument(
        "--idle-timeout",
        type=number(0.1, 1e9),
        default=75.0,
        metavar="SECONDS",
        help="a connection is closed that for this long asks nothing, or stops in the middle of sending a request or "
        "of reading an answer (default: 75)",
    )


def api_key(text: str) -> str:
    """argparse type: a key that fits into a header."""
    if not text or not text.isascii() or not text.isprintable() or text != text.strip():
        raise argparse.ArgumentTypeError("must be printable ASCII characters without blanks at the ends")
    return text


def read_keys(path: Path) -> list[str]:
    """The keys of a file. UsageError names the line that is none."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_KEY_FILE + 1)
    except OSError as error:
        raise UsageError(f"The key file {path} cannot be read: {error.strerror}.") from None
    if len(data) > _MAX_KEY_FILE:
        raise UsageError(f"The key file {path} is larger than 1 MiB; it takes one key a line.")
    keys = []
    for line_number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        try:
            keys.append(api_key(text))
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"Line {line_number} of the key file {path} {error}.") from None
    if not keys:  # a server that lets everybody in is not what the flag asks for
        raise UsageError(f"The key file {path} holds no key; write one key a line.")
    return keys


def _origin(text: str) -> str:
    origin = text.rstrip("/").lower()
    if origin != "*" and not _ORIGIN.fullmatch(origin):
        raise argparse.ArgumentTypeError(f"{text!r} is no origin; write it like http://localhost:3000, or *")
    return origin
