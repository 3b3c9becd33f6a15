"""Days, months, clock times and units, with worked thoughts."""

from __future__ import annotations

import re

from demo.arithmetic import divide_steps, multiply_steps
from demo.facts import UNITS
from demo.sample import Draw, Expect, Turn

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def weekday(draw: Draw) -> Turn:
    """Whole weeks first, then day by day: no walk is longer than six days."""
    start, step, back = draw.keyed(
        "weekday", lambda: (draw.number(0, 6), draw.number(1, draw.one((7, 14, 60))), draw.chance(0.3))
    )
    sign, relation = (-1, "before") if back else (1, "after")
    weeks, rest = divmod(step, 7)
    result = DAYS[(start + sign * rest) % 7]
    steps = []
    if weeks:
        left = "" if rest == 0 else f" {step} - {weeks * 7} = {rest}."
        steps.append(f"A week has 7 days: {weeks} * 7 = {weeks * 7}.{left}")
        if rest == 0:
            steps.append(f"Whole weeks lead to {DAYS[start]} again.")
    if rest:
        walk = ", ".join(f"{i} {DAYS[(start + sign * i) % 7]}" for i in range(1, rest + 1))
        steps.append(f"I count {'back' if back else 'on'} from {DAYS[start]}: {walk}.")
    days = "1 day" if step == 1 else f"{step} days"
    question = draw.phrase(
        ("What day is {d} {w} {s}?", "Which day of the week is {d} {w} {s}?", "What weekday comes {d} {w} {s}?",
         "Today is {s}. Which day {t}?"),
        d=days, w=relation, s=DAYS[start], t=f"was it {days} ago" if back else f"is it in {days}",
    )  # fmt: skip
    answer = draw.phrase(("{d} {w} {s} is {r}.", "It is {r}.", "{r}"), d=days, w=relation, s=DAYS[start], r=result)
    return Turn("weekdays", question, " ".join(steps), answer, Expect(answer=(result,)), result, worked=True)


_NEXT_MONTH = (
    "Which month comes {w} {s}?",
    "What month is {w} {s}?",
    "Which month is {w} {s}?",
    "What comes {w} {s}?",
    "Tell me the month {w} {s}.",
    "Name the month {w} {s}.",
)


def month(draw: Draw) -> Turn:
    """The next month is a fact; several months are counted."""
    if draw.chance(0.3):
        (start, back), pattern = draw.fact("next month", lambda: (draw.number(0, 11), draw.chance(0.4)), _NEXT_MONTH)
        step = 1
    else:
        start, step, back = draw.keyed("month", lambda: (draw.number(0, 11), draw.number(2, 11), draw.chance(0.3)))
        pattern = draw.one(("Which month is {n} months {w} {s}?", "What month comes {n} months {w} {s}?",
                            "Which month comes {n} months {w} {s}?"))  # fmt: skip
    sign, relation = (-1, "before") if back else (1, "after")
    walk = [MONTHS[(start + sign * i) % 12] for i in range(1, step + 1)]
    listed = ", ".join(f"{i} {m}" for i, m in enumerate(walk, 1))
    thought = f"I count {'back' if back else 'on'} from {MONTHS[start]}: {listed}."
    answer = draw.phrase(("It is {r}.", "{r}", "{r} is the month."), r=walk[-1])
    question = pattern.format(n=step, w=relation, s=MONTHS[start])
    return Turn("months", question, thought, answer, Expect(answer=(walk[-1],)), walk[-1], worked=step > 1)


def month_days(draw: Draw) -> Turn:
    patterns = (
        "How many days does {m} have?",
        "How many days are in {m}?",
        "How long is {m}?",
        "Number of days in {m}?",
        "How many days has {m}?",
        "How many days long is {m}?",
    )
    if draw.chance(0.3):
        return _month_of_year(draw)
    place, pattern = draw.fact("month days", lambda: draw.number(0, 11), patterns)
    name, days = MONTHS[place], str(MONTH_DAYS[place])
    extra = ", and 29 in a leap year" if place == 1 else ""
    answer = f"{name} has {days} days{extra}."
    return Turn("months", pattern.format(m=name), answer, answer, Expect(answer=(days,)), days)


def _month_of_year(draw: Draw) -> Turn:
    place, year = draw.keyed(
        "month of year", lambda: (1 if draw.chance(0.4) else draw.number(0, 11), draw.number(1801, 2199))
    )
    leap, thought = _leap(year)
    days = MONTH_DAYS[place] + (place == 1 and leap)
    fact = f"{MONTHS[place]} {year} has {days} days."
    thought = f"{thought} {fact}" if place == 1 else f"{MONTHS[place]} has {days} days in every year."
    question = draw.phrase(("How many days are in {m} {y}?", "How many days does {m} {y} have?",
                            "How long is {m} {y}?"),                           m=MONTHS[place], y=year)  # fmt: skip
    return Turn("months", question, thought, fact, Expect(answer=(f"{days} days",)), str(days), worked=place == 1)


def _leap(year: int) -> tuple[bool, str]:
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if year % 4:
        return leap, f"{year // 4 * 4} can be divided by 4, {year} cannot. So {year} is not a leap year."
    if year % 100:
        return leap, f"{year} can be divided by 4 and not by 100. So {year} is a leap year."
    rest = "also by 400. So it is" if leap else "not by 400. So it is not"
    return leap, f"{year} can be divided by 100, and {rest} a leap year."


def leap_year(draw: Draw) -> Turn:
    year = draw.keyed("year", lambda: draw.number(1801, 2199) if draw.chance(0.9) else draw.one((1900, 2000, 2100)))
    leap, thought = _leap(year)
    question = draw.phrase(("Is {y} a leap year?", "Was {y} a leap year?", "Is the year {y} a leap year?"), y=year)
    answer = f"Yes, {year} is a leap year." if leap else f"No, {year} is not a leap year."
    return Turn(
        "leap years", question, thought, answer, Expect(answer=("Yes" if leap else "No",)), answer.split(",")[0]
    )


def date_before(draw: Draw) -> Turn:
    place, day, step = draw.keyed("date before", lambda: (draw.number(0, 11), draw.number(1, 28), draw.number(1, 20)))
    if day > step:
        result = f"{MONTHS[place]} {day - step}"
        work = f"{day} - {step} = {day - step}. That is still in {MONTHS[place]}."
    else:
        name, days = MONTHS[place - 1], MONTH_DAYS[place - 1]
        result = f"{name} {days + day - step}"
        work = f"{day} is not more than {step}, so it is in {name}, which has {days} days: {days} + {day} - {step} = "
        work += f"{days + day - step}."
    question = draw.phrase(
        ("What date is {n} before {m} {d}?", "Which date comes {n} before {m} {d}?",
         "Today is {m} {d}. What was the date {n} ago?"),
        n="1 day" if step == 1 else f"{step} days", m=MONTHS[place], d=day,
    ) + (" It is not a leap year." if place == 2 else "")  # fmt: skip
    answer = draw.phrase(("It is {r}.", "{r}"), r=result)
    return Turn("dates", question, work, answer, Expect(answer=(result,)), result, worked=True)


def date_after(draw: Draw) -> Turn:
    place, day, step = draw.keyed("date", lambda: (draw.number(0, 11), draw.number(1, 28), draw.number(1, 20)))
    name, days = MONTHS[place], MONTH_DAYS[place]
    total = day + step
    steps = [f"{day} + {step} = {total}."]
    if total > days:
        following = MONTHS[(place + 1) % 12]
        steps.append(f"{name} has {days} days, so it is in {following}: {total} - {days} = {total - days}.")
        result = f"{following} {total - days}"
    else:
        steps.append(f"{name} has {days} days, so it is still {name}.")
        result = f"{name} {total}"
    plural = "day" if step == 1 else "days"
    following_day = ("What date comes after {m} {d}?", "What is the date of the day after {m} {d}?")
    question = draw.phrase(
        following_day if step == 1 and draw.chance(0.5) else (
            "What date is {n} {p} after {m} {d}?", "Which date comes {n} {p} after {m} {d}?",
            "Today is {m} {d}. What is the date in {n} {p}?"), n=step, p=plural, m=name, d=day,
    ) + (" It is not a leap year." if place == 1 else "")  # fmt: skip
    answer = draw.phrase(("It is {r}.", "{r}"), r=result)
    return Turn("dates", question, " ".join(steps), answer, Expect(answer=(result,)), result, worked=True)


def _clock_turn(draw: Draw, question: str, steps: list[str], result: str) -> Turn:
    answer = draw.phrase(("It is {r}.", "{r}", "At {r}."), r=result)
    thought = " ".join([*steps, f"So it is {result}."])
    return Turn("clock times", question, thought, answer, Expect(answer=(result,)), result, worked=True)


def clock(draw: Draw) -> Turn:
    if draw.chance(0.15):
        return _clock_hours(draw)
    unit = 5 if draw.chance(0.5) else 1
    hour, minute, step = draw.keyed(
        "clock",
        lambda: (draw.number(0, 23), unit * draw.number(0, 60 // unit - 1), unit * draw.number(1, 90 // unit)),
    )
    total = minute + step
    steps = [f"{minute} + {step} = {total}."]
    end_hour, end_minute = hour, total
    while end_minute >= 60:
        steps.append(f"{end_minute} is an hour and {end_minute - 60} minutes.")
        end_minute -= 60
        end_hour = (end_hour + 1) % 24
    result = f"{end_hour:02}:{end_minute:02}"
    question = draw.phrase(
        ("What time is it {n} minutes after {t}?", "It is {t}. What time will it be in {n} minutes?",
         "A film starts at {t} and lasts {n} minutes. When does it end?"), n=step, t=f"{hour:02}:{minute:02}",
    )  # fmt: skip
    return _clock_turn(draw, question, steps, result)


def _clock_hours(draw: Draw) -> Turn:
    hour, minute, step = draw.keyed("clock hours", lambda: (draw.number(0, 23), draw.number(0, 59), draw.number(2, 12)))
    end = (hour + step) % 24
    result = f"{end:02}:{minute:02}"
    steps = [f"{hour} + {step} = {hour + step}."]
    if hour + step >= 24:
        steps.append(f"A day has 24 hours: {hour + step} - 24 = {end}.")
    question = draw.phrase(
        ("What time is it {n} hours after {t}?", "It is {t}. What time will it be in {n} hours?",
         "A train leaves at {t} and needs {n} hours. When does it arrive?"), n=step, t=f"{hour:02}:{minute:02}",
    )  # fmt: skip
    return _clock_turn(draw, question, steps, result)


_ROUND = (10, 100, 1000)
_SIGNS = {
    "kilometres": "km", "metres": "m", "centimetres": "cm", "millimetres": "mm", "kilograms": "kg", "grams": "g",
    "litres": "l", "millilitres": "ml", "hours": "h", "minutes": "min",
}  # fmt: skip


def _written(draw: Draw, unit: tuple[str, str, int]) -> tuple[str, str]:
    """The names of the two units: British, American, or their signs."""
    large, small, _ = unit
    style = draw.number(0, 9)
    if style < 2 and large in _SIGNS and small in _SIGNS:
        return _SIGNS[large], _SIGNS[small]
    if style < 5:
        return re.sub("tres$", "ters", large), re.sub("tres$", "ters", small)
    return large, small


def _singular(unit: str) -> str:
    return "foot" if unit == "feet" else unit if unit in _SIGNS.values() else unit.removesuffix("s")


def convert(draw: Draw) -> Turn:
    def operands() -> tuple[tuple[str, str, int], int, bool]:
        unit, down = draw.one(UNITS), draw.chance(0.35)
        hard = down and unit[2] not in _ROUND  # then at most one ten in the quotient
        easy = unit[2] in _ROUND and draw.chance(0.3)
        return unit, draw.number(2, 19 if hard else 200 if easy else 60), down

    unit, amount, down = draw.keyed("units", operands)
    (large, small), factor = _written(draw, unit), unit[2]
    round_factor = factor in _ROUND
    product = amount * factor
    if down:
        question = draw.phrase(
            ("How many {l} are {p} {s}?", "Convert {p} {s} to {l}.", "What is {p} {s} in {l}?"),
            l=large,
            s=small,
            p=product,
        )
        one = f"1 {_singular(large)} is {factor} {small}."
        if round_factor:
            thought = f"{one} {amount} * {factor} = {product}, so {product} / {factor} = {amount}."
        else:
            thought = "\n".join([one, *divide_steps(product, factor)])
        answer = f"{product} {small} are {amount} {large}."
        return Turn(
            "unit conversion", question, thought, answer, Expect(answer=(str(amount),)), str(amount), worked=True
        )
    question = draw.phrase(
        ("How many {s} are {a} {l}?", "Convert {a} {l} to {s}.", "What is {a} {l} in {s}?", "{a} {l} in {s}?"),
        l=large, s=small, a=amount,
    )  # fmt: skip
    if round_factor:
        work = f"{factor} has {len(str(factor)) - 1} zeros: {amount} * {factor} = {product}."
    else:
        work = "\n".join(multiply_steps(max(amount, factor), min(amount, factor)))
    thought = f"1 {_singular(large)} is {factor} {small}. {work}"
    answer = draw.phrase(("{a} {l} are {p} {s}.", "{p} {s}."), a=amount, l=large, p=product, s=small)
    return Turn("unit conversion", question, thought, answer, Expect(answer=(str(product),)), str(product), worked=True)
