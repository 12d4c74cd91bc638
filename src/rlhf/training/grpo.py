"""Group-relative policy optimisation: no critic, a completion is judged against its siblings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from rlhf.config.groups import GRPOConfig
from rlhf.data.contracts import Prompt
from rlhf.data.pack import PackedBatch
from rlhf.losses import KL_ESTIMATORS, aggregate, group_advantages, segment_sum
from rlhf.models.policy import PolicyModel
from rlhf.models.reference import Reference
from rlhf.rewards.types import Scorer
from rlhf.rollout.types import RolloutEngine
from rlhf.training.algorithm import Totals
from rlhf.training.experience import RolloutExperience
from rlhf.training.log import RunLog
from rlhf.training.metrics import Metrics
from rlhf.training.online import OnlineTrainer
from rlhf.training.optim import TrainedModule


class GRPOTrainer(OnlineTrainer):
    """GRPO (Shao et al. 2024, eq. 3 and 4, arXiv:2402.03300) and, by its options, Dr. GRPO and DAPO's aggregation.

    Arguments are ``OnlineTrainer``'s.
    """

    name = "grpo"

    def __init__(
        self,
        policy: PolicyModel,
        config: GRPOConfig,
        prompts: Sequence[Prompt],
        scorer: Scorer,
        *,
        reference: Reference,
        eval_prompts: Sequence[Prompt] = (),
        engine: RolloutEngine | None = None,
        log: RunLog | None = None,
        checkpoint_dir: Path | None = None,
    ) -> None:
        super().__init__(
            policy,
            config,
            prompts,
            scorer,
            reference=reference,
            eval_prompts=eval_prompts,
            engine=engine,
            log=log,
            checkpoint_dir=checkpoint_dir,
        )
        self.settings = config

    def modules(self) -> Sequence[TrainedModule]:
        """The policy."""
        return [TrainedModule("policy", self.policy.model, self.config.learning_rate)]

    def assign_credit(self, experience: RolloutExperience, metrics: Metrics) -> None:
        """How much better was each completion than its siblings?"""
        config = self.settings
        scores = experience.columns["scores"]
        if config.kl.where == "reward":
            old, ref = experience.token_columns["old_logprobs"], experience.token_columns["ref_logprobs"]
            penalty = KL_ESTIMATORS[config.kl.estimator](old, ref)
            scores = scores - self.controller.coef * segment_sum(
                penalty, experience.score_seq, experience.num_sequences
            )
        advantages = group_advantages(scores, experience.group, divide_by_std=config.advantage == "group")
        metrics.mean("grpo/reward_mean", scores)
        by_group = scores.view(-1, config.group_size)
        metrics.mean("grpo/reward_std", by_group.std(dim=1))
        metrics.mean("grpo/equal_groups_frac", (by_group == by_group[:, :1]).all(dim=1))
        metrics.mean("grpo/advantage_mean", advantages)
        experience.token_columns["advantages"] = advantages[experience.score_seq]

    def loss(self, batch: PackedBatch, totals: Totals, metrics: Metrics) -> Tensor:
        """Clipped surrogate + KL - entropy bonus, brought to one number as ``aggregation`` says."""
        config = self.settings
        batch = batch.to(self.policy.device)
        scores = self.score(batch)
        losses = self.policy_losses(scores, batch, metrics)
        if config.kl.where == "loss":
            kl = KL_ESTIMATORS[config.kl.estimator](scores.logprobs, batch.token_columns["ref_logprobs"])
            metrics.mean("loss/kl", kl)
            losses = losses + self.controller.coef * kl
        if scores.entropy is not None:
            losses = losses - config.entropy_coef * scores.entropy
        loss = aggregate(
            losses,
            batch.score_seq,
            how=config.aggregation,
            num_tokens=totals.num_tokens,
            num_sequences=totals.num_sequences,
            constant=float(config.sampling.max_new_tokens),
        )
        metrics.total("loss/train", loss)
        return loss
