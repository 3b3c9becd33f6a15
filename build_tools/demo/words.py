"""Words and lists: spelling, counting letters, turning words round, sorting, counting things."""

from __future__ import annotations

from demo.facts import ANIMALS, COLOURS, ITEMS, NAMES, OPPOSITES, PASTS, PLURALS, SYLLABLES, THINGS, WORDS
from demo.sample import Draw, Expect, Turn, first_upper, join_words


def made_up_word(draw: Draw) -> str:
    return "".join(draw.one(SYLLABLES) for _ in range(draw.number(2, 4)))


def word_to_spell(draw: Draw) -> str:
    """A word of the table or a made-up one, so that pieces of words are learnt and not only words."""
    return draw.keyed("spelling", lambda: draw.one(WORDS) if draw.chance(0.6) else made_up_word(draw))


def spell(draw: Draw) -> Turn:
    word = word_to_spell(draw)
    letters = "-".join(word.upper()) if (capital := draw.chance(0.4)) else "-".join(word)
    question = draw.phrase(
        (
            'Spell "{w}".',
            'How do you spell "{w}"?',
            'Spell the word "{w}" for me.',
            'Can you spell "{w}"?',
            'Write the letters of "{w}" one by one.',
        ),
        w=word,
    ) + (" Use capital letters." if capital else "")
    thought = f"I write the letters of {word} one after the other."
    answer = draw.phrase(("{l}", '"{w}" is spelled {l}.'), l=letters, w=word)
    return Turn("spelling", question, thought, answer, Expect(answer=(letters,)), letters)


def count_letter(draw: Draw) -> Turn:
    word = word_to_spell(draw)
    letter = draw.one(word) if draw.chance(0.85) else draw.one("aeiourstln")
    count, marks = 0, []
    for character in word:
        if character == letter:
            count += 1
            marks.append(f"{character} ({count})")
        else:
            marks.append(character)
    question = draw.phrase(
        (
            'How many times does the letter "{c}" appear in "{w}"?',
            'How many {c}\'s are in "{w}"?',
            'Count the letter "{c}" in "{w}".',
            'How often is "{c}" in the word "{w}"?',
        ),
        c=letter,
        w=word,
    )
    times = "once" if count == 1 else f"{count} times"
    thought = f"I go through {word}: {', '.join(marks)}. The count is {count}."
    answer = draw.phrase(
        ('The letter "{c}" appears {t} in "{w}": {n}.', 'There are {n} in "{w}".', "{n}"),
        c=letter,
        t=times,
        w=word,
        n=count,
    )
    return Turn("counting letters", question, thought, answer, Expect(answer=(str(count),)), str(count), worked=True)


def word_length(draw: Draw) -> Turn:
    word = word_to_spell(draw)
    marks = ", ".join(f"{c} {i}" for i, c in enumerate(word, 1))
    question = draw.phrase(
        ('How many letters does "{w}" have?', 'How long is the word "{w}"?', 'Count the letters of "{w}".'), w=word
    )
    answer = draw.phrase(('"{w}" has {n} letters.', "{n} letters.", "{n}"), w=word, n=len(word))
    return Turn(
        "counting letters",
        question,
        f"{marks}. That makes {len(word)}.",
        answer,
        Expect(answer=(str(len(word)),)),
        str(len(word)),
        worked=True,
    )


def reverse(draw: Draw) -> Turn:
    word = word_to_spell(draw)
    turned = word[::-1]
    question = draw.phrase(
        ('Write "{w}" backwards.', 'Reverse the word "{w}".', 'What is "{w}" spelled backwards?'), w=word
    )
    thought = f"Forwards: {' '.join(word)}. Backwards: {' '.join(turned)}. Together: {turned}."
    answer = draw.phrase(("{t}", '"{w}" backwards is "{t}".'), t=turned, w=word)
    return Turn("words backwards", question, thought, answer, Expect(answer=(turned,)), turned, worked=True)


def end_letter(draw: Draw) -> Turn:
    word = word_to_spell(draw)
    first = draw.chance(0.5)
    which, letter = ("first", word[0]) if first else ("last", word[-1])
    question = f'What is the {which} letter of "{word}"?'
    thought = f"{' '.join(word)}: the {which} letter is {letter}."
    answer = draw.phrase(('The {o} letter of "{w}" is "{c}".', '"{c}"'), o=which, w=word, c=letter)
    return Turn("first and last letters", question, thought, answer, Expect(answer=(letter,)), letter)


def _listed(items: list[str], draw: Draw) -> str:
    return ", ".join(items) if draw.chance(0.7) else join_words(items)


def sort_numbers(draw: Draw) -> Turn:
    numbers = draw.keyed("sort", lambda: tuple(draw.some(range(1, 100), draw.number(3, 6))))
    down = draw.chance(0.25)
    left, steps, word = list(numbers), [], "largest" if down else "smallest"
    while len(left) > 1:
        pick = max(left) if down else min(left)
        left.remove(pick)
        steps.append(f"The {word} is {pick}, left: {', '.join(map(str, left))}.")
    result = ", ".join(map(str, sorted(numbers, reverse=down)))
    listed = _listed([str(n) for n in numbers], draw)
    order = " from large to small" if down else draw.one((" from small to large", " in ascending order", ""))
    question = draw.phrase(("Sort these numbers{o}: {l}.", "Sort {l}{o}.", "Put {l} in order{o}."), o=order, l=listed)
    return Turn("sorting", question, " ".join(steps), result, Expect(exact=result), result, worked=True)


def sort_words(draw: Draw) -> Turn:
    pool = draw.one((NAMES, ANIMALS, ITEMS, COLOURS, THINGS))
    words = draw.keyed("sort words", lambda: tuple(draw.some(pool, draw.number(3, 5))))
    result = ", ".join(sorted(words))
    question = draw.phrase(
        (
            "Sort these words alphabetically: {l}.",
            "Put these words in alphabetical order: {l}.",
            "Sort by the alphabet: {l}",
        ),
        l=_listed(list(words), draw),
    )
    firsts = ", ".join(f"{w} begins with {w[0]}" for w in words)
    return Turn("sorting", question, f"{firsts}.", result, Expect(exact=result), result)


def extreme(draw: Draw) -> Turn:
    numbers = draw.keyed("extreme", lambda: tuple(draw.some(range(1, 200), draw.number(3, 6))))
    large = draw.chance(0.5)
    word = draw.one(("largest", "biggest", "highest") if large else ("smallest", "lowest"))
    best, steps = numbers[0], [f"I begin with {numbers[0]}."]
    for number in numbers[1:]:
        better = number > best if large else number < best
        relation = "larger" if number > best else "smaller"
        steps.append(f"{number} is {relation} than {best}" + (f", take {number}." if better else "."))
        best = number if better else best
    question = draw.phrase(
        ("What is the {w} of these numbers: {l}?", "Which of {l} is the {w}?", "Find the {w} number: {l}."),
        w=word,
        l=", ".join(map(str, numbers)),
    )
    answer = draw.phrase(("The {w} number is {b}.", "{b}"), w=word, b=best)
    return Turn("largest and smallest", question, " ".join(steps), answer, Expect(answer=(str(best),)), str(best), True)


def count_items(draw: Draw) -> Turn:
    pool = draw.one((NAMES, ANIMALS, ITEMS, COLOURS, THINGS))
    words = draw.keyed("count", lambda: tuple(draw.some(pool, draw.number(2, 9))))
    marks = ", ".join(f"{w} {i}" for i, w in enumerate(words, 1))
    question = draw.phrase(
        ("How many words are in this list: {l}?", "Count these: {l}.", "How many things are there: {l}?"),
        l=_listed(list(words), draw),
    )
    n = str(len(words))
    answer = draw.phrase(("There are {n}.", "{n}", "The list has {n} entries."), n=n)
    return Turn("counting lists", question, f"{marks}.", answer, Expect(answer=(n,)), n, worked=True)


def pick_from_list(draw: Draw) -> Turn:
    """Reading a list: its first, last or n-th entry, or what it holds."""
    pool = draw.one((NAMES, ANIMALS, ITEMS, COLOURS, THINGS, CITIES_AND_WORDS))
    words = draw.keyed("pick", lambda: tuple(draw.some(pool, draw.number(3, 6))))
    place = draw.number(0, len(words) - 1)
    ordinal = ("first", "second", "third", "fourth", "fifth", "sixth")[place]
    if place == len(words) - 1 and draw.chance(0.7):
        ordinal = "last"
    question = draw.phrase(
        (
            "What is the {o} word of this list: {l}?",
            "Here is a list: {l}. Which is the {o} one?",
            "Give me the {o} entry of: {l}.",
        ),
        o=ordinal,
        l=", ".join(words),
    )
    marks = ", ".join(f"{i} {w}" for i, w in enumerate(words, 1))
    answer = draw.phrase(("{w}", "The {o} one is {w}."), w=words[place], o=ordinal)
    return Turn(
        "reading lists",
        question,
        f"{marks}. The {ordinal} is {words[place]}.",
        answer,
        Expect(answer=(words[place],)),
        words[place],
    )


def grammar(draw: Draw) -> Turn:
    """Opposites, plurals, past forms. There are few: what is held out is a word with a phrasing."""
    table, patterns, sentence = draw.one(
        (
            (
                OPPOSITES,
                ('What is the opposite of "{w}"?', "Opposite of {w}?", 'Tell me the opposite of "{w}".'),
                'The opposite of "{w}" is "{r}".',
            ),
            (
                PLURALS,
                ('What is the plural of "{w}"?', "Plural of {w}?", 'Tell me the plural of "{w}".'),
                'The plural of "{w}" is "{r}".',
            ),
            (
                PASTS,
                ('What is the past tense of "{w}"?', "Past tense of {w}?", 'Tell me the past form of "{w}".'),
                'The past tense of "{w}" is "{r}".',
            ),
        )
    )
    (word, result), pattern = draw.keyed("grammar", lambda: (draw.one(table), draw.one(patterns)))
    answer = sentence.format(w=word, r=result)
    return Turn("word forms", pattern.format(w=word), answer, answer, Expect(answer=(result,)), result)


def repeat(draw: Draw) -> Turn:
    """Saying something again, to the letter."""
    words = [draw.one(WORDS) if draw.chance(0.5) else made_up_word(draw) for _ in range(draw.number(1, 5))]
    text = draw.keyed("repeat", lambda: " ".join(words) if draw.chance(0.5) else first_upper(made_up_word(draw)))
    question = draw.phrase(
        ("Repeat after me: {t}", 'Say "{t}".', "Please repeat: {t}", 'Write exactly this: "{t}"', "Echo: {t}"), t=text
    )
    return Turn("repeating", question, "I repeat the text as it is.", text, Expect(exact=text), text)


CITIES_AND_WORDS = WORDS[:80]
