"""Makes dist/: the one file `qwen3-8b`, and libqwen3.so, qwen3.h and qwen3.pc for hosts that are not Python.

Owns: running PyInstaller, collecting licences, compiling the launcher, and writing the payload behind it in the layout
that build_tools/onefile/launcher.c states. Refuses to know how the library or the app work.
Usage: python build_tools/pack.py --library build/dist/libqwen3.so --out dist
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import stat
import struct
import subprocess
import sys
import sysconfig
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from requirements import requirements

ROOT = Path(__file__).resolve().parent.parent
MAGIC = b"QWEN3PK1"
CHUNK = 1 << 20  # bytes of a file that are compressed on their own: small enough to spread over threads
COMPRESSION = 9
HEADER = ROOT / "native" / "include" / "qwen3.h"


# Distributions that our dependencies name but that qwen3-8b.spec leaves out: nothing of theirs is inside.
EXCLUDED = {"faker", "fsspec", "hf-xet", "httpx", "polyfactory", "rich-click"}


def fail(sentence: str) -> SystemExit:
    return SystemExit(f"pack.py: {sentence}")


# -------------------------------------------------------------------------------------------------- what is inside


def bundled_distributions() -> list[str]:
    """Names of all distributions that the app needs at run time: pyproject's dependencies and what those need."""
    waiting = [re.split(r"[<>=!~;\[ ]", line, maxsplit=1)[0] for line in requirements([])]
    found: dict[str, None] = {}
    while waiting:
        name = waiting.pop(0)
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key in found or key in EXCLUDED:
            continue
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # needed on other platforms only
        found[key] = None
        for need in needs:
            requirement, _, marker = need.partition(";")
            if "extra" not in marker:
                waiting.append(re.split(r"[<>=!~\[( ]", requirement.strip(), maxsplit=1)[0])
    return sorted(found)


def python_licence() -> Path | None:
    library = Path(sysconfig.get_path("stdlib"))
    for candidate in (
        library / "LICENSE.txt",
        Path("/usr/share/doc") / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "copyright",
    ):
        if candidate.is_file():
            return candidate
    return None


def system_licence(library: str) -> Path | None:
    """The distribution's copyright file of a system library, given by file name, where dpkg knows it."""
    if shutil.which("dpkg") is None:
        return None
    result = subprocess.run(["dpkg", "-S", f"*/{library}"], capture_output=True, text=True, check=False)
    packages: list[str] = re.findall(rf"^([^:,\s]+)[^\n]*/{re.escape(library)}$", result.stdout, flags=re.MULTILINE)
    for package in packages:
        text = Path("/usr/share/doc") / package / "copyright"
        if text.is_file():
            return text
    return None


def collect_licences(program: Path) -> None:
    """Adds the texts that no package's metadata carries: Python's own and those of the system libraries inside."""
    inside = program / "_internal"
    folder = inside / "qwen3app" / "licenses"
    folder.mkdir(parents=True, exist_ok=True)
    python = python_licence()
    if python is None:
        raise fail("Python's own licence text was not found beside its standard library; use a complete Python")
    shutil.copyfile(python, folder / "Python.txt")
    for library in sorted(path.name for path in inside.glob("lib*.so*") if "libpython" not in path.name):
        text = system_licence(library)
        if text is not None:
            shutil.copyfile(text, folder / f"{text.parent.name}.txt")


# ---------------------------------------------------------------------------------------------------- one file


@dataclass(frozen=True)
class Packed:
    """One file of the payload: its chunks as (compressed or stored bytes, size, checksum)."""

    path: str
    mode: int
    size: int
    chunks: list[tuple[bytes, int, int]]


def deflate(data: bytes) -> tuple[bytes, int, int]:
    packer = zlib.compressobj(COMPRESSION, zlib.DEFLATED, -15)
    packed = packer.compress(data) + packer.flush()
    # What does not shrink is stored; equal sizes mean "stored" to the launcher.
    return (packed if len(packed) < len(data) else data), len(data), zlib.adler32(data)


def pack_file(folder: Path, path: Path) -> Packed:
    status = path.lstat()
    if path.is_symlink():
        target = str(path.readlink()).encode()
        return Packed(
            str(path.relative_to(folder)),
            stat.S_IFLNK | 0o777,
            len(target),
            [(target, len(target), zlib.adler32(target))],
        )
    data = path.read_bytes()
    chunks = [deflate(data[start : start + CHUNK]) for start in range(0, len(data), CHUNK)]
    mode = stat.S_IFREG | (0o700 if status.st_mode & stat.S_IXUSR else 0o600)
    return Packed(str(path.relative_to(folder)), mode, len(data), chunks)


def write_one_file(launcher: Path, folder: Path, target: Path) -> None:
    """launcher | chunks | index | trailer, as launcher.c states it. The same input gives the same bytes."""
    paths = sorted(path for path in folder.rglob("*") if path.is_symlink() or path.is_file())
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:  # zlib lets go of the interpreter's lock
        files = list(pool.map(lambda path: pack_file(folder, path), paths))
    temporary = target.with_suffix(".part")
    with temporary.open("wb") as out:
        out.write(launcher.read_bytes())
        index = bytearray()
        for file in files:
            name = file.path.encode()
            index += struct.pack("<IIQH", file.mode, len(file.chunks), file.size, len(name)) + name
            for data, size, checksum in file.chunks:
                index += struct.pack("<QIII", out.tell(), len(data), size, checksum)
                out.write(data)
        out.write(index + struct.pack("<QQII", out.tell(), len(index), len(files), zlib.adler32(index)) + MAGIC)
    temporary.chmod(0o755)
    temporary.replace(target)


def build_launcher(target: Path) -> None:
    """Static where libc.a exists (Debian, Ubuntu: always with gcc), else against the machine's glibc."""
    source = ROOT / "build_tools" / "onefile" / "launcher.c"
    compiler = os.environ.get("CC", "gcc")
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror", "-pthread", "-s"]
    for link in (["-static"], []):
        result = subprocess.run(
            [compiler, *flags, *link, "-o", str(target), str(source)], capture_output=True, text=True, check=False
        )
        if result.returncode == 0:
            return
    raise fail(f"{compiler} could not build the launcher:\n{result.stderr}")


def check_python() -> None:
    """PyInstaller needs Python's shared library, which Debian packs on its own."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    names = {str(sysconfig.get_config_var(name)) for name in ("INSTSONAME", "LDLIBRARY")} | {
        f"libpython{version}.so.1.0"
    }
    folders = [
        Path(str(sysconfig.get_config_var(name))) for name in ("LIBDIR", "LIBPL") if sysconfig.get_config_var(name)
    ]
    folders += [Path("/usr/lib") / str(sysconfig.get_config_var("MULTIARCH") or "x86_64-linux-gnu")]
    if not any((folder / name).exists() for folder in folders for name in names if name.endswith((".so", ".so.1.0"))):
        raise fail(
            f"Python's shared library libpython{version}.so is missing; install it "
            "(Debian, Ubuntu: apt install python3-dev)"
        )


def run_pyinstaller(library: Path, work: Path) -> Path:
    environment = {**os.environ, "QWEN3_PACK_LIBRARY": str(library)}
    command = [sys.executable, "-m", "PyInstaller", "--noconfirm", "--log-level=WARN"]
    command += [
        "--distpath",
        str(work / "folder"),
        "--workpath",
        str(work / "pyinstaller"),
        str(ROOT / "build_tools" / "qwen3-8b.spec"),
    ]
    # It warns of imports that packages try and do without; what it says matters only when it fails.
    result = subprocess.run(
        command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    (work / "pyinstaller.log").write_text(result.stdout, encoding="utf-8")
    if result.returncode != 0:
        raise fail(f"PyInstaller failed:\n{result.stdout}")
    return work / "folder" / "qwen3-8b"


# ------------------------------------------------------------------------------------------- for other hosts


def project_version() -> str:
    match = re.search(
        r'^version = "([^"]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    if match is None:
        raise fail('pyproject.toml has no line `version = "..."`')
    return match.group(1)


def pkg_config(version: str) -> str:
    """Relative to its own place, so that dist/ can be moved as a whole."""
    return (
        "prefix=${pcfiledir}\n\n"
        "Name: qwen3\n"
        "Description: Inference engine for Qwen3 language models (C ABI)\n"
        f"Version: {version}\n"
        "Cflags: -I${prefix}\n"
        "Libs: -L${prefix} -lqwen3\n"
    )


def inputs_digest(library: Path) -> str:
    """Over all that goes in, so that an unchanged tree packs in no time."""
    digest = hashlib.sha256(sys.version.encode())
    files = [library, HEADER, ROOT / "pyproject.toml", ROOT / "LICENSE"]
    for folder in (ROOT / "qwen3app", ROOT / "build_tools"):
        files += sorted(
            path
            for path in folder.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts and "_native" not in path.parts
        )
    for path in files:
        digest.update(str(path).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="pack.py", description="Pack qwen3-8b into one file.")
    parser.add_argument("--library", type=Path, required=True, help="the built libqwen3.so")
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "pack", help="folder for intermediate files")
    options = parser.parse_args(arguments)
    library, out, work = options.library.resolve(), options.out.resolve(), options.work.resolve()
    if not library.is_file():
        raise fail(f"{options.library} does not exist; run `make` first")
    out.mkdir(parents=True, exist_ok=True)
    work.mkdir(parents=True, exist_ok=True)

    stamp = work / "inputs.sha256"
    digest = inputs_digest(library)
    results = [out / name for name in ("qwen3-8b", "libqwen3.so", "qwen3.h", "qwen3.pc")]
    if stamp.is_file() and stamp.read_text() == digest and all(path.is_file() for path in results):
        return 0

    stripped = work / "libqwen3.so"
    shutil.copyfile(library, stripped)
    subprocess.run(["strip", "--strip-unneeded", str(stripped)], check=True)
    shutil.copyfile(stripped, out / "libqwen3.so")
    shutil.copyfile(HEADER, out / "qwen3.h")
    (out / "qwen3.pc").write_text(pkg_config(project_version()), encoding="utf-8")

    check_python()
    print("pack.py: packing, which takes half a minute", flush=True)
    folder = run_pyinstaller(stripped, work)
    collect_licences(folder)
    build_launcher(work / "launcher")
    write_one_file(work / "launcher", folder, out / "qwen3-8b")

    from check_glibc import oldest_glibc, shown

    version, neediest = oldest_glibc([folder])
    size = (out / "qwen3-8b").stat().st_size
    print(
        f"{options.out}/qwen3-8b: {size / 1e6:.1f} MB, runs on glibc {shown(version)} or newer"
        f" ({neediest.name if neediest else 'nothing'} asks for it)"
    )
    stamp.write_text(digest)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
