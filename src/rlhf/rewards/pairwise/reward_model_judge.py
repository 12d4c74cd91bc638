"""A judge that is a reward model."""

from __future__ import annotations

from typing import Any

from rlhf.config.judge_types.reward_model_judge import RewardModelJudgeConfig
from rlhf.rewards.pairwise.model_identity import model_identity
from rlhf.rewards.pairwise.scores import ScoreJudge


def build_reward_model_judge(config: RewardModelJudgeConfig) -> ScoreJudge:
    """The model is loaded; a completion that is too long for it is cut."""
    from rlhf.rewards.learned import LearnedReward
    from rlhf.rewards.model_reward import model_folder

    folder = model_folder(config.path)
    scorer = LearnedReward(folder, on_error="report")
    scorer.lengths.cuts = True
    identity: dict[str, Any] = {"type": "reward_model", **model_identity(folder)}
    return ScoreJudge(
        scorer,
        identity=identity,
        tie_band=config.tie_band,
        name=config.name or f"reward model {config.path}",
        scores_are_grades=config.scores_are_grades,
    )
