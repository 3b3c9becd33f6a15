"""GET / and GET /static/NAME: the chat page. Neither needs a key or a model: the files are the same for everybody.

Owns: which files there are, and the headers that keep them in their place. Refuses to know what the page does; it is a
client of the API like any other. The files are read once, when the first of them is asked for; a name is looked up
among those that were found, so no path leads out of the folder. Browsers ask each time whether a file has changed
(ETag), so that a new version of the server is a new page at once.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from litestar import Request, get
from litestar.params import FromPath

from qwen3app.server.openai_errors import ApiError
from qwen3app.server.sse import Reply

if TYPE_CHECKING:
    from litestar.types import Receive, Scope, Send

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Scripts and styles come from this server's files alone, nothing inline is run, nothing outside is loaded, and text
# cannot be made markup: with trusted types the browser itself refuses innerHTML and its kin.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-cache",
}


class Asset(NamedTuple):
    """One file of the page. etag: of its content, with the quotes."""

    body: bytes
    content_type: str
    etag: str


@cache
def assets() -> dict[str, Asset]:
    """All files, by path: `/` is index.html."""
    found = {}
    for file in files("qwen3app.server").joinpath("static").iterdir():
        content_type = _TYPES.get(file.name[file.name.rfind(".") :])
        if content_type is not None:
            body = file.read_bytes()
            path = "/" if file.name == "index.html" else f"/static/{file.name}"
            found[path] = Asset(body, content_type, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
    return found


def is_page(path: str) -> bool:
    """Whether this is the path of a file of the page."""
    return path == "/" or (path.startswith("/static/") and path in assets())


class AssetReply(Reply):
    """One file, or 304 where the browser has it already."""

    def __init__(self, asset: Asset, known: str) -> None:
        """known: the request's If-None-Match."""
        self._asset = asset
        tags = {tag.strip().removeprefix("W/") for tag in known.split(",")}
        self._known = asset.etag in tags or "*" in tags

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        fields = {**HEADERS, "etag": self._asset.etag}
        body = b""
        if not self._known:
            body = self._asset.body
            fields |= {"content-type": self._asset.content_type, "content-length": str(len(body))}
        headers = [(name.encode(), value.encode()) for name, value in fields.items()]
        await send({"type": "http.response.start", "status": 304 if self._known else 200, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})


def _reply(request: Request[Any, Any, Any], path: str) -> Reply:
    asset = assets().get(path)
    if asset is None:
        raise ApiError(404, "The page has no such file.")
    return AssetReply(asset, request.headers.get("if-none-match", ""))


@get("/", include_in_schema=False)
async def page(request: Request[Any, Any, Any]) -> Reply:
    """The page."""
    return _reply(request, "/")


@get("/static/{name:str}", include_in_schema=False)
async def page_file(request: Request[Any, Any, Any], name: FromPath[str]) -> Reply:
    """A file that it needs."""
    return _reply(request, f"/static/{name}")
