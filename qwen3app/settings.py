"""Flags of the commands that open a model, their checks, and where the model is looked for.

Importing this costs nothing but argparse. Every wrong value becomes one sentence (argparse's error, or UsageError).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from qwen3app.argument_types import number, whole_number
from qwen3app.errors import UsageError
from qwen3app.guards import GuardSettings, add_guard_arguments

if TYPE_CHECKING:
    from qwen3app.abi.types import EngineOptions
    from qwen3app.hub.names import HubName
    from qwen3app.hub.progress import Progress

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
DEFAULT_MODEL = Path("models/qwen3-8b")
DEMO_MODEL = Path(__file__).resolve().parent / "qwen3-demo"  # comes with the program; its card says what it is
_PULL = f"qwen3-8b pull Qwen/Qwen3-8B --dir {DEFAULT_MODEL}"
DEMO_NOTE = (
    f"{DEMO_MODEL.name} is a toy inside this program: it knows little beyond such questions, and is often wrong. "
    f"For a real model: {_PULL}"
)
LOG_LEVELS = ("debug", "info", "warning", "error")
REASONING_FIELDS = ("reasoning_content", "reasoning")
_GIB = 1 << 30


@dataclass(frozen=True)
class EngineSettings:
    """What a command says about the model and the engine. 0 and None: chosen by the engine."""

    model: str | None = None
    device: str = "auto"
    max_ctx: int = 0
    slots: int = 0
    token_budget: int = 0
    prefill_spread: int = 52
    max_queue: int = 1024
    threads: int = 0
    kv_gb: float = 0.0
    gpu_memory_fraction: float = 0.0
    yarn: float = 0.0
    prefix_cache: bool = True
    log_level: str = "info"

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> EngineSettings:
        """From a parser that went through add_engine_arguments."""
        return cls(
            model=args.model,
            device=args.device,
            max_ctx=args.max_ctx,
            slots=args.slots,
            token_budget=args.token_budget,
            prefill_spread=args.prefill_spread,
            max_queue=args.max_queue,
            threads=args.threads,
            kv_gb=args.kv_gb,
            gpu_memory_fraction=args.gpu_memory_fraction,
            yarn=args.yarn,
            prefix_cache=args.prefix_cache,
            log_level=args.log_level,
        )

    def options(self) -> EngineOptions:
        """The engine's form of these settings."""
        from qwen3app.abi.types import EngineOptions

        return EngineOptions(
            device=self.device,
            max_context=self.max_ctx,
            max_slots=self.slots,
            token_budget=self.token_budget,
            prefill_spread=self.prefill_spread,
            max_queue=self.max_queue,
            threads=self.threads,
            kv_bytes=int(self.kv_gb * _GIB),
            gpu_memory_fraction=self.gpu_memory_fraction,
            prefix_cache=self.prefix_cache,
            yarn_factor=self.yarn,
            log_level=LOG_LEVELS.index(self.log_level),
        )


@dataclass(frozen=True)
class ServeSettings:
    """What `serve` was told."""

    engine: EngineSettings = field(default_factory=EngineSettings)
    served_model_name: str | None = None  # None: the directory's name
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    thinking: bool = True
    thinking_budget: int | None = None  # tokens; None: no limit
    reasoning_fields: tuple[str, ...] = REASONING_FIELDS
    drain_seconds: float = 30.0
    guards: GuardSettings = field(default_factory=GuardSettings)
    metrics_compat: bool = True  # /metrics has vLLM's names too

    @property
    def log_level(self) -> str:
        return self.engine.log_level

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> ServeSettings:
        """From a parser that went through add_serve_arguments. Raises UsageError."""
        host, port = args.addr
        if args.port is not None:
            if port is not None and port != args.port:
                raise UsageError(f"--addr says port {port} and --port says {args.port}; give one of them.")
            port = args.port
        return cls(
            engine=EngineSettings.from_args(args),
            served_model_name=args.served_model_name,
            host=host or DEFAULT_HOST,
            port=DEFAULT_PORT if port is None else port,
            thinking=args.thinking,
            thinking_budget=args.thinking_budget,
            reasoning_fields=REASONING_FIELDS if args.reasoning_field == "both" else (args.reasoning_field,),
            drain_seconds=args.drain_seconds,
            guards=GuardSettings.from_args(args),
            metrics_compat=args.metrics_compat == "vllm",
        )


def add_engine_arguments(parser: argparse.ArgumentParser, *, has_prefix_cache: bool = True) -> None:
    """The flags of EngineSettings, for every command that opens a model. has_prefix_cache: there is one, unless the
    user wants none."""
    group = parser.add_argument_group("model and engine")
    group.add_argument(
        "--model",
        metavar="DIR|NAME",
        help="model directory with config.json, *.safetensors and tokenizer.json, or a name on the Hub like "
        f"Qwen/Qwen3-8B, which is downloaded once (default: $QWEN3_MODEL, else {DEFAULT_MODEL}); "
        f"{DEMO_MODEL.name} is the toy that comes with the program, which chat and serve take where there is no other",
    )
    group.add_argument(
        "--device",
        type=_device,
        default="auto",
        help="auto (a usable GPU, else the CPU), cpu, or cuda:N (default: auto)",
    )
    group.add_argument(
        "--max-ctx",
        type=whole_number(0, 1 << 40),
        default=0,
        metavar="TOKENS",
        help="longest request, prompt and answer together (default: what the model allows and the memory holds)",
    )
    group.add_argument(
        "--slots",
        type=whole_number(1, 4096),
        default=0,
        metavar="N",
        help="requests computed at once (default: 32 on the CPU, 256 on a GPU)",
    )
    group.add_argument(
        "--token-budget",
        type=whole_number(16, 65536),
        default=0,
        metavar="TOKENS",
        help="tokens computed in one step; smaller is smoother, larger reads long prompts faster "
        "(default: 512 on the CPU, up to 8192 on a GPU)",
    )
    group.add_argument(
        "--prefill-spread",
        type=whole_number(0, 4096),
        default=EngineSettings.prefill_spread,
        metavar="STEPS",
        help="while answers stream, spread the prompt tokens that wait over about this many steps; larger is smoother, "
        "smaller gets first tokens sooner, 0 ends a set of requests soonest (default: %(default)s)",
    )
    group.add_argument(
        "--max-queue",
        type=whole_number(0, 1 << 20),
        default=EngineSettings.max_queue,
        metavar="N",
        help="requests that may wait for a slot before new ones are refused (default: %(default)s)",
    )
    group.add_argument(
        "--threads",
        type=whole_number(0, 4096),
        default=0,
        metavar="N",
        help="threads that compute on the CPU (default: one per usable core)",
    )
    group.add_argument(
        "--kv-gb",
        type=number(0.0, 1 << 20),
        default=0.0,
        metavar="GIB",
        help="memory for the KV cache in GiB (default: chosen from the free memory)",
    )
    group.add_argument(
        "--gpu-memory-fraction",
        type=number(0.01, 1.0),
        default=0.0,
        metavar="SHARE",
        help="share of all of the GPU's memory that weights, workspace and KV cache may take together, never more than "
        "is free (default: 0.9)",
    )
    group.add_argument(
        "--yarn",
        type=_yarn,
        nargs="?",
        const=4.0,
        default=0.0,
        metavar="FACTOR",
        help="extend the context by YaRN (FACTOR defaults to 4: 131,072 tokens for Qwen3)",
    )
    parser.set_defaults(prefix_cache=has_prefix_cache)
    if has_prefix_cache:
        group.add_argument(
            "--no-prefix-cache",
            dest="prefix_cache",
            action="store_false",
            help="compute every prompt anew instead of reusing the KV of common beginnings",
        )
    group.add_argument(
        "--log-level", choices=LOG_LEVELS, default="info", help="least severe messages shown on stderr (default: info)"
    )


def add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    """All flags of `serve`, the engine's included."""
    group = parser.add_argument_group("server")
    group.add_argument(
        "--addr",
        type=parse_address,
        default=(None, None),
        metavar="HOST[:PORT]",
        help=f"address to listen on: HOST, HOST:PORT or :PORT (default: {DEFAULT_HOST}:{DEFAULT_PORT}; :PORT alone "
        f"listens on {DEFAULT_HOST}, 0.0.0.0 or [::] on all interfaces)",
    )
    group.add_argument(
        "--port",
        type=whole_number(0, 65535),
        default=None,
        help=f"port to listen on, 0 for a free one (default: {DEFAULT_PORT})",
    )
    group.add_argument(
        "--served-model-name", type=_name, metavar="NAME", help="model name in the API (default: the directory's name)"
    )
    group.add_argument(
        "--no-think",
        dest="thinking",
        action="store_false",
        help="thinking is off unless a request turns it on (enable_thinking: true)",
    )
    group.add_argument(
        "--thinking-budget",
        type=whole_number(1, 1 << 40),
        metavar="TOKENS",
        help="a thought that gets this long is closed and answered, unless the request has a budget of its own "
        "(default: no limit)",
    )
    group.add_argument(
        "--reasoning-field",
        choices=("both", *REASONING_FIELDS),
        default="both",
        help="under which name replies carry thoughts (default: both)",
    )
    group.add_argument(
        "--drain-seconds",
        type=number(0.0, 86400.0),
        default=30.0,
        metavar="SECONDS",
        help="time that running requests get to finish after SIGTERM (default: 30)",
    )
    group.add_argument(
        "--metrics-compat",
        choices=("vllm", "none"),
        default="vllm",
        help="whose metric names /metrics has beside its own (default: vllm)",
    )
    add_guard_arguments(parser)
    add_engine_arguments(parser)


def resolve_model_dir(
    argument: str | None,
    progress: Callable[[], Progress] | None = None,
    on_demo: Callable[[str], None] | None = None,
) -> Path:
    """The directory of --model, else of $QWEN3_MODEL, else models/qwen3-8b, else the demo's. The first two may be a
    name on the Hub instead: then its directory in the Hub's cache. progress: makes what is told of the download of a
    model that is not there yet; None: nothing is downloaded. on_demo: is told in one sentence that the demo is taken
    since there is no other; None: it is not taken then. UsageError where there is no model. An existing directory
    never leads to the network."""
    if argument is not None:
        if not argument:
            raise UsageError("--model is empty; give the path of a model directory, or a name like Qwen/Qwen3-8B.")
        return _existing(argument, "--model", progress)
    environment = os.environ.get("QWEN3_MODEL")
    if environment:
        return _existing(environment, "QWEN3_MODEL", progress)
    if DEFAULT_MODEL.is_dir():
        return DEFAULT_MODEL
    if on_demo is not None and DEMO_MODEL.is_dir():
        on_demo(f"no model is here, so {DEMO_MODEL.name} answers, a toy inside this program. For a real one: `{_PULL}`")
        return DEMO_MODEL
    fetched = "which is downloaded" if progress is not None else "which `qwen3-8b pull` has fetched"
    raise UsageError(
        f"No model: give --model DIR, a name like --model Qwen/Qwen3-8B, {fetched}, or --model "
        f"{DEMO_MODEL.name}, the toy inside this program; or set QWEN3_MODEL, or put one into {DEFAULT_MODEL} "
        f"(`{_PULL}`)."
    )


def _existing(text: str, source: str, progress: Callable[[], Progress] | None) -> Path:
    path = Path(text)
    try:
        path = path.expanduser()
        if path.is_dir():
            return path
        if text == DEMO_MODEL.name and DEMO_MODEL.is_dir():
            return DEMO_MODEL
        what = "is a file, not a model directory" if path.exists() else "does not exist"
        named = not path.exists() and not path.parent.is_dir()
    except (OSError, RuntimeError) as error:  # no permission; no home directory to put for ~
        what, named = f"cannot be used ({error})", False
    from qwen3app.hub.names import (
        cache_directory,
        find_cached,
        means_a_folder,
        official_name,
        parse_name,
        pull_command,
    )

    # models/mine looks like a name too; where there is a folder models/, it is a path with a slip in it, unless the
    # cache has a model of that name. So is models/qwen3-0.6b, wherever.
    name = parse_name(text) if what == "does not exist" else None
    if name is not None and name.repo == text:  # no address, no revision
        named = named and not means_a_folder(text, str(DEFAULT_MODEL.parent))
    if name is not None and (named or find_cached(name, cache_directory()) is not None):
        return _of_hub(name, text, progress)
    hint = "" if name is None else f", or get a model with `qwen3-8b pull OWNER/NAME --dir {text}`"
    official = official_name(text) if what == "does not exist" else None
    if official is not None and "/" in text:
        hint = f", or get it with `{pull_command(official, str(path))}`"
    elif what == "does not exist" and text.lower().startswith("qwen3-"):
        hint = f", or name a model of the Hub with its owner: {official or f'Qwen/{text}'}"
    raise UsageError(f"The model directory {path} ({source}) {what}; check the path{hint}.")


def _of_hub(name: HubName, text: str, progress: Callable[[], Progress] | None) -> Path:
    from qwen3app.hub.names import cache_directory, find_cached

    cache = cache_directory()
    here = find_cached(name, cache)
    if here is not None:
        return here
    if progress is None and name.folder(cache).is_dir():
        raise UsageError(f"{name} is in {cache}, but not in full; `qwen3-8b pull {name}` brings what is missing.")
    if progress is None:
        raise UsageError(
            f"{name} is neither a directory here nor a model in {cache}; get it with `qwen3-8b pull {name}`."
        )
    from qwen3app.hub.client import HubError
    from qwen3app.hub.pull import pull

    try:
        return pull(name, progress())
    except HubError as error:  # perhaps a directory was meant
        raise HubError(f"There is no directory {text}. Taken as a name on the Hub: {error}") from None


def parse_address(text: str) -> tuple[str | None, int | None]:
    """HOST, HOST:PORT, :PORT, or [IPv6]:PORT. The part that is not given is None."""
    host, port = text, ""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise argparse.ArgumentTypeError(f"{text!r} is no address; write an IPv6 host as [::1] or [::1]:8000")
        port = rest[1:]
        has_port = bool(rest)
    elif text.count(":") > 1:
        has_port = False  # a bare IPv6 address
    else:
        host, colon, port = text.partition(":")
        has_port = bool(colon)
    if any(character.isspace() or character == "/" for character in host) or (not host and not has_port):
        raise argparse.ArgumentTypeError(f"{text!r} is no address; use HOST, HOST:PORT or :PORT, like 0.0.0.0:8000")
    if not has_port:
        return host, None
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} has no valid port; ports are 0 to 65535")
    return host or None, int(port)


def _yarn(text: str) -> float:
    value = number(0.0, 64.0)(text)
    if value <= 1.0:
        raise argparse.ArgumentTypeError(f"must be above 1 and at most 64, got {text}")
    return value


def _device(text: str) -> str:
    kind, _, index = text.partition(":")
    if text in ("auto", "cpu", "cuda") or (kind == "cuda" and index.isascii() and index.isdigit() and len(index) < 4):
        return "cuda:0" if text == "cuda" else text
    raise argparse.ArgumentTypeError(f"{text!r} is no device; use auto, cpu or cuda:N")


def _name(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise argparse.ArgumentTypeError("must be a name of printable characters")
    return text
