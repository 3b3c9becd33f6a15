"""The demo model's recipes one by one: what is known is trained on, what is held out is not, every step is right."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from datetime import date, timedelta

import pytest
from demo import arithmetic, calendar_time, facts, knowledge, talk, tool_domains, tool_functions, tools, unknown, words
from demo.check import Reply, fault
from demo.lexicon import spelling_words, words_of
from demo.sample import Draw, Expect, Sample, Split, Turn, is_held


def draw(split: Split, seed: object = 0) -> Draw:
    return Draw(random.Random(str(seed)), split)


def many(recipe: Callable[[Draw], Turn], n: int, split: Split = "train") -> list[Turn]:
    source = draw(split, recipe.__name__)
    return [recipe(source) for _ in range(n)]


def tool_samples(recipe: Callable[[Draw], Sample], n: int, split: Split = "train") -> list[Sample]:
    source = draw(split, recipe.__name__)
    return [recipe(source) for _ in range(n)]


# ---- the border


def test_the_first_way_to_ask_is_trained_on_and_no_other_on_both_sides() -> None:
    ways = ("What is {x}?", "what is {x}", "Tell me {x}.", "Say {x}.", "{x}?", "Name {x}.", "Explain {x}.", "Give {x}.")
    seen: dict[Split, set[tuple[int, str]]] = {"train": set(), "held": set()}
    for split, found in seen.items():
        source = draw(split)
        for _ in range(4_000):
            found.add(source.fact("test", lambda source=source: source.number(0, 30), ways))  # type: ignore[misc]
    assert {(fact, way) for fact in range(31) for way in ways[:2]} <= seen["train"]
    assert not seen["train"] & seen["held"]
    assert len(seen["train"] | seen["held"]) == 31 * len(ways)
    assert 4 <= len(seen["held"]) <= 25


def test_keys_of_one_form_do_not_share_their_fate() -> None:
    """All ways of asking one fact were once held out, by a hash that is linear."""
    all_held = sum(
        all(is_held("f", i, way) for way in ("{q}", "Tell me: {q}", "Do you know {q}")) for i in range(4_000)
    )
    assert all_held <= 6  # one in 4,096 by chance
    assert 0.05 < sum(is_held("f", i) for i in range(4_000)) / 4_000 < 0.075


def test_all_that_is_known_is_asked_in_training() -> None:
    questions = " ".join(turn.question.lower() for turn in many(knowledge.small_fact, 3_000))
    assert [q for q, _, _ in facts.SMALL_FACTS if q.lower().rstrip("?") not in questions] == []
    capitals = {turn.short for turn in many(knowledge.capital, 4_000)}
    assert capitals == {city for _, city, _ in facts.COUNTRIES}
    said = {turn.question.lower() for turn in many(talk.small_talk, 20_000)}
    ways = [way for ways, _, _ in talk.TALK for way in ways]
    assert [way for way in ways if not any(way.lower() in question for question in said)] == []
    thoughts = " ".join(turn.thought for turn in many(words.spell, 20_000))
    assert set(facts.WORDS) <= set(re.findall(r"The letters of (\w+):", thoughts))


# ---- letters


@pytest.mark.parametrize("split", ["train", "held"])
def test_words_are_spelled_letter_by_letter(split: Split) -> None:
    for turn in many(words.spell, 300, split):
        word = re.search(r"The letters of (\w+):", turn.thought)
        assert word is not None
        letters = re.findall(r"\d+ (\w)", turn.thought)
        assert "".join(letters) == word[1]
        assert turn.short in ("-".join(letters), "-".join(letters).upper())
        assert turn.answer.endswith((turn.short, f"{turn.short}."))
        assert ("capital" in turn.question) == turn.short.isupper()


def test_made_up_words_are_held_out_from_all_tasks_with_letters() -> None:
    tasks = (words.spell, words.count_letter, words.word_length, words.reverse, words.end_letter)
    real = set(spelling_words())

    def made_up(split: Split) -> set[str]:
        found: set[str] = set()
        for task in tasks:
            for turn in many(task, 400, split):
                found |= set(re.findall(r"[a-z]{4,}", turn.question)) - real
        return {word for word in found if is_held("spelling", word) == (split == "held")}

    assert len(made_up("held")) > 100
    assert not made_up("train") & made_up("held")


def test_spelling_words_are_plain() -> None:
    assert len(spelling_words()) > 2_500
    assert all(re.fullmatch("[a-z]+", word) for word in spelling_words())


# ---- time and numbers


@pytest.mark.parametrize("split", ["train", "held"])
def test_weekdays_are_those_of_the_calendar(split: Split) -> None:
    monday, longest = date(2024, 1, 1), 0
    for turn in many(calendar_time.weekday, 400, split):
        days = re.search(r"(\d+) days?", turn.question)
        start = next(i for i, name in enumerate(calendar_time.DAYS) if name in turn.question)
        assert days is not None
        back = "before" in turn.question or " ago" in turn.question
        step = int(days[1]) * (-1 if back else 1)
        assert turn.short == f"{monday + timedelta(days=start + step):%A}"
        assert turn.thought.rstrip(".").endswith((str(turn.short), f"{turn.short} again"))
        assert len(re.findall(r"\d+ [A-Z]", turn.thought)) <= 6
        longest = max(longest, abs(step))
    assert longest > 40


@pytest.mark.parametrize("split", ["train", "held"])
def test_dates_hours_and_months_are_those_of_the_calendar(split: Split) -> None:
    for recipe, sign in ((calendar_time.date_after, 1), (calendar_time.date_before, -1)):
        for turn in many(recipe, 300, split):
            start = re.search(r"([A-Z][a-z]+) (\d+)", turn.question.removeprefix("Today is"))
            days = re.search(r"(\d+) days?", turn.question)
            assert start is not None
            begin = date(2023, calendar_time.MONTHS.index(start[1]) + 1, int(start[2]))
            end = begin + timedelta(sign * int(days[1]) if days else 1)
            assert turn.short == f"{end:%B} {end.day}"
    for turn in many(calendar_time.clock, 600, split):
        found = re.search(r"(\d\d):(\d\d)", turn.question)
        far = re.search(r"(\d+) (minutes|hours)", turn.question)
        assert found is not None and far is not None
        minute = int(found[1]) * 60 + int(found[2]) + int(far[1]) * (60 if far[2] == "hours" else 1)
        assert turn.short == f"{minute // 60 % 24:02}:{minute % 60:02}"
    with_year = [turn for turn in many(calendar_time.month_days, 600, split) if re.search(r"\d{4}", turn.question)]
    assert len(with_year) > 100
    for turn in with_year:
        name, year = re.findall(r"([A-Z][a-z]+) (\d{4})", turn.question)[0]
        place = calendar_time.MONTHS.index(name) + 1
        following = date(int(year) + place // 12, place % 12 + 1, 1)
        assert turn.short == str((following - date(int(year), place, 1)).days)


def test_several_months_are_counted_in_the_answer_too() -> None:
    for turn in many(calendar_time.month, 300):
        step = re.search(r"(\d+) months", turn.question)
        start = next(i for i, name in enumerate(calendar_time.MONTHS) if name in turn.question)
        far = (int(step[1]) if step else 1) * (-1 if "before" in turn.question else 1)
        assert turn.short == calendar_time.MONTHS[(start + far) % 12]
        assert turn.worked == (step is not None)


def test_a_small_factor_in_front_is_turned_round() -> None:
    assert arithmetic.multiply_steps(8, 45) == [
        "I turn it round: 45 * 8.",
        "45 = 40 + 5.", "40 * 8 = 320.", "5 * 8 = 40.", "320 + 40 = 360.", "So 45 * 8 = 360.",
        "So 8 * 45 = 360.",
    ]  # fmt: skip
    assert arithmetic.multiply_steps(12, 9) == ["12 * 9 = 108."]


def test_units_have_three_ways_to_be_written() -> None:
    asked = " ".join(turn.question for turn in many(calendar_time.convert, 2_000))
    for name in ("kilometres", "kilometers", "km", "m", "kg", "millilitres", "milliliters", "ml"):
        assert re.search(rf"\b{name}\b", asked), name


def test_times_and_results_of_tools_are_any() -> None:
    """A model that only ever saw whole fives told no other minute."""
    source = draw("train")
    times = {tool_domains.times(source) for _ in range(20_000)}
    assert len(times) == 24 * 60 and all(re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d", time) for time in times)
    found = [tool_domains.numbers(source) for _ in range(2_000)]
    assert {str(number)[-2] == "." for number in found if number >= 10} == {True, False}
    assert min(found) < 0 and max(found) > 10_000


def test_products_and_quotients_to_the_letter() -> None:
    assert arithmetic.multiply_steps(17, 23) == [
        "23 = 20 + 3.",
        "17 = 10 + 7.", "10 * 2 = 20.", "7 * 2 = 14.", "20 + 14 = 34.", "So 17 * 2 = 34.",
        "34 * 10 = 340.",
        "17 = 10 + 7.", "10 * 3 = 30.", "7 * 3 = 21.", "30 + 21 = 51.", "So 17 * 3 = 51.",
        "Ones: 0 + 1 = 1. Write 1.", "Tens: 4 + 5 = 9. Write 9.", "Hundreds: 3 + 0 = 3. Write 3.", "So 340 + 51 = 391.",
        "So 17 * 23 = 391.",
    ]  # fmt: skip
    assert arithmetic.divide_steps(27, 4) == [
        "1 * 4 = 4, 2 * 4 = 8, 3 * 4 = 12, 4 * 4 = 16, 5 * 4 = 20, 6 * 4 = 24.",
        "7 * 4 = 28 is more than 27.",
        "27 - 24 = 3.",
        "So 27 / 4 = 6 with remainder 3.",
    ]
    assert arithmetic.divide_steps(99, 8)[:2] == ["10 * 8 = 80. 99 - 80 = 19.", "1 * 8 = 8, 2 * 8 = 16."]
    assert arithmetic.divide_steps(60, 6) == ["10 * 6 = 60. 60 - 60 = 0.", "So 60 / 6 = 10."]
    assert arithmetic.divide_steps(82, 4)[-2:] == [
        "1 * 4 = 4 is more than 2.",
        "So 82 / 4 = 20 with remainder 2.",
    ]


def test_no_conversion_is_on_both_sides() -> None:
    names = {name for large, small, _ in facts.UNITS for name in (large, small)}
    american = {re.sub("tres$", "ters", name) for name in names}
    units = "|".join(names | american | set(calendar_time._SIGNS.values()))

    def amounts(split: Split) -> set[tuple[str, ...]]:
        return {
            (str(t.short), *re.findall(rf"\d+|\b(?:{units})\b", t.question))
            for t in many(calendar_time.convert, 2_000, split)
        }

    assert not amounts("train") & amounts("held")


@pytest.mark.parametrize(("a", "b"), [(9_999, 1), (12_345, 67_890), (99_999, 99_999), (10_000, 9_999), (54_321, 10)])
def test_many_digits_go_by_the_same_columns(a: int, b: int) -> None:
    written = re.findall(r"[Ww]rite (\d)", "\n".join(arithmetic.add_steps(a, b)))
    assert int("".join(reversed(written))) == a + b
    assert arithmetic.subtract_steps(a, b)[-1] == f"So {a} - {b} = {a - b}."


def test_what_is_too_hard_is_nowhere_worked() -> None:
    hard = {turn.question for turn in many(arithmetic.too_hard, 2_000)}
    recipes = (arithmetic.add, arithmetic.three_digits, arithmetic.many_digits, arithmetic.multiply, arithmetic.divide)
    assert not hard & {turn.question for recipe in recipes for turn in many(recipe, 2_000)}
    assert all("." in q or len(re.findall(r"\d", q)) >= 4 for q in hard)


# ---- what is not known


def test_nothing_known_is_refused() -> None:
    known = {question.lower().rstrip("?") for question, _, _ in facts.SMALL_FACTS}
    for turn in many(unknown.unknown, 5_000):
        asked = re.sub(r"^(please tell me: |hello! |one more thing: |i want to know: )", "", turn.question.lower())
        assert asked.rstrip("?.!") not in known
    nouns = {word for _, word, _ in words_of("noun")}
    for turn in many(unknown.unknown_word, 2_000):
        assert not set(re.findall(r'"(\w+)"', turn.answer)) & nouns
    countries = {country for country, _, _ in facts.COUNTRIES}
    assert not any(country in turn.question for turn in many(unknown.unknown_place, 2_000) for country in countries)


# ---- functions


def test_no_subject_of_the_evaluation_is_in_a_training_schema() -> None:
    recipes = (tools.one_call, tools.made_up_call, tools.parallel_calls, tools.no_call, tools.missing_function)
    text = " ".join(str(sample.tools) for recipe in recipes for sample in tool_samples(recipe, 400)).lower()
    for subject in ("movie", "film", "parking", "paint", "litres", "locate", "find_thing", "where_is"):
        assert subject not in text, subject


def test_functions_made_up_are_of_many_words_and_their_requests_name_all_arguments() -> None:
    source = draw("train")
    made = [tool_functions.any_made_up(source) for _ in range(1_000)]
    assert len({function.name for function in made}) > 900
    for function in made:
        text, values, arguments = function.request(source)
        assert len(values) == len(arguments) and len(arguments) <= len(function.params)
        for value in arguments.values():
            said = [str(v) for v in value] if isinstance(value, list) else [str(value)]
            assert isinstance(value, bool) or all(part.lower() in text.lower() for part in said), (text, value)
        assert "{" not in text and "  " not in text


def test_tools_are_offered_over_long_conversations() -> None:
    before = [len(sample.messages) for sample in tool_samples(tools.made_up_call, 400)]
    assert sum(n >= 8 for n in before) > 20
    assert max(before) > 12


def test_one_request_may_name_two_values() -> None:
    weather = tool_functions.of_domain(draw("train"), tool_functions.seen_domains()[0])
    source = draw("train")
    asked = [both for both in (weather.twice(source) for _ in range(50)) if both]
    assert asked
    for text, ((_, first), (_, second)) in asked:
        ((name, one),), ((same, other),) = first.items(), second.items()
        assert name == same and one != other
        assert re.search(rf"{one} and (also )?{other}", text)


def test_results_of_unseen_subjects_are_right_when_all_is_told() -> None:
    found = [s for s in tool_samples(tools.unseen_call, 100, "held") if s.kind == "tool results, unseen subject"]
    assert len(found) > 20
    for sample in found:
        assert sample.expect.says and sample.expect.exact is None
        told = (str(sample.messages[-1]["content"]), f"So it is: {', '.join(sample.expect.says)}.")
        assert [fault(sample, Reply(content=content, finish="stop")) for content in told] == [None, None]
        assert fault(sample, Reply(content="Nothing.", finish="stop")) is not None


def test_all_of_says_must_be_said() -> None:
    sample = Sample("x", [{"role": "user", "content": "?"}, {}], False, expect=Expect(says=("1974", "Martha")))
    assert fault(sample, Reply(content="The year is 1974, by Martha.")) is None
    assert fault(sample, Reply(content="The year is 1974.")) == "expected 'Martha'"
    assert fault(sample, Reply(content="The year is 19745, by Martha.")) == "expected '1974'"
