"""Principles as one reward."""

from __future__ import annotations

import importlib
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, FiniteFloat, model_validator

from rlhf.config.base import BaseConfig
from rlhf.config.reward_base import RewardBase


def _any_reward(value: Any) -> Any:
    """A reward inside another; named by text, because the table of kinds knows this one."""
    if value is None or isinstance(value, RewardBase):
        return value
    return importlib.import_module("rlhf.config.rewards").validated_reward(value)


class PrincipleConfig(BaseConfig):
    """One thing that is asked of every completion."""

    name: str = Field(pattern=r"^\w+$")
    """What metrics call it: `reward/constitution/NAME`."""
    text: str = ""
    """The principle in words, for people."""
    judge: Annotated[Any, BeforeValidator(_any_reward)]
    """Who says how well it is kept: any kind of reward."""
    weight: FiniteFloat = 1.0
    """Its verdict is multiplied by this."""


class ConstitutionRewardConfig(RewardBase):
    """Principles, each judged by a rule, a classifier or a judge, that become one score; every principle is a metric."""

    builds = "rlhf.rewards.constitution:build_constitution"
    kind: Literal["constitution"] = "constitution"
    principles: list[PrincipleConfig] = Field(min_length=1)
    """What is asked of every completion."""
    combine: Literal["sum", "min"] = "sum"
    """The weighted sum, or the smallest weighted verdict: then the worst broken principle decides."""
    reward: Annotated[Any, BeforeValidator(_any_reward)] = None
    """A reward that the principles are added to; null for principles alone."""

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [principle.name for principle in self.principles]
        if len(set(names)) < len(names):
            raise ValueError(f"each principle needs a name of its own; got {', '.join(names)}")
        if self.reward is not None and "reward" in names:
            raise ValueError("a principle can't be called reward where a reward goes with it; give it another name")
        return self

    def rewards_inside(self) -> list[tuple[str, RewardBase]]:
        """Of each principle, and the reward."""
        inside = [(f"principles.{place}.judge", principle.judge) for place, principle in enumerate(self.principles)]
        return inside + ([] if self.reward is None else [("reward", self.reward)])
