"""The language of problems: written, read back, and what is none of it."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from rlhf.data.reasoning.problems import MAX_STEPS, MIN_STEPS, Problem, draw_problem, last_digit, parse_problem
from rlhf.errors import DataError


def test_a_problem_is_written_and_solved_as_the_specification_says():
    problem = Problem(9, (("+", 6), ("*", 9), ("-", 4)))
    assert problem.prompt == "9a+6b*9c-4:"
    assert problem.answer == 1  # 9 + 6 = 15, 5 * 9 = 45, 5 - 4 = 1
    assert problem.num_steps == 3


@pytest.mark.parametrize(
    ("value", "sign", "operand", "digit"),
    [(9, "+", 6, 5), (0, "+", 0, 0), (3, "-", 5, 8), (0, "-", 9, 1), (5, "-", 5, 0), (9, "*", 9, 1), (8, "*", 5, 0)],
)
def test_only_the_last_digit_is_kept_and_it_is_never_negative(value, sign, operand, digit):
    assert last_digit(value, sign, operand) == digit


def test_operations_are_done_from_left_to_right():
    assert parse_problem("1a+2b*3:").answer == 9  # not 1 + 6 = 7


def test_what_is_drawn_reads_back_as_it_was():
    draw = random.Random(3)
    for number in range(500):
        problem = draw_problem(MIN_STEPS + number % 7, draw)
        assert parse_problem(problem.prompt) == problem


@pytest.mark.parametrize(
    ("num_steps", "level"), [(2, "easy"), (3, "easy"), (4, "mid"), (5, "mid"), (6, "hard"), (7, "hard"), (8, "hard")]
)
def test_the_number_of_steps_makes_the_level(num_steps, level):
    assert draw_problem(num_steps, random.Random(0)).level == level


def test_operations_are_drawn_as_often_as_the_specification_says():
    draw = random.Random(11)
    drawn = [operation for _ in range(4000) for operation in draw_problem(MAX_STEPS, draw).operations]
    signs = Counter(sign for sign, _ in drawn)
    for sign, frac in {"+": 0.40, "-": 0.32, "*": 0.28}.items():
        assert signs[sign] / len(drawn) == pytest.approx(frac, abs=0.01)
    factors = Counter(operand for sign, operand in drawn if sign == "*")
    for operand in range(10):
        # 0.95 in ten parts, and 0.05 in two of them
        wanted = 0.12 if operand in (0, 5) else 0.095
        assert factors[operand] / signs["*"] == pytest.approx(wanted, abs=0.012)
    addends = Counter(operand for sign, operand in drawn if sign != "*")
    assert max(addends.values()) / min(addends.values()) < 1.12


@pytest.mark.parametrize(
    "prompt",
    [
        "",
        "9",
        "9:",
        "9a+6:",  # one step
        "9a+6b*9c-4",  # no colon
        "9a+6b*9c-4: ",
        " 9a+6b*9c-4:",
        "9a+6b*9c-4:\n",
        "9a+6c*9:",  # b is missing
        "9b+6a*9:",
        "9a+6b*12:",
        "9a+6b/3:",
        "-9a+6b*9:",
        "9a+6b*9c-4:a9+6=5;",
        "1a+1b+1c+1d+1e+1f+1g+1h+1a+1:",  # nine steps
        "٣a+6b*9:",  # a digit, but not one of ours
        None,
        7,
        [{"role": "user", "content": "9a+6b*9c-4:"}],
    ],
)
def test_what_is_no_problem_is_refused_with_an_example(prompt):
    with pytest.raises(DataError, match="reasoning world") as caught:
        parse_problem(prompt)
    message = str(caught.value)
    assert "'9a+6b*9c-4:'" in message
    assert "2 to 8 operations" in message
    assert "Use another reward" in message


def test_a_long_prompt_does_not_flood_the_message():
    with pytest.raises(DataError) as caught:
        parse_problem("9a+6" * 10_000)
    assert len(str(caught.value)) < 500


def test_a_problem_of_more_steps_than_letters_can_not_be_written():
    with pytest.raises(ValueError, match="zip"):
        _ = Problem(1, (("+", 1),) * 9).prompt
