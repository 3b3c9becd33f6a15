#!/usr/bin/env python3
"""Makes the golden tokenizer, chat-template and detokenizer data for Qwen3.

    python make_golden.py [--inputs DIR] [--out DIR] [--model DIR]

Reads   DIR/inputs_tokens.json, DIR/inputs_chat.json, DIR/inputs_detok.json
Writes  DIR/tokens.jsonl, DIR/chat.jsonl, DIR/detok.jsonl
--inputs and --out default to this script's folder, --model to ../data/qwen3
(tokenizer.json, tokenizer_config.json, chat_template.jinja).

Needs: transformers==5.18.0 tokenizers==0.23.3 jinja2==3.1.6 (torch is not needed).

The answers come from transformers' AutoTokenizer and apply_chat_template. Each one
is checked a second way before it is written: token ids against the `tokenizers`
library on tokenizer.json, rendered prompts against plain jinja2 on
chat_template.jinja, detokenized text against a byte-level decoder written here.
A disagreement stops the script. All files are ASCII-only JSON (\\uXXXX escapes), so
that editors, git and line splitters can't alter unusual characters.
"""

import argparse
import json
import re
import unicodedata
from pathlib import Path

from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer
from transformers import AutoTokenizer

HERE = Path(__file__).resolve().parent


def read_inputs(path):
    return json.loads(path.read_text(encoding="ascii")) if path.exists() else None


def write_jsonl(path, rows):
    with path.open("w", encoding="ascii", newline="\n") as f:
        for row in rows:
            f.write(json.dumps(row, ensure_ascii=True) + "\n")
    print(f"{path.name}: {len(rows)} cases")


def unfinished(data):
    """How many bytes at the end are the start of a valid UTF-8 character."""
    for have in (1, 2, 3):
        tail = data[-have:]
        need = {0xC: 2, 0xD: 2, 0xE: 3, 0xF: 4}.get(tail[0] >> 4, 0) if len(tail) == have else 0
        for next_byte in (0x80, 0x90, 0xA0):
            if have < need:
                try:
                    (tail + bytes([next_byte]) + b"\x80" * (need - have - 1)).decode("utf-8")
                    return have
                except UnicodeDecodeError:
                    pass
    return 0


class Reference:
    def __init__(self, model):
        self.hf = AutoTokenizer.from_pretrained(model)
        self.raw = Tokenizer.from_file(str(model / "tokenizer.json"))
        spec = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
        self.added = {t["id"]: t for t in spec["added_tokens"]}
        self.split_added = re.compile("(" + "|".join(re.escape(t["content"]) for t in self.added.values()) + ")")

        # Byte-level alphabet: printable Latin-1 stands for itself, the other byte
        # values for U+0100 and up, in order.
        printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        other = [b for b in range(256) if b not in printable]
        byte_of = {chr(b): b for b in printable}
        byte_of.update({chr(0x100 + i): b for i, b in enumerate(other)})
        self.pieces = {i: bytes(byte_of[c] for c in s) for s, i in spec["model"]["vocab"].items()}
        self.byte_token = {p[0]: i for i, p in self.pieces.items() if len(p) == 1}

        # As transformers renders chat templates: tojson without HTML escapes or
        # sorted keys, and non-ASCII characters kept.
        env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        env.filters["tojson"] = lambda x: json.dumps(x, ensure_ascii=False)
        self.template = env.from_string((model / "chat_template.jinja").read_text(encoding="utf-8"))

    def encode(self, text):
        ids = self.hf(text, add_special_tokens=False)["input_ids"]
        assert ids == self.raw.encode(text, add_special_tokens=False).ids, text
        # NFC applies between added tokens, and is the only change to the text.
        nfc = "".join(
            s if i % 2 else unicodedata.normalize("NFC", s) for i, s in enumerate(self.split_added.split(text))
        )
        assert self.bytes_of(ids, skip_special=False).decode("utf-8") == nfc, text
        return ids

    def bytes_of(self, ids, skip_special):
        """The bytes that a list of token ids stands for.

        skip_special leaves out the added tokens marked special (151643..151656);
        <think>, <tool_call>, ... are not marked and stay. An id with no token
        (151669 and up, padding of the embedding) stands for nothing.
        """
        out = b""
        for i in ids:
            if i in self.pieces:
                out += self.pieces[i]
            elif i in self.added and not (skip_special and self.added[i]["special"]):
                out += self.added[i]["content"].encode("utf-8")
        return out

    def render(self, case):
        messages, tools, kwargs = case["messages"], case.get("tools"), case["kwargs"]
        text = self.hf.apply_chat_template(messages, tools=tools, tokenize=False, **kwargs)
        assert text == self.template.render(messages=messages, tools=tools, **kwargs), case["name"]
        ids = self.encode(text)
        both = self.hf.apply_chat_template(messages, tools=tools, tokenize=True, return_dict=True, **kwargs)
        assert ids == both["input_ids"], case["name"]
        return text, ids

    def detok(self, case):
        """Text that is safe to show after each token of a stream.

        steps: decode all ids so far and hold back replacement characters (U+FFFD)
        at the end, since a later token may complete them. This is the latest
        allowed point. steps_eager: hold back only bytes at the end that can still
        become a character. This is the earliest allowed point, and is written
        only where it differs from steps, which takes invalid UTF-8 or a real
        U+FFFD. A stream is right if, after each token, what it has shown starts
        with steps and is a start of steps_eager (or equals steps, without that).
        final: the text once the stream has ended and everything is shown.
        """
        if "text" in case:
            ids = self.encode(case["text"])
        elif "bytes" in case:  # one byte-level token for each byte
            ids = [self.byte_token[b] for b in bytes.fromhex(case["bytes"])]
        else:
            ids = list(case["ids"])
        ids = ids[: case.get("take", len(ids))]
        skip = case.get("skip_special_tokens", True)

        steps, eager, final = [], [], ""
        for n in range(1, len(ids) + 1):
            data = self.bytes_of(ids[:n], skip)
            final = data.decode("utf-8", "replace")
            assert final == self.hf.decode(ids[:n], skip_special_tokens=skip), case["name"]
            steps.append(final.rstrip("\ufffd"))
            eager.append(data[: len(data) - unfinished(data)].decode("utf-8", "replace"))
        for late, early in zip(steps, eager, strict=True):
            assert early.startswith(late) and final.startswith(early), case["name"]

        row = {"name": case["name"], "skip_special_tokens": skip, "ids": ids, "steps": steps}
        if eager != steps:
            row["steps_eager"] = eager
        row["final"] = final
        return row


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--inputs", type=Path, default=HERE)
    p.add_argument("--out", type=Path, default=HERE)
    p.add_argument("--model", type=Path, default=HERE.parent / "data" / "qwen3")
    args = p.parse_args()
    ref = Reference(args.model)

    cases = read_inputs(args.inputs / "inputs_tokens.json")
    if cases is not None:
        write_jsonl(
            args.out / "tokens.jsonl",
            [{"name": c["name"], "text": c["text"], "ids": ref.encode(c["text"])} for c in cases],
        )

    cases = read_inputs(args.inputs / "inputs_chat.json")
    if cases is not None:
        rows = []
        for c in cases:
            text, ids = ref.render(c)
            rows.append(
                {
                    "name": c["name"],
                    "messages": c["messages"],
                    "tools": c.get("tools"),
                    "kwargs": c["kwargs"],
                    "rendered": text,
                    "ids": ids,
                }
            )
        write_jsonl(args.out / "chat.jsonl", rows)

    cases = read_inputs(args.inputs / "inputs_detok.json")
    if cases is not None:
        write_jsonl(args.out / "detok.jsonl", [ref.detok(c) for c in cases])


if __name__ == "__main__":
    main()
