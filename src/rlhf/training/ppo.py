"""Proximal policy optimization with a critic: the classic loop, and VAPO, which is the same loop with other settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from typing_extensions import override

from rlhf.activity import doing
from rlhf.config.policy import PPOConfig
from rlhf.data.pack import PackedBatch
from rlhf.errors import ConfigError
from rlhf.losses import (
    add_score_at_last_token,
    clipped_value_loss,
    gae,
    length_adaptive_lambda,
    nll_loss,
    segment_count,
    segment_sum,
    token_mean,
    whiten,
)
from rlhf.models.score import TokenScores, evaluating
from rlhf.training.algorithm import Totals
from rlhf.training.experience import RolloutExperience
from rlhf.training.metrics import Metrics
from rlhf.training.optim import Optimizer, TrainedModule
from rlhf.training.rl_trainer import RLTrainer
from rlhf.training.rollouts import Gathered


class PPOTrainer(RLTrainer[PPOConfig]):
    """PPO as Ouyang et al. 2022 use it for language models (arXiv:2203.02155, section 3.5 and appendix C).

    The score stands on the last sampled token, EOS where there is one; the KL penalty on every token; advantages come
    from GAE. A completion that was cut counts as ended, unless ``bootstrap_truncated`` is set. In the first
    ``value_warmup_rollouts`` only the critic learns: the policy keeps its bits, and with a shared backbone only the head
    of the critic changes.

    Called with the fields of ``RLInputs``, ``value_model`` among them.
    """

    name = "ppo"
    config_class = PPOConfig

    @override
    def prepare(self) -> None:
        """A critic of the kind that the config names."""
        given = self.inputs.value_model
        if given is None:
            raise ConfigError(f"{self.name} needs a critic; give value_model=ValueModel.from_policy(policy).")
        if given.is_shared != (self.config.value_model == "shared"):
            raise ConfigError(f"value_model is {self.config.value_model!r}, but the critic given is of the other kind.")
        self.value_model = given
        self.policy_learns = True
        """Whether the present step is one of the policy's; follows from the rollout."""
        self.positive_tokens = 0
        """Tokens of good completions in the present step, all its micro-batches together."""

    @override
    def modules(self) -> Sequence[TrainedModule]:
        """Policy and critic."""
        config = self.config
        return [
            TrainedModule("policy", self.policy.model, config.learning_rate),
            TrainedModule("value", self.value_model, config.value_learning_rate or config.learning_rate),
        ]

    @override
    def collect(self, rollout_index: int, metrics: Metrics) -> RolloutExperience:
        """A KL that the policy had no chance to change moves no weight."""
        experience = super().collect(rollout_index, metrics)
        if rollout_index < self.config.value_warmup_rollouts:
            self.kl_measured = None
        return experience

    @property
    @override
    def first_step_of_policy(self) -> int:
        """The first one behind the critic's warm-up."""
        return self.config.value_warmup_rollouts * self.steps_per_phase + 1

    @override
    def steps(self, rollout_index: int, experience: RolloutExperience) -> Iterator[list[PackedBatch]]:
        self.policy_learns = rollout_index >= self.config.value_warmup_rollouts
        yield from super().steps(rollout_index, experience)

    @override
    def compared(self, gathered: Gathered) -> tuple[Tensor, str]:
        """The critic is every completion's measure, so those of one prompt may all score alike."""
        return gathered.scores.view(1, -1), "of the rollout"

    @override
    def assign_credit(self, experience: RolloutExperience, metrics: Metrics) -> None:
        """Rewards, values, advantages and returns of every token."""
        config, score_seq = self.config, experience.score_seq
        values, after_end = self._old_values(experience)
        # 1. Reward of a token: the penalty for leaving the reference; the score stands on the last one.
        rewards = torch.zeros_like(values)
        if config.kl.where == "reward":
            penalty = self.kl_in_reward(experience, metrics)
            rewards = -self.controller.coef * penalty
        rewards = add_score_at_last_token(rewards, experience.columns["scores"], score_seq)
        metrics.mean(f"{self.name}/reward_mean", segment_sum(rewards, score_seq, experience.num_sequences))
        if config.whiten_rewards:
            rewards = whiten(rewards, shift_mean=False)
        # 2. Advantage of a token: how much better than the critic expected.
        gae_lambda: float | Tensor = config.gae_lambda
        if config.length_adaptive_alpha is not None:
            lengths = segment_count(score_seq, experience.num_sequences)
            gae_lambda = length_adaptive_lambda(lengths, alpha=config.length_adaptive_alpha)
            metrics.mean(f"{self.name}/lambda_mean", gae_lambda)
        advantages, returns = gae(
            rewards, values, score_seq,
            gamma=config.gamma, gae_lambda=gae_lambda, value_gae_lambda=config.value_gae_lambda, bootstrap_values=after_end,
        )  # fmt: skip
        metrics.mean(f"{self.name}/advantage_mean", advantages)
        unexplained = (returns - values).var(correction=0) / returns.var(correction=0).clamp(min=1e-8)
        metrics.mean(f"{self.name}/value_explained", 1 - unexplained)
        if config.positive_nll_coef:
            metrics.mean(f"{self.name}/positive_frac", experience.columns["scores"] > config.positive_score)
        if config.whiten_advantages:
            advantages = whiten(advantages)
        experience.token_columns.update(values=values, advantages=advantages, returns=returns)

    @override
    def before_step(self, batches: Sequence[PackedBatch], metrics: Metrics) -> None:
        """Count the tokens of good completions: the mean over them is one of the whole step."""
        if self.config.positive_nll_coef:
            self.positive_tokens = sum(int(self._of_good_completions(batch).sum()) for batch in batches)

    @override
    def loss(self, batch: PackedBatch, totals: Totals, metrics: Metrics) -> Tensor:
        """What the policy learns from, and the value loss; of these only the latter while the critic is warmed up."""
        batch = batch.to(self.policy.device)
        terms: list[Tensor] = []
        hidden: Tensor | None = None
        if self.policy_learns:
            scores = self.score(batch, with_hidden=self.value_model.is_shared)
            terms.append(self.policy_term(scores, batch, totals, metrics))
            hidden = scores.hidden
        terms.append(self.value_term(batch, hidden, totals, metrics))
        loss = torch.stack(terms).sum()
        metrics.total("loss/train", loss)
        return loss

    @override
    def policy_term(self, scores: TokenScores, batch: PackedBatch, totals: Totals, metrics: Metrics) -> Tensor:
        """Also a share of the likelihood of good completions, a mean over all their tokens of the step."""
        loss = super().policy_term(scores, batch, totals, metrics)
        if not self.positive_tokens:
            return loss
        is_good, nll = self._of_good_completions(batch), nll_loss(scores.logprobs)
        metrics.mean("loss/positive_nll", nll, is_good)
        return loss + self.config.positive_nll_coef * nll[is_good].sum() / self.positive_tokens

    def value_term(self, batch: PackedBatch, hidden: Tensor | None, totals: Totals, metrics: Metrics) -> Tensor:
        """The critic's loss, a mean over all tokens of the step, times its weight.

        Args:
            batch: The packed batch.
            hidden: [M, H] of the policy as it learns, for a shared backbone; None where it does not learn.
            totals: Of the step.
            metrics: Gets ``loss/value``.
        """
        config = self.config
        if hidden is None and self.value_model.is_shared:
            with torch.no_grad():
                hidden = self.score(batch, with_hidden=True).hidden
        values = self.value_model.values(batch, hidden)
        columns = batch.token_columns
        losses = clipped_value_loss(values, columns["values"], columns["returns"], clip=config.clip_value)
        metrics.mean("loss/value", losses)
        return config.value_coef * token_mean(losses, num_tokens=totals.num_tokens)

    @override
    def take_step(self, optimizer: Optimizer, step: int, batches: Sequence[PackedBatch]) -> dict[str, float]:
        """AdamW's; where only the critic learns, whatever else has a gradient for the policy is forgotten."""
        if self.policy_learns:
            return super().take_step(optimizer, step, batches)
        for parameter in optimizer.parameters_of["policy"]:
            parameter.grad = None  # None, not 0: AdamW passes over it, weight decay and all
        return optimizer.step(step)

    @override
    def ends_phase_early(self, metrics: Mapping[str, float]) -> bool:
        """Steps of the critic alone move no policy."""
        return self.policy_learns and super().ends_phase_early(metrics)

    def _of_good_completions(self, batch: PackedBatch) -> Tensor:
        """bool [M]."""
        return (batch.columns["scores"] > self.config.positive_score)[batch.score_seq]

    def _old_values(self, experience: RolloutExperience) -> tuple[Tensor, Tensor | None]:
        """[M] the critic's estimates, and, where truncated completions are bootstrapped, [S] those after the end."""
        limit = self.config.microbatch_tokens
        with doing("scoring", tokens=experience.num_tokens), evaluating(self.policy.model, self.value_model):
            values = experience.map(self._values, max_tokens=limit)
            if not self.config.bootstrap_truncated:
                return values, None
            after_end = experience.map(lambda batch: self._values(batch.at_last_tokens()), max_tokens=limit)
        return values, after_end * experience.columns["truncated"]

    def _values(self, batch: PackedBatch) -> Tensor:
        """[M]."""
        batch = batch.to(self.policy.device)
        hidden = self.score(batch, with_hidden=True).hidden if self.value_model.is_shared else None
        return self.value_model.values(batch, hidden)


class VAPOTrainer(PPOTrainer):
    """PPO for long reasoning (Yue et al. 2025, arXiv:2504.05118): ``VAPOConfig`` has what differs from PPO.

    Its settings in words: the critic learns alone at first, from the rewards to come (lambda 1); the policy's lambda grows
    with a completion's length; clip higher; groups of 16; and a share of the likelihood of what was right.
    """

    name = "vapo"
