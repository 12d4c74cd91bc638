"""People's votes as a judge."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from rlhf.config.base import InputPath
from rlhf.config.judge_base import JudgeBase


class HumanJudgeConfig(JudgeBase):
    """Votes of people on the very same completions."""

    builds = "rlhf.rewards.pairwise.human_judge:build_human_judge"
    needs_none_because = "people are what judges are measured by"
    no_reward_because = (
        "a `human` judge looks up votes on completions that people saw, and new ones have none; take another judge"
    )
    type: Literal["human"] = "human"
    labels: InputPath | None = None
    """A file of rows with `prompt`, `completion_a`, `completion_b` and `preference` (`a`, `b` or `tie`), or with `chosen` and `rejected`."""
    store: InputPath | None = None
    """A preference store, as `rlhf annotate --store` takes it, in place of a file."""

    @model_validator(mode="after")
    def _reads_one(self) -> Self:
        if (self.labels is None) == (self.store is None):
            raise ValueError("give either `labels`, a file, or `store`, a preference store")
        return self
