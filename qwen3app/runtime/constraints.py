"""Constraints: compiled off the event loop, and for each sample what may come before its grammar begins.

Owns: the tokenizer as llguidance sees it, the threads that compile, the limits of both, and a sample's phases.
Refuses to know: how constraints are written in requests or as grammars (text/grammars.py), and when masks are due
(runtime/masks.py). In the grammar itself masks are the engine's, which asks the matcher.

The rules:
- The constraint holds for the answer. While a thought is open, by the prompt or by the model's first token, all but an
  end is allowed; behind it one token of newlines may pass, as the template writes them, and then the grammar begins.
- An end (EOS) is allowed only where the grammar may end.
- A control token is never text: it can come only where a grammar names it (`<tool_call>`).
- A constraint whose first mask is empty, that takes longer than COMPILE_SECONDS, or that passes llguidance's limits, is
  refused with the place of the fault. These limits count work, not time, so they do not depend on the machine.
- Nothing ends a compilation from outside. One that goes on past its time keeps its thread, and others get new ones.

Threads: `Constraints.compile` on the event loop; compiling on threads of its own, mostly without Python's lock. A
SampleConstraint belongs to one thread at a time.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from qwen3app.abi.matchers import Matcher, Vocabulary
from qwen3app.errors import EngineError, RequestError, Status
from qwen3app.text.errors import TextError
from qwen3app.text.grammars import (
    ConstraintSpec,
    Grammar,
    build_grammar,
    schema_grammar,
)
from qwen3app.text.schemas import definitions, subschemas

if TYPE_CHECKING:
    from qwen3app.text.tokenizer import Tokenizer

COMPILE_SECONDS = 5.0
# Requests that may wait for a thread that compiles; each holds its body in memory.
_MAX_WAITING = 64
# A compilation takes all of a core: most cores are left to others.
_THREADS = min(max((os.cpu_count() or 1) // 4, 1), 4)
# Compilations that may go on past their time; with as many, no new ones are begun.
_MAX_OVERDUE = 4
# Of each such thread, whatever the system's default is: text/schemas.py limits how much of it a schema can take.
_STACK_BYTES = 16 << 20
# Characters of a grammar: what one constraint may have, spelled with escapes. The schemas of many tools may pass it.
_MAX_GRAMMAR = 1 << 21
# Compiled grammars that are kept; the largest that the limits below allow takes some 50 MB.
_CACHE_SIZE = 32
# Schemas tried one by one to find the part at fault, and for how long (of a core's time, so that a busy machine finds
# the same part).
_MAX_TRIES, _LOCATE_SECONDS = 100, 0.5
# llguidance's limits. Its defaults let one mask take 30 ms and one compilation more than a second.
_LIMITS = {
    "initial_lexer_fuel": 500_000,
    "step_lexer_fuel": 100_000,
    "step_max_items": 20_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 50_000,
}
# A first mask that takes more processor time than this tells that later ones may, too.
_SLOW_SECONDS = 0.001
# A copy that takes less is made on the event loop. 128 samples of a request take as many.
_LIGHT_SECONDS = 0.0001
_NOTHING = "no text meets it"


class GrammarTokens:
    """A tokenizer as llguidance sees it, with the masks that need no grammar. Takes a second for 151,669 ids, most of
    it under Python's lock: make it while a model is loaded."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        if not tokenizer.eos_ids:
            raise RequestError("This model names no token that ends an answer, so answers cannot be constrained.")
        self.control_tokens = tokenizer.control_tokens
        self.think_open, self.think_close = tokenizer.think_open_id, tokenizer.think_close_id
        pieces = [tokenizer.token_bytes(token) for token in range(tokenizer.n_ids)]
        self._vocabulary = Vocabulary(pieces, tokenizer.added_tokens, tokenizer.eos_ids)
        self._n_bytes = self._vocabulary.n_words * 4
        ends = frozenset(tokenizer.eos_ids)
        self.end_mask = self.mask(ends)
        self.free_mask = self.mask(i for i, piece in enumerate(pieces) if piece and i not in ends)
        self.newline_ids = frozenset(i for i, piece in enumerate(pieces) if piece in (b"\n", b"\n\n"))

    def mask(self, ids: Any) -> bytes:
        """One bit per id."""
        bits = bytearray(self._n_bytes)
        for token in ids:
            bits[token >> 3] |= 1 << (token & 7)
        return bytes(bits)

    def matcher(self, grammar: str) -> Matcher:
        return self._vocabulary.matcher(grammar, _LIMITS)


class Constraint:
    """A compiled constraint; `sample` gives each sample its own."""

    def __init__(
        self, tokens: GrammarTokens, matcher: Matcher, first_mask: bytes, param: str, *, slow: bool, light: bool
    ) -> None:
        """first_mask: what the grammar may begin with. slow: masks may take long. light: a copy takes no time."""
        self.param = param
        self.slow = slow
        self.light = light
        self._tokens = tokens
        self._matcher = matcher
        self._first_mask = first_mask

    def sample(self, *, thinking: bool, may_think: bool) -> SampleConstraint:
        """thinking: the prompt ends inside a thought. may_think: a thought is looked for in the answer."""
        phase = Phase.ANSWER
        if may_think and self._tokens.think_close is not None:
            phase = Phase.THOUGHT if thinking else Phase.START
        elif thinking and may_think:
            raise RequestError(
                f"{self.param}: this model's tokenizer has no think tokens, so the end of a thought cannot be told; "
                "turn thinking off.",
                self.param,
            )
        return SampleConstraint(self, self._tokens, self._matcher, self._first_mask, phase)


class Phase(Enum):
    """Where a sample is."""

    START = "start"  # nothing has come; a thought may be opened
    THOUGHT = "thought"
    CLOSED = "closed"  # right behind a thought
    ANSWER = "answer"  # the grammar has begun


class SampleConstraint:
    """One sample's way to its grammar. `mask` is what may come next; it changes with `push`, until the phase is ANSWER:
    from there on `matcher` says it."""

    __slots__ = ("_begun_by", "_first", "_matcher", "_tokens", "constraint", "mask", "phase")

    def __init__(
        self, constraint: Constraint, tokens: GrammarTokens, matcher: Matcher, first: bytes, phase: Phase
    ) -> None:
        self.constraint = constraint
        self.phase = phase
        self._tokens = tokens
        self._matcher = matcher
        self._first = first
        self._begun_by: int | None = None  # the answer's first token, where it has been said already
        self.mask = first
        if phase is Phase.THOUGHT:
            self.mask = tokens.free_mask
        elif phase is Phase.START and tokens.think_open is not None:
            self.mask = _either(first, tokens.mask([tokens.think_open]))

    def push(self, token: int) -> None:
        """The sample has said `token`; its phase was not ANSWER."""
        phase, tokens = self.phase, self._tokens
        if phase is Phase.THOUGHT:
            if token == tokens.think_close:
                self.phase, self.mask = Phase.CLOSED, _either(self._first, tokens.mask(tokens.newline_ids))
        elif phase is Phase.START and token == tokens.think_open:
            self.phase, self.mask = Phase.THOUGHT, tokens.free_mask
        else:
            self.phase, self.mask = Phase.ANSWER, self._first
            if phase is Phase.START or token not in tokens.newline_ids:
                self._begun_by = token

    @property
    def empty(self) -> bool:
        """The grammar has begun and allows nothing but an end."""
        return self.phase is Phase.ANSWER and self._begun_by is None and self._first == self._tokens.end_mask

    def matcher(self) -> Matcher:
        """The grammar where the sample now is. Takes some milliseconds for the largest grammars."""
        matcher = self._matcher.clone()
        if self._begun_by is not None:
            matcher.consume(self._begun_by)
        return matcher


def _either(a: bytes, b: bytes) -> bytes:
    return (int.from_bytes(a, "little") | int.from_bytes(b, "little")).to_bytes(len(a), "little")


@dataclass(eq=False)
class _Compilation:
    pool: ThreadPoolExecutor
    started: list[float] = field(default_factory=list)  # when, once a thread has it
    alarm: asyncio.TimerHandle | None = None


class Constraints:
    """Compiles constraints for one model."""

    def __init__(self, tokenizer: Tokenizer, tokens: GrammarTokens | None = None) -> None:
        """tokens: made already, while the model was loaded."""
        self._tokenizer = tokenizer
        self._tokens = tokens
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._n_waiting = 0
        self._overdue: set[_Compilation] = set()
        self._cache: OrderedDict[bytes, Constraint | RequestError] = OrderedDict()

    async def compile(self, spec: ConstraintSpec) -> Constraint:
        """Raises RequestError for a constraint that cannot be met, EngineError where too many wait."""
        if self._n_waiting >= _MAX_WAITING:
            raise EngineError(Status.QUEUE_FULL, "Too many constraints wait to be compiled; try again later.")
        if len(self._overdue) >= _MAX_OVERDUE:
            raise EngineError(
                Status.QUEUE_FULL, "Too many constraints that take too long are still being compiled; try again later."
            )
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="compile-constraint")
        compilation = _Compilation(self._pool)
        default = threading.stack_size(_STACK_BYTES)
        try:
            future = asyncio.get_running_loop().run_in_executor(self._pool, self._compile, spec, compilation.started)
        finally:
            threading.stack_size(default)
        self._n_waiting += 1
        self._watch(compilation)
        future.add_done_callback(partial(self._done, compilation))
        try:
            async with asyncio.timeout(COMPILE_SECONDS):
                return await asyncio.shield(future)
        except TimeoutError:
            if not compilation.started:
                future.cancel()
                raise EngineError(Status.QUEUE_FULL, "Too many constraints are being compiled; try later.") from None
            if not future.done():  # it may have ended in this very turn of the loop
                self._go_on_without(compilation)
            raise RequestError(
                f"{spec.param} takes longer than {COMPILE_SECONDS:g} s to compile; make it simpler.",
                spec.param,
                "constraint_too_complex",
            ) from None
        except asyncio.CancelledError:
            if not compilation.started:  # behind one that never ends it would count as waiting for ever
                future.cancel()
            raise
        finally:
            # A refusal's traceback has this frame, and the future holds it: a cycle, that keeps all that was read.
            del future

    def _watch(self, compilation: _Compilation) -> None:
        """Looks again when its time is over, whether its request still waits or not."""
        left = COMPILE_SECONDS
        if compilation.started:
            left += compilation.started[0] - time.monotonic()
        if left > 0:
            compilation.alarm = asyncio.get_running_loop().call_later(left, self._watch, compilation)
        else:
            self._go_on_without(compilation)

    def _go_on_without(self, compilation: _Compilation) -> None:
        self._overdue.add(compilation)
        if self._pool is compilation.pool:
            self._pool = None
            compilation.pool.shutdown(wait=False)  # what waits there has what is left of its time

    def _done(self, compilation: _Compilation, future: asyncio.Future[Constraint]) -> None:
        self._n_waiting -= 1
        self._overdue.discard(compilation)
        if compilation.alarm is not None:
            compilation.alarm.cancel()
        if not future.cancelled():
            future.exception()  # retrieved, also where nobody waits any more

    def close(self) -> None:
        """Ends the threads; what is being compiled is not waited for."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    # -------------------------------------------------------------------------------------------- the threads' side

    def _compile(self, spec: ConstraintSpec, started: list[float]) -> Constraint:
        started.append(time.monotonic())
        with self._lock:
            if self._tokens is None:
                self._tokens = GrammarTokens(self._tokenizer)
        key = _fingerprint(spec)
        with self._lock:
            known = None if key is None else self._cache.get(key)
            if key is not None and known is not None:
                self._cache.move_to_end(key)
        if known is None:
            known = _compiled(self._tokens, _grammar(spec, self._tokens))
            with self._lock:
                if key is not None:
                    self._cache[key] = known
                while len(self._cache) > _CACHE_SIZE:
                    self._cache.popitem(last=False)
        if isinstance(known, RequestError):
            raise RequestError(str(known), known.param, known.code)
        return known


def _fingerprint(spec: ConstraintSpec) -> bytes | None:
    """Tells constraints apart by their JSON: to check a large one and to write its grammar takes Python a hundred times
    as long. None: it is no JSON, so it is like no other."""
    try:
        return hashlib.sha256(msgspec.json.encode(spec)).digest()
    except (UnicodeEncodeError, RecursionError):
        return None  # building its grammar will name the fault


def _grammar(spec: ConstraintSpec, tokens: GrammarTokens) -> Grammar:
    try:
        grammar = build_grammar(spec, tokens.control_tokens)
    except TextError as error:
        raise RequestError(str(error), error.param, "invalid_constraint") from None
    if "\0" in grammar.text:  # it would end the text in llguidance's C interface
        raise RequestError(
            f"{spec.param} has a NUL character; write it as an escape.", spec.param, "invalid_constraint"
        )
    if len(grammar.text) > _MAX_GRAMMAR:
        raise RequestError(
            f"{spec.param} is too large: its grammar has {len(grammar.text)} characters, the limit is {_MAX_GRAMMAR}.",
            spec.param,
            "invalid_constraint",
        )
    return grammar


def _compiled(tokens: GrammarTokens, grammar: Grammar) -> Constraint | RequestError:
    matcher = tokens.matcher(grammar.text)
    fault = _fault(matcher)
    if fault is None:
        begin = time.thread_time()
        mask = matcher.mask()
        slow = time.thread_time() - begin > _SLOW_SECONDS
        fault = _fault(matcher)
        if mask is not None and fault is None:
            if any(mask):
                begin = time.thread_time()
                matcher.clone()
                light = time.thread_time() - begin < _LIGHT_SECONDS
                return Constraint(tokens, matcher, mask, grammar.param, slow=slow, light=light)
            fault = _NOTHING
    place, fault = grammar.param, fault or _NOTHING
    if grammar.schemas:
        place, fault = _locate(tokens, grammar.schemas, place, fault)
    return RequestError(f"{place} cannot be used as a constraint: {fault}.", place, "invalid_constraint")


def _locate(tokens: GrammarTokens, schemas: Sequence[tuple[str, Any]], place: str, fault: str) -> tuple[str, str]:
    """The innermost schema that is at fault by itself, and its fault."""
    deadline = time.thread_time() + _LOCATE_SECONDS
    tries = _MAX_TRIES
    found, parts = place, list(schemas)
    root: dict[str, Any] = {}
    while parts:
        for where, schema in parts:
            tries -= 1
            if tries < 0 or time.thread_time() > deadline:
                return found, fault
            alone = {**root, **schema} if isinstance(schema, dict) else schema
            reason = _fault(tokens.matcher(schema_grammar(alone)))
            if reason is not None:
                found, fault = where, reason
                root = root or definitions(schema)
                # The schema false is at fault nowhere by itself: it says what must not be there.
                parts = [(where + inner, each) for inner, each in subschemas(schema) if each is not False]
                break
        else:
            return found, fault
    return found, fault


def _fault(matcher: Matcher) -> str | None:
    """Why a matcher cannot be used, in one line: llguidance's sentence without the grammar that it quotes."""
    text = matcher.error()
    if text is None:
        return None if not matcher.is_stopped() or matcher.is_accepting() else _NOTHING
    if text.startswith("NoExtension"):
        return _NOTHING
    explained = re.findall(r"^error: (.*)$", text, re.M)  # the expression parser points at the place, then explains
    if explained:
        text = explained[0]
    else:
        text = text.replace("<non-verbose/>", "").strip().split("\n", 1)[0]
        text = re.sub(r"^at \d+\(\d+\): ", "", text).removeprefix("failed to compile JSON schema: ")
    text = re.sub(r"; following special tokens are available:.*", "", text)
    for sentence, clearer in _SENTENCES:
        text = sentence.sub(clearer, text)
    return text[:300].rstrip(". ")


# Sentences of llguidance that speak of its own options, or say nothing of what to do.
_SENTENCES = (
    (re.compile(r"^Unimplemented keys: \[(.*)\]$"), r"what \1 says cannot be enforced; leave it out"),
    (re.compile(r"^Unknown format: (.*)$"), r'the format "\1" is not known; leave it out, or send a pattern'),
    (
        re.compile(r"^oneOf constraints are not supported.*"),
        "the schemas of oneOf do not exclude each other visibly; use anyOf",
    ),
)
