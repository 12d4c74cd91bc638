"""The calculator as a class for TRL's ``environment_factory``, and the reward that goes with it."""

from __future__ import annotations

import re

from rlhf.rollout.calculator import MISTAKE, calculate

ANSWER = re.compile(r"answer (-?[0-9]+)\s*$")


class CalculatorTools:
    """One tool."""

    def reset(self, **row) -> None:
        """Nothing to prepare: a problem is in its prompt."""

    def calc(self, expression: str) -> str:
        """Calculate.

        Args:
            expression: Sums, differences and products of whole numbers.
        """
        result = calculate(expression)
        return f"{MISTAKE if result is None else result} "


def right_answer(prompts, completions, answer, **columns):
    """1 for a completion that ends in `answer` and the right number."""
    said = [ANSWER.search(text) for text in completions]
    return [
        float(match is not None and int(match[1]) == int(wanted)) for match, wanted in zip(said, answer, strict=True)
    ]
