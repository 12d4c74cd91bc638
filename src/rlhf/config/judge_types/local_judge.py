"""A language model that is run here as a judge."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf.config.base import InputPath
from rlhf.config.judge_base import PromptedJudgeConfig


class LocalJudgeConfig(PromptedJudgeConfig):
    """A causal language model that is run here."""

    builds = "rlhf.rewards.pairwise.local_judge:build_local_judge"
    type: Literal["local"] = "local"
    path: InputPath
    """`stage:NAME`, a folder or a hub name; its chat template is used where it has one."""
    temperature: float = Field(0.0, ge=0)
    """0 is greedy."""
    max_tokens: int = Field(512, ge=1)
    """Longest answer in tokens; an answer that is cut counts as unparsed, and so does a pair that leaves no room for it in the model's
    context."""

    def models_asked(self) -> list[tuple[str, str]]:
        """The one that it is."""
        return [("path", self.path)]
