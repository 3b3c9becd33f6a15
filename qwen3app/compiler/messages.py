"""What a server and the processes that compile for it say to each other, over two pipes.

Owns: the frames and their content. A frame is a length of 4 bytes, little-endian, and as many bytes. The server begins
with a Setup; from then on each of its frames is one ConstraintSpec as JSON. Each is answered by one Reply before the
next is sent, the Setup by an empty one.
Threads: pure functions.
"""

from __future__ import annotations

import struct
from dataclasses import replace

import msgspec

from qwen3app.abi.matchers import TokenBytes
from qwen3app.text.grammars import ConstraintSpec, ToolSchema

# Exit code of a child that ran into its limit of memory where Python noticed it.
OUT_OF_MEMORY = 12

LENGTH = struct.Struct("<I")


class Setup(msgspec.Struct):
    """tokens: the vocabulary. memory_bytes: what a compilation may take."""

    tokens: TokenBytes
    control_tokens: dict[str, int]
    memory_bytes: int


class Reply(msgspec.Struct):
    """grammar: it can be used. Else fault: a sentence, and param: its place. bug: where the program itself failed."""

    grammar: str | None = None
    fault: str = ""
    param: str | None = None
    bug: str = ""


def frame(content: bytes) -> bytes:
    return LENGTH.pack(len(content)) + content


def write_spec(spec: ConstraintSpec) -> bytes:
    """Raises UnicodeEncodeError or RecursionError for what is no JSON."""
    return msgspec.json.encode(spec)


def read_spec(content: bytes) -> ConstraintSpec:
    spec = msgspec.json.decode(content, type=ConstraintSpec)
    if spec.kind == "tools":
        return replace(spec, value=msgspec.convert(spec.value, list[ToolSchema]))
    return spec
