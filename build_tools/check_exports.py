"""Checks the face of the built library: exported symbols and needed libraries.

Owns: "the .so exports exactly what qwen3.h declares and links nothing but parts of libc". Reads the header as text
and the library through binutils' nm and readelf, which come with g++. Prints one sentence per breach and exits 1.
Usage: python build_tools/check_exports.py LIBRARY [HEADER]
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

HEADER = Path(__file__).resolve().parent.parent / "native" / "include" / "qwen3.h"
# glibc's own; since 2.34 the last three are empty shells that older systems still need.
ALLOWED_LIBRARIES = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "ld-linux-x86-64.so.2"}


def declared_functions(header: str) -> set[str]:
    """Names of all functions that the header declares, comments ignored."""
    code = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    return set(re.findall(r"QWEN3_API[^;]*?\b(qwen3_\w+)\s*\(", code))


def exported_symbols(library: Path) -> set[str]:
    output = subprocess.run(
        ["nm", "--dynamic", "--defined-only", "--format=posix", str(library)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    # Names may carry "@@VERSION"; an absolute symbol (type A) is the version node itself.
    return {
        fields[0].split("@")[0]
        for fields in (line.split() for line in output.splitlines())
        if len(fields) > 1 and fields[1] != "A"
    }


def needed_libraries(library: Path) -> set[str]:
    output = subprocess.run(
        ["readelf", "--dynamic", "--wide", str(library)],
        check=True,
        capture_output=True,
        text=True,
        env={"LC_ALL": "C"},
    ).stdout
    return set(re.findall(r"\(NEEDED\).*\[([^\]]+)\]", output))


def breaches(library: Path, header: Path) -> list[str]:
    declared = declared_functions(header.read_text(encoding="utf-8"))
    exported = exported_symbols(library)
    found: list[str] = []
    if not declared:
        found.append(f"{header}: no QWEN3_API declaration was found; is this the right header?")
    found += [
        f"{library}: {name} is declared in {header.name} but not exported; define it"
        for name in sorted(declared - exported)
    ]
    found += [
        f"{library}: {name} is exported but not declared in {header.name}; hide it (native/qwen3.map)"
        for name in sorted(exported - declared)
    ]
    found += [
        f"{library}: needs {name}; only glibc's own libraries may be linked (others: load them by dlopen)"
        for name in sorted(needed_libraries(library) - ALLOWED_LIBRARIES)
    ]
    return found


def main(arguments: list[str]) -> int:
    if not arguments:
        print("usage: check_exports.py LIBRARY [HEADER]", file=sys.stderr)
        return 2
    found = breaches(Path(arguments[0]), Path(arguments[1]) if len(arguments) > 1 else HEADER)
    for sentence in found:
        print(sentence, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
