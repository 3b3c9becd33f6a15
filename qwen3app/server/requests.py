"""Request bodies: their fields, reading them, and turning the sampling fields into GenerationParams.

Unknown fields are ignored, as clients send many. A field that asks for something this server cannot do is refused:
silence would be worse. Ranges are checked by runtime/params.py, messages by the text layer.
"""

from __future__ import annotations

import asyncio
import codecs
import json
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from qwen3app.errors import RequestError
from qwen3app.runtime import GenerationParams
from qwen3app.server.json_size import MEASURED_BYTES, check_size, json_size
from qwen3app.server.openai_errors import ApiError, no_json
from qwen3app.text.errors import TextError, check_unicode

if TYPE_CHECKING:
    from litestar import Request

BodyType = TypeVar("BodyType", bound=msgspec.Struct)

# What curl sends with -d and no header; the body is JSON all the same.
_FORM = "application/x-www-form-urlencoded"
# To find the field of a lone surrogate the body is read again, more slowly: 3 ms for this many values.
_SEARCHED_BYTES, _SEARCHED_VALUES = 256 * 1024, 16_384
MAX_BIASES = 32_768  # enough to ban all tokens of a script; takes 20 ms of the event loop


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingBody(msgspec.Struct):
    """Fields that chat and completions share."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    n: int | None = None
    best_of: int | None = None
    logit_bias: dict[str, float] | None = None
    ignore_eos: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None
    prompt_logprobs: int | None = None
    return_token_ids: bool | None = None
    # Refused unless neutral, see NEUTRAL.
    use_beam_search: Any = None
    allowed_token_ids: Any = None
    bad_words: Any = None
    logits_processors: Any = None
    truncate_prompt_tokens: Any = None
    response_format: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    guided_whitespace_pattern: Any = None
    guided_json_object: Any = None
    # Constraints as other servers name them: refused, see structured.py.
    grammar: Any = None
    json_schema: Any = None
    regex: Any = None
    ebnf: Any = None
    structural_tag: Any = None


class ChatBody(SamplingBody, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Any
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None  # null: yes
    continue_final_message: bool | None = None  # null: no
    chat_template_kwargs: dict[str, Any] | None = None
    enable_thinking: bool | None = None
    reasoning_effort: str | None = None
    reasoning: Any = None
    thinking: Any = None
    thinking_budget: int | None = None
    thinking_token_budget: int | None = None
    include_reasoning: bool | None = None  # null: yes
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None  # null: yes
    functions: list[Any] | None = None
    function_call: Any = None
    # Refused unless neutral, see NEUTRAL.
    modalities: Any = None
    audio: Any = None
    web_search_options: Any = None
    chat_template: Any = None
    documents: Any = None


class CompletionBody(SamplingBody, kw_only=True):
    """POST /v1/completions."""

    prompt: Any
    suffix: str | None = None
    echo: bool | None = None
    logprobs: int | None = None


class TokenizeBody(msgspec.Struct):
    """POST /tokenize: `prompt` or `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: Any = None
    tools: list[Any] | None = None
    add_generation_prompt: bool | None = None  # null: yes
    continue_final_message: bool | None = None  # null: no
    chat_template_kwargs: dict[str, Any] | None = None
    enable_thinking: bool | None = None
    reasoning_effort: str | None = None
    reasoning: Any = None
    thinking: Any = None
    thinking_budget: int | None = None
    thinking_token_budget: int | None = None
    include_reasoning: bool | None = None  # ignored
    add_special_tokens: bool | None = None  # ignored: Qwen3's tokenizer adds none
    return_token_strs: bool | None = None


class DetokenizeBody(msgspec.Struct):
    """POST /detokenize."""

    tokens: list[int]
    model: str | None = None


async def read_body(request: Request[Any, Any, Any], kind: type[BodyType]) -> BodyType:
    """The request's JSON body. Raises what openai_errors knows."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type not in ("", "application/json", "text/json", _FORM) and not content_type.endswith("+json"):
        raise ApiError(
            415, f"The content type {content_type[:100]!r} is not supported; send application/json.", param=None
        )
    encoding = request.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise ApiError(415, f"The content encoding {encoding[:100]!r} is not supported; send the body as it is.")
    data = await request.body()
    if len(data) > MEASURED_BYTES:
        await asyncio.to_thread(check_size, data)
    return decode_body(data, kind)


def decode_body(data: bytes, kind: type[BodyType]) -> BodyType:
    """JSON to a body, with a clear place for text that is no Unicode."""
    try:
        return msgspec.json.decode(data.removeprefix(codecs.BOM_UTF8), type=kind)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as error:
        if (b"\\ud" in data or b"\\uD" in data) and not _is_searched(data):
            raise RequestError(
                f"{no_json(error)}; escapes like \\ud800 must come in pairs.", code="invalid_json"
            ) from None
        _find_surrogate(data)
        if not data:
            raise RequestError("The body is empty; send a JSON object.", code="invalid_json") from None
        if b"\0" in data[:2] or data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise RequestError("The body is UTF-16 or UTF-32; send JSON as UTF-8.", code="invalid_json") from None
        raise error
    except (UnicodeDecodeError, RecursionError):
        raise RequestError(
            "The body is not valid JSON: it is nested too deeply or is no UTF-8.", code="invalid_json"
        ) from None


def _is_searched(data: bytes) -> bool:
    if len(data) > _SEARCHED_BYTES:
        return False
    size = json_size(data)
    return size.nests + size.values <= _SEARCHED_VALUES


def _find_surrogate(data: bytes) -> None:
    """msgspec stops at a lone surrogate with a vague sentence; name the field and the character instead."""
    if b"\\ud" not in data.lower():
        return
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return
    stack: list[tuple[str, Any]] = [("", value)]
    while stack:
        path, item = stack.pop()
        if isinstance(item, str):
            try:
                check_unicode(item, path or "the body")
            except TextError as error:
                raise RequestError(f"{error}", path or None, "invalid_unicode") from None
        elif isinstance(item, dict):
            stack += [(f"{path}.{_ascii(key)}" if path else _ascii(key), each) for key, each in item.items()]
            stack += [(f"a key of {path or 'the body'}", key) for key in item]
        elif isinstance(item, list):
            stack += [(f"{path}[{i}]", each) for i, each in enumerate(item)]


def _ascii(key: str) -> str:
    return key.encode("ascii", "backslashreplace").decode()


# Fields of other servers that would change the answer, and the values with which they do not.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "use_beam_search": (None, False),
    "allowed_token_ids": (None, []),
    "bad_words": (None, []),
    "logits_processors": (None, []),
    "truncate_prompt_tokens": (None,),
    "modalities": (None, [], ["text"]),
    "audio": (None,),
    "web_search_options": (None,),
    "chat_template": (None,),
    "documents": (None, []),
}


def refuse_unsupported(body: SamplingBody) -> None:
    """Raises the 400 for features that the server does not have."""
    for name, neutral in NEUTRAL.items():
        value = getattr(body, name, None)
        if not any(type(value) is type(same) and value == same for same in neutral):  # 0 is not false
            raise RequestError(f"{name} is not supported by this server; remove it.", name, "unsupported_parameter")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise RequestError(
            "best_of is not supported unless it equals n; remove it.", "best_of", "unsupported_parameter"
        )
    if isinstance(body, ChatBody) and (body.functions or body.function_call not in (None, "none", "auto")):
        name = "functions" if body.functions else "function_call"
        raise RequestError(f"{name} is not supported; send tools and tool_choice.", name, "unsupported_parameter")
    if isinstance(body, CompletionBody) and body.suffix:
        raise RequestError(
            "suffix is not supported; write the model's fill-in-the-middle tokens into the prompt.",
            "suffix",
            "unsupported_parameter",
        )


MAX_PROMPT_LOGPROBS = 262_144


def check_prompt_logprobs(body: SamplingBody, n_tokens: int, n_choices: int) -> None:
    """n_tokens: of all prompts, for one choice each. Refuses what would be a reply of more than some 20 MB, whose
    writing holds up every stream."""
    if body.prompt_logprobs is None:
        return
    n_tokens *= n_choices
    n_entries = n_tokens * (1 + body.prompt_logprobs)
    if n_entries > MAX_PROMPT_LOGPROBS:
        raise RequestError(
            f"prompt_logprobs {body.prompt_logprobs} for {n_tokens} prompt tokens would be up to {n_entries} "
            f"entries; at most {MAX_PROMPT_LOGPROBS} are given. Ask for fewer alternatives, or send less at once.",
            "prompt_logprobs",
        )


def sampling_params(
    body: SamplingBody, *, max_tokens: int | None, logprobs: bool, top_logprobs: int, prompt_logprobs: bool = False
) -> GenerationParams:
    """The fields that both faces share, as the runtime wants them. Ranges are checked there."""
    stop = body.stop
    if body.cache_salt == "":
        raise RequestError("cache_salt is empty; leave it out or give it at least one character.", "cache_salt")
    if body.prompt_logprobs is not None and body.stream:
        raise RequestError("prompt_logprobs cannot be streamed; send stream false.", "prompt_logprobs")
    return GenerationParams(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        repetition_penalty=body.repetition_penalty,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        seed=body.seed,
        stop=(stop,) if isinstance(stop, str) else tuple(stop or ()),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        include_stop=bool(body.include_stop_str_in_output),
        max_tokens=max_tokens,
        min_tokens=body.min_tokens or 0,
        n=1 if body.n is None else body.n,
        logprobs=logprobs,
        top_logprobs=top_logprobs,
        prompt_logprobs=prompt_logprobs,
        logit_bias=_logit_bias(body.logit_bias),
        ignore_eos=bool(body.ignore_eos),
        skip_special=body.skip_special_tokens is not False,
        priority=body.priority or 0,
        cache_salt=body.cache_salt or "",
        return_tokens=bool(body.return_token_ids),
    )


def _logit_bias(bias: dict[str, float] | None) -> dict[int, float]:
    result = {}
    if bias is not None and len(bias) > MAX_BIASES:
        raise RequestError(f"logit_bias takes at most {MAX_BIASES} ids, got {len(bias)}.", "logit_bias")
    for key, value in (bias or {}).items():
        if not (key.isascii() and key.isdigit() and len(key) < 11):
            raise RequestError(f"logit_bias has the key {key[:50]!r}; keys are token ids.", "logit_bias")
        result[int(key)] = value
    return result
