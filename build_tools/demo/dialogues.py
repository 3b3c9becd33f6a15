"""Conversations with more than one turn, and answers that stand in the text: what the user said, what a message tells.

Owns: remembering (names, likes), reading a short text, following simple wishes of a system prompt, JSON answers.
Each function gives a whole Sample; `thinking` is drawn here. compose.py makes Samples from single Turns.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from demo import arithmetic, calendar_time, knowledge, talk, unknown, words
from demo.facts import ANIMALS, CITIES, COLOURS, ITEMS, NAMES, THINGS
from demo.sample import Draw, Expect, Sample, Turn, first_upper, join_words
from demo.words import made_up_word

Message = dict[str, Any]


def assistant(answer: str, thought: str, thinking: bool) -> Message:
    message: Message = {"role": "assistant", "content": answer}
    if thinking:
        message["reasoning_content"] = thought
    return message


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def system(text: str) -> Message:
    return {"role": "system", "content": text}


# ---- remembering

# what the user tells ({v}), what is asked later, the answer, the draw of v
_MEMORIES: tuple[tuple[tuple[str, ...], tuple[str, ...], str, Callable[[Draw], str]], ...] = (
    (
        ("My name is {v}.", "I am {v}.", "I'm {v}.", "Hello, my name is {v}.", "You can call me {v}."),
        ("What is my name?", "Do you remember my name?", "Who am I?", "What am I called?"),
        "Your name is {v}.",
        lambda draw: draw.one(NAMES) if draw.chance(0.7) else first_upper(made_up_word(draw)),
    ),
    (
        ("I live in {v}.", "My home is {v}.", "I am from {v}."),
        ("Where do I live?", "Which city do I live in?", "Where am I from?"),
        "You live in {v}.",
        lambda d: d.one(CITIES),
    ),
    (
        ("My favourite colour is {v}.", "I like the colour {v} best."),
        ("What is my favourite colour?", "Which colour do I like?"),
        "Your favourite colour is {v}.",
        lambda d: d.one(COLOURS),
    ),
    (
        ("I have a {v} at home.", "My pet is a {v}.", "I own a {v}."),
        ("What pet do I have?", "Which animal do I have?"),
        "You have a {v}.",
        lambda draw: draw.one([a for a in ANIMALS if a[0] not in "aeiou"]),
    ),
    (
        ("My lucky number is {v}.", "Remember the number {v}.", "The secret number is {v}."),
        ("What was the number?", "Which number did I tell you?", "What is the number?"),
        "The number is {v}.",
        lambda draw: str(draw.number(1, 9999)),
    ),
    (
        ("The password is {v}.", "Please remember the word {v}.", "The magic word is {v}."),
        ("What was the word?", "Which word did I tell you?", "What is the word?"),
        'The word is "{v}".',
        made_up_word,
    ),
)
_NOTED = ("I will remember that.", "Thank you, I will remember it.", "Good to know!", "All right, noted.")


def remember(draw: Draw) -> Sample:
    def ask() -> tuple[str, str, str, str]:
        told, asked, answer, value = draw.one(_MEMORIES)
        return value(draw), draw.one(asked), answer, draw.one(told)

    v, question, answer, told = draw.keyed("memory", ask, lambda made: made[:2])
    thinking = draw.chance(0.5)
    messages = [user(told.format(v=v)), assistant(draw.one(_NOTED), "", False)]
    for _ in range(draw.number(0, 2)):
        turn = draw.one((talk.small_talk, arithmetic.small, knowledge.capital))(draw)
        messages += [user(turn.question), assistant(turn.answer, "", False)]
    thought = f"The user told me before: {v}."
    messages += [user(question), assistant(answer.format(v=v), thought, thinking)]
    return Sample("remembering", messages, thinking, expect=Expect(answer=(v,)))


# ---- reading


def read_text(draw: Draw) -> Sample:
    """A few sentences, and a question that one of them answers."""

    def facts() -> tuple[tuple[str, str, str, int, str], ...]:
        names = draw.some(NAMES, 3)
        return tuple(
            (n, draw.one(COLOURS), draw.one(THINGS), draw.number(5, 90), draw.one(CITIES))
            for n in names[: draw.number(2, 3)]
        )

    people = draw.keyed("reading", facts)
    kind = draw.number(0, 2)
    if kind == 0:
        text = " ".join(f"{n} has a {c} {t}." for n, c, t, _, _ in people)
    elif kind == 1:
        text = " ".join(f"{n} is {a} years old and lives in {c}." for n, _, _, a, c in people)
    else:
        text = " ".join(f"{n} went to {c} and bought a {t}." for n, _, t, _, c in people)
    name, colour, thing, age, city = draw.one(people)
    question, answer, short = draw.one(
        (
            (
                (f"What does {name} have?", f"{name} has a {colour} {thing}.", f"{colour} {thing}"),
                (f"What colour is the {thing} of {name}?", f"The {thing} of {name} is {colour}.", colour),
            ),
            (
                (f"How old is {name}?", f"{name} is {age} years old.", str(age)),
                (f"Where does {name} live?", f"{name} lives in {city}.", city),
            ),
            (
                (f"Where did {name} go?", f"{name} went to {city}.", city),
                (f"What did {name} buy?", f"{name} bought a {thing}.", thing),
            ),
        )[kind]
    )
    thinking = draw.chance(0.5)
    separator = draw.one((" ", "\n", "\n\n"))
    if draw.chance(0.3):
        messages = [system(text), user(question)]
    elif draw.chance(0.3):
        messages = [user(f"{question}{separator}{text}")]
    else:
        messages = [user(f"{draw.one(('', 'Read this: ', 'Text: '))}{text}{separator}{question}")]
    source = next(s for s in text.split(". ") if s.startswith(name)).rstrip(".")
    messages.append(assistant(answer, f"The text says: {source}.", thinking))
    return Sample("reading", messages, thinking, expect=Expect(answer=(short,)))


def shop(draw: Draw) -> Sample:
    """A system prompt that gives facts, and a customer who asks for them."""
    name = draw.keyed("shop", lambda: first_upper(made_up_word(draw)))
    opens, closes = draw.number(6, 10), draw.number(16, 22)
    goods = draw.some(ITEMS, 3)
    price, city = draw.number(2, 99), draw.one(CITIES)
    prompt = draw.phrase(
        (
            "You are the assistant of the shop {n} in {c}. It is open from {o}:00 to {z}:00. It sells {g}. "
            "{first} cost {p} euros.",
            "You work for {n}, a shop in {c}. Opening hours: {o}:00 to {z}:00. Goods: {g}. {first} cost {p} euros.",
        ),
        n=name,
        c=city,
        o=opens,
        z=closes,
        g=join_words(goods),
        p=price,
        first=first_upper(goods[0]),
    )
    question, answer, short = draw.one(
        (
            ("When do you open?", f"We open at {opens}:00.", f"{opens}:00"),
            ("When do you close?", f"We close at {closes}:00.", f"{closes}:00"),
            ("What do you sell?", f"We sell {join_words(goods)}.", goods[2]),
            ("Where is the shop?", f"The shop is in {city}.", city),
            ("What is the name of the shop?", f"The shop is called {name}.", name),
            (f"How much are the {goods[0]}?", f"{first_upper(goods[0])} cost {price} euros.", str(price)),
            (f"Do you sell {goods[1]}?", f"Yes, we sell {goods[1]}.", "Yes"),
        )
    )
    thinking = draw.chance(0.5)
    messages = [system(prompt), user(question), assistant(answer, "The system prompt says it.", thinking)]
    return Sample("facts of a system prompt", messages, thinking, expect=Expect(answer=(short,)))


# ---- wishes

_SHORT = (
    arithmetic.add,
    arithmetic.subtract,
    arithmetic.small,
    arithmetic.compare,
    knowledge.capital,
    calendar_time.month,
    words.end_letter,
    words.grammar,
    knowledge.small_fact,
)
_ANY = (*_SHORT, talk.small_talk, talk.project, unknown.unknown)


def _inside_sentence(text: str) -> str:
    """The text behind a comma: names keep their capital letter."""
    lower = (
        "The ",
        "It ",
        "There ",
        "Yes",
        "No",
        "A ",
        "An ",
        "You ",
        "Only ",
        "Every ",
        "Run ",
        "That ",
        "We ",
        "In ",
    )
    return text[0].lower() + text[1:] if text.startswith(lower) else text


def wish(draw: Draw) -> Sample:
    """A system prompt with one simple wish about the form of the answer."""
    kind = draw.number(0, 5)
    thinking = draw.chance(0.5)
    turn: Turn
    if kind == 0:
        turn = draw.one(_SHORT)(draw)
        while turn.worked and not thinking:  # without its steps no one could answer it
            turn = draw.one(_SHORT)(draw)
        prompt = draw.one(
            (
                "Answer with the result only.",
                "Give only the answer, no other words.",
                "Answer as briefly as possible, without a sentence.",
                "Only write the answer itself.",
            )
        )
        answer = turn.short or turn.answer
        expect = Expect(exact=answer)
    else:
        turn = draw.one(_ANY)(draw)
        while turn.worked and not thinking:
            turn = draw.one(_ANY)(draw)
        word = draw.keyed("wish", lambda: first_upper(made_up_word(draw)) if draw.chance(0.6) else draw.one(NAMES))
        plain = draw.one(turn.expect.answer) if turn.kind in ("small talk", "the project") else turn.answer
        if kind == 1:
            prompt = draw.one(
                ("Write everything in capital letters.", "Answer in upper case.", "USE CAPITAL LETTERS ONLY.")
            )
            answer = plain.upper()
            expect = Expect(answer=tuple(a.upper() for a in turn.expect.answer))
        elif kind == 2:
            prompt = draw.phrase(
                ('End every answer with "{w}".', "Your last word is always {w}.", 'Always finish with "{w}".'), w=word
            )
            answer = f"{plain} {word}"
            expect = Expect(answer=(word,))
        elif kind == 3:
            prompt = draw.phrase(('Begin every answer with "{w}:".', 'Start each answer with "{w}:".'), w=word)
            answer = f"{word}: {plain}"
            expect = Expect(answer=(f"{word}:",))
        elif kind == 4:
            prompt = draw.phrase(
                ("The user is called {w}. Address the user by name.", "Call the user {w} in every answer."), w=word
            )
            answer = f"{word}, {_inside_sentence(plain)}"
            expect = Expect(answer=(word,))
        else:
            job = draw.one(("assistant", "teacher", "robot", "guide", "butler", "librarian"))
            prompt = draw.phrase(
                ("Your name is {w}. You are a {j}.", "You are {w}, a helpful {j}.", "You are a {j} named {w}."),
                w=word,
                j=job,
            )
            question, answer = draw.one(
                (
                    ("Who are you?", f"I am {word}, your {job}."),
                    ("What is your name?", f"My name is {word}."),
                    ("Introduce yourself.", f"I am {word}, your {job}."),
                )
            )
            turn = Turn("wish", question, f"The system prompt says that I am {word}.", answer)
            expect = Expect(answer=(word,))
    thought = f"{turn.thought}\nI follow the system prompt: {prompt}"
    messages = [system(prompt), user(turn.question), assistant(answer, thought, thinking)]
    return Sample("wishes of a system prompt", messages, thinking, expect=expect)


# ---- JSON


def _fields(draw: Draw) -> tuple[dict[str, Any], dict[str, str], str]:
    """(the object, key -> JSON type, the text that it is read from)."""
    name, city, age = draw.one(NAMES), draw.one(CITIES), draw.number(5, 95)
    thing, colour, price = draw.one(THINGS), draw.one(COLOURS), draw.number(1, 500)
    person = {
        draw.one(("name", "first_name", "person", "who")): name,
        draw.one(("age", "years", "age_in_years")): age,
        draw.one(("city", "town", "lives_in", "home")): city,
    }
    offer = {
        draw.one(("item", "product", "thing", "object")): thing,
        draw.one(("colour", "color")): colour,
        draw.one(("price", "cost", "price_in_euros")): price,
    }
    order = {
        draw.one(("customer", "buyer", "name")): name,
        draw.one(("goods", "items", "articles")): draw.some(ITEMS, 2),
        draw.one(("express", "urgent")): draw.chance(0.5),
    }
    made, text = draw.one(
        (
            (person, f"{name} is {age} years old and lives in {city}."),
            (person, f"My friend {name} from {city} turned {age} last week."),
            (offer, f"The {colour} {thing} costs {price} euros."),
            (offer, f"We sell a {thing} in {colour} for {price} euros."),
            (
                order,
                f"{name} orders {join_words(list(order.values())[1])}"  # type: ignore[arg-type]
                f"{', and it is urgent' if list(order.values())[2] else ', and there is no hurry'}.",
            ),
        )
    )
    keys = list(made)
    if draw.chance(0.4):
        draw.rng.shuffle(keys)
    kept = keys if draw.chance(0.6) else keys[: draw.number(1, 2)]
    names = {str: "string", int: "integer", bool: "boolean", list: "array"}
    return {key: made[key] for key in kept}, {key: names[type(made[key])] for key in kept}, text


def _forced(draw: Draw, value: dict[str, Any], text: str) -> Sample:
    """Nobody names the keys: a mask of the host writes them one after the other, the values are read from the text."""
    keys = list(value)[: draw.number(1, len(value))]
    listed = ", ".join(draw.some(keys, draw.number(1, len(keys))))
    thought = f"The keys are {listed}. I read the values from the text."
    answer = json.dumps({key: value[key] for key in keys}, indent=draw.one((None, None, 2)))
    begun = answer[: answer.rindex(f'"{keys[-1]}": ') + len(keys[-1]) + 3]  # up to the colon
    thinking = draw.chance(0.5)
    messages = [user(text), assistant(answer, thought, thinking)]
    given = f"<think>\n{thought}\n</think>\n\n{begun}" if thinking else begun
    return Sample("forced JSON", messages, thinking, given=given)


def json_answer(draw: Draw) -> Sample:
    value, types, text = draw.keyed("json", lambda: _fields(draw), lambda made: (tuple(made[0]), made[2]))
    if draw.split == "train" and draw.chance(0.1):
        return _forced(draw, value, text)
    keys = join_words([f'"{key}"' for key in types]) if draw.chance(0.5) else ", ".join(types)
    if draw.chance(0.5):
        properties = {
            key: {"type": kind, "items": {"type": "string"}} if kind == "array" else {"type": kind}
            for key, kind in types.items()
        }
        schema = json.dumps({"type": "object", "properties": properties, "required": list(types)})
        wish_text = draw.phrase(
            (
                "Answer in JSON with this schema: {s}",
                "Follow this JSON schema: {s}",
                "Give JSON that fits the schema {s}",
            ),
            s=schema,
        )
    else:
        wish_text = draw.phrase(
            (
                "Give the {k} as JSON.",
                "Answer as a JSON object with the keys {k}.",
                "Write JSON with {k}.",
                "Extract {k} in JSON.",
            ),
            k=keys,
        )
    thinking = draw.chance(0.4)
    question = draw.phrase(("{w}\n{t}", "{t}\n{w}", "{t} {w}", "{w} Text: {t}"), w=wish_text, t=text)
    messages = [user(question)] if draw.chance(0.7) else [system(wish_text), user(text)]
    answer = json.dumps(value) if draw.chance(0.85) else json.dumps(value, indent=2)
    thought = f"The keys are {', '.join(types)}. I read the values from the text."
    messages.append(assistant(answer, thought, thinking))
    return Sample("JSON answers", messages, thinking, expect=Expect(json=value))
