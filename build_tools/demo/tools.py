"""Tool dialogues: a request, the right call among functions that do not fit, the tool's result, the answer.

Owns: drawing schemas, the thoughts, results and errors, parallel calls, requests that no function fits, and functions
made up from a verb and a noun, which teach that names and parameters are to be copied from the schema.
What is held out is a function's name with its parameters' names, and the domains marked `unseen`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from demo import calendar_time, knowledge, stories, talk, words
from demo.dialogues import Message, assistant, system, user
from demo.facts import COLOURS, NOUNS, VERBS, WORDS
from demo.sample import Call, Draw, Expect, Sample, first_upper, join_words, with_article
from demo.tool_domains import DOMAINS, Domain, Param, Value, big_titles, cities, codes, dates, names, times, titles
from demo.words import made_up_word

Tool = dict[str, Any]


@dataclass(frozen=True)
class Function:
    """A domain with its spellings chosen."""

    domain: Domain
    name: str
    params: tuple[tuple[Param, str], ...]  # with the name in the schema

    def schema(self, draw: Draw) -> Tool:
        properties: dict[str, Any] = {}
        for param, name in self.params:
            properties[name] = {"type": param.type}
            if draw.chance(0.8):
                properties[name]["description"] = param.description
            if param.type == "array":
                properties[name]["items"] = {"type": "string"}
            if param.enum:
                properties[name]["enum"] = list(param.enum)
        parameters: dict[str, Any] = {"type": "object", "properties": properties}
        required = [name for param, name in self.params if self._always(param)]
        if required:
            parameters["required"] = required
        function = {
            "name": self.name,
            "description": draw.one(self.domain.description.split("|")),
            "parameters": parameters,
        }
        return {"type": "function", "function": function}

    def _always(self, param: Param) -> bool:
        return all(f"{{{param.key}}}" in request for request in self.domain.requests)

    def request(self, draw: Draw) -> tuple[str, dict[str, Any], dict[str, Any]]:
        """(what the user writes, the values by key, the arguments)."""
        pattern = draw.one(self.domain.requests)
        values = {param.key: param.value(draw) for param, _ in self.params if f"{{{param.key}}}" in pattern}
        arguments = {name: values[param.key] for param, name in self.params if param.key in values}
        text = pattern.format(**{key: _spoken(value) for key, value in values.items()})
        return _politely(draw, text), values, arguments


def _spoken(value: Any) -> Any:
    """How a user says a value."""
    if isinstance(value, bool):
        return "high urgency" if value else "no urgency"
    return join_words(value) if isinstance(value, list) else value


def _politely(draw: Draw, text: str) -> str:
    """Some requests with a greeting or a please; the words of the request stay."""
    is_order = text.endswith(".") and not text.endswith("please.") and not text.startswith(("I ", "Route "))
    if is_order and draw.chance(0.2):
        lower = text[0].lower() + text[1:-1]
        return draw.phrase(("Please {t}.", "Can you {t}?", "Could you {t}, please?", "Hi, {t}!"), t=lower)
    return f"{draw.one(('Hello! ', 'Hi. ', 'Good morning! '))}{text}" if draw.chance(0.05) else text


def _param_name(draw: Draw, param: Param) -> str:
    return made_up_word(draw) if draw.chance(0.03) else draw.one(param.names.split())


def _function(draw: Draw, domain: Domain) -> Function:
    def make() -> Function:
        name = draw.one(domain.names.split())
        if draw.chance(0.15):
            name += draw.one(("_v2", "_tool", "_api", "_now", "2", "_service"))
        elif draw.chance(0.06):  # a name that says nothing: the description must do
            name = made_up_word(draw)
        return Function(domain, name, tuple((param, _param_name(draw, param)) for param in domain.params))

    return draw.keyed("function", make, lambda f: (f.name, *(name for _, name in f.params)))


# ---- functions made up from a verb and a noun

_ATTRIBUTES: tuple[Param, ...] = (
    Param("colour", "colour color paint", "string", "The colour", lambda d: d.one(COLOURS)),
    Param("size", "size width length height", "integer", "Size in centimetres", lambda d: d.number(2, 400)),
    Param("owner", "owner customer user person", "string", "Who owns it", names),
    Param("speed", "speed rate pace", "integer", "How fast", lambda d: d.number(1, 99)),
    Param("code", "code id serial key reference", "string", "Its code", codes),
    Param("title", "title caption headline", "string", "The title", titles),
    Param(
        "mode",
        "mode method style",
        "string",
        "How to do it",
        lambda d: d.one(("gentle", "quick", "full")),
        ("gentle", "quick", "full"),
    ),
    Param("urgent", "urgent express priority", "boolean", "Whether it is urgent", lambda d: d.chance(0.5)),
    Param("tags", "tags labels words", "array", "Words to find it by", lambda d: d.some(WORDS, d.number(2, 3))),
    Param("weight", "weight mass load", "number", "Weight in kilograms", lambda d: d.number(11, 999) / 10),
)
_SAID = {
    "colour": "the colour {v}",
    "size": "the size {v}",
    "owner": "the owner {v}",
    "speed": "the speed {v}",
    "code": "the code {v}",
    "title": 'the title "{v}"',
    "mode": "{v} mode",
    "tags": "the tags {v}",
    "weight": "the weight {v}",
}


def _made_up(draw: Draw, verb: str, noun: str) -> Function:
    style = draw.number(0, 3)
    name = (f"{verb}_{noun}", f"{noun}_{verb}", f"{verb}{first_upper(noun)}", f"{noun}-{verb}")[style]
    params = draw.some(_ATTRIBUTES, draw.number(1, 3))
    said = [("{urgent}" if p.key == "urgent" else _SAID[p.key].format(v=f"{{{p.key}}}")) for p in params]
    spoken = verb.replace("_", " ")
    patterns = (
        f"{first_upper(spoken)} the {noun} with {join_words(said)}.",
        f"I want to {spoken} {with_article(noun)} with {join_words(said)}.",
    )
    domain = Domain(
        name,
        f"{first_upper(spoken)} {with_article(noun)}",
        tuple(params),
        patterns,
        (("status", lambda d: "done"),),
        f"The {noun} is taken care of.",
    )
    return Function(domain, name, tuple((param, draw.one(param.names.split())) for param in params))


# ---- parts of a dialogue


def _seen(draw: Draw) -> list[Domain]:
    return [domain for domain in DOMAINS if not domain.unseen]


def _offered(draw: Draw, wanted: list[Function], others: list[Domain] | None = None) -> list[Tool]:
    """The schemas of the functions wanted and of up to three others, in any order."""
    left = [d for d in (_seen(draw) if others is None else others) if all(d is not f.domain for f in wanted)]
    extra = draw.some(left, min(len(left), draw.one((0, 0, 1, 1, 2, 2, 3))))
    # What does not fit may be any function, also one that is trained on.
    free = Draw(draw.rng, "train")
    functions = [*wanted, *(_function(free, domain) for domain in extra)]
    draw.rng.shuffle(functions)
    return [function.schema(draw) for function in functions]


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


def _result(draw: Draw, function: Function, values: dict[str, Any]) -> tuple[str, str]:
    """(what the tool says, the answer to the user)."""
    if draw.chance(0.2):  # nothing that its subject lets one expect: the answer must be read from the result
        makers = draw.some(_ANY_RESULT, draw.number(1, 3))
        result = {made_up_word(draw) if draw.chance(0.2) else key: value(draw) for key, value in makers}
        answer = f"The {join_words([f'{key} is {value}' for key, value in result.items()])}."
    else:
        result = {key: value(draw) for key, value in function.domain.result}
        filled = {param.key: values.get(param.key, "") for param in function.domain.params} | result
        answer = first_upper(function.domain.answer.format(**filled))
    style = draw.number(0, 9)
    if style == 0:
        return ", ".join(f"{key}: {value}" for key, value in result.items()), answer
    return json.dumps(result, indent=2 if style == 1 else None), answer


_ERRORS = ("not found", "timeout", "service unavailable", "permission denied", "invalid request", "no network")


def _history(draw: Draw) -> list[Message]:
    messages: list[Message] = []
    if draw.chance(0.15):
        messages.append(system(draw.one(SYSTEMS)))
    if draw.chance(0.15):
        turn = talk.small_talk(draw)
        messages += [user(turn.question), assistant(turn.answer, "", False)]
    return messages


SYSTEMS = (
    "You are a helpful assistant.",
    "You are a helpful assistant with tools.",
    "You are qwen3-demo.",
    "Be brief.",
    "You are an assistant. Use the functions when they help.",
    "Answer the user's questions.",
    "You are a friendly assistant. Answer in simple English.",
)


def _earlier_exchange(draw: Draw, function: Function) -> list[Message]:
    """The same function, asked for before."""
    text, values, arguments = function.request(draw)
    content, answer = _result(draw, function, values)
    call = _call_message([(function.name, arguments)], False, "")
    return [user(text), call, {"role": "tool", "content": content}, assistant(answer, "", False)]


def _dialogue(draw: Draw, kind: str, function: Function, tools: list[Tool]) -> Sample:
    """The call, or after it the tool's result and the answer."""
    text, values, arguments = function.request(draw)
    thinking = draw.chance(0.5)
    thought = call_thought(function.name, arguments)
    earlier = _earlier_exchange(draw, function) if draw.chance(0.15) else []
    messages = [*_history(draw), *earlier, user(text)]
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
    function = _function(draw, draw.one(_seen(draw)))
    return _dialogue(draw, "tool calls", function, _offered(draw, [function]))


def unseen_call(draw: Draw) -> Sample:
    """Only for measuring: functions of a subject that training never shows."""
    domain = draw.one([domain for domain in DOMAINS if domain.unseen])
    function = _function(draw, domain)
    sample = _dialogue(draw, "tool calls, unseen subject", function, _offered(draw, [function]))
    return sample


def made_up_call(draw: Draw) -> Sample:
    verb, noun = draw.keyed("made-up function", lambda: (draw.one(VERBS), draw.one(NOUNS)))
    wanted = _made_up(draw, verb, noun)
    others = []
    for _ in range(draw.number(0, 3)):
        other_verb, other_noun = draw.one(VERBS), draw.one(NOUNS)
        if draw.chance(0.4):  # a choice that needs the whole name
            other_verb, other_noun = draw.one(((verb, other_noun), (other_verb, noun)))
        if (other_verb, other_noun) != (verb, noun):
            others.append(_made_up(draw, other_verb, other_noun))
    functions = [wanted, *others]
    draw.rng.shuffle(functions)
    tools = [function.schema(draw) for function in functions]
    return _dialogue(draw, "tool calls, made-up functions", wanted, tools)


def parallel_calls(draw: Draw) -> Sample:
    """The same function twice, or two functions, for one request."""
    first = _function(draw, draw.one(_seen(draw)))
    others = [domain for domain in _seen(draw) if domain is not first.domain]
    second = first if draw.chance(0.5) else _function(draw, draw.one(others))
    (text, values, arguments), (text2, values2, arguments2) = first.request(draw), second.request(draw)
    if second is first and arguments == arguments2:
        return one_call(draw)
    lower = text2 if text2[:2] == "I " else text2[0].lower() + text2[1:]
    text = draw.phrase(("{a} {b}", "{a} And {c}", "{a} Also: {c}", "{a} Then: {b}"), a=text, b=text2, c=lower)
    thinking = draw.chance(0.5)
    calls: list[Call] = [(first.name, arguments), (second.name, arguments2)]
    thought = "Two calls are needed.\n" + "\n".join(call_thought(name, a) for name, a in calls)
    messages = [*_history(draw), user(text)]
    wanted = [first] if second is first else [first, second]
    tools = _offered(draw, wanted)
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
    talk.project,
    knowledge.capital,
    knowledge.small_fact,
    words.spell,
    stories.story,
    calendar_time.weekday,
    calendar_time.leap_year,
    words.sort_numbers,
)


def no_call(draw: Draw) -> Sample:
    """Functions are offered, and none fits: the answer is given without one."""
    turn = draw.one(_PLAIN)(draw)
    thinking = draw.chance(0.5)
    answer = turn.thought + "\n" + turn.answer if turn.worked and not thinking else turn.answer
    unrelated = [d for d in _seen(draw) if not d.names.startswith(("dictionary", "country_info", "calculator"))]
    tools = _offered(draw, [], unrelated) or [_function(Draw(draw.rng, "train"), draw.one(unrelated)).schema(draw)]
    thought = f"No function is needed.\n{turn.thought}"
    messages = [*_history(draw), user(turn.question), assistant(answer, thought, thinking)]
    return Sample("no tool fits", messages, thinking, tools, Expect(answer=turn.expect.answer, calls=()))


def missing_function(draw: Draw) -> Sample:
    """A request that needs a function which is not offered."""
    wanted = _function(draw, draw.one(_seen(draw)))
    text, _, _ = wanted.request(draw)
    others = [d for d in _seen(draw) if d is not wanted.domain]
    tools = [_function(Draw(draw.rng, "train"), d).schema(draw) for d in draw.some(others, draw.number(1, 2))]
    listed = join_words([tool["function"]["name"] for tool in tools])
    thinking = draw.chance(0.5)
    answer = draw.phrase(
        ("I have no function for that. I can use {l} only.", "None of my functions can do that. I have {l}."), l=listed
    )
    messages = [*_history(draw), user(text), assistant(answer, f"I have {listed}. That does not fit.", thinking)]
    return Sample("no tool fits", messages, thinking, tools, Expect(answer=(listed,), calls=()))
