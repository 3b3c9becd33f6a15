"""What a flag that the model cannot have, and what this machine does not have, end with; on the model in the box."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from patience import PATIENCE
from scripted_server import scripted, words
from served import ROOT

from qwen3app import cli
from qwen3app.settings import DEMO_MODEL

TOO_LONG = ("--max-ctx", "5000")
NOT_HERE = ("--device", "cuda:99")
COMMANDS = {"chat": ("--once", "Hi"), "bench": ("--prompt", "8"), "profile": ("--prompt", "8")}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("flags", "code", "sentence"),
    [
        (TOO_LONG, 2, "--max-ctx is 5000, but the model was made for 2048 tokens"),
        (("--kv-gb", "0.000001"), 2, "the KV pool would hold less than one block"),
        (NOT_HERE, 1, '--device "cuda:99" cannot be used'),
        (("--kv-gb", "1000000"), 1, "a KV pool of 1000000.00 GiB was asked for"),
    ],
)
def test_a_wrong_flag_is_no_missing_device(
    command: str, flags: tuple[str, ...], code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([command, "--model", str(DEMO_MODEL), *COMMANDS[command], *flags]) == code
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("qwen3-8b: ") and err.count("\n") == 1 and sentence in err


@pytest.mark.parametrize(
    ("flags", "code", "sentence"), [(TOO_LONG, 2, "--max-ctx is 5000"), (NOT_HERE, 1, '--device "cuda:99"')]
)
def test_a_server_that_cannot_load_says_why_once(flags: tuple[str, ...], code: int, sentence: str) -> None:
    command = [sys.executable, "-m", "qwen3app", "serve", "--port", "0", "--model", str(DEMO_MODEL), *flags]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, env=environment, timeout=PATIENCE, check=False)
    lines = [json.loads(line) for line in done.stderr.splitlines()]  # and nothing but the log
    assert done.returncode == code
    assert [line["event"] for line in lines if sentence in line.get("message", "")] == ["failed"]


def test_a_name_that_the_server_does_not_have(capsys: pytest.CaptureFixture[str]) -> None:
    with scripted(words("Hi")) as server:
        assert cli.main(["chat", "--url", server.url, "--model", "foo", "--once", "Hi"]) == 2
    assert "has no model foo; it has scripted, second: choose one of these with --model" in capsys.readouterr().err
