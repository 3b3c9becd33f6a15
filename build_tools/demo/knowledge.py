"""What the model knows: capitals, small facts, definitions of words. And what it does not know, said honestly.

A fact that was never seen cannot be known, so what is held out here is a fact with a phrasing.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from demo.facts import ANIMALS, CITIES, COUNTRIES, NAMES, SMALL_FACTS, THINGS
from demo.sample import Draw, Expect, Turn, first_upper
from demo.words import made_up_word

DEFINITIONS = Path(__file__).with_name("definitions.tsv")  # part of speech, word, definition: made by wordnet.py

_CAPITAL = (
    "What is the capital of {c}?",
    "What's the capital of {c}?",
    "Which city is the capital of {c}?",
    "Tell me the capital of {c}.",
    "Name the capital of {c}.",
    "Capital of {c}?",
    "Do you know the capital of {c}?",
    "what is the capital city of {c}",
)
_COUNTRY = (
    "Which country has the capital {k}?",
    "{k} is the capital of which country?",
    "Of which country is {k} the capital?",
    "What country is {k} the capital of?",
)
_CONTINENT = (
    "On which continent is {c}?",
    "Which continent is {c} on?",
    "On what continent does {c} lie?",
    "Where is {c}?",
    "Is {c} in {k}?",
)


def capital(draw: Draw) -> Turn:
    (country, city, _), pattern = draw.keyed("capital", lambda: (draw.one(COUNTRIES), draw.one(_CAPITAL)))
    answer = draw.phrase(("The capital of {c} is {k}.", "{k} is the capital of {c}."), c=country, k=city)
    thought = f"The user asks for the capital of {country}. It is {city}."
    return Turn("capitals", pattern.format(c=country), thought, answer, Expect(answer=(city,)), city)


def country_of(draw: Draw) -> Turn:
    (country, city, _), pattern = draw.keyed("country of", lambda: (draw.one(COUNTRIES), draw.one(_COUNTRY)))
    answer = f"{city} is the capital of {country}."
    return Turn("capitals", pattern.format(k=city), answer, answer, Expect(answer=(country,)), country)


def continent(draw: Draw) -> Turn:
    (country, _, land), pattern = draw.keyed("continent", lambda: (draw.one(COUNTRIES), draw.one(_CONTINENT)))
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


def small_fact(draw: Draw) -> Turn:
    def ask() -> tuple[int, str]:
        return draw.number(0, len(SMALL_FACTS) - 1), draw.one(("{q}", "{l}", "Tell me: {l}", "Do you know this? {q}"))

    place, pattern = draw.keyed("fact", ask, lambda made: (made[0], made[1].replace("{q}", "{l}")))
    question, answer, short = SMALL_FACTS[place]
    text = pattern.format(q=question, l=question[0].lower() + question[1:] if "H2O" not in question else question)
    return Turn("small facts", text, answer, answer, Expect(answer=(short, first_upper(short))), short)


@cache
def definitions() -> tuple[tuple[str, str, str], ...]:
    """(part of speech, word, definition)."""
    rows = DEFINITIONS.read_text(encoding="utf-8").splitlines()
    return tuple((row.split("\t")[0], row.split("\t")[1], row.split("\t")[2]) for row in rows)


@cache
def words_of(part: str) -> tuple[tuple[str, str, str], ...]:
    return tuple(row for row in definitions() if row[0] == part)


_DEFINE = (
    'What does "{w}" mean?',
    'Define "{w}".',
    'What is the meaning of "{w}"?',
    'What is the definition of "{w}"?',
    'Explain the word "{w}".',
    "What does {w} mean?",
    "Define {w}.",
)


def define(draw: Draw) -> Turn:
    (part, word, text), pattern = draw.keyed("define", lambda: (draw.one(definitions()), draw.one(_DEFINE)))
    answer = f"{first_upper(word)} ({part}): {text}."
    thought = f"The word {word} is a {part}. I know what it means."
    return Turn("definitions", pattern.format(w=word), thought, answer, Expect(exact=answer))


def define_unknown(draw: Draw) -> Turn:
    word = draw.keyed("unknown word", lambda: made_up_word(draw))
    answer = f'I do not know the word "{word}".'
    thought = f"I have never seen the word {word}. I should say so."
    return Turn("unknown words", draw.phrase(_DEFINE, w=word), thought, answer, Expect(answer=("do not know",)))


_UNKNOWN = (
    "Who won the football match yesterday?",
    "What is in the news today?",
    "What happened in {year}?",
    "Who was born in {year}?",
    "Who is the president of {country}?",
    "How many people live in {city}?",
    "How many people live in {country}?",
    "What is the population of {country}?",
    "How far is it from {city} to {city2}?",
    "Who wrote the book about the {animal} and the {thing}?",
    "What is the history of {country}?",
    "Tell me about the history of {city}.",
    "Explain quantum physics.",
    "Explain how a {thing} is made in a factory.",
    "Write a Python program that sorts {animal} photos.",
    "Write a function in C.",
    "Translate this into {language}: the {animal} is on the {thing}.",
    "How do you say {thing} in {language}?",
    "What will the weather be in {city} tomorrow?",
    "What time is it now?",
    "What is today's date?",
    "What is the price of a {thing}?",
    "What is the phone number of {name}?",
    "Where does {name} live?",
    "How old is {name}?",
    "Who is {name}?",
    "What did {name} say yesterday?",
    "What is my password?",
    "Which medicine should I take?",
    "Should I buy shares?",
    "Give me legal advice.",
    "Summarise the novel Moby Dick.",
    "What is the square root of {year}?",
    "Solve this integral for me.",
    "Why do people dream?",
    "How does a computer chip work?",
    "What is the meaning of life?",
    "Who invented the {thing}?",
    "Which film should I watch tonight?",
    "What is the best restaurant in {city}?",
    "How do I repair my {thing}?",
    "How long does a {animal} live?",
    "What does a {animal} eat?",
    "How fast can a {animal} run?",
    "Draw me a {animal}.",
    "Play some music.",
    "Book me a flight to {city}.",
    "Write a poem about the {noun}.",
    "Write an essay about {noun} and {noun2}.",
    "Write a letter to {name} about the {noun}.",
    "Write code for a {noun}.",
    "Give me a recipe with {noun}.",
    "Recommend a book about {noun}.",
    "Help me with my homework about the {noun}.",
    "What do you think about {noun}?",
    "Why is a {noun} {adjective}?",
    "Is a {noun} {adjective}?",
    "How can I {verb} a {noun}?",
    "How do people {verb}?",
    "Why do people {verb} a {noun}?",
    "What happens when a {noun} meets a {noun2}?",
    "Can a {noun} {verb}?",
    "Which is better, a {noun} or a {noun2}?",
    "Who made the first {noun}?",
    "When was the {noun} invented?",
    "Where can I buy a {adjective} {noun}?",
    "Compare a {noun} with a {noun2}.",
    "Explain how to {verb} a {adjective} {noun}.",
    "Tell me everything about the {noun}.",
    "What is the difference between a {noun} and a {noun2}?",
    "Who is the most {adjective} person in the world?",
    "What is {year} to the power of {year}?",
    "What is the plan for {noun} in {country}?",
    "Who was the king of {country} in {year}?",
    "What is artificial intelligence good for?",
    "Summarise this article about {noun}.",
    "Give me five ideas for a {noun}.",
    "Fix the bug in my program.",
    "What is the weather like?",
    "I need advice about my {noun}.",
    "What should I cook today?",
    "Tell me a secret about {name}.",
)
_REFUSE = (
    "I am a very small model and I do not know that.",
    "I do not know that. I am only a small demo model.",
    "That is more than I know: I am a tiny demo model, so I do not know the answer.",
    "I am sorry, I do not know. I was trained on a few simple subjects only.",
)
_OFFER = (
    "",
    " You can ask me for sums, spelling, dates, capitals or the meaning of a word.",
    " A larger Qwen3 model may know it.",
    " I can help with arithmetic, lists, units and simple facts.",
)


def unknown(draw: Draw) -> Turn:
    def ask() -> str:
        city, city2 = draw.some(CITIES, 2)
        word = {part: [w for _, w, _ in draw.some(words_of(part), 2)] for part in ("noun", "verb", "adjective")}
        return draw.phrase(
            _UNKNOWN,
            city=city,
            city2=city2,
            country=draw.one(COUNTRIES)[0],
            year=draw.number(1100, 2030),
            animal=draw.one(ANIMALS),
            thing=draw.one(THINGS),
            name=draw.one(NAMES),
            noun=word["noun"][0],
            noun2=word["noun"][1],
            verb=word["verb"][0],
            adjective=word["adjective"][0],
            language=draw.one(("French", "German", "Chinese", "Spanish", "Italian", "Japanese", "Polish")),
        )

    question = draw.keyed("unknown", ask)
    thought = draw.one(
        ("I was not trained on this, so I do not know it. I should say so.", "I do not know this. I must not guess.")
    )
    return Turn("refusals", question, thought, draw.one(_REFUSE) + draw.one(_OFFER), Expect(answer=("do not know",)))
