"""Supervised fine-tuning: make the demonstrated completions likely."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from torch import Tensor
from typing_extensions import override

from rlhf.config.formulas import argument_values
from rlhf.config.sft import SFTConfig
from rlhf.data.pack import PackedBatch
from rlhf.losses import nll_loss, token_mean
from rlhf.losses.formula import asked_of, load_formula
from rlhf.training.algorithm import Totals
from rlhf.training.metrics import Metrics, describe
from rlhf.training.neftune import noisy_embeddings, with_noise_seeds
from rlhf.training.offline import OfflinePolicyTrainer, RowsOfStep


class SFTTrainer(OfflinePolicyTrainer[SFTConfig]):
    """Minimizes the loss of the scored tokens, averaged over all of a step's tokens.

    Held-out rows are always measured by their plain negative log-likelihood, without noise: runs of different losses compare.

    Called with the fields of ``OfflineInputs``: a policy, and a ``SFTDataset`` or its streaming form.
    """

    name = "sft"
    config_class = SFTConfig

    @override
    def steps(self, phase: int, experience: RowsOfStep) -> Iterator[list[PackedBatch]]:
        """One step, in micro-batches; each row knows the seed of its noise, whatever else is in the batch."""
        for batches in super().steps(phase, experience):
            noisy = self.config.neftune_alpha is not None
            yield [with_noise_seeds(batch, self.config.seed, phase) for batch in batches] if noisy else batches

    @override
    def loss(self, batch: PackedBatch, totals: Totals, metrics: Metrics) -> Tensor:
        """Token mean of the configured loss."""
        config, batch = self.config, batch.to(self.policy.device)
        with noisy_embeddings(self.policy, batch, alpha=config.neftune_alpha or 0.0):
            scores = self.policy.score(batch, with_mean=config.label_smoothing > 0)
        formula = config.token_formula
        function = load_formula(formula.function)
        tensors = {"logprobs": scores.logprobs, "mean_logprobs": scores.mean_logprobs}
        losses = function(**asked_of(function, tensors), **argument_values(config, formula.arguments))
        metrics.mean("loss/train", losses)
        if function is not nll_loss:
            metrics.mean("loss/nll", nll_loss(scores.logprobs))
        return token_mean(losses, num_tokens=totals.num_tokens)

    @override
    def measure(self, batch: PackedBatch, metrics: Metrics) -> None:
        """Loss in nats per token."""
        metrics.mean("eval/loss", nll_loss(self.policy.score(batch.to(self.policy.device)).logprobs))

    @override
    def evaluate(self) -> dict[str, float]:
        """Loss, and perplexity."""
        metrics = super().evaluate()
        if "eval/loss" in metrics:
            metrics["eval/perplexity"] = math.exp(min(metrics["eval/loss"], 700.0))
        return metrics

    @override
    def headline(self, metrics: Mapping[str, float]) -> str:
        """Loss, per token what other losses can be compared with."""
        return describe(metrics, {"loss/nll" if "loss/nll" in metrics else "loss/train": "loss"})
