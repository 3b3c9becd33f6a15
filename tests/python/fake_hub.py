"""A Hub of a few models on two local ports: the site, with the routes that a download uses, and the store behind it
that large files are redirected to. Faults can be asked for; every request is noted."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

Run = Callable[..., "subprocess.CompletedProcess[str]"]

# The program, which does not wait between tries. QWEN3_TEST_FREE: what the disk says is free.
PROGRAM = """
import os, shutil, sys
from types import SimpleNamespace
from qwen3app.cli import main
from qwen3app.hub.client import Patience

Patience.__init__.__defaults__ = (Patience.tries, 0.0)
if free := os.environ.get("QWEN3_TEST_FREE"):
    shutil.disk_usage = lambda path: SimpleNamespace(free=int(free))
sys.exit(main())
"""

COMMIT = "c0ffee" + "0" * 34
LARGE = 4096  # files of this many bytes and more lie in the store


@dataclass
class Seen:
    method: str
    path: str
    headers: dict[str, str]


@dataclass
class FakeHub:
    """models: repository -> file -> bytes. Close it when done."""

    models: dict[str, dict[str, bytes]] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    refuse: Callable[[str, str, dict[str, str]], tuple[int, dict[str, str]] | None] = lambda *_: None
    body: Callable[[str, bytes, int], bytes | None] = lambda path, data, begin: None  # what is sent of a large file
    hold: threading.Event | None = None  # a large file's second half waits for it
    ranges: bool = True  # the store knows Range
    wrong_etag: str | None = None
    held: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._servers = [self._start(_Site), self._start(_Cdn)]
        self.url, self.store_url = (f"http://127.0.0.1:{server.server_address[1]}" for server in self._servers)

    def _start(self, handler: type[_Handler]) -> ThreadingHTTPServer:
        class Server(ThreadingHTTPServer):
            daemon_threads = True
            hub = self

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # clients that break off

        server = Server(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return server

    def close(self) -> None:
        if self.hold is not None:
            self.hold.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def paths(self, method: str = "GET") -> Counter[str]:
        return Counter(seen.path for seen in self.seen if seen.method == method)

    def add_directory(self, repo: str, directory: Path) -> None:
        self.models[repo] = {
            path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
        }


def etag_of(data: bytes) -> str:
    if len(data) >= LARGE:
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def hub(self) -> FakeHub:
        return self.server.hub  # type: ignore[attr-defined]

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.hub.seen.append(Seen(self.command, self.path, headers))
        refused = self.hub.refuse(self.command, self.path, headers)
        if refused is None:
            self.answer()
        else:
            self.reply(refused[0], refused[1], b'{"error": "no"}')

    def answer(self) -> None:
        raise NotImplementedError

    def reply(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class _Site(_Handler):
    def answer(self) -> None:
        path = unquote(self.path)
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/(.+)", path):
            return self.listing(match[1], match[2])
        match = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        files = self.hub.models.get(match[1]) if match else None
        if match is None or files is None:
            return self.reply(401, {"X-Error-Code": "RepoNotFound"})
        data = files.get(match[3])
        if data is None:
            return self.reply(404, {"X-Error-Code": "EntryNotFound"})
        etag = self.hub.wrong_etag or etag_of(data)
        headers = {"X-Repo-Commit": COMMIT}
        if len(data) < LARGE:
            return self.reply(200, headers | {"ETag": f'"{etag}"'}, data)
        headers |= {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(data)), "ETag": '"of-the-redirect"'}
        self.reply(302, headers | {"Location": f"{self.hub.store_url}/{match[1]}/{match[3]}?signed=yes"})

    def listing(self, repo: str, revision: str) -> None:
        files = self.hub.models.get(repo)
        if files is None:
            return self.reply(401, {"X-Error-Code": "RepoNotFound"})
        if revision not in ("main", "v1", COMMIT):
            return self.reply(404, {"X-Error-Code": "RevisionNotFound"})
        body = {"id": repo, "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
        self.reply(200, {"Content-Type": "application/json"}, json.dumps(body).encode())


class _Cdn(_Handler):
    def answer(self) -> None:
        owner, name, file = unquote(self.path.partition("?")[0]).lstrip("/").split("/", 2)
        data = self.hub.models[f"{owner}/{name}"][file]
        begin, status, headers = 0, 200, {"ETag": '"of-the-store"'}
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if asked and self.hub.ranges:
            begin, status = int(asked[1]), 206
            headers["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
        body = self.hub.body(self.path, data, begin)
        sent = data[begin:] if body is None else body
        headers["Content-Length"] = str(len(data) - begin)
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        if self.hub.hold is not None and begin == 0 and file.endswith(".safetensors"):
            half = len(sent) // 2
            self.wfile.write(sent[:half])
            self.wfile.flush()
            self.hub.held.set()
            self.hub.hold.wait(300)
            sent = sent[half:]
        self.wfile.write(sent)
        if len(sent) < len(data) - begin:
            self.close_connection = True  # breaks off
