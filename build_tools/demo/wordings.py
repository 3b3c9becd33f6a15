"""Questions as a newcomer asks them: of the forms that training shows, and one step beyond each of them.

Owns the groups of questions with their right answers, computed here and not by the recipes. The scores of corpus.py say
how well the model has learnt its recipes; these say where that ends. Refuses to know models and scoring.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from demo.calendar_time import DAYS, MONTHS
from demo.facts import COUNTRIES, UNITS
from demo.lexicon import words_of
from demo.sample import Expect, Sample, with_article

Asked = tuple[str, tuple[str, ...]]  # a question, and what may stand in a right answer


@dataclass(frozen=True)
class Group:
    name: str
    known: bool  # of a form that training shows
    ask: Callable[[random.Random], Asked]

    def samples(self, n: int) -> Iterable[Sample]:
        """n questions, half with thoughts. Always the same."""
        rng = random.Random(self.name)
        for i in range(n):
            question, answers = self.ask(rng)
            messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answers[0]}]
            yield Sample(self.name, messages, i % 2 == 0, expect=Expect(answer=answers))


def _with_digits(rng: random.Random, n: int) -> int:
    return rng.randint(10 ** (n - 1), 10**n - 1)


def _add(first: int, second: int) -> Callable[[random.Random], Asked]:
    def ask(rng: random.Random) -> Asked:
        a, b = _with_digits(rng, first), _with_digits(rng, second)
        return rng.choice(("What is {} + {}?", "{} + {}", "Add {} and {}.")).format(a, b), (str(a + b),)

    return ask


def _subtract(first: int, second: int, *, negative: bool = False) -> Callable[[random.Random], Asked]:
    def ask(rng: random.Random) -> Asked:
        a, b = sorted((_with_digits(rng, first), _with_digits(rng, second)), reverse=not negative)
        return rng.choice(("What is {} - {}?", "{} - {}", "What is {} minus {}?")).format(a, b), (str(a - b),)

    return ask


def _multiply(first: int, second: int) -> Callable[[random.Random], Asked]:
    def ask(rng: random.Random) -> Asked:
        a, b = max(2, _with_digits(rng, first)), max(2, _with_digits(rng, second))
        return rng.choice(("What is {} * {}?", "{} * {}", "What is {} times {}?")).format(a, b), (str(a * b),)

    return ask


def _add_three(low: int, high: int) -> Callable[[random.Random], Asked]:
    def ask(rng: random.Random) -> Asked:
        numbers = [rng.randint(low, high) for _ in range(3)]
        return f"What is {' + '.join(map(str, numbers))}?", (str(sum(numbers)),)

    return ask


def _convert(low: int, high: int, units: Sequence[tuple[str, str, int]] = UNITS) -> Callable[[random.Random], Asked]:
    def ask(rng: random.Random) -> Asked:
        large, small, factor = rng.choice(units)
        amount, form = rng.randint(low, high), rng.choice(("Convert {a} {l} to {s}.", "How many {s} are {a} {l}?"))
        return form.format(a=amount, l=large, s=small), (str(amount * factor),)

    return ask


_AMERICAN = (("kilometers", "meters", 1000), ("meters", "centimeters", 100), ("liters", "milliliters", 1000))
_SIGNS = (("km", "m", 1000), ("m", "cm", 100), ("kg", "g", 1000), ("l", "ml", 1000), ("h", "min", 60))


def _date(form: str, low: int, high: int) -> Callable[[random.Random], Asked]:
    def ask(rng: random.Random) -> Asked:
        begin = date(2023, rng.choice((1, *range(3, 13))), rng.randint(1, 28))  # not February: its end needs the year
        days = rng.choice([days for days in range(low, high + 1) if days])
        end = begin + timedelta(days)
        shown = "1 day" if abs(days) == 1 else f"{abs(days)} days"
        return form.format(n=shown, m=MONTHS[begin.month - 1], d=begin.day), (f"{MONTHS[end.month - 1]} {end.day}",)

    return ask


def _weekday(low: int, high: int) -> Callable[[random.Random], Asked]:
    def ask(rng: random.Random) -> Asked:
        begin, step = rng.randrange(7), rng.randint(low, high)
        shown = "1 day" if step == 1 else f"{step} days"
        return f"What day is {shown} after {DAYS[begin]}?", (DAYS[(begin + step) % 7],)

    return ask


def _weekday_of_date(rng: random.Random) -> Asked:
    day = date(2020, 1, 1) + timedelta(rng.randrange(4_000))
    return f"What day is {day.day} {MONTHS[day.month - 1]} {day.year}?", (DAYS[day.weekday()],)


def _clock(form: str, low: int, high: int, step: int, unit: int = 1) -> Callable[[random.Random], Asked]:
    def ask(rng: random.Random) -> Asked:
        minute, later = rng.randrange(0, 24 * 60, step), rng.randrange(low, high + 1, 1 if unit > 1 else step)
        end = (minute + later * unit) % (24 * 60)
        begin = f"{minute // 60:02}:{minute % 60:02}"
        return form.format(n=later, t=begin), (f"{end // 60:02}:{end % 60:02}",)

    return ask


def _days_of_month(form: str, year: int) -> Callable[[random.Random], Asked]:
    def ask(rng: random.Random) -> Asked:
        month = rng.randrange(12)
        after = date(year + (month == 11), (month + 1) % 12 + 1, 1)
        return form.format(m=MONTHS[month], y=year), (f"{(after - date(year, month + 1, 1)).days} days",)

    return ask


_WORDS: dict[str, tuple[str, ...]] = {}  # nouns, with their meanings
for _, _word, _meaning in words_of("noun"):
    if len(_word) > 3:
        _WORDS[_word] = (*_WORDS.get(_word, ()), _meaning)
_NOT_LISTED = ("paper", "train", "storm", "snow", "star", "grass", "door", "coffee", "sand", "phone")  # nor spelled


def _define(form: str) -> Callable[[random.Random], Asked]:
    def ask(rng: random.Random) -> Asked:
        word = rng.choice(list(_WORDS))
        return form.format(w=word, a=with_article(word)), _WORDS[word]

    return ask


def _define_not_listed(rng: random.Random) -> Asked:
    return f'What does "{rng.choice(_NOT_LISTED)}" mean?', ("do not know", "not know")


def _spell(form: str) -> Callable[[random.Random], Asked]:
    def ask(rng: random.Random) -> Asked:
        word = rng.choice(list(_WORDS))
        return form.format(w=word), ("-".join(word),)

    return ask


def _capital(form: str) -> Callable[[random.Random], Asked]:
    def ask(rng: random.Random) -> Asked:
        country, city, _ = rng.choice(COUNTRIES)
        return form.format(c=country), (city,)

    return ask


def _plus_minus(rng: random.Random) -> Asked:
    a, b, c = rng.randint(20, 60), rng.randint(2, 30), rng.randint(2, 20)
    return f"What is {a} + {b} - {c}?", (str(a + b - c),)


def _decimals(rng: random.Random) -> Asked:
    a, b = (f"{rng.randint(1, 50)}.{rng.randint(1, 9)}" for _ in range(2))
    return rng.choice(("What is {} + {}?", "{} * {}", "{} - {}")).format(a, b), ("too hard",)


GROUPS = (
    Group("two digits + two digits", True, _add(2, 2)),
    Group("two digits + one digit", True, _add(2, 1)),
    Group("three digits + two digits", True, _add(3, 2)),
    Group("three digits + three digits", True, _add(3, 3)),
    Group("three digits + one digit", True, _add(3, 1)),
    Group("two digits + three digits", True, _add(2, 3)),
    Group("one digit + two digits", True, _add(1, 2)),
    Group("four digits + four digits", True, _add(4, 4)),
    Group("two digits - two digits", True, _subtract(2, 2)),
    Group("two digits - two digits, below 0", True, _subtract(2, 2, negative=True)),
    Group("three digits - three digits", True, _subtract(3, 3)),
    Group("three digits - one digit", True, _subtract(3, 1)),
    Group("three digits - three digits, below 0", True, _subtract(3, 3, negative=True)),
    Group("two digits * one digit", True, _multiply(2, 1)),
    Group("one digit * two digits", True, _multiply(1, 2)),
    Group("two digits * two digits", True, _multiply(2, 2)),
    Group("three numbers up to 30", True, _add_three(1, 30)),
    Group("three numbers of 31 to 99", True, _add_three(31, 99)),
    Group("a sum and a difference", False, _plus_minus),
    Group("decimals, to be refused", True, _decimals),
    Group("units, 2 to 60 of them", True, _convert(2, 60)),
    Group("units, 61 to 200 of them", False, _convert(61, 200)),
    Group("units in American spelling", True, _convert(2, 60, _AMERICAN)),
    Group("units by their signs", True, _convert(2, 60, _SIGNS)),
    Group("date, 1 to 20 days later", True, _date("What date is {n} after {m} {d}?", 1, 20)),
    Group("date, 21 to 60 days later", False, _date("What date is {n} after {m} {d}?", 21, 60)),
    Group("date of the next day", True, _date("What date comes after {m} {d}?", 1, 1)),
    Group("date, 1 to 20 days earlier", True, _date("What date is {n} before {m} {d}?", -20, -1)),
    Group("weekday, 1 to 10 days later", True, _weekday(1, 10)),
    Group("weekday, 11 to 20 days later", True, _weekday(11, 20)),
    Group("weekday, 61 to 200 days later", False, _weekday(61, 200)),
    Group("weekday of a date", False, _weekday_of_date),
    Group("clock, whole fives up to 90 minutes", True, _clock("What time is it {n} minutes after {t}?", 5, 90, 5)),
    Group("clock, any minutes up to 90", True, _clock("What time is it {n} minutes after {t}?", 5, 90, 1)),
    Group("clock, hours", True, _clock("What time is it {n} hours after {t}?", 2, 9, 5, unit=60)),
    Group("days of a month", True, _days_of_month("How many days are in {m}?", 2023)),
    Group("days of a month of a year", True, _days_of_month("How many days are in {m} {y}?", 2024)),
    Group("meaning of a word that it has", True, _define('What does "{w}" mean?')),
    Group("meaning, the word introduced", False, _define("What does the word {w} mean?")),
    Group("meaning, asked as for a thing", True, _define("What is {a}?")),
    Group("common words that it lacks", False, _define_not_listed),
    Group("spelling, in quotes", True, _spell('Spell "{w}".')),
    Group("spelling, without quotes", True, _spell("Spell the word {w}.")),
    Group("capital", True, _capital("What is the capital of {c}?")),
    Group("capital, in other words", False, _capital("What is the main city of {c}?")),
)
