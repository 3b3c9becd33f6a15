"""The checks of build_tools find what they are for, and pass what is right."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import coverage
import pytest

ROOT = Path(__file__).resolve().parents[4]
sys.path.insert(0, str(ROOT / "build_tools"))
import check_coverage  # noqa: E402
import check_glibc  # noqa: E402
import check_layers  # noqa: E402
import pack  # noqa: E402
import requirements  # noqa: E402


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def layer_breaches(root: Path) -> list[str]:
    (root / "qwen3app").mkdir(exist_ok=True)
    return [str(breach) for breach in (*check_layers.check_native(root), *check_layers.check_app(root))]


def test_this_tree_keeps_its_layers() -> None:
    assert layer_breaches(ROOT) == []


@pytest.mark.parametrize(
    ("file", "line", "sentence"),
    [
        ("native/src/kv/a.cpp", '#include "ops/ops.h"', "kv/ must not include ops/ops.h"),
        ("native/src/sched/a.h", '#include "model/model.h"', "sched/ must not include model/model.h"),
        ("native/src/model/a.cpp", '  #  include "backend/cpu/x.h"', "model/ must not include backend/cpu/x.h"),
        ("native/src/model/a.cpp", '#include "qwen3.h"', "only api/"),
        ("native/src/new/a.cpp", "", "folder new/ has no row"),
        ("qwen3app/text/a.py", "from qwen3app.errors import AppError", "qwen3app.text must not import qwen3app.errors"),
        ("qwen3app/text/a.py", "from ..runtime import runtime", "qwen3app.text must not import qwen3app.runtime"),
        ("qwen3app/abi/a.py", "def f():\n    import qwen3app.server.app", "qwen3app.abi must not import"),
        ("qwen3app/server/a.py", "from qwen3app import cli", "qwen3app.server must not import qwen3app.cli"),
        ("qwen3app/fresh.py", "", "qwen3app.fresh has no row"),
    ],
)
def test_layers_finds_a_breach_with_its_line(tmp_path: Path, file: str, line: str, sentence: str) -> None:
    parts = {f"qwen3app/{name}.py": "" for name in ("errors", "cli")}
    parts |= {f"qwen3app/{name}/__init__.py": "" for name in ("runtime", "server", "text", "abi")}
    write(tmp_path, {**parts, file: f"\n\n{line}\n"})
    (breach,) = layer_breaches(tmp_path)
    assert sentence in breach
    assert re.match(rf"{re.escape(file)}:\d+: ", breach)


def test_layers_passes_what_is_allowed(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "native/src/sched/a.cpp": '#include "kv/block_pool.h"\n#include "base/error.h"\n#include <vector>\n',
            "native/src/engine/a.cpp": '#include "qwen3.h"\n#include "model/model.h"\n',
            "qwen3app/text/a.py": "from qwen3app.text import b\nimport json\n",
            "qwen3app/text/b.py": "from . import a\n",
        },
    )
    assert layer_breaches(tmp_path) == []


def test_glibc_of_a_program_is_computed_from_its_symbols(tmp_path: Path) -> None:
    source = tmp_path / "a.c"
    source.write_text('#include <stdio.h>\nint main(void) { return puts("x"); }\n')
    subprocess.run(["gcc", str(source), "-o", str(tmp_path / "a")], check=True)
    version, path = check_glibc.oldest_glibc([tmp_path])
    assert path == tmp_path / "a"
    assert (2, 2) <= version < (3, 0)
    assert check_glibc.main(["--most", "2.1", str(tmp_path)]) == 1
    assert check_glibc.main(["--most", "9.9", str(tmp_path)]) == 0
    assert check_glibc.main([str(source)]) == 1, "no ELF file at all"


def test_versions_compare_as_numbers() -> None:
    assert check_glibc.shown((2, 36)) == "2.36"
    assert (2, 4) < (2, 36)


def test_requirements_are_pinned_and_without_doubles() -> None:
    lines = requirements.requirements(["build", "checkpoints", "test", "reference"])
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines), lines
    assert len(lines) == len(set(lines))
    assert not any(line.startswith("torch") for line in requirements.requirements(["build", "checkpoints"]))
    with pytest.raises(SystemExit, match="no group 'nope'"):
        requirements.requirements(["nope"])


def test_the_environment_says_what_it_installs(tmp_path: Path) -> None:
    """make_venv.sh with a Python that only writes down what pip would get."""
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    python = venv / "bin" / "python"
    python.write_text(f'#!/bin/sh\ncase "$1" in -m) exit 0;; esac\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

    def said(*names: str) -> str:
        script = ROOT / "build_tools" / "make_venv.sh"
        return subprocess.run([script, venv, *names], capture_output=True, text=True, check=True).stderr

    begin = f"make: installing into {venv}, once: what the program imports, build tools"
    assert said("build") == f"{begin} (a minute or a few)\n"
    assert said("build", "evaluation") == f"{begin}, numpy and jsonschema (a minute or a few)\n"
    assert ", test tools and linters, PyTorch and transformers (" in said("build", "test", "reference")
    assert ", nvcc, " in said(*groups)  # every group has its words, or this ends with an error


def test_a_checkout_may_lie_in_a_folder_with_a_space(tmp_path: Path) -> None:
    """What make_venv.sh and the Makefile write into commands: the one for users, and CMake's."""
    root = tmp_path / "my work"
    (root / "build_tools").mkdir(parents=True)
    (root / "native").mkdir()
    for name in ("Makefile", "pyproject.toml", "build_tools/make_venv.sh", "build_tools/requirements.py"):
        shutil.copy(ROOT / name, root / name)
    (root / "native" / "CMakeLists.txt").touch()
    (root / "qwen3app").symlink_to(ROOT / "qwen3app")
    programs = root / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name, script in (
        ("python", f'case "$1" in -m) exit 0;; esac\nexec "{sys.executable}" "$@"'),
        ("cmake", 'mkdir -p build/native; for each in "$@"; do echo "<$each>" >&2; done'),
    ):
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)

    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    made = subprocess.run(
        ["make", "build/native/build.ninja"], cwd=root, env=environment, capture_output=True, text=True, check=True
    )
    assert f"<-DCMAKE_MAKE_PROGRAM={programs / 'ninja'}>\n" in made.stderr
    assert f"<-DPython3_EXECUTABLE={programs / 'python'}>\n" in made.stderr
    done = subprocess.run([programs / "qwen3-8b", "--version"], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (f"qwen3-8b {pack.project_version()}\n", "")


def test_build_system_and_build_group_agree() -> None:
    """`pip install .` and the Makefile build with the same versions."""
    text = requirements.PYPROJECT.read_text(encoding="utf-8")
    match = re.search(r"^requires = \[(.*)\]", text, flags=re.MULTILINE)
    assert match is not None
    assert set(re.findall(r'"([^"]+)"', match.group(1))) <= set(requirements.requirements(["build"]))


def test_bundled_distributions_follow_what_they_need() -> None:
    names = pack.bundled_distributions()
    assert {"litestar", "uvicorn", "h11", "markupsafe", "tokenizers"} <= set(names)
    assert not set(names) & pack.EXCLUDED


def test_version_is_one_number_everywhere() -> None:
    from qwen3app import __version__

    cmake = (ROOT / "native" / "CMakeLists.txt").read_text(encoding="utf-8")
    assert pack.project_version() == __version__
    assert f"project(qwen3 VERSION {__version__} " in cmake


def test_missing_instruction_sets_are_named() -> None:
    assert check_coverage.missing_instruction_sets("flags\t\t: fpu avx2 fma f16c\n") == ["avx512", "avx512bf16"]
    assert check_coverage.missing_instruction_sets("") == ["avx2", "avx512", "avx512bf16"]


def test_data_of_a_killed_process_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, empty, torn, foreign = parts = [tmp_path / f".coverage.{i}" for i in range(4)]
    data = coverage.CoverageData(basename=str(whole))
    data.add_lines({"a.py": [1]})
    data.write()
    data.close()
    empty.touch()
    torn.write_bytes(whole.read_bytes()[:100])
    foreign.write_text("no database")
    check_coverage.drop_unfinished(parts)
    assert [part.exists() for part in parts] == [True, False, False, False]
    assert capsys.readouterr().out.count("is left out") == 3


def test_a_process_that_outlives_the_tests_adds_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module.py").write_text("x = 1\nif x:\n    x = 2\nelse:\n    x = 3\n")
    data_file = tmp_path / ".coverage"
    run = [sys.executable, "-m", "coverage", "run", "--branch", f"--data-file={data_file}", "module.py"]
    subprocess.run(run, cwd=tmp_path, check=True)
    late = coverage.CoverageData(basename=f"{data_file}.late")
    late.add_arcs({})
    late.touch_file(str(tmp_path / "module.py"))
    late.write()
    monkeypatch.setattr(check_coverage, "ROOT", tmp_path)
    monkeypatch.setenv("COVERAGE_FILE", ".coverage")
    assert check_coverage.python_lines(tmp_path) == (75.0, 50.0)
    assert not Path(f"{data_file}.late").exists()
