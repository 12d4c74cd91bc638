"""A reward model as a judge of two completions."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from rlhf.config.base import InputPath
from rlhf.config.judge_base import JudgeBase

TIE_BAND = 0.1
"""Of a reward model, in units of its score."""


class RewardModelJudgeConfig(JudgeBase):
    """A reward model: the completion with the higher score is better."""

    builds = "rlhf.rewards.pairwise.reward_model_judge:build_reward_model_judge"
    needs_none_because = "the stage that trains a reward model measures it on held-out pairs"
    scores_are_grades = False
    type: Literal["reward_model"] = "reward_model"
    path: InputPath
    """`stage:NAME`, a folder or a hub name."""
    tie_band: float = Field(TIE_BAND, ge=0)
    """Scores this close are a tie. In units of the score, so its meaning changes with the model: look at the share of ties."""

    def models_asked(self) -> list[tuple[str, str]]:
        """The one that it is."""
        return [("path", self.path)]

    def reward_settings(self) -> dict[str, Any] | None:
        """A learned reward."""
        return {"kind": "learned", "source": self.path}
