"""Whom a policy talks with over several turns."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator

from rlhf.config.base import BaseConfig, FunctionName, Names
from rlhf.config.rewards import FUNCTION


class EnvironmentConfig(BaseConfig):
    """An environment: its completions are episodes in which policy and environment take turns."""

    factory: FunctionName
    """`package.module:Class` or `path/to/file.py:Class`, called once for each episode; it has `reset(prompt)` and
    `step(text)`, as `rlhf.rollout.environments.Environment` says."""
    arguments: Annotated[dict[str, Any], Names.TEXT_OR_FILE] = Field(default_factory=dict)
    """Given to the class by keyword; a text that names a file belongs to the inputs of the stage."""
    max_turns: int = Field(8, ge=1)
    """Of the policy, in one episode; after so many it counts as cut."""
    max_turn_tokens: int | None = Field(None, ge=1)
    """Longest single turn of the policy; null for what `sampling.max_new_tokens`, the limit of a whole episode, leaves."""
    max_observation_tokens: int = Field(256, ge=1)
    """A longer answer of the environment loses its end."""
    role: str = "user"
    """Who says the environment's words in a conversation; many templates know `tool`."""
    timeout_seconds: float = Field(60.0, gt=0)
    """For one answer of the environment. One that takes longer ends its episode without a score; three in one rollout stop
    the run."""

    @field_validator("factory")
    @classmethod
    def _names_a_class(cls, text: str) -> str:
        if not FUNCTION.match(text):
            raise ValueError("an environment is named package.module:Class or path/to/file.py:Class")
        return text


def _from_text(value: Any) -> Any:
    return {"factory": value} if isinstance(value, str) else value


EnvironmentSpec = Annotated[EnvironmentConfig, BeforeValidator(_from_text)]
"""An environment; a plain text stands for its class with defaults."""
