"""Learning from pairs without a reference: SimPO, CPO and ORPO. No model but the policy is loaded or asked.

A likelihood term is there where ``sft_coef`` says so, and nowhere else: CPO and ORPO have one by default, SimPO has none.
"""

from __future__ import annotations

from torch import Tensor
from typing_extensions import override

from rlhf.config.preference import CPOConfig, ORPOConfig, SimPOConfig
from rlhf.data.pack import PackedBatch
from rlhf.losses import cpo_loss, log_odds, odds_ratio_loss, segment_mean, segment_sum, simpo_loss, split_pairs
from rlhf.models.score import TokenScores
from rlhf.training.pair_trainer import PairsTrainer


class SimPOTrainer(PairsTrainer[SimPOConfig]):
    """The mean log-probability per token is the reward, and wins by a margin. Called as ``PairsTrainer`` is."""

    name = "simpo"

    @override
    def compare(self, batch: PackedBatch, scores: TokenScores) -> tuple[Tensor, Tensor]:
        """SimPO's loss; rewards are the policy's own mean log-probabilities."""
        config = self.config
        means = segment_mean(scores.logprobs, batch.score_seq, batch.num_sequences)
        losses = simpo_loss(
            *split_pairs(means),
            beta=config.beta,
            target_margin=config.target_margin,
            label_smoothing=config.label_smoothing,
        )
        return losses, config.beta * means


class CPOTrainer(PairsTrainer[CPOConfig]):
    """DPO against a uniform reference; a likelihood term holds the policy. Called as ``PairsTrainer`` is."""

    name = "cpo"

    @override
    def compare(self, batch: PackedBatch, scores: TokenScores) -> tuple[Tensor, Tensor]:
        """CPO's preference part; rewards are summed log-probabilities."""
        config = self.config
        sums = segment_sum(scores.logprobs, batch.score_seq, batch.num_sequences)
        losses = cpo_loss(*split_pairs(sums), beta=config.beta, label_smoothing=config.label_smoothing)
        return losses, config.beta * sums


class ORPOTrainer(PairsTrainer[ORPOConfig]):
    """Fine-tuning on chosen completions, and lower odds of rejected ones, in one stage from a base model.

    Called as ``PairsTrainer`` is.
    """

    name = "orpo"

    @override
    def compare(self, batch: PackedBatch, scores: TokenScores) -> tuple[Tensor, Tensor]:
        """ORPO's odds-ratio part; rewards are log-odds of a token, as the loss compares them."""
        means = segment_mean(scores.logprobs, batch.score_seq, batch.num_sequences)
        return self.config.odds_coef * odds_ratio_loss(*split_pairs(means)), log_odds(means)
