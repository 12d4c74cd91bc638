"""The exact verifier: hard cases by hand, and every label of many solutions again by other means."""

from __future__ import annotations

import random
import re

import pytest

from rlhf.data.reasoning.problems import draw_problem, parse_problem
from rlhf.data.reasoning.traces import CORRUPTED, DEMONSTRATOR, solve, write_trace
from rlhf.data.reasoning.verify import first_wrong_step, label_steps, split_steps, verify
from rlhf.errors import DataError

PROMPT = "9a+6b*9c-4:"


def bits(text):
    return tuple(mark == "1" for mark in text)


@pytest.mark.parametrize(
    ("completion", "labels", "answer", "correct", "sound"),
    [
        ("a9+6=5;b5*9=5;c5-4=1;A1.", "1111", 1, True, True),
        # a step is judged by what the one before it states: one mistake, and right steps after it
        ("a9+6=4;b4*9=6;c6-4=2;A2.", "0111", 2, False, False),
        # two mistakes that cancel: the right answer, and no sound way to it
        ("a9+6=6;b6*9=4;c4-4=1;A1.", "0101", 1, True, False),
        # a value that is not copied: wrong there, and what follows goes on from it
        ("a9+6=5;b3*9=7;c7-4=3;A3.", "1011", 3, False, False),
        ("a8+6=4;b4*9=6;c6-4=2;A2.", "0111", 2, False, False),
        # an answer that is not the last result
        ("a9+6=5;b5*9=5;c5-4=1;A2.", "1110", 2, False, False),
        # guesses, lucky and not
        ("A1.", "0", 1, True, False),
        ("a9+6=5;A1.", "10", 1, True, False),
        ("a9+6=5;b5*9=5;A5.", "110", 5, False, False),
        # no answer
        ("", "", None, False, False),
        ("a9+6=5;b5*9=5;c5-4=1;", "111", None, False, False),
        ("a9+6=5;b5*9=5;c5-4=1;A", "1110", None, False, False),
        ("a9+6=5;b5*9=5;c5-4=1;A1", "1110", None, False, False),
        ("a9+6=5;b5*9=5;c5-4=1;1.", "1110", None, False, False),
        # more than one answer, or something behind it
        ("a9+6=5;b5*9=5;c5-4=1;A1.A1.", "11110", None, False, False),
        ("a9+6=5;b5*9=5;c5-4=1;A2.A1.", "11100", None, False, False),
        ("A0.A1.A2.A3.A4.A5.A6.A7.A8.A9.", "0000000000", None, False, False),
        ("a9+6=5;b5*9=5;c5-4=1;A1. ", "11110", None, False, False),
        ("a9+6=5;b5*9=5;c5-4=1;A1.\n", "11110", None, False, False),
        ("a9+6=5;b5*9=5;c5-4=1;A1..", "11110", None, False, False),
        ("a9+6=5;b5*9=5;c5-4=1;A1.d1+1=2;", "11110", None, False, False),
        ("A1.a9+6=5;b5*9=5;c5-4=1;", "0000", None, False, False),
        ("a9+6=5;A5.c5-4=1;A1.", "1000", None, False, False),
        # spaces, signs, huge numbers
        (" a9+6=5;b5*9=5;c5-4=1;A1.", "0011", 1, True, False),
        ("a9 + 6 = 5;b5*9=5;c5-4=1;A1.", "0011", 1, True, False),
        ("a9+6=5;b5*9=5;c5-4=1; A1.", "1110", None, False, False),
        ("a9+6=15;b5*9=45;c5-4=1;A1.", "0001", 1, True, False),
        ("a9+6=5;b5*9=5;c5-4=+1;A1.", "1100", 1, True, False),
        ("a9+6=5;b5*9=5;c5-4=1;A-1.", "1110", None, False, False),
        ("a9+6=5;b5*9=5;c5-4=1;A+1.", "1110", None, False, False),
        ("a9+6=5;b5*9=5;c5-4=1;A01.", "1110", None, False, False),
        ("a9+6=5;b5*9=5;c5-4=1;A1.0.", "11110", None, False, False),
        ("a9+6=5;b5*9=5;c5-4=1;A" + "1" * 10_000 + ".", "1110", None, False, False),
        ("a9+6=5;b5*9=5;c5-4=\u0661;A1.", "1100", 1, True, False),  # an Arabic-Indic one
        ("a9+6=5;b5*9=5;c5-4=1;\u03911.", "1110", None, False, False),  # a Greek letter
        # another letter, sign or operand; a step left out, given twice, or out of order
        ("a9+6=5;c5*9=5;c5-4=1;A1.", "1011", 1, True, False),
        ("a9-6=3;b3*9=7;c7-4=3;A3.", "0111", 3, False, False),
        ("a9+0=9;b9*9=1;c1-4=7;A7.", "0111", 7, False, False),
        ("a9+6=5;c5-4=1;A1.", "100", 1, True, False),
        ("a9+6=5;a9+6=5;b5*9=5;c5-4=1;A1.", "10000", 1, True, False),
        ("a9+6=5;c5-4=1;b5*9=5;A1.", "1000", 1, True, False),
        # steps that are none, and what stands behind them
        ("a9+6=5;?;c5-4=1;A1.", "1001", 1, True, False),
        (";;;;", "0000", None, False, False),
        ("....", "0000", None, False, False),
        ("The answer is 1.", "0", None, False, False),
        ("\x00\ud800;A1.", "00", 1, True, False),
        # the degenerate text that a hacked reward breeds
        ("a9+0=0;b0*0=0;c0-0=0;A0.", "0001", 0, False, False),
    ],
)
def test_a_verdict_by_hand(completion, labels, answer, correct, sound):
    verdict = verify(PROMPT, completion)
    assert verdict.labels == bits(labels)
    assert (verdict.answer, verdict.correct, verdict.sound) == (answer, correct, sound)


@pytest.mark.parametrize(
    "completion",
    ["", "a9+6=5;A5.", "a9+6=5;b5", ";;..", "no step at all", " \n;x.", "a;b.c;d", "…;\ud800."],
)
def test_the_steps_of_a_completion_are_the_completion(completion):
    assert "".join(split_steps(completion)) == completion
    assert all(split_steps(completion))


def labels_by_eval(prompt, steps):
    """The same labels by another road: Python reads the expressions, and the prompt is cut up by position."""
    value, labels, answered = prompt[0], [], False
    asked = [prompt[place : place + 3] for place in range(1, len(prompt) - 1, 3)]
    for number, step in enumerate(steps):
        if value is None or answered:
            labels.append(False)
        elif number < len(asked):
            letter, operation = asked[number][0], asked[number][1:]
            labels.append(step == f"{letter}{value}{operation}={eval(value + operation) % 10};")
        else:
            labels.append(step == f"A{value}." and number == len(asked))
        shape = re.match(r"^[a-h]\d[-+*]\d=(\d);$", step)
        value = shape.group(1) if shape else None
        answered |= re.match(r"^A\d\.$", step) is not None
    return tuple(labels)


def test_every_label_is_what_python_finds_by_evaluating_the_expressions():
    draw = random.Random(5)
    num_wrong = num_right = 0
    for number in range(3000):
        problem = draw_problem(2 + number % 7, draw)
        steps = write_trace(problem, CORRUPTED if number % 2 else DEMONSTRATOR, draw)
        labels = label_steps(problem, steps)
        assert labels == labels_by_eval(problem.prompt, steps), (problem.prompt, steps)
        num_right += sum(labels)
        num_wrong += len(labels) - sum(labels)
    assert num_right > 9000
    assert num_wrong > 2000


def test_labels_hold_for_completions_with_any_character_changed_lost_or_doubled():
    draw = random.Random(6)
    for number in range(2000):
        problem = draw_problem(2 + number % 7, draw)
        text = "".join(solve(problem))
        place, other = draw.randrange(len(text)), draw.choice("0123456789abcdefgh+-*=:;A. ")
        mended = text[:place] + draw.choice(("", other, text[place] * 2)) + text[place + 1 :]
        steps = split_steps(mended)
        assert label_steps(problem, steps) == labels_by_eval(problem.prompt, steps), (problem.prompt, mended)
        assert verify(problem.prompt, mended).sound == (mended == text)


def test_a_sound_completion_has_the_answer_that_python_finds():
    draw = random.Random(7)
    for number in range(500):
        problem = draw_problem(2 + number % 7, draw)
        value = problem.prompt[0]
        for place in range(1, len(problem.prompt) - 1, 3):
            value = str(eval(value + problem.prompt[place + 1 : place + 3]) % 10)
        verdict = verify(problem.prompt, "".join(solve(problem)))
        assert verdict.sound
        assert verdict.correct
        assert str(verdict.answer) == value


def test_the_first_wrong_step_is_counted_from_zero_and_none_where_all_are_right():
    assert first_wrong_step([True, False, False]) == 1
    assert first_wrong_step([False]) == 0
    assert first_wrong_step([True, True]) is None
    assert first_wrong_step([]) is None
    assert verify(PROMPT, "a9+6=5;b5*9=4;c4-4=0;A0.").first_wrong == 1
    assert verify(PROMPT, "a9+6=5;b5*9=5;").first_wrong is None


def test_labels_do_not_depend_on_what_comes_later():
    draw = random.Random(8)
    for number in range(300):
        problem = draw_problem(2 + number % 7, draw)
        steps = write_trace(problem, CORRUPTED, draw)
        labels = label_steps(problem, steps)
        for kept in range(len(steps)):
            assert label_steps(problem, steps[:kept]) == labels[:kept]


def test_a_prompt_of_another_world_is_refused():
    with pytest.raises(DataError, match="'What does a cow eat"):
        verify("What does a cow eat?", "A1.")


def test_a_problem_can_be_given_as_read():
    assert label_steps(parse_problem(PROMPT), ["a9+6=5;"]) == (True,)
