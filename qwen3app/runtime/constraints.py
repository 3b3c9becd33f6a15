"""Constraints: compiled off the event loop, and for each sample what may come before its grammar begins.

Owns: the tokenizer as llguidance sees it, the threads that compile, what is kept of it, and a sample's phases. Refuses
to know: how constraints are written in requests or as grammars (text/grammars.py), what can be used (compiler/), and
when masks are due (runtime/masks.py). In the grammar itself masks are the engine's, which asks the matcher.

The rules:
- The constraint holds for the answer. While a thought is open, by the prompt or by the model's first token, all but an
  end is allowed; behind it one token of newlines may pass, as the template writes them, and then the grammar begins.
- An end (EOS) is allowed only where the grammar may end.
- A control token is never text: it can come only where a grammar names it (`<tool_call>`).
- A constraint is compiled twice: in a process that can be ended (compiler/process.py), which has limits of time and
  memory and may crash, and here only what it has compiled. What is known goes through neither, and waits for nobody.

Threads: `Constraints` on the event loop; compiling on threads of its own, mostly without Python's lock, and one that
writes constraints as JSON. A SampleConstraint belongs to one thread at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import threading
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import TYPE_CHECKING, Any

from qwen3app.abi.matchers import Matcher, TokenBytes, Vocabulary
from qwen3app.compiler.checking import LIMITS, STACK_BYTES, build, compile_grammar, unusable
from qwen3app.compiler.messages import write_spec
from qwen3app.compiler.process import Asking, Compilers, shutting_down
from qwen3app.errors import EngineError, RequestError, Status
from qwen3app.text.grammars import ConstraintSpec

if TYPE_CHECKING:
    from qwen3app.text.tokenizer import Tokenizer

# Requests that may wait for a thread that compiles; each holds its body in memory.
_MAX_WAITING = 64
_WAIT_SECONDS = 5.0  # until one has the request
# A compilation takes all of a core: most of the usable ones are left to others. Each thread may have a process.
_THREADS = min(max(len(os.sched_getaffinity(0)) // 4, 1), 4)
# More than in the processes, so that what did not overflow it there does not here.
_STACK_BYTES = STACK_BYTES + (8 << 20)
# Compiled grammars that are kept; the largest that the limits allow takes some 50 MB.
_CACHE_SIZE = 32
# A first mask that takes more processor time than this tells that later ones may, too.
_SLOW_SECONDS = 0.001
# A copy that takes less is made on the event loop. 128 samples of a request take as many.
_LIGHT_SECONDS = 0.0001


class GrammarTokens:
    """A tokenizer as llguidance sees it, with the masks that need no grammar. Takes a second for 151,669 ids, most of
    it under Python's lock: make it while a model is loaded."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        if not tokenizer.eos_ids:
            raise RequestError("This model names no token that ends an answer, so answers cannot be constrained.")
        self.control_tokens = tokenizer.control_tokens
        self.think_open, self.think_close = tokenizer.think_open_id, tokenizer.think_close_id
        pieces = [tokenizer.token_bytes(token) for token in range(tokenizer.n_ids)]
        self.token_bytes = TokenBytes.of(pieces, tokenizer.added_tokens, tokenizer.eos_ids)
        self.vocabulary = Vocabulary(self.token_bytes)
        self._n_bytes = self.vocabulary.n_words * 4
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
        return self.vocabulary.matcher(grammar, LIMITS)


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


class Constraints:
    """Compiles constraints for one model."""

    def __init__(
        self, tokenizer: Tokenizer, tokens: GrammarTokens | None = None, compilers: Compilers | None = None
    ) -> None:
        """tokens: made already, while the model was loaded. compilers: instead of its own."""
        self._tokenizer = tokenizer
        self._tokens = tokens
        self._tokens_lock = threading.Lock()
        self._compilers = compilers or Compilers(self._vocabulary)
        self._lock = threading.Lock()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="write-constraint")
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="compile-constraint")
        self._closed = False
        self._n_waiting = 0
        self._cache: OrderedDict[bytes, Constraint | RequestError] = OrderedDict()

    async def compile(self, spec: ConstraintSpec) -> Constraint:
        """Raises RequestError for a constraint that cannot be met or compiled, EngineError where too many wait, or
        after `close`. Cancelled, it takes no thread and no process any more."""
        if self._closed:
            raise shutting_down()
        key, text = await asyncio.get_running_loop().run_in_executor(self._writer, self._write, spec)
        known = self._known(key) or await self._in_turn(key, text, spec.param)
        if isinstance(known, RequestError):
            raise RequestError(str(known), known.param, known.code)
        return known

    async def _in_turn(self, key: bytes, text: bytes, param: str) -> Constraint | RequestError:
        """As `_compile` has it, on the next thread that is free."""
        if self._closed:
            raise shutting_down()
        if self._n_waiting >= _MAX_WAITING:
            raise EngineError(Status.QUEUE_FULL, "Too many constraints wait to be compiled; try again later.")
        asking = Asking()
        default = threading.stack_size(_STACK_BYTES)
        try:
            job = self._pool.submit(self._compile, key, text, param, asking)
        finally:
            threading.stack_size(default)
        future = asyncio.wrap_future(job)
        self._n_waiting += 1
        future.add_done_callback(self._done)
        try:
            await asyncio.wait((future,), timeout=_WAIT_SECONDS)
            if job.cancel():  # no thread has it yet
                if self._closed:
                    raise shutting_down()
                raise EngineError(Status.QUEUE_FULL, "Too many constraints are being compiled; try later.")
            return await future
        except asyncio.CancelledError:
            future.cancel()
            asking.give_up()
            raise
        finally:
            # A refusal's traceback has this frame, and the future holds it: a cycle, that keeps all that was read.
            del future, job

    def _done(self, future: asyncio.Future[Constraint | RequestError]) -> None:
        self._n_waiting -= 1
        if not future.cancelled():
            future.exception()  # retrieved, also where nobody waits any more

    def _known(self, key: bytes) -> Constraint | RequestError | None:
        with self._lock:
            known = self._cache.get(key)
            if known is not None:
                self._cache.move_to_end(key)
            return known

    async def close(self) -> None:
        """Ends processes and threads, what they compile too: who waits for it is told that the server shuts down. May
        be called again."""
        self._closed = True
        self._writer.shutdown(wait=False)  # what it still has takes no time
        self._pool.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._compilers.close)

    # -------------------------------------------------------------------------------------------- the threads' side

    def _write(self, spec: ConstraintSpec) -> tuple[bytes, bytes]:
        """The constraint's key and JSON. Constraints are told apart by their JSON: to check a large one and to write
        its grammar takes Python a hundred times as long. Raises RequestError."""
        try:
            text = write_spec(spec)
            return hashlib.sha256(text).digest(), text
        except (UnicodeEncodeError, RecursionError):
            with contextlib.suppress(UnicodeEncodeError, RecursionError):
                build(spec, self._tokenizer.control_tokens)  # names the fault
            raise RequestError(f"{spec.param} cannot be written as JSON.", spec.param, "invalid_constraint") from None

    def _compile(self, key: bytes, text: bytes, param: str, asking: Asking) -> Constraint | RequestError:
        known = self._known(key)  # the one before this may have been the same
        if known is None:
            known = _compiled(self._ready(), self._compilers, text, param, asking)
            with self._lock:
                self._cache[key] = known
                while len(self._cache) > _CACHE_SIZE:
                    self._cache.popitem(last=False)
        return known

    def _ready(self) -> GrammarTokens:
        with self._tokens_lock:
            if self._tokens is None:
                self._tokens = GrammarTokens(self._tokenizer)
            return self._tokens

    def _vocabulary(self) -> tuple[TokenBytes, dict[str, int]]:
        tokens = self._ready()
        return tokens.token_bytes, dict(tokens.control_tokens)


def _compiled(
    tokens: GrammarTokens, compilers: Compilers, text: bytes, param: str, asking: Asking
) -> Constraint | RequestError:
    """text: the constraint as JSON."""
    reply = compilers.ask(text, param, asking)
    if reply.grammar is None:
        return RequestError(reply.fault, reply.param, "invalid_constraint")
    compiled = compile_grammar(tokens.vocabulary, reply.grammar)
    if isinstance(compiled, str):
        return unusable(param, compiled)
    begin = time.thread_time()
    compiled.matcher.clone()
    light = time.thread_time() - begin < _LIGHT_SECONDS
    slow = compiled.mask_seconds > _SLOW_SECONDS
    return Constraint(tokens, compiled.matcher, compiled.first_mask, param, slow=slow, light=light)
