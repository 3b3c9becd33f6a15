"""The questions that show where the demo model ends: their answers are right, and the card has what was measured."""

from __future__ import annotations

import random
import re
from pathlib import Path

import probe_demo
import pytest
from demo.check import Reply
from demo.sample import Sample
from demo.wordings import GROUPS
from evaluate_demo import Judged

from qwen3app.settings import DEMO_MODEL

CARD = (DEMO_MODEL / "README.md").read_text(encoding="utf-8")
ASK = {group.name: group.ask for group in GROUPS}
# The card promises these; differences below zero it does not.
PROMISED = [group for group in GROUPS if group.known and not group.name.endswith("below 0")]


def asked(name: str, n: int = 200) -> list[tuple[str, tuple[str, ...]]]:
    rng = random.Random(1)
    return [ASK[name](rng) for _ in range(n)]


@pytest.mark.parametrize("name", [name for name in ASK if re.search(r"digits? [-+*] ", name)])
def test_sums_have_the_right_result_and_the_digits_of_their_name(name: str) -> None:
    digits = {"one": 1, "two": 2, "three": 3, "four": 4}
    first, sign, second = re.fullmatch(r"(\w+) digits? ([-+*]) (\w+) digits?(?:, below 0)?", name).groups()  # type: ignore[union-attr]
    for question, (right,) in asked(name):
        a, b = map(int, re.findall(r"\d+", question))
        assert int(right) == {"+": a + b, "-": a - b, "*": a * b}[sign]
        assert (len(str(a)), len(str(b))) == (digits[first], digits[second])
        assert sign != "-" or (int(right) <= 0 if "below" in name else int(right) >= 0)


@pytest.mark.parametrize(
    ("name", "question", "right"),
    [
        ("three numbers up to 30", "What is 10 + 5 + 13?", "28"),
        ("units, 2 to 60 of them", "How many kilograms are 14 tonnes?", "14000"),
        ("units by their signs", "Convert 40 kg to g.", "40000"),
        ("date, 1 to 20 days earlier", "What date is 3 days before October 18?", "October 15"),
        ("date, 21 to 60 days later", "What date is 52 days after July 12?", "September 2"),
        ("weekday, 11 to 20 days later", "What day is 18 days after Wednesday?", "Sunday"),
        ("weekday of a date", "What day is 28 March 2020?", "Saturday"),
        ("clock, hours", "What time is it 6 hours after 04:15?", "10:15"),
        ("clock, whole fives up to 90 minutes", "What time is it 30 minutes after 19:25?", "19:55"),
        ("days of a month of a year", "How many days are in February 2024?", "29 days"),
        ("days of a month", "How many days are in April?", "30 days"),
    ],
)
def test_a_group_has_the_right_answer(name: str, question: str, right: str) -> None:
    (group,) = [group for group in GROUPS if group.name == name]
    found = {sample.messages[0]["content"]: sample.expect.answer for sample in group.samples(600)}
    assert found[question] == (right,)


def test_questions_are_the_same_each_time_and_half_are_thought_about() -> None:
    for group in GROUPS:
        samples = list(group.samples(6))
        assert samples == list(group.samples(6)) and [sample.thinking for sample in samples] == [True, False] * 3


def test_the_table_has_each_group_once_with_known_forms_first() -> None:
    def judged(kind: str, n: int, wrong: int) -> list[Judged]:
        sample = Sample(kind, [{"role": "user", "content": f"about {kind}"}], True)
        return [Judged(sample, Reply(), None, "no" if i < wrong else None) for i in range(n)]

    items = [item for i, group in enumerate(GROUPS) for item in judged(group.name, 200, i)]
    _, _, *rows = probe_demo.table(items).splitlines()
    assert len(rows) == len(GROUPS) and rows[0] == f"| {GROUPS[0].name} | about {GROUPS[0].name} | yes | 100% |"
    assert f"| {GROUPS[1].name} | about {GROUPS[1].name} | yes | 99% |" in rows
    known = ["| yes |" in row for row in rows]
    assert known == sorted(known, reverse=True) and any(known) and not all(known)


def test_the_card_has_the_table_of_these_groups() -> None:
    table = CARD.partition("<!-- limits -->\n")[2].partition("<!-- /limits -->")[0].splitlines()[2:]
    measured = {row.split(" | ")[0].removeprefix("| "): row for row in table}
    assert list(measured) and set(measured) == set(ASK)
    for group in PROMISED:
        assert int(re.findall(r"(\d+)% \|$", measured[group.name])[0]) >= 95, "the card's list promises this form"


def test_what_the_card_promises_holds(tmp_path: Path) -> None:
    """On a few questions of each form; probe_demo asks ten times as many."""
    card = tmp_path / "README.md"
    card.write_text("<!-- limits -->\n<!-- /limits -->\n")
    assert probe_demo.main(["--each", "6", "--card", str(card)]) == 0
    rows = {row.split(" | ")[0]: row for row in card.read_text().splitlines()}
    wrong = [rows[f"| {group.name}"] for group in PROMISED if not rows[f"| {group.name}"].endswith("| 100% |")]
    assert len(wrong) <= 1, wrong
    assert not rows["| weekday of a date"].endswith("| 100% |"), "the card says that it fails"


def test_a_missing_model_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert probe_demo.main(["--model", str(tmp_path / "none")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("probe_demo: There is no model directory") and said.count("\n") == 1
