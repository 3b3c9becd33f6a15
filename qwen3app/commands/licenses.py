"""`qwen3-8b --licenses`: the licences of everything that is inside the executable or the installed command.

Owns the list of what is inside: this project, Qwen3's chat template, the Python packages it runs with (found from their
own metadata, with what they depend on), Python, the demo model, and what is compiled into libqwen3. Licence
files that belong to none of these metadata lie in a folder `licenses` beside the package (the packed executable brings
Python's own there).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TextIO

# The dependencies of pyproject.toml; a test compares.
RUNTIME_DISTRIBUTIONS = (
    "cffi",
    "httptools",
    "httpx2",
    "huggingface_hub",
    "jinja2",
    "litestar",
    "llguidance",
    "msgspec",
    "prometheus-client",
    "prompt-toolkit",
    "pygments",
    "rich",
    "tokenizers",
    "uvicorn",
    "uvloop",
)

_PROJECT = "qwen3-8b"
_LICENSE_FILE = re.compile(r"(?i)(licen[cs]e|copying|notice)")

_NLOHMANN_JSON = """\
MIT License

Copyright (c) 2013-2025 Niels Lohmann

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""

# What is inside and has no metadata of its own: (title, text).
_OTHERS = (
    (
        "Qwen3's chat template (used for a model that brings none): Apache-2.0",
        "Copyright 2024 Alibaba Cloud\nThe licence's text is the one above.\n",
    ),
    ("nlohmann-json (compiled into libqwen3)", _NLOHMANN_JSON),
    (
        "libstdc++ and libgcc (linked into libqwen3)",
        "GPL-3.0-or-later WITH GCC-exception-3.1: programs built with GCC may carry its runtime library under terms of "
        "their own choice.\nhttps://www.gnu.org/licenses/gcc-exception-3.1.html\n",
    ),
    (
        "NVIDIA CUDA runtime (linked into libqwen3 where it has the CUDA backend)",
        "NVIDIA CUDA Toolkit End User License Agreement; the static runtime library, libcudart_static, is among the "
        "redistributable files of its Attachment A.\nhttps://docs.nvidia.com/cuda/eula/\n",
    ),
)


def distributions(roots: tuple[str, ...] = RUNTIME_DISTRIBUTIONS) -> list[metadata.Distribution]:
    """The named distributions and all that they need and that is installed, by name. Extras are not followed."""
    found: dict[str, metadata.Distribution] = {}
    waiting = list(roots)
    while waiting:
        name = _canonical(waiting.pop())
        if name in found:
            continue
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # of another platform or Python version
            continue
        found[name] = distribution
        for requirement in distribution.requires or ():
            if "extra ==" not in requirement and (match := re.match(r"[A-Za-z0-9._-]+", requirement)):
                waiting.append(match[0])
    return [found[name] for name in sorted(found)]


def license_name(distribution: metadata.Distribution) -> str:
    """What the package says of its licence, in a few words."""
    fields = distribution.metadata
    for name in ("License-Expression", "License"):
        value = fields[name] if name in fields else ""  # noqa: SIM401 - it has no get
        if value and "\n" not in value and value.upper() != "UNKNOWN":
            return value
    classifiers = [value for value in fields.get_all("Classifier") or () if value.startswith("License ::")]
    return ", ".join(value.rpartition(" :: ")[2] for value in classifiers) or "see its files"


def license_texts(distribution: metadata.Distribution) -> Iterator[tuple[str, str]]:
    """(file name, text) of the licence files among the package's metadata."""
    for file in distribution.files or ():
        parts = file.parts
        if parts and parts[0].endswith((".dist-info", ".egg-info")) and _LICENSE_FILE.match(file.name):
            try:
                yield file.name, Path(str(distribution.locate_file(file))).read_text("utf-8", "replace")
            except OSError:
                continue


def run_licenses(stdout: TextIO | None = None) -> int:
    stdout = stdout or sys.stdout
    _section(stdout, f"{_PROJECT} (this program): Apache-2.0", [text for text in (_own_license(),) if text])
    for name, text in (*_OTHERS, *_demo()):
        _section(stdout, name, [text])
    extra = dict(_extra_files())
    if not any("python" in name.lower() for name in extra):
        extra["Python"] = f"{sys.copyright}\nPSF-2.0: https://docs.python.org/3/license.html\n"
    for name, text in extra.items():
        _section(stdout, name, [text])
    for distribution in distributions():
        title = f"{distribution.metadata['Name']} {distribution.version}: {license_name(distribution)}"
        _section(stdout, title, [text for _, text in license_texts(distribution)])
    return 0


def _roots() -> list[Path]:
    """Folders that may hold LICENSE and licenses/: the unpacked executable, the package, a checkout."""
    package = Path(__file__).resolve().parents[1]
    unpacked = getattr(sys, "_MEIPASS", None)
    return [*([Path(unpacked)] if unpacked else []), package, package.parent]


def _own_license() -> str | None:
    for root in _roots():
        path = root / "LICENSE"
        if path.is_file():
            return path.read_text("utf-8")
    try:
        return next((text for _, text in license_texts(metadata.distribution(_PROJECT))), None)
    except metadata.PackageNotFoundError:
        return None


def _demo() -> Iterator[tuple[str, str]]:
    path = Path(__file__).resolve().parents[1] / "qwen3-demo" / "WordNet.LICENSE"
    if path.is_file():
        yield "qwen3-demo (the model that comes with this program): Apache-2.0, WordNet's definitions", path.read_text()


def _extra_files() -> Iterator[tuple[str, str]]:
    for root in _roots()[:-1]:
        folder = root / "licenses"
        if folder.is_dir():
            for path in sorted(folder.iterdir()):
                if path.is_file():
                    yield path.stem, path.read_text("utf-8", "replace")


def _section(stdout: TextIO, title: str, texts: list[str]) -> None:
    stdout.write(f"{'=' * 100}\n{title}\n{'=' * 100}\n")
    for text in texts:
        stdout.write(text.rstrip() + "\n\n")


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
