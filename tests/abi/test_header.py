"""The public header by itself: it compiles as C and C++, its example runs, and the library exports what it declares."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from abi_support import C_FLAGS, HEADER, ROOT, compile_c

sys.path.insert(0, str(ROOT / "build_tools"))
import check_exports


def syntax_check(command: list[str]) -> None:
    result = subprocess.run([*command, "-fsyntax-only", str(HEADER)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_header_compiles_as_c11() -> None:
    syntax_check(["gcc", *C_FLAGS, "-x", "c"])


@pytest.mark.parametrize("standard", ["c++11", "c++14", "c++17", "c++20"])
def test_header_compiles_as_cpp(standard: str) -> None:
    syntax_check(["g++", f"-std={standard}", "-Wall", "-Wextra", "-pedantic", "-Werror", "-x", "c++"])


def test_header_can_be_included_twice(tmp_path: Path) -> None:
    source = tmp_path / "twice.c"
    source.write_text('#include "qwen3.h"\n#include "qwen3.h"\nint main(void) { return 0; }\n')
    command = ["gcc", *C_FLAGS, f"-I{HEADER.parent}", "-c", str(source), "-o", str(tmp_path / "twice.o")]
    assert subprocess.run(command, check=False).returncode == 0


def test_library_exports_exactly_the_declarations(library: Path) -> None:
    assert check_exports.breaches(library, HEADER) == []


def test_declared_functions_are_all_found() -> None:
    """Guards the check itself: a parser that finds nothing would agree with an empty library."""
    declared = check_exports.declared_functions(HEADER.read_text())
    assert {"qwen3_engine_open", "qwen3_submit", "qwen3_poll", "qwen3_engine_close", "qwen3_version"} <= declared
    assert len(declared) == len(re.findall(r"^QWEN3_API", HEADER.read_text(), flags=re.MULTILINE))


def test_check_exports_sees_a_stray_symbol_and_a_stray_library(tmp_path: Path) -> None:
    source = tmp_path / "stray.c"
    source.write_text("int qwen3_version(void) { return 0; }\nint stray(void) { return 1; }\n")
    stray = tmp_path / "libstray.so"
    command = ["g++", "-shared", "-fPIC", "-x", "c", str(source), "-o", str(stray), "-Wl,--no-as-needed", "-lstdc++"]
    subprocess.run(command, check=True)
    sentences = "\n".join(check_exports.breaches(stray, HEADER))
    assert "stray is exported but not declared" in sentences
    assert "qwen3_submit is declared in qwen3.h but not exported" in sentences
    assert "needs libstdc++.so.6" in sentences


def overview_example() -> str:
    """The C code between //example and //end of the header's first comment."""
    match = re.search(r"//example\n(.*?)\n \*   //end", HEADER.read_text(), flags=re.DOTALL)
    assert match is not None, "qwen3.h has lost its example"
    return "\n".join(re.sub(r"^ \* ? ? ?", "", line) for line in match.group(1).splitlines())


def test_overview_example_compiles_and_runs(library: Path, tiny_model: Path, tmp_path: Path) -> None:
    code = overview_example().replace("models/qwen3-8b", str(tiny_model))
    # The example's ids are of the official vocabulary; the tiny checkpoint's is smaller.
    code = code.replace("{9707, 11, 1879, 0}", "{97, 11, 79, 0}")
    source = tmp_path / "example.c"
    source.write_text(f"#include <qwen3.h>\n#include <stdio.h>\n\nint main(void) {{\n{code}\n  return 0;\n}}\n")
    compile_c(source, tmp_path / "example", library)
    result = subprocess.run([tmp_path / "example"], capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    ids = [int(line) for line in result.stdout.split()]
    assert 1 <= len(ids) <= 16
