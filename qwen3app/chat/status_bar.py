"""The line under the prompt: the model, the context used, the last answer's speed, the KV cache.

The share of the KV cache is what this conversation takes of it while it is answered, wherever the model runs. What is
only kept there for later prompts does not count: whoever needs the room gets it.
Pure: a session in, one line out. What is not known is left out, and in a narrow window what matters least goes first.
"""

from __future__ import annotations

from qwen3app.chat.sanitize import sanitize_line
from qwen3app.chat.session import ChatSession


def status_line(session: ChatSession, columns: int) -> str:
    """At most `columns` wide, for one-column characters; a long name is cut by the terminal."""
    parts = {"context": _context(session), "speed": "", "kv": "", "name": sanitize_line(session.backend.name)}
    if session.stats.tokens_per_second is not None:
        parts["speed"] = f"{session.stats.tokens_per_second:.1f} tok/s"
    if session.context_tokens is not None and session.backend.kv_tokens:
        parts["kv"] = f"KV {_percent(session.context_tokens / session.backend.kv_tokens)}"
    for dropped in ("", "kv", "name", "speed"):
        parts[dropped] = ""
        line = " · ".join(part for key in ("name", "context", "speed", "kv") if (part := parts[key]))
        if len(line) <= columns:
            return line
    return parts["context"][:columns]


def _context(session: ChatSession) -> str:
    used, limit = session.context_tokens, session.backend.max_context
    if used is None:
        return "context ?" if limit is None else f"context ? of {limit:,}"
    if limit is None:
        return f"context {used:,}"
    return f"context {used:,} of {limit:,} ({_percent(used / limit)})"


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 or share == 0 else f"{share:.1%}"
