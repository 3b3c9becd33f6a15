"""Arithmetic with worked thoughts: column by column, as it is taught at school.

Every thought is computed step by step by the code that writes it; the tests read the steps back and check each.
"""

from __future__ import annotations

from dataclasses import replace

from demo.facts import ITEMS, NAMES
from demo.sample import Draw, Expect, Turn

_PLACES = ("Ones", "Tens", "Hundreds", "Thousands", "Ten thousands", "Hundred thousands")
MINUS = "-"

_ADD = (
    "What is {a} + {b}?",
    "{a} + {b}",
    "{a} + {b} = ?",
    "{a}+{b}",
    "How much is {a} + {b}?",
    "Calculate {a} + {b}.",
    "Add {a} and {b}.",
    "What is {a} plus {b}?",
    "What is the sum of {a} and {b}?",
    "Please add {b} to {a}.",
    "Can you tell me what {a} + {b} is?",
    "compute {a} + {b}",
    "What's {a} + {b}?",
    "what is {a}+{b}",
    "{a} plus {b}",
    "{a} + {b}, please",
    "What do {a} and {b} make together?",
    "How much do you get when you add {a} and {b}?",
)
_SUBTRACT = (
    "What is {a} - {b}?",
    "{a} - {b}",
    "{a} - {b} = ?",
    "{a}-{b}",
    "How much is {a} - {b}?",
    "Calculate {a} - {b}.",
    "Subtract {b} from {a}.",
    "What is {a} minus {b}?",
    "What is the difference between {a} and {b}?",
    "Take {b} away from {a}.",
    "Can you tell me what {a} - {b} is?",
    "compute {a} - {b}",
    "What's {a} - {b}?",
    "what is {a}-{b}",
    "{a} minus {b}",
    "{a} - {b}, please",
    "What is left of {a} when you take away {b}?",
    "How much do you get when you subtract {b} from {a}?",
)
_MULTIPLY = (
    "What is {a} * {b}?",
    "{a} * {b}",
    "{a}*{b}",
    "{a} * {b} = ?",
    "{a} x {b}",
    "{a}x{b}",
    "{a} x {b} = ?",
    "What is {a} times {b}?",
    "How much is {a} times {b}?",
    "Multiply {a} by {b}.",
    "Calculate {a} * {b}.",
    "What is the product of {a} and {b}?",
    "What's {a} times {b}?",
    "{a} times {b}",
)
_DIVIDE = (
    "What is {a} / {b}?",
    "{a} / {b}",
    "{a}/{b}",
    "{a} / {b} = ?",
    "How much is {a} / {b}?",
    "What is {a} divided by {b}?",
    "Divide {a} by {b}.",
    "How many times does {b} go into {a}?",
    "Calculate {a} / {b}.",
)


def add_steps(a: int, b: int) -> list[str]:
    """The column addition, from the ones up."""
    steps, carry, place = [], 0, 0
    x, y = a, b
    while x or y or place == 0:
        digit, other = x % 10, y % 10
        total = digit + other + carry
        x, y = x // 10, y // 10
        terms = f"{digit} + {other}" + (f" + {carry}" if carry else "")
        carry = total // 10
        steps.append(f"{_PLACES[place]}: {terms} = {total}. Write {total % 10}" + (", carry 1." if carry else "."))
        place += 1
    if carry:
        steps.append(f"{_PLACES[place]}: write 1.")
    return [*steps, f"So {a} + {b} = {a + b}."]


def subtract_steps(a: int, b: int) -> list[str]:
    """The column subtraction; a smaller first number is turned round."""
    if a < b:
        turned = subtract_steps(b, a)
        return [
            f"{a} is smaller than {b}, so the result is negative.",
            *turned[:-1],
            f"{b} - {a} = {b - a}.",
            f"So {a} - {b} = {MINUS}{b - a}.",
        ]
    steps, borrow, place = [], 0, 0
    x, y = a, b
    while x or y or place == 0:
        digit, other = x % 10, y % 10
        text = f"{_PLACES[place]}: "
        if borrow:
            text += f"{digit} - 1 = {digit - 1}. "
            digit -= 1
        if digit < other:
            text += f"{digit} is less than {other}, borrow 10: {digit + 10} - {other} = {digit + 10 - other}."
            borrow = 1
        else:
            text += f"{digit} - {other} = {digit - other}."
            borrow = 0
        steps.append(text)
        x, y, place = x // 10, y // 10, place + 1
    return [*steps, f"So {a} - {b} = {a - b}."]


def multiply_steps(a: int, b: int) -> list[str]:
    """a times one digit (or at most 12): tens, ones, and their sum. Two digits each: b's tens and ones in turn. The
    small number first: turned round."""
    if a <= 12 < b:
        return [f"I turn it round: {b} * {a}.", *multiply_steps(b, a), f"So {a} * {b} = {a * b}."]
    tens, ones = a // 10 * 10, a % 10
    if a > 12 and b > 12:
        high, low = b // 10, b % 10
        first, second = a * high * 10, a * low
        steps = [f"{b} = {high * 10} + {low}.", *multiply_steps(a, high)]
        steps.append(f"{a * high} * 10 = {first}.")
        if low:
            steps += [*multiply_steps(a, low), *add_steps(first, second)]
        return [*steps, f"So {a} * {b} = {a * b}."]
    if tens == 0 or ones == 0 or a <= 12:
        return [f"{a} * {b} = {a * b}."]
    return [
        f"{a} = {tens} + {ones}.",
        f"{tens} * {b} = {tens * b}.",
        f"{ones} * {b} = {ones * b}.",
        f"{tens * b} + {ones * b} = {a * b}.",
        f"So {a} * {b} = {a * b}.",
    ]


def divide_steps(a: int, b: int) -> list[str]:
    """Tens of the quotient first, then the multiples of b one by one until the next would be too much."""
    quotient, rest = divmod(a, b)
    steps, left, tens = [], a, quotient // 10 * 10
    if tens:
        left = a - tens * b
        steps.append(f"{tens} * {b} = {tens * b}. {a} - {tens * b} = {left}.")
    multiples = [f"{i} * {b} = {i * b}" for i in range(1, left // b + 1)]
    if left >= b:
        steps.append(f"{', '.join(multiples)}.")
    if left % b:
        steps.append(f"{left // b + 1} * {b} = {(left // b + 1) * b} is more than {left}.")
        if left >= b:
            steps.append(f"{left} - {left // b * b} = {rest}.")
    if tens and left >= b:
        steps.append(f"{tens} + {left // b} = {quotient}.")
    if rest:
        return [*steps, f"So {a} / {b} = {quotient} with remainder {rest}."]
    return [*steps, f"So {a} / {b} = {quotient}."]


def _turn(kind: str, question: str, steps: list[str], result: int, *, worked: bool) -> Turn:
    answer = steps[-1].removeprefix("So ")
    text = str(result)
    return Turn(kind, question, "\n".join(steps), answer, Expect(answer=(text,)), short=text, worked=worked)


def _pair(draw: Draw, first: tuple[int, int], second: tuple[int, int] | None = None) -> tuple[int, int]:
    """Two operands from two ranges. (a, b) and (b, a) are on the same side of the border, for sums and differences."""
    second = second or first
    return draw.keyed("operands", lambda: (draw.number(*first), draw.number(*second)), lambda pair: tuple(sorted(pair)))


def add(draw: Draw) -> Turn:
    a, b = _pair(draw, (10, 99))
    return _turn("add, two digits", draw.phrase(_ADD, a=a, b=b), add_steps(a, b), a + b, worked=False)


def subtract(draw: Draw) -> Turn:
    a, b = draw.keyed("operands", lambda: (draw.number(10, 99),) * 2) if draw.chance(0.03) else _pair(draw, (10, 99))
    if draw.chance(0.85):
        a, b = max(a, b), min(a, b)
    return _turn("subtract, two digits", draw.phrase(_SUBTRACT, a=a, b=b), subtract_steps(a, b), a - b, worked=a < b)


def small(draw: Draw) -> Turn:
    """One digit with one or two digits."""
    a, b = _pair(draw, (0, 99), (0, 9))
    if draw.chance(0.5):
        a, b = (b, a) if draw.chance(0.3) else (a, b)
        return _turn("small sums", draw.phrase(_ADD, a=a, b=b), add_steps(a, b), a + b, worked=False)
    if draw.chance(0.8):
        a, b = max(a, b), min(a, b)
    return _turn("small sums", draw.phrase(_SUBTRACT, a=a, b=b), subtract_steps(a, b), a - b, worked=a < b)


def three_digits(draw: Draw) -> Turn:
    a, b = _pair(draw, (100, 999), (draw.one((1, 10, 10, 100)), 999))
    kind = "add and subtract, three digits"
    if draw.chance(0.5):
        a, b = (b, a) if draw.chance(0.3) else (a, b)
        return _turn(kind, draw.phrase(_ADD, a=a, b=b), add_steps(a, b), a + b, worked=True)
    if draw.chance(0.9):
        a, b = max(a, b), min(a, b)
    return _turn(kind, draw.phrase(_SUBTRACT, a=a, b=b), subtract_steps(a, b), a - b, worked=True)


def many_digits(draw: Draw) -> Turn:
    """Four and five digits, by the same columns."""
    high = draw.one((9_999, 9_999, 99_999))
    a, b = _pair(draw, (1_000, high), (draw.one((10, 100, 1_000, 1_000)), high))
    kind = "add and subtract, many digits"
    if draw.chance(0.5):
        return _turn(kind, draw.phrase(_ADD, a=a, b=b), add_steps(a, b), a + b, worked=True)
    a, b = max(a, b), min(a, b)
    return _turn(kind, draw.phrase(_SUBTRACT, a=a, b=b), subtract_steps(a, b), a - b, worked=True)


_TOO_HARD = (
    "That is too hard for me. I add and subtract whole numbers of up to five digits, multiply up to 99 and divide up "
    "to 100."
)


def too_hard(draw: Draw) -> Turn:
    """What would come out wrong is refused: decimals, long numbers, powers, roots, letters."""

    def operands() -> tuple[str, str, str]:
        kind = draw.number(0, 3)
        if kind == 0:
            a, b = (f"{draw.number(0, 99)}.{draw.number(1, 99)}" for _ in range(2))
            return a, draw.one("+-*/"), b if draw.chance(0.7) else str(draw.number(1, 99))
        if kind == 1:
            return str(draw.number(100_000, 99_999_999)), draw.one("+-*/"), str(draw.number(10, 9_999_999))
        if kind == 2:
            return str(draw.number(100, 9_999)), "*", str(draw.number(2, draw.one((9, 99, 9_999))))
        return str(draw.number(101, 99_999)), "/", str(draw.number(2, draw.one((9, 99, 999))))

    a, sign, b = draw.keyed("too hard", operands)
    spoken = {"+": "plus", "-": "minus", "*": "times", "/": "divided by"}[sign]
    question = draw.phrase(
        ("What is {a} {s} {b}?", "{a} {s} {b}", "{a}{s}{b}", "How much is {a} {s} {b}?", "Calculate {a} {s} {b}.",
         "What is {a} {w} {b}?", "{a} {s} {b} = ?"),
        a=a, s=sign, b=b, w=spoken,
    )  # fmt: skip
    thought = "I look at the numbers first. This is more than I can do, so I must not guess."
    return Turn("sums too hard", question, thought, _TOO_HARD, Expect(answer=("too hard",)), worked=False)


def multiply(draw: Draw) -> Turn:
    def operands() -> tuple[int, int]:
        return draw.one(
            [
                (draw.number(2, 12), draw.number(2, 12)),
                (draw.number(11, 99), draw.number(2, 9)),
                (draw.number(13, 99), draw.number(13, 99)),
                (draw.number(2, 9), draw.number(11, 99)),
            ]
        )

    a, b = draw.keyed("product", operands, lambda pair: tuple(sorted(pair)))
    question = draw.phrase(_MULTIPLY, a=a, b=b)
    return _turn("multiply", question, multiply_steps(a, b), a * b, worked=max(a, b) > 12)


def divide(draw: Draw) -> Turn:
    def operands() -> tuple[int, int]:
        dividend, divisor = draw.number(10, 100), draw.number(2, draw.one((9, 9, 12)))
        return dividend - (dividend % divisor if draw.chance(0.5) else 0), divisor

    a, b = draw.keyed("quotient", operands)
    question = draw.phrase(_DIVIDE, a=a, b=b)
    turn = _turn("divide", question, divide_steps(a, b), a // b, worked=True)
    if a % b == 0:
        return turn
    result = f"{a // b} with remainder {a % b}"
    return replace(turn, expect=Expect(answer=(result,)), short=result)


def story_sum(draw: Draw) -> Turn:
    """A sum told as a little story."""
    a, b = _pair(draw, (2, 99))
    name, item = draw.one(NAMES), draw.one(ITEMS)
    if draw.chance(0.5) or abs(a - b) < 2:  # "1 apples are left" is no English
        question = draw.phrase(
            (
                "{name} has {a} {item} and gets {b} more. How many {item} does {name} have now?",
                "{name} bought {a} {item} on Monday and {b} {item} on Tuesday. How many {item} is that in all?",
                "There are {a} {item} in one box and {b} {item} in another. How many {item} are there together?",
                "{name} finds {a} {item}. Later {name} finds {b} more. How many {item} are there?",
            ),
            name=name,
            item=item,
            a=a,
            b=b,
        )
        steps, total = add_steps(a, b), a + b
        intro = "The numbers must be added."
    else:
        a, b = max(a, b), min(a, b)
        question = draw.phrase(
            (
                "{name} has {a} {item} and gives away {b}. How many {item} are left?",
                "There were {a} {item} on the table. {name} took {b} of them. How many {item} are left?",
                "{name} had {a} {item} and lost {b}. How many {item} does {name} still have?",
                "A shop has {a} {item} and sells {b} of them. How many {item} remain?",
            ),
            name=name,
            item=item,
            a=a,
            b=b,
        )
        steps, total = subtract_steps(a, b), a - b
        intro = "The second number must be taken away."
    answer = draw.phrase(
        ("{steps} There are {n} {item}.", "{n} {item}.", "The answer is {n} {item}."),
        steps=steps[-1].removeprefix("So "),
        n=total,
        item=item,
    )
    return Turn(
        "sums in a story", question, "\n".join([intro, *steps]), answer, Expect(answer=(str(total),)), str(total), True
    )


def add_many(draw: Draw) -> Turn:
    """A sum of three or four numbers, one after the other."""
    high = draw.one((30, 30, 99, 999))
    numbers = draw.keyed("list sum", lambda: tuple(draw.number(1, high) for _ in range(draw.number(3, 4))))
    total, steps = numbers[0], []
    for number in numbers[1:]:
        # Small numbers at once, larger ones by columns.
        steps += [f"{total} + {number} = {total + number}."] if max(numbers) <= 30 else add_steps(total, number)
        total += number
    terms = " + ".join(map(str, numbers))
    listed = ", ".join(map(str, numbers))
    question = draw.phrase(
        ("What is {terms}?", "Add up {listed}.", "What is the sum of {listed}?", "{terms}"), terms=terms, listed=listed
    )
    steps.append(f"So {terms} = {total}.")
    return _turn("sum of a list", question, steps, total, worked=True)


def compare(draw: Draw) -> Turn:
    a, b = draw.keyed("compare", lambda: draw.some(range(1, 1000 if draw.chance(0.5) else 100), 2), sorted)
    larger = draw.chance(0.5)
    word = draw.one(("larger", "bigger", "greater") if larger else ("smaller", "less"))
    question = draw.phrase(("Which is {word}, {a} or {b}?", "Which number is {word}: {a} or {b}?"), word=word, a=a, b=b)
    result = max(a, b) if larger else min(a, b)
    other = a + b - result
    if len(str(a)) != len(str(b)):
        longer = max(a, b)
        reason = f"{longer} has more digits, so {longer} is larger."
    else:
        place = next(i for i, (x, y) in enumerate(zip(str(a), str(b), strict=True)) if x != y)
        high, low = max(a, b), min(a, b)
        name = ("first", "second", "third")[place]
        reason = f"The {name} digit differs: {str(high)[place]} is more than {str(low)[place]}, so {high} is larger."
    answer = draw.phrase(("{r} is {word} than {o}.", "{r} is {word}."), r=result, word=word, o=other)
    return Turn("comparisons", question, reason, answer, Expect(answer=(f"{result} is",)), str(result))
