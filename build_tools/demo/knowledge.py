"""What the model knows: capitals, small facts, definitions of words. What it does not know is in unknown.py.

A fact that was never seen cannot be known, so what is held out here is a fact with a way of asking.
"""

from __future__ import annotations

from demo.facts import COUNTRIES, SMALL_FACTS
from demo.lexicon import definitions
from demo.sample import Draw, Expect, Turn, first_upper, with_article

CAPITAL = (
    "What is the capital of {c}?",
    "What's the capital of {c}?",
    "Which city is the capital of {c}?",
    "Tell me the capital of {c}.",
    "Name the capital of {c}.",
    "Capital of {c}?",
    "Do you know the capital of {c}?",
    "what is the capital city of {c}",
)
COUNTRY = (
    "Which country has the capital {k}?",
    "{k} is the capital of which country?",
    "Of which country is {k} the capital?",
    "What country is {k} the capital of?",
)
CONTINENT = (
    "On which continent is {c}?",
    "Which continent is {c} on?",
    "On what continent does {c} lie?",
    "Where is {c}?",
    "Which continent does {c} belong to?",
)
_IS_ON = ("Is {c} in {k}?", "Does {c} lie in {k}?", "Is {c} a country in {k}?", "Is the country {c} in {k}?")


def capital(draw: Draw) -> Turn:
    (country, city, _), pattern = draw.fact("capital", lambda: draw.one(COUNTRIES), CAPITAL)
    answer = draw.phrase(("The capital of {c} is {k}.", "{k} is the capital of {c}."), c=country, k=city)
    thought = f"The user asks for the capital of {country}. It is {city}."
    return Turn("capitals", pattern.format(c=country), thought, answer, Expect(answer=(city,)), city)


def country_of(draw: Draw) -> Turn:
    (country, city, _), pattern = draw.fact("country of", lambda: draw.one(COUNTRIES), COUNTRY)
    answer = f"{city} is the capital of {country}."
    return Turn("capitals", pattern.format(k=city), answer, answer, Expect(answer=(country,)), country)


_CITY_IN = ("Where is {k}?", "Is {k} in {c}?", "In which country is {k}?", "Which country is {k} in?",
            "Does {k} lie in {c}?")  # fmt: skip


def city_in(draw: Draw) -> Turn:
    (country, city, _), pattern = draw.fact("city in", lambda: draw.one(COUNTRIES), _CITY_IN)
    fact = f"{city} is in {country}."
    if "{c}" not in pattern:
        return Turn("capitals", pattern.format(k=city), fact, fact, Expect(answer=(country,)), country)
    asked = country if draw.chance(0.5) else draw.one(COUNTRIES)[0]
    word = "Yes" if asked == country else "No"
    answer = f"{word}, {fact}"
    return Turn("capitals", pattern.format(k=city, c=asked), fact, answer, Expect(answer=(word,)), word)


def continent(draw: Draw) -> Turn:
    (country, _, land), pattern = draw.fact("continent", lambda: draw.one(COUNTRIES), (*CONTINENT, *_IS_ON))
    fact = f"{country} is in {land}."
    if "{k}" not in pattern:
        return Turn("continents", pattern.format(c=country), fact, fact, Expect(answer=(land,)), land)
    asked = land if draw.chance(0.5) else draw.one(COUNTRIES)[2]
    word = "Yes" if asked == land else "No"
    return Turn(
        "continents",
        pattern.format(c=country, k=asked),
        fact,
        f"{word}, {country} is in {land}.",
        Expect(answer=(word,)),
        word,
    )


_ASKED = ("{q}", "Tell me: {q}", "Do you know this? {q}", "Please tell me: {q}", "I want to know: {q}", "Hi! {q}")


def small_fact(draw: Draw) -> Turn:
    (question, answer, short), pattern = draw.fact("fact", lambda: draw.one(SMALL_FACTS), _ASKED)
    small = question[0].lower() + question[1:]
    if pattern.endswith(": {q}") or draw.chance(0.2):
        question = small
    text = pattern.format(q=question)
    if draw.chance(0.15):
        text = text.removesuffix("?")
    return Turn("small facts", text, answer, answer, Expect(answer=(short, first_upper(short))), short)


DEFINE = (
    'What does "{w}" mean?',
    'Define "{w}".',
    'What is the meaning of "{w}"?',
    'What is the definition of "{w}"?',
    'Explain the word "{w}".',
    "What does {w} mean?",
    "Define {w}.",
    "Tell me what {w} means.",
    "What is the meaning of {w}?",
)
_DEFINE_AS = {
    "noun": ("What is {a}?", "Explain what {a} is."),
    "verb": ("What does it mean to {w}?", 'Explain "to {w}".'),
    "adjective": ("What does it mean to be {w}?", 'What is meant by "{w}"?'),
}


def define(draw: Draw) -> Turn:
    (part, word, text), pattern = draw.fact(
        "define",
        lambda: draw.one(definitions()),
        lambda row: (*DEFINE, *_DEFINE_AS[row[0]]),
        lambda row: row[1],
    )
    answer = f"{first_upper(word)} ({part}): {text}."
    thought = f"The word {word} is a {part}. I know what it means."
    return Turn("definitions", pattern.format(w=word, a=with_article(word)), thought, answer, Expect(exact=answer))
