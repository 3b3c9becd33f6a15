"""Matchers handed over to the engine: what it says under them is what it says under their masks, token by token."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from qwen3app.abi import matchers as module
from qwen3app.abi.engine import Engine
from qwen3app.abi.matchers import Matcher
from qwen3app.abi.types import EngineOptions, EngineRequest, EventKind, FinishCode
from qwen3app.errors import EngineError, Status, UsageError
from qwen3app.runtime.constraints import GrammarTokens
from qwen3app.text.tokenizer import Tokenizer

SCHEMA = {
    "type": "array",
    "items": {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"enum": ["red", "日本", ""]}}},
}
GRAMMARS = {
    "json": f"start: %json {json.dumps(SCHEMA)}",
    "regex": "start: /[a-z]{3,9}( [A-Z]+)*[.!?]/",
    "tool call": 'start: <tool_call> "x" /.{4}/ </tool_call>',
    "any": "start: /(.|\\n)*/",
}


@pytest.fixture(scope="module")
def tokenizer(tiny_model_dir: Path) -> Tokenizer:
    return Tokenizer.from_dir(tiny_model_dir)


@pytest.fixture(scope="module")
def tokens(tokenizer: Tokenizer) -> GrammarTokens:
    return GrammarTokens(tokenizer)


@pytest.fixture(scope="module")
def engine(tiny_model_dir: Path, tokenizer: Tokenizer) -> Iterator[Engine]:
    options = EngineOptions(device="cpu", threads=2, kv_bytes=1 << 26, n_token_ids=tokenizer.n_ids)
    with Engine.open(tiny_model_dir, options) as engine:
        yield engine
        stats = engine.stats()
        assert not stats.failed and (stats.n_running, stats.blocks_used) == (0, 0)


Said = tuple[list[int], int, int]  # tokens, finish reason, the end's token


def ask(seed: int, **fields: bool) -> EngineRequest:
    return EngineRequest([5, 6, 7], max_tokens=60, seed=seed, constrained=True, **fields)


def by_matcher(engine: Engine, matcher: Matcher, requests: list[EngineRequest]) -> list[Said]:
    """All at once."""
    ids = [engine.submit(request) for request in requests]
    for i in ids:
        engine.set_matcher(i, 0, 0, matcher.clone())
    said: dict[int, list[int]] = {i: [] for i in ids}
    ends: dict[int, tuple[int, int]] = {}
    while len(ends) < len(ids):
        batch = engine.poll(60_000)
        assert batch.events, "the engine makes no progress"
        for event in batch.events:
            if event.kind == EventKind.TOKEN:
                said[event.request].append(event.token)
            else:
                ends[event.request] = (event.finish_reason, event.token)
    return [(said[i], *ends[i]) for i in ids]


def by_masks(engine: Engine, matcher: Matcher, request: EngineRequest) -> Said:
    """The same matcher asked here, its masks given one by one."""
    matcher = matcher.clone()
    id = engine.submit(request)
    said: list[int] = []
    mask = matcher.mask()
    while True:
        assert mask is not None
        if mask:
            engine.set_mask(id, 0, len(said), mask)
        mask = b""
        batch = engine.poll(60_000)
        assert batch.events, "the engine makes no progress"
        for event in batch.events:
            if event.kind == EventKind.FINISHED:
                return said, event.finish_reason, event.token
            said.append(event.token)
            if event.token not in engine.info().eos_ids:
                assert matcher.consume(event.token)
                mask = matcher.mask()


@pytest.mark.parametrize("name", GRAMMARS)
def test_matcher_and_masks_say_the_same(engine: Engine, tokens: GrammarTokens, name: str) -> None:
    matcher = tokens.matcher(GRAMMARS[name])
    assert matcher.error() is None
    requests = [ask(seed) for seed in range(12)]
    together = by_matcher(engine, matcher, requests)
    assert together == [by_masks(engine, matcher, request) for request in requests]
    assert len({tuple(said) for said, _, _ in together}) > 6
    assert all(reason in (FinishCode.STOP, FinishCode.LENGTH) for _, reason, _ in together)


def test_where_eos_cannot_come_the_matcher_ends_the_sample(
    engine: Engine, tokenizer: Tokenizer, tokens: GrammarTokens
) -> None:
    matcher = tokens.matcher('start: "yes" | "no"')
    for ignored, (said, reason, last) in zip(
        (False, True),
        by_matcher(engine, matcher, [ask(1), ask(1, ignore_eos=True)]),
        strict=True,
    ):
        text = [token for token in said if token not in tokenizer.eos_ids]
        assert tokenizer.decode(text) in ("yes", "no") and reason == FinishCode.STOP
        assert (said == text) == ignored and (last == -1) == ignored


def test_a_refused_matcher_stays_usable_and_a_taken_one_is_gone(engine: Engine, tokens: GrammarTokens) -> None:
    matcher = tokens.matcher(GRAMMARS["regex"])
    with pytest.raises(EngineError) as caught:
        engine.set_matcher(1 << 40, 0, 0, matcher)
    assert caught.value.status == Status.NOT_FOUND and matcher.mask()
    id = engine.submit(ask(3))
    engine.set_matcher(id, 0, 0, matcher.clone())
    with pytest.raises(EngineError, match="has a matcher"):
        engine.set_matcher(id, 0, 0, matcher)
    assert engine.cancel(id)
    while not any(event.kind == EventKind.FINISHED for event in engine.poll(60_000).events):
        pass
    assert matcher.mask()


def test_llguidances_interface_is_the_one_that_is_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its structs have no size field: the defaults that it writes must come out where they are declared."""
    ffi, lib = module._library()
    init = ffi.new("LlgConstraintInit *")
    lib.llg_constraint_init_set_defaults(init, ffi.NULL)
    limits = init.limits
    assert (limits.max_items_in_row, limits.initial_lexer_fuel, limits.step_lexer_fuel) == (2000, 1_000_000, 200_000)
    assert (limits.step_max_items, limits.max_lexer_states, limits.max_grammar_size) == (50_000, 250_000, 500_000)
    assert limits.precompute_large_lexemes and limits.verbose_errors and not init.ff_tokens_ok
    assert module.library_version().startswith("llguidance@1.9.")
    assert list(module.call_addresses()) == list(module.CALLS)

    monkeypatch.setattr(module, "_VERSION", "llguidance@0.")
    with pytest.raises(UsageError, match=r"needs llguidance@0\.x"):
        module._library.__wrapped__()
