"""Settings of learning from rewards without a critic: a completion is measured against others of its prompt or step."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from rlhf.config.kl import KLConfig, KLEstimator, KLPlace
from rlhf.config.policy import Aggregation, RLConfig

Advantage = Literal["group", "group_mean", "leave_one_out", "batch_std", "batch", "greedy"]

NEEDS_SIBLINGS = ("group", "group_mean", "leave_one_out", "batch_std")
"""Advantages that compare completions of one prompt."""
MAX_SAMPLING_ROUNDS = 4
"""A rollout's further rounds of asking, unless a recipe says otherwise."""


class GRPOKLConfig(KLConfig):
    """The penalty as GRPO has it: in the loss, by k3 (arXiv:2402.03300, eq. 3 and 4)."""

    where: KLPlace = "loss"
    """Added to the loss, subtracted from each completion's score, or only measured."""
    estimator: KLEstimator = "k3"
    """Per-token estimate; see `kl.estimator` of PPO."""
    coef: float = Field(0.04, ge=0)
    """Weight."""


class GRPOConfig(RLConfig):
    """Group-relative policy optimization (Shao et al. 2024, arXiv:2402.03300)."""

    group_size: int = Field(8, ge=1)
    """Completions sampled for each prompt."""
    prompts_per_rollout: int = Field(16, ge=1)
    """Prompts asked each time; with the other defaults a rollout is one step, as in the paper's section 4.2, and nothing is clipped."""
    minibatch_size: int = Field(128, ge=1)
    """Completions in one optimizer step; a multiple of group_size keeps groups whole."""
    kl: GRPOKLConfig = GRPOKLConfig()
    """Penalty for moving away from the reference."""
    advantage: Advantage = "group"
    """A score against: its siblings' mean, over their deviation; their mean alone (Dr. GRPO, arXiv:2503.20783); the mean of the
    others (RLOO, 2402.14740); their mean, over the deviation of the whole rollout (2510.13786); all tokens of the rollout
    (REINFORCE++, 2501.03262); or the score of the prompt's greedy completion (ReMax, 2310.10505)."""
    baseline: Literal["none", "group"] = "none"
    """For `batch`: first subtract the group's mean (REINFORCE++-baseline)."""
    aggregation: Aggregation = "sequence"
    """Mean over sequences of token means (the paper; a long completion counts less a token), mean over all tokens
    (DAPO), or sum divided by the sequences times `max_new_tokens` (Dr. GRPO)."""
    dynamic_sampling: bool = False
    """Ask further prompts in place of those whose completions all score alike (DAPO, arXiv:2503.14476)."""
    max_sampling_rounds: int = Field(MAX_SAMPLING_ROUNDS, ge=1)
    """How often a rollout asks again, for `dynamic_sampling`, before it goes on with the groups it has."""

    @model_validator(mode="after")
    def _credit_can_be_given(self) -> Self:
        if self.group_size < 2 and (self.advantage in NEEDS_SIBLINGS or self.baseline == "group"):
            which = "baseline 'group'" if self.baseline == "group" else f"advantage {self.advantage!r}"
            raise ValueError(
                f"{which} compares completions of one prompt; group_size must be at least 2, and is {self.group_size}"
            )
        if self.baseline == "group" and self.advantage != "batch":
            raise ValueError(f"baseline belongs to the advantage `batch`; the advantage is {self.advantage!r}")
        if self.dynamic_sampling and self.advantage not in NEEDS_SIBLINGS and self.baseline == "none":
            raise ValueError(
                f"dynamic_sampling replaces groups that score alike, and the advantage {self.advantage!r} learns from those too; "
                "leave it out"
            )
        if self.max_sampling_rounds != MAX_SAMPLING_ROUNDS and not self.dynamic_sampling:
            raise ValueError("max_sampling_rounds does nothing without dynamic_sampling; leave it out")
        return self

    @model_validator(mode="after")
    def _credit_fits_the_loss(self) -> Self:
        if self.policy_formula.sequence_ratio == "mean" and self.advantage == "batch" and self.kl.where == "reward":
            raise ValueError(
                f"policy_loss {self.policy_loss!r} has one ratio and needs one advantage for a whole completion, and a penalty in the reward "
                "gives each token its own; use `sequence_token`, or put the penalty elsewhere"
            )
        return self


class RewardKLConfig(GRPOKLConfig):
    """The penalty in the reward, by k1, as in RLHF before GRPO."""

    where: KLPlace = "reward"
    """Subtracted from the reward, added to the loss, or only measured."""
    estimator: KLEstimator = "k1"
    """Per-token estimate; see `kl.estimator` of PPO."""
    coef: float = Field(0.05, ge=0)
    """Weight."""
