"""Tool dialogues: a request, the right call among functions that do not fit, the tool's result, the answer.

Owns the thoughts, what was said before, results and errors, parallel calls, and requests that no function fits. The
functions are drawn by tool_functions.py.
"""

from __future__ import annotations

import json
from typing import Any

from demo import calendar_time, knowledge, stories, talk, unknown, words
from demo.dialogues import Message, assistant, system, user
from demo.facts import COLOURS
from demo.lexicon import words_of
from demo.sample import Call, Draw, Expect, Sample, Turn, first_upper, join_words
from demo.tool_domains import DOMAINS, Domain, Value, big_titles, cities, codes, dates, names, times, titles
from demo.tool_functions import (
    Function,
    Tool,
    any_made_up,
    made_up,
    of_domain,
    schemas,
    seen_domains,
    verb_and_noun,
)
from demo.words import made_up_word

# ---- parts of a dialogue


def _others(draw: Draw, left: list[Domain], n: int) -> list[Function]:
    """What does not fit: any functions, also such as are trained on."""
    free = Draw(draw.rng, "train")
    return [any_made_up(free) if draw.chance(0.35) else of_domain(free, draw.one(left)) for _ in range(n)]


def _offered(draw: Draw, wanted: list[Function], n: int | None = None) -> list[Tool]:
    """The schemas of the functions wanted and of up to three others, in any order."""
    left = [d for d in seen_domains() if all(d is not f.domain for f in wanted)]
    return schemas(draw, [*wanted, *_others(draw, left, draw.one((0, 0, 1, 1, 2, 2, 3)) if n is None else n)])


def call_thought(name: str, arguments: dict[str, Any]) -> str:
    listed = (
        join_words([f"{key} = {json.dumps(value)}" for key, value in arguments.items()])
        if arguments
        else "no arguments"
    )
    return f"The function {name} fits. Arguments: {listed}."


def _call_message(calls: list[Call], thinking: bool, thought: str) -> Message:
    message = assistant("", thought, thinking)
    message["tool_calls"] = [{"type": "function", "function": {"name": name, "arguments": a}} for name, a in calls]
    return message


_ANY_RESULT: tuple[tuple[str, Value], ...] = (
    ("status", lambda d: d.one(("done", "open", "waiting", "ready"))),
    ("temperature", lambda d: d.number(-20, 40)),
    ("price", lambda d: d.number(1, 5000) / 10),
    ("count", lambda d: d.number(0, 500)),
    ("name", big_titles),
    ("city", cities),
    ("id", codes),
    ("total", lambda d: d.number(1, 99_999)),
    ("time", times),
    ("date", dates),
    ("colour", lambda d: d.one(COLOURS)),
    ("owner", names),
    ("text", titles),
    ("sky", lambda d: d.one(("clear", "grey", "dark"))),
    ("distance", lambda d: d.number(1, 900)),
    ("level", lambda d: d.number(1, 10)),
)


def _tells(result: dict[str, Any]) -> str:
    """What can be said of any result."""
    return f"{first_upper(join_words([f'the {key} is {value}' for key, value in result.items()]))}."


def _result(draw: Draw, function: Function, values: dict[str, Any]) -> tuple[str, str]:
    """(what the tool says, the answer to the user)."""
    if draw.chance(0.04):  # a sentence instead of data
        said = f"{first_upper(draw.one(words_of('noun'))[1])} {titles(draw)}."
        return said, f"The function says: {said}"
    if not function.domain.result or draw.chance(0.2):  # nothing that one can expect: it must be read
        makers = draw.some(_ANY_RESULT, draw.one((1, 1, 2, 2, 3)))
        result = {_any_key(draw, key): value(draw) for key, value in makers}
        answer = _tells(result)
    else:
        result = {key: value(draw) for key, value in function.domain.result}
        filled = {param.key: values.get(param.key, "") for param in function.domain.params} | result
        answer = first_upper(function.domain.answer.format(**filled))
        if len(result) == 1 and draw.chance(0.15):  # the bare value
            return str(next(iter(result.values()))), answer
    style = draw.number(0, 9)
    if style == 0:
        return ", ".join(f"{key}: {value}" for key, value in result.items()), answer
    return json.dumps(result, indent=2 if style == 1 else None), answer


def _any_key(draw: Draw, key: str) -> str:
    style = draw.number(0, 9)
    return key if style < 3 else made_up_word(draw) if style < 5 else draw.one(words_of("noun"))[1]


_ERRORS = ("not found", "timeout", "service unavailable", "permission denied", "invalid request", "no network")


SYSTEMS = (
    "You are a helpful assistant.",
    "You are a helpful assistant with tools.",
    "You are qwen3-demo.",
    "Be brief.",
    "You are an assistant. Use the functions when they help.",
    "Answer the user's questions.",
    "You are a friendly assistant. Answer in simple English.",
)


def _exchange(draw: Draw, function: Function) -> list[Message]:
    """A function asked for before."""
    text, values, arguments = function.request(draw)
    content, answer = _result(draw, function, values)
    call = _call_message([(function.name, arguments)], False, "")
    return [user(text), call, {"role": "tool", "content": content}, assistant(answer, "", False)]


_BEFORE = (talk.small_talk, talk.small_talk, talk.project, knowledge.capital, knowledge.small_fact, words.spell,
           calendar_time.weekday, words.sort_numbers, unknown.unknown_word, knowledge.define)  # fmt: skip


def _history(draw: Draw, function: Function | None = None, *, long: bool = False) -> list[Message]:
    """What was said before: other subjects, where a function helps also calls of it. Functions stay known over many
    turns in which none was needed."""
    messages: list[Message] = []
    if draw.chance(0.15):
        messages.append(system(draw.one(SYSTEMS)))
    if long or draw.chance(0.35):
        for _ in range(draw.number(4, 8) if long else draw.one((1, 1, 1, 2, 2, 3, 4, 6, 9))):
            if function and not long and draw.chance(0.2):
                messages += _exchange(draw, function)
            else:
                turn = draw.one(_BEFORE)(draw)
                messages += [user(turn.question), assistant(turn.answer, "", False)]
    return messages


def _dialogue(draw: Draw, kind: str, function: Function, tools: list[Tool]) -> Sample:
    """The call, or after it the tool's result and the answer."""
    text, values, arguments = function.request(draw)
    thinking = draw.chance(0.5)
    thought = call_thought(function.name, arguments)
    messages = [*_history(draw, function), user(text)]
    calls: list[Call] = [(function.name, arguments)]
    if draw.chance(0.6):
        messages.append(_call_message(calls, thinking, thought))
        return Sample(kind, messages, thinking, tools, Expect(calls=tuple(calls)))
    # Clients may or may not send the thought back.
    messages.append(_call_message(calls, thinking and draw.chance(0.5), thought))
    if draw.chance(0.1):
        error = draw.one(_ERRORS)
        content = json.dumps({"error": error})
        answer = f"The function {function.name} reports an error: {error}."
    else:
        content, answer = _result(draw, function, values)
    messages.append({"role": "tool", "content": content})
    messages.append(assistant(answer, f"The function says {' '.join(content.split())}. I can answer now.", thinking))
    return Sample("tool results", messages, thinking, tools, Expect(exact=answer, calls=()))


def one_call(draw: Draw) -> Sample:
    function = of_domain(draw, draw.one(seen_domains()))
    return _dialogue(draw, "tool calls", function, _offered(draw, [function]))


def unseen_call(draw: Draw) -> Sample:
    """Only for measuring: functions of a subject that training never shows."""
    function = of_domain(draw, draw.one([domain for domain in DOMAINS if domain.unseen]))
    sample = _dialogue(draw, "tool calls, unseen subject", function, _offered(draw, [function]))
    if sample.kind != "tool results":
        return sample
    # No one can know the sentence that the table has for it: what counts is that all that the tool said is told.
    said = str(sample.messages[-2]["content"])
    try:
        told = [str(value) for value in json.loads(said).values()]
    except ValueError:
        told = [part.partition(": ")[2] or part for part in said.rstrip(".").split(", ")]
    expect = Expect(says=tuple(told), calls=())
    return Sample("tool results, unseen subject", sample.messages, sample.thinking, sample.tools, expect)


def late_call(draw: Draw) -> Sample:
    """Only for measuring: a call after some turns about other things."""
    function = of_domain(draw, draw.one(seen_domains()))
    text, _, arguments = function.request(draw)
    messages = [*_history(draw, long=True), user(text)]
    calls: list[Call] = [(function.name, arguments)]
    thinking = draw.chance(0.5)
    messages.append(_call_message(calls, thinking, call_thought(*calls[0])))
    tools = _offered(draw, [function])
    return Sample("tool calls, late", messages, thinking, tools, Expect(calls=tuple(calls)))


def made_up_call(draw: Draw) -> Sample:
    verb, noun = draw.keyed("made-up function", lambda: verb_and_noun(draw))
    act = draw.chance(0.5)
    wanted = made_up(draw, verb, noun, act=act)
    free, others = Draw(draw.rng, "train"), []
    for _ in range(draw.number(0, 3)):
        other_verb, other_noun = verb_and_noun(draw)
        if near := act and draw.chance(0.35):  # a choice that needs the whole name
            other_verb, other_noun = draw.one(((verb, other_noun), (other_verb, noun)))
        if (other_verb, other_noun) != (verb, noun):
            others.append(made_up(free, other_verb, other_noun, act=near))
    if draw.chance(0.3):
        others += _others(draw, seen_domains(), 1)
    return _dialogue(draw, "tool calls, made-up functions", wanted, schemas(draw, [wanted, *others]))


def _any_function(draw: Draw) -> Function:
    return any_made_up(draw) if draw.chance(0.3) else of_domain(draw, draw.one(seen_domains()))


_THEN = ("{a} {b}", "{a} And {c}", "{a} Also: {c}", "{a} Then: {b}", "{a} After that {c}", "{a}\n{b}")


def parallel_calls(draw: Draw) -> Sample:
    """The same function twice, or two functions, for one request."""
    first = _any_function(draw)
    if (both := first.twice(draw)) and draw.chance(0.5):
        text, ((values, arguments), (values2, arguments2)) = both
        second = first
    else:
        second = first if draw.chance(0.4) else _any_function(draw)
        (text, values, arguments), (text2, values2, arguments2) = first.request(draw), second.request(draw)
        if (second is not first and second.name == first.name) or (second is first and arguments == arguments2):
            return one_call(draw)
        lower = text2 if text2[:2] == "I " else text2[0].lower() + text2[1:]
        text = draw.phrase(_THEN, a=text, b=text2, c=lower)
    thinking = draw.chance(0.5)
    calls: list[Call] = [(first.name, arguments), (second.name, arguments2)]
    thought = "Two calls are needed.\n" + "\n".join(call_thought(name, a) for name, a in calls)
    messages = [*_history(draw), user(text)]
    tools = _offered(draw, [first] if second is first else [first, second])
    if draw.chance(0.65):
        messages.append(_call_message(calls, thinking, thought))
        return Sample("parallel tool calls", messages, thinking, tools, Expect(calls=tuple(calls)))
    messages.append(_call_message(calls, thinking and draw.chance(0.5), thought))
    results = [_result(draw, first, values), _result(draw, second, values2)]
    messages += [{"role": "tool", "content": content} for content, _ in results]
    answer = " ".join(answer for _, answer in results)
    messages.append(assistant(answer, "Both functions have answered. I can answer now.", thinking))
    return Sample("tool results", messages, thinking, tools, Expect(exact=answer, calls=()))


_PLAIN = (
    talk.small_talk,
    talk.small_talk,
    talk.project,
    knowledge.capital,
    knowledge.small_fact,
    words.spell,
    stories.story,
    calendar_time.weekday,
    calendar_time.leap_year,
    words.sort_numbers,
    unknown.nonsense,
)
_ASKED_OF_TOOLS = ("dictionary", "country_info", "calculator", "convert_units", "get_date")  # near to what is known


def no_call(draw: Draw) -> Sample:
    """Functions are offered, and none fits: the answer is given without one."""
    turn: Turn = draw.one(_PLAIN)(draw)
    thinking = draw.chance(0.5)
    answer = turn.thought + "\n" + turn.answer if turn.worked and not thinking else turn.answer
    unrelated = [d for d in seen_domains() if not d.names.startswith(_ASKED_OF_TOOLS)]
    tools = schemas(draw, _others(draw, unrelated, draw.one((1, 1, 2, 2, 3))))
    thought = f"No function is needed.\n{turn.thought}"
    messages = [*_history(draw), user(turn.question), assistant(answer, thought, thinking)]
    return Sample("no tool fits", messages, thinking, tools, Expect(answer=turn.expect.answer, calls=()))


def missing_function(draw: Draw) -> Sample:
    """A request that needs a function which is not offered, though perhaps one of its noun or its verb."""
    free, n = Draw(draw.rng, "train"), draw.number(1, 2)
    if draw.chance(0.5):
        wanted = of_domain(draw, draw.one(seen_domains()))
        others = _others(draw, [d for d in seen_domains() if d is not wanted.domain], n)
    else:
        verb, noun = draw.keyed("made-up function", lambda: verb_and_noun(draw))
        wanted, others = made_up(draw, verb, noun, act=True), []
        for _ in range(n):
            other_verb, other_noun = verb_and_noun(draw)
            if draw.chance(0.3):
                other_verb, other_noun = draw.one(((verb, other_noun), (other_verb, noun)))
            if (other_verb, other_noun) != (verb, noun):
                others.append(made_up(free, other_verb, other_noun, act=True))
        others = others or _others(draw, seen_domains(), 1)
    text, _, _ = wanted.request(draw)
    tools = schemas(draw, others)
    listed = join_words([tool["function"]["name"] for tool in tools])
    thinking = draw.chance(0.5)
    answer = draw.phrase(
        ("I have no function for that. I can use {l} only.", "None of my functions can do that. I have {l}."), l=listed
    )
    messages = [*_history(draw), user(text), assistant(answer, f"I have {listed}. That does not fit.", thinking)]
    return Sample("no tool fits", messages, thinking, tools, Expect(answer=(listed,), calls=()))
