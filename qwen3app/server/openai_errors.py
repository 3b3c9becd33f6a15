"""The one table from errors to HTTP, and OpenAI's error shape. Handlers raise; nothing else turns errors into replies.

Pure functions. An error that is not in the table is a bug: it becomes a 500 without details, and is logged with them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from http import HTTPStatus

import msgspec

from qwen3app.errors import AppError, EngineError, GenerationError, RequestError, Status
from qwen3app.text.errors import TextError


class ApiError(AppError):
    """An error that exists only in HTTP: a wrong key, an unknown model, a body that is too large."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = headers or {}


@dataclass(frozen=True)
class ErrorReply:
    """What a client gets."""

    status: int
    message: str  # is in the body too
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def phrase(self) -> str:
        return HTTPStatus(self.status).phrase


_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
_DEFAULT_CODES = {
    401: "invalid_api_key",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "request_too_large",
    431: "request_head_too_large",
}

# What msgspec calls Python's types.
_JSON_TYPES = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "a boolean",
    "array": "a list",
    "object": "an object",
}

# Fields that a body must have, and what is said to send.
_MISSING = {
    "messages": "a list of messages",
    "prompt": "text or token ids",
    "tokens": "a list of token ids",
}

# Engine statuses that a client can meet after admission has been checked: HTTP status, code, Retry-After in seconds.
_ENGINE = {
    Status.QUEUE_FULL: (429, "queue_full", 1),
    Status.CLOSED: (503, "shutting_down", 5),
    Status.DEVICE_ERROR: (503, "engine_failed", 10),
    Status.OUT_OF_MEMORY: (503, "out_of_memory", 1),
    Status.INVALID_ARGUMENT: (400, None, None),
}


def describe(error: BaseException) -> ErrorReply | None:
    """The reply for an error, or None where it is no error that a client may read about."""
    if isinstance(error, ApiError):
        return _reply(error.status, str(error), error.param, error.code, error.headers)
    if isinstance(error, RequestError):
        return _reply(400, str(error), error.param, error.code)
    if isinstance(error, TextError):
        return _reply(400, str(error), error.param, None)
    if isinstance(error, EngineError):
        status, code, retry = _ENGINE.get(error.status, (500, "engine_error", None))
        return _reply(status, str(error), None, code, {} if retry is None else {"retry-after": str(retry)})
    if isinstance(error, GenerationError):
        return _reply(500, str(error), None, "generation_failed")
    if isinstance(error, AppError):
        return _reply(500, str(error), None, None)
    if isinstance(error, msgspec.DecodeError):
        return _decode_error(error)
    status_code = getattr(error, "status_code", None)  # Litestar's own: routing and the body limit
    if isinstance(status_code, int) and 400 <= status_code < 500:
        return _routing_error(status_code, error)
    return None


def no_json(error: msgspec.DecodeError) -> str:
    """The sentence about a body that is no JSON, without its full stop."""
    reason = str(error).removeprefix("JSON is malformed: ")
    return f"The body is not valid JSON: {reason[:1].lower()}{reason[1:]}"


def error_reply(status: int, message: str) -> ErrorReply:
    """For what goes wrong below the app: the protocol's bounds."""
    return _reply(status, message, None, None)


def internal_error() -> ErrorReply:
    """For everything that `describe` does not know."""
    return _reply(500, "The server met an internal error; its log has the details.", None, "internal_error")


def _reply(
    status: int, message: str, param: str | None, code: str | None, headers: dict[str, str] | None = None
) -> ErrorReply:
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    error = {"message": message, "type": kind, "param": param, "code": code or _DEFAULT_CODES.get(status)}
    return ErrorReply(status, message, msgspec.json.encode({"error": error}), headers or {})


def _decode_error(error: msgspec.DecodeError) -> ErrorReply:
    """msgspec ends its sentences with "- at `$.path`" and speaks of Python's types."""
    text = str(error)
    found = re.search(r"^(.*) - at `\$\.?(.*)`$", text, re.S)
    if isinstance(error, msgspec.ValidationError):
        path = found.group(2) if found else ""
        what = found.group(1) if found else text
        missing = re.fullmatch(r"Object missing required field `(.*)`", what)
        if missing is not None:
            name = missing.group(1)
            param = f"{path}.{name}" if path else name
            sentence = f"{param} is missing; send {_MISSING.get(name, 'it')}."
            return _reply(400, sentence, param, "missing_required_parameter")
        where = path or "The body"
        if path.endswith("[...]"):  # of an object's value msgspec tells no key
            path = path.removesuffix("[...]")
            where = f"A value of {path}"
        types = re.fullmatch(r"Expected `(.*)`, got `(.*)`", what)
        if types is None:
            return _reply(400, f"{where}: {what[:1].lower()}{what[1:]}.", path or None, "invalid_type")
        wanted = " or ".join(_JSON_TYPES.get(name, name) for name in types.group(1).split(" | "))
        got = _JSON_TYPES.get(types.group(2), types.group(2))
        return _reply(400, f"{where} must be {wanted}, not {got}.", path or None, "invalid_type")
    return _reply(400, f"{no_json(error)}.", None, "invalid_json")


_NO_ROUTE = (
    "There is no such route; GET /openapi.json lists those that there are. Of OpenAI's API this server has "
    "/v1/chat/completions, /v1/completions and /v1/models."
)


def _routing_error(status: int, error: BaseException) -> ErrorReply:
    headers = dict(getattr(error, "headers", None) or {})
    if status == 404:
        return _reply(404, _NO_ROUTE, None, None)
    if status == 405:
        allowed = headers.get("Allow") or headers.get("allow")
        hint = f"; use {allowed}" if allowed else ""
        return _reply(405, f"This route does not take this method{hint}.", None, None, headers)
    if status == 413:
        return _reply(413, "The body is larger than this server takes (--max-body-mb).", None, None)
    detail = str(getattr(error, "detail", "") or HTTPStatus(status).phrase)
    return _reply(status, detail.rstrip(".") + ".", None, None, headers)
