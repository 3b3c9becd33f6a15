"""The errors that a person or a client may see. Each carries one sentence: what is wrong, where, and what to do.

Knows nothing of HTTP (server/openai_errors.py has the one table to status codes) and nothing of the terminal.
"""

from __future__ import annotations

from enum import IntEnum

# What may be wrong where no client can even be made.
NETWORK_VARIABLES = "HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and SSL_CERT_FILE"


# Why one request fails while the engine goes on.
BROKEN_OUTPUT = (
    "The model computed values that are no finite numbers (NaN), so its weights are broken, or the device is; "
    "`qwen3-8b verify --model DIR` checks the weights."
)


class Status(IntEnum):
    """qwen3_status of native/include/qwen3.h; a test compares the two."""

    OK = 0
    INVALID_ARGUMENT = 1
    NOT_FOUND = 2
    BAD_MODEL = 3
    UNSUPPORTED = 4
    OUT_OF_MEMORY = 5
    CONTEXT_OVERFLOW = 6
    QUEUE_FULL = 7
    TIMEOUT = 8
    CLOSED = 9
    DEVICE_ERROR = 10
    INTERNAL = 11
    CANCELLED = 12


class AppError(Exception):
    """Something that a person can act on. str(error) is one sentence."""

    is_told = False  # the sentence stands in the server's log, so that the command line need not say it


class UsageError(AppError):
    """A wrong flag, path or environment: the command line exits with code 2."""


class ModelError(AppError):
    """A model directory that cannot be used."""


class EngineError(AppError):
    """A call into libqwen3 that failed, with the library's own sentence."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status


class OptionError(EngineError, UsageError):
    """An option of the engine that it cannot have with this model: a flag's wrong value on any machine."""


class GenerationError(AppError):
    """The engine failed while a generation was running. What it had delivered until then is sound."""


class RequestError(AppError):
    """A request that is wrong in itself. `param` names the field, `code` is a word for programs."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class ContextLengthError(RequestError):
    """Prompt and output do not fit the context. param: the prompt's field. length_param: that of max_tokens, which is
    at fault where the prompt alone would fit."""

    def __init__(
        self,
        limit: int,
        n_prompt: int,
        max_tokens: int | None,
        param: str = "prompt",
        length_param: str | None = None,
    ) -> None:
        asked = "room for at least 1 token" if max_tokens is None else f"{max_tokens} tokens"
        super().__init__(
            f"This model's maximum context length is {limit} tokens. However, you requested {asked} of output and your "
            f"prompt contains {n_prompt} tokens. Shorten the prompt or ask for less output.",
            param=length_param if length_param is not None and n_prompt < limit else param,
            code="context_length_exceeded",
        )
        self.limit = limit
        self.n_prompt = n_prompt
        self.max_tokens = max_tokens
