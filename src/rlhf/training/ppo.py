"""Proximal policy optimisation with a critic: the classic loop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from rlhf.config.policy import PPOConfig
from rlhf.data.contracts import Prompt
from rlhf.data.pack import PackedBatch
from rlhf.errors import ConfigError
from rlhf.losses import KL_ESTIMATORS, add_score_at_last_token, clipped_value_loss, gae, segment_sum, token_mean, whiten
from rlhf.models.policy import PolicyModel
from rlhf.models.reference import Reference
from rlhf.models.score import evaluating
from rlhf.models.value import ValueModel
from rlhf.rewards.types import Scorer
from rlhf.rollout.types import RolloutEngine
from rlhf.training.algorithm import Totals
from rlhf.training.experience import RolloutExperience, at_last_tokens
from rlhf.training.log import RunLog
from rlhf.training.metrics import Metrics
from rlhf.training.online import OnlineTrainer
from rlhf.training.optim import TrainedModule


class PPOTrainer(OnlineTrainer):
    """PPO as Ouyang et al. 2022 use it for language models (arXiv:2203.02155, section 3.5 and appendix C).

    The score stands on the last sampled token, EOS where there is one; the KL penalty on every token; advantages come
    from GAE. A completion that was cut counts as ended, unless ``bootstrap_truncated`` is set.

    Args:
        value_model: The critic, changed in place; the other arguments are ``OnlineTrainer``'s.
    """

    name = "ppo"

    def __init__(
        self,
        policy: PolicyModel,
        value_model: ValueModel,
        config: PPOConfig,
        prompts: Sequence[Prompt],
        scorer: Scorer,
        *,
        reference: Reference,
        eval_prompts: Sequence[Prompt] = (),
        engine: RolloutEngine | None = None,
        log: RunLog | None = None,
        checkpoint_dir: Path | None = None,
    ) -> None:
        if value_model.is_shared != (config.value_model == "shared"):
            raise ConfigError(f"value_model is {config.value_model!r}, but the critic given is of the other kind.")
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
        self.value_model = value_model

    def modules(self) -> Sequence[TrainedModule]:
        """Policy and critic."""
        config = self.settings
        return [
            TrainedModule("policy", self.policy.model, config.learning_rate),
            TrainedModule("value", self.value_model, config.value_learning_rate or config.learning_rate),
        ]

    def assign_credit(self, experience: RolloutExperience, metrics: Metrics) -> None:
        """Rewards, values, advantages and returns of every token."""
        config = self.settings
        columns, score_seq = experience.token_columns, experience.score_seq
        values, after_end = self._old_values(experience)
        # 1. Reward of a token: the penalty for leaving the reference; the score stands on the last one.
        rewards = torch.zeros_like(columns["old_logprobs"])
        if config.kl.where == "reward":
            penalty = KL_ESTIMATORS[config.kl.estimator](columns["old_logprobs"], columns["ref_logprobs"])
            rewards = -self.controller.coef * penalty
        rewards = add_score_at_last_token(rewards, experience.columns["scores"], score_seq)
        metrics.mean("ppo/reward_mean", segment_sum(rewards, score_seq, experience.num_sequences))
        if config.whiten_rewards:
            rewards = whiten(rewards, shift_mean=False)
        # 2. Advantage of a token: how much better than the critic expected.
        advantages, returns = gae(
            rewards, values, score_seq, gamma=config.gamma, lam=config.lam, bootstrap_values=after_end
        )
        metrics.mean("ppo/advantage_mean", advantages)
        unexplained = (returns - values).var(correction=0) / returns.var(correction=0).clamp(min=1e-8)
        metrics.mean("ppo/value_explained", 1 - unexplained)
        if config.whiten_advantages:
            advantages = whiten(advantages)
        columns.update(values=values, advantages=advantages, returns=returns)

    def loss(self, batch: PackedBatch, totals: Totals, metrics: Metrics) -> Tensor:
        """Clipped surrogate + value loss - entropy bonus, each a mean over all tokens of the step."""
        config = self.settings
        batch = batch.to(self.policy.device)
        columns = batch.token_columns
        scores = self.score(batch, with_hidden=self.value_model.is_shared)
        loss = token_mean(self.policy_losses(scores, batch, metrics), num_tokens=totals.num_tokens)

        values = self.value_model.values(batch, scores.hidden)
        value_losses = clipped_value_loss(values, columns["values"], columns["returns"], clip=config.clip_value)
        metrics.mean("loss/value", value_losses)
        loss = loss + config.value_coef * token_mean(value_losses, num_tokens=totals.num_tokens)

        if config.kl.where == "loss":
            kl = KL_ESTIMATORS[config.kl.estimator](scores.logprobs, columns["ref_logprobs"])
            metrics.mean("loss/kl", kl)
            loss = loss + self.controller.coef * token_mean(kl, num_tokens=totals.num_tokens)
        if scores.entropy is not None:
            loss = loss - config.entropy_coef * token_mean(scores.entropy, num_tokens=totals.num_tokens)
        metrics.total("loss/train", loss)
        return loss

    def _old_values(self, experience: RolloutExperience) -> tuple[Tensor, Tensor | None]:
        """[M] the critic's estimates, and, where truncated completions are bootstrapped, [S] those after the end."""
        limit = self.settings.tokens_per_microbatch
        with evaluating(self.policy.model, self.value_model):
            values = experience.map(self._values, max_tokens=limit)
            if not self.settings.bootstrap_truncated:
                return values, None
            after_end = experience.map(lambda batch: self._values(at_last_tokens(batch)), max_tokens=limit)
        return values, after_end * experience.columns["truncated"]

    def _values(self, batch: PackedBatch) -> Tensor:
        """[M]."""
        batch = batch.to(self.policy.device)
        hidden = self.score(batch, with_hidden=True).hidden if self.value_model.is_shared else None
        return self.value_model.values(batch, hidden)
