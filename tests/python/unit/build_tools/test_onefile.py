"""The launcher of the one-file build: its DEFLATE decoder against zlib, and packing a small program from end to end."""

from __future__ import annotations

import ctypes
import random
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import PATIENCE, wait_until

ROOT = Path(__file__).resolve().parents[4]
ONEFILE = ROOT / "build_tools" / "onefile"
sys.path.insert(0, str(ROOT / "build_tools"))
import pack  # noqa: E402

WRAPPER = """#include "inflate.h"
int run(const uint8_t* in, size_t in_size, uint8_t* out, size_t out_size) {
  return inflate_chunk(in, in_size, out, out_size);
}
"""


@pytest.fixture(scope="session")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("inflate")
    (folder / "wrapper.c").write_text(WRAPPER)
    command = [
        "gcc",
        "-std=c11",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Wpedantic",
        "-Werror",
        "-shared",
        "-fPIC",
        f"-I{ONEFILE}",
    ]
    subprocess.run([*command, "-o", folder / "inflate.so", folder / "wrapper.c"], check=True)
    library = ctypes.CDLL(str(folder / "inflate.so"))
    library.run.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
    return library


def inflate(decoder: ctypes.CDLL, packed: bytes, size: int) -> bytes | None:
    out = ctypes.create_string_buffer(size + 16)
    out[size : size + 16] = b"\xa5" * 16
    code = decoder.run(packed, len(packed), out, size)
    assert out.raw[size:] == b"\xa5" * 16, "wrote past the end of the buffer"
    return out.raw[:size] if code == 0 else None


def deflate(data: bytes, level: int, strategy: int = zlib.Z_DEFAULT_STRATEGY) -> bytes:
    packer = zlib.compressobj(level, zlib.DEFLATED, -15, 9, strategy)
    return packer.compress(data) + packer.flush()


SAMPLES = {
    "empty": b"",
    "one byte": b"x",
    "a run": b"\0" * 300_000,
    "noise": random.Random(1).randbytes(200_000),
    "text": "".join(random.Random(2).choices(["the ", "quick ", "fox\n", "词", "é"], k=60_000)).encode(),
    "this program": Path(sys.executable).resolve().read_bytes()[: 1 << 20],
    "far matches": (random.Random(3).randbytes(32_768)) * 4,
    "skewed": bytes(min(255, int(random.Random(i).expovariate(0.1))) for i in range(40_000)),
}


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("level", [0, 1, 6, 9])
@pytest.mark.parametrize("strategy", [zlib.Z_DEFAULT_STRATEGY, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE, zlib.Z_FIXED])
def test_decodes_what_zlib_packs(decoder: ctypes.CDLL, name: str, level: int, strategy: int) -> None:
    data = SAMPLES[name]
    assert inflate(decoder, deflate(data, level, strategy), len(data)) == data


@settings(max_examples=200)
@given(data=st.binary(max_size=5_000), level=st.integers(0, 9))
def test_decodes_any_bytes(decoder: ctypes.CDLL, data: bytes, level: int) -> None:
    assert inflate(decoder, deflate(data, level), len(data)) == data


def test_a_wrong_size_is_damage(decoder: ctypes.CDLL) -> None:
    packed = deflate(SAMPLES["text"], 9)
    size = len(SAMPLES["text"])
    assert inflate(decoder, packed, size - 1) is None
    assert inflate(decoder, packed, size + 1) is None
    for cut in (0, 1, 10, len(packed) // 2, len(packed) - 1):
        assert inflate(decoder, packed[:cut], size) is None


def test_damaged_input_never_crashes_or_hangs(decoder: ctypes.CDLL) -> None:
    """What it gives for damage is refused by the checksum; here it must end, and write only where it may."""
    generator = random.Random(4)
    for name in ("text", "this program", "skewed"):
        data = SAMPLES[name][:20_000]
        for level in (1, 9):
            packed = bytearray(deflate(data, level))
            for _ in range(400):
                broken = bytearray(packed)
                for _ in range(generator.randint(1, 4)):
                    broken[generator.randrange(len(broken))] = generator.randrange(256)
                inflate(decoder, bytes(broken[: generator.randint(1, len(broken))]), len(data))
    for _ in range(3_000):
        inflate(decoder, generator.randbytes(generator.randint(0, 200)), generator.randint(0, 2_000))


# ------------------------------------------------------------------------------------------------------- whole files


@pytest.fixture(scope="session")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("launcher") / "launcher"
    pack.build_launcher(target)
    return target


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What PyInstaller would leave: the program, data in folders, a link."""
    folder = tmp_path / "folder"
    (folder / "_internal" / "deep" / "er").mkdir(parents=True)
    program = folder / "qwen3-8b"
    program.write_text(
        "#!/bin/sh\n"
        'here=$(dirname "$0"); [ -d "$here/_internal" ] || here=${LD_LIBRARY_PATH%%/_internal*}\n'
        'echo "arguments: $*"; echo "libraries: ${LD_LIBRARY_PATH##*/}"\n'
        'cat "$here/_internal/deep/er/data" | cksum; cat "$here/_internal/link"; exit 7\n'
    )
    program.chmod(0o755)
    (folder / "_internal" / "deep" / "er" / "data").write_bytes(SAMPLES["noise"] + SAMPLES["text"] * 20)
    (folder / "_internal" / "target").write_text("through a link\n")
    (folder / "_internal" / "link").symlink_to("target")
    (folder / "_internal" / "empty").write_bytes(b"")
    return folder


def start(program: Path, temporary: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    temporary.mkdir(exist_ok=True)
    environment = {"PATH": "/usr/bin:/bin", "TMPDIR": str(temporary)}
    return subprocess.run(
        [program, *arguments], env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def wait_until_empty(folder: Path) -> None:
    wait_until(lambda: list(folder.iterdir()) == [], "something stays behind")


def test_packs_and_runs_a_program(launcher: Path, folder: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    pack.write_one_file(launcher, folder, packed)
    result = start(packed, tmp_path / "unpack", "a b", "c")
    expected = subprocess.run(
        ["cksum", folder / "_internal" / "deep" / "er" / "data"], capture_output=True, text=True, check=True
    ).stdout.split()
    lines = result.stdout.splitlines()
    assert result.returncode == 7, result.stderr
    assert lines[:2] == ["arguments: a b c", "libraries: _internal"]
    assert lines[2].split() == expected[:2]
    assert lines[3] == "through a link"
    wait_until_empty(tmp_path / "unpack")


def test_packing_is_reproducible(launcher: Path, folder: Path, tmp_path: Path) -> None:
    pack.write_one_file(launcher, folder, tmp_path / "first")
    pack.write_one_file(launcher, folder, tmp_path / "second")
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


def test_every_flipped_byte_of_the_index_is_noticed(launcher: Path, folder: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    pack.write_one_file(launcher, folder, packed)
    content = packed.read_bytes()
    start_of_index = int.from_bytes(content[-32:-24], "little")
    generator = random.Random(5)
    damaged = tmp_path / "damaged"
    places = [generator.randrange(start_of_index, len(content)) for _ in range(30)]
    places += [generator.randrange(launcher.stat().st_size, start_of_index) for _ in range(30)]
    for place in places:
        broken = bytearray(content)
        broken[place] ^= 1 << generator.randrange(8)
        damaged.unlink(missing_ok=True)  # its cleaner may still be on its way out, and a running file is not written to
        damaged.write_bytes(broken)
        damaged.chmod(0o755)
        result = start(damaged, tmp_path / "unpack")
        assert result.returncode == 1, place
        assert "download or build it again" in result.stderr
    wait_until_empty(tmp_path / "unpack")


def test_a_path_that_leaves_the_folder_is_refused(launcher: Path, tmp_path: Path) -> None:
    """The launcher trusts no index: it could be anybody's file."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "qwen3-8b").write_text("#!/bin/sh\nexit 0\n")
    (folder / "aaa").write_text("x")
    packed = tmp_path / "packed"
    pack.write_one_file(launcher, folder, packed)
    content = bytearray(packed.read_bytes())
    begin, size = int.from_bytes(content[-32:-24], "little"), int.from_bytes(content[-24:-16], "little")
    index = bytes(content[begin : begin + size]).replace(b"aaa", b"../")
    content[begin : begin + size] = index
    content[-12:-8] = zlib.adler32(index).to_bytes(4, "little")
    packed.write_bytes(content)
    result = start(packed, tmp_path / "unpack")
    assert result.returncode == 1
    assert "damaged" in result.stderr
