"""POST /v1/chat/completions.

Owns: the shape of chat replies and chunks. The handler only strings the parts together: body -> checks -> template ->
runtime -> reply. Reasoning is written as `reasoning_content` and as `reasoning`, since clients look for either
(--reasoning-field picks one).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from litestar import Request, post

from qwen3app.errors import RequestError
from qwen3app.runtime import ChoiceDelta, Generation
from qwen3app.runtime.params import MAX_TOP_LOGPROBS, GenerationParams
from qwen3app.server.access_log import record_of
from qwen3app.server.chat_prompt import chat_prompt
from qwen3app.server.offload import LOGPROB_CHARACTERS, off_loop
from qwen3app.server.openai_errors import ApiError
from qwen3app.server.replies import (
    chat_logprobs,
    continuous_usage,
    new_id,
    prompt_logprobs_object,
    timings_object,
    to_json,
    usage_object,
)
from qwen3app.server.requests import (
    ChatBody,
    check_prompt_logprobs,
    read_body,
    refuse_unsupported,
    sampling_params,
)
from qwen3app.server.sse import EventStream, JsonReply, Reply, read_all, while_wanted
from qwen3app.server.structured import constraint_of
from qwen3app.server.thinking import thinking_of
from qwen3app.server.tools import ToolRequest, answer_constraint, bias_against_calls, call_object, tool_request
from qwen3app.text.call_stream import CallPolicy

if TYPE_CHECKING:
    from qwen3app.server.state import ServerState
    from qwen3app.text.template import RenderedPrompt
    from qwen3app.text.tokenizer import Tokenizer
    from qwen3app.text.tool_calls import ToolCall


@post("/v1/chat/completions", status_code=200)
async def create_chat_completion(request: Request[Any, Any, Any]) -> Reply:
    """Answers a conversation."""
    state: ServerState = request.app.state.server
    record = record_of(request.scope)
    body = await read_body(request, ChatBody)
    model, runtime = state.ready()
    state.check_model(body.model)
    refuse_unsupported(body)
    thinking = thinking_of(body, state.settings)
    tools = tool_request(body)
    params = with_tools(replace(chat_params(body), thinking_budget=thinking.budget), tools, model.tokenizer)
    constraint = answer_constraint(tools, constraint_of(body))
    if constraint is not None:
        compiled = await while_wanted(request.receive, runtime.constraints.compile(constraint))
        params = replace(params, constraint=compiled)

    def render() -> RenderedPrompt:
        return chat_prompt(model.template, body, thinking, tools.definitions)

    prompt = await off_loop(len(await request.body()), render)
    check_prompt_logprobs(body, len(prompt.ids), 1)
    generation = runtime.generate(
        prompt.ids,
        params,
        thinking=prompt.thinking,
        split_reasoning=True,
        param="messages",
        length_param=length_field(body),
    )
    record.generation = generation
    fields = state.settings.reasoning_fields if thinking.shown else ()
    if body.stream:
        chunks = ChatChunks(state.model_name, body, generation, model.tokenizer, fields)
        return EventStream(generation, chunks, state.heartbeat)
    reply = ChatReply(generation, model.tokenizer, fields)
    await read_all(generation, request.receive, reply.take)
    return JsonReply(await off_loop(reply.n_characters, lambda: to_json(reply.finish(state.model_name, body))))


def length_field(body: ChatBody) -> str | None:
    """The field that limits the answer, if there is one: max_completion_tokens wins over max_tokens."""
    for name in ("max_completion_tokens", "max_tokens"):
        if getattr(body, name) is not None:
            return name
    return None


def chat_params(body: ChatBody) -> GenerationParams:
    """The body's sampling fields."""
    field = length_field(body)
    max_tokens = None if field is None else getattr(body, field)
    if max_tokens is not None and max_tokens < 1:
        raise RequestError(f"{field} must be at least 1, got {max_tokens}.", field)
    if body.top_logprobs and not body.logprobs:
        raise RequestError("top_logprobs needs logprobs true.", "top_logprobs")
    for name in ("top_logprobs", "prompt_logprobs"):
        value = getattr(body, name)
        if value is not None and not 0 <= value <= MAX_TOP_LOGPROBS:
            raise RequestError(f"{name} must be from 0 to {MAX_TOP_LOGPROBS}, got {value}.", name)
    top = body.prompt_logprobs or 0
    return sampling_params(
        body,
        max_tokens=max_tokens,
        logprobs=bool(body.logprobs),
        top_logprobs=max(body.top_logprobs or 0, top),
        prompt_logprobs=body.prompt_logprobs is not None,
    )


def with_tools(params: GenerationParams, tools: ToolRequest, tokenizer: Tokenizer) -> GenerationParams:
    """The parameters with what the request says about tools."""
    if tools.policy == CallPolicy.NONE:
        params = replace(params, logit_bias=bias_against_calls(params.logit_bias, tokenizer))
    return replace(params, calls=tools.policy)


class ChatChunks:
    """Deltas as chat.completion.chunk events. Everything but the delta is made once per request."""

    def __init__(
        self,
        model_name: str,
        body: ChatBody,
        generation: Generation,
        tokenizer: Tokenizer,
        reasoning_fields: Sequence[str],
    ) -> None:
        """reasoning_fields: the names under which a thought is shown; none: it is not."""
        self._generation = generation
        self._reasoning = b",".join([b'"%s":%%b' % name.encode() for name in reasoning_fields])
        self._n_reasoning = len(reasoning_fields)
        self._tokenizer = tokenizer
        self._logprobs = bool(body.logprobs)
        self._n_top = body.top_logprobs or 0
        self._token_ids = bool(body.return_token_ids)
        options = body.stream_options
        self._usage = bool(options and options.include_usage)
        self._running_usage = bool(options and options.continuous_usage_stats)
        head = to_json(
            {
                "id": new_id("chatcmpl"),
                "object": "chat.completion.chunk",
                "created": int(time.time()),
                "model": model_name,
            }
        )
        self._head = b"data: " + head[:-1]
        self._prefixes = [self._head + b',"choices":[{"index":%d,"delta":{' % i for i in range(generation.n_choices)]
        self._begun = [False] * generation.n_choices
        self._n_calls = [0] * generation.n_choices
        self._plain = not (self._logprobs or self._token_ids or self._running_usage)

    is_heavy = False  # a chat stream tells of no prompt

    def encode(self, deltas: list[ChoiceDelta]) -> bytes:
        return b"".join([self._encode(delta) for delta in deltas])

    def _encode(self, delta: ChoiceDelta) -> bytes:
        choice, content, reasoning, _, finish_reason, _, calls = delta
        if finish_reason == "error":
            finish_reason = None  # the error event that follows says it
        if reasoning and not self._n_reasoning:
            delta, reasoning = delta._replace(reasoning=""), ""
            if not (content or calls or delta.tokens or finish_reason):
                return b""
        if self._plain and finish_reason is None and self._begun[choice] and not reasoning and not calls:
            if not content:
                return b""
            return b'%s"content":%s},"logprobs":null,"finish_reason":null}]}\n\n' % (
                self._prefixes[choice],
                to_json(content),
            )
        return self._encode_any(delta, finish_reason)

    def _encode_any(self, delta: ChoiceDelta, finish_reason: str | None) -> bytes:
        """The general case: first and last chunks, reasoning, tool calls, logprobs."""
        choice, content, reasoning, calls = delta.choice, delta.content, delta.reasoning, delta.calls
        if reasoning and (content or calls):  # two events: clients read a delta as one or the other
            first = self._encode_any(delta._replace(content="", calls=()), None)
            return first + self._encode_any(delta._replace(reasoning="", tokens=None), finish_reason)
        if content and calls:
            first = self._encode_any(delta._replace(calls=()), None)
            return first + self._encode_any(delta._replace(content="", tokens=None), finish_reason)
        if len(calls) > 1:  # openai's stream() helper loses the end of all but one call of a chunk
            first = self._encode_any(delta._replace(calls=calls[:1]), None)
            return first + self._encode_any(delta._replace(calls=calls[1:], tokens=None), finish_reason)
        if calls:
            head, arguments = self._call_deltas(choice, calls[0])
            return self._event(delta, head, None) + self._event(delta._replace(tokens=None), arguments, finish_reason)
        if reasoning:
            return self._event(delta, self._reasoning % ((to_json(reasoning),) * self._n_reasoning), finish_reason)
        field = b'"content":%s' % to_json(content) if content or self._begun[choice] else b""
        return self._event(delta, field, finish_reason)

    def _call_deltas(self, choice: int, call: ToolCall) -> tuple[bytes, bytes]:
        """A call in two deltas, as OpenAI writes them: what it is, then its arguments. Some clients drop arguments that
        come with the name. Both come at the call's end: before that nobody can tell that it is one."""
        index = self._n_calls[choice]
        self._n_calls[choice] += 1
        head = {"index": index, **call_object(call), "function": {"name": call.name, "arguments": ""}}
        arguments = {"index": index, "function": {"arguments": call.arguments}}
        return b'"tool_calls":%s' % to_json([head]), b'"tool_calls":%s' % to_json([arguments])

    def _event(self, delta: ChoiceDelta, field: bytes, finish_reason: str | None) -> bytes:
        """One event: a field of the delta (or none, b""), and what stands beside the delta."""
        choice = delta.choice
        fields = [field] if field else []
        if not self._begun[choice]:
            if choice and (self._logprobs or not self._begun[choice - 1]):
                return self._opening(choice) + self._event(delta, field, finish_reason)
            self._begun[choice] = True
            fields.insert(0, b'"role":"assistant"')
        tail = [b'},"logprobs":']
        if self._logprobs and delta.tokens:
            tokens = [info._replace(top=info.top[: self._n_top]) for info in delta.tokens]
            tail.append(to_json({"content": chat_logprobs(self._tokenizer, tokens), "refusal": None}))
        else:
            tail.append(b"null")
        tail.append(b',"finish_reason":%s' % to_json(finish_reason))
        if finish_reason is not None:
            tail.append(b',"stop_reason":%s' % to_json(delta.matched_stop))
        if self._token_ids:
            tail.append(b',"token_ids":%s' % to_json([info.id for info in delta.tokens or ()]))
        tail.append(b"}]")
        if self._running_usage:
            n_tokens = self._generation.tokens_by_choice[choice]
            tail.append(b',"usage":%s' % to_json(continuous_usage(self._generation, n_tokens)))
        return self._prefixes[choice] + b",".join(fields) + b"".join(tail) + b"}\n\n"

    def _opening(self, choice: int) -> bytes:
        """Empty first deltas of this choice and those before it. openai's stream() helper keeps choices in a list, in
        which one that comes too early takes another one's place, and counts logprobs of a first delta twice."""
        events = []
        for i in range(choice + 1):
            if not self._begun[i]:
                self._begun[i] = True
                empty = ChoiceDelta(i, "", "", None, None, None)
                events.append(self._event(empty, b'"role":"assistant","content":""', None))
        return b"".join(events)

    def end(self) -> bytes:
        if not self._usage:
            return b""
        usage, timings = usage_object(self._generation.usage), timings_object(self._generation)
        return self._head + b',"choices":[],"usage":%s,"timings":%s}\n\n' % (to_json(usage), to_json(timings))


class ChatReply:
    """Deltas gathered into one chat.completion."""

    def __init__(self, generation: Generation, tokenizer: Tokenizer, reasoning_fields: Sequence[str]) -> None:
        """reasoning_fields: as ChatChunks."""
        self._generation = generation
        self._tokenizer = tokenizer
        self._reasoning_fields = reasoning_fields
        self._deltas: list[list[ChoiceDelta]] = [[] for _ in range(generation.n_choices)]

    def take(self, deltas: list[ChoiceDelta]) -> None:
        for delta in deltas:
            self._deltas[delta.choice].append(delta)

    @property
    def n_characters(self) -> int:
        """About how large the reply is."""
        return LOGPROB_CHARACTERS * self._generation.n_logprobs

    def finish(self, model_name: str, body: ChatBody) -> dict[str, Any]:
        """The reply. Raises ApiError where there is none to give."""
        generation = self._generation
        reply: dict[str, Any] = {
            "id": new_id("chatcmpl"),
            "object": "chat.completion",
            "created": int(time.time()),
            "model": model_name,
            "choices": [self._choice(i, deltas, body) for i, deltas in enumerate(self._deltas)],
            "usage": usage_object(generation.usage),
            "timings": timings_object(generation),
            "system_fingerprint": None,
        }
        if body.prompt_logprobs is not None:
            infos = generation.prompt_logprobs or []
            shown = (info._replace(top=info.top[: body.prompt_logprobs]) for info in infos)
            reply["prompt_logprobs"] = prompt_logprobs_object(self._tokenizer, shown)
        if body.return_token_ids:
            reply["prompt_token_ids"] = list(generation.prompts[0])
        return reply

    def _choice(self, index: int, deltas: list[ChoiceDelta], body: ChatBody) -> dict[str, Any]:
        content = "".join([delta.content for delta in deltas])
        reasoning = "".join([delta.reasoning for delta in deltas]) or None
        if not deltas or deltas[-1].finish_reason is None:
            raise ApiError(500, "The answer ended without a reason.", code="generation_failed")
        calls = [call for delta in deltas for call in delta.calls]
        message: dict[str, Any] = {
            "role": "assistant",
            "content": content if content or (reasoning is None and not calls) else None,
            "refusal": None,
            **dict.fromkeys(self._reasoning_fields, reasoning),
        }
        if calls:
            message["tool_calls"] = [call_object(call) for call in calls]
        tokens = [info for delta in deltas for info in delta.tokens or ()]
        logprobs = None
        if body.logprobs:
            shown = [info._replace(top=info.top[: body.top_logprobs or 0]) for info in tokens]
            logprobs = {"content": chat_logprobs(self._tokenizer, shown), "refusal": None}
        choice = {
            "index": index,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": deltas[-1].finish_reason,
            "stop_reason": deltas[-1].matched_stop,
        }
        if body.return_token_ids:
            choice["token_ids"] = [info.id for info in tokens]
        return choice
