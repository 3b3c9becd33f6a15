"""What the text layer costs. Run: python -m tests.python.unit.text.bench_text, or the file itself, from the repository.

Prints microseconds per token of output and milliseconds per 1,000 tokens of prompt (best of several runs).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
sys.path.insert(0, str(ROOT))

from qwen3app.text.output import OutputStream  # noqa: E402 (needs the path above)
from qwen3app.text.template import ChatTemplate  # noqa: E402
from qwen3app.text.tokenizer import Tokenizer  # noqa: E402

MODEL = ROOT / "tests" / "data" / "qwen3"
PROSE = (
    "The scheduler gives each step a token budget: running requests decode first, then prompts come in chunks, and a "
    "long prompt never stalls the others for more than one chunk (see section 4). 迭代背景 and "
    "`code_like_this(1024)`.\n\n"
)


def best(run: Callable[[], None], times: int = 5) -> float:
    """CPU seconds of the quickest run."""
    seconds = []
    for _ in range(times):
        begin = time.process_time()
        run()
        seconds.append(time.process_time() - begin)
    return min(seconds)


def main() -> None:
    begin = time.perf_counter()
    tokenizer = Tokenizer.from_dir(MODEL)
    loaded = time.perf_counter()
    template = ChatTemplate.from_dir(MODEL, tokenizer)
    print(f"load: tokenizer {loaded - begin:.2f} s, template {time.perf_counter() - loaded:.3f} s")

    text = PROSE * 100
    ids = tokenizer.encode_raw(f"<think>\n{text}\n</think>\n\n{text}")
    for name, stops in (("no stop strings", []), ("4 stop strings", [" zeta eta", "\n\n\nQ:", "User:", "<|end|>"])):
        for size in (1, 8):

            def stream(stops: list[str] = stops, size: int = size) -> None:
                output = OutputStream(tokenizer, thinking=False, split_reasoning=True, stops=stops)
                for i in range(0, len(ids), size):
                    output.push(ids[i : i + size])
                output.finish()

            print(f"output, {name}, {size} token(s) a push: {best(stream) / len(ids) * 1e6:.2f} us/token")

    turns = 0
    for name, length in (("short", 0), ("1,000 tokens", 17), ("10,000 tokens", 170)):
        for kind in ("new", "same history"):
            sizes = []

            def render(kind: str = kind, length: int = length, sizes: list[int] = sizes) -> None:
                nonlocal turns
                turns += 1
                history = f"{turns if kind == 'new' else 0} {PROSE * length}"
                messages = [{"role": "system", "content": history}, {"role": "user", "content": f"{turns} hello"}]
                sizes.append(len(template.render(messages).ids))

            seconds = best(render)
            print(
                f"prompt, {name}, {kind}: {sizes[0]} tokens, {seconds * 1e3:.3f} ms, "
                f"{seconds * 1e6 / sizes[0]:.2f} ms per 1,000 tokens"
            )


if __name__ == "__main__":
    main()
