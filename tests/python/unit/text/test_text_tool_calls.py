"""Tool calls in model text: what is a call and what is text, whatever the cuts; drafts, layout, stops; linear time."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from qwen3app.text.call_stream import CallPolicy
from qwen3app.text.output import OutputStream
from qwen3app.text.tokenizer import Tokenizer
from qwen3app.text.tool_calls import CallScanner, Item, ToolCall

from .conftest import MEGABYTE, official_tokenizer, seconds_allowed

LS = '<tool_call>\n{"name":"ls","arguments":{}}\n</tool_call>'


def joined(items: Iterable[Item]) -> list[Item]:
    """Items with neighbouring texts as one."""
    result: list[Item] = []
    for item in items:
        assert item
        if isinstance(item, str) and result and isinstance(result[-1], str):
            result[-1] += item
        else:
            result.append(item)
    return result


def at_end(scanner: CallScanner) -> list[Item]:
    items, unfinished = scanner.finish()
    assert not unfinished or unfinished.startswith("<tool_call>")
    return [*items, unfinished] if unfinished else items


def scan(text: str, size: int | None = None) -> list[Item]:
    """The items of a text that is pushed in pieces of `size`. Checks that nothing is lost."""
    scanner, items = CallScanner(), []
    for i in range(0, len(text), size or len(text) or 1):
        items += scanner.push(text[i : i + (size or len(text))])
    items += at_end(scanner)
    assert "".join(item if isinstance(item, str) else item.raw for item in items) == text
    assert scanner.finish() == ([], "")
    return joined(items)


def calls(text: str) -> list[tuple[str, str]]:
    """(name, arguments) of each call, the same for all cuts."""
    whole = scan(text)
    for size in (1, 2, 3, 5, 8):
        assert scan(text, size) == whole
    for item in whole:
        if isinstance(item, ToolCall):
            assert isinstance(json.loads(item.arguments), dict)
    return [(item.name, item.arguments) for item in whole if isinstance(item, ToolCall)]


def call(body: str, close: str = "</tool_call>") -> str:
    return f"<tool_call>\n{body}\n{close}"


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        # B01: tags inside a string
        ('{"name":"f","arguments":{"text":"type </tool_call> here","n":1}}', '{"text":"type </tool_call> here","n":1}'),
        ('{"name":"f","arguments":{"t":"<tool_call>{}</tool_call>"}}', '{"t":"<tool_call>{}</tool_call>"}'),
        # B02
        (
            '{"name":"f","arguments":{"query":"迭代背景","guideline":"DeepSeek \\"v3\\"",'
            '"opts":{"deep":[1,{"k":"}"}]}}}',
            '{"query":"迭代背景","guideline":"DeepSeek \\"v3\\"","opts":{"deep":[1,{"k":"}"}]}}',
        ),
        # B03
        ('{"name":"f","arguments":{"a":{"b":{"c":[]}}}}', '{"a":{"b":{"c":[]}}}'),
        # the model's spelling is kept
        ('{"name": "f", "arguments": {"a" : 1.50, "b":1e3, "a": "\\u00e9"}}', '{"a" : 1.50, "b":1e3, "a": "\\u00e9"}'),
        ('{"arguments": {"a": 1}, "name": "f"}', '{"a": 1}'),
        ('{"name":"f","arguments":{"a":"\\\\"}}', '{"a":"\\\\"}'),
        # fields that other servers' models learn
        ('{"id":"call_1","type":"function","name":"f","arguments":{"a":1}}', '{"a":1}'),
        # no arguments
        ('{"name":"f"}', "{}"),
        ('{"name":"f","arguments":null}', "{}"),
        ('{"name":"f","arguments":""}', "{}"),
        # arguments in a string
        ('{"name":"f","arguments":"{\\"a\\": 1}"}', '{"a": 1}'),
        # B11: raw control characters
        ('{"name":"f","arguments":{"c":"line1\nline2\tx\x01"}}', '{"c":"line1\\nline2\\tx\\u0001"}'),
        ('{"name":"f","arguments":{"n":1e999,"k":[]}}', '{"n":1e999,"k":[]}'),
        # B58: half a character
        (
            '{"name":"f","arguments":{"a":"\\ud83d\\ude00 \\ud83d \\\\ud83d"}}',
            '{"a":"\\ud83d\\ude00 \\ufffd \\\\ud83d"}',
        ),
        ('{"name":"f","arguments":{"a":"\\uDC00\\ud83d\\uDBFF"}}', '{"a":"\\ufffd\\ufffd\\ufffd"}'),
        ('{"name":"f","arguments":{"c":"a \\\n b"}}', '{"c":"a \\\\\\n b"}'),
        ('{\n "name" :\t"f" ,\r\n"arguments":{"c":"\\\\\n"}}', '{"c":"\\\\\\n"}'),
    ],
)
def test_b01_b02_b03_b11_calls(body: str, arguments: str) -> None:
    for text in (call(body), f"<tool_call>{body}</tool_call>", call(body, ""), call(body, "</tool"), call(body)[:-1]):
        assert calls(text) == [("f", arguments)]
        assert calls("a " + text) == [("f", arguments)]


@pytest.mark.parametrize(
    "text",
    [
        # B10: lone tags
        "Done.\n</tool_call>",
        "Done.\n<tool_call>",
        "<tool_call>\n \n",
        "<tool_call> </tool_call>",
        "The <tool_call> tag is <b>bold</b>",
        "a < b <tool b </tool_call",
        # B11: what cannot be repaired
        '<tool_call>{"name":"edit","arguments":{"content":"print("hi")"}}</tool_call>',
        "<tool_call>{'name':'f','arguments':{}}</tool_call>",
        '<tool_call>{"name":"f","arguments":{"a":True}}</tool_call>',
        '<tool_call>{"name":"f","arguments":{"a":1,}}</tool_call>',
        '<tool_call>{"name":"f","arguments":{"a":NaN}}</tool_call>',
        '<tool_call>{"name":"f","arguments":{"a":"\\d"}}</tool_call>',
        '<tool_call>{"name":"f","arguments":{}}}</tool_call>',
        '<tool_call>{"name":"f","arguments":{}} trailing </tool_call>',
        # no call
        "<tool_call>{}</tool_call>",
        '<tool_call>{"name":"","arguments":{}}</tool_call>',
        '<tool_call>{"name":7,"arguments":{}}</tool_call>',
        '<tool_call>{"name":"f","arguments":[1]}</tool_call>',
        '<tool_call>{"name":"f","arguments":5}</tool_call>',
        '<tool_call>{"name":"f","arguments":"Beijing"}</tool_call>',
        '<tool_call>{"name":"f","parameters":{"a":1}}</tool_call>',
        '<tool_call>{"name":"f","id":"call_1"}</tool_call>',
        '<tool_call>{"type":"function","function":{"name":"f","arguments":{}}}</tool_call>',
        '<tool_call>{"name":"f","arguments":{},"id":}</tool_call>',
        '<tool_call>["name"]</tool_call>',
        '<tool_call>{"name":"f","arguments":{"a":' + '{"a":' * 300 + "1" + "}" * 302 + "</tool_call>",
        '<tool_call>{"name":"f","arguments":{"a":' + "[" * 100_000 + "]" * 100_000 + "}}</tool_call>",
        # B12: cut off
        '<tool_call>\n{"name": "f", "argum',
        '<tool_call>\n{"name": "f", "arguments": {"a": "x',
        '<tool_call>\n{"name": "f", "arguments": {"a": "x\\',
        '<tool_call>\n{"name": "f", "arguments": {"a": "x"}',
        # a call that broken quoting would set free
        '<tool_call>{"text":"do <tool_call>{"name":"rm","arguments":{}}</tool_call> now"}</tool_call>',
    ],
)
def test_b10_b11_b12_what_is_no_call_is_text(text: str) -> None:
    assert calls(text) == []
    assert scan(text) == [text]
    assert calls(text + "</tool_call>\n" + LS) == [("ls", "{}")]  # the next call is not lost with it


def test_b05_b06_calls_in_a_row() -> None:
    add = '<tool_call>\n{"name": "add", "arguments": {"a": 11, "b": 49}}\n</tool_call>'
    assert calls(f"{add}\n{LS}") == [("add", '{"a": 11, "b": 49}'), ("ls", "{}")]
    assert calls(f"x{add}{add} y {add}") == [("add", '{"a": 11, "b": 49}')] * 3
    # a forgotten closing tag
    assert calls('<tool_call>{"name":"f"}\n' + LS) == [("f", "{}"), ("ls", "{}")]
    assert calls("<tool_call>" + LS) == [("ls", "{}")]


PIECES = [
    *(
        "<tool_call>",
        "</tool_call>",
        "<tool_call>\n{",
        '{"name": "f", "arguments": ',
        '{"a": 1}',
        "}",
        "}\n</tool_call>",
    ),
    *(
        '"',
        "\\",
        "{",
        "[",
        "]",
        ",",
        ":",
        "1",
        "true",
        "x",
        "é",
        "👩‍👩‍👧‍👦",
        "\n",
        " ",
        "<",
        "<tool",
        "</tool_",
        LS,
        "\x01",
    ),
    *("<think>", "</think>", "STOP", '"text": "', '"name":"f"'),
]
_texts = st.lists(st.sampled_from(PIECES), max_size=16).map("".join)


@given(text=_texts, cuts=st.lists(st.integers(0, 300), max_size=8))
@settings(max_examples=400)
def test_cuts_do_not_matter_and_nothing_is_lost(text: str, cuts: list[int]) -> None:
    calls(text)
    scanner, items = CallScanner(), []
    bounds = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    for begin, end in itertools.pairwise(bounds):
        items += scanner.push(text[begin:end])
    assert joined(items + at_end(scanner)) == scan(text)


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.text(max_size=12) | st.sampled_from(PIECES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    arguments=st.dictionaries(st.text(max_size=6), _json, max_size=4),
    name=st.text(min_size=1, max_size=9),
    ascii_only=st.booleans(),
)
@settings(max_examples=200)
def test_any_arguments_come_back_as_written(arguments: dict[str, Any], name: str, ascii_only: bool) -> None:
    text = json.dumps(arguments, ensure_ascii=ascii_only)
    body = f'{{"name": {json.dumps(name, ensure_ascii=ascii_only)}, "arguments": {text}}}'
    assert calls("say " + call(body)) == [(name, text)]


# -- the whole chain ---------------------------------------------------------------------------------------------------

Result = tuple[str, str, list[tuple[str, str]], bool]


def run(tokenizer: Tokenizer, pieces: Iterable[Sequence[int]], ended: bool, **options: Any) -> Result:
    """(reasoning, content, calls, stopped)."""
    stream = OutputStream(
        tokenizer, **{"thinking": False, "split_reasoning": True, "calls": CallPolicy.MANY, **options}
    )
    deltas = []
    for piece in pieces:
        deltas.append(stream.push(piece))
        if deltas[-1].stopped:
            break
    deltas.append(stream.finish(ended=ended))
    found = [(call.name, call.arguments) for delta in deltas for call in delta.calls]
    return "".join(d.reasoning for d in deltas), "".join(d.content for d in deltas), found, deltas[-1].stopped


def answer(text: str, *, ended: bool = True, **options: Any) -> tuple[str, str, list[tuple[str, str]]]:
    """(reasoning, content, calls), the same for one push and for a push per token."""
    tokenizer = official_tokenizer()
    ids = tokenizer.encode_raw(text)
    whole = run(tokenizer, [ids], ended, **options)
    assert run(tokenizer, [[token] for token in ids], ended, **options) == whole
    return whole[:3]


ONE = [("ls", "{}")]
DRAFT = '<tool_call>{"name":"rm","arguments":{}}</tool_call>'


def test_b07_a_draft_in_the_thought_is_no_call() -> None:
    assert answer(f"<think>maybe {DRAFT}? no</think>\n\n{LS}") == (f"maybe {DRAFT}? no", "", ONE)
    assert answer(f"<think>maybe {DRAFT}</think>\n\n{LS}") == (f"maybe {DRAFT}", "", ONE)
    assert answer(f"maybe\n{DRAFT}\n\n</think>\n\nHi", thinking=True) == (f"maybe\n{DRAFT}", "Hi", [])
    assert answer(f"maybe {DRAFT} or {DRAFT}, hm", thinking=True) == (f"maybe {DRAFT} or {DRAFT}, hm", "", [])
    assert answer('hm <tool_call>{"a</think>ok', thinking=True) == ('hm <tool_call>{"a', "ok", [])


def test_b08_a_call_at_the_end_of_a_turn_whose_thought_is_open_is_one() -> None:
    assert answer(f"<think>need ls\n{LS}") == ("need ls", "", ONE)
    assert answer(f"need ls\n{LS}\n", thinking=True) == ("need ls", "", ONE)
    assert answer(f"{LS}\n{LS}", thinking=True) == ("", "", ONE * 2)
    assert answer(f"{LS}\n{LS}", thinking=True, calls=CallPolicy.ONE) == ("", "", ONE)
    assert answer(f"a {DRAFT} b\n{LS}", thinking=True) == (f"a {DRAFT} b", "", ONE)
    # B26: a limit ended it: nobody knows what would have come
    assert answer(f"need ls\n{LS}", thinking=True, ended=False) == (f"need ls\n{LS}", "", [])
    assert answer("need ls\n<tool_call>{", thinking=True) == ("need ls\n<tool_call>{", "", [])
    assert answer(f"need ls\n{LS}", thinking=True, calls=CallPolicy.NONE) == (f"need ls\n{LS}", "", [])


def test_thoughts_stream_while_no_call_is_under_way(tokenizer: Tokenizer) -> None:
    stream = OutputStream(tokenizer, thinking=True, split_reasoning=True, calls=CallPolicy.MANY)
    assert stream.push(tokenizer.encode_raw(f"a {DRAFT} b")).reasoning == f"a {DRAFT} b"


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (LS, ""),
        (f"\n\n{LS}\n", ""),  # B21
        (f"<think>x</think>\n\n{LS}", ""),
        (f"Sure.\n{LS}", "Sure."),
        (f"Sure.\n\n{LS}\n", "Sure."),
        (f"A\n{LS}\n\nB \n", "A\nB \n"),
        (f"A{LS} \nB", "A \nB"),
        (f"A{LS}B", "AB"),
        (f"{LS}\n\nB", "B"),
        (f"A \n{LS}\nB\n\n{LS}", "A \nB"),
    ],
)
def test_b21_white_space_around_calls(text: str, content: str) -> None:
    assert answer(text)[1:] == (content, ONE * text.count("ls"))


@pytest.mark.parametrize("text", ["Hi\n", "\n\n Hi \n", " \n", "", "Done.\n</tool_call>", "a <tool_call> b\n"])
def test_b10_text_without_calls_is_kept_to_the_letter(text: str) -> None:
    assert answer(text) == ("", text, [])


def test_b17_no_calls_wanted() -> None:
    body = '{"name":"ls","arguments":{}}'
    assert answer(f"Sure.\n{LS}\n", calls=CallPolicy.NONE) == ("", f"Sure.\n{body}\n", [])


def test_without_a_policy_calls_are_text() -> None:
    assert answer(f"Sure.\n{LS}\n", calls=None) == ("", f"Sure.\n{LS}\n", [])


def test_b06_one_call_ends_the_answer() -> None:
    assert answer(f"A {LS} B {LS}", calls=CallPolicy.ONE) == ("", "A", ONE)


def test_b54_stop_strings_see_content_only() -> None:
    stop_inside = '<tool_call>{"name":"f","arguments":{"a":"STOP"}}</tool_call>'
    assert answer(f"a {stop_inside} b STOP c {LS}", stops=["STOP"]) == ("", "a b ", [("f", '{"a":"STOP"}')])
    assert answer(f"a \nSTOP{LS}", stops=["STOP"]) == ("", "a \n", [])
    assert answer(f"ST{LS}OP", stops=["STOP"]) == ("", "STOP", ONE)  # not across a call
    assert answer(f"ST{LS}", stops=["STOP"]) == ("", "ST", ONE)
    assert answer("<tool_call>{STOP} x", stops=["STOP"]) == ("", "<tool_call>{", [])
    assert answer("x ST", stops=["STOP"]) == ("", "x ST", [])
    assert answer(f"a STOP {LS}", stops=["STOP"], include_stop=True) == ("", "a STOP", [])


@pytest.mark.parametrize("ended", [True, False])
def test_b12_stop_strings_leave_an_unfinished_call_alone(ended: bool) -> None:
    for text in (
        '<tool_call>\n{"name": "f", "arguments": {"a": "STOP',
        '<tool_call>\n{"name": "f", "arguments": {"STOP": ',
        '<tool_call>\n{"name": "STOP"',
        '<tool_call>\n{"name": "f", "arguments": {}}',
        "<tool_call>\n",
        "hm <tool_call>\n \n",
    ):
        options: dict[str, Any] = {"stops": ["STOP", "\n", '"'], "ended": ended}
        found = answer(text, **options)
        assert found == (("", "", [("f", "{}")]) if text.endswith("}}") else ("", text, []))
        assert run(official_tokenizer(), [official_tokenizer().encode_raw(text)], ended, stops=["STOP"])[3] is False
    # before it and behind its closing tag they hold
    assert answer('a STOP b <tool_call>{"a', stops=["STOP"], ended=ended) == ("", "a ", [])
    broken = '<tool_call>{"a": "}</tool_call> a '
    assert answer(broken + "STOP b", stops=["STOP"], ended=ended) == ("", broken, [])


@pytest.mark.parametrize("special", [None, True, False])
def test_calls_by_text_whatever_the_tokenizer_makes_of_the_tags(
    model_dir: Callable[..., Path], special: bool | None
) -> None:
    tags = ["<tool_call>", "</tool_call>"] if special is not None else []
    tokenizer = Tokenizer.from_dir(model_dir(["<|im_end|>", *(AddedToken(tag, special=bool(special)) for tag in tags)]))
    ids = tokenizer.encode_raw(f"<think>x {DRAFT}</think>\n\né {LS}")
    for size in (1, 2, 3, 5, 8, len(ids)):
        pieces = [ids[i : i + size] for i in range(0, len(ids), size)]
        assert run(tokenizer, pieces, True)[:3] == (f"x {DRAFT}", "é", ONE)


@given(
    text=_texts,
    thinking=st.booleans(),
    ended=st.booleans(),
    policy=st.sampled_from(list(CallPolicy)),
    stops=st.sampled_from([(), ("STOP",), ("}", "\n\n"), ("STOP", " STOPx")]),
    cuts=st.lists(st.integers(0, 300), max_size=6),
)
@settings(max_examples=300)
def test_stream_equals_plain_at_every_cut(
    text: str, thinking: bool, ended: bool, policy: CallPolicy, stops: tuple[str, ...], cuts: list[int]
) -> None:
    tokenizer = official_tokenizer()
    options = {"thinking": thinking, "calls": policy, "stops": stops}
    whole = answer(text, ended=ended, **options)
    ids = tokenizer.encode_raw(text)
    bounds = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    pieces = [ids[begin:end] for begin, end in itertools.pairwise(bounds)]
    assert run(tokenizer, pieces, ended, **options)[:3] == whole


# -- time --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("begin", ["", "<tool_call>{", '<tool_call>{"a":"', '<tool_call>{"name":"f","arguments":['])
@pytest.mark.parametrize(
    "unit",
    [
        *("<tool_call>{", '"', '<tool_call>{"', "{", "}", "<tool_call>", '<tool_call>{"a":1,"', "</tool_call>", "<"),
        *(
            "<tool_call>{}</tool_call>",
            '<tool_call>{"":{"',
            "{},",
            '"",',
            '<tool_call>{"</tool_call>',
            "<tool",
            "[",
            "1",
        ),
        *('<tool_call>{"":"\\', "\\", " ", "\n", "</tool_call", '<tool_call>{"a":"</tool_call>"}', LS),
    ],
)
def test_b48_a_megabyte_of_adversarial_text_takes_linear_time(begin: str, unit: str) -> None:
    text = begin + unit * (MEGABYTE // len(unit))
    started = time.process_time()
    scanner = CallScanner()
    scanner.push(text)
    scanner.finish()
    assert time.process_time() - started < seconds_allowed(0.3)  # measured: up to 0.16 s
    started = time.process_time()
    scanner = CallScanner()
    for i in range(0, len(text) // 5, 4):
        scanner.push(text[i : i + 4])
    scanner.finish()
    assert time.process_time() - started < seconds_allowed(0.6)  # 50,000 pushes, about 0.06 s


def test_a_push_of_one_token_stays_cheap(tokenizer: Tokenizer) -> None:
    text = "<think>\n" + "some words of a thought, " * 1000 + "\n</think>\n\n" + "and an answer. " * 1000
    ids = tokenizer.encode_raw(text + call('{"name":"f","arguments":{"a":"' + "an argument, " * 1000 + '"}}'))
    stream = OutputStream(tokenizer, thinking=False, split_reasoning=True, stops=["User:"], calls=CallPolicy.MANY)
    begin = time.process_time()
    for token in ids:
        stream.push([token])
    assert (time.process_time() - begin) / len(ids) < seconds_allowed(8e-6)  # measured: about 2 us


@pytest.mark.long
def test_b48_fuzz_for_adversarial_texts() -> None:
    """Random units, begun and repeated at random, a megabyte each: thoughts, calls and stops stay linear."""
    random, tokenizer = Random(), official_tokenizer()
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        seed = random.getrandbits(32)
        draw = Random(seed)
        units = ["".join(draw.choices(PIECES, k=draw.randint(1, 9))) for _ in range(draw.randint(1, 3))]
        text = "".join(draw.choices(PIECES, k=draw.randint(0, 9)))
        text += "".join(unit * (MEGABYTE // len(units) // len(unit)) for unit in units)
        seconds = []
        while not seconds or (seconds[-1] >= seconds_allowed(0.3) and len(seconds) < 3):  # what others did is not ours
            begin = time.process_time()
            scanner = CallScanner()
            scanner.push(text)
            scanner.finish()
            seconds.append(time.process_time() - begin)
        assert min(seconds) < seconds_allowed(0.3), seed
        ids = tokenizer.encode_raw(text[: MEGABYTE // 20])
        options = {"thinking": draw.random() < 0.5, "calls": draw.choice(list(CallPolicy)), "stops": ["}", "STOP\n\n"]}
        whole = run(tokenizer, [ids], True, **options)
        assert run(tokenizer, [[token] for token in ids], True, **options) == whole, seed
