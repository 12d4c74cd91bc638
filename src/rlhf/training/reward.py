"""Reward modelling: scores under which chosen completions beat rejected ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlhf.config.reward_model import RewardModelConfig
from rlhf.data.pack import Group, PackedBatch, pack
from rlhf.errors import DataError
from rlhf.losses import bradley_terry_loss, centring_penalty
from rlhf.models.reward import RewardModel
from rlhf.training.algorithm import Totals
from rlhf.training.log import RunLog
from rlhf.training.loop import TrainResult
from rlhf.training.metrics import Metrics, describe, share_above
from rlhf.training.offline import OfflineTrainer
from rlhf.training.optim import TrainedModule, mixed_precision
from rlhf.training.rows import MapData, StreamData

ROWS_TO_NORMALIZE = 2000
"""Training pairs whose scores set the scale of the finished model."""


class RewardModelTrainer(OfflineTrainer):
    """Minimises the Bradley-Terry loss of pairs; the members of an ensemble learn side by side from the same batches.

    After training the scores are shifted and scaled to mean 0 and deviation 1 over training completions, so that a KL
    weight means the same with every reward model.

    Args:
        model: Changed in place.
        config: Settings.
        train_data: ``PreferenceDataset`` or its streaming form: groups of two branches, chosen first.
        eval_data: Held-out pairs, or None.
        log: Where metrics go.
        checkpoint_dir: Where checkpoints go; None for none.
    """

    name = "reward"

    def __init__(
        self,
        model: RewardModel,
        config: RewardModelConfig,
        train_data: MapData | StreamData,
        eval_data: MapData | None = None,
        *,
        log: RunLog | None = None,
        checkpoint_dir: Path | None = None,
    ) -> None:
        super().__init__(config, train_data, eval_data, log=log, checkpoint_dir=checkpoint_dir)
        self.settings = config
        self.model = model

    def train(self) -> TrainResult:
        """Train, then set the scale of the scores."""
        result = super().train()
        if self.settings.normalize:
            self._normalize()
        return result

    @property
    def tokenizer(self) -> Any:
        """The model's."""
        return self.model.tokenizer

    def modules(self) -> Sequence[TrainedModule]:
        """The members, each with its own gradient norm."""
        members = list(self.model.members)
        names = ["reward"] if len(members) == 1 else [f"member-{number}" for number in range(len(members))]
        rate = self.config.learning_rate
        return [TrainedModule(name, member, rate) for name, member in zip(names, members, strict=True)]

    def pack(self, groups: Sequence[Group]) -> PackedBatch:
        """Pairs, with their margins where those are used."""
        batch = pack(groups)
        if not self.settings.use_margin:
            return batch
        margins = [_margin(group) for group in groups for _ in group.branches]
        return batch.with_columns(margin=torch.tensor(margins))

    def loss(self, batch: PackedBatch, totals: Totals, metrics: Metrics) -> Tensor:
        """Mean over pairs, summed over members: each learns as it would alone."""
        config = self.settings
        batch = batch.to(self.model.device)
        chosen, rejected = self._scores(batch)
        margin = batch.columns["margin"][0::2].repeat(len(chosen)) if config.use_margin else None
        losses = bradley_terry_loss(
            chosen.flatten(), rejected.flatten(), margin=margin, label_smoothing=config.label_smoothing
        )
        metrics.mean("loss/train", losses)
        metrics.mean("reward/accuracy", share_above(chosen.mean(0), rejected.mean(0)))
        metrics.mean("reward/margin", chosen - rejected)
        if config.center_coef:
            losses = losses + config.center_coef * centring_penalty(chosen.flatten(), rejected.flatten())
        return losses.sum() / totals.num_groups

    def measure(self, batch: PackedBatch, metrics: Metrics) -> None:
        """Loss and margin of the members, and the accuracy of their mean (a tie counts half)."""
        chosen, rejected = self._scores(batch.to(self.model.device))
        metrics.mean("eval/loss", bradley_terry_loss(chosen.flatten(), rejected.flatten()))
        metrics.mean("eval/accuracy", share_above(chosen.mean(0), rejected.mean(0)))
        metrics.mean("eval/margin", chosen - rejected)

    def headline(self, metrics: Mapping[str, float]) -> str:
        """Loss and accuracy."""
        return describe(metrics, {"loss/train": "loss", "reward/accuracy": "accuracy"})

    def _scores(self, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        """[K, P] raw scores of the chosen and of the rejected completions, for each of K members."""
        scores = self.model.raw_scores(batch).float()
        return scores[:, 0::2], scores[:, 1::2]

    @torch.no_grad()
    def _normalize(self) -> None:
        """Set the scale from the rows of the first steps, at most ``ROWS_TO_NORMALIZE``."""
        groups: list[Group] = []
        for step in range(self.rows.num_steps):
            groups += self.rows.take(step)
            if len(groups) >= ROWS_TO_NORMALIZE:
                break
        batches = self.batches(sorted(groups[:ROWS_TO_NORMALIZE], key=lambda group: group.num_tokens))
        self.model.eval()
        with mixed_precision(self.config.autocast, self.model.device):
            scores = [self.model.raw_scores(batch.to(self.model.device)) for batch in batches]
        self.model.fit_normalization(torch.cat(scores, dim=1))


def _margin(group: Group) -> float:
    margin = group.columns.get("margin")
    if not isinstance(margin, Real):
        raise DataError(
            f"Row {group.columns.get('id')}: use_margin needs a number in the column `margin`; got {margin!r}."
        )
    return float(margin)
