"""Says whether a constraint can be used: as a grammar that llguidance takes, or as a fault and its place.

Owns: llguidance's limits, what is tried of a grammar, and its sentences in words that help. Refuses to know: how
constraints are written as grammars (text/grammars.py), processes, and what answers are then held to.
The rule: a constraint whose first mask is empty, or that passes llguidance's limits, is refused with the place of the
fault. These limits count work, not time, so they do not depend on the machine.
Threads: on any, mostly without Python's lock; give it STACK_BYTES of stack.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qwen3app.abi.matchers import Matcher, Vocabulary
from qwen3app.errors import RequestError
from qwen3app.text.errors import TextError
from qwen3app.text.grammars import ConstraintSpec, Grammar, build_grammar, schema_grammar
from qwen3app.text.schemas import definitions, subschemas

# Whatever the system's default is: text/schemas.py limits how much of it a schema can take.
STACK_BYTES = 16 << 20
# Characters of a grammar: what one constraint may have, spelled with escapes. The schemas of many tools may pass it.
_MAX_GRAMMAR = 1 << 21
# Schemas tried one by one to find the part at fault, and for how long (of a core's time, so that a busy machine finds
# the same part).
_MAX_TRIES, _LOCATE_SECONDS = 100, 0.5
# llguidance's limits. Its defaults let one mask take 30 ms and one compilation more than a second.
LIMITS = {
    "initial_lexer_fuel": 500_000,
    "step_lexer_fuel": 100_000,
    "step_max_items": 20_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 50_000,
}
_NOTHING = "no text meets it"


@dataclass(frozen=True)
class Compiled:
    """first_mask: what the grammar may begin with. mask_seconds: of a core, what it took."""

    matcher: Matcher
    first_mask: bytes
    mask_seconds: float


def compile_grammar(vocabulary: Vocabulary, grammar: str) -> Compiled | str:
    """The grammar at its begin, or why it cannot be used."""
    matcher = vocabulary.matcher(grammar, LIMITS)
    fault = _fault(matcher)
    if fault is None:
        begin = time.thread_time()
        mask = matcher.mask()
        seconds = time.thread_time() - begin
        fault = _fault(matcher)
        if mask is not None and fault is None:
            return Compiled(matcher, mask, seconds) if any(mask) else _NOTHING
    return fault or _NOTHING


def check(vocabulary: Vocabulary, control_tokens: Mapping[str, int], spec: ConstraintSpec) -> str:
    """The grammar of a constraint, which has been compiled once. Raises RequestError with the place of a fault."""
    grammar = build(spec, control_tokens)
    compiled = compile_grammar(vocabulary, grammar.text)
    if isinstance(compiled, Compiled):
        return grammar.text
    place, fault = _locate(vocabulary, grammar.schemas, grammar.param, compiled)
    raise unusable(place, fault)


def unusable(place: str, fault: str) -> RequestError:
    return RequestError(f"{place} cannot be used as a constraint: {fault}.", place, "invalid_constraint")


def build(spec: ConstraintSpec, control_tokens: Mapping[str, int]) -> Grammar:
    """The grammar, not compiled. Raises RequestError."""
    try:
        grammar = build_grammar(spec, control_tokens)
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


def _locate(vocabulary: Vocabulary, schemas: Sequence[tuple[str, Any]], place: str, fault: str) -> tuple[str, str]:
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
            reason = _fault(vocabulary.matcher(schema_grammar(alone), LIMITS))
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
    (
        re.compile(r"^decimal literal invalid$"),  # of an expression, which it makes of lengths as well
        "a length or a number of repetitions is larger than 4294967295; make it smaller, or leave it out",
    ),
    (re.compile(r"^Unknown format: (.*)$"), r'the format "\1" is not known; leave it out, or send a pattern'),
    (
        re.compile(r"^oneOf constraints are not supported.*"),
        "the schemas of oneOf do not exclude each other visibly; use anyOf",
    ),
    (
        re.compile(
            r"^lexer precomputation failed.*|^initial lexer configuration \(grammar\) too big.*"
            r"|^fuel exhausted when checking relevance.*|.*too many expressions constructed.*"
        ),
        "its patterns, texts and numbers take too much work to follow; make them simpler, or fewer",
    ),
    (
        re.compile(r"^grammar size \(number of symbols\) too big \(limit for this grammar: (\d+)\).*"),
        r"its grammar has more than \1 symbols; make it smaller",
    ),
    (
        re.compile(r"^Unable to determine if regex is empty.*"),
        "whether any text meets its patterns together takes too much work to find; make them simpler, or fewer",
    ),
)
