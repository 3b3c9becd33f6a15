"""Short stories put together from sentences with varied grammar; the hero and the thing come from the question."""

from __future__ import annotations

from demo.facts import ANIMALS, COLOURS, NAMES, THINGS, TRAITS
from demo.sample import Draw, Expect, Turn, first_upper, with_article

_ASK = (
    "Tell me a short story about {hero} and {thing}.",
    "Write a short story about {hero} and {thing}.",
    "Can you tell me a story about {hero} and {thing}?",
    "Please write a little story about {hero} who finds {thing}.",
    "A story about {hero} and {thing}, please.",
    "Make up a story with {hero} and {thing}.",
)
_ASK_HERO = ("Tell me a story about {hero}.", "Write a short story about {hero}.", "Tell me something about {hero}.")
_ASK_ANY = (
    "Tell me a story.",
    "Tell me a short story.",
    "Write a story.",
    "Do you know a story?",
    "A bedtime story, please.",
)
_PLACES = (
    "a small house by the sea",
    "a forest of tall trees",
    "a village between two hills",
    "an old mill by the river",
    "a garden behind a red wall",
    "a tower at the edge of the town",
    "a cottage on the mountain",
    "a boat on a wide lake",
)
_OPEN = (
    "Once upon a time there was {a_trait} {hero} named {name}. {name} lived in {place}.",
    "In {place} lived {a_trait} {hero} named {name}.",
    "Long ago, {a_trait} {hero} lived in {place}. Everybody called the {hero} {name}.",
    "There once was {a_trait} {hero} whose name was {name}. Home was {place}.",
)
_FIND = (
    "One {time}, {name} found {a_colour} {thing} {where}.",
    "One {time}, while the rain was falling, {name} saw {a_colour} {thing} {where}.",
    "On a {weather} {time}, {name} came upon {a_colour} {thing} {where}.",
    "When the {weather} {time} came, there was {a_colour} {thing} {where}, and {name} picked it up.",
)
_WHERE = ("under a stone", "beside the path", "behind the door", "near the bridge", "in the tall grass", "at the gate")
_WONDER = (
    '"Whose {thing} is this?" asked {name}.',
    '"What a lovely {thing}!" said {name}. "Somebody must miss it."',
    "{name} had never seen such a {thing} before.",
    "Nobody knew where the {thing} had come from.",
)
_SEARCH = (
    "{name} asked {a_friend}, but the {friend} only shook its head.",
    'First {name} went to see {a_friend}, who knew many things. "Go to the river," said the {friend}.',
    "{name} walked all day and met {a_friend}. Together they went on, and the way seemed shorter.",
    "On the way {name} helped {a_friend} that was stuck in the mud, and the {friend} came along.",
)
_TURN = (
    "Then the wind began to blow, and the night became very dark.",
    "Suddenly they heard somebody crying behind a tree.",
    "At last they came to a house with a light in the window.",
    "But the bridge was broken, and they had to wait until the water fell.",
)
_OWNER = (
    "An old woman opened the door. She had lost the {thing} a long time ago.",
    "It was a child who had lost the {thing} and could not go home without it.",
    "There sat {owner}, who had been looking for the {thing} for a whole year.",
)
_END = (
    "{name} gave the {thing} back, and they all ate warm bread together. From that day on they were friends.",
    "How happy everybody was! {name} went home with a light heart and slept until noon.",
    '"Keep it," said the other, "for you have been kind." So {name} kept the {thing} and took good care of it.',
    "And if you walk past {place} today, you may still see the {thing} in the window.",
)
_MORAL = ("", "", " The end.", " And that is the whole story.", " A kind heart is never alone.")


def story(draw: Draw) -> Turn:
    hero, thing = draw.keyed("story", lambda: (draw.one(ANIMALS), draw.one(THINGS)))
    style = draw.number(0, 9) if draw.split == "train" else 0  # what is held out is a hero with a thing
    friend, owner = draw.some([animal for animal in ANIMALS if animal != hero], 2)
    values = {
        "hero": hero,
        "thing": thing,
        "friend": friend,
        "a_friend": with_article(friend),
        "owner": with_article(draw.one(TRAITS) + " " + owner),
        "name": draw.one(NAMES),
        "place": draw.one(_PLACES),
        "a_trait": with_article(draw.one(TRAITS)),
        "a_colour": with_article(draw.one(COLOURS)),
        "time": draw.one(("morning", "evening", "day", "night", "afternoon")),
        "weather": draw.one(("cold", "warm", "rainy", "sunny", "quiet", "windy")),
        "where": draw.one(_WHERE),
    }
    parts = [_OPEN, _FIND, _WONDER, _SEARCH, _TURN, _OWNER, _END]
    if draw.chance(0.3):
        parts.remove(_TURN)
    text = " ".join(draw.one(part).format(**values) for part in parts) + draw.one(_MORAL)
    named = {"hero": with_article(hero), "thing": with_article(thing)}
    patterns = _ASK if style < 7 else _ASK_HERO if style < 9 else _ASK_ANY
    question = draw.phrase(patterns, **named)
    words = (hero, thing) if style < 7 else (hero,) if style < 9 else ()
    plan = {2: f"a story with {named['hero']} and {named['thing']}", 1: f"a story about {named['hero']}"}
    thought = f"The user wants {plan.get(len(words), 'a story')}. I begin with the hero, then something happens."
    expect = Expect(answer=(thing,)) if len(words) == 2 else Expect(answer=(hero,)) if words else Expect()
    return Turn("stories", question, thought, first_upper(text), expect)
