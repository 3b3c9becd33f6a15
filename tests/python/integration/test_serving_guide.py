"""docs/serving.md tried out: its nginx configuration in front of a real server."""

from __future__ import annotations

import json
import os
import re
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from patience import PATIENCE, wait_until
from served import ROOT, RealServer, StartServer

TLS = ROOT / "tests" / "data" / "tls"
NGINX = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin:/bin")
SURROUNDINGS = """
{user} daemon off; pid {folder}/pid; error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
{guide}
}}
"""

pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed (Debian: apt install nginx)")


@pytest.fixture(scope="module")
def patient_server(
    start_server: StartServer, tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> RealServer:
    """A server whose longest answer takes minutes, on the fastest machine too."""
    model = tmp_path_factory.mktemp("guide") / "patient"
    shutil.copytree(tiny_model_dir, model)
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 200_000}), encoding="utf-8")
    return start_server(model, "--max-ctx", "100000")


@pytest.fixture(scope="module")
def proxy(patient_server: RealServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of nginx, on a socket in the file system: no port is taken."""
    folder = tmp_path_factory.mktemp("nginx")
    text = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```nginx\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) == 1
    guide = blocks[0]
    for written, here in (
        ("server 127.0.0.1:8000;", f"server {patient_server.url.removeprefix('http://')};"),
        ("listen 443 ssl;", f"listen unix:{folder}/socket ssl;"),
        ("/etc/nginx/cert.pem", str(TLS / "cert.pem")),
        ("/etc/nginx/key.pem", str(TLS / "key.pem")),
    ):
        assert written in guide
        guide = guide.replace(written, here)
    configuration = folder / "nginx.conf"
    user = "user root;" if os.geteuid() == 0 else ""  # else its workers are nobody, who may not write to the folder
    configuration.write_text(SURROUNDINGS.format(folder=folder, guide=guide, user=user), encoding="utf-8")
    assert NGINX is not None
    with subprocess.Popen([NGINX, "-p", folder, "-c", configuration], stderr=subprocess.PIPE, text=True) as process:

        def listens() -> bool:
            assert process.poll() is None, process.stderr.read() if process.stderr else ""
            return (folder / "socket").exists()

        wait_until(listens, "nginx does not listen")
        trust = ssl._create_unverified_context()  # the certificate is of another host; TLS itself is tested elsewhere
        transport = httpx.HTTPTransport(uds=str(folder / "socket"), verify=trust)
        with httpx.Client(base_url="https://llm.example.org", transport=transport, timeout=PATIENCE) as client:
            yield client
        process.terminate()


def body(n_tokens: int, **more: object) -> dict[str, object]:
    messages = [{"role": "user", "content": "What is a fox?"}]
    return {"messages": messages, "max_tokens": n_tokens, "temperature": 0, "ignore_eos": True} | more


def test_answers_are_the_server_s_own(proxy: httpx.Client, patient_server: RealServer) -> None:
    direct = patient_server.post("/v1/chat/completions", body(16))
    through = proxy.post("/v1/chat/completions", json=body(16), headers={"x-request-id": "guide-1"})
    assert through.status_code == 200
    assert through.json()["choices"] == direct["choices"]
    assert through.headers["x-request-id"] == "guide-1"
    assert proxy.get("/readyz").status_code == 200


def test_figures_are_not_for_everybody(proxy: httpx.Client) -> None:
    assert proxy.get("/metrics").status_code == 403


def test_a_body_that_the_server_would_take_passes(proxy: httpx.Client) -> None:
    """nginx's own limit is 1 MB."""
    reply = proxy.post("/v1/chat/completions", json=body(1) | {"user": "x" * 3_900_000})
    assert reply.status_code == 200, reply.text[:300]


def test_streams_come_at_once_and_a_client_that_leaves_frees_its_slot(
    proxy: httpx.Client, patient_server: RealServer
) -> None:
    def running() -> int:
        lines = httpx.get(f"{patient_server.url}/metrics", timeout=PATIENCE).text.splitlines()
        return next(int(float(line.split()[-1])) for line in lines if line.startswith("qwen3_requests_running"))

    with proxy.stream("POST", "/v1/chat/completions", json=body(90_000, stream=True)) as reply:
        lines = reply.iter_lines()
        assert next(lines).startswith("data: {")
        wait_until(lambda: running() == 1)
    wait_until(lambda: running() == 0, "nginx did not tell that the client had left")
