"""What the model does not know, said honestly: subjects it never learnt, made-up words and places, and plain nonsense.

Without enough of this a strange question ends in a strange thought: of all that is asked in the world, nearly all is
unknown here. Near to each subject that is known stand questions of the same form that are not.
"""

from __future__ import annotations

from functools import cache

from demo.facts import ANIMALS, CITIES, COUNTRIES, ITEMS, NAMES, NO_COUNTRIES, SMALL_FACTS, THINGS, WORDS
from demo.knowledge import CAPITAL, CONTINENT, DEFINE
from demo.lexicon import definitions, spelling_words, words_of
from demo.sample import Draw, Expect, Turn, first_upper
from demo.words import made_up_word

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
    "Fix the bug in my {noun}.",
    "What is the weather like?",
    "I need advice about my {noun}.",
    "What should I cook today?",
    "Tell me a secret about {name}.",
    "Give me {adjective} advice about {noun}.",
    "Give me legal advice about my {noun}.",
    "Fix my {noun}.",
    "Fix the {noun} in my {noun2}.",
    "Please repair the {adjective} {noun}.",
    "Make me a {noun}.",
    "Do you have a {noun} for me?",
    "Which {noun} is the most {adjective}?",
    "How much does a {noun} cost?",
    "How heavy is a {noun}?",
    "How many {noun} are there in {country}?",
    "What did the {noun} do to the {noun2}?",
    "Who {verb} the {noun}?",
    "Should I {verb} my {noun}?",
    "Where can I {verb} a {noun} in {city}?",
    "When did {name} {verb} the {noun}?",
    "Is it {adjective} to {verb} in {country}?",
    "Tell me a {adjective} {noun} about {name}.",
    "I think that the {noun} is {adjective}. What do you say?",
    "My {noun} does not {verb}. What now?",
    "List ten {adjective} things about {city}.",
    "What is better for my {noun}, {noun2} or {thing}?",
    "How do I {verb} {name}?",
    "Explain {noun} to a child.",
    "Prove that every {noun} is {adjective}.",
    # Near to what is known, and not known.
    "What colour is a {noun}?",
    "What colour is the {adjective} {noun}?",
    "How many legs does a {noun} have?",
    "How many wheels does a {noun} have?",
    "What does a {noun} say?",
    "What do {animal}s make?",
    "Where does the {noun} live?",
    "What is a young {noun} called?",
    "What is {noun} made of?",
    "What is the largest {noun}?",
    "What is the longest {noun} in {country}?",
    "Which {noun} is closest to the {noun2}?",
    "At what temperature does {noun} melt?",
    "What season is best for {noun}?",
    "What is the nearest {noun} to {city}?",
)
_KNOWN = {question.lower() for question, _, _ in SMALL_FACTS}
_FRAMES = (
    "{q}",
    "{q}",
    "{q}",
    "{q}",
    "Please tell me: {l}",
    "Hello! {q}",
    "One more thing: {l}",
    "I want to know: {l}",
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


def _question(draw: Draw) -> str:
    city, city2 = draw.some(CITIES, 2)
    word = {part: [w for _, w, _ in draw.some(words_of(part), 2)] for part in ("noun", "verb", "adjective")}
    text = draw.phrase(
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
    return draw.phrase(_FRAMES, q=text, l=text[0].lower() + text[1:])


def unknown(draw: Draw) -> Turn:
    def ask() -> str:
        question = _question(draw)
        while question.lower() in _KNOWN:
            question = _question(draw)
        return question

    question = draw.keyed("unknown", ask, lambda made: made.lower().rstrip("?.! "))
    style = draw.number(0, 9)  # people type in many ways
    if style == 0:
        question = question.lower()
    elif style == 1:
        question = question.rstrip("?.!")
    thought = draw.one(
        ("I was not trained on this, so I do not know it. I should say so.", "I do not know this. I must not guess.")
    )
    return Turn("refusals", question, thought, draw.one(_REFUSE) + draw.one(_OFFER), Expect(answer=("do not know",)))


_REAL = frozenset(("mali", "togo", "peru", "cuba", "samo", *spelling_words()))


def _never_seen(draw: Draw) -> str:
    """Syllables may come to a word that is one."""
    word = made_up_word(draw)
    while word in _REAL:
        word = made_up_word(draw)
    return word


def unknown_place(draw: Draw) -> Turn:
    """A country that does not exist has no capital; what is a place and no country has none either."""
    if draw.chance(0.3):
        place = draw.keyed("no country", lambda: draw.one(NO_COUNTRIES if draw.chance(0.6) else CITIES))
        pattern = draw.one(CAPITAL)
    else:
        place = draw.keyed("unknown place", lambda: first_upper(_never_seen(draw)))
        if draw.chance(0.3):
            place += draw.one(("land", "ia", "stan"))
        pattern = draw.one((*CAPITAL, *CONTINENT))
    return Turn(
        "unknown places",
        pattern.format(c=place),
        f"I know no country called {place}. I must not guess.",
        f"I do not know a country called {place}.",
        Expect(answer=("do not know",)),
    )


@cache
def _without_meaning() -> tuple[str, ...]:
    """Words that it can spell and cannot explain."""
    known = {word for _, word, _ in definitions()}
    return tuple(word for word in dict.fromkeys((*WORDS, *ANIMALS, *ITEMS, *THINGS)) if word not in known)


def unknown_word(draw: Draw) -> Turn:
    plain = draw.chance(0.4)
    word = draw.keyed("unknown word", lambda: draw.one(_without_meaning()) if plain else _never_seen(draw))
    answer = f'I do not know the word "{word}".'
    thought = f"I never learnt what {word} means. I should say so."
    return Turn("unknown words", draw.phrase(DEFINE, w=word), thought, answer, Expect(answer=("do not know",)))


def nonsense(draw: Draw) -> Turn:
    """Words without a sentence, sounds, keys hit at random."""

    def make() -> str:
        kind = draw.number(0, 3)
        if kind == 0:
            return " ".join(made_up_word(draw) for _ in range(draw.number(1, 6)))
        if kind == 1:
            return " ".join(draw.one(definitions())[1] for _ in range(draw.number(2, 7)))
        if kind == 2:
            mixed = (draw.one(definitions())[1] if draw.chance(0.6) else made_up_word(draw) for _ in range(6))
            return " ".join(mixed)
        letters = "abcdefghijklmnopqrstuvwxyz      0123456789.,;:!?"
        return "".join(draw.one(letters) for _ in range(draw.number(3, 24))).strip() or "qwx"

    text = draw.keyed("nonsense", make)
    said = (first_upper(text) if draw.chance(0.3) else text) + draw.one(("", "", ".", "?", "!"))
    answer = draw.one(
        (
            "I do not understand that. Can you say it in other words?",
            "I am sorry, I do not understand. I am only a small demo model.",
        )
    )
    return Turn("nonsense", said, "I do not understand this. I should say so.", answer,
                Expect(answer=("do not understand", "do not know")))  # fmt: skip


LOST = "I am sorry, I lost the thread. Please ask me in other words."


def lost_thought(draw: Draw, thought: str) -> str:
    """A thought gone wrong, as a small model has them: broken words, another subject, the same again and again."""
    pieces = thought.split(" ")
    kind = draw.number(0, 3)
    if kind == 0:
        words = [made_up_word(draw) if draw.chance(0.5) else " ".join(made_up_word(draw)) for _ in pieces[:12]]
        text = " ".join(words)
    elif kind == 1:
        text = " ".join(draw.some(pieces, len(pieces)))
    elif kind == 2:
        again = " ".join(pieces[: draw.number(1, 6)])
        text = draw.one((" ", "\n", ". ")).join([again] * draw.number(2, 12))
    else:
        other = _question(draw).split(" ")
        text = " ".join([*pieces[: len(pieces) // 2], *other, made_up_word(draw)])
    return first_upper(text) + draw.one((".", ".", "!", "", ":"))
