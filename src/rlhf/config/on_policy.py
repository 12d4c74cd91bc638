"""Settings of methods that learn from the policy's own completions, but not by a policy gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator
from typing_extensions import override

from rlhf.config.formulas import PairFormula
from rlhf.config.kl import KLConfig
from rlhf.config.pair_losses import PAIR_FORMULAS, SEES_MARGIN_ONLY, owners_of
from rlhf.config.policy import PolicyLoss, RLConfig
from rlhf.config.preference import check_needs, listed_losses

if TYPE_CHECKING:
    MarginLoss = str
else:
    MarginLoss = Literal[SEES_MARGIN_ONLY]

OF_POLICY_GRADIENTS = ("policy_loss", "dual_clip", "importance")
"""What only a method with advantages has."""


class OnlineDPOConfig(RLConfig):
    """Online DPO (Guo et al. 2024, arXiv:2402.04792): pairs from the policy's own completions, chosen by the reward.

    Of each prompt's completions the best and the worst are a pair; a prompt whose completions score alike teaches nothing.
    """

    takes_importance: ClassVar[bool] = False
    """Pairs are compared with each other, anyone who wrote them."""
    group_size: int = Field(2, ge=2)
    """Completions sampled for each prompt, of which the best and the worst are compared."""
    minibatch_size: int = Field(64, ge=1)
    """Completions that are asked for one optimizer step. It learns from `minibatch_size` / `group_size` pairs, one of each
    prompt; where prompts teach nothing, the rollout has fewer pairs and so fewer steps."""
    beta: float = Field(0.1, gt=0)
    """Strength of the pull towards the reference policy."""
    loss: MarginLoss = "sigmoid"
    """See `loss` of DPO."""
    label_smoothing: float = Field(0.0, ge=0, lt=0.5)
    """Share of pairs believed to be judged the wrong way round; for `sigmoid`, `robust` and `exo`, which needs one above 0."""
    policy_loss: PolicyLoss = "reinforce"
    """Nothing is clipped: there are no advantages."""
    kl: KLConfig = KLConfig(where="none", coef=0.0)
    """The pull is DPO's own; the KL is only measured."""

    @property
    @override
    def learns_from_reference(self) -> bool:
        """It is in the loss, without a KL."""
        return True

    @property
    def pair_formula(self) -> PairFormula:
        """What computes the loss."""
        return PAIR_FORMULAS[self.loss]

    @model_validator(mode="after")
    def _options_of_the_loss(self) -> Self:
        owners = [loss for loss in owners_of("label_smoothing") if loss in SEES_MARGIN_ONLY]
        if self.label_smoothing and self.loss not in owners:
            raise ValueError(f"label_smoothing belongs to the loss {listed_losses(owners)}; the loss is {self.loss!r}")
        check_needs(self.loss, self)
        return self

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> Self:
        _check_unused(self, (*OF_POLICY_GRADIENTS, "aggregation", "entropy_coef"), "online DPO, whose loss is DPO's")
        if self.kl.where != "none":
            raise ValueError("online DPO pulls towards the reference by `beta`; leave kl.where at `none`")
        if self.kl.measure_every != 1:
            raise ValueError("online DPO's loss asks the reference in every rollout; leave kl.measure_every out")
        return self


class DistillConfig(RLConfig):
    """On-policy distillation (GKD, Agarwal et al. 2023, arXiv:2306.13649): a teacher's distributions on the student's own texts."""

    takes_importance: ClassVar[bool] = False
    """The teacher says what it thinks of any text."""
    takes_vocab_parallel: ClassVar[bool] = False
    """Divergences from the teacher take all logits of a row."""
    divergence_beta: float = Field(1.0, ge=0, le=1)
    """Generalized Jensen-Shannon divergence from the teacher: 0 is the forward KL, 1 the reverse KL, between them a mixture."""
    on_policy_frac: float = Field(1.0, ge=0, le=1)
    """Share of a rollout's prompts that the student completes itself; the others come with a completion of `data`, as far as
    it has one."""
    policy_loss: PolicyLoss = "reinforce"
    """Nothing is clipped: there are no advantages."""
    kl: KLConfig = KLConfig(where="none", coef=0.0)
    """The KL to where the student began; only measured unless asked for in the loss."""

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> Self:
        of_scores = (
            "missing_eos_penalty",
            "overlong",
            "clip_score",
            "max_unscored_frac",
            "evaluation",
            "hacking",
            "curriculum",
        )
        _check_unused(self, (*OF_POLICY_GRADIENTS, *of_scores), "distillation, where nobody scores completions")
        if self.moving_reference is not None:
            raise ValueError(
                "moving_reference is for learning from rewards; distillation's reference stays, leave it out"
            )
        if self.kl.where == "reward":
            raise ValueError(
                "distillation has no reward that a KL could be subtracted from; kl.where is `loss` or `none`"
            )
        return self


def _check_unused(config: RLConfig, keys: tuple[str, ...], method: str) -> None:
    for key in keys:
        if getattr(config, key) != type(config).model_fields[key].default:
            raise ValueError(f"{key} does nothing for {method}; leave it out")
