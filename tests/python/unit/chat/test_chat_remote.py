"""A model behind a URL: what is sent, what is understood, how it fails."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from patience import until
from scripted_server import ScriptedServer, call, scripted, words

from qwen3app.chat import remote
from qwen3app.chat.backend import Call, Piece
from qwen3app.chat.errors import ChatError
from qwen3app.chat.remote import RemoteBackend, base_url
from qwen3app.chat.session import ChatSession
from qwen3app.chat.settings import ChatSettings
from qwen3app.chat.status_bar import status_line
from qwen3app.errors import UsageError

TLS = Path(__file__).parents[3] / "data" / "tls"


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    with scripted(words("Hello", " there", thought="hm")) as made:
        yield made


async def ask(session: ChatSession, text: str) -> list[Piece | Call]:
    async with aclosing(session.ask(text)) as pieces:
        return [piece async for piece in pieces]


async def test_a_conversation(server: ScriptedServer) -> None:
    async with RemoteBackend(server.url, None, None) as backend:
        assert (backend.name, backend.max_context, backend.kv_tokens) == ("scripted", 1000, None)
        session = ChatSession(backend)
        assert await ask(session, "Hi") == [Piece("thought", "hm"), Piece("answer", "Hello"), Piece("answer", " there")]
        await ask(session, "More")
        stats = session.stats
        assert (stats.prompt_tokens, stats.tokens, stats.cached_tokens, stats.has_usage) == (20, 3, 8, True)
        assert stats.finish == "stop" and not stats.context_full and stats.first_seconds is not None
        assert status_line(session, 80).startswith("scripted · context 23 of 1,000 (2.3%)")
        assert "KV" not in status_line(session, 80)
    first, second = server.requests
    assert first == {
        "model": "scripted",
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }  # nothing that a strict server would refuse
    assert [message["role"] for message in second["messages"]] == ["user", "assistant", "user"]


async def test_a_password_in_the_address_is_not_shown(server: ScriptedServer) -> None:
    async with RemoteBackend(server.url.replace("://", "://me:secret@"), None, None) as backend:
        assert backend.place == f"{server.url}/v1"
        await ask(ChatSession(backend), "Hi")
    assert len(server.requests) == 1


async def test_settings_are_sent(server: ScriptedServer) -> None:
    async with RemoteBackend(server.url, None, "second") as backend:
        session = ChatSession(backend, think=False)
        session.settings.system = "Be brief."
        session.settings.temperature, session.settings.top_k, session.settings.max_tokens = 0.0, 5, 9
        await ask(session, "Hi")
        assert backend.max_context is None and status_line(session, 80).startswith("second · context 23 ·")
    sent = server.requests[0]
    assert (sent["model"], sent["temperature"], sent["top_k"], sent["max_tokens"]) == ("second", 0.0, 5, 9)
    assert sent["messages"][0] == {"role": "system", "content": "Be brief."} and "system" not in sent
    assert sent["chat_template_kwargs"] == {"enable_thinking": False}


async def test_what_is_no_text_is_for_the_server_to_refuse(server: ScriptedServer) -> None:
    async with RemoteBackend(server.url, None, None) as backend:
        await ask(ChatSession(backend), "日 \udcff")
    assert server.requests[0]["messages"] == [{"role": "user", "content": "日 \udcff"}]


async def test_another_server_is_asked_for_its_status_once(server: ScriptedServer) -> None:
    async with RemoteBackend(server.url, None, None) as backend:
        session = ChatSession(backend)
        await ask(session, "Hi")
        await ask(session, "More")
    assert server.asked == ["/v1/models", "/status"]
    assert backend.unset == "the server's default" and session.effective("temperature") is None


async def test_our_own_server_tells_more(server: ScriptedServer) -> None:
    server.status_reply = {"kv_usage": 0.0, "kv_tokens": 46, "defaults": {"temperature": 0.6, "top_p": None}}
    async with RemoteBackend(server.url, None, None) as backend:
        session = ChatSession(backend)
        await ask(session, "Hi")
        assert status_line(session, 80).endswith("KV 50%") and backend.unset is None  # 23 of 46, nothing running
        assert session.effective("temperature") == 0.6 and session.effective("top_p") is None
        session.reset()
        assert status_line(session, 80) == "scripted · context 0 of 1,000 (0%) · KV 0%"


async def test_a_cancelled_chat_does_not_swallow_its_cancellation(server: ScriptedServer) -> None:
    server.gate.clear()
    async with RemoteBackend(server.url, None, None) as backend:
        asking = asyncio.ensure_future(ask(ChatSession(backend), "Hi"))
        await until(lambda: server.requests)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking


async def test_a_tool_call() -> None:
    with scripted(call("add", '{"a": 1, "b": "日"}'), words("Done")) as server:
        async with RemoteBackend(server.url, None, None) as backend:
            session = ChatSession(backend)
            session.tools = [{"type": "function", "function": {"name": "add"}}]

            async def run(wanted: Call) -> str:
                return f"{wanted.name} {json.loads(wanted.arguments)['b']}"

            session.run_call = run
            assert await ask(session, "Add") == [Call("call_0", "add", '{"a": 1, "b": "日"}'), Piece("answer", "Done")]
        first, second = server.requests
        assert first["tools"] == session.tools
        assert second["messages"][1:] == session.messages[1:3]
        assert session.messages[2] == {"role": "tool", "tool_call_id": "call_0", "content": "add 日"}


async def test_calls_without_ids_get_some() -> None:
    parts = [{"index": i, "id": "", "function": {"name": "f", "arguments": "{}"}} for i in (0, 1)]
    events = [{"choices": [{"delta": {"tool_calls": parts}, "finish_reason": "tool_calls"}]}]
    with scripted(events, words("Done")) as server:
        async with RemoteBackend(server.url, None, None) as backend:
            session = ChatSession(backend)

            async def run(wanted: Call) -> str:
                session.stop()
                return "first"

            session.run_call = run
            await ask(session, "Do it")
    first, second = (call["id"] for call in session.messages[1]["tool_calls"])
    assert first and second and first != second
    results = {message["tool_call_id"]: message["content"] for message in session.messages[2:]}
    assert results == {first: "first", second: '{"error": "The user stopped this call."}'}


async def test_numbers_that_no_server_means_are_none() -> None:
    large = 10**400
    numbers: list[Any] = [
        {"choices": [{"delta": {"content": "x"}}]},
        {
            "choices": [],
            "usage": {"prompt_tokens": large, "completion_tokens": -large},
            "timings": {"predicted_ms": large},
        },
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
    ]
    with scripted(numbers) as server:
        server.models = {"data": [{"id": "x", "max_model_len": large}]}
        server.status_reply = {"kv_tokens": float("nan"), "defaults": {"temperature": large}}
        async with RemoteBackend(server.url, None, None) as backend:
            session = ChatSession(backend)
            await ask(session, "Hi")
            assert (session.stats.prompt_tokens, session.stats.tokens, session.stats.decode_seconds) == (0, 0, None)
            assert backend.max_context is None and backend.default("temperature") is None
            assert status_line(session, 80) == "x · context ?"


async def test_a_server_that_counts_no_tokens() -> None:
    silent = [event for event in words("Hello", finish="length") if "usage" not in event]
    brief = [*silent, {"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 1}}]
    with scripted(silent, brief) as server:
        async with RemoteBackend(server.url, None, None) as backend:
            session = ChatSession(backend)
            await ask(session, "Hi")
            assert not session.stats.has_usage and not session.stats.context_full
            assert status_line(session, 80) == "scripted · context ? of 1,000"
            await ask(session, "Hi")
            assert session.stats.has_usage and session.stats.cached_tokens is None
            assert status_line(session, 80).startswith("scripted · context 21 of 1,000 (2.1%)")


async def test_stopping_keeps_what_came(server: ScriptedServer) -> None:
    server.gate.clear()
    async with RemoteBackend(server.url, None, None) as backend:
        session = ChatSession(backend)
        async with aclosing(session.ask("Hi")) as pieces:
            async for _ in pieces:
                session.stop()
        assert session.stats.finish == "abort"
        assert session.messages[-1] == {"role": "assistant", "content": "", "reasoning_content": "hm"}


async def test_our_own_server_counts_what_a_stopped_answer_left(server: ScriptedServer) -> None:
    """Nobody has told: the usage comes with an answer's end."""
    server.status_reply = {"kv_tokens": 50, "defaults": {}}
    server.gate.clear()
    async with RemoteBackend(server.url, None, None) as backend:
        session = ChatSession(backend, ChatSettings(system="Be brief"), think=False)
        session.tools = [{"type": "function", "function": {"name": "f"}}]
        async with aclosing(session.ask("Hi")) as pieces:
            async for _ in pieces:
                session.stop()
        for reply in (None, {"count": "many"}, [], {"count": -1}):
            server.count_reply = reply
            await session.recount()
            assert status_line(session, 80) == "scripted · context ? of 1,000"
        server.count_reply = {"count": 20, "tokens": []}
        await session.recount()
        assert status_line(session, 80) == "scripted · context 20 of 1,000 (2.0%) · KV 40%"
        await session.recount()  # known: nobody is asked
    assert len(server.counted) == 5
    assert server.counted[-1] == {
        "model": "scripted",
        "messages": [{"role": "system", "content": "Be brief"}, *session.messages],
        "add_generation_prompt": False,
        "tools": session.tools,
        "chat_template_kwargs": {"enable_thinking": False},
    }


async def test_other_servers_are_not_asked_to_count(server: ScriptedServer) -> None:
    server.count_reply = {"count": 20}
    async with RemoteBackend(server.url, None, None) as backend:
        session = ChatSession(backend)
        await ask(session, "Hi")
        session.replace(session.messages)
        await session.recount()
        assert session.context_tokens is None and server.counted == []


async def test_a_server_that_has_gone_counts_nothing() -> None:
    with scripted(words("Hello")) as server:
        server.status_reply = {"kv_tokens": 50, "defaults": {}}
        async with RemoteBackend(server.url, None, None) as backend:
            session = ChatSession(backend)
            await ask(session, "Hi")
            session.replace(session.messages)
            server.stop()
            await session.recount()
            assert session.context_tokens is None


async def test_stopping_before_the_first_word() -> None:
    with scripted([{"choices": []}, {"choices": []}]) as server:
        server.gate.clear()
        async with RemoteBackend(server.url, None, None) as backend:
            session = ChatSession(backend)
            asking = until(lambda: server.requests)

            async def stop() -> None:
                await asking
                session.stop()

            stopping = asyncio.ensure_future(stop())
            assert await ask(session, "Hi") == []
            await stopping
            assert session.stats.finish == "abort" and session.messages == []


async def test_keys() -> None:
    with scripted(words("x"), key="secret") as server:
        async with RemoteBackend(server.url, "secret", None) as backend:
            assert backend.name == "scripted"
        with pytest.raises(
            ChatError, match=r"answers 401 \(the key comes from --api-key or OPENAI_API_KEY\): wrong \S\[31mk"
        ):
            await RemoteBackend(server.url, None, None).__aenter__()
    with pytest.raises(UsageError, match="characters that no key has"):
        RemoteBackend("x", "a\nb", None)


@pytest.mark.parametrize(
    ("events", "sentence"),
    [
        ([{"error": {"message": "it broke"}}], "The server failed: it broke"),
        ([{"error": "it broke \x1b[31m"}], r"The server failed: it broke \S\[31m"),
        (call("", "{}"), "a tool call without a name"),
        ([{"choices": [{"delta": {"content": "x"}}]}], "without saying why"),
        ([[1]], "no JSON object"),
        ([{"choices": [1]}], "has not the form of OpenAI's"),
        ([{"choices": 5}], "has not the form of OpenAI's"),
        ([{"choices": [{"delta": {"tool_calls": ["x"]}}]}], "has not the form of OpenAI's"),
    ],
)
async def test_streams_that_break_are_one_sentence(events: Any, sentence: str) -> None:
    with scripted(events) as server:
        async with RemoteBackend(server.url, None, None) as backend:
            with pytest.raises(ChatError, match=sentence):
                await ask(ChatSession(backend), "Hi")


async def test_what_has_no_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_MOST_BYTES", 1 << 20)
    sentence = "The server sends more than 1 MiB in one piece"
    part = {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "x" * 9000}}]}}]}
    for events in ([b"data: " + b"x" * (3 << 20)], [b": " + b"x" * (3 << 20)], [part] * 150):
        with scripted(events) as server:
            async with RemoteBackend(server.url, None, None) as backend:
                with pytest.raises(ChatError, match=sentence):
                    await ask(ChatSession(backend), "Hi")
    with scripted(words("x")) as server:
        server.status_reply = {"kv_tokens": 50, "defaults": {}, "more": "x" * (3 << 20)}
        async with RemoteBackend(server.url, None, None) as backend:
            assert backend.kv_tokens is None  # a reply that nobody needs is no reason to end
        server.models = {"data": [{"id": "x" * (3 << 20)}]}
        with pytest.raises(ChatError, match=sentence):
            await RemoteBackend(server.url, None, None).__aenter__()


async def test_only_a_newline_ends_an_event() -> None:
    text = "a\u2028b\u0085c\u001dd"  # str.splitlines would cut at each
    lines = b'data: {"choices":[{"delta":{"content":"%s"}}]}\r\n\r\n' % text.encode().replace(b"\x1d", b"\\u001d")
    with scripted([lines[:40], lines[40:], *words("!")]) as server:
        async with RemoteBackend(server.url, None, None) as backend:
            assert await ask(ChatSession(backend), "Hi") == [Piece("answer", text), Piece("answer", "!")]


async def test_refusals(server: ScriptedServer) -> None:
    with pytest.raises(UsageError, match="has no model third; it has scripted, second"):
        await RemoteBackend(server.url, None, "third").__aenter__()
    async with RemoteBackend(server.url, None, None) as backend:
        session = ChatSession(backend)
        server.status = 400
        with pytest.raises(ChatError, match="The server answers 400: too long"):
            await ask(session, "Hi")
        assert session.messages == []
        server.stop()
        with pytest.raises(ChatError, match=r"The connection to http://127\.0\.0\.1:\d+/v1 failed"):
            await ask(session, "Hi")
    for address, reason in (
        ("127.0.0.1:1", r"nothing listens there; is the server running\?"),
        ("nosuch.invalid", r"[A-Z][^\[]+\."),  # the system's words, without the number of its error
        ("http://[", ""),
        ("http://a..b", ""),
    ):
        pattern = rf"^There is no answer from http://.*/v1: {reason}$" if reason else "There is no answer from"
        with pytest.raises(ChatError, match=pattern):
            await RemoteBackend(address, None, None).__aenter__()


async def test_the_wrong_scheme_is_guessed() -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1 << 16)  # what lies unread when a socket is closed resets it
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    for context, scheme, sentence in (
        (None, "https", r"\[SSL.*; does it speak http, not https\?$"),
        (tls, "http", r".*; does it speak https, not http\?$"),
        (tls, "https", r".*CERTIFICATE_VERIFY_FAILED.*; SSL_CERT_FILE may name a file of certificates to trust\.$"),
    ):
        async with await asyncio.start_server(refuse, "127.0.0.1", 0, ssl=context) as listening:
            address = f"{scheme}://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
            with pytest.raises(ChatError, match=f"^There is no answer from {address}/v1: {sentence}"):
                await RemoteBackend(address, None, None).__aenter__()


async def test_a_question_asked_again_in_vain_keeps_its_answer(server: ScriptedServer) -> None:
    async with RemoteBackend(server.url, None, None) as backend:
        session = ChatSession(backend)
        await ask(session, "Hi")
        before = list(session.messages)
        server.status = 500
        for question in (session.undo(to_replace=True), "another"):
            assert question is not None
            with pytest.raises(ChatError):
                await ask(session, question)
            assert session.messages == before
        server.status = 200
        session.undo(to_replace=True)
        await ask(session, "Hi")
        assert session.messages == before
        session.undo()
        server.status = 500
        with pytest.raises(ChatError):
            await ask(session, "Hi")
        assert session.messages == []


async def test_a_server_that_is_none(server: ScriptedServer) -> None:
    for models in ([], {"data": []}, {"data": 5}, {"data": True}, {"data": "x"}, {"data": [{"id": 3}]}):
        server.models = models
        with pytest.raises(ChatError, match="names no models"):
            await RemoteBackend(server.url, None, None).__aenter__()


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("localhost:8000", "http://localhost:8000/v1"),
        ("http://h:1/", "http://h:1/v1"),
        ("https://h/v1/", "https://h/v1"),
        ("http://h/v1beta/openai/", "http://h/v1beta/openai"),
        ("http://h/api/v3", "http://h/api/v3"),
    ],
)
def test_addresses(text: str, url: str) -> None:
    assert base_url(text) == url


@pytest.mark.parametrize("text", ["", "ftp://x", "http://", "::", "http://h:99999", "h:0", "http://h/caf\udce9"])
def test_no_address(text: str) -> None:
    with pytest.raises(UsageError, match="--url"):
        base_url(text)


@pytest.mark.parametrize("variable", [("HTTP_PROXY", "foo://x"), ("SSL_CERT_FILE", "/nowhere/ca.pem")])
async def test_an_environment_that_allows_no_connection(
    variable: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(*variable)
    with pytest.raises(UsageError, match=r"No connection can be made .* check HTTP_PROXY"):
        RemoteBackend("http://127.0.0.1:1", None, None)
