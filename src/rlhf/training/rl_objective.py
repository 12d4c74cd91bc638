"""The loss of a policy that learns from its own completions: how the terms of ``policy_objective`` add up under a config."""

from __future__ import annotations

from typing import Generic

from torch import Tensor

from rlhf.config.formulas import argument_values
from rlhf.data.pack import PackedBatch
from rlhf.losses import aggregate, entropy_bonus
from rlhf.models.policy import PolicyModel
from rlhf.models.reference import Reference
from rlhf.models.score import TokenScores
from rlhf.training.algorithm import Totals
from rlhf.training.control import KLController
from rlhf.training.experience import RolloutExperience
from rlhf.training.inputs import RLConfigT
from rlhf.training.metrics import Metrics
from rlhf.training.policy_objective import kl_in_loss, kl_in_reward, measure_ratios, policy_losses


class RLObjective(Generic[RLConfigT]):
    """The part of a trainer that turns a packed batch into a loss; a method overrides the term in which it differs."""

    name: str
    policy: PolicyModel
    reference: Reference
    config: RLConfigT
    controller: KLController

    def score(self, batch: PackedBatch, *, with_hidden: bool = False) -> TokenScores:
        """The policy's scores at the temperature that the completions were sampled at."""
        kl = self.config.kl
        return self.policy.score(
            batch,
            temperature=self.config.sampling.temperature,
            with_entropy=self.config.entropy_coef > 0,
            with_hidden=with_hidden or (kl.where == "loss" and kl.estimator == "exact"),
        )

    def policy_losses(self, scores: TokenScores, batch: PackedBatch, metrics: Metrics) -> Tensor:
        """[M] what ``policy_loss`` makes of the advantages, and the metrics of its ratios."""
        config = self.config
        formula = config.policy_formula
        arguments = argument_values(config, formula.arguments)
        losses = policy_losses(scores.logprobs, batch, formula=formula, arguments=arguments)
        metrics.mean("loss/policy", losses)
        self.measure_ratios(scores.logprobs, batch, metrics)
        return losses

    def measure_ratios(self, logprobs: Tensor, batch: PackedBatch, metrics: Metrics) -> None:
        """How far the update has moved each token, and how many the policy loss clips."""
        config = self.config
        measure_ratios(
            logprobs, batch, metrics, name=self.name, formula=config.policy_formula,
            clip_low=config.clip_low, clip_high=config.clip_high, dual_clip=config.dual_clip,
        )  # fmt: skip

    def kl_in_reward(self, experience: RolloutExperience, metrics: Metrics) -> Tensor:
        """[M] the KL estimate that is subtracted from the reward, before its weight."""
        config = self.config
        return kl_in_reward(
            experience, metrics, policy=self.policy, reference=self.reference, estimator=config.kl.estimator,
            temperature=config.sampling.temperature, microbatch_tokens=config.microbatch_tokens,
        )  # fmt: skip

    def policy_term(self, scores: TokenScores, batch: PackedBatch, totals: Totals, metrics: Metrics) -> Tensor:
        """Policy loss + KL - entropy bonus: this micro-batch's share of one number, as ``aggregation`` says."""
        config = self.config
        losses = self.policy_losses(scores, batch, metrics)
        if config.kl.where == "loss":
            kl = kl_in_loss(
                scores, batch, metrics, policy=self.policy, reference=self.reference, estimator=config.kl.estimator,
                unbiased=config.kl.unbiased, temperature=config.sampling.temperature,
            )  # fmt: skip
            losses = losses + self.controller.coef * kl
        if scores.entropy is not None:
            metrics.mean("loss/entropy", scores.entropy)
            losses = losses + config.entropy_coef * entropy_bonus(scores.entropy)
        return aggregate(
            losses, batch.score_seq, how=config.aggregation, num_tokens=totals.num_tokens,
            num_sequences=totals.num_sequences, constant=float(config.sampling.max_new_tokens),
        )  # fmt: skip
