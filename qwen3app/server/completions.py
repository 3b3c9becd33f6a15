"""POST /v1/completions: raw text, one prompt or many, as strings or token ids.

Owns: the shape of text_completion replies and chunks, and echo. Text that spells a control token becomes that token
here, as the tokenizer does it; chat is the face where it does not.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from litestar import Request, post

from qwen3app.errors import RequestError
from qwen3app.runtime import ChoiceDelta, Generation, TokenInfo
from qwen3app.runtime.params import MAX_TOP_LOGPROBS, GenerationParams
from qwen3app.server.access_log import record_of
from qwen3app.server.offload import LOGPROB_CHARACTERS, off_loop
from qwen3app.server.replies import (
    CompletionLogprobs,
    continuous_usage,
    new_id,
    prompt_logprobs_object,
    timings_object,
    to_json,
    usage_object,
)
from qwen3app.server.requests import (
    CompletionBody,
    check_prompt_logprobs,
    read_body,
    refuse_unsupported,
    sampling_params,
)
from qwen3app.server.sse import EventStream, JsonReply, Reply, read_all, while_wanted
from qwen3app.server.structured import constraint_of

if TYPE_CHECKING:
    from qwen3app.server.state import ServerState
    from qwen3app.text.tokenizer import Tokenizer

DEFAULT_MAX_TOKENS = 16
_MAX_PROMPTS = 4096
_IDS_AT_ONCE = 16_384  # that are checked; between, Python's lock is free


class Prompt(NamedTuple):
    """One prompt. text: as the client wrote it, or None where it sent ids."""

    ids: Sequence[int]
    text: str | None


@post("/v1/completions", status_code=200)
async def create_completion(request: Request[Any, Any, Any]) -> Reply:
    """Continues raw text."""
    state: ServerState = request.app.state.server
    record = record_of(request.scope)
    body = await read_body(request, CompletionBody)
    model, runtime = state.ready()
    state.check_model(body.model)
    refuse_unsupported(body)
    params = completion_params(body)
    constraint = constraint_of(body)
    if constraint is not None:
        compiled = await while_wanted(request.receive, runtime.constraints.compile(constraint))
        params = replace(params, constraint=compiled)
    vocab = model.info.vocab
    prompts = await off_loop(len(await request.body()), lambda: read_prompts(body.prompt, model.tokenizer, vocab))
    check_prompt_logprobs(body, sum(len(prompt.ids) for prompt in prompts), params.n)
    length_param = None if body.max_tokens is None else "max_tokens"
    generation = await runtime.generate_in_turns([each.ids for each in prompts], params, length_param=length_param)
    record.generation = generation
    shape = CompletionShape(state.model_name, body, generation, model.tokenizer, prompts)
    if body.stream:
        return EventStream(generation, CompletionChunks(shape), state.heartbeat)
    reply = CompletionReply(shape)
    await read_all(generation, request.receive, reply.take)
    return JsonReply(await off_loop(reply.n_characters, lambda: to_json(reply.finish())))


def completion_params(body: CompletionBody) -> GenerationParams:
    """The body's sampling fields. Nothing said: 16 tokens. 0 tokens only with echo."""
    max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    if max_tokens < 0 or (max_tokens == 0 and not body.echo):
        raise RequestError(f"max_tokens must be at least 1 (or 0 with echo), got {max_tokens}.", "max_tokens")
    for name in ("logprobs", "prompt_logprobs"):
        value = getattr(body, name)
        if value is not None and not 0 <= value <= MAX_TOP_LOGPROBS:
            raise RequestError(f"{name} must be from 0 to {MAX_TOP_LOGPROBS}, got {value}.", name)
    return sampling_params(
        body,
        max_tokens=max_tokens,
        logprobs=body.logprobs is not None,
        top_logprobs=max(body.logprobs or 0, body.prompt_logprobs or 0),
        # max_tokens 0 is the engine's "score the prompt", so the scores are asked for even if nobody reads them
        prompt_logprobs=body.prompt_logprobs is not None
        or bool(body.echo and (body.logprobs is not None or max_tokens == 0)),
    )


def read_prompts(value: Any, tokenizer: Tokenizer, vocab: int) -> list[Prompt]:
    """`prompt`: a string, a list of strings, a list of ids, or a list of lists of ids."""
    if isinstance(value, str):
        return [Prompt(tokenizer.encode_raw(value, "prompt"), value)]
    if not isinstance(value, list) or not value:
        raise RequestError(
            "prompt must be a string, a list of strings, a list of token ids or a list of those.", "prompt"
        )
    if type(value[0]) is int:
        return [Prompt(_check_ids(value, vocab, "prompt"), None)]
    if len(value) > _MAX_PROMPTS:
        raise RequestError(f"prompt has {len(value)} entries; one request takes at most {_MAX_PROMPTS}.", "prompt")
    if all(isinstance(item, str) for item in value):
        batch = tokenizer.encode_raw_batch(value, [f"prompt[{i}]" for i in range(len(value))])
        prompts = [Prompt(ids, text) for ids, text in zip(batch, value, strict=True)]
    else:
        prompts = [Prompt(_check_ids(item, vocab, f"prompt[{i}]"), None) for i, item in enumerate(value)]
    for i, prompt in enumerate(prompts):
        if not prompt.ids:
            raise RequestError(f"prompt[{i}] has no tokens; at least one is needed.", f"prompt[{i}]")
    return prompts


def _check_ids(value: Any, vocab: int, param: str) -> list[int]:
    if not isinstance(value, list) or not all(type(token) is int for token in value):
        raise RequestError(
            f"{param} is neither text nor a list of token ids; all entries must be of the same kind.", param
        )
    for begin in range(0, len(value), _IDS_AT_ONCE):
        some = value[begin : begin + _IDS_AT_ONCE]
        if min(some) < 0 or max(some) >= vocab:
            wrong = min(some) if min(some) < 0 else max(some)
            raise RequestError(f"{param} holds the token id {wrong}; ids are 0 to {vocab - 1}.", param)
    return value


class CompletionShape:
    """What stream and plain replies share: the head, and each choice's echo and logprobs."""

    def __init__(
        self,
        model_name: str,
        body: CompletionBody,
        generation: Generation,
        tokenizer: Tokenizer,
        prompts: list[Prompt],
    ) -> None:
        self.body = body
        self.generation = generation
        self.tokenizer = tokenizer
        self.head = {
            "id": new_id("cmpl"),
            "object": "text_completion",
            "created": int(time.time()),
            "model": model_name,
        }
        self._prompts = prompts
        self._n_top = body.logprobs or 0
        self._logprobs = (
            [CompletionLogprobs(tokenizer) for _ in range(generation.n_choices)] if body.logprobs is not None else None
        )

    def prompt_of(self, choice: int) -> int:
        return choice // self.generation.params.n

    def echo(self, choice: int) -> str:
        """The prompt's text: the client's own, or what its ids say."""
        if not self.body.echo:
            return ""
        prompt = self._prompts[self.prompt_of(choice)]
        return prompt.text if prompt.text is not None else self.tokenizer.decode(prompt.ids, skip_special=False)

    def echo_tokens(self, choice: int) -> list[TokenInfo]:
        """The prompt's tokens with their logprobs."""
        if not self.body.echo or self._logprobs is None:
            return []
        return self.generation.prompt_logprobs_of(self.prompt_of(choice))

    def logprobs(self, choice: int, tokens: Sequence[TokenInfo]) -> dict[str, list[Any]] | None:
        if self._logprobs is None:
            return None
        return self._logprobs[choice].take(info._replace(top=info.top[: self._n_top]) for info in tokens)


class CompletionChunks:
    """Deltas as text_completion events."""

    def __init__(self, shape: CompletionShape) -> None:
        self._shape = shape
        options = shape.body.stream_options
        self._usage = bool(options and options.include_usage)
        self._running_usage = bool(options and options.continuous_usage_stats)
        self._token_ids = bool(shape.body.return_token_ids)
        self._head = b"data: " + to_json(shape.head)[:-1]
        n_choices = shape.generation.n_choices
        self._prefixes = [self._head + b',"choices":[{"index":%d,"text":' % i for i in range(n_choices)]
        self._begun = [not shape.body.echo] * n_choices
        self._plain = shape.body.logprobs is None and not (self._running_usage or self._token_ids)

    @property
    def is_heavy(self) -> bool:
        """Until each choice has echoed its prompt with a log-probability and alternatives for every token."""
        return self._shape.body.logprobs is not None and not all(self._begun)

    def encode(self, deltas: list[ChoiceDelta]) -> bytes:
        return b"".join([self._encode(delta) for delta in deltas])

    def _encode(self, delta: ChoiceDelta) -> bytes:
        choice, content, _, tokens, finish_reason, matched, _ = delta
        if finish_reason == "error":
            finish_reason = None  # the error event that follows says it
        if self._plain and finish_reason is None and self._begun[choice]:
            if not content:
                return b""
            return b'%s%s,"logprobs":null,"finish_reason":null}]}\n\n' % (self._prefixes[choice], to_json(content))
        shape = self._shape
        infos: list[TokenInfo] = list(tokens or ())
        if not self._begun[choice]:
            self._begun[choice] = True
            content = shape.echo(choice) + content
            infos = shape.echo_tokens(choice) + infos
        parts = [
            self._prefixes[choice],
            to_json(content),
            b',"logprobs":',
            to_json(shape.logprobs(choice, infos)),
            b',"finish_reason":',
            to_json(finish_reason),
        ]
        if finish_reason is not None:
            parts.append(b',"stop_reason":%s' % to_json(matched))
        if self._token_ids:
            parts.append(b',"token_ids":%s' % to_json([info.id for info in tokens or ()]))
        parts.append(b"}]")
        if self._running_usage:
            n_tokens = shape.generation.tokens_by_choice[choice]
            parts.append(b',"usage":%s' % to_json(continuous_usage(shape.generation, n_tokens)))
        parts.append(b"}\n\n")
        return b"".join(parts)

    def end(self) -> bytes:
        if not self._usage:
            return b""
        generation = self._shape.generation
        usage, timings = usage_object(generation.usage), timings_object(generation)
        return self._head + b',"choices":[],"usage":%s,"timings":%s}\n\n' % (to_json(usage), to_json(timings))


class CompletionReply:
    """Deltas gathered into one text_completion."""

    def __init__(self, shape: CompletionShape) -> None:
        self._shape = shape
        self._deltas: list[list[ChoiceDelta]] = [[] for _ in range(shape.generation.n_choices)]

    def take(self, deltas: list[ChoiceDelta]) -> None:
        for delta in deltas:
            self._deltas[delta.choice].append(delta)

    @property
    def n_characters(self) -> int:
        """About how large the reply is."""
        return LOGPROB_CHARACTERS * self._shape.generation.n_logprobs

    def finish(self) -> dict[str, Any]:
        """The reply."""
        shape = self._shape
        choices = [self._choice(i, deltas) for i, deltas in enumerate(self._deltas)]
        return {
            **shape.head,
            "choices": choices,
            "usage": usage_object(shape.generation.usage),
            "timings": timings_object(shape.generation),
        }

    def _choice(self, index: int, deltas: list[ChoiceDelta]) -> dict[str, Any]:
        shape = self._shape
        tokens = [info for delta in deltas for info in delta.tokens or ()]
        choice = {
            "index": index,
            "text": shape.echo(index) + "".join([delta.content for delta in deltas]),
            "logprobs": shape.logprobs(index, shape.echo_tokens(index) + tokens),
            "finish_reason": deltas[-1].finish_reason if deltas else None,
            "stop_reason": deltas[-1].matched_stop if deltas else None,
        }
        if shape.body.prompt_logprobs is not None:
            infos = shape.generation.prompt_logprobs_of(shape.prompt_of(index))
            shown = (info._replace(top=info.top[: shape.body.prompt_logprobs]) for info in infos)
            choice["prompt_logprobs"] = prompt_logprobs_object(shape.tokenizer, shown)
        if shape.body.return_token_ids:
            choice["token_ids"] = [info.id for info in tokens]
            choice["prompt_token_ids"] = list(shape.generation.prompts[shape.prompt_of(index)])
        return choice
