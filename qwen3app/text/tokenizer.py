"""The tokenizer of a model directory: text to ids, ids to bytes.

Owns: tokenizer.json, the set of control tokens (all added tokens), the ids that end a turn, the bytes of every token.
Refuses to know: templates, requests, streams.

Two encoders share one vocabulary. `encode_raw` does what the tokenizer file says: text that spells a control token
becomes that token. `encode_plain` has no control tokens at all, so whatever a user types stays text.

Invariants: encode_plain never yields the id of an added token; token_bytes is exact, so joined bytes of a token list
are the text (after NFC, which the tokenizer applies) in UTF-8.
Threads: any. The caches only ever gain equal values; the span cache has a lock.
"""

from __future__ import annotations

import json
import re
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as HfTokenizer

from qwen3app.text.errors import TextError, check_unicode
from qwen3app.text.files import read_json_object, read_optional_json_object, read_text
from qwen3app.text.tool_calls import CALL_CLOSE, CALL_OPEN

THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"

# The pre-tokenizer of all Qwen2 and Qwen3 tokenizers, as the library writes it out. Only for this one it is known where
# a text can be cut without changing its tokens: behind a newline that a visible character follows, between a word and a
# space, and between a letter and punctuation. At each of these a match of the expression ends, the next begins, neither
# looks across, and NFC composes nothing.
_QWEN_PRE_TOKENIZER = {
    "type": "Sequence",
    "pretokenizers": [
        {
            "type": "Split",
            "pattern": {
                "Regex": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                r"|\s*[\r\n]+|\s+(?!\S)|\s+"
            },
            "behavior": "Isolated",
            "invert": False,
        },
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
    ],
}
_SAFE_CUT = re.compile(
    r"\n(?=[^\s\u180e])"  # white space in some versions of Unicode
    r"|(?<=[^\W_])(?=[ \u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f])"
)
# The marks that control tokens are spelled with as well, so not for raw text. Behind letters that all versions know.
_SAFE_CUT_PLAIN = re.compile(
    _SAFE_CUT.pattern
    + r"|(?<=[A-Za-z0-9\u0430-\u044f\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fa5\uac00-\ud7a3])(?=[!-/:-@\[-`{-~])"
)
# The library's cost per character grows with the length of the text. Measured on 34,000 characters of English, CPU per
# 1,000 tokens: in one piece 1.9 ms, in pieces of 200 characters 1.1, of 800 to 3,200 1.0; and pieces use all cores.
_PIECE_CHARACTERS = 800
# Pieces are encoded in groups of about this many characters: the library keeps some 150 bytes a token until a group is
# done, which for a body of 16 MB in one group came to 2.8 GB.
_GROUP_CHARACTERS = 1 << 18
# The longest piece. Its ids are handed over with Python's lock kept, 20 to 30 ns each. No text that means anything has
# so many characters without a space, the end of a line or punctuation.
_LONGEST_PIECE = 1 << 18
_WINDOW = 1 << 14  # characters that are searched in one go, half a millisecond


def _next_place(text: str, places: re.Pattern[str], begin: int, end: int) -> int | None:
    """Where the text can be cut next. Python's lock is free between the windows."""
    for at in range(begin, min(end, len(text)), _WINDOW):
        match = places.search(text, at, at + _WINDOW + 1)  # what is looked for may look at one character more
        if match is not None:
            return match.end()
    return None


def _cut(text: str, places: re.Pattern[str], param: str | None = None) -> list[str]:
    """The text in pieces of about _PIECE_CHARACTERS whose tokens together are those of the text. Raises TextError.
    param: what errors call the text."""
    pieces, begin = [], 0
    while len(text) - begin > 2 * _PIECE_CHARACTERS:
        end = _next_place(text, places, begin + _PIECE_CHARACTERS, begin + _LONGEST_PIECE)
        if end is None:
            break
        pieces.append(text[begin:end])
        begin = end
    if len(text) - begin > _LONGEST_PIECE:
        raise TextError(
            f"{param or 'The text'} has {_LONGEST_PIECE:,} characters in a row, from character {begin:,} on, without "
            "the end of a word or of a line; break them up by spaces or newlines.",
            param,
        )
    pieces.append(text[begin:] if begin else text)
    return pieces


# Spans of chat prompts repeat from turn to turn (system prompt, tools, history): their ids are kept, up to this many
# characters of text in all. At 4 bytes of ids a character at worst this is 16 MiB of text and ids.
_SPAN_CACHE_CHARACTERS = 1 << 22
# One span may take a quarter of the cache, so that a huge paste cannot empty it.
_SPAN_CACHE_LONGEST = _SPAN_CACHE_CHARACTERS // 4


def _byte_alphabet() -> dict[str, str]:
    """Byte-level BPE's stand-in characters -> Latin-1 character of the byte.

    Printable Latin-1 stands for itself; the other byte values, in order, for U+0100 and up.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): chr(byte) for byte in printable}
    rest = (byte for byte in range(256) if chr(byte) not in alphabet)
    alphabet.update({chr(0x100 + i): chr(byte) for i, byte in enumerate(rest)})
    return alphabet


_ALPHABET = _byte_alphabet()
_FROM_ALPHABET = str.maketrans(_ALPHABET)
_IN_ALPHABET = re.compile("[" + re.escape("".join(_ALPHABET)) + "]*")


class _Pieces(dict[int, bytes]):
    """id -> bytes, filled on first use: building all 151,669 at start would cost 0.1 s that few runs need."""

    def __init__(self, hf: HfTokenizer, control: Mapping[int, str], hidden: frozenset[int]) -> None:
        super().__init__({token: b"" if token in hidden else text.encode() for token, text in control.items()})
        self._hf = hf
        for token in hidden:
            self[token] = b""

    def __missing__(self, token: int) -> bytes:
        try:
            piece = self._hf.id_to_token(token)
        except OverflowError:  # negative or beyond 32 bits
            piece = None
        if piece is None:
            return b""  # not stored: callers may ask for any number
        data = piece.translate(_FROM_ALPHABET).encode("latin-1") if _IN_ALPHABET.fullmatch(piece) else piece.encode()
        self[token] = data
        return data


class Tokenizer:
    """See the file's head. Make one with `from_dir`."""

    def __init__(self, hf: HfTokenizer, eos_ids: Iterable[int], special_tokens: Mapping[str, Any], source: str) -> None:
        """hf: a loaded byte-level BPE tokenizer. special_tokens: bos_token, eos_token, ... for the chat template."""
        if not isinstance(hf.model, models.BPE) or not _is_byte_level(hf):
            raise TextError(f"{source} is not a byte-level BPE tokenizer, the only kind that Qwen3 models use.")
        hf.no_truncation()
        hf.no_padding()
        hf.model.dropout = None  # of training: merges left out at random
        self._raw = hf
        # Same model object, normalizer and pre-tokenizer, but no added tokens: nothing is parsed or copied.
        self._plain = HfTokenizer(hf.model)
        if hf.normalizer is not None:
            self._plain.normalizer = hf.normalizer
        if hf.pre_tokenizer is not None:
            self._plain.pre_tokenizer = hf.pre_tokenizer

        pre_tokenizer = json.loads(hf.pre_tokenizer.__getstate__()) if hf.pre_tokenizer is not None else None
        self._can_cut = pre_tokenizer == _QWEN_PRE_TOKENIZER and _is_nfc_or_none(hf)

        added: dict[int, AddedToken] = hf.get_added_tokens_decoder()
        vocab = hf.get_vocab(with_added_tokens=False)
        self.n_ids: int = 1 + max(max(vocab.values(), default=-1), max(added, default=-1))
        self.added_tokens: Mapping[int, AddedToken] = MappingProxyType(dict(sorted(added.items())))
        self.control_tokens: Mapping[str, int] = MappingProxyType(
            {token.content: i for i, token in self.added_tokens.items()}
        )
        self.special_ids: frozenset[int] = frozenset(i for i, token in added.items() if token.special)
        self.special_tokens: Mapping[str, Any] = MappingProxyType(dict(special_tokens))
        self.eos_ids: tuple[int, ...] = tuple(sorted(set(eos_ids)))
        self.think_open_id: int | None = self.control_tokens.get(THINK_OPEN)
        self.think_close_id: int | None = self.control_tokens.get(THINK_CLOSE)

        # A control token whose text is also an ordinary vocabulary entry could come out of the plain encoder. The
        # official tokenizer has none; small self-made ones (trained with `special_tokens`) often do.
        self._also_plain = frozenset(i for text, i in self.control_tokens.items() if vocab.get(text) == i)
        for token in self._also_plain:
            if len(added[token].content) < 2:
                raise TextError(
                    f"{source} makes the single character {added[token].content!r} a control token, so text could not "
                    "be kept apart from control; remove it from added_tokens."
                )

        # Raw text can be cut too unless an added token may lie across the cut or take the white space beside it.
        self._can_cut_raw = self._can_cut and not any(
            token.lstrip or token.rstrip or token.single_word or token.normalized or _SAFE_CUT.search(token.content)
            for token in added.values()
        )

        control = {i: token.content for i, token in added.items()}
        self._all_pieces = _Pieces(hf, control, frozenset())
        # The tags of tool calls are read from the text; some tokenizers call them special, the official one does not.
        hidden = self.special_ids.difference(self.control_tokens.get(tag, -1) for tag in (CALL_OPEN, CALL_CLOSE))
        self._shown_pieces = _Pieces(hf, control, hidden.union(self.eos_ids))
        self._spans: OrderedDict[str, array[int]] = OrderedDict()
        self._spans_characters = 0
        self._spans_lock = threading.Lock()

    @classmethod
    def from_dir(cls, model_dir: Path) -> Tokenizer:
        """Loads tokenizer.json, and the end-of-turn ids from the config files beside it (each of those optional)."""
        path = model_dir / "tokenizer.json"
        source = read_text(path)
        try:
            hf = HfTokenizer.from_str(source)
        except BaseException as error:  # the library raises bare Exception, and its panics are BaseException
            if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
                raise
            reason = " ".join(str(error).split())
            raise TextError(
                f"{path} is not a tokenizer that can be read ({reason}); download the file again."
            ) from None
        config = read_optional_json_object(model_dir / "tokenizer_config.json")
        special_tokens = _special_tokens(config)
        eos_ids = [
            *_declared_eos(model_dir / "generation_config.json"),
            *_declared_eos(model_dir / "config.json"),
        ]
        eos_token = special_tokens.get("eos_token")
        if eos_token is not None:
            eos_id = hf.token_to_id(eos_token)
            if eos_id is None:
                raise TextError(
                    f"{model_dir / 'tokenizer_config.json'}: eos_token {eos_token!r} is no token of {path.name}; "
                    "correct the file."
                )
            eos_ids.append(eos_id)
        return cls(hf, eos_ids, special_tokens, str(path))

    # -- text to ids ---------------------------------------------------------------------------------------------

    def encode_plain(self, text: str) -> list[int]:
        """Ids of text as nothing but text: never the id of an added token."""
        return self._encode(self._plain, [text])[0] if not self._also_plain else self._encode_guarded(text)

    def check_plain(self, text: str, param: str) -> None:
        """TextError, with the text's name, where encode_plain refuses it. Much faster than that."""
        if self._can_cut and not self._also_plain:
            _cut(text, _SAFE_CUT_PLAIN, param)

    def encode_raw(self, text: str, param: str | None = None) -> list[int]:
        """Ids as the tokenizer file says: text that spells a control token becomes that token. param: what errors call
        the text."""
        return self._encode(self._raw, [text], [param])[0]

    def encode_raw_batch(self, texts: Sequence[str], params: Sequence[str] = ()) -> list[list[int]]:
        """encode_raw of each text, on all cores."""
        return self._encode(self._raw, texts, params)

    def encode_plain_spans(self, spans: Sequence[str]) -> list[list[int]]:
        """encode_plain of each span; spans seen lately come from a cache."""
        found: list[list[int] | None] = []
        with self._spans_lock:
            for span in spans:
                ids = self._spans.get(span)
                if ids is not None:
                    self._spans.move_to_end(span)
                found.append(None if ids is None else ids.tolist())
        missing = list(dict.fromkeys(span for span, ids in zip(spans, found, strict=True) if ids is None))
        if not missing:
            return [ids for ids in found if ids is not None]
        encoded = (
            [self._encode_guarded(span) for span in missing] if self._also_plain else self._encode(self._plain, missing)
        )
        fresh = dict(zip(missing, encoded, strict=True))
        with self._spans_lock:
            for span, span_ids in fresh.items():
                if len(span) <= _SPAN_CACHE_LONGEST and span not in self._spans:
                    self._spans[span] = array("I", span_ids)
                    self._spans_characters += len(span)
            while self._spans_characters > _SPAN_CACHE_CHARACTERS:
                evicted, _ = self._spans.popitem(last=False)
                self._spans_characters -= len(evicted)
        return [fresh[span] if ids is None else ids for span, ids in zip(spans, found, strict=True)]

    def _encode(self, hf: HfTokenizer, texts: Sequence[str], params: Sequence[str | None] = ()) -> list[list[int]]:
        named = list(zip(texts, params or [None] * len(texts), strict=True))
        can_cut, places = (self._can_cut_raw, _SAFE_CUT) if hf is self._raw else (self._can_cut, _SAFE_CUT_PLAIN)
        whole: list[list[int]] = []
        try:
            cuts = [_cut(text, places, param) if can_cut else [text] for text, param in named]
            encoded = _encode_pieces(hf, [piece for cut in cuts for piece in cut])
            for cut in cuts:
                ids = next(encoded)
                for _ in range(len(cut) - 1):
                    ids += next(encoded)
                whole.append(ids)
        except TypeError:
            for text, param in named:
                check_unicode(text, param)
            raise
        return whole

    def _encode_guarded(self, text: str) -> list[int]:
        """encode_plain for a vocabulary that also holds control tokens as ordinary entries."""
        encoding = self._plain.encode(text, add_special_tokens=False)
        ids: list[int] = encoding.ids
        if self._also_plain.isdisjoint(ids):
            return ids
        # Cut inside the first forged token (after its first character) and encode both sides anew.
        index = next(i for i, token in enumerate(ids) if token in self._also_plain)
        cut = encoding.offsets[index][0] + 1
        return self._encode_guarded(text[:cut]) + self._encode_guarded(text[cut:])

    # -- ids to text ---------------------------------------------------------------------------------------------

    def pieces(self, *, skip_special: bool) -> Mapping[int, bytes]:
        """id -> bytes for streams; with skip_special, special tokens (not the tags of tool calls) and tokens that end
        a turn are empty."""
        return self._shown_pieces if skip_special else self._all_pieces

    def token_bytes(self, token: int) -> bytes:
        """The true bytes of one token: for a control token its text, for an id without a token nothing."""
        return self._all_pieces[token]

    def token_text(self, token: int) -> str:
        r"""One token as text, for logprobs. Bytes that are not whole characters read `bytes:\xf0\x9f`, all of them
        escaped, as OpenAI's API does."""
        data = self._all_pieces[token]
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of all ids at once; bytes that are no UTF-8 become U+FFFD."""
        pieces = self._shown_pieces if skip_special else self._all_pieces
        return b"".join([pieces[token] for token in ids]).decode("utf-8", "replace")


def _encode_pieces(hf: HfTokenizer, pieces: Sequence[str]) -> Iterator[list[int]]:
    """The ids of each piece, in order."""
    begin = 0
    while begin < len(pieces):
        end, n_characters = begin, 0
        while end < len(pieces) and n_characters < _GROUP_CHARACTERS:
            n_characters += len(pieces[end])
            end += 1
        for encoding in hf.encode_batch_fast(list(pieces[begin:end]), add_special_tokens=False):
            yield encoding.ids
        begin = end


def _is_byte_level(hf: HfTokenizer) -> bool:
    decoder = hf.decoder
    # A Sequence shows its parts only in its serialized form.
    return isinstance(decoder, decoders.ByteLevel) or (decoder is not None and "ByteLevel" in str(decoder))


def _is_nfc_or_none(hf: HfTokenizer) -> bool:
    return hf.normalizer is None or isinstance(hf.normalizer, normalizers.NFC)


def _special_tokens(config: Mapping[str, Any]) -> dict[str, Any]:
    """bos_token, eos_token, ... of tokenizer_config.json as plain strings, as chat templates see them."""
    tokens: dict[str, Any] = {}
    for name in ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"):
        value = config.get(name)
        if isinstance(value, dict):  # a serialized AddedToken
            value = value.get("content")
        if isinstance(value, str):
            tokens[name] = value
    additional = config.get("additional_special_tokens")
    if isinstance(additional, list):
        texts = [item.get("content") if isinstance(item, dict) else item for item in additional]
        tokens["additional_special_tokens"] = [text for text in texts if isinstance(text, str)]
    return tokens


def _declared_eos(path: Path) -> list[int]:
    """eos_token_id of a config file: an integer, a list of integers, null or absent."""
    if not path.exists():
        return []
    value = read_json_object(path).get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < 1 << 31:
            raise TextError(f"{path}: eos_token_id holds {token!r}, which is no token id; correct the file.")
    return ids
