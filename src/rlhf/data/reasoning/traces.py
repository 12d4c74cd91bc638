"""How the world's demonstrator solves problems: step by step, with mistakes of his own and with one that everybody makes.

Random slips scatter, so a majority of samples outvotes them. The popular error does not: anyone who learned from these
demonstrations makes the same mistake in most samples, and a vote confirms it. That is why the world needs somebody who
looks at the steps.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from rlhf.data.reasoning.problems import BASE, LETTERS, Problem, last_digit

POPULAR_MINUS = 0.62
"""How often a - b with a < b is answered b - a: a majority, so that it wins a vote."""
POPULAR_TIMES = 0.40
"""How often a * b with both at least ``LARGE`` comes out one too large."""
LARGE = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistakes:
    """How often things go wrong, each a probability, besides the popular errors."""

    slip: float
    """Per step: the result is some other digit."""
    skip: float
    """Per solution: from a random step on, the rest is left out and the answer guessed."""
    copy: float = 0.0
    """Per step: the value is not copied as it was; what follows goes on from the wrong one."""


DEMONSTRATOR = Mistakes(slip=0.08, skip=0.04)
"""Just under half of his answers are right and two solutions in five are sound; the others that are right were lucky."""
CORRUPTED = Mistakes(slip=0.30, skip=0.08, copy=0.05)
"""For process reward models: rare mistakes are made often, or best-of-N would find those that the model never saw."""


def write_trace(problem: Problem, mistakes: Mistakes, draw: random.Random) -> tuple[str, ...]:
    """A solution, one text for each step, the answer last; joined, they are the completion.

    Nothing here says which steps are right: see ``verify.label_steps``. A mistake may well have no effect, as when
    9 - 4 is answered for 4 - 9, which is 5 both ways.
    """
    kept = draw.randrange(problem.num_steps) if draw.random() < mistakes.skip else problem.num_steps
    steps, value = [], problem.start
    for letter, (sign, operand) in zip(LETTERS, problem.operations[:kept], strict=False):
        if draw.random() < mistakes.copy:
            value = _other_digit(value, draw)
        result = _result(value, sign, operand, mistakes, draw)
        steps.append(step_text(letter, value, sign, operand, result))
        value = result
    return *steps, answer_step(value if kept == problem.num_steps else draw.randrange(BASE))


def solve(problem: Problem) -> tuple[str, ...]:
    """The sound solution; there is only one."""
    steps, value = [], problem.start
    for letter, (sign, operand) in zip(LETTERS, problem.operations, strict=False):
        result = last_digit(value, sign, operand)
        steps.append(step_text(letter, value, sign, operand, result))
        value = result
    return *steps, answer_step(value)


def cut_short(steps: Sequence[str], draw: random.Random) -> tuple[str, ...]:
    """Leave out the last step or more before the answer, and guess the answer instead."""
    return *steps[: draw.randrange(max(1, len(steps) - 1))], answer_step(draw.randrange(BASE))


def step_text(letter: str, value: int, sign: str, operand: int, result: int) -> str:
    """How a step is written: 'a9+6=5;'."""
    return f"{letter}{value}{sign}{operand}={result};"


def answer_step(value: int) -> str:
    """How the answer is written: 'A5.'."""
    return f"A{value}."


def popular_error(value: int, sign: str, operand: int) -> tuple[int, float]:
    """What people write instead, and how often; 0.0 where there is no trap."""
    if sign == "-" and value < operand:
        return operand - value, POPULAR_MINUS
    if sign == "*" and min(value, operand) >= LARGE:
        return (last_digit(value, sign, operand) + 1) % BASE, POPULAR_TIMES
    return last_digit(value, sign, operand), 0.0


def _result(value: int, sign: str, operand: int, mistakes: Mistakes, draw: random.Random) -> int:
    popular, how_often = popular_error(value, sign, operand)
    if draw.random() < how_often:
        return popular
    right = last_digit(value, sign, operand)
    return _other_digit(right, draw) if draw.random() < mistakes.slip else right


def _other_digit(digit: int, draw: random.Random) -> int:
    return (digit + draw.randrange(1, BASE)) % BASE
