"""Tokenizer: golden ids, plain against raw text, end-of-turn ids, bytes of tokens, broken files."""

from __future__ import annotations

import json
import random
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models
from tokenizers import Tokenizer as HfTokenizer

from qwen3app.text import tokenizer as tokenizer_module
from qwen3app.text.errors import TextError
from qwen3app.text.tokenizer import Tokenizer

from .conftest import OFFICIAL, golden, official_tokenizer, small_tokenizer

ModelDir = Callable[..., Path]


@pytest.mark.parametrize("case", golden("tokens"))
def test_golden_tokens(tokenizer: Tokenizer, case: dict[str, Any]) -> None:
    assert tokenizer.encode_raw(case["text"]) == case["ids"]


def test_golden_tokens_in_one_batch(tokenizer: Tokenizer) -> None:
    cases = [param.values[0] for param in golden("tokens")]
    assert tokenizer.encode_raw_batch([case["text"] for case in cases]) == [case["ids"] for case in cases]


@pytest.mark.parametrize("case", golden("tokens"))
def test_plain_equals_raw_without_control_text(tokenizer: Tokenizer, case: dict[str, Any]) -> None:
    ids = tokenizer.encode_plain(case["text"])
    controls = set(tokenizer.control_tokens.values())
    assert controls.isdisjoint(ids)
    assert tokenizer.decode(ids) == unicodedata.normalize("NFC", case["text"])
    if controls.isdisjoint(case["ids"]):
        assert ids == case["ids"]


def test_official_facts(tokenizer: Tokenizer) -> None:
    assert tokenizer.n_ids == 151669
    assert len(tokenizer.control_tokens) == 26
    assert tokenizer.control_tokens["<|im_start|>"] == 151644
    assert tokenizer.control_tokens["</think>"] == tokenizer.think_close_id == 151668
    assert tokenizer.special_ids == frozenset(range(151643, 151657))
    assert tokenizer.eos_ids == (151643, 151645)


def test_b57_plain_text_never_yields_a_control_token(tokenizer: Tokenizer) -> None:
    controls = set(tokenizer.control_tokens.values())
    for text in tokenizer.control_tokens:
        for spelled in (text, f" {text}", f"{text}\n", f"a{text}b", text * 3, f"<{text}", f"{text[:-1]}{text}"):
            ids = tokenizer.encode_plain(spelled)
            assert controls.isdisjoint(ids)
            assert tokenizer.decode(ids, skip_special=False) == spelled
            assert not controls.isdisjoint(tokenizer.encode_raw(spelled))


def test_raw_text_parses_control_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode_raw("<|im_start|>user\nhi<|im_end|>") == [151644, 872, 198, 6023, 151645]


def test_b50_bytes_of_tokens_join_to_the_text(tokenizer: Tokenizer) -> None:
    text = "👩‍👩‍👧‍👦 🇨🇳 삼겹살 ďábelské 日本語 \u0007\t<|im_end|><think>"
    ids = tokenizer.encode_raw(text)
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
    assert tokenizer.decode(ids, skip_special=False) == text
    assert tokenizer.decode(ids) == text.replace("<|im_end|>", "")


def test_b60_partial_characters_are_escaped_by_a_fixed_rule(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_raw("𠀀")
    assert len(ids) > 1
    texts = [tokenizer.token_text(token) for token in ids]
    assert texts[0] == "bytes:" + "".join(f"\\x{byte:02x}" for byte in tokenizer.token_bytes(ids[0]))
    assert all("\ufffd" not in text for text in texts)
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == "𠀀"
    assert tokenizer.token_text(9707) == "Hello"
    assert tokenizer.token_text(151645) == "<|im_end|>"


@pytest.mark.parametrize("token", [151669, 151935, 2**31, 2**40, -1])
def test_ids_without_a_token_stand_for_nothing(tokenizer: Tokenizer, token: int) -> None:
    assert tokenizer.token_bytes(token) == b""
    assert tokenizer.token_text(token) == ""
    assert tokenizer.decode([9707, token, 0], skip_special=False) == "Hello!"


def test_every_byte_has_a_token(tokenizer: Tokenizer) -> None:
    assert {tokenizer.token_bytes(token) for token in range(256)} == {bytes([byte]) for byte in range(256)}


def test_b58_lone_surrogate_is_refused_with_its_position(tokenizer: Tokenizer) -> None:
    for encode in (tokenizer.encode_raw, tokenizer.encode_plain):
        with pytest.raises(TextError, match=r"U\+D83D\) at character 2"):
            encode("ab\ud83dc")


@settings(max_examples=150)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_survives(text: str) -> None:
    tokenizer = official_tokenizer()
    normal = unicodedata.normalize("NFC", text)
    assert tokenizer.decode(tokenizer.encode_plain(text)) == normal
    assert tokenizer.encode_plain_spans([text, "x", text]) == [
        tokenizer.encode_plain(text),
        tokenizer.encode_plain("x"),
        tokenizer.encode_plain(text),
    ]


def test_span_cache_is_bounded(official: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer.from_dir(official)
    monkeypatch.setattr(tokenizer_module, "_SPAN_CACHE_CHARACTERS", 1000)
    monkeypatch.setattr(tokenizer_module, "_SPAN_CACHE_LONGEST", 250)
    for i in range(100):
        span = f"{i:03} " * 25
        assert tokenizer.encode_plain_spans([span, "hi"]) == [tokenizer.encode_plain(span), [6023]]
    assert tokenizer._spans_characters == sum(map(len, tokenizer._spans)) <= 1000
    assert "hi" in tokenizer._spans  # used all the time, so never the oldest
    tokenizer.encode_plain_spans(["y" * 251])
    assert "y" * 251 not in tokenizer._spans


# -- end-of-turn ids ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, ()),
        ({"generation_config": {"eos_token_id": [257, 256]}}, (256, 257)),
        ({"generation_config": {"eos_token_id": 256}}, (256,)),
        ({"generation_config": {"eos_token_id": None}, "config": {"eos_token_id": 7}}, (7,)),
        ({"generation_config": {"eos_token_id": [256]}, "config": {"eos_token_id": 257}}, (256, 257)),
        ({"tokenizer_config": {"eos_token": "<|im_end|>"}}, (257,)),
        ({"tokenizer_config": {"eos_token": {"content": "<|im_start|>"}}}, (256,)),
        ({"tokenizer_config": {"eos_token": None}, "config": {}}, ()),
        (
            {
                "generation_config": {"eos_token_id": [256, 3]},
                "config": {"eos_token_id": 256},
                "tokenizer_config": {"eos_token": "<|im_end|>"},
            },
            (3, 256, 257),
        ),
    ],
)
def test_b61_end_ids_are_the_union_of_all_files(
    model_dir: ModelDir, files: dict[str, Any], expected: tuple[int, ...]
) -> None:
    tokenizer = Tokenizer.from_dir(model_dir(**files))
    assert tokenizer.eos_ids == expected
    assert all(tokenizer.decode([token]) == "" for token in expected)  # the end token is never shown


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"generation_config": {"eos_token_id": "x"}}, "generation_config.json: eos_token_id holds 'x'"),
        ({"config": {"eos_token_id": [1, True]}}, "config.json: eos_token_id holds True"),
        ({"config": {"eos_token_id": -1}}, "eos_token_id holds -1"),
        ({"config": "[1]"}, "holds a JSON list, not an object"),
        ({"config": "{"}, "is not valid JSON"),
        ({"config": "[" * 100000}, "nested too deeply"),
        ({"tokenizer_config": {"eos_token": "<none>"}}, "'<none>' is no token of tokenizer.json"),
    ],
)
def test_broken_config_files_get_one_sentence(model_dir: ModelDir, files: dict[str, Any], message: str) -> None:
    with pytest.raises(TextError, match=message):
        Tokenizer.from_dir(model_dir(**files))


# -- broken and unusual tokenizer files --------------------------------------------------------------------------------


def test_missing_directory_and_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "no"):
        with pytest.raises(TextError, match=r"tokenizer\.json is missing"):
            Tokenizer.from_dir(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b"null",
        b'"x"',
        b'{"version": "1.0"}',
        b"\xff\xfe",
        b"[" * 200000,
        b"version https://git-lfs",
    ],
)
def test_broken_tokenizer_json(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(TextError) as caught:
        Tokenizer.from_dir(tmp_path)
    assert "tokenizer.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_git_lfs_pointer_is_named(tmp_path: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 11422654\n"
    (tmp_path / "tokenizer.json").write_text(pointer)
    with pytest.raises(TextError, match="git-lfs pointer"):
        Tokenizer.from_dir(tmp_path)


def test_unreadable_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").mkdir()
    with pytest.raises(TextError, match="is not a regular file"):
        Tokenizer.from_dir(tmp_path)


def test_fuzzed_tokenizer_json(tmp_path: Path) -> None:
    """Any mutation either loads and encodes, or is refused with a TextError."""
    small_tokenizer(["<|im_end|>"]).save(str(tmp_path / "tokenizer.json"))
    good = (tmp_path / "tokenizer.json").read_bytes()
    random_source = random.Random(5)
    for _ in range(300):
        data = bytearray(good)
        for _ in range(random_source.randint(1, 4)):
            kind = random_source.randrange(3)
            at = random_source.randrange(len(data))
            if kind == 0:
                data[at] = random_source.randrange(256)
            elif kind == 1:
                del data[at : at + random_source.randint(1, 50)]
            else:
                data[at:at] = random_source.choice([b'"', b"}", b"[", b"null", b"-1", b"99999999999999", b"\\ud800"])
        (tmp_path / "tokenizer.json").write_bytes(data)
        try:
            tokenizer = Tokenizer.from_dir(tmp_path)
        except TextError:
            continue
        assert tokenizer.n_ids >= 0
        tokenizer.decode(tokenizer.encode_plain("a <|im_end|> é"))


def test_wrong_kinds_of_tokenizers_are_refused(tmp_path: Path) -> None:
    HfTokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(TextError, match="not a byte-level BPE"):
        Tokenizer.from_dir(tmp_path)
    HfTokenizer(models.BPE({"a": 0}, [])).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(TextError, match="not a byte-level BPE"):
        Tokenizer.from_dir(tmp_path)


def test_dropout_in_the_file_is_ignored(tmp_path: Path) -> None:
    hf = HfTokenizer.from_file(str(OFFICIAL / "tokenizer.json"))
    hf.model.dropout = 0.9
    hf.save(str(tmp_path / "tokenizer.json"))
    text = "the answer is water, and it always was"
    found = {tuple(Tokenizer.from_dir(tmp_path).encode_raw(text)) for _ in range(5)}
    assert found == {tuple(official_tokenizer().encode_raw(text))}


def test_truncation_in_the_file_is_ignored(tmp_path: Path) -> None:
    hf = small_tokenizer([])
    hf.enable_truncation(4)
    hf.enable_padding(length=32)
    hf.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_dir(tmp_path)
    assert len(tokenizer.encode_raw("0123456789")) == len(tokenizer.encode_plain("0123456789")) == 10


def test_control_tokens_that_are_also_vocabulary_entries(model_dir: ModelDir) -> None:
    """Tokenizers trained with `special_tokens` have them among the ordinary entries."""
    tokenizer = Tokenizer.from_dir(model_dir(["<|im_end|>", "<think>"], in_vocab=("<|im_end|>", "<think>", "ab")))
    controls = set(tokenizer.control_tokens.values())
    assert controls == {256, 257}
    assert tokenizer.encode_raw("<|im_end|>") == [256]
    for text in ("<|im_end|>", "<think>", "ab", "é"):
        for ids in (tokenizer.encode_plain(text), *tokenizer.encode_plain_spans([text, text])):
            assert controls.isdisjoint(ids)
            assert tokenizer.decode(ids) == text
    assert tokenizer.encode_plain("ab") == [258]


def test_single_character_control_token_that_is_also_text_is_refused(model_dir: ModelDir) -> None:
    with pytest.raises(TextError, match="single character 'a' a control token"):
        Tokenizer.from_dir(model_dir(["a"]))


def test_control_token_text_with_space_and_accent(model_dir: ModelDir) -> None:
    tokenizer = Tokenizer.from_dir(model_dir(["<é a>", AddedToken("<|x|>", special=True)]))
    assert tokenizer.token_bytes(256) == "<é a>".encode()
    assert tokenizer.decode([256, 257]) == "<é a>"
    assert tokenizer.decode([256, 257], skip_special=False) == "<é a><|x|>"
    assert tokenizer.n_ids == 258


def test_special_tokens_for_templates(model_dir: ModelDir) -> None:
    config = {
        "bos_token": None,
        "eos_token": {"content": "<|im_end|>", "special": True},
        "additional_special_tokens": ["<|im_start|>", {"content": "x"}, 5],
    }
    tokenizer = Tokenizer.from_dir(model_dir(tokenizer_config=config))
    assert dict(tokenizer.special_tokens) == {
        "eos_token": "<|im_end|>",
        "additional_special_tokens": ["<|im_start|>", "x"],
    }


_CUT_WORDS = (
    "a|b c|_|x_|²|ж|й|そ。|か\u3099|한|ไทย ที่|مر|\u180e|\x1c| |  |\n|\n\n|\r\n|\t|'s|'|.|"
    ",|1|中|中文|，|。|é|e\u0301|\u0301|\u00a0|\u3000|\u2028|\n\u0301|🥺|<|>"
)
_cut_words = st.sampled_from([*_CUT_WORDS.split("|"), "<|im_end|>", "<think>", "|>", "word and word"])


@settings(max_examples=300)
@given(st.lists(st.one_of(_cut_words, st.text(st.characters(exclude_categories=["Cs"]), max_size=3)), max_size=60))
def test_cutting_a_text_does_not_change_its_tokens(words: list[str]) -> None:
    tokenizer = official_tokenizer()
    assert tokenizer._can_cut
    assert tokenizer._can_cut_raw
    text = "".join(words)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer_module, "_PIECE_CHARACTERS", 1)
        patch.setattr(tokenizer_module, "_GROUP_CHARACTERS", 3)
        patch.setattr(tokenizer_module, "_WINDOW", 2)
        for places in (tokenizer_module._SAFE_CUT, tokenizer_module._SAFE_CUT_PLAIN):
            assert "".join(tokenizer_module._cut(text, places)) == text
        plain, raw = tokenizer.encode_plain(text), tokenizer.encode_raw(text)
    assert plain == tokenizer._plain.encode(text, add_special_tokens=False).ids
    assert raw == tokenizer._raw.encode(text, add_special_tokens=False).ids


def test_long_texts_are_cut(tokenizer: Tokenizer) -> None:
    texts = ["word ", "line.\n", "你好，", "x", " ", "a <|im_end|>\n", "слово ", "です。", "ไทย\n", '{"a":1}', "x=1;"]
    for text in (each * (5000 // len(each)) for each in texts):
        pieces = tokenizer_module._cut(text, tokenizer_module._SAFE_CUT_PLAIN)
        assert "".join(pieces) == text
        assert (len(pieces) > 1) == (text[:2] not in ("xx", "  "))
        assert tokenizer.encode_plain(text) == tokenizer._plain.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode_raw(text) == tokenizer._raw.encode(text, add_special_tokens=False).ids


def test_a_text_that_cannot_be_cut_anywhere_is_refused(tokenizer: Tokenizer) -> None:
    longest = tokenizer_module._LONGEST_PIECE
    assert len(tokenizer.encode_plain("word " + "x" * (longest - 2000))) > longest // 128
    for text in ("x" * (longest + 1), "word " * 1000 + " " * (longest + 4000) + "word"):
        for encode in (tokenizer.encode_plain, tokenizer.encode_raw):
            with pytest.raises(TextError, match="262,144 characters in a row"):
                encode(text)
        with pytest.raises(TextError, match=r"^text\[1\] has 262,144 characters in a row") as caught:
            tokenizer.check_plain(text, "text[1]")
        assert caught.value.param == "text[1]"
        with pytest.raises(TextError, match=r"^prompt has 262,144 characters") as caught:
            tokenizer.encode_raw(text, "prompt")
        assert caught.value.param == "prompt"
    tokenizer.check_plain("word " + "x" * (longest - 2000), "text")


@pytest.mark.parametrize("token", ["a b", "a\nb", "。x"])
def test_texts_are_not_cut_where_an_added_token_may_lie(official: Path, tmp_path: Path, token: str) -> None:
    spec = json.loads((official / "tokenizer.json").read_text(encoding="utf-8"))
    spec["added_tokens"].append({**spec["added_tokens"][-1], "id": 151669, "content": token})
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    tokenizer = Tokenizer.from_dir(tmp_path)
    assert tokenizer._can_cut
    assert tokenizer._can_cut_raw == (token == "。x")
    text = "word " * 159 + "wor" + token * 1000
    assert tokenizer.encode_raw(text) == tokenizer._raw.encode(text, add_special_tokens=False).ids


def test_tokenizer_without_normalizer(tmp_path: Path) -> None:
    small_tokenizer([]).save(str(tmp_path / "tokenizer.json"))
    spec = json.loads((tmp_path / "tokenizer.json").read_text())
    spec["normalizer"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    tokenizer = Tokenizer.from_dir(tmp_path)
    assert tokenizer.decode(tokenizer.encode_plain("e\u0301")) == "e\u0301"


def test_vocabulary_entry_outside_the_byte_alphabet(tmp_path: Path) -> None:
    small_tokenizer([]).save(str(tmp_path / "tokenizer.json"))
    spec = json.loads((tmp_path / "tokenizer.json").read_text())
    spec["model"]["vocab"]["日 本"] = 256
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    assert Tokenizer.from_dir(tmp_path).token_text(256) == "日 本"
