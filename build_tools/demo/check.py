"""Whether an answer is right: one reply of the model against what a sample expects.

Owns the rules of scoring. Refuses to know where replies come from.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from demo.sample import Expect, Sample

# Behind a number of calls a reply is judged by its calls alone.
_CONTROL = re.compile(r"<\|\w+\|>|</?think>|</?tool_call>|</?tool_response>")


@dataclass
class Reply:
    """What came out of the model, taken apart by the product's own parsers."""

    reasoning: str = ""
    content: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)  # name, arguments as JSON text
    finish: str = ""


def wants_thought(sample: Sample) -> bool:
    """Thinking is on, and the question does not switch it off."""
    question = str(sample.messages[-2].get("content", ""))
    return sample.thinking and not question.endswith("/no_think")


def protocol_fault(sample: Sample, reply: Reply) -> str | None:
    """What is malformed, or None: the turn ends by itself, a thought exactly where one belongs, no stray tags."""
    if reply.finish not in ("stop", "tool_calls"):
        return f"ends with {reply.finish}"
    if bool(reply.reasoning.strip()) != wants_thought(sample):
        return "no thought" if wants_thought(sample) else "a thought where none belongs"
    if not reply.content.strip() and not reply.calls:
        return "neither words nor a call"
    if stray := _CONTROL.search(reply.content + reply.reasoning):
        return f"stray {stray[0]}"
    if reply.calls and sample.tools is None:
        return "a call without tools"
    return None


def fault(sample: Sample, reply: Reply) -> str | None:
    """Why the answer is wrong, or None."""
    expect = sample.expect
    if expect.calls is not None and (wrong := _calls_fault(sample, expect, reply)):
        return wrong
    content = reply.content.strip()
    if expect.exact is not None and content != expect.exact and not content.endswith(f"\n{expect.exact}"):
        return f"expected {expect.exact!r}"
    # Worked answers show numbers on the way; the last line has the result.
    last = content.rsplit("\n", 1)[-1]
    if expect.answer and not any(_holds(content if "\n" in answer else last, answer) for answer in expect.answer):
        return f"expected {expect.answer[0]!r}"
    for said in expect.says:
        if not _holds(content, said):
            return f"expected {said!r}"
    if expect.json is not None:
        try:
            found: Any = json.loads(content)
        except ValueError:
            return "no JSON"
        if found != expect.json:
            return f"expected {json.dumps(expect.json)}"
    return None


def _holds(text: str, answer: str) -> bool:
    """The answer stands in the text, and not inside a word or number."""
    return re.search(rf"(?<![\w.-]){re.escape(answer)}(?!\w)", text) is not None


def _calls_fault(sample: Sample, expect: Expect, reply: Reply) -> str | None:
    """Names and arguments must be those expected, and fit the schema."""
    import jsonschema  # type: ignore[import-untyped]

    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in sample.tools or []}
    found = []
    for name, text in reply.calls:
        if name not in schemas:
            return f"there is no function {name}"
        arguments = json.loads(text)
        try:
            jsonschema.validate(arguments, schemas[name])
        except jsonschema.ValidationError as error:
            return f"{name}: {error.message}"
        found.append((name, arguments))
    wanted = list(expect.calls or ())
    if found != wanted:
        return f"calls {json.dumps(found)}, expected {json.dumps(wanted)}"
    return None
