"""Grammars by llguidance's C interface, which lies in the library of its Python package.

Owns: the few declarations of llguidance.h that are needed (version 1.9), and the life of what they make. Refuses to
know: how constraints are written. By the C interface rather than the package's classes, for three reasons: every call
runs without Python's lock (taking in one token may take 150 ms); the engine asks a matcher for its masks on threads of
its own, without Python (`Engine.set_matcher`); and tokenizing never comes back into Python.

Threads: a Matcher belongs to one thread at a time, but `clone` may be called from any.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qwen3app.errors import UsageError

_DECLARATIONS = """
typedef struct {
  size_t max_items_in_row;
  uint64_t initial_lexer_fuel;
  uint64_t step_lexer_fuel;
  size_t step_max_items;
  size_t max_lexer_states;
  size_t max_grammar_size;
  bool precompute_large_lexemes;
  bool verbose_errors;
} LlgParserLimits;
typedef struct {
  const void* tokenizer;
  uint32_t log_buffer_level;
  uint32_t log_stderr_level;
  bool ff_tokens_ok;
  bool backtrack_ok;
  LlgParserLimits limits;
  uint64_t later[16]; /* fields that later versions add */
} LlgConstraintInit;
typedef struct {
  size_t struct_size;
  uint32_t vocab_size;
  uint32_t tok_eos;
  const uint32_t* token_lens;
  const uint8_t* token_bytes;
  const char* tokenizer_json;
  bool tokenize_assumes_string;
  void* tokenize_fn;
  bool use_approximate_greedy_tokenize_fn;
  const void* tokenize_user_data;
  const char* const* slices;
  const uint32_t* tok_eos_extra;
  uint32_t tok_eos_extra_count;
} LlgTokenizerInitV2;
const char* llg_get_version(void);
void llg_constraint_init_set_defaults(LlgConstraintInit* init, const void* tokenizer);
void* llg_new_tokenizer_v2(const LlgTokenizerInitV2* init, char* error, size_t error_len);
void llg_free_tokenizer(void* tokenizer);
void* llg_new_matcher(const LlgConstraintInit* init, const char* type, const char* data);
void* llg_clone_matcher(const void* matcher);
void llg_free_matcher(void* matcher);
int32_t llg_matcher_consume_token(void* matcher, uint32_t token);
int32_t llg_matcher_compute_mask_into(void* matcher, uint32_t* mask, size_t n_bytes);
bool llg_matcher_is_stopped(const void* matcher);
bool llg_matcher_is_accepting(void* matcher);
const char* llg_matcher_get_error(void* matcher);
"""
_VERSION = "llguidance@1.9."  # whose structs these are
# qwen3_matcher's functions -> llguidance's.
CALLS = {
    "consume_token": "llg_matcher_consume_token",
    "compute_mask": "llg_matcher_compute_mask_into",
    "is_stopped": "llg_matcher_is_stopped",
    "is_accepting": "llg_matcher_is_accepting",
    "get_error": "llg_matcher_get_error",
    "free": "llg_free_matcher",
}
# Marks a control token's bytes: it matches only where a grammar names it.
_CONTROL = b"\xff"


@functools.cache
def _library() -> tuple[Any, Any]:
    import cffi  # type: ignore[import-untyped]
    from llguidance import _lib as package

    ffi = cffi.FFI()
    ffi.cdef(_DECLARATIONS)
    try:
        lib = ffi.dlopen(package.__file__)
        version = ffi.string(lib.llg_get_version()).decode()
    except (OSError, AttributeError) as error:
        raise UsageError(f"llguidance's library {package.__file__} cannot be used: {error}.") from None
    if not version.startswith(_VERSION):
        raise UsageError(f"llguidance's library is {version.split()[0]}; this program needs {_VERSION}x.")
    return ffi, lib


def library_version() -> str:
    """As llguidance says it."""
    ffi, lib = _library()
    return str(ffi.string(lib.llg_get_version()).decode())


@functools.cache
def call_addresses() -> Mapping[str, int]:
    """The functions that an engine calls, by their names in qwen3_matcher."""
    ffi, lib = _library()
    return {name: int(ffi.cast("uintptr_t", ffi.addressof(lib, theirs))) for name, theirs in CALLS.items()}


@dataclass(frozen=True)
class TokenBytes:
    """The bytes of a tokenizer's ids as llguidance takes them, also in another process."""

    lengths: bytes  # of each id's, as uint32
    text: bytes
    eos_ids: tuple[int, ...]

    @classmethod
    def of(cls, pieces: Sequence[bytes], control_ids: Collection[int], eos_ids: Sequence[int]) -> TokenBytes:
        """pieces: the bytes of each id. control_ids: those that are no text."""
        controls = frozenset(control_ids)
        marked = [_CONTROL + piece if i in controls else piece for i, piece in enumerate(pieces)]
        return cls(array("I", map(len, marked)).tobytes(), b"".join(marked), tuple(eos_ids))


class Vocabulary:
    """A tokenizer's ids as llguidance sees them."""

    def __init__(self, tokens: TokenBytes) -> None:
        ffi, lib = _library()
        init = ffi.new("LlgTokenizerInitV2 *")
        init.struct_size = ffi.sizeof("LlgTokenizerInitV2")
        lengths = ffi.from_buffer("uint32_t[]", tokens.lengths)
        text = ffi.from_buffer("uint8_t[]", tokens.text)
        first, *others = tokens.eos_ids
        extra = ffi.new("uint32_t[]", others)
        init.vocab_size = len(lengths)
        init.tok_eos = first
        init.token_lens, init.token_bytes = lengths, text
        init.tok_eos_extra, init.tok_eos_extra_count = extra, len(extra)
        # A way to split texts is for grammars that force one, so that only the model's own is allowed. Here all are.
        init.use_approximate_greedy_tokenize_fn = True
        error = ffi.new("char[]", 1024)
        pointer = lib.llg_new_tokenizer_v2(init, error, len(error))
        if pointer == ffi.NULL:
            reason = ffi.string(error).decode("utf-8", "replace")
            raise UsageError(f"The tokenizer cannot be used for constraints: {reason}.")
        self.n_words = (init.vocab_size + 31) // 32
        self._pointer = ffi.gc(pointer, lib.llg_free_tokenizer)

    def matcher(self, grammar: str, limits: Mapping[str, int]) -> Matcher:
        """A grammar at its begin; see Matcher.error. limits: fields of LlgParserLimits, the others are llguidance's."""
        ffi, lib = _library()
        init = ffi.new("LlgConstraintInit *")
        lib.llg_constraint_init_set_defaults(init, self._pointer)
        init.log_buffer_level = init.log_stderr_level = 0
        init.limits.verbose_errors = False
        for name, value in limits.items():
            setattr(init.limits, name, value)
        return Matcher(self, lib.llg_new_matcher(init, b"guidance", grammar.encode()))


class Matcher:
    """A grammar, and how far a text has come in it."""

    def __init__(self, vocabulary: Vocabulary, pointer: Any) -> None:
        """Use Vocabulary.matcher. pointer: becomes this object's."""
        ffi, lib = _library()
        self._vocabulary = vocabulary
        self._pointer = ffi.gc(pointer, lib.llg_free_matcher)

    def clone(self) -> Matcher:
        """One that is as far and goes on by itself. 5 ms for the largest grammars."""
        return Matcher(self._vocabulary, _library()[1].llg_clone_matcher(self._pointer))

    def consume(self, token: int) -> bool:
        """Goes on by a token. False: the matcher has failed."""
        return bool(_library()[1].llg_matcher_consume_token(self._pointer, token) == 0)

    def mask(self) -> bytes | None:
        """What may come next, one bit for each id. None: the matcher has failed."""
        ffi, lib = _library()
        mask = ffi.new("uint32_t[]", self._vocabulary.n_words)
        if lib.llg_matcher_compute_mask_into(self._pointer, mask, ffi.sizeof(mask)) != 0:
            return None
        return bytes(ffi.buffer(mask))

    def is_stopped(self) -> bool:
        """Nothing but an end may follow, or the matcher has failed."""
        return bool(_library()[1].llg_matcher_is_stopped(self._pointer))

    def is_accepting(self) -> bool:
        """The text may end here."""
        return bool(_library()[1].llg_matcher_is_accepting(self._pointer))

    def error(self) -> str | None:
        """Why it has failed, where it has."""
        ffi, lib = _library()
        text = lib.llg_matcher_get_error(self._pointer)
        return None if text == ffi.NULL else str(ffi.string(text).decode("utf-8", "replace"))

    def hand_over(self, take: Callable[[int], None]) -> None:
        """Calls `take` with the address of llguidance's matcher, which is the receiver's to free unless it raises."""
        ffi, _ = _library()
        take(int(ffi.cast("uintptr_t", self._pointer)))
        ffi.gc(self._pointer, None)
        self._pointer = ffi.NULL
