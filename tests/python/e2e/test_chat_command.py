"""`chat --once` and a question on stdin, as a shell user runs them: the real command on a tiny checkpoint."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE
from scripted_server import scripted, words

ROOT = Path(__file__).resolve().parents[3]


def chat(model_dir: Path, *flags: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        command(model_dir, *flags),
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=PATIENCE,
        check=False,
    )


def command(model_dir: Path, *flags: str) -> list[str]:
    base = [sys.executable, "-m", "qwen3app.cli", "chat", "--model", str(model_dir), "--threads", "2"]
    return [*base, "--kv-gb", "0.25", *flags]


def test_once_and_stdin_give_the_same_answer_alone(tiny_model_dir: Path) -> None:
    flags = ("--temp", "0", "--max-tokens", "8", "--no-think")
    once = chat(tiny_model_dir, "--once", "Hello", *flags)
    piped = chat(tiny_model_dir, *flags, stdin=b"Hello\n")
    assert once.returncode == piped.returncode == 0
    assert once.stdout == piped.stdout and once.stdout.endswith(b"\n")
    assert b"tok/s" not in once.stderr and b"Traceback" not in once.stderr
    once.stdout.decode("utf-8")


def test_a_piped_text_stands_before_the_question(tiny_model_dir: Path) -> None:
    flags = ("--temp", "0", "--max-tokens", "8", "--no-think")
    both = chat(tiny_model_dir, "--once", "Hello", *flags, stdin=b"A text.\n")
    whole = chat(tiny_model_dir, *flags, stdin=b"A text.\n\nHello")
    assert both.returncode == 0 and both.stdout == whole.stdout
    alone = chat(tiny_model_dir, "--once", "Hello", *flags)
    assert chat(tiny_model_dir, "--once", "Hello", *flags, stdin=b"\n").stdout == alone.stdout != both.stdout
    wrong = chat(tiny_model_dir, "--once", "Hello", stdin=b"a\xff")
    assert wrong.returncode == 2 and b"The text on stdin is not UTF-8: byte 1 is 0xff." in wrong.stderr


def test_a_seed_repeats_an_answer(tiny_model_dir: Path) -> None:
    flags = ("--once", "Hello", "--temp", "0.9", "--max-tokens", "12", "--seed", "5", "--no-think", "--stats")
    first, second = chat(tiny_model_dir, *flags), chat(tiny_model_dir, *flags)
    assert first.stdout == second.stdout
    assert b"first after" in first.stderr


@pytest.mark.parametrize(
    ("stdin", "sentence"), [(b"a\0b", b"NUL"), (b"\xff\xfe", b"not UTF-8"), (b"", b"is empty"), (b"  \n", b"is empty")]
)
def test_wrong_input_is_one_sentence(tiny_model_dir: Path, stdin: bytes, sentence: bytes) -> None:
    done = chat(tiny_model_dir, stdin=stdin)
    assert done.returncode == 2 and done.stdout == b""
    assert sentence in done.stderr and done.stderr.count(b"\n") == 1


def test_a_question_longer_than_the_context(tiny_model_dir: Path) -> None:
    done = chat(tiny_model_dir, "--max-ctx", "64", stdin=b"word " * 500)
    assert done.returncode == 1 and done.stdout == b""
    assert b"context holds 64" in done.stderr and done.stderr.count(b"\n") == 1


def test_a_question_to_a_server(tmp_path: Path) -> None:
    with scripted(words("First", " answer", thought="hm"), key="k") as server:
        done = subprocess.run(
            [sys.executable, "-m", "qwen3app.cli", "chat", "--url", server.url, "--once", "Hi", "--stats"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OPENAI_API_KEY": "k", "QWEN3_LIBRARY": str(tmp_path / "none")},
            timeout=PATIENCE,
            check=False,
        )  # and without an engine
    assert (done.returncode, done.stdout) == (0, b"First answer\n") and done.stderr.startswith(b"[3 tokens")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_quietly(tiny_model_dir: Path, number: int, code: int) -> None:
    # A bonus for repetition makes the random model say one word for ever.
    flags = ("--once", "Hello", "--temp", "0", "--frequency-penalty", "-2", "--max-tokens", "40000")
    process = subprocess.Popen(
        command(tiny_model_dir, *flags),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    process.stdout.read(1)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=PATIENCE)
    assert (process.returncode, stderr) == (code, b"")


def test_a_reader_that_goes_away(tiny_model_dir: Path) -> None:
    read, write = os.pipe()
    process = subprocess.Popen(
        command(tiny_model_dir, "--once", "Hello", "--temp", "0", "--max-tokens", "400"),
        stdin=subprocess.DEVNULL,
        stdout=write,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    os.close(write)
    os.close(read)
    _, stderr = process.communicate(timeout=PATIENCE)
    assert (process.returncode, stderr) == (141, b"")
