"""The prompt of a chat request, for the routes that answer it and that count it. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qwen3app.server.requests import ChatBody, TokenizeBody
    from qwen3app.server.thinking import Thinking
    from qwen3app.text.template import ChatTemplate, RenderedPrompt


def chat_prompt(
    template: ChatTemplate, body: ChatBody | TokenizeBody, thinking: Thinking, tools: Sequence[Any] | None
) -> RenderedPrompt:
    """Raises TextError. A template that opens every thought (Thinking-2507) knows no switch: where none is wanted, the
    thought is closed behind it. A message that is to be continued stays as it is."""
    continued = bool(body.continue_final_message)
    prompt = template.render(
        body.messages,
        tools=tools,
        add_generation_prompt=body.add_generation_prompt is not False and not continued,
        continue_final_message=continued,
        template_kwargs=thinking.template_kwargs,
        asked_kwargs=body.chat_template_kwargs or (),
    )
    return template.without_thought(prompt) if thinking.off and not continued else prompt
