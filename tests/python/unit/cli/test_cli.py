"""The command line: every failure is one sentence and the right exit code, and nothing heavy is imported early."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE
from served import ROOT

from qwen3app import __version__, cli
from qwen3app.chat import main as chat_main
from qwen3app.chat.settings import ChatSettings
from qwen3app.commands import info as info_command
from qwen3app.commands import verify as verify_command
from qwen3app.errors import EngineError, ModelError, OptionError, Status, UsageError
from qwen3app.text.errors import TextError


def run(*argv: str) -> int:
    return cli.main(list(argv))


@pytest.fixture
def raising(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes `verify` raise what the test says."""

    def prepare(error: BaseException) -> None:
        def command(args: argparse.Namespace) -> int:
            raise error

        commands = dict(cli.COMMANDS)
        verify = commands["verify"]
        commands["verify"] = cli.Command(verify.help, verify.description, verify.add_arguments, command)
        monkeypatch.setattr(cli, "COMMANDS", commands)

    return prepare


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert run("--version", "verify") == 0
    assert capsys.readouterr().out == f"qwen3-8b {__version__}\n" * 2


def test_version_imports_nothing_heavy() -> None:
    code = (
        "import sys, qwen3app.cli as c; c.main(['--version']); "
        "heavy = {'rich', 'prompt_toolkit', 'litestar', 'tokenizers', 'cffi', 'jinja2', 'asyncio', 'msgspec'};"
        "sys.exit(','.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    commands = [[command, "--help"] for command in cli.COMMANDS]
    for argv in (["--help"], ["serve", "-h"], *commands):
        with pytest.raises(SystemExit) as caught:
            cli.run(argv)
        assert caught.value.code == 0
    out = capsys.readouterr().out
    for flag in ("--once", "--temp", "--no-think", "--max-tokens", "--kv-gb", "--addr", "--json", "--repeat"):
        assert flag in out
    assert run() == 2
    assert "COMMAND" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["chat", "--tmep", "1"], "qwen3-8b chat: there is no flag --tmep; did you mean --temp? (see `qwen3-8b chat"),
        (["chat", "--temp", "hot"], "argument --temp: must be a number from 0 to 1000000, not 'hot' (see"),
        (["chat", "--top-p=1.5"], "argument --top-p: must be a number from 0 to 1, not '1.5'"),
        (["chat", "--max-tokens", "0"], "argument --max-tokens: must be a whole number from 1"),
        (["chat", "--device", "tpu"], "--device"),
        (["chat", "--api-key", "k"], "qwen3-8b chat: --api-key is for --url"),
        (["chat", "--url", "http://h", "--kv-gb", "2"], "qwen3-8b chat: --kv-gb is for a model in this process"),
        (["chat", "--url", "http://h", "--no-prefix-cache"], "qwen3-8b chat: --no-prefix-cache is for a model in"),
        (["chat", "extra"], "qwen3-8b chat: unexpected argument 'extra'"),
        (["chat", "--xyzzy=1"], "there is no flag --xyzzy; check its spelling"),
        (["serve", "--prot", "80"], "did you mean --port?"),
        (["serve", "--kv-gb", "-1"], "argument --kv-gb: must be from 0 to 1048576, got -1"),
        (["serve", "--host", "0.0.0.0"], "there is no flag --host; did you mean --addr?"),
        (["serve", "--max-model-len", "2048"], "did you mean --max-ctx?"),
        (["serve", "--gpu-memory-utilization=0.5"], "did you mean --gpu-memory-fraction?"),
        (["chat", "-p", "hello"], "there is no flag -p; did you mean --once?"),
        (["bench", "--no-prefix-cache"], "there is no flag --no-prefix-cache; it belongs to `qwen3-8b serve`"),
        (["profile", "--no-prefix-cache"], "there is no flag --no-prefix-cache; it belongs to `qwen3-8b serve`"),
        (["bench", "-p", "512"], "there is no flag -p; did you mean --prompt?"),
        (["pull", "a/b", "--local-dir", "x"], "did you mean --dir?"),
        (["info", "-m", "x"], "there is no flag -m; did you mean --model?"),
        (["verify", "--host", "h"], "there is no flag --host; check its spelling"),  # has nothing like it
        (["serve", "--foo"], "there is no flag --foo; check its spelling"),  # not --port, for its o
        (["serve", "--quiet"], "there is no flag --quiet; check its spelling"),
        (["serve", "--port", "99999"], "--port"),
        (["pull", "--model", "Qwen/x"], "no flag --model; the name stands alone, like `qwen3-8b pull Qwen/Qwen3-8B`"),
        (["pull", "Qwen/x", "--hepl"], "there is no flag --hepl; check its spelling"),
        (["chat", "--port", "80"], "there is no flag --port; it belongs to `qwen3-8b serve` (see"),
        (["chta"], "there is no command 'chta'; did you mean chat?"),
        (["frobnicate"], "there is no command 'frobnicate'; there are serve, chat, pull, info, verify, bench, profile"),
        (["--verson"], "there is no flag --verson; did you mean --version?"),
        (["help"], "there is no command 'help'; did you mean --help?"),
        (["version"], "there is no command 'version'; did you mean --version?"),
        (["verify", "models/x"], "unexpected argument 'models/x'; the model is given with --model (see"),
        (["chat", "."], "unexpected argument '.'; the model is given with --model (see"),
        (["pull", "a/b", "c"], "unexpected argument 'c' (see"),
        (["pull", ""], "'' is no name on the Hub"),
        (["pull", "x" * 5000], "is no name on the Hub"),
        (["chat", "x" * 5000], "ask one question with --once"),
        (["verify", "--model"], "expected one argument"),
        (["info", "--log-level", "loud"], "invalid choice: 'loud'"),
        (["verify", "--model", "/nowhere/x"], "/nowhere/x"),
        (["verify", "--model", ""], "--model is empty"),
    ],
)
def test_wrong_use_is_one_sentence(argv: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("qwen3-8b") and err.count("\n") == 1
    assert sentence in err


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (UsageError("Wrong."), 2, "qwen3-8b: Wrong."),
        (ModelError("Broken\nfile \x1b[2J."), 1, "qwen3-8b: Broken file  [2J."),
        (EngineError(Status.OUT_OF_MEMORY, "Too large."), 1, "qwen3-8b: Too large."),
        (OptionError(Status.INVALID_ARGUMENT, "Too long."), 2, "qwen3-8b: Too long."),
        (TextError("Not text."), 1, "qwen3-8b: Not text."),
        (FileNotFoundError(2, "No such file or directory", "x.json"), 1, "x.json: No such file or directory."),
        (OSError("disk on fire"), 1, "disk on fire."),
        (ZeroDivisionError("oops"), 1, "which is a bug in qwen3-8b: ZeroDivisionError: oops (set QWEN3_DEBUG=1"),
    ],
)
def test_every_failure_is_one_sentence(
    raising: Any, error: Exception, code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(error)
    assert run("verify") == code
    err = capsys.readouterr().err
    assert sentence in err and "Traceback" not in err and err.count("\n") == 1


def test_what_the_log_has_told_is_not_said_again(raising: Any, capsys: pytest.CaptureFixture[str]) -> None:
    error = UsageError("Wrong.")
    error.is_told = True
    raising(error)
    assert run("verify") == 2
    assert capsys.readouterr().err == ""


def test_a_traceback_on_request(
    raising: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(ZeroDivisionError())
    monkeypatch.setenv("QWEN3_DEBUG", "1")
    assert run("verify") == 1
    assert "Traceback" in capsys.readouterr().err
    assert cli._wants_traceback(["serve", "--log-level", "debug"])
    monkeypatch.delenv("QWEN3_DEBUG")
    assert cli._wants_traceback(["serve", "--log-level=debug"])
    assert not cli._wants_traceback(["serve", "--log-level", "info"])


def test_an_interrupt_is_quiet(raising: Any, capsys: pytest.CaptureFixture[str]) -> None:
    raising(KeyboardInterrupt())
    assert run("verify") == 130
    assert capsys.readouterr().err == ""


def test_without_stderr_nothing_breaks(raising: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    raising(ModelError("x"))
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    assert run("verify") == 1
    for name in ("stdin", "stdout", "stderr"):
        getattr(sys, name).close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_is_one_sentence() -> None:
    with Path("/dev/full").open("wb") as stdout:
        done = subprocess.run(
            [sys.executable, "-m", "qwen3app", "--licenses"], stdout=stdout, stderr=subprocess.PIPE, check=False
        )
    assert (done.returncode, done.stderr) == (1, b"qwen3-8b: No space left on device.\n")


def test_an_encoding_that_lacks_a_character_is_no_failure() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-m", "qwen3app", "--licenses"], env=environment, capture_output=True, check=False
    )
    assert done.returncode == 0 and done.stdout.isascii() and done.stderr == b""


def test_a_reader_that_goes_away_is_quiet() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as stdout:
        done = subprocess.run(
            [sys.executable, "-m", "qwen3app", "--licenses"], stdout=stdout, stderr=subprocess.PIPE, check=False
        )
    assert (done.returncode, done.stderr) == (141, b"")


def test_chat_flags_reach_the_chat(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[chat_main.ChatOptions] = []
    monkeypatch.setattr(chat_main, "run_chat", lambda options: seen.append(options) or 0)
    argv = ["chat", "--model", str(tmp_path), "--temp", "0.5", "--top-k", "3", "--seed", "1", "--system", "Cat."]
    assert run(*argv, "--no-think", "--once", "Hi", "--stats", "--show-thinking", "--max-ctx", "512") == 0
    options = seen[0]
    assert options.settings == ChatSettings(temperature=0.5, top_k=3, seed=1, system="Cat.")
    assert (options.think, options.once, options.show_stats, options.show_thinking) == (False, "Hi", True, True)
    assert options.model_dir == tmp_path
    assert (options.engine.max_ctx, options.engine.slots) == (512, 1)
    assert run("chat", "--model", str(tmp_path)) == 0
    assert seen[1].think and seen[1].once is None and seen[1].show_thinking is None


def test_the_model_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[tuple[Path, bool]] = []
    monkeypatch.setattr(verify_command, "run_verify", lambda path, *, as_json: seen.append((path, as_json)) or 0)
    monkeypatch.setattr(info_command, "run_info", lambda path, options, *, as_json: seen.append((path, as_json)) or 0)
    monkeypatch.setenv("QWEN3_MODEL", str(tmp_path))
    assert run("verify", "--json") == 0
    assert run("info") == 0
    assert seen == [(tmp_path, True), (tmp_path, False)]


def test_serve_is_handed_to_the_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from qwen3app.server import main as server_main

    seen: list[Any] = []
    monkeypatch.setattr(server_main, "run_server", lambda settings: seen.append(settings) or 3)
    assert run("serve", "--model", str(tmp_path), "--port", "0") == 3
    assert seen[0].port == 0 and seen[0].engine.model == str(tmp_path)


def test_licenses(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--licenses") == 0
    out = capsys.readouterr().out
    for name in ("qwen3-8b (this program): Apache-2.0", "nlohmann-json", "Python", "litestar", "rich", "tokenizers"):
        assert name in out
    json.dumps(out)


def test_sentences_break_between_words_on_a_terminal() -> None:
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 40))
    with os.fdopen(ours, "rb", buffering=0) as screen:
        command = [sys.executable, "-m", "qwen3app.cli", "info", "--model", "nowhere/at/all"]
        done = subprocess.run(command, stderr=theirs, cwd=ROOT, check=False, timeout=PATIENCE)
        said = screen.read(4096).decode().split("\r\n")
        os.close(theirs)
    assert done.returncode == 2
    assert said == [
        "qwen3-8b: The model directory",
        "nowhere/at/all (--model) does not",
        "exist; check the path.",
        "",
    ]
