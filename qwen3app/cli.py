"""The command line: `qwen3-8b serve | chat | pull | info | verify | bench | profile`, `--version`, `--licenses`.

Owns the parser, the exit codes and the promise that every failure is one sentence on stderr: 0 done, 1 failed, 2 used
wrongly, 130 interrupted, 141 the reader of stdout went away. Refuses to know how a command works. Importing this costs
little: a command's packages are imported when it runs, and only the chosen command's flags are built.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from qwen3app import __version__
from qwen3app.compiler import COMMAND as COMPILE
from qwen3app.errors import AppError, UsageError
from qwen3app.spelling import meant

if TYPE_CHECKING:
    from qwen3app.settings import EngineSettings

PROGRAM = "qwen3-8b"
EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_PIPE = 1, 2, 130, 141
_CHAT_SLOTS = 1  # a conversation is one request at a time


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence, without the wall of usage before it."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message.rstrip('.')} (see `{self.prog} --help`).")


@dataclass(frozen=True)
class Command:
    help: str
    description: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def _add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    from qwen3app.settings import add_serve_arguments

    add_serve_arguments(parser)


def _run_serve(args: argparse.Namespace) -> int:
    from qwen3app.server.main import run_server
    from qwen3app.settings import ServeSettings

    return run_server(ServeSettings.from_args(args))


def _add_chat_arguments(parser: argparse.ArgumentParser) -> None:
    from qwen3app.chat.settings import BY_NAME
    from qwen3app.settings import add_engine_arguments

    group = parser.add_argument_group("conversation")
    group.add_argument(
        "--once",
        metavar="QUESTION",
        help="print the answer to this question alone, and leave; a text that is piped in is put before the question",
    )
    group.add_argument(
        "--url",
        metavar="URL",
        help="talk to an OpenAI-compatible server, like http://127.0.0.1:8000, instead of loading a model; "
        "--model then chooses among the server's",
    )
    group.add_argument("--api-key", metavar="KEY", help="the key for --url (default: $OPENAI_API_KEY)")
    for flag, metavar in (
        ("--temp", "T"),
        ("--top-p", "P"),
        ("--top-k", "K"),
        ("--min-p", "P"),
        ("--repetition-penalty", "R"),
        ("--presence-penalty", "P"),
        ("--frequency-penalty", "P"),
        ("--seed", "N"),
        ("--max-tokens", "N"),
        ("--system", "TEXT"),
    ):
        setting = BY_NAME[flag.removeprefix("--").replace("-", "_")]
        model_default = "" if setting.name in ("seed", "max_tokens", "system") else " (default: the model's own)"
        group.add_argument(flag, metavar=metavar, type=_argument(setting.parse), help=f"{setting.help}{model_default}")
    group.add_argument(
        "--think",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="let the model think before it answers (default: yes)",
    )
    group.add_argument(
        "--show-thinking",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="show thoughts (default: yes in a conversation; with one question no, else they go to stderr)",
    )
    group.add_argument("--stats", action="store_true", help="with one question: print its numbers on stderr")
    add_engine_arguments(parser)
    parser.set_defaults(slots=_CHAT_SLOTS)


def _argument(parse: Callable[[str], object]) -> Callable[[str], object]:
    """An argparse type from a setting's parser, whose ValueError says what the value must be."""

    def convert(text: str) -> object:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"must be {error}, not {text!r}") from None

    return convert


def _run_chat(args: argparse.Namespace) -> int:
    from qwen3app.chat.main import ChatOptions, run_chat
    from qwen3app.chat.settings import SETTINGS, ChatSettings
    from qwen3app.hub.progress import progress_on
    from qwen3app.settings import EngineSettings, resolve_model_dir

    settings = ChatSettings(**{setting.field: getattr(args, setting.name) for setting in SETTINGS})
    engine = EngineSettings.from_args(args)
    if args.api_key is not None and args.url is None:
        raise UsageError(f"{PROGRAM} chat: --api-key is for --url; a model in this process needs no key.")
    if args.url is not None:
        _refuse_engine_flags(engine)
    return run_chat(
        ChatOptions(
            model_dir=None
            if args.url is not None
            else resolve_model_dir(engine.model, lambda: progress_on(sys.stderr), _say),
            url=args.url,
            api_key=args.api_key if args.api_key is not None else os.environ.get("OPENAI_API_KEY"),
            remote_model=args.model,
            engine=engine,
            settings=settings,
            think=args.think,
            once=args.once,
            show_thinking=args.show_thinking,
            show_stats=args.stats,
        )
    )


def _refuse_engine_flags(engine: EngineSettings) -> None:
    """UsageError for a flag of the engine beside --url, where it would do nothing."""
    from qwen3app.settings import EngineSettings

    default = EngineSettings(slots=_CHAT_SLOTS)
    for each in fields(engine):
        if each.name != "model" and getattr(engine, each.name) != getattr(default, each.name):
            flag = "no-prefix-cache" if each.name == "prefix_cache" else each.name.replace("_", "-")
            raise UsageError(
                f"{PROGRAM} chat: --{flag} is for a model in this process; give it to the server that --url names."
            )


def _add_info_arguments(parser: argparse.ArgumentParser) -> None:
    from qwen3app.settings import add_engine_arguments

    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    add_engine_arguments(parser)


def _run_info(args: argparse.Namespace) -> int:
    from qwen3app.commands.info import run_info
    from qwen3app.settings import EngineSettings, resolve_model_dir

    engine = EngineSettings.from_args(args)
    return run_info(resolve_model_dir(engine.model), engine.options(), as_json=args.json)


def _add_verify_arguments(parser: argparse.ArgumentParser) -> None:
    from qwen3app.settings import DEFAULT_MODEL

    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    parser.add_argument(
        "--model",
        metavar="DIR|NAME",
        help="model directory, or a name on the Hub that has been pulled "
        f"(default: $QWEN3_MODEL, else {DEFAULT_MODEL})",
    )


def _run_verify(args: argparse.Namespace) -> int:
    from qwen3app.commands.verify import run_verify
    from qwen3app.settings import resolve_model_dir

    return run_verify(resolve_model_dir(args.model), as_json=args.json)


def _add_pull_arguments(parser: argparse.ArgumentParser) -> None:
    from qwen3app.commands.pull import add_pull_arguments

    add_pull_arguments(parser)


def _run_pull(args: argparse.Namespace) -> int:
    from qwen3app.commands.pull import run_pull

    return run_pull(args)


def _add_bench_arguments(parser: argparse.ArgumentParser) -> None:
    from qwen3app.commands.bench import add_bench_arguments

    add_bench_arguments(parser)


def _run_bench(args: argparse.Namespace) -> int:
    from qwen3app.commands.bench import run_bench

    return run_bench(args)


def _add_profile_arguments(parser: argparse.ArgumentParser) -> None:
    from qwen3app.commands.profile import add_profile_arguments

    add_profile_arguments(parser)


def _run_profile(args: argparse.Namespace) -> int:
    from qwen3app.commands.profile import run_profile

    return run_profile(args)


COMMANDS = {
    "serve": Command(
        "serve the model over HTTP, as OpenAI's API does",
        "Serves one model over HTTP: /v1/chat/completions, /v1/completions, /v1/models, "
        "/tokenize, /detokenize, /health, /metrics.",
        _add_serve_arguments,
        _run_serve,
    ),
    "chat": Command(
        "talk to the model in the terminal",
        "Talks to the model in the terminal. With --once, or with a question on stdin, only the answer is printed. "
        "With both, the piped text stands before the question: cat notes | qwen3-8b chat --once 'Sum this up.'",
        _add_chat_arguments,
        _run_chat,
    ),
    "pull": Command(
        "download a model by its name on the Hub",
        "Downloads a model, like Qwen/Qwen3-8B, from the Hub (or $HF_ENDPOINT): first its configuration, which is "
        "refused here if it cannot be run, then its weights, whose hashes are checked. Goes on where an earlier "
        "download ended. HF_TOKEN opens private and gated models. Prints the model's directory.",
        _add_pull_arguments,
        _run_pull,
    ),
    "info": Command(
        "what a model is, what it needs, what it would get here",
        "Describes a model, what it needs, and what it would get on this machine with the flags given.",
        _add_info_arguments,
        _run_info,
    ),
    "verify": Command(
        "read and check every byte of a model",
        "Reads every byte of a model directory: structure, values that are no numbers, SHA-256 of each file. "
        "Exits with 1 if there is a problem.",
        _add_verify_arguments,
        _run_verify,
    ),
    "bench": Command(
        "how fast the model runs here, and what share of the device that is",
        "Reads prompts and writes answers of random tokens and prints their speed, beside the share of the memory "
        "bandwidth and of the multiply-adds that this device does at most, measured in the same run. The prefix cache "
        "is off.",
        _add_bench_arguments,
        _run_bench,
    ),
    "profile": Command(
        "where the time of a prompt and of a decode step goes",
        "Times every op of one prompt and of one decode step of random tokens. On a GPU the ops are then issued one by "
        "one and each waits for the one before it, so that such a step takes longer than one of a request, which is "
        "recorded; both times are printed.",
        _add_profile_arguments,
        _run_profile,
    ),
}


def build_parser(chosen: str | None = None) -> tuple[_Parser, dict[str, _Parser]]:
    """The whole parser and those of the commands. Only `chosen` gets its flags; None: all do."""
    parser = _Parser(
        prog=PROGRAM,
        description="Serves and chats with Qwen3 language models.",
        epilog=f"`{PROGRAM} COMMAND --help` lists the flags of a command.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="print the version and leave")
    parser.add_argument("--licenses", action="store_true", help="print the licences of all that is inside, and leave")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    parsers: dict[str, _Parser] = {}
    for name, command in COMMANDS.items():
        parsers[name] = commands.add_parser(
            name, help=command.help, description=command.description, allow_abbrev=False
        )
        if chosen in (None, name):
            command.add_arguments(parsers[name])
    return parser, parsers


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The parsed command line; UsageError with the closest match for a word that does not exist."""
    word = next((argument for argument in argv if not argument.startswith("-")), None)
    if word is not None and word not in COMMANDS and argv[0] == word:
        raise UsageError(f"{PROGRAM}: there is no command {word!r}; {_command_hint(word)} (see `{PROGRAM} --help`).")
    parser, parsers = build_parser(word or "")
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        used = parsers.get(args.command, parser)
        flag = unknown[0].partition("=")[0]
        if flag.startswith("-"):
            used.error(f"there is no flag {flag}; {_flag_hint(flag, args.command, used)}")
        used.error(f"unexpected argument {unknown[0]!r}{_word_hint(unknown[0], args.command, used)}")
    return args


def _command_hint(word: str) -> str:
    return _closest(word, [*COMMANDS, "--help", "--version", "--licenses"], f"there are {', '.join(COMMANDS)}")


def _word_hint(word: str, command: str | None, parser: argparse.ArgumentParser) -> str:
    if command == "chat" and not os.path.exists(word):  # noqa: PTH110 - a text that can be no path is none
        return '; ask one question with --once "QUESTION"'
    return "; the model is given with --model" if "--model" in _flags(parser) else ""


def _flag_hint(flag: str, command: str | None, parser: argparse.ArgumentParser) -> str:
    if command == "pull" and flag == "--model":
        return f"the name stands alone, like `{PROGRAM} pull Qwen/Qwen3-8B`"
    others = [name for name, other in build_parser()[1].items() if flag in _flags(other)]
    if others:
        return f"it belongs to `{PROGRAM} {others[0]}`"
    known = [each for each in _flags(parser) if each not in ("-h", "--help")]  # which stands behind every error
    return _closest(flag, known, "check its spelling")


def _flags(parser: argparse.ArgumentParser) -> list[str]:
    return [option for action in parser._actions for option in action.option_strings]


def _closest(word: str, known: Sequence[str], otherwise: str) -> str:
    found = meant(word, known)
    return f"did you mean {found}?" if found else otherwise


def run(argv: Sequence[str]) -> int:
    if list(argv) == ["--version"]:  # before the parser is built: scripts ask this often
        print(f"{PROGRAM} {__version__}")
        return 0
    if list(argv) == [COMPILE]:
        from qwen3app.compiler.child import run_child

        run_child()
    args = parse(argv)
    if args.version:
        print(f"{PROGRAM} {__version__}")
        return 0
    if args.licenses:
        from qwen3app.commands.licenses import run_licenses

        return run_licenses()
    if args.command is None:
        build_parser("")[0].print_help(sys.stderr)
        return EXIT_USAGE
    return COMMANDS[args.command].run(args)


def _wants_traceback(argv: Sequence[str]) -> bool:
    pairs = zip(argv, [*argv[1:], ""], strict=True)
    return "--log-level=debug" in argv or ("--log-level", "debug") in pairs or bool(os.environ.get("QWEN3_DEBUG"))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line and returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _open_streams()
    try:
        code = run(arguments)
        sys.stdout.flush()  # here, where a reader that went away can still be told from a bug
        return code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return EXIT_PIPE
    except Exception as error:  # the last resort: a person sees a sentence, never a traceback
        if _wants_traceback(arguments):
            import traceback

            traceback.print_exc()
        if not (isinstance(error, AppError) and error.is_told):
            _say(_sentence(error))
        try:
            sys.stdout.flush()
        except (OSError, ValueError):  # a full disk: it has been said
            _silence_stdout()
        return EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED


def _sentence(error: Exception) -> str:
    if isinstance(error, AppError):
        text = str(error)
        return text if text.endswith((".", "!", "?")) else f"{text}."
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}."
    if type(error).__module__ == "qwen3app.text.errors":  # the text layer's errors are sentences too
        return str(error)
    return (
        f"An unexpected error, which is a bug in {PROGRAM}: {type(error).__name__}: {error} "
        "(set QWEN3_DEBUG=1 to see where)."
    )


def _open_streams() -> None:
    """Makes stdin, stdout and stderr usable whatever the caller closed, and stdout able to write any text."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal whose encoding lacks a character shows `?`


def _say(sentence: str) -> None:
    text = "".join(char if char.isprintable() else " " for char in sentence)
    text = text if text.startswith(PROGRAM) else f"{PROGRAM}: {text}"
    with contextlib.suppress(OSError, ValueError):  # no terminal, which takes the line as it is
        if columns := os.get_terminal_size(sys.stderr.fileno()).columns:
            from qwen3app.chat.wrap import break_lines

            text = break_lines(text, columns)
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr)


def _silence_stdout() -> None:
    """Python flushes stdout once more at exit: let that go nowhere."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


if __name__ == "__main__":
    sys.exit(main())
