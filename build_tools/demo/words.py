"""Words and lists: spelling, counting letters, turning words round, sorting, counting things."""

from __future__ import annotations

from demo.facts import ANIMALS, COLOURS, ITEMS, NAMES, OPPOSITES, PASTS, PLURALS, SYLLABLES, THINGS, WORDS
from demo.lexicon import spelling_words
from demo.sample import Draw, Expect, Turn, first_upper, join_words


def made_up_word(draw: Draw) -> str:
    return "".join(draw.one(SYLLABLES) for _ in range(draw.number(2, 4)))


def _asked_word(draw: Draw, task: str, patterns: tuple[str, ...]) -> tuple[str, str, bool]:
    """(a word, how it is asked for, whether the word is made up).

    Which letters a word has must have been seen where the word is one token, so what is held out is a word with a task
    and a way of asking. A made-up word comes in pieces that other words teach: it is held out from all tasks.
    """
    if draw.chance(0.35):
        return draw.keyed("spelling", lambda: made_up_word(draw)), draw.one(patterns), True
    common = draw.chance(0.35)
    word, pattern = draw.fact(task, lambda: draw.one(WORDS if common else spelling_words()), patterns)
    return word, pattern, False


def _numbered(word: str) -> str:
    return ", ".join(f"{i} {c}" for i, c in enumerate(word, 1))


def spell(draw: Draw) -> Turn:
    word, pattern, made_up = _asked_word(
        draw,
        "spell",
        (
            'Spell "{w}".',
            'How do you spell "{w}"?',
            "How do you spell {w}?",
            'Spell the word "{w}" for me.',
            "Spell the word {w}.",
            "Spell {w}, please.",
            'Can you spell "{w}"?',
            'Write the letters of "{w}" one by one.',
            'Which letters are in the word "{w}", in order?',
        ),
    )
    capital = draw.chance(0.3)
    letters = "-".join(word.upper() if capital else word)
    question = pattern.format(w=word) + (" Use capital letters." if capital else "")
    thought = f"The letters of {word}: {_numbered(word)}." + (" In capital letters." if capital else "")
    answer = draw.phrase(("{l}", '"{w}" is spelled {l}.'), l=letters, w=word)
    kind = "spelling, made-up words" if made_up else "spelling"
    return Turn(kind, question, thought, answer, Expect(answer=(letters,)), letters)


def count_letter(draw: Draw) -> Turn:
    word, pattern, _ = _asked_word(
        draw,
        "count letter",
        (
            'How many times does the letter "{c}" appear in "{w}"?',
            'How many {c}\'s are in "{w}"?',
            "How many {c}'s are in {w}?",
            "How many {c} are in the word {w}?",
            'Count the letter "{c}" in "{w}".',
            'How often is "{c}" in the word "{w}"?',
        ),
    )
    letter = draw.one(word) if draw.chance(0.85) else draw.one("aeiourstln")
    count, marks = 0, []
    for character in word:
        if character == letter:
            count += 1
            marks.append(f"{character} ({count})")
        else:
            marks.append(character)
    times = "once" if count == 1 else f"{count} times"
    thought = f"I go through {word}: {', '.join(marks)}. The count is {count}."
    answer = draw.phrase(
        ('The letter "{c}" appears {t} in "{w}": {n}.', 'There are {n} in "{w}".', "{n}"),
        c=letter,
        t=times,
        w=word,
        n=count,
    )
    expect = Expect(answer=(str(count),))
    return Turn("counting letters", pattern.format(c=letter, w=word), thought, answer, expect, str(count), worked=True)


def word_length(draw: Draw) -> Turn:
    word, pattern, _ = _asked_word(
        draw,
        "word length",
        (
            'How many letters does "{w}" have?',
            'How long is the word "{w}"?',
            'Count the letters of "{w}".',
            "How many letters are in {w}?",
            "How many letters does the word {w} have?",
        ),
    )
    n = str(len(word))
    thought = f"{_numbered(word)}. That makes {n}."
    answer = draw.phrase(('"{w}" has {n} letters.', "{n} letters.", "{n}"), w=word, n=n)
    return Turn("counting letters", pattern.format(w=word), thought, answer, Expect(answer=(n,)), n, worked=True)


def reverse(draw: Draw) -> Turn:
    word, pattern, _ = _asked_word(
        draw,
        "reverse",
        (
            'Write "{w}" backwards.',
            'Reverse the word "{w}".',
            'What is "{w}" spelled backwards?',
            "Turn the word {w} round.",
            "Write the word {w} backwards.",
        ),
    )
    turned = word[::-1]
    thought = f"Forwards: {' '.join(word)}. Backwards: {' '.join(turned)}. Together: {turned}."
    answer = draw.phrase(("{t}", '"{w}" backwards is "{t}".'), t=turned, w=word)
    return Turn("words backwards", pattern.format(w=word), thought, answer, Expect(answer=(turned,)), turned, True)


def end_letter(draw: Draw) -> Turn:
    word, pattern, _ = _asked_word(
        draw,
        "end letter",
        (
            'What is the {o} letter of "{w}"?',
            "What is the {o} letter of {w}?",
            'Which letter is the {o} of the word "{w}"?',
            'The {o} letter of "{w}"?',
        ),
    )
    first = draw.chance(0.5)
    which, letter = ("first", word[0]) if first else ("last", word[-1])
    thought = f"{' '.join(word)}: the {which} letter is {letter}."
    answer = draw.phrase(('The {o} letter of "{w}" is "{c}".', '"{c}"'), o=which, w=word, c=letter)
    question = pattern.format(o=which, w=word)
    return Turn("first and last letters", question, thought, answer, Expect(answer=(letter,)), letter)


def _listed(items: list[str], draw: Draw) -> str:
    return ", ".join(items) if draw.chance(0.7) else join_words(items)


def sort_numbers(draw: Draw) -> Turn:
    numbers = draw.keyed("sort", lambda: tuple(draw.some(range(1, draw.one((10, 100, 100))), draw.number(3, 6))))
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
    numbers = draw.keyed("extreme", lambda: tuple(draw.some(range(1, draw.one((10, 200, 200))), draw.number(3, 6))))
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
    """Opposites, plurals, past forms. There are few: what is held out is a word with a way of asking."""
    table, name, forms = draw.one(
        (
            (OPPOSITES, "opposite", ("opposite", "opposite word")),
            (PLURALS, "plural", ("plural", "plural form")),
            (PASTS, "past tense", ("past tense", "past form")),
        )
    )
    patterns = tuple(
        pattern.replace("{f}", form)
        for form in forms
        for pattern in (
            'What is the {f} of "{w}"?',
            "What is the {f} of {w}?",
            'Tell me the {f} of "{w}".',
            "Tell me the {f} of {w}.",
            "{f} of {w}?",
            'Give me the {f} of "{w}".',
            'Do you know the {f} of "{w}"?',
            'Which word is the {f} of "{w}"?',
        )
    )
    (word, result), pattern = draw.fact(name, lambda: draw.one(table), patterns)
    answer = f'The {name} of "{word}" is "{result}".'
    return Turn("word forms", first_upper(pattern.format(w=word)), answer, answer, Expect(answer=(result,)), result)


def repeat(draw: Draw) -> Turn:
    """Saying something again, to the letter."""
    words = [draw.one(WORDS) if draw.chance(0.5) else made_up_word(draw) for _ in range(draw.number(1, 5))]
    text = draw.keyed("repeat", lambda: " ".join(words) if draw.chance(0.5) else first_upper(made_up_word(draw)))
    question = draw.phrase(
        ("Repeat after me: {t}", 'Say "{t}".', "Please repeat: {t}", 'Write exactly this: "{t}"', "Echo: {t}"), t=text
    )
    return Turn("repeating", question, "I repeat the text as it is.", text, Expect(exact=text), text)


CITIES_AND_WORDS = WORDS[:80]
