"""`LoadedModel`: a model directory made ready: tokenizer, chat template, sampling defaults and the engine.

The tokenizer and the template are read in a thread while the engine opens, so that neither waits for the other. The
engine needs one number of the tokenizer before it opens, the count of ids that have a token; it is read from
tokenizer.json directly (0.05 s instead of the 0.5 s that the whole tokenizer takes) and compared afterwards; should the
tokenizer count otherwise, it is right, and the engine is opened again.
Every failure is one sentence, an AppError.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from qwen3app.abi import Engine, EngineInfo, EngineOptions
from qwen3app.errors import EngineError, ModelError, OptionError, Status
from qwen3app.hub.names import model_name
from qwen3app.runtime.constraints import GrammarTokens
from qwen3app.runtime.interruptible import Progress
from qwen3app.text.errors import TextError
from qwen3app.text.generation_config import SamplingDefaults, load_sampling_defaults
from qwen3app.text.template import ChatTemplate
from qwen3app.text.tokenizer import Tokenizer

Log = Callable[[int, str], None]  # qwen3_log_level, line


@dataclass
class LoadedModel:
    """Everything that one model directory gives. Close it when done."""

    directory: Path
    name: str
    tokenizer: Tokenizer
    template: ChatTemplate
    defaults: SamplingDefaults
    engine: Engine
    info: EngineInfo
    max_queue: int = EngineOptions.max_queue  # samples that may wait
    kv_limits: bool = False  # the context is as long as a KV pool allows whose size was asked for
    grammar_tokens: GrammarTokens | None = None  # for constraints; None: made when the first one comes
    load_phases: dict[str, float] = field(default_factory=dict)  # phase -> seconds, in their order and without gaps
    text_seconds: float = 0.0  # what tokenizer and template took, on a thread beside the other phases

    @classmethod
    def load(
        cls,
        directory: Path,
        options: EngineOptions,
        progress: Progress | None = None,
        *,
        name: str | None = None,
        on_log: Log | None = None,
        constraints: bool = False,
    ) -> LoadedModel:
        """Blocks until the model is ready; call it in a thread from asyncio. constraints: prepares for them, which
        later would stall all threads for most of a second."""
        clock = _PhaseClock("ids", progress)
        check_directory(directory)
        text: dict[str, Any] = {}

        def load_text() -> None:
            start = time.perf_counter()
            try:
                tokenizer = Tokenizer.from_dir(directory)
                text["tokenizer"] = tokenizer
                text["template"] = ChatTemplate.from_dir(directory, tokenizer)
                text["defaults"] = load_sampling_defaults(directory)
                if constraints and tokenizer.eos_ids:
                    text["grammar_tokens"] = GrammarTokens(tokenizer)
            except BaseException as error:
                text["error"] = error
            text["seconds"] = time.perf_counter() - start

        thread = threading.Thread(target=load_text, name="load-text", daemon=True)
        thread.start()
        engine: Engine | None = None
        n_token_ids: int | None = None
        try:
            n_token_ids = _count_token_ids(directory / "tokenizer.json")
            if n_token_ids is None:  # a file of another shape or a broken one: the tokenizer itself will tell
                thread.join()
                _raise_text_error(text)
                n_token_ids = text["tokenizer"].n_ids
            clock.enter("library")
            engine = Engine.open(directory, replace(options, n_token_ids=n_token_ids), clock.progress, on_log)
            clock.enter("text")
            thread.join()
            _raise_text_error(text)
            if text["tokenizer"].n_ids != n_token_ids:
                n_token_ids = text["tokenizer"].n_ids
                engine.close()
                engine = Engine.open(directory, replace(options, n_token_ids=n_token_ids), clock.progress, on_log)
                clock.enter("text")
            info = engine.info()
        except BaseException as error:
            thread.join()
            if engine is not None:
                engine.close()
            if not isinstance(error, EngineError):
                raise
            if error.status == Status.INVALID_ARGUMENT:
                _raise_vocab_mismatch(directory, n_token_ids or 0)
            raise opening_error(error) from None
        clock.enter("")
        return cls(
            directory=directory,
            name=name or model_name(directory),
            tokenizer=text["tokenizer"],
            template=text["template"],
            defaults=text["defaults"],
            engine=engine,
            info=info,
            max_queue=options.max_queue,
            kv_limits=options.kv_bytes > 0 and options.max_context == 0,
            grammar_tokens=text.get("grammar_tokens"),
            load_phases=clock.seconds,
            text_seconds=text["seconds"],
        )

    def close(self) -> None:
        """Stops the engine and frees its memory. May be called twice."""
        self.engine.close()


class _PhaseClock:
    """Cuts the time of a load into phases without gaps, the engine's own by its progress calls, which it hands on."""

    def __init__(self, first: str, progress: Progress | None) -> None:
        self.seconds: dict[str, float] = {}
        self._progress = progress
        self._phase = first
        self._start = time.perf_counter()

    def enter(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[self._phase] = self.seconds.get(self._phase, 0.0) + now - self._start
        self._phase, self._start = phase, now

    def progress(self, phase: str, done: int, total: int) -> bool | None:
        if phase != self._phase:
            self.enter(phase)
        return self._progress(phase, done, total) if self._progress is not None else None


def check_directory(directory: Path) -> None:
    """ModelError for what cannot be a model directory."""
    if not directory.exists():
        raise ModelError(f"There is no model directory {directory}; check the path given with --model.")
    if not directory.is_dir():
        raise ModelError(f"{directory} is a file; --model takes the directory that holds config.json and its weights.")
    if not (directory / "config.json").is_file():
        raise ModelError(f"{directory} has no config.json, so it is no model directory; check --model.")


class _AddedToken(msgspec.Struct):
    id: int


class _TokenizerModel(msgspec.Struct):
    vocab: dict[str, int]


class _TokenizerFile(msgspec.Struct):
    """The part of tokenizer.json that says which ids exist."""

    model: _TokenizerModel
    added_tokens: list[_AddedToken] = []


# The library speaks of its options; people know the flags.
_FLAGS = {
    "max_context": "--max-ctx",
    "yarn_factor": "--yarn",
    "kv_bytes": "--kv-gb (in bytes)",
    "gpu_memory_fraction": "--gpu-memory-fraction",
    "max_slots": "--slots",
    "token_budget": "--token-budget",
    "prefill_spread": "--prefill-spread",
    "max_queue": "--max-queue",
    "threads": "--threads",
    "device": "--device",
}


def in_flags(sentence: str) -> str:
    """An engine's sentence about an option, with the flag's name in place of the option's."""
    sentence = sentence.removeprefix("option ")
    names = "|".join(name for name in _FLAGS if "_" in name)
    sentence = re.sub(rf"\b({names})\b", lambda match: _FLAGS[match.group()], sentence)
    first, space, rest = sentence.partition(" ")  # the words that are also ordinary ones: only as the subject
    return _FLAGS.get(first, first) + space + rest


def opening_error(error: EngineError) -> EngineError:
    """What a person is told who has chosen the options by flags."""
    kind = OptionError if error.status == Status.INVALID_ARGUMENT else EngineError
    return kind(error.status, in_flags(str(error)))


# Of the released models without YaRN, for whom it is documented. One of another length was trained for that length, as
# the model in the box is, or has been extended already.
_QWEN3_POSITIONS = 40_960


def more_context(info: EngineInfo, kv_limits: bool = False) -> str | None:
    """What makes room for longer requests: a larger --max-ctx or --kv-gb as long as the model itself allows more, then
    --yarn where the model is made for it. None: nothing."""
    if info.max_context >= info.model_max_context:
        return "--yarn" if info.model_max_context == _QWEN3_POSITIONS else None
    return "a larger --kv-gb" if kv_limits else "a larger --max-ctx"


def _count_token_ids(path: Path) -> int | None:
    """1 + the highest id in tokenizer.json, without building the tokenizer. None: the file has another shape."""
    if not path.is_file():
        return None  # a pipe would be waited for
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_TokenizerFile)
    except (OSError, ValueError, msgspec.MsgspecError):
        return None
    ids = [added.id for added in file.added_tokens]
    ids.append(max(file.model.vocab.values(), default=-1))
    return 1 + max(ids)


def _raise_text_error(text: dict[str, Any]) -> None:
    error = text.get("error")
    if error is None:
        return
    if isinstance(error, TextError):
        raise ModelError(str(error)) from None
    if isinstance(error, OSError):
        raise ModelError(f"{error.filename} cannot be read: {error.strerror}.") from None
    raise error


def _raise_vocab_mismatch(directory: Path, n_ids: int) -> None:
    """The engine refuses more ids than its vocabulary has; say which file is at fault, if it is that."""
    import json

    try:
        vocab = json.loads((directory / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    if isinstance(vocab, int) and n_ids > vocab:
        raise ModelError(
            f"{directory / 'tokenizer.json'} has {n_ids} token ids, but config.json says vocab_size {vocab}; "
            "the tokenizer belongs to another model."
        ) from None
