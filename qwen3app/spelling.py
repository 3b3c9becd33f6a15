"""What a word of the command line that does not exist may have meant.

Owns the comparison, and what other programs call our flags. Refuses to know the parser. A guess that is far from the
word is worse than none: `None` then.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# What vLLM, llama.cpp, uvicorn and the Hub's own tool call it. Where several of ours could be meant, the first that the
# command has.
_ELSEWHERE = {
    "--host": ("--addr",),
    "--max-model-len": ("--max-ctx",),
    "--ctx-size": ("--max-ctx",),
    "--context": ("--max-ctx",),
    "--context-length": ("--max-ctx",),
    "-c": ("--max-ctx",),
    "--max-num-seqs": ("--slots",),
    "--parallel": ("--slots",),
    "-np": ("--slots",),
    "--max-num-batched-tokens": ("--token-budget",),
    "--gpu-memory-utilization": ("--gpu-memory-fraction",),
    "--no-enable-prefix-caching": ("--no-prefix-cache",),
    "--allowed-origins": ("--cors-origin",),
    "--alias": ("--served-model-name",),
    "--ssl-certfile": ("--tls-cert",),
    "--ssl-cert-file": ("--tls-cert",),
    "--ssl-keyfile": ("--tls-key",),
    "--ssl-key-file": ("--tls-key",),
    "--n-predict": ("--max-tokens",),
    "-n": ("--max-tokens",),
    "--prompt": ("--once",),
    "-p": ("--once", "--prompt"),
    "-m": ("--model",),
    "-t": ("--threads",),
    "--temperature": ("--temp",),
    "--system-prompt": ("--system",),
    "--local-dir": ("--dir",),
    "--output": ("--json",),
    "-o": ("--json", "--dir"),
    "--verbose": ("--log-level",),
    "-v": ("--log-level",),
    "--debug": ("--log-level",),
}


def meant(word: str, known: Iterable[str]) -> str | None:
    """The one of `known` that was probably meant. Dashes before a word say nothing, so they are not compared."""
    bare = {each.lstrip("-"): each for each in known}
    for name in _ELSEWHERE.get(word, ()):
        if name.lstrip("-") in bare:
            return name
    close = difflib.get_close_matches(word.lstrip("-"), bare, n=1, cutoff=0.6)
    return bare[close[0]] if close else None
