"""Holds the arrows between the folders of native/src and qwen3app.

Owns the two tables below, the only place where they are written for a machine: a folder may include or import only what
its row names. Refuses to know what the code does. Prints `file:line: sentence` per breach and exits 1.
Usage: python build_tools/check_layers.py [ROOT]
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Folder of native/src -> folders whose headers it may include. Files directly in native/src do not exist. The engine is
# device-blind: it gets its Ops from open_backend(), declared in ops/. sched and kv are integers only.
NATIVE = {
    "base": set[str](),
    "ops": {"base"},
    "kv": {"base"},
    "sched": {"base", "kv"},
    "backend": {"base", "ops"},
    "model": {"base", "ops"},
    "engine": {"base", "kv", "sched", "ops", "model"},
    "api": {"base", "kv", "sched", "ops", "model", "engine"},
}
# The public header: api/ translates calls; engine/ fills the ABI's own event and statistics structs without a copy.
PUBLIC_HEADER = "qwen3.h"
PUBLIC_HEADER_USERS = {"api", "engine"}

# Part of qwen3app -> parts that it may import. A part is a folder or a single module of the package.
APP = {
    "errors": set[str](),
    "version": set[str](),
    "time_slices": set[str](),
    "text": {"version", "sampling_limits"},
    "abi": {"errors"},
    "argument_types": {"sampling_limits"},
    "spelling": set[str](),
    "sizes": set[str](),
    "sampling_limits": set[str](),
    "weights_index": {"errors", "text"},
    "guards": {"errors", "argument_types"},
    "hub": {"errors", "version", "text", "abi", "sizes", "weights_index"},
    "settings": {"errors", "abi", "version", "argument_types", "guards", "hub"},
    "compiler": {"errors", "text", "abi"},
    "runtime": {"errors", "version", "time_slices", "sampling_limits", "text", "abi", "compiler", "settings", "hub"},
    "server": {
        "errors",
        "version",
        "time_slices",
        "sampling_limits",
        "text",
        "runtime",
        "settings",
        "guards",
        "hub",
        "sizes",
    },
    "chat": {"errors", "version", "sampling_limits", "text", "runtime", "settings", "hub"},
    "commands": {
        "argument_types",
        "errors",
        "version",
        "text",
        "runtime",
        "settings",
        "abi",
        "hub",
        "sizes",
        "weights_index",
    },
    "cli": {"errors", "version", "spelling", "compiler", "settings", "hub", "runtime", "server", "chat", "commands"},
    "__main__": {"cli"},
    "__init__": {"version"},
}

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"')


@dataclass(frozen=True)
class Breach:
    file: Path
    line: int
    sentence: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.sentence}"


def check_native(root: Path) -> Iterator[Breach]:
    source = root / "native" / "src"
    for path in sorted(p for suffix in ("*.h", "*.cpp", "*.cu", "*.cuh") for p in source.rglob(suffix)):
        shown = path.relative_to(root)
        folder = path.relative_to(source).parts[0]
        if folder not in NATIVE:
            yield Breach(shown, 1, f"folder {folder}/ has no row in build_tools/check_layers.py; add one")
            continue
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            match = INCLUDE.match(text)
            if match is None:
                continue
            target = match.group(1)
            if target == PUBLIC_HEADER:
                if folder not in PUBLIC_HEADER_USERS:
                    yield Breach(
                        shown, number, f"{folder}/ must not include {PUBLIC_HEADER}; only api/ and engine/ may"
                    )
                continue
            # An include is written from native/src ("base/error.h") or is a neighbour in the same folder.
            first = target.split("/")[0]
            if "/" not in target or (path.parent / target).exists():
                if ".." in target:
                    yield Breach(shown, number, f'write "{target}" from native/src, without ..')
                continue
            if first != folder and first not in NATIVE[folder]:
                allowed = ", ".join(sorted(NATIVE[folder])) or "nothing of ours"
                yield Breach(shown, number, f"{folder}/ must not include {target}; it may use {allowed}")


def imported_modules(tree: ast.AST, package: list[str]) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of all imports in a module of `package`, relative ones resolved, wherever they stand."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"


def check_app(root: Path) -> Iterator[Breach]:
    source = root / "qwen3app"
    parts = {p.stem if p.suffix == ".py" else p.name for p in source.iterdir() if p.suffix == ".py" or p.is_dir()}
    for path in sorted(source.rglob("*.py")):
        shown = path.relative_to(root)
        inside = path.relative_to(source)
        part = inside.parts[0].removesuffix(".py")
        if part not in APP:
            yield Breach(shown, 1, f"qwen3app.{part} has no row in build_tools/check_layers.py; add one")
            continue
        package = ["qwen3app", *inside.parts[:-1]]
        for line, name in imported_modules(ast.parse(path.read_text(encoding="utf-8"), str(path)), package):
            names = name.split(".")
            if names[0] != "qwen3app" or len(names) < 2:
                continue
            target = names[1]
            if target not in parts or target == part:  # a name of qwen3app/__init__.py itself, or the same part
                continue
            if target not in APP[part]:
                allowed = ", ".join(sorted(APP[part])) or "nothing of ours"
                yield Breach(shown, line, f"qwen3app.{part} must not import qwen3app.{target}; it may use {allowed}")


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    breaches = [*check_native(root), *check_app(root)]
    for breach in breaches:
        print(breach, file=sys.stderr)
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
