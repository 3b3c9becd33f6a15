"""Prints the pinned requirements of pyproject.toml, one a line, for pip.

Owns: turning `[project] dependencies` (always) and the optional groups named as arguments into a requirements list, so
that the Makefile's environment and `pip install .` cannot drift apart. Knows nothing of pip or of the environment.
Usage: python build_tools/requirements.py build test > requirements.txt
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def requirements(groups: list[str], pyproject: Path = PYPROJECT) -> list[str]:
    """The runtime dependencies followed by those of each optional group, without doubles, in order."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    optional: dict[str, list[str]] = project["optional-dependencies"]
    for group in groups:
        if group not in optional:
            raise SystemExit(f"requirements.py: pyproject.toml has no group {group!r}; it has {', '.join(optional)}")
    lines: list[str] = list(project["dependencies"])
    for group in groups:
        lines += optional[group]
    return list(dict.fromkeys(lines))


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1:])))
