"""The reward of an episode's environment as a score."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlhf.data.contracts import Prompt
from rlhf.rewards.composite import Component, CompositeReward
from rlhf.rewards.types import CompletionLike, Scorer, ScoreResult

NONE_THERE = "no environment took part in it"


class EnvironmentReward:
    """The sum of the rewards that an environment gave in an episode. Where it failed there is no score, and its reason."""

    name = "environment"

    def score(self, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]) -> ScoreResult:
        """Judge each completion."""
        given = [getattr(completion, "environment_reward", None) for completion in completions]
        errors = {
            place: getattr(completions[place], "environment_error", None) or NONE_THERE
            for place, reward in enumerate(given)
            if reward is None
        }
        return ScoreResult([math.nan if reward is None else reward for reward in given], {self.name: given}, errors)


def with_environment(scorer: Scorer | None) -> Scorer:
    """The environment's own reward, and another one added to it where there is one."""
    own = Component(scorer=EnvironmentReward())
    if scorer is None:
        return own.scorer
    if isinstance(scorer, CompositeReward):
        return CompositeReward([own, *scorer.components], name=scorer.name, on_error=scorer.on_error)
    return CompositeReward([own, Component(scorer=scorer)], on_error="report")
