"""The packed file in a root filesystem that holds glibc and nothing else: no Python, no shell, no /proc, no model but
its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import httpx
import pytest
from patience import PATIENCE, wait_until

# glibc's own shared libraries; everything else must come out of the packed file.
LIBC = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libutil.so.1", "libresolv.so.2")

ADMIN_PATH = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}  # for the command that enters the root; inside, nothing is there


def chroot_command() -> list[str] | None:
    for command in (["chroot"], ["unshare", "--user", "--map-root-user", "chroot"]):
        if subprocess.run([*command, "/", "/bin/true"], capture_output=True, check=False).returncode == 0:
            return command
    return None


@pytest.fixture(scope="module")
def bare_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if chroot_command() is None:
        pytest.skip("chroot needs root or user namespaces, and this machine gives neither")
    root = tmp_path_factory.mktemp("root")
    listed = subprocess.run(["ldconfig", "-p"], env=ADMIN_PATH, capture_output=True, text=True, check=True)
    where = {}
    for line in listed.stdout.splitlines():
        name, _, path = line.strip().partition(" ")
        if "x86-64" in line or "aarch64" in line.lower():
            where.setdefault(name, path.rpartition("=> ")[2])
    loader = next(
        path for path in map(Path, ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1")) if path.exists()
    )
    for source in [loader, *(Path(where[name]) for name in LIBC if name in where)]:
        target = root / source.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target, follow_symlinks=True)
        target.chmod(0o755)
    (root / "tmp").mkdir()
    return root


@pytest.fixture(scope="module")
def inside(bare_root: Path) -> list[str]:
    """The command that runs the packed file inside the root."""
    dist = Path(__file__).resolve().parents[3] / "dist" / "qwen3-8b"
    shutil.copy(dist, bare_root / "qwen3-8b")
    command = chroot_command()
    assert command is not None
    return [*command, str(bare_root), "/qwen3-8b"]


def test_the_root_has_no_python_and_no_shell(bare_root: Path) -> None:
    names = {path.name for path in bare_root.rglob("*") if path.is_file()}
    assert not [name for name in names if name.startswith(("python", "libpython", "libz", "libstdc"))]
    assert not {"sh", "bash", "env"} & names


def test_chats_in_a_bare_root(inside: list[str]) -> None:
    command = [*inside, "chat", "--once", "What is 57 + 38?"]
    result = subprocess.run(command, env=ADMIN_PATH, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (result.returncode, result.stdout) == (0, "57 + 38 = 95.\n"), result.stderr


def test_serves_in_a_bare_root(inside: list[str], bare_root: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [*inside, "serve", "--port", "0", "--kv-gb", "0.2"],
            env=ADMIN_PATH,
            stdin=subprocess.DEVNULL,
            stderr=stderr,
        )
    try:
        wait_until(lambda: b'"ready"' in log.read_bytes() or process.poll() is not None)
        text = log.read_text()
        assert '"ready"' in text, text
        address = text.split('"address":"', 1)[1].split('"', 1)[0]
        body = {"messages": [{"role": "user", "content": "What is 57 + 38?"}]}
        reply = httpx.post(f"http://{address}/v1/chat/completions", json=body, timeout=PATIENCE)
        assert reply.status_code == 200, reply.text
        assert reply.json()["choices"][0]["message"]["content"] == "57 + 38 = 95."
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(PATIENCE)
    wait_until(lambda: not list((bare_root / "tmp").iterdir()), "the unpacked folder is still there")


@pytest.mark.skipif(shutil.which("debootstrap") is None or os.geteuid() != 0, reason="needs debootstrap and root")
@pytest.mark.long
def test_chats_in_a_debian_minbase(tmp_path: Path) -> None:
    """The same in a distribution's own smallest root, which takes minutes to make."""
    root = tmp_path / "minbase"
    made = subprocess.run(["debootstrap", "--variant=minbase", "bookworm", str(root)], capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip("debootstrap could not make a root here (no mirror in reach)")
    shutil.copy(Path(__file__).resolve().parents[3] / "dist" / "qwen3-8b", root / "qwen3-8b")
    command = ["chroot", str(root), "/qwen3-8b", "chat", "--once", "What is 57 + 38?"]
    result = subprocess.run(command, env=ADMIN_PATH, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (result.returncode, result.stdout) == (0, "57 + 38 = 95.\n"), result.stderr
