"""Measures the demo model with the engine: greedy answers to held-out conversations.

    python build_tools/evaluate_demo.py --model qwen3app/qwen3-demo

Owns the run and the table. What is asked comes from demo/corpus.py (never trained on), what is right from
demo/check.py; tokens, thoughts and calls go through the product's own template, engine and parsers. Exits 1 when a bar
is missed, and says whether the model's card knows. Needs the program, numpy and jsonschema alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the product of this tree, wherever the script is run from

from demo.check import Reply, fault, protocol_fault  # noqa: E402
from demo.corpus import RECIPE, held_out  # noqa: E402
from demo.sample import Sample  # noqa: E402

from qwen3app.abi import EngineOptions  # noqa: E402
from qwen3app.errors import AppError  # noqa: E402
from qwen3app.runtime.loaded_model import LoadedModel  # noqa: E402
from qwen3app.runtime.params import GenerationParams  # noqa: E402
from qwen3app.runtime.runtime import Runtime  # noqa: E402
from qwen3app.text.call_stream import CallPolicy  # noqa: E402

_MAX_TOKENS = 500  # the longest right answer has about 300
_SLOTS = 64


@dataclass(frozen=True)
class Bar:
    """A share that the answers to some kinds together must reach."""

    name: str
    kinds: tuple[str, ...]  # (): all
    share: float
    protocol: bool = False  # of well-formed answers, not of right ones


BARS = (
    Bar("protocol well-formed", (), 1.0, protocol=True),
    Bar("right tool and valid arguments", ("tool calls", "tool calls, made-up functions", "parallel tool calls"), 0.95),
    Bar("two-digit add and subtract", ("add, two digits", "subtract, two digits"), 0.95),
)


@dataclass(frozen=True)
class Judged:
    sample: Sample
    reply: Reply
    protocol: str | None
    wrong: str | None


async def answer(runtime: Runtime, sample: Sample) -> Reply:
    """What the model says in place of the sample's last message."""
    prompt = runtime.model.template.render(
        sample.messages[:-1], tools=sample.tools, template_kwargs={"enable_thinking": sample.thinking}
    )
    policy = CallPolicy.MANY if sample.tools else None
    params = GenerationParams(temperature=0.0, max_tokens=_MAX_TOKENS, calls=policy)
    reply = Reply()
    generation = runtime.generate(prompt.ids, params, thinking=prompt.thinking, split_reasoning=True)
    async with aclosing(generation):
        async for deltas in generation:
            for delta in deltas:
                reply.reasoning += delta.reasoning
                reply.content += delta.content
                reply.calls += [(call.name, call.arguments) for call in delta.calls]
                reply.finish = delta.finish_reason or reply.finish
    return reply


async def judge_all(model: LoadedModel, conversations: Sequence[Sample]) -> list[Judged]:
    runtime = Runtime(model)
    await runtime.start()
    try:
        replies = await asyncio.gather(*(answer(runtime, sample) for sample in conversations))
    finally:
        await runtime.stop()
    return [
        Judged(sample, reply, protocol_fault(sample, reply), fault(sample, reply))
        for sample, reply in zip(conversations, replies, strict=True)
    ]


def judge_model(model_dir: Path, options: EngineOptions, conversations: Sequence[Sample]) -> list[Judged]:
    """Loads the model, asks it all at once and closes it. Raises AppError where it cannot be loaded."""
    model = LoadedModel.load(model_dir, options)
    try:
        return asyncio.run(judge_all(model, conversations))
    finally:
        model.close()


def _share(judged: Sequence[Judged], *, protocol: bool = False) -> float | None:
    good = [(item.protocol if protocol else item.wrong) is None for item in judged]
    return sum(good) / len(good) if good else None


def scores(judged: Sequence[Judged]) -> dict[str, dict[str, float | int | None]]:
    """Per kind: how many, and the shares that are right with and without thoughts, and well-formed."""
    kinds = {item.sample.kind: [j for j in judged if j.sample.kind == item.sample.kind] for item in judged}
    return {
        kind: {
            "n": len(items),
            "right": _share(items),
            "right_thinking": _share([j for j in items if j.sample.thinking]),
            "right_not_thinking": _share([j for j in items if not j.sample.thinking]),
            "well_formed": _share(items, protocol=True),
        }
        for kind, items in kinds.items()
    }


def bar_results(judged: Sequence[Judged]) -> list[tuple[Bar, float]]:
    results = []
    for bar in BARS:
        items = [j for j in judged if not bar.kinds or j.sample.kind in bar.kinds]
        results.append((bar, _share(items, protocol=bar.protocol) or 0.0))
    return results


def _percent(share: float | int | None) -> str:
    """Rounded down, so that only all of them are 100%."""
    return "-" if share is None else f"{math.floor(share * 1000 + 1e-6) / 10:.1f}%"


def table(all_scores: dict[str, dict[str, float | int | None]], results: Sequence[tuple[Bar, float]]) -> str:
    """Markdown."""
    lines = ["| kind | n | right | thinking | not thinking | well-formed |", "|---|---|---|---|---|---|"]
    for kind, row in all_scores.items():
        cells = [_percent(row[key]) for key in ("right", "right_thinking", "right_not_thinking", "well_formed")]
        lines.append(f"| {kind} | {row['n']} | {' | '.join(cells)} |")
    lines += ["", "| bar | asked | reached |", "|---|---|---|"]
    lines += [_bar_row(bar, share) for bar, share in results]
    return "\n".join(lines)


def with_scores(card: str, text: str, name: str = "scores") -> str:
    """The card with the text between its marks of this name."""
    before, mark, rest = card.partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- /{name} -->")
    if not mark or not end:
        raise ValueError(f"the card has no <!-- {name} --> and <!-- /{name} --> marks")
    return f"{before}{mark}{text}\n{end}{after}"


def _bar_row(bar: Bar, share: float) -> str:
    return f"| {bar.name} | {_percent(bar.share)} | {_percent(share)} |"


def verdict(missed: Sequence[tuple[Bar, float]], card: Path) -> str:
    """The last word: whether the card says of these bars that they are missed."""
    if not missed:
        return "every bar is reached."
    rows = card.read_text(encoding="utf-8").splitlines() if card.is_file() else []
    if all(_bar_row(bar, share) in rows for bar, share in missed):
        bars = "one bar is" if len(missed) == 1 else f"{len(missed)} bars are"
        return f"{card} has this table: it is known that {bars} missed, by so much. The exit code is 1 all the same."
    return f"this is not what {card} says."


def recipe_of(model: Path) -> int:
    """The number of the recipe that the model was trained by; 1 where its log does not say."""
    log = model / "training.json"
    return int(json.loads(log.read_text(encoding="utf-8")).get("recipe", 1)) if log.is_file() else 1


def _show_wrong(judged: Sequence[Judged], n: int) -> None:
    for item in [j for j in judged if j.wrong or j.protocol][:n]:
        reply: dict[str, Any] = {
            "thought": item.reply.reasoning,
            "answer": item.reply.content,
            "calls": item.reply.calls,
        }
        print(
            f"{item.sample.kind}: {item.protocol or item.wrong}\n  asked: {item.sample.messages[-2]}\n  said: {reply}",
            file=sys.stderr,
        )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measures the demo model on held-out conversations.")
    parser.add_argument("--model", type=Path, default=ROOT / "qwen3app" / "qwen3-demo", help="default: %(default)s")
    parser.add_argument("--each", type=int, default=40, help="conversations of each recipe (default %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the scores there too")
    parser.add_argument("--card", type=Path, metavar="FILE", help="put the tables into this model card")
    parser.add_argument("--show", type=int, default=0, metavar="N", help="show N wrong answers on stderr")
    parser.add_argument("--device", default="cpu", help="cpu or cuda:N (default %(default)s)")
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args(arguments)
    begin = time.perf_counter()
    conversations = [sample for kind in held_out(options.each).values() for sample in kind]
    engine_options = EngineOptions(
        device=options.device, max_slots=_SLOTS, max_queue=len(conversations), threads=options.threads
    )
    try:
        judged = judge_model(options.model, engine_options, conversations)
    except AppError as error:
        print(f"evaluate_demo: {error}", file=sys.stderr)
        return 1
    if (recipe := recipe_of(options.model)) != RECIPE:
        print(
            f"evaluate_demo: the model was trained by recipe {recipe}, this asks by recipe {RECIPE}: it may have seen "
            "some questions, and never heard of others; train it again with train_demo.py",
            file=sys.stderr,
        )
    all_scores, results = scores(judged), bar_results(judged)
    text = table(all_scores, results)
    print(f"{text}\n\n{len(judged)} conversations in {time.perf_counter() - begin:.0f} s.")
    _show_wrong(judged, options.show)
    if options.json:
        bars = {bar.name: {"asked": bar.share, "reached": share} for bar, share in results}
        options.json.write_text(json.dumps({"bars": bars, "kinds": all_scores}, indent=2) + "\n", encoding="utf-8")
    if options.card:
        options.card.write_text(with_scores(options.card.read_text(encoding="utf-8"), text), encoding="utf-8")
    missed = [(bar, share) for bar, share in results if share < bar.share]
    sys.stdout.flush()  # what follows is the last word
    for bar, share in missed:
        print(f"evaluate_demo: missed the bar, {bar.name}: {_percent(share)} of {_percent(bar.share)}", file=sys.stderr)
    print(f"evaluate_demo: {verdict(missed, options.model / 'README.md')}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
