"""A Python function as a reward."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from rlhf.config.base import FUNCTION, FunctionName, Names
from rlhf.config.reward_base import RewardBase


class FunctionRewardConfig(RewardBase):
    """A Python function `reward(prompts, completions, **columns) -> list[float]`."""

    builds = "rlhf.rewards.functions:build_function"
    text_key = "function"
    kind: Literal["function"] = "function"
    function: FunctionName
    """`package.module:function` or `path/to/file.py:function`."""
    arguments: Annotated[dict[str, Any], Names.TEXT_OR_FILE] = Field(default_factory=dict)
    """Given to every call by keyword, in addition to the columns of the prompt rows; a text that names a file belongs to the inputs
    of the stage, and `stage:NAME/FILE` is a file of an earlier one."""
    in_process: bool = False
    """Call it in the training process: no timeout can stop it, but nothing is copied to another process."""
    timeout_seconds: float = Field(60.0, gt=0)
    """A call that takes longer is killed, with an error."""

    @property
    def in_actors(self) -> bool:
        """Unless it is to be called in the process that trains."""
        return not self.in_process

    @field_validator("function")
    @classmethod
    def _names_a_function(cls, text: str) -> str:
        if not FUNCTION.match(text):
            raise ValueError("a function is named package.module:function or path/to/file.py:function")
        return text
