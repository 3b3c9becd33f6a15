"""A model behind a URL: any server that speaks OpenAI's chat completions, streaming.

Owns HTTP: addresses, the key, the request's fields, reading events, and one sentence for each way it can fail. Fields
beyond OpenAI's are sent only where the user has set them, so that strict servers refuse nothing. What a server does not
say (context, KV cache, cached tokens) stays unknown. Event loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import httpx2

from qwen3app import __version__
from qwen3app.chat.backend import Call, Piece, TurnStats
from qwen3app.chat.errors import ChatError
from qwen3app.chat.sanitize import sanitize_line
from qwen3app.chat.settings import SETTINGS, ChatSettings
from qwen3app.errors import NETWORK_VARIABLES, UsageError

_CONNECT_SECONDS = 10.0
_COUNT_SECONDS = 3.0  # the prompt waits for it
_MODEL_SECONDS = 30.0  # for the list of models; an answer may take as long as it takes
_FAILURES = (httpx2.HTTPError, httpx2.InvalidURL, OSError, UnicodeError)  # the last ones: hosts that are no names
_MOST_NUMBER = 10**15  # of tokens or milliseconds that a server tells
_MOST_BYTES = 16 << 20  # of one event, or of a reply that is none
_Delta = Piece | Call


def base_url(text: str) -> str:
    """The address of the API: `host:8000` and `http://host:8000` are http://host:8000/v1; a path is taken as it is."""
    url = text.strip() if "://" in text else f"http://{text.strip()}"
    try:
        parsed = httpx2.URL(url)
    except (httpx2.InvalidURL, UnicodeError):
        parsed = httpx2.URL("")
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.port not in (None, *range(1, 1 << 16)):
        raise UsageError(f"--url takes an address like http://127.0.0.1:8000, not {text!r}.")
    return str(parsed).rstrip("/") + ("/v1" if parsed.path == "/" else "")


class RemoteBackend:
    """See backend.Backend. Use it with `async with`: that finds the model."""

    def __init__(self, url: str, api_key: str | None, model: str | None) -> None:
        self._url = base_url(url)
        self.place = str(httpx2.URL(self._url).copy_with(userinfo=b""))  # a name and password are not for the screen
        self.name = model or ""
        self.max_context: int | None = None
        self.notice: str | None = None
        self.kv_tokens: int | None = None
        self.unset: str | None = "the server's default"
        headers = {"User-Agent": f"qwen3-8b/{__version__}", "Content-Type": "application/json"}
        if api_key:
            if not api_key.isascii() or not api_key.isprintable():
                raise UsageError("The API key holds characters that no key has; look for spaces and line ends.")
            headers["Authorization"] = f"Bearer {api_key}"
        timeout = httpx2.Timeout(None, connect=_CONNECT_SECONDS)
        try:
            self._client = httpx2.AsyncClient(headers=headers, timeout=timeout, follow_redirects=False)
        except (ValueError, OSError) as error:  # of what the environment says of proxies and certificates
            raise UsageError(f"No connection can be made ({error}); check {NETWORK_VARIABLES}.") from None
        self._defaults: dict[str, Any] = {}
        self._pump: asyncio.Task[None] | None = None
        self._stopped = False

    async def __aenter__(self) -> RemoteBackend:
        try:
            await self._find_model()
        except BaseException:
            await self._client.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    def default(self, name: str) -> float | int | None:
        value = self._defaults.get(name)
        return value if _is_number(value) else None

    def count(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None, think: bool
    ) -> int | None:
        return None

    async def ask_count(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None, think: bool
    ) -> int | None:
        if self.kv_tokens is None:  # not our own server; few others tell
            return None
        body = {"model": self.name, "messages": list(messages), "add_generation_prompt": False}
        body |= self._template_fields(tools, think)
        with contextlib.suppress(ChatError, TimeoutError, *_FAILURES):
            async with asyncio.timeout(_COUNT_SECONDS):
                data, url = json.dumps(body).encode(), f"{self._root}/tokenize"
                async with self._client.stream("POST", url, content=data) as response:
                    return _count(_json(await _all(response)), "count") if response.status_code == 200 else None
        return None

    def stop(self) -> None:
        if self._pump is not None:
            self._stopped = True
            self._pump.cancel()

    async def answer(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None,
        settings: ChatSettings,
        think: bool,
        stats: TurnStats,
    ) -> AsyncGenerator[_Delta, None]:
        started = time.monotonic()
        stats.more_context = "a larger --max-ctx of the server"
        stats.has_usage = False  # until the server tells, at its answer's end
        body = self._body(messages, tools, settings, think)
        # A task of its own reads, so that stop() ends it wherever it waits.
        said: asyncio.Queue[_Delta | None] = asyncio.Queue()
        self._stopped = False
        pump = self._pump = asyncio.ensure_future(self._read(body, said, stats))
        last: float | None = None
        try:
            while (delta := await said.get()) is not None:
                last = time.monotonic()
                if stats.first_seconds is None:
                    stats.first_seconds = last - started
                yield delta
            await pump
        except asyncio.CancelledError:
            if not self._stopped:
                raise
            stats.finish = "abort"
        finally:
            self._pump = None
            pump.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await pump
            stats.seconds = (last or time.monotonic()) - started
            taken, limit = stats.context_tokens, self.max_context
            is_taken = taken is not None and limit is not None and taken >= limit
            stats.context_full = stats.finish == "length" and is_taken

    async def _read(self, body: dict[str, Any], said: asyncio.Queue[_Delta | None], stats: TurnStats) -> None:
        calls: dict[int, dict[str, str]] = {}
        try:
            data = json.dumps(body).encode()  # in ASCII: what is no text is for the server to refuse
            async with self._client.stream("POST", f"{self._url}/chat/completions", content=data) as response:
                if response.status_code != 200:
                    raise await _refused(response)
                async with aclosing(_events(response)) as events:
                    async for event in events:
                        _take(event, calls, said, stats)
            for call in calls.values():
                if not call["name"]:
                    raise ChatError("The server sent a tool call without a name.")
                call["id"] = call["id"] or f"call_{secrets.token_hex(12)}"  # some servers give none
                said.put_nowait(Call(call["id"], call["name"], call["arguments"]))
            if stats.finish is None:
                raise ChatError("The server ended the answer without saying why; it may have stopped.")
        except _FAILURES as error:
            words = _words(error)
            end = "" if words.endswith("?") else "."
            raise ChatError(f"The connection to {self.place} failed: {words}{end}") from None
        except (AttributeError, TypeError):
            raise ChatError("The server sent an event that has not the form of OpenAI's.") from None
        finally:
            said.put_nowait(None)

    def _body(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None,
        settings: ChatSettings,
        think: bool,
    ) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.name,
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        for setting in SETTINGS:
            value = getattr(settings, setting.field)
            if value is not None and setting.field != "system":
                body[setting.field] = value
        return body | self._template_fields(tools, think)

    @staticmethod
    def _template_fields(tools: Sequence[dict[str, Any]] | None, think: bool) -> dict[str, Any]:
        """What changes how messages become a prompt."""
        fields: dict[str, Any] = {"tools": list(tools)} if tools else {}
        if not think:
            fields["chat_template_kwargs"] = {"enable_thinking": False}  # as vLLM, SGLang, llama.cpp and we have it
        return fields

    @property
    def _root(self) -> str:
        """Where our own server has what is not OpenAI's."""
        return self._url.removesuffix("/v1")

    async def _find_model(self) -> None:
        try:
            async with self._client.stream("GET", f"{self._url}/models", timeout=_MODEL_SECONDS) as response:
                if response.status_code != 200:
                    raise await _refused(response)
                cards = _json(await _all(response)).get("data")
        except _FAILURES as error:
            words = _words(error)
            hint = "" if words.endswith("?") else _scheme_hint(error, self.place)
            raise ChatError(f"There is no answer from {self.place}: {words}{hint}") from None
        models = {
            card["id"]: card
            for card in (cards if isinstance(cards, list) else ())
            if isinstance(card, dict) and isinstance(card.get("id"), str)
        }
        if not models:
            raise ChatError(f"{self.place} names no models; is it an OpenAI-compatible server?")
        if self.name and self.name not in models:
            names = ", ".join(sanitize_line(name) for name in list(models)[:10])
            raise UsageError(
                f"{self.place} has no model {self.name}; it has {names}: choose one of these with --model."
            )
        self.name = self.name or next(iter(models))
        limit = models[self.name].get("max_model_len")
        self.max_context = limit if isinstance(limit, int) and 0 < limit < _MOST_NUMBER else None
        await self._look_at_server()

    async def _look_at_server(self) -> None:
        """What only our own server tells: the KV cache's size and defaults."""
        url = f"{self._root}/status"
        with contextlib.suppress(ChatError, *_FAILURES):
            async with self._client.stream("GET", url, timeout=_CONNECT_SECONDS) as response:
                found = _json(await _all(response)) if response.status_code == 200 else {}
            if (n_tokens := _count(found, "kv_tokens")) and isinstance(found.get("defaults"), dict):
                self.kv_tokens, self._defaults = n_tokens, found["defaults"]
                self.unset = None  # our own server: what it does not name is off


def _take(event: dict[str, Any], calls: dict[int, dict[str, str]], said: Any, stats: TurnStats) -> None:
    """One event of the stream: text goes to `said` at once, calls come in parts and are put together."""
    if error := event.get("error"):
        said_of_it = error.get("message") if isinstance(error, dict) else None
        raise ChatError(f"The server failed: {sanitize_line(str(said_of_it or error))}")
    if isinstance(usage := event.get("usage"), dict):
        stats.prompt_tokens = _count(usage, "prompt_tokens") or 0
        stats.has_usage = stats.prompt_tokens > 0
        stats.tokens = _count(usage, "completion_tokens") or 0
        stats.cached_tokens = _count(usage.get("prompt_tokens_details"), "cached_tokens")
    timings = event.get("timings")
    if isinstance(timings, dict) and _is_number(timings.get("predicted_ms")):
        stats.decode_seconds = timings["predicted_ms"] / 1000
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        if thought := delta.get("reasoning_content") or delta.get("reasoning"):
            said.put_nowait(Piece("thought", str(thought)))
        if answer := delta.get("content"):
            said.put_nowait(Piece("answer", str(answer)))
        for part in delta.get("tool_calls") or ():
            function = part.get("function") or {}
            call = calls.setdefault(part.get("index", len(calls)), {"id": "", "name": "", "arguments": ""})
            call["id"] = call["id"] or str(part.get("id") or "")
            call["name"] = call["name"] or str(function.get("name") or "")
            call["arguments"] += str(function.get("arguments") or "")
            if len(call["arguments"]) > _MOST_BYTES:
                raise _too_long()
        if reason := choice.get("finish_reason"):
            stats.finish = str(reason)


async def _events(response: httpx2.Response) -> AsyncGenerator[dict[str, Any], None]:
    """The server-sent events' JSON, up to [DONE]."""
    async with aclosing(_lines(response)) as lines:
        async for line in lines:
            if not line.startswith(b"data:"):
                continue
            data = line.removeprefix(b"data:").strip()
            if data == b"[DONE]":
                return
            event = _json(data)
            if not event:
                shown = sanitize_line(data[:100].decode("utf-8", "replace"))
                raise ChatError(f"The server sent an event that is no JSON object: {shown}")
            yield event


async def _lines(response: httpx2.Response) -> AsyncGenerator[bytes, None]:
    """Lines, which end with a newline alone: what else ends a line for Python may stand inside a JSON text."""
    line = bytearray()
    async for data in response.aiter_bytes():
        first, *others = data.split(b"\n")
        line += first
        for other in others:
            yield bytes(line)
            line = bytearray(other)
        if len(line) > _MOST_BYTES:
            raise _too_long()
    yield bytes(line)


async def _all(response: httpx2.Response) -> bytes:
    """The whole of a reply that is not a stream."""
    data = bytearray()
    async for part in response.aiter_bytes():
        data += part
        if len(data) > _MOST_BYTES:
            raise _too_long()
    return bytes(data)


def _too_long() -> ChatError:
    return ChatError(
        f"The server sends more than {_MOST_BYTES >> 20} MiB in one piece; is it an OpenAI-compatible one?"
    )


def _json(data: bytes) -> dict[str, Any]:
    """The JSON object, {} for anything else."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _count(values: Any, name: str) -> int | None:
    value = values.get(name) if isinstance(values, dict) else None
    return value if isinstance(value, int) and 0 <= value < _MOST_NUMBER else None


def _is_number(value: Any) -> bool:
    """Whether it is one that can be reckoned with: JSON has larger ones, and Python reads NaN."""
    return isinstance(value, int | float) and abs(value) < _MOST_NUMBER


async def _refused(response: httpx2.Response) -> ChatError:
    error = _json(await _all(response)).get("error")
    said = error.get("message") if isinstance(error, dict) else error
    sentence = sanitize_line(str(said or response.reason_phrase or "no reason given"))
    hint = " (the key comes from --api-key or OPENAI_API_KEY)" if response.status_code in (401, 403) else ""
    return ChatError(f"The server answers {response.status_code}{hint}: {sentence}")


def _words(error: Exception) -> str:
    said = re.sub(r"^\[Errno -?\d+\] ", "", str(error)).rstrip(".")
    if said == "All connection attempts failed":  # all that the library says, whichever way they did
        said = "nothing listens there; is the server running?"
    return sanitize_line(said or type(error).__name__).rstrip(".")


def _scheme_hint(error: Exception, place: str) -> str:
    """What a first connection most likely lacked, where the library's words do not say it."""
    said = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in said:
        trusted = "mismatch" not in said and "expired" not in said  # which no other authority would mend
        return "; SSL_CERT_FILE may name a file of certificates to trust." if trusted else "."
    if "SSL" in said:
        return "; does it speak http, not https?"
    ended = isinstance(error, httpx2.RemoteProtocolError | httpx2.ReadError)
    return "; does it speak https, not http?" if ended and place.startswith("http://") else "."
