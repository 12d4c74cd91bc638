"""Reward modelling: scores under which chosen completions beat rejected ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from rlhf.config.training import RewardModelConfig
from rlhf.data.pack import Group, PackedBatch, pack
from rlhf.errors import DataError
from rlhf.losses import bradley_terry_loss, centring_penalty
from rlhf.models.reward import RewardModel
from rlhf.training.log import RunLog
from rlhf.training.loop import Totals, TrainResult
from rlhf.training.metrics import Metrics, describe
from rlhf.training.offline import OfflineTrainer
from rlhf.training.optim import TrainedModule
from rlhf.training.rows import MapData, StreamData

ROWS_TO_NORMALIZE = 2000
"""Training pairs whose scores set the scale of the finished model."""


class RewardModelTrainer(OfflineTrainer):
    """Minimises the Bradley-Terry loss of pairs; the members of an ensemble learn side by side from the same batches.

    After training the scores are shifted and scaled to mean 0 and deviation 1 over training completions, so that a KL weight
    means the same with every reward model.

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
        super().__init__(config, train_data, eval_data, log, checkpoint_dir)
        self.settings = config
        self.model = model

    def train(self) -> TrainResult:
        """Train, then set the scale of the scores."""
        result = super().train()
        if self.settings.normalize:
            self._normalize()
        return result

    def modules(self) -> Sequence[TrainedModule]:
        """All members."""
        return [TrainedModule("reward", self.model, self.config.learning_rate)]

    def pack(self, groups: Sequence[Group]) -> PackedBatch:
        """Pairs, with their margins where those are used."""
        batch = pack(groups)
        if not self.settings.use_margin:
            return batch
        margins = []
        for group in groups:
            if "margin" not in group.columns:
                raise DataError(f"Row {group.columns.get('id')} has no column `margin`, which use_margin needs.")
            margins += [float(group.columns["margin"])] * len(group.branches)
        return batch.with_columns(margin=torch.tensor(margins))

    def loss(self, batch: PackedBatch, totals: Totals, metrics: Metrics) -> Tensor:
        """Mean over pairs, summed over members."""
        config = self.settings
        batch = batch.to(self.model.device)
        chosen, rejected = self._scores(batch)
        margin = batch.columns["margin"][0::2].repeat(len(chosen)) if config.use_margin else None
        losses = bradley_terry_loss(
            chosen.flatten(), rejected.flatten(), margin=margin, label_smoothing=config.label_smoothing
        )
        metrics.mean("loss/train", losses)
        metrics.mean("reward/accuracy", (chosen.mean(0) > rejected.mean(0)).float())
        metrics.mean("reward/margin", chosen - rejected)
        if config.center_coef:
            losses = losses + config.center_coef * centring_penalty(chosen.flatten(), rejected.flatten())
        return losses.sum() / totals.num_groups

    def evaluate(self) -> dict[str, float]:
        """Loss, accuracy (a tie counts half) and margin on held-out pairs, of the ensemble's mean."""
        metrics = Metrics()
        for batch in self.eval_batches():
            chosen, rejected = self._scores(batch.to(self.model.device))
            metrics.mean("eval/loss", bradley_terry_loss(chosen.flatten(), rejected.flatten()))
            difference = chosen.mean(0) - rejected.mean(0)
            metrics.mean("eval/accuracy", (difference > 0).float() + 0.5 * (difference == 0).float())
            metrics.mean("eval/margin", difference)
        return metrics.result()

    def headline(self, metrics: Mapping[str, float]) -> str:
        """Loss and accuracy."""
        return describe(metrics, {"loss/train": "loss", "reward/accuracy": "accuracy"})

    def _scores(self, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        """[K, P] raw scores of the chosen and of the rejected completions, for each of K members."""
        scores = self.model.raw_scores(batch).float()
        return scores[:, 0::2], scores[:, 1::2]

    @torch.no_grad()
    def _normalize(self) -> None:
        groups = self._some_rows()
        batches = self.batches(sorted(groups, key=lambda group: group.num_tokens))
        self.model.eval()
        self.model.fit_normalization(torch.cat([self.model.raw_scores(b.to(self.model.device)) for b in batches], dim=1))

    def _some_rows(self) -> list[Group]:
        found: list[Group] = []
        step = 0
        while len(found) < ROWS_TO_NORMALIZE and step < self.rows.num_steps:
            found += self.rows.take(step)
            step += 1
        return found[:ROWS_TO_NORMALIZE]
