"""Rewards that are models: one, several, or one that judges steps."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from rlhf.config.base import InputPath
from rlhf.config.reward_base import RewardBase

Combine = Literal["mean", "min", "median", "mean_minus_std"]


class CombinedRewardConfig(RewardBase):
    """How several scores of one completion become one."""

    unbounded = True
    combine: Combine = "mean"
    """Of an ensemble, for each completion, from its members' normalized scores: `mean`; `min`, the strictest; `median`;
    `mean_minus_std`, less where they disagree (Coste et al. 2023, arXiv:2310.02743)."""
    std_coef: float = Field(1.0, ge=0)
    """Weight of the deviation between the members in `mean_minus_std`."""

    @property
    def in_actors(self) -> bool:
        """A model takes time."""
        return True

    @model_validator(mode="after")
    def _weighs_something(self) -> Self:
        # compared with the default: a resolved recipe writes every setting out, and must be readable again
        changed = self.std_coef != type(self).model_fields["std_coef"].default
        if changed and self.combine != "mean_minus_std":
            raise ValueError(f"std_coef belongs to combine: mean_minus_std; combine is {self.combine!r}")
        return self


class LearnedRewardConfig(CombinedRewardConfig):
    """A reward model, of one member or several."""

    builds = "rlhf.rewards.learned:build_learned"
    text_key = "source"
    kind: Literal["learned"] = "learned"
    source: InputPath
    """`stage:NAME`, a folder or a hub name."""

    def models_asked(self) -> list[tuple[str, str]]:
        """The one that it is."""
        return [("source", self.source)]


class EnsembleRewardConfig(CombinedRewardConfig):
    """Several reward models of which each was trained by itself."""

    builds = "rlhf.rewards.learned:build_ensemble"
    kind: Literal["ensemble"] = "ensemble"
    sources: list[InputPath] = Field(min_length=2)
    """Each `stage:NAME`, a folder or a hub name."""
    combine: Combine = "mean_minus_std"
    """As of `learned`."""

    def models_asked(self) -> list[tuple[str, str]]:
        """Each member."""
        return [(f"sources.{place}", source) for place, source in enumerate(self.sources)]


class ProcessRewardConfig(RewardBase):
    """A process reward model: the probability that a completion's steps are right, from 0 to 1."""

    builds = "rlhf.rewards.steps:build_process"
    kind: Literal["process"] = "process"
    source: InputPath
    """`stage:NAME` of a `prm` stage, or a folder that one left."""
    aggregate: Literal["min", "product", "mean", "last"] | None = None
    """How the probabilities of steps become one number; what the model was trained with by default."""

    @property
    def in_actors(self) -> bool:
        """A model takes time."""
        return True

    def models_asked(self) -> list[tuple[str, str]]:
        """The one that it is."""
        return [("source", self.source)]
