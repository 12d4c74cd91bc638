"""Supervised fine-tuning: make the demonstrated completions likely."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from rlhf.config.sft import SFTConfig
from rlhf.data.pack import PackedBatch
from rlhf.losses import nll_loss, token_mean
from rlhf.models.policy import PolicyModel
from rlhf.training.algorithm import Totals
from rlhf.training.log import RunLog
from rlhf.training.metrics import Metrics, describe
from rlhf.training.offline import OfflineTrainer
from rlhf.training.optim import TrainedModule
from rlhf.training.rows import MapData, StreamData


class SFTTrainer(OfflineTrainer):
    """Minimises the negative log-likelihood of the scored tokens, averaged over all of a step's tokens.

    Args:
        policy: Changed in place.
        config: Settings.
        train_data: ``SFTDataset`` or its streaming form.
        eval_data: Held-out rows, or None.
        log: Where metrics go.
        checkpoint_dir: Where checkpoints go; None for none.
    """

    name = "sft"

    def __init__(
        self,
        policy: PolicyModel,
        config: SFTConfig,
        train_data: MapData | StreamData,
        eval_data: MapData | None = None,
        *,
        log: RunLog | None = None,
        checkpoint_dir: Path | None = None,
    ) -> None:
        super().__init__(config, train_data, eval_data, log=log, checkpoint_dir=checkpoint_dir)
        self.policy = policy

    @property
    def tokenizer(self) -> Any:
        """The policy's."""
        return self.policy.tokenizer

    def modules(self) -> Sequence[TrainedModule]:
        """The policy."""
        return [TrainedModule("policy", self.policy.model, self.config.learning_rate)]

    def loss(self, batch: PackedBatch, totals: Totals, metrics: Metrics) -> Tensor:
        """Token mean of the negative log-likelihood."""
        losses = nll_loss(self.policy.score(batch.to(self.policy.device)).logprobs)
        metrics.mean("loss/train", losses)
        return token_mean(losses, num_tokens=totals.num_tokens)

    def measure(self, batch: PackedBatch, metrics: Metrics) -> None:
        """Loss in nats per token."""
        metrics.mean("eval/loss", nll_loss(self.policy.score(batch.to(self.policy.device)).logprobs))

    def evaluate(self) -> dict[str, float]:
        """Loss, and perplexity."""
        found = super().evaluate()
        if "eval/loss" in found:
            found["eval/perplexity"] = math.exp(min(found["eval/loss"], 700.0))
        return found

    def headline(self, metrics: Mapping[str, float]) -> str:
        """Loss."""
        return describe(metrics, {"loss/train": "loss"})
