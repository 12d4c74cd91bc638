"""A programmatic rule as a judge."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from rlhf.config.base import FUNCTION, FunctionName, Names
from rlhf.config.judge_base import JudgeBase
from rlhf.config.rewards import REWARD_KINDS

RULES = ("longer", "shorter")
"""Programmatic rules in addition to the kinds of reward."""


REWARD_NAMES = tuple(kind.kind_name() for kind in REWARD_KINDS)


class FunctionJudgeConfig(JudgeBase):
    """A programmatic rule: one of the library's by name, or a Python function.

    A function `judge(prompts, completions, **columns) -> list[float]` scores each completion by itself; one with arguments `first` and
    `second`, `judge(prompts, first, second, **columns)`, compares and gives for each pair 1 where the first is better, 0 where the
    second is, 0.5 for a tie, or None.
    """

    builds = "rlhf.rewards.pairwise.function_judge:build_function_judge"
    needs_none_because = "a function is a program that can be read"
    type: Literal["function"] = "function"
    function: FunctionName
    """`longer`, `shorter`, a kind of reward such as `rules`, `numeric` or `exact`, or `package.module:function`."""
    arguments: Annotated[dict[str, Any], Names.TEXT_OR_FILE] = Field(default_factory=dict)
    """Of a kind of reward its settings; given to every call of a function by keyword."""
    tie_band: float = Field(0.0, ge=0)
    """Scores this close are a tie, in units of the score."""

    @field_validator("function")
    @classmethod
    def _is_known(cls, text: str) -> str:
        if text not in (*RULES, *REWARD_NAMES) and not FUNCTION.match(text):
            raise ValueError(
                f"give package.module:function, path/to/file.py:function, or one of {', '.join((*RULES, *REWARD_NAMES))}"
            )
        return text

    def reward_settings(self) -> dict[str, Any] | None:
        """A kind of reward or a function; none of the rules is one."""
        if self.function in RULES:
            return None
        if self.function in REWARD_NAMES:
            return {"kind": self.function, **self.arguments}
        return {"kind": "function", "function": self.function, "arguments": self.arguments}
