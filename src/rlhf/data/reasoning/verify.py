"""The exact verifier: a program that says of every step of a completion whether it is right.

A step is right when it is, character for character, the one that follows from what stands before it: its own letter, the
result *as the step before stated it*, the problem's operation, and the true last digit. So a label is local: a step that
reckons rightly from a wrong value is right, and a completion goes wrong at its first wrong step.

The answer is a step as well. It is right when it repeats the last result after all the steps: a guess is wrong, even a
lucky one. Hence all steps right and none missing means the right answer, and that is what *sound* means.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rlhf.data.reasoning.problems import LETTERS, Problem, last_digit, parse_problem
from rlhf.data.reasoning.traces import answer_step, step_text

_STEP = re.compile(r"[^;.]*[;.]|[^;.]+")
_OPERATION = re.compile(r"[a-h][0-9][-+*][0-9]=([0-9]);")
_ANSWER = re.compile(r"A([0-9])\.")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the verifier saw in one completion."""

    labels: tuple[bool, ...]
    """One for each step that is there, the answer included: is it right?"""
    answer: int | None
    """The digit answered; None where there is no answer, more than one, or something behind it."""
    correct: bool
    """The digit answered is the right one, however it was found."""
    sound: bool
    """Every step is there and right, and so is the answer."""

    @property
    def first_wrong(self) -> int | None:
        """Number of the first wrong step, from 0; None where no step that is there is wrong."""
        return first_wrong_step(self.labels)


def verify(prompt: str, completion: str) -> Verdict:
    """Judge one completion.

    Args:
        prompt: A problem of this world.
        completion: The decoded text after it, without special tokens. Nothing is forgiven: a space, a sign, a second
            digit or a line break is a wrong step.

    Raises:
        DataError: The prompt is not a problem of this world.
    """
    problem = parse_problem(prompt)
    steps = split_steps(completion)
    labels = label_steps(problem, steps)
    answer = stated_answer(steps)
    return Verdict(
        labels=labels,
        answer=answer,
        correct=answer == problem.answer,
        sound=len(labels) == problem.num_steps + 1 and all(labels),
    )


def split_steps(completion: str) -> tuple[str, ...]:
    """The steps of a completion; joined, they are the completion again.

    A step ends with its semicolon, the answer with its full stop; what is left at the end is a step that was cut off.
    """
    return tuple(_STEP.findall(completion))


def label_steps(problem: Problem, steps: Sequence[str]) -> tuple[bool, ...]:
    """Whether each step is right, given what the step before it states.

    A step behind one that states no result is wrong, since nothing leads to it, and so is all that stands behind an
    answer.

    Args:
        problem: What was asked.
        steps: As ``split_steps`` gives them, as many as there are.

    Returns:
        One label for each step given.
    """
    labels = []
    value: int | None = problem.start
    answered = False
    for number, step in enumerate(steps):
        labels.append(not answered and value is not None and step == _right_step(problem, number, value))
        stated = _OPERATION.fullmatch(step)
        value = int(stated[1]) if stated else None
        answered = answered or _ANSWER.fullmatch(step) is not None
    return tuple(labels)


def first_wrong_step(labels: Sequence[bool]) -> int | None:
    """Number of the first wrong step, from 0; None where all are right."""
    return next((number for number, right in enumerate(labels) if not right), None)


def stated_answer(steps: Sequence[str]) -> int | None:
    """The digit answered: there must be one answer, and nothing behind it."""
    answers = [answer for answer in map(_ANSWER.fullmatch, steps) if answer]
    if len(answers) != 1 or answers[0].string != steps[-1]:
        return None
    return int(answers[0][1])


def _right_step(problem: Problem, number: int, value: int) -> str | None:
    """What step ``number`` must be where the one before it states ``value``; None behind the answer."""
    if number > problem.num_steps:
        return None
    if number == problem.num_steps:
        return answer_step(value)
    sign, operand = problem.operations[number]
    return step_text(LETTERS[number], value, sign, operand, last_digit(value, sign, operand))
