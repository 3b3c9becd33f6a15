"""native/examples/c/stream.c, built as strictly as its README promises, on a tiny checkpoint."""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest
from abi_support import ROOT, compile_c

EXAMPLE = ROOT / "native" / "examples" / "c" / "stream.c"


@pytest.fixture(scope="session")
def stream(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("example") / "stream"
    compile_c(EXAMPLE, program, library)
    return program


def run(stream: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([stream, *arguments], capture_output=True, text=True, timeout=300, check=False)


def parse(output: str) -> tuple[dict[int, list[int]], dict[int, tuple[str, int]]]:
    """Tokens per prompt, and (reason, count) per prompt."""
    tokens: dict[int, list[int]] = defaultdict(list)
    ends: dict[int, tuple[str, int]] = {}
    for line in output.splitlines():
        kind, which, *rest = line.split()
        if kind == "token":
            assert int(which) not in ends, "a token came after the end"
            assert float(rest[1]) <= 0.0
            tokens[int(which)].append(int(rest[0]))
        else:
            ends[int(which)] = (rest[0], int(rest[1]))
    return tokens, ends


def test_streams_several_requests_and_cancels_the_last(stream: Path, tiny_model: Path) -> None:
    result = run(stream, str(tiny_model), "9 10 11", "20, 21, 22, 23", "5", "9 10 12")
    assert result.returncode == 0, result.stderr
    tokens, ends = parse(result.stdout)
    assert sorted(ends) == [0, 1, 2, 3]
    for which in range(3):
        reason, count = ends[which]
        assert reason in ("length", "stop")
        assert count == len(tokens[which])
        assert reason == "stop" or count == 24
    assert ends[3][0] == "cancelled"
    assert len(tokens[3]) >= 4
    assert "4 requests" in result.stderr
    assert re.findall("loaded: .*", result.stderr) == ["loaded: map", "loaded: weights", "loaded: kv"]


def test_requests_do_not_disturb_each_other(stream: Path, tiny_model: Path) -> None:
    together, _ = parse(run(stream, str(tiny_model), "9 10 11", "20 21 22 23", "5").stdout)
    alone, _ = parse(run(stream, str(tiny_model), "20 21 22 23").stdout)
    assert together[1] == alone[0]


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ([], 2, "usage: stream MODEL_DIR PROMPT..."),
        (["/no/such/model", "1"], 1, "/no/such/model"),
        (["{model}", "1 x"], 1, '"1 x" is not a list'),
        (["{model}", "99999999"], 1, "submitting a request: "),
    ],
)
def test_mistakes_get_one_sentence(
    stream: Path, tiny_model: Path, arguments: list[str], code: int, sentence: str
) -> None:
    result = run(stream, *(argument.replace("{model}", str(tiny_model)) for argument in arguments))
    assert result.returncode == code
    assert sentence in result.stderr


def test_the_line_of_the_guide_builds_and_runs_a_host(library: Path, tmp_path: Path) -> None:
    """docs/abi.md's first block, as a person would type it at the root of a repository after `make dist`."""
    import shutil

    found = re.search(r"```sh\n(.*?)```", (ROOT / "docs" / "abi.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    assert found is not None and found[1].startswith("cc ") and "-Wl,-rpath," in found[1]
    (tmp_path / "dist").mkdir()
    shutil.copy(library, tmp_path / "dist" / "libqwen3.so")
    shutil.copy(ROOT / "native" / "include" / "qwen3.h", tmp_path / "dist")
    for folder in ("native", "qwen3app"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    result = subprocess.run(
        ["sh", "-ec", found[1]], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr
    tokens, ends = parse(result.stdout)
    assert len(tokens[0]) == ends[0][1] > 0


def test_builds_with_its_own_makefile_and_pkg_config(library: Path, tmp_path: Path) -> None:
    """As a person would: a folder with the library, the header and qwen3.pc, moved somewhere else."""
    import shutil
    import sys

    sys.path.insert(0, str(ROOT / "build_tools"))
    import pack

    prefix = tmp_path / "elsewhere"
    prefix.mkdir()
    shutil.copy(library, prefix / "libqwen3.so")
    shutil.copy(ROOT / "native" / "include" / "qwen3.h", prefix)
    (prefix / "qwen3.pc").write_text(pack.pkg_config(pack.project_version()))
    source = tmp_path / "c"
    shutil.copytree(EXAMPLE.parent, source, ignore=shutil.ignore_patterns("stream"))
    result = subprocess.run(["make", "-C", source, f"QWEN3={prefix}"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert run(source / "stream").returncode == 2
    if shutil.which("pkg-config") is not None:
        flags = subprocess.run(
            ["pkg-config", "--cflags", "--libs", "qwen3"],
            env={"PKG_CONFIG_PATH": str(prefix), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        command = ["gcc", "-std=c11", str(EXAMPLE), *flags, "-o", str(tmp_path / "by-pkg-config")]
        assert subprocess.run(command, check=False).returncode == 0
