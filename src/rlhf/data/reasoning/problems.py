"""Problems of the reasoning world: a digit, then two to eight operations, of which only the last digit is kept.

    prompt       "9a+6b*9c-4:"             start at 9; a: add 6; b: times 9; c: minus 4
    solution     "a9+6=5;b5*9=5;c5-4=1;A1."

Operations are done from left to right, whatever their signs, and every result is taken modulo 10: 3 - 5 is 8. The
letters tell a step where it is, which a small policy would otherwise have to count.
"""

from __future__ import annotations

import operator
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rlhf.data.message_text import describe
from rlhf.errors import DataError

LETTERS = "abcdefgh"
"""Names of the steps, in order."""
MIN_STEPS = 2
MAX_STEPS = len(LETTERS)
BASE = 10

OPERATIONS: Mapping[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
OPERATION_FRACS: Mapping[str, float] = {"+": 0.40, "-": 0.32, "*": 0.28}
"""How often each operation is drawn."""
MASK_FRAC = 0.05
"""Share of multiplications whose operand is 0 or 5 on purpose, on top of those drawn so. They hide what went wrong
before them: an unsound solution can then still end in the right answer."""
MASKS = (0, 5)

Level = Literal["easy", "mid", "hard"]

_PROMPT = re.compile(r"[0-9](?:[a-h][-+*][0-9])+:")


@dataclass(frozen=True, slots=True)
class Problem:
    """A start digit, and what is done to it."""

    start: int
    operations: tuple[tuple[str, int], ...]
    """Sign and operand of each step, in order."""

    @property
    def num_steps(self) -> int:
        """Operations; a solution has one line more, the answer."""
        return len(self.operations)

    @property
    def prompt(self) -> str:
        """The text a model sees."""
        letters = LETTERS[: self.num_steps]
        asked = (f"{letter}{sign}{operand}" for letter, (sign, operand) in zip(letters, self.operations, strict=True))
        return f"{self.start}{''.join(asked)}:"

    @property
    def answer(self) -> int:
        """The last digit of the result."""
        value = self.start
        for sign, operand in self.operations:
            value = last_digit(value, sign, operand)
        return value

    @property
    def level(self) -> Level:
        """Easy with 2 or 3 steps, mid with 4 or 5, hard with 6 to 8."""
        if self.num_steps <= 3:
            return "easy"
        return "mid" if self.num_steps <= 5 else "hard"


def last_digit(value: int, sign: str, operand: int) -> int:
    """Last digit of one operation; never negative: 3 - 5 gives 8."""
    return OPERATIONS[sign](value, operand) % BASE


def parse_problem(prompt: Any) -> Problem:
    """The problem that a prompt asks.

    Raises:
        DataError: It is none of this world; says what one looks like.
    """
    text = prompt if isinstance(prompt, str) else ""
    letters = "".join(character for character in text if character in LETTERS)
    known = _PROMPT.fullmatch(text) is not None and letters == LETTERS[: len(letters)]
    if not known or not MIN_STEPS <= len(letters) <= MAX_STEPS:
        raise DataError(
            f"The prompt is {describe(prompt)}, which is not a problem of the reasoning world; wanted a digit, {MIN_STEPS} "
            f"to {MAX_STEPS} operations lettered from a on, and a colon, such as '9a+6b*9c-4:'. Use another reward or "
            "verifier for your own prompts."
        )
    signs_and_operands = zip(text[2:-1:3], text[3:-1:3], strict=True)
    return Problem(int(text[0]), tuple((sign, int(operand)) for sign, operand in signs_and_operands))


def draw_problem(num_steps: int, draw: random.Random) -> Problem:
    """A random problem: digits uniform, operations as often as ``OPERATION_FRACS`` says."""
    operations = []
    for _ in range(num_steps):
        sign = draw.choices(tuple(OPERATION_FRACS), tuple(OPERATION_FRACS.values()))[0]
        operand = draw.randrange(BASE)
        if sign == "*" and draw.random() < MASK_FRAC:
            operand = draw.choice(MASKS)
        operations.append((sign, operand))
    return Problem(draw.randrange(BASE), tuple(operations))
