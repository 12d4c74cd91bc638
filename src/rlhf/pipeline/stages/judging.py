"""The judge of a stage that measures."""

from __future__ import annotations

import functools

from rlhf.config.rewards import FunctionRewardConfig, RewardSpec
from rlhf.evaluation.judges import Judge, load_judge
from rlhf.pipeline.stages.context import StageContext, resolved_reward
from rlhf.rewards.factory import build_reward


def open_judge(spec: RewardSpec, at: StageContext) -> Judge:
    """A function as it is; any other judge through its standard signature."""
    spec = resolved_reward(spec, at)
    if isinstance(spec, FunctionRewardConfig):
        return functools.partial(load_judge(spec.function), **spec.arguments)
    scorer = build_reward(spec)
    assert callable(scorer), f"{type(scorer).__name__} lacks the standard signature"
    return scorer
