"""Computes the oldest glibc that a set of ELF files runs on, from the versions of the symbols they need.

Owns: the number in README.md and in the packed file, and the check that it has not crept up. Uses readelf only; a
folder is walked, files that are not ELF are passed over.
Usage: python build_tools/check_glibc.py [--most VERSION] [--explain] PATH...   prints e.g. "2.34"
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

Version = tuple[int, ...]
VERSION_NEED = re.compile(r"Name: (GLIBC|GLIBC_ABI_[A-Z_]+?|GLIBCXX|CXXABI)_([0-9.]+|DT_RELR)\b")


def elf_files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        for candidate in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if candidate.is_file() and not candidate.is_symlink():
                with candidate.open("rb") as file:
                    if file.read(4) == b"\x7fELF":
                        yield candidate


def needs(path: Path) -> dict[str, Version]:
    """Highest version needed per family, e.g. {"GLIBC": (2, 34)}. Only undefined (needed) versions count."""
    output = subprocess.run(
        ["readelf", "--version-info", "--wide", str(path)],
        check=True,
        capture_output=True,
        text=True,
        env={"LC_ALL": "C"},
    ).stdout
    _, _, section = output.partition("Version needs section")
    highest: dict[str, Version] = {}
    for family, version in VERSION_NEED.findall(section):
        # GLIBC_ABI_DT_RELR came with 2.36 and is a need like any other.
        number = (2, 36) if version == "DT_RELR" else tuple(int(part) for part in version.strip(".").split("."))
        name = "GLIBC" if family.startswith("GLIBC_ABI") else family
        highest[name] = max(highest.get(name, (0,)), number)
    return highest


def oldest_glibc(paths: Iterable[Path]) -> tuple[Version, Path | None]:
    """The version that the neediest file asks for, and that file."""
    worst: tuple[Version, Path | None] = ((0,), None)
    for path in elf_files(paths):
        version = needs(path).get("GLIBC", (0,))
        if version > worst[0]:
            worst = (version, path)
    return worst


def shown(version: Version) -> str:
    return ".".join(str(part) for part in version)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="check_glibc.py", description="Oldest glibc that ELF files run on.")
    parser.add_argument("--most", help="fail when more than this version is needed")
    parser.add_argument("--explain", action="store_true", help="print each file's need, the highest last")
    parser.add_argument("paths", nargs="+", type=Path)
    options = parser.parse_args(arguments)
    version, path = oldest_glibc(options.paths)
    if path is None:
        print("check_glibc.py: no ELF file that needs glibc was found; check the paths", file=sys.stderr)
        return 1
    if options.explain:
        for number, file in sorted((needs(file).get("GLIBC", (0,)), file) for file in elf_files(options.paths)):
            print(f"{shown(number):8} {file}", file=sys.stderr)
    print(shown(version))
    if options.most and version > tuple(int(part) for part in options.most.split(".")):
        print(
            f"check_glibc.py: {path} needs glibc {shown(version)}, more than the promised {options.most}",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
