"""A server that says what a test wants, behind the real files and headers of the chat page.

A reply is a list of steps: a dict is an event, a threading.Event is waited for (a client that leaves meanwhile ends the
reply), CUT breaks the connection off. A Refusal is an error with a status. Without a reply in store it says "Hello.".
"""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from qwen3app.server.page import HEADERS, assets

CUT = object()
STATUS = {
    "model": "Qwen3-8B",
    "version": "0.1.0",
    "device": "NVIDIA H200",
    "max_context": 40_960,
    "slots": 256,
    "running": 3,
    "waiting": 0,
    "kv_usage": 0.042,
    "kv_tokens": 812_000,
    "generated_tokens": 120_000,
    "thinking": True,
    "defaults": {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": None},
    "suggestions": None,
    "note": None,
}


@dataclass
class Refusal:
    status: int
    code: str | None
    message: str

    @property
    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": "x", "param": None, "code": self.code}}


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def usage(n_prompt: int = 24, n_tokens: int = 42, cached: int = 0) -> dict[str, Any]:
    return {
        "choices": [],
        "usage": {
            "prompt_tokens": n_prompt,
            "completion_tokens": n_tokens,
            "total_tokens": n_prompt + n_tokens,
            "prompt_tokens_details": {"cached_tokens": cached},
        },
        "timings": {"predicted_per_second": 87.3},
    }


def pieces(text: str, size: int) -> list[str]:
    return [text[i : i + size] for i in range(0, len(text), size)]


def says(text: str, *, thought: str = "", finish: str = "stop", size: int = 12, **figures: int) -> list[Any]:
    """An answer in pieces of `size` characters."""
    events: list[Any] = [delta(reasoning_content=piece, reasoning=piece) for piece in pieces(thought, size)]
    events += [delta(content=piece) for piece in pieces(text, size)]
    return [*events, delta(finish, content=""), usage(**figures)]


def calls(*functions: tuple[str, str], text: str = "", thought: str = "") -> list[Any]:
    """An answer that calls (name, arguments), each in the two deltas of the real server."""
    events = says(text, thought=thought)[:-2]
    for index, (name, arguments) in enumerate(functions):
        function = {"name": name, "arguments": ""}
        events.append(
            delta(tool_calls=[{"index": index, "id": f"call-{index}", "type": "function", "function": function}])
        )
        events.append(delta(tool_calls=[{"index": index, "function": {"arguments": arguments}}]))
    return [*events, delta("tool_calls", content=""), usage()]


@dataclass
class FakeServer:
    """See the file's head. requests: the bodies of the chat requests that came."""

    status: dict[str, Any] = field(default_factory=lambda: dict(STATUS))
    key: str | None = None
    loading: float | None = None  # progress, while the model is not there
    replies: list[Any] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    left: threading.Event = field(default_factory=threading.Event)  # a client left in the middle of an answer
    paths: list[str] = field(default_factory=list)
    url: str = ""

    def start(self) -> ThreadingHTTPServer:
        fake = self

        class Handler(_Handler):
            server_state = fake

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        self.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server


class _Handler(BaseHTTPRequestHandler):
    server_state: FakeServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        fake = self.server_state
        fake.paths.append(self.path)
        asset = assets().get(self.path)
        if asset is not None:
            return self._send(200, asset.body, {**HEADERS, "content-type": asset.content_type})
        if self.path == "/health":
            if fake.loading is None:
                return self._json(200, {"status": "ok"})
            return self._json(503, {"status": "loading", "progress": fake.loading})
        if self.path == "/status":
            return self._guarded(lambda: self._json(200, fake.status))
        return self._json(404, Refusal(404, None, "no such route").body)

    def do_POST(self) -> None:
        fake = self.server_state
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self._guarded(lambda: self._answer(body, fake))

    def _guarded(self, answer: Any) -> None:
        fake = self.server_state
        if fake.key is not None and self.headers.get("authorization") != f"Bearer {fake.key}":
            return self._json(401, Refusal(401, "invalid_api_key", "This server needs an API key.").body)
        if fake.loading is not None:
            return self._json(503, Refusal(503, "model_loading", "The model is being loaded.").body)
        return answer()

    def _answer(self, body: dict[str, Any], fake: FakeServer) -> None:
        fake.requests.append(body)
        reply = fake.replies.pop(0) if fake.replies else says("Hello.")
        if isinstance(reply, Refusal):
            return self._json(reply.status, reply.body)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            if self._play(reply):
                self._write(b"data: [DONE]\n\n")
            self._write(b"")
        except OSError:  # the one place, so that a test that clears it does not hear of the same reply again
            fake.left.set()

    def _write(self, data: bytes) -> None:
        """One chunk; an empty one ends the body."""
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()

    def _play(self, steps: Iterable[Any]) -> bool:
        for step in steps:
            if step is CUT:
                self.connection.shutdown(socket.SHUT_RDWR)
                return False
            if isinstance(step, threading.Event):
                while not step.wait(0.02):
                    if self._client_left():
                        raise ConnectionResetError("the client left")
            elif isinstance(step, float):
                time.sleep(step)
            else:
                self._write(b"data: " + json.dumps(step).encode() + b"\n\n")
                if "error" in step:
                    return False
        return True

    def _client_left(self) -> bool:
        readable, _, _ = select.select([self.connection], [], [], 0)
        return bool(readable) and self.connection.recv(1, socket.MSG_PEEK) == b""

    def _json(self, status: int, value: Any) -> None:
        self._send(status, json.dumps(value).encode(), {"content-type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
