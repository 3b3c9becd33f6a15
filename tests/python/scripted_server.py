"""A server that speaks OpenAI's streaming chat and says what a test wants: for chats that talk to a URL.

Each entry of `answers` is the events of one answer; the last one is given again when no more are left. An event is
its JSON, or bytes that are sent as they are. `gate`: events behind the first of an answer wait until it is set.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from patience import PATIENCE


def words(*texts: str, thought: str = "", finish: str = "stop") -> list[dict[str, Any]]:
    """The events of an answer in words."""
    events = [_event({"reasoning_content": thought})] if thought else []
    events += [_event({"content": text}) for text in texts]
    usage = {
        "prompt_tokens": 20,
        "completion_tokens": len(texts) + bool(thought),
        "prompt_tokens_details": {"cached_tokens": 8},
        "completion_tokens_details": {"reasoning_tokens": int(bool(thought))},
    }
    return [*events, _event({}, finish), {"choices": [], "usage": usage}]


def call(name: str, arguments: str, number: int = 0) -> list[dict[str, Any]]:
    """The events of an answer that calls a tool, its arguments in two parts."""
    half = len(arguments) // 2
    first = {"index": 0, "id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": ""}}
    parts = [{"index": 0, "function": {"arguments": part}} for part in (arguments[:half], arguments[half:])]
    return [*(_event({"tool_calls": [part]}) for part in [first, *parts]), _event({}, "tool_calls")]


def _event(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


class ScriptedServer:
    def __init__(self, answers: Sequence[Sequence[dict[str, Any] | bytes]], key: str | None = None) -> None:
        self.answers = list(answers)
        self.key = key
        self.gate = threading.Event()
        self.gate.set()
        self.requests: list[dict[str, Any]] = []
        self.asked: list[str] = []  # paths of GET
        self.status: int = 200
        self.status_reply: Any = None  # of GET /status
        self.counted: list[dict[str, Any]] = []  # bodies of POST /tokenize
        self.count_reply: Any = None
        self.models: Any = {"data": [{"id": "scripted", "max_model_len": 1000}, {"id": "second"}]}
        script = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                script.asked.append(self.path)
                if self.path == "/status" and script.status_reply:
                    return self._json(script.status_reply, 200)
                if self.path != "/v1/models":
                    return self._json({"error": {"message": "not here"}}, 404)
                if script.key and self.headers["Authorization"] != f"Bearer {script.key}":
                    return self._json({"error": {"message": "wrong \x1b[31mkey"}}, 401)
                return self._json(script.models, 200)

            def do_POST(self) -> None:
                if self.path == "/tokenize":
                    script.counted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                    return self._json(script.count_reply, 404 if script.count_reply is None else 200)
                script.requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                if script.status != 200:
                    return self._json({"error": {"message": "too long"}}, script.status)
                events = script.answers.pop(0) if len(script.answers) > 1 else script.answers[0]
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                for number, event in enumerate(events):
                    if number == 1:
                        script.gate.wait(PATIENCE)
                    if isinstance(event, bytes):
                        self.wfile.write(event)
                    else:
                        self.wfile.write(b": a comment\ndata: " + json.dumps(event).encode() + b"\n\n")
                self.wfile.write(b"data: [DONE]\n\n")

            def _json(self, body: Any, status: int) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, args=[0.02], daemon=True).start()

    def stop(self) -> None:
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def scripted(*answers: Sequence[dict[str, Any] | bytes], key: str | None = None) -> Iterator[ScriptedServer]:
    server = ScriptedServer(answers, key)
    server.start()
    try:
        yield server
    finally:
        server.stop()
