"""The chat's own errors: one sentence for the person at the terminal."""

from __future__ import annotations

from qwen3app.errors import AppError


class ChatError(AppError):
    """A command or a question that cannot be done."""


class ContextFull(ChatError):
    """The conversation has no room for another answer."""
