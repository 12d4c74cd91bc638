"""Reward modeling: scores under which what people said of completions is likely."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from rlhf.config.reward_model import RewardModelConfig
from rlhf.data.pack import Group, PackedBatch, pack
from rlhf.losses import centering_penalty, label_noise, loss_under_label_noise, ranked_pairs
from rlhf.losses.formula import asked_of, load_formula
from rlhf.models.learned_scalars import LearnedScalars
from rlhf.models.reward import RewardModel
from rlhf.training.algorithm import Totals
from rlhf.training.loop import TrainResult
from rlhf.training.metrics import Metrics, describe, share_above
from rlhf.training.offline import OfflineTrainer
from rlhf.training.optim import TrainedModule, mixed_precision
from rlhf.training.reward_columns import check_row, judgment_columns
from rlhf.training.row_order import MapData

ROWS_TO_NORMALIZE = 2000
"""Training rows whose scores set the scale of the finished model."""


class RewardModelTrainer(OfflineTrainer[RewardModel, RewardModelConfig]):
    """Makes judgments likely under the scores; the members of an ensemble learn side by side from the same batches.

    After training the scores are shifted and scaled to mean 0 and deviation 1 over training completions, so that a KL
    weight means the same with every reward model. Without that, scores learned from ratings keep the raters' scale.

    Called with the fields of ``OfflineInputs``: a ``RewardModel``, and what ``config.loss`` learns from, see
    ``rlhf.config.offline_losses.REWARD_LOSSES``: a ``PreferenceDataset``, ``ComparisonDataset``, ``RankingDataset``, ``RatingDataset``,
    ``KTODataset``, or its streaming form.

    Raises:
        DataError: A row is not of the kind that the loss learns from, or lacks a column; of a stream when it comes.
    """

    name = "reward"
    config_class = RewardModelConfig
    model_kind = "reward_model"

    @override
    def prepare(self) -> None:
        """The rows are checked, and the model gets what its loss learns in addition to the scores."""
        config = self.config
        for data in (self.train_data, self.eval_data):
            if isinstance(data, MapData):
                for place in range(len(data)):
                    check_row(data[place], config)
        super().prepare()
        model = self.model
        kind, start = config.judgment_formula.learns, config.judgment_formula.start
        if kind is not None and (model.learned is None or model.learned.kind != kind):
            dtype = torch.promote_types(model.mean.dtype, torch.float32)
            model.learned = LearnedScalars(kind, list(start), num_scores=model.num_scores).to(model.device, dtype)

    @override
    def train(self) -> TrainResult:
        """Train, then set the scale of the scores."""
        result = super().train()
        if self.config.normalize:
            self._normalize()
        elif self.model.learned is not None and self.model.learned.kind == "offset":
            with torch.no_grad():
                offsets = torch.cat([self.model.learned.value(k) for k in range(self.model.num_scores)])
                self.model.set_normalization(-offsets.to(self.model.mean), torch.ones_like(self.model.std))
        return result

    @override
    def modules(self) -> Sequence[TrainedModule]:
        """The members, each with its own gradient norm, each followed by what its loss learns."""
        members = list(self.model.members)
        names = ["reward"] if len(members) == 1 else [f"member-{number}" for number in range(len(members))]
        rate = self.config.learning_rate
        modules = [TrainedModule(name, member, rate) for name, member in zip(names, members, strict=True)]
        if self.config.judgment_formula.learns is not None:
            assert self.model.learned is not None
            heads = self.model.num_scores // len(members)
            for number, name in enumerate(names):
                part = self.model.learned.part(slice(number * heads, (number + 1) * heads))
                modules.append(TrainedModule(f"{name}-{part.kind}", part, self.config.scalar_learning_rate))
        return modules

    @override
    def pack(self, groups: Sequence[Group]) -> PackedBatch:
        """Completions, with what was said of them."""
        for group in groups:
            check_row(group, self.config)
        columns = judgment_columns(groups, self.config)
        return pack(groups).with_columns(**columns)

    @override
    def loss(self, batch: PackedBatch, totals: Totals, metrics: Metrics) -> Tensor:
        """Mean over rows, summed over members: each learns as it would alone."""
        config = self.config
        batch = batch.to(self.model.device)
        scores = self.model.raw_scores(batch)
        losses = self._losses(scores, batch, training=True)
        metrics.mean("loss/train", losses)
        self._watch(scores, batch, metrics, "reward")
        if config.center_coef:
            losses = losses + config.center_coef * centering_penalty(*map(Tensor.flatten, _sides(scores)))
        return losses.sum() / totals.num_groups

    @override
    def measure(self, batch: PackedBatch, metrics: Metrics) -> None:
        """Loss of the members, and what ``loss`` watches: accuracy is that of their mean (a tie counts half)."""
        batch = batch.to(self.model.device)
        scores = self.model.raw_scores(batch)
        metrics.mean("eval/loss", self._losses(scores, batch, training=False))
        self._watch(scores, batch, metrics, "eval")

    @override
    def headline(self, metrics: Mapping[str, float]) -> str:
        """Loss and accuracy."""
        return describe(metrics, {"loss/train": "loss", "reward/accuracy": "accuracy", "reward/error": "error"})

    def _losses(self, scores: Tensor, batch: PackedBatch, *, training: bool) -> Tensor:
        """[K * G] one for each score and row; outside training without smoothing and given margins of Bradley-Terry."""
        columns, formula = batch.columns, self.config.judgment_formula
        smoothing = self._label_smoothing(batch) if training else 0.0
        function = load_formula(formula.function)
        match formula.rows:
            case "preference":
                return self._pair_losses(scores, batch, smoothing, training=training)
            case "ranking":
                ranks = columns["rank"].to(scores.dtype)
                return torch.cat([function(s, ranks, batch.group, batch.num_groups) for s in scores])
            case "rating":
                ratings = columns["rating"].to(scores.dtype)
                return torch.cat([function(s + self._learned(k), ratings) for k, s in enumerate(scores)])
            case "kto":
                labels = columns["label"].to(scores.dtype)
                return torch.cat(
                    [function(s + self._learned(k), labels, label_smoothing=smoothing) for k, s in enumerate(scores)]
                )
        return torch.cat(
            [
                loss_under_label_noise(self._comparison_loss(k, batch), *sides, label_smoothing=smoothing)
                for k, sides in enumerate(zip(*_sides(scores), strict=True))
            ]
        )

    def _label_smoothing(self, batch: PackedBatch) -> float | Tensor:
        """How likely a label is to be wrong: one number, or of rows that say it [P] for pairs and [S] for single completions."""
        if not self.config.use_label_probability:
            return self.config.label_smoothing
        probability = batch.columns["label_probability"]
        if self.config.judgment_formula.rows == "preference":
            probability = probability[0::2]
        return label_noise(probability, label_smoothing=self.config.label_smoothing)

    def _pair_losses(self, scores: Tensor, batch: PackedBatch, smoothing: float | Tensor, *, training: bool) -> Tensor:
        """[K * P] of pairs that have a winner."""
        chosen, rejected = (side.flatten() for side in _sides(scores))
        config, formula = self.config, self.config.judgment_formula
        asked: Any = formula.default_margin if config.margin is None else config.margin
        given: dict[str, Any] = {"label_smoothing": smoothing}
        if isinstance(smoothing, Tensor):
            given["label_smoothing"] = smoothing.repeat(len(scores))
        if asked is not None and (training or formula.keeps_margin):
            column = batch.columns["margin"][0::2].repeat(len(scores)) if asked == "column" else None
            given["margin"] = torch.full_like(chosen, asked) if column is None else column
        return load_formula(formula.function)(chosen, rejected, **given)

    def _comparison_loss(self, score: int, batch: PackedBatch) -> Callable[[Tensor, Tensor], Tensor]:
        """[P] of the two sides of one of the scores: pairs, some of them tied."""
        grades = batch.columns["grade"][0::2]
        function = load_formula(self.config.judgment_formula.function)
        given = {**asked_of(function, {"grades": grades, "tied": grades == 0}), **self._learned_arguments(score)}
        return lambda chosen, rejected: function(chosen, rejected, **given)

    def _learned_arguments(self, score: int) -> dict[str, Tensor]:
        """What the loss learns in addition to the scores, by the keyword that it has there."""
        learns = self.config.judgment_formula.learns
        return {} if learns is None else {learns: self._learned(score)}

    def _learned(self, score: int) -> Tensor:
        assert self.model.learned is not None
        return self.model.learned.value(score)

    @torch.no_grad()
    def _watch(self, scores: Tensor, batch: PackedBatch, metrics: Metrics, prefix: str) -> None:
        """What people look at: how often the mean of the members agrees with what was said."""
        mean = scores.mean(0)
        match self.config.judgment_formula.rows:
            case "ranking":
                better, worse = ranked_pairs(batch.columns["rank"], batch.group)
                metrics.mean(f"{prefix}/accuracy", share_above(mean[better], mean[worse]))
                return
            case "rating":
                offset = torch.stack([self._learned(k) for k in range(len(scores))]).mean()
                metrics.mean(f"{prefix}/error", (mean + offset - batch.columns["rating"]).abs())
                return
            case "kto":
                offset = torch.stack([self._learned(k) for k in range(len(scores))]).mean()
                right = share_above(mean + offset, torch.zeros_like(mean))
                labels = batch.columns["label"].to(right.dtype)
                metrics.mean(f"{prefix}/accuracy", labels * right + (1 - labels) * (1 - right))
                return
        chosen, rejected = _sides(scores)
        won = (
            batch.columns["grade"][0::2] > 0
            if "grade" in batch.columns
            else torch.ones_like(chosen[0], dtype=torch.bool)
        )
        metrics.mean(f"{prefix}/accuracy", share_above(chosen.mean(0), rejected.mean(0))[won])
        metrics.mean(f"{prefix}/margin", (chosen - rejected)[:, won])
        if self.config.judgment_formula.outcome_logprobs:
            metrics.mean(f"{prefix}/outcome_accuracy", self._outcome_is_likeliest(chosen, rejected, won))

    def _outcome_is_likeliest(self, chosen: Tensor, rejected: Tensor, won: Tensor) -> Tensor:
        """[P] whether, of win, tie and loss, the members' mean gives what was said the highest probability."""
        probabilities = torch.zeros(len(won), 3, dtype=chosen.dtype, device=chosen.device)
        function = load_formula(self.config.judgment_formula.outcome_logprobs)
        for k in range(len(chosen)):
            probabilities += function(chosen[k], rejected[k], **self._learned_arguments(k)).exp()
        return (probabilities.argmax(1) == (~won).long()).double()

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


def _sides(scores: Tensor) -> tuple[Tensor, Tensor]:
    """[K, P] scores of the chosen and of the rejected completions, from [K, 2P]."""
    return scores[:, 0::2], scores[:, 1::2]
