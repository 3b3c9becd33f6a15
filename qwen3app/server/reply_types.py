"""The shapes of replies, for the OpenAPI document and for the tests that hold replies to it.

Replies are put together elsewhere, field by field and partly as bytes, because that is what runs per token; nothing
here runs while the server serves. A field that is missing unless asked for is UNSET by default.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType


class Shape(Struct, forbid_unknown_fields=True):
    """All fields of an object are here."""


class Error(Shape):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorObject(Shape):
    """OpenAI's error."""

    error: Error


class PromptTokensDetails(Shape):
    cached_tokens: int


class CompletionTokensDetails(Shape):
    reasoning_tokens: int


class Usage(Shape):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | UnsetType = UNSET  # not in continuous usage
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class Timings(Shape):
    """null: did not happen."""

    queue_ms: float | None
    cache_n: int
    prompt_n: int
    prompt_ms: float | None
    prompt_per_second: float | None
    predicted_n: int
    predicted_ms: float | None
    predicted_per_second: float | None


FinishReason = Literal["stop", "length", "tool_calls"]
Object = dict[str, Any]


class TopLogprob(Shape):
    token: str
    logprob: float | None
    bytes: list[int] | None


class TokenLogprob(Shape):
    token: str
    logprob: float | None
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Shape):
    content: list[TokenLogprob] | None
    refusal: None


class FunctionCall(Shape):
    name: str
    arguments: str


class ToolCall(Shape):
    id: str
    type: Literal["function"]
    function: FunctionCall
    index: int | UnsetType = UNSET


class ChatMessage(Shape):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | UnsetType | None = UNSET
    reasoning: str | UnsetType | None = UNSET
    tool_calls: list[ToolCall] | UnsetType | None = UNSET


class ChatChoice(Shape):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: str | int | None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(Shape):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    timings: Timings
    system_fingerprint: None
    prompt_logprobs: list[Object | None] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class FunctionDelta(Shape):
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class ToolCallDelta(Shape):
    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionDelta | UnsetType = UNSET


class ChatDelta(Shape):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(Shape):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletionChunk(Shape):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET


class CompletionLogprobs(Shape):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float | None] | None]
    text_offset: list[int]


class CompletionChoice(Shape):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | int | UnsetType | None = UNSET
    prompt_logprobs: list[Object | None] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class Completion(Shape):
    """A reply, and in a stream each of its events."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET


class ModelCard(Shape):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    name: str
    max_model_len: int


class ModelList(Shape):
    object: Literal["list"]
    data: list[ModelCard]


class Tokens(Shape):
    tokens: list[int]
    count: int
    max_model_len: int
    token_strs: list[str] | None


class Text(Shape):
    prompt: str


class StatusDefaults(Shape):
    """null: the model says nothing about it."""

    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None


class ServerStatus(Shape):
    """kv_usage: share of the KV cache that running requests use, 0 to 1; kv_tokens: what all of it holds; suggestions:
    questions that the model brings for the page, null where it brings none; note: a sentence about the model, null
    where there is none."""

    model: str
    version: str
    device: str
    max_context: int
    slots: int
    running: int
    waiting: int
    kv_usage: float
    kv_tokens: int
    generated_tokens: int
    thinking: bool
    defaults: StatusDefaults
    suggestions: list[str] | None
    note: str | None
