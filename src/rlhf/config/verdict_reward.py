"""Verdicts of a judge in training, compared with people's: how the reward is declared."""

from __future__ import annotations

from typing import Literal

from rlhf.config.reward_base import RewardBase


class VerdictRewardConfig(RewardBase):
    """1 for the verdict on two completions that people gave, else 0: trains a model that judges."""

    builds = "rlhf.rewards.verdict_match:build_verdict"
    kind: Literal["verdict"] = "verdict"
    column: str = "verdict"
    """Column of the prompt rows with the right verdict: `A`, `B` or `C`, as the stage `judge_rows` writes it."""
