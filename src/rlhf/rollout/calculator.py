"""A pocket calculator: the smallest environment that a policy has a reason to talk with.

    policy        calc(37*45)=
    environment   1665
    policy        calc(1665+12)=
    environment   1677
    policy        answer 1677<eos>

A turn that ends in a call is answered; every other turn is the last one, and judged. The recipe stops a turn at `)=`.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable

from rlhf.data.contracts import Prompt
from rlhf.rollout.environments import Turn

CALL = re.compile(r"calc\((?P<expression>[^()]*)\)=$")
ANSWER = re.compile(r"answer (?P<number>-?[0-9]+)\s*$")
LONGEST_EXPRESSION = 40
"""Characters; whatever is written so is calculated at once."""
OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
MISTAKE = "error"


class Calculator:
    """Answers calls, and gives 1 for the right last answer, 0 for another.

    Reports `calls`, those that were answered with a number; `mistakes`, those that were not; and `answered`, 1 where the
    episode ended in an answer at all.
    """

    def __init__(self, *, column: str = "answer", call_reward: float = 0.0) -> None:
        """Prepare for one problem.

        Args:
            column: Of the prompt rows, with the right answer.
            call_reward: Given for every call that has a result. 0 for what is honest: it is easily farmed.
        """
        self.column = column
        self.call_reward = call_reward
        self._wanted = 0

    def reset(self, prompt: Prompt) -> None:
        """Start an episode with a prompt and the columns of its row."""
        if self.column not in prompt.columns:
            raise ValueError(f"the row has no column {self.column!r} with the right answer")
        self._wanted = int(prompt.columns[self.column])

    def step(self, text: str) -> Turn:
        """Respond to the text of the policy's turn, without special tokens."""
        call = CALL.search(text)
        if call is not None:
            result = calculate(call["expression"])
            if result is None:
                return Turn(f"{MISTAKE} ", info={"mistakes": 1.0})
            return Turn(f"{result} ", reward=self.call_reward, info={"calls": 1.0})
        answer = ANSWER.search(text)
        right = answer is not None and int(answer["number"]) == self._wanted
        return Turn(done=True, reward=float(right), info={"answered": float(answer is not None)})


def calculate(expression: str) -> int | None:
    """Sums, differences and products of whole numbers; None for anything else."""
    if len(expression) > LONGEST_EXPRESSION:
        return None
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, KeyError):
        return None


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp):
        return OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError("not arithmetic")
