"""Settings of learning from rewards without a critic: a completion is measured against others of its prompt or step."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from rlhf.config.policy import Aggregation, KLConfig, KLEstimator, KLPlace, OverlongConfig, PolicyLoss, RLConfig

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
        if self.policy_loss == "sequence" and self.advantage == "batch" and self.kl.where == "reward":
            raise ValueError(
                "policy_loss 'sequence' has one ratio and needs one advantage for a whole completion, and a penalty in the reward "
                "gives each token its own; use `sequence_token`, or put the penalty elsewhere"
            )
        return self


class DrGRPOConfig(GRPOConfig):
    """Dr. GRPO (Liu et al. 2025, arXiv:2503.20783): GRPO without its biases by length and by difficulty, and without KL."""

    prompts_per_rollout: int = Field(128, ge=1)
    """Prompts asked each time; with the other defaults a rollout is eight steps, as in the authors' code."""
    advantage: Advantage = "group_mean"
    """See GRPO."""
    aggregation: Aggregation = "constant"
    """See GRPO."""
    kl: GRPOKLConfig = GRPOKLConfig(where="none", coef=0.0)
    """Penalty for moving away from the reference."""


class DAPOConfig(GRPOConfig):
    """DAPO (Yu et al. 2025, arXiv:2503.14476): clip higher, mean over tokens, groups that teach, soft length limit, no KL."""

    group_size: int = Field(16, ge=1)
    """Completions sampled for each prompt."""
    prompts_per_rollout: int = Field(128, ge=1)
    """Prompts asked each time; with the other defaults a rollout is 16 steps, as in the paper's section 4.1."""
    clip_high: float = Field(0.28, ge=0)
    """Ratio is not rewarded above 1 + clip_high."""
    aggregation: Aggregation = "token"
    """See GRPO."""
    kl: GRPOKLConfig = GRPOKLConfig(where="none", coef=0.0)
    """Penalty for moving away from the reference."""
    dynamic_sampling: bool = True
    """Ask further prompts in place of those whose completions all score alike."""
    overlong: OverlongConfig | None = OverlongConfig()
    """Soft punishment near the length limit; null for none."""


class GSPOConfig(GRPOConfig):
    """GSPO (Zheng et al. 2025, arXiv:2507.18071): one ratio for a whole completion."""

    prompts_per_rollout: int = Field(64, ge=1)
    """Prompts asked each time; with the other defaults a rollout is four steps, as in the paper's section 5.1."""

    policy_loss: PolicyLoss = "sequence"
    """What an advantage does to a token."""
    clip_low: float = Field(3e-4, ge=0, le=1)
    """Ratio, a mean per token, is not rewarded below 1 - clip_low."""
    clip_high: float = Field(4e-4, ge=0)
    """Ratio is not rewarded above 1 + clip_high."""
    kl: GRPOKLConfig = GRPOKLConfig(where="none", coef=0.0)
    """Penalty for moving away from the reference."""


class CISPOConfig(GRPOConfig):
    """CISPO (MiniMax 2025, arXiv:2506.13585): clips the weight of a token, and silences none."""

    prompts_per_rollout: int = Field(256, ge=1)
    """Prompts asked each time; with the other defaults a rollout is 16 steps, as in the paper's section 3.1. With one step every
    weight is 1, and this is the plain policy gradient."""
    policy_loss: PolicyLoss = "cispo"
    """What an advantage does to a token."""
    clip_low: float = Field(1.0, ge=0, le=1)
    """A token's weight is at least 1 - clip_low; 1 for no lower bound."""
    clip_high: float = Field(4.0, ge=0)
    """A token's weight is at most 1 + clip_high (ScaleRL, arXiv:2510.13786, found 5 good)."""
    aggregation: Aggregation = "token"
    """See GRPO."""
    kl: GRPOKLConfig = GRPOKLConfig(where="none", coef=0.0)
    """Penalty for moving away from the reference."""


class SAPOConfig(GRPOConfig):
    """SAPO (Gao et al. 2025, arXiv:2511.20347): a soft gate in place of the clip."""

    prompts_per_rollout: int = Field(64, ge=1)
    """Prompts asked each time; with the other defaults a rollout is four steps. With one step every ratio is 1, and the gate does
    nothing."""
    policy_loss: PolicyLoss = "sapo"
    """What an advantage does to a token."""
    kl: GRPOKLConfig = GRPOKLConfig(where="none", coef=0.0)
    """Penalty for moving away from the reference."""


class RewardKLConfig(GRPOKLConfig):
    """The penalty in the reward, by k1, as in RLHF before GRPO."""

    where: KLPlace = "reward"
    """Subtracted from the reward, added to the loss, or only measured."""
    estimator: KLEstimator = "k1"
    """Per-token estimate; see `kl.estimator` of PPO."""
    coef: float = Field(0.05, ge=0)
    """Weight."""


class RLOOConfig(GRPOConfig):
    """RLOO (Ahmadian et al. 2024, arXiv:2402.14740): the plain policy gradient against the mean of a completion's siblings."""

    group_size: int = Field(4, ge=1)
    """Completions sampled for each prompt; the paper has 2 and 4."""
    prompts_per_rollout: int = Field(32, ge=1)
    """Prompts asked each time."""
    advantage: Advantage = "leave_one_out"
    """See GRPO."""
    policy_loss: PolicyLoss = "reinforce"
    """The paper's; with several steps to a rollout take `clip`."""
    aggregation: Aggregation = "constant"
    """A sum over each completion's tokens, as the paper has it, but for a constant."""
    kl: RewardKLConfig = RewardKLConfig()
    """Penalty for moving away from the reference."""


class ReinforcePPConfig(GRPOConfig):
    """REINFORCE++ (Hu et al. 2025, arXiv:2501.03262): no critic, no groups; advantages whitened over the whole rollout."""

    group_size: int = Field(1, ge=1)
    """Completions sampled for each prompt; 2 or more with `baseline: group`."""
    prompts_per_rollout: int = Field(1024, ge=1)
    """Prompts asked each time; with the other defaults a rollout is eight steps, as in the authors' code."""
    advantage: Advantage = "batch"
    """See GRPO."""
    aggregation: Aggregation = "token"
    """See GRPO."""
    kl: RewardKLConfig = RewardKLConfig()
    """Penalty for moving away from the reference."""


class ReMaxConfig(GRPOConfig):
    """ReMax (Li et al. 2023, arXiv:2310.10505): the plain policy gradient against the prompt's greedy completion."""

    group_size: int = Field(1, ge=1)
    """Completions sampled for each prompt, beside the greedy one."""
    prompts_per_rollout: int = Field(128, ge=1)
    """Prompts asked each time."""
    advantage: Advantage = "greedy"
    """See GRPO."""
    policy_loss: PolicyLoss = "reinforce"
    """The paper's; with several steps to a rollout take `clip`."""
    aggregation: Aggregation = "constant"
    """A sum over each completion's tokens, but for a constant."""
    kl: RewardKLConfig = RewardKLConfig()
    """Penalty for moving away from the reference."""
