"""Solutions: sound ones are sound, mistakes are mistakes, and they are as frequent as the specification says."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from rlhf.data.reasoning.problems import draw_problem, parse_problem
from rlhf.data.reasoning.traces import (
    CORRUPTED,
    DEMONSTRATOR,
    Mistakes,
    cut_short,
    popular_error,
    solve,
    write_trace,
)
from rlhf.data.reasoning.verify import label_steps, verify

CAREFUL = Mistakes(slip=0.0, skip=0.0)


def problems(count, seed=1, num_steps=None):
    draw = random.Random(seed)
    return [draw_problem(num_steps or 2 + number % 7, draw) for number in range(count)]


def verdicts(asked, mistakes, seed=2):
    draw = random.Random(seed)
    return [verify(problem.prompt, "".join(write_trace(problem, mistakes, draw))) for problem in asked]


def test_the_sound_solution_is_written_as_the_specification_says():
    assert "".join(solve(parse_problem("9a+6b*9c-4:"))) == "a9+6=5;b5*9=5;c5-4=1;A1."


@pytest.mark.parametrize(
    ("value", "sign", "operand", "digit", "how_often"),
    [
        (3, "-", 5, 2, 0.62),  # for 8
        (0, "-", 9, 9, 0.62),  # for 1
        (5, "-", 3, 2, 0.0),
        (5, "-", 5, 0, 0.0),
        (6, "*", 6, 7, 0.40),  # for 36
        (9, "*", 9, 2, 0.40),  # for 81
        (7, "*", 7, 0, 0.40),  # for 49: 0, not 10
        (5, "*", 9, 5, 0.0),
        (9, "+", 9, 8, 0.0),
    ],
)
def test_the_popular_error_by_hand(value, sign, operand, digit, how_often):
    assert popular_error(value, sign, operand) == (digit, how_often)


def test_the_popular_error_is_a_majority_of_what_is_written_for_a_subtraction_below_zero():
    draw = random.Random(3)
    problem = parse_problem("3a-5b+0:")
    written = Counter(write_trace(problem, DEMONSTRATOR, draw)[0] for _ in range(4000))
    # 3 - 5: 2 by all that borrow nothing; else 8, but for slips. One in 25 skips, half of those at once.
    assert written["a3-5=2;"] / 4000 == pytest.approx(0.62 * 0.98, abs=0.03)
    assert written["a3-5=8;"] / 4000 == pytest.approx(0.38 * 0.92 * 0.98, abs=0.03)


def test_a_mistake_without_effect_is_no_mistake():
    # 4 - 9 is 5, and so is 9 - 4: the popular error answers it rightly.
    assert popular_error(4, "-", 9)[0] == 5
    assert label_steps(parse_problem("4a-9b+0:"), ["a4-9=5;", "b5+0=5;", "A5."]) == (True, True, True)


def test_a_slip_is_a_wrong_step_and_what_follows_goes_on_from_it():
    additions = [parse_problem(p) for p in ("1a+2b+3c+4:", "9a+9b+9c+9d+9:", "0a+0b+0:")]
    draw = random.Random(4)
    for problem in additions:
        for _ in range(100):
            steps = write_trace(problem, Mistakes(slip=1.0, skip=0.0), draw)
            labels = label_steps(problem, steps)
            assert labels == (False,) * problem.num_steps + (True,)  # only the answer repeats what stands before it
            stated = [step[5] for step in steps[:-1]]
            assert [step[1] for step in steps[1:]] == stated


def test_a_copy_error_is_wrong_once_and_later_steps_are_consistent_with_it():
    draw = random.Random(5)
    problem = parse_problem("1a+2b+3c+4d+5:")
    seen = Counter()
    for _ in range(2000):
        steps = write_trace(problem, Mistakes(slip=0.0, skip=0.0, copy=0.2), draw)
        values = [problem.start] + [int(step[5]) for step in steps[:-1]]
        copied = [int(step[1]) for step in steps]
        labels = label_steps(problem, steps)
        for number, right in enumerate(labels):
            assert right == (copied[number] == values[number])
            if number < problem.num_steps:  # the reckoning itself is never wrong here
                assert values[number + 1] == (copied[number] + problem.operations[number][1]) % 10
        seen[labels.count(False)] += 1
    assert seen[0] / 2000 == pytest.approx(0.8**4, abs=0.04)
    assert seen[1] > 500


def test_who_skips_guesses_and_the_guess_is_wrong_even_where_it_is_lucky():
    draw = random.Random(6)
    lengths, lucky = Counter(), 0
    for _ in range(3000):
        problem = parse_problem("1a+2b+3c+4:")
        steps = write_trace(problem, Mistakes(slip=0.0, skip=1.0), draw)
        labels = label_steps(problem, steps)
        assert labels == (True,) * (len(steps) - 1) + (False,)
        lucky += steps[-1] == "A0."
        lengths[len(steps)] += 1
    assert lengths.keys() == {1, 2, 3}  # never all three operations
    assert max(lengths.values()) - min(lengths.values()) < 200
    assert lucky / 3000 == pytest.approx(0.1, abs=0.02)


def test_cutting_a_solution_short_leaves_a_guess_that_is_wrong():
    draw = random.Random(7)
    for problem in problems(300):
        steps = cut_short(solve(problem), draw)
        assert 1 <= len(steps) <= problem.num_steps
        assert label_steps(problem, steps) == (True,) * (len(steps) - 1) + (False,)
    assert len(cut_short(("A1.",), draw)) == 1  # a bare guess has nothing that could be left out


def test_the_demonstrator_is_right_as_often_as_was_measured():
    votes = verdicts(problems(14_000), DEMONSTRATOR)
    right = sum(verdict.correct for verdict in votes) / len(votes)
    sound = sum(verdict.sound for verdict in votes) / len(votes)
    # research/reasoning.md: .49 and .40
    assert right == pytest.approx(0.485, abs=0.015)
    assert sound == pytest.approx(0.395, abs=0.015)
    assert 1 - sound / right == pytest.approx(0.18, abs=0.02)


def test_a_harder_level_is_harder():
    shares = {}
    for level in ("easy", "mid", "hard"):
        asked = [problem for problem in problems(4000) if problem.level == level]
        shares[level] = sum(verdict.sound for verdict in verdicts(asked, DEMONSTRATOR)) / len(asked)
    assert shares["easy"] > shares["mid"] + 0.1 > shares["hard"] + 0.2


def test_corrupted_solutions_are_mostly_wrong_and_keep_both_kinds_of_step():
    asked = problems(4000)
    labels = [label for verdict in verdicts(asked, CORRUPTED) for label in verdict.labels]
    assert 0.6 < sum(labels) / len(labels) < 0.7
    firsts = Counter(verdict.first_wrong for verdict in verdicts(asked, CORRUPTED))
    assert all(firsts[number] > 20 for number in range(6)), "mistakes must begin anywhere"


def test_without_mistakes_only_the_popular_errors_are_left():
    draw = random.Random(8)
    for problem in problems(500):
        steps = write_trace(problem, CAREFUL, draw)
        for step, right in zip(steps[:-1], label_steps(problem, steps), strict=False):
            value, sign, operand = int(step[1]), step[2], int(step[3])
            if not right:
                digit, how_often = popular_error(value, sign, operand)
                assert how_often > 0
                assert int(step[5]) == digit


def test_the_same_draw_gives_the_same_solution():
    problem = parse_problem("9a+6b*9c-4:")
    first, second = (write_trace(problem, CORRUPTED, random.Random(9)) for _ in range(2))
    assert first == second
