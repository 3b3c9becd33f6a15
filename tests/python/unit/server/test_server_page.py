"""The chat page as files: who gets them, with which headers, and that nothing in them needs or reaches the outside.

What the page does is tested in a browser: tests/python/integration/page.
"""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
from fake_engine import FakeEngine
from serving import FakeLoader, TextParts, make_model, serving

from qwen3app.guards import GuardSettings
from qwen3app.server.page import assets
from qwen3app.text.generation_config import SamplingDefaults

FILES = {path: asset.body.decode() for path, asset in assets().items()}
SCRIPTS = {path: text for path, text in FILES.items() if path.endswith(".js")}
# Ways from text to markup or to code, and styles that the policy would drop.
FORBIDDEN = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|setHTMLUnsafe|\beval\b|"
    r"new Function|srcdoc|\.style\s*=|\"style\""
)


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inline: list[str] = []
        self._in_script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in_script = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script and data.strip():
            self.inline.append(data)


PAGE = Tags(FILES["/"])


# ---------------------------------------------------------------------------------------------------------- the routes


async def test_the_page_needs_no_key_and_all_else_does(text_parts: TextParts) -> None:
    model = make_model(text_parts, FakeEngine())
    async with serving(model, guards=GuardSettings(api_keys=("k",))) as server:
        for path, asset in assets().items():
            response = await server.client.get(path)
            assert (response.status_code, response.content) == (200, asset.body)
            assert response.headers["content-type"] == asset.content_type
        for path in ("/status", "/static/nothing.js", "/static/", "/static", "/index.html", "/static/../page.py"):
            assert (await server.client.get(path)).status_code == 401, path
        for path in ("/static/nothing.js", "/static/index.html", "/static/%2e%2e/page.py"):
            response = await server.client.get(path, headers={"x-api-key": "k"})
            assert response.status_code == 404 and response.json()["error"]["code"] == "not_found", path
        head = await server.client.head("/")
        assert head.status_code == 200 and head.content == b""
        assert (await server.client.post("/")).status_code == 405


async def test_the_page_is_there_before_the_model(text_parts: TextParts) -> None:
    async with serving(None, FakeLoader(None)) as server:
        assert (await server.client.get("/")).status_code == 200
        assert (await server.client.get("/static/main.js")).status_code == 200
        loading = await server.client.get("/status")
        assert (loading.status_code, loading.json()["error"]["code"]) == (503, "model_loading")


async def test_headers_keep_the_page_in_its_place(text_parts: TextParts) -> None:
    async with serving(make_model(text_parts, FakeEngine())) as server:
        for path in assets():
            headers = (await server.client.get(path)).headers
            policy = dict(rule.split(" ", 1) for rule in headers["content-security-policy"].split("; "))
            assert policy.pop("default-src") == "'none'" and policy.pop("require-trusted-types-for") == "'script'"
            assert policy.pop("trusted-types") == "'none'"
            assert set(policy) == {"script-src", "style-src", "img-src", "connect-src"} | {
                "base-uri",
                "form-action",
                "frame-ancestors",
            }
            assert set(policy.values()) == {"'self'", "'none'"}
            assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
            assert headers["cross-origin-opener-policy"] == headers["cross-origin-resource-policy"] == "same-origin"


async def test_a_browser_that_has_a_file_is_told_so(text_parts: TextParts) -> None:
    async with serving(make_model(text_parts, FakeEngine())) as server:
        first = await server.client.get("/static/main.js")
        etag = first.headers["etag"]
        assert first.headers["cache-control"] == "no-cache" and len({asset.etag for asset in assets().values()}) > 5
        for known in (etag, f"W/{etag}", f'"other", {etag}', "*"):
            again = await server.client.get("/static/main.js", headers={"if-none-match": known})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
            assert again.headers["content-security-policy"]
        changed = await server.client.get("/static/main.js", headers={"if-none-match": '"other"'})
        assert changed.status_code == 200 and changed.content == first.content


async def test_status(text_parts: TextParts) -> None:
    engine = FakeEngine()
    model = make_model(text_parts, engine, SamplingDefaults(temperature=0.6, top_k=20))
    async with serving(model) as server:
        engine.open_samples |= {(1, 0), (2, 0)}
        status = (await server.client.get("/status")).json()
        engine.open_samples.clear()
    assert (status["model"], status["device"], status["max_context"]) == ("fake", "fake", 512)
    assert (status["running"], status["slots"], status["waiting"]) == (2, 32, 0)
    assert (status["kv_usage"], status["kv_tokens"]) == (0.0312, 64 * 32)
    assert status["defaults"] == {"temperature": 0.6, "top_p": None, "top_k": 20, "min_p": None}


async def test_the_log_names_the_page(text_parts: TextParts, capfd: pytest.CaptureFixture[str]) -> None:
    async with serving(make_model(text_parts, FakeEngine())) as server:
        await server.client.get("/")
        await server.client.get("/static/main.js")
        await server.client.get("/status")
        address = f"http://127.0.0.1:{server.port}/"
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert next(line for line in lines if line["event"] == "ready")["page"] == address
    assert not [line for line in lines if line["event"] == "request"], "a page's files and its gauge fill no log"


# ----------------------------------------------------------------------------------------------------------- the files


def test_every_file_that_is_named_exists() -> None:
    named = {value for _, attributes in PAGE.tags for name, value in attributes.items() if name in ("src", "href")}
    local = {value for value in named if value and not value.startswith("#")}
    assert {"/static/main.js", "/static/style.css", "/static/icon.svg"} <= local <= set(FILES)
    imported = set()
    for path, text in SCRIPTS.items():
        for module in re.findall(r"from \"([^\"]+)\"", text):
            assert module.startswith("./") and f"/static/{module[2:]}" in FILES, f"{path} imports {module}"
            imported.add(f"/static/{module[2:]}")
    unused = set(FILES) - imported - local - {"/"}
    assert not unused, f"nothing uses {unused}"


def test_every_id_and_symbol_that_is_named_exists() -> None:
    identities = [attributes["id"] for _, attributes in PAGE.tags if "id" in attributes]
    assert len(identities) == len(set(identities))
    text = "\n".join(SCRIPTS.values())
    used = set(re.findall(r"getElementById\(\"([^\"]+)\"\)|onClick\(\"([^\"]+)\"", text))
    assert {one or other for one, other in used} <= set(identities)
    symbols = {identity for identity in identities if identity and identity.startswith("icon-")}
    drawn = {f"icon-{name}" for name in re.findall(r"icon(?:Button)?\(\"([a-z]+)\"", text)}
    drawn |= {f"icon-{name}" for name in re.findall(r"\? \"([a-z]+)\" : \"(?:[a-z]+)\"\)\)", text)}
    drawn |= {value[1:] for _, attributes in PAGE.tags if (value := attributes.get("href")) and "#icon-" in value}
    assert drawn <= symbols | {"icon-check", "icon-alert"} and symbols - drawn <= {"icon-check", "icon-alert"}
    labels = [attributes.get("for") for tag, attributes in PAGE.tags if tag == "label" and "for" in attributes]
    for attributes in (attributes for _, attributes in PAGE.tags):
        for name in ("aria-labelledby", "aria-describedby", "aria-controls", "popovertarget"):
            if attributes.get(name):
                labels.append(attributes[name])
    assert set(labels) <= set(identities)


def test_nothing_is_inline() -> None:
    assert PAGE.inline == []
    for tag, attributes in PAGE.tags:
        assert "style" not in attributes and not [name for name in attributes if name.startswith("on")], tag


def test_nothing_leads_out() -> None:
    addresses = re.compile(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}", re.I)
    for path, text in FILES.items():
        found = set(addresses.findall(text)) - {"http://www.w3.org"}  # the name of SVG
        assert not found, f"{path} names {found}"
        assert "@import" not in text and "url(" not in text, path


@pytest.mark.parametrize("path", sorted(SCRIPTS))
def test_scripts_have_no_way_from_text_to_markup(path: str) -> None:
    assert not FORBIDDEN.search(SCRIPTS[path])


@pytest.mark.parametrize("path", sorted(FILES))
def test_files_are_short_enough_to_be_read(path: str) -> None:
    assert len(FILES[path].splitlines()) < 400
