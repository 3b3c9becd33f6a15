"""The functions that tool dialogues offer: a domain with its spellings chosen, and functions made up from words.

Owns Function (its schema, its requests), the draw from the table of tool_domains.py, and `made_up`: a verb and a noun
of the lexicon with a few slots, said as people say it. The table alone teaches its own subjects; these thousands teach
that a function is read from its schema: it fits when verb and noun agree, and all names are to be copied.
Refuses to know messages and thoughts (tools.py). Held out are a function's name with its parameters' names, a verb with
a noun, and the domains marked `unseen`: no word of theirs is a noun here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

from demo.facts import COLOURS, NOUNS, VERBS, WORDS
from demo.lexicon import words_of
from demo.sample import Draw, first_upper, join_words, with_article
from demo.tool_domains import (
    DOMAINS,
    Domain,
    Param,
    big_titles,
    cities,
    codes,
    dates,
    decimals,
    names,
    times,
    titles,
    whole,
)
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

    def twice(self, draw: Draw) -> tuple[str, list[tuple[dict[str, Any], dict[str, Any]]]] | None:
        """One request for two values of the only parameter it names ("... in Rome and Oslo?"), with the values and the
        arguments of each call; None where no request is like that."""
        alone = [p for p in self.domain.requests if len(re.findall(r"\{\w+\}", p)) == 1 and '"{' not in p]
        if not alone:
            return None
        pattern = draw.one(alone)
        param, name = next(item for item in self.params if f"{{{item[0].key}}}" in pattern)
        first, second = param.value(draw), param.value(draw)
        if param.type != "string" or first == second or "," in f"{first}{second}":
            return None
        word = draw.one(("and", "and", "and also"))
        text = pattern.format(**{param.key: f"{first} {word} {second}"})
        return _politely(draw, text), [({param.key: value}, {name: value}) for value in (first, second)]


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


# ---- of the table


def seen_domains() -> list[Domain]:
    return [domain for domain in DOMAINS if not domain.unseen]


def of_domain(draw: Draw, domain: Domain) -> Function:
    def make() -> Function:
        name = draw.one(domain.names.split())
        if draw.chance(0.15):
            name += draw.one(("_v2", "_tool", "_api", "_now", "2", "_service"))
        elif draw.chance(0.06):  # a name that says nothing: the description must do
            name = made_up_word(draw)
        params = ((p, made_up_word(draw) if draw.chance(0.03) else draw.one(p.names.split())) for p in domain.params)
        return Function(domain, name, tuple(params))

    return draw.keyed("function", make, lambda f: (f.name, *(name for _, name in f.params)))


# ---- made up


@cache
def _unseen_words() -> frozenset[str]:
    """All words of the domains that training never shows."""
    texts = [f"{d.names} {d.description} {' '.join(d.requests)} {d.answer}" for d in DOMAINS if d.unseen]
    apart = re.sub(r"([a-z])([A-Z])", r"\1 \2", " ".join(texts)).lower()
    return frozenset(re.findall(r"[a-z]+", apart))


@cache
def _nouns() -> tuple[str, ...]:
    made = [word for _, word, _ in words_of("noun") if not word.endswith("s")]
    return tuple(word for word in dict.fromkeys((*NOUNS, *made)) if word not in _unseen_words())


_EXCLUDED_VERBS = ("paint", "film", "park", "locate")  # the subjects of the unseen domains


@cache
def _verbs() -> tuple[str, ...]:
    return tuple(word for _, word, _ in words_of("verb") if word not in _EXCLUDED_VERBS)


def verb_and_noun(draw: Draw) -> tuple[str, str]:
    return draw.one(VERBS if draw.chance(0.75) else _verbs()), draw.one(_nouns())


def _slot(key: str, names_: str, type_: str, description: str, value: Any, enum: tuple[str, ...] = ()) -> Param:
    return Param(key, names_, type_, description, value, enum)


_GRADES = ("cheap", "good", "best")
_LEVELS = ("low", "normal", "high")
_MODES = ("gentle", "quick", "full", "silent")
# Where a slot stands: (before "of" the noun, before the noun, behind it, at the end), and how it is said there.
_SLOTS: tuple[tuple[str, str, Param], ...] = (
    ("amount", "{boxes} boxes of", _slot("boxes", "boxes count n", "integer", "How many boxes", whole(2, 60))),
    ("amount", "{grams} grams of", _slot("grams", "grams weight amount", "number", "Grams", whole(5, 900))),
    ("amount", "{pieces} pieces of", _slot("pieces", "pieces quantity number", "integer", "Pieces", whole(2, 99))),
    ("amount", "{metres} metres of", _slot("metres", "metres length", "number", "How long", whole(2, 80))),
    ("amount", "{packets} packets of", _slot("packets", "packets amount", "integer", "Packets", whole(2, 30))),
    ("kind", "{colour}", _slot("colour", "colour color tint", "string", "The colour", lambda d: d.one(COLOURS))),
    ("kind", "{grade}", _slot("grade", "grade quality kind", "string", "Which", lambda d: d.one(_GRADES), _GRADES)),
    ("name", '"{title}"', _slot("title", "title name caption", "string", "The title", titles)),
    ("name", '"{label}"', _slot("label", "label heading name", "string", "Its name", big_titles)),
    ("name", "{code}", _slot("code", "code id serial key reference", "string", "Its code", codes)),
    ("name", "number {number}", _slot("number", "number no index", "integer", "Its number", whole(1, 9999))),
    ("tail", "in {place}", _slot("place", "place city town area", "string", "Where", cities)),
    ("tail", "near {close}", _slot("close", "near around place", "string", "Close to what", cities)),
    ("tail", "from {start}", _slot("start", "start from origin source", "string", "From where", cities)),
    ("tail", "to {goal}", _slot("goal", "goal to target", "string", "Where to", cities)),
    ("tail", "on {day}", _slot("day", "day date on", "string", "The day", dates)),
    ("tail", "at {time}", _slot("time", "time at hour", "string", "The time", times)),
    ("tail", "for {person}", _slot("person", "person customer user owner", "string", "For whom", names)),
    ("tail", "by {maker}", _slot("maker", "maker author by", "string", "Who made it", names)),
    ("tail", "for {hours} hours", _slot("hours", "hours duration", "integer", "Hours", whole(2, 23))),
    ("tail", "for {days} days", _slot("days", "days period nights", "integer", "Days", whole(2, 30))),
    ("tail", "for {price} euros", _slot("price", "price cost euros", "number", "In euros", whole(2, 900))),
    ("tail", "with {level} priority", _slot("level", "level priority", "string", "How soon", lambda d: d.one(_LEVELS),
                                            _LEVELS)),
    ("tail", "in {mode} mode", _slot("mode", "mode method style", "string", "How to do it", lambda d: d.one(_MODES),
                                     _MODES)),
    ("tail", "with {urgent}", _slot("urgent", "urgent express", "boolean", "Whether it is urgent",
                                    lambda d: d.chance(0.5))),
    ("tail", "with the tags {tags}", _slot("tags", "tags labels words", "array", "Words to find it by",
                                           lambda d: d.some(WORDS, d.number(2, 3)))),
    ("tail", "with the size {size}", _slot("size", "size width height", "integer", "Centimetres", whole(2, 400))),
    ("tail", "with the weight {weight}", _slot("weight", "weight mass load", "number", "Kilograms", decimals)),
    ("tail", "with the speed {speed}", _slot("speed", "speed rate pace", "integer", "How fast", whole(1, 99))),
    ("tail", 'with the note "{note}"', _slot("note", "note text comment message", "string", "What to add", titles)),
)  # fmt: skip

# What a function made up does: (its names, its descriptions, requests). {o} is the object with its slots, {t} the tail.
_STYLES: tuple[tuple[int, str, str, tuple[str, ...]], ...] = (
    (
        6,
        "{v}_{n} {n}_{v} {v}{N} {n}-{v} {v}_{n} {v}_the_{n}",
        "{V} {an}|{V} {an}|{V} {an} for the user|Use this to {v} {an}|{N}: {v} it",
        ("{V} the {o}{t}.", "I want to {v} {a}{o}{t}.", "{V} my {o}{t}.", "I would like to {v} the {o}{t}.",
         "{V} {a}{o}{t}, please.", "Can I {v} {a}{o}{t}?", "It is time to {v} the {o}{t}."),
    ),
    (
        2,
        "find_{n} search_{n} {n}_search {n}Finder list_{n} show{N} nearest_{n}",
        "Find {an}|Looks for {an}|Shows where {an} is|Search for {an}",
        ("Find {a}{o}{t}.", "I want {a}{o}{t}.", "Is there {a}{o}{t}?", "I am looking for {a}{o}{t}.",
         "Which {o} can I get{t}?"),
    ),
    (
        2,
        "{n}_info get_{n} {n}Info {n}_details lookup_{n} about_{n} {n}_status",
        "Details of {an}|Information about {an}|Tells about {an}|Everything that is known of {an}",
        ("What can you tell me about the {o}{t}?", "What do you know about the {o}{t}?",
         "Give me the details of the {o}{t}.", "Look up the {o}{t}.", "How is the {o}{t}?"),
    ),
)  # fmt: skip
_STYLE_SUMS = tuple(accumulate(style[0] for style in _STYLES))
_CARRIED = "product goods article piece what"  # the noun itself as an argument


def _object(draw: Draw, noun: str) -> tuple[str, str, list[Param]]:
    """(the object with its slots, what is said behind it, the parameters)."""
    chosen = draw.some(_SLOTS, draw.one((1, 1, 2, 2, 3)))
    said: dict[str, str] = {}
    tail, params = "", []
    taken: set[str] = set()
    for where, text, param in chosen:
        # One word for two parameters would be ambiguous.
        if (where != "tail" and where in said) or taken & set(param.names.split()):
            continue
        taken |= set(param.names.split())
        params.append(param)
        if where == "tail":
            tail += f" {text}"
        else:
            said[where] = text
    words = [said.get("amount", ""), said.get("kind", ""), noun, said.get("name", "")]
    return " ".join(word for word in words if word), tail, params


def made_up(draw: Draw, verb: str, noun: str, *, act: bool = False) -> Function:
    """A function that does this to that. Its slots and words are drawn; with `act` it is one of that verb and that noun
    alone, so that it can stand beside others of the same noun or verb."""
    if not act and draw.chance(0.12):
        return _carrier(draw, verb)
    _, names_, descriptions, requests = _STYLES[0] if act else draw.rng.choices(_STYLES, cum_weights=_STYLE_SUMS)[0]
    spoken = verb.replace("_", " ")
    obj, tail, params = _object(draw, noun)
    amount = obj.startswith("{") and " of " in obj
    first = obj.split()[0]
    article = "" if amount else "the " if first.startswith("{") else "an " if first[0] in "aeiou" else "a "
    values = {"v": verb, "V": first_upper(verb), "n": noun, "N": first_upper(noun), "an": with_article(noun)}
    name = draw.one(names_.split()).format(**values)
    values |= {"v": spoken, "V": first_upper(spoken)}
    patterns = [p.replace("the {o}", "{o}").replace("my {o}", "{o}") if amount else p for p in requests]
    slots = {"{o}": obj, "{t}": tail, "{a}": article}

    def fill(pattern: str, tail_said: str) -> str:
        text = pattern.replace("{v}", spoken).replace("{V}", first_upper(spoken))
        for slot, said in (slots | {"{t}": tail_said}).items():
            text = text.replace(slot, said)
        return first_upper(text)

    made = [fill(pattern, tail) for pattern in draw.some(patterns, 2)]
    if tail and len(params) > 1 and draw.chance(0.3):  # what is said at the end may be left out
        made.append(fill(draw.one(patterns), ""))
    if draw.chance(0.2):  # what nobody asks for is left out of the call
        extra = draw.one(_SLOTS)[2]
        if all(not set(extra.names.split()) & set(p.names.split()) for p in params):
            params.append(extra)
            draw.rng.shuffle(params)
    description = descriptions.format(**values)
    return _named(draw, Domain(name, description, tuple(params), tuple(made), (), ""))


def _carrier(draw: Draw, verb: str) -> Function:
    """The noun is an argument: one function for all of them."""
    spoken = verb.replace("_", " ")
    noun = _slot("noun", _CARRIED, "string", f"What to {spoken}", lambda d: d.one(_nouns()))
    name = draw.phrase(("{v}_any", "{v}_goods", "{v}Product", "do_{v}", "{v}_something", "{v}"), v=verb)
    description = draw.phrase(("{V} something", "{V} what the user names", "{V} any product"), V=first_upper(spoken))
    params, tail = [noun], ""
    if draw.chance(0.5):
        _, said, param = draw.one([slot for slot in _SLOTS if slot[0] == "tail"])
        params, tail = [noun, param], f" {said}"
    patterns = tuple(p.format(V=first_upper(spoken), v=spoken, t=tail, o="{noun}") for p in (
        "{V} my {o}{t}.", "{V} the {o}{t}, please.", "I want to {v} my {o}{t}."))  # fmt: skip
    return _named(draw, Domain(name, description, tuple(params), patterns, (), ""))


def _named(draw: Draw, domain: Domain) -> Function:
    name = domain.names
    if draw.chance(0.08):
        name += draw.one(("_v2", "_tool", "_api", "2", "_service"))
    elif draw.chance(0.05):
        name = made_up_word(draw)
    names_ = [made_up_word(draw) if draw.chance(0.06) else draw.one(p.names.split()) for p in domain.params]
    if len(set(names_)) < len(names_):
        names_ = [p.key for p in domain.params]
    return Function(domain, name, tuple(zip(domain.params, names_, strict=True)))


def any_made_up(draw: Draw) -> Function:
    return made_up(draw, *draw.keyed("made-up function", lambda: verb_and_noun(draw)))


def schemas(draw: Draw, functions: Sequence[Function]) -> list[Tool]:
    """In any order, one of each name."""
    shuffled = list({function.name: function for function in reversed(functions)}.values())
    draw.rng.shuffle(shuffled)
    return [function.schema(draw) for function in shuffled]
