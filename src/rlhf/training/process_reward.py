"""Process reward modeling: scores of the steps of a solution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from rlhf.config.reward_model import ProcessRewardModelConfig
from rlhf.data.message_text import counted
from rlhf.data.pack import Branch, Group, PackedBatch
from rlhf.data.reasoning.verify import first_wrong_step
from rlhf.errors import ConfigError, DataError
from rlhf.losses import (
    aggregate_steps,
    nll_loss,
    pairwise_outcome_loss,
    split_pairs,
    step_loss,
    steps_until_first_error,
)
from rlhf.models.process_reward import ProcessRewardModel, pack_steps, step_rows
from rlhf.training.algorithm import Totals
from rlhf.training.metrics import Metrics, describe, share_above
from rlhf.training.offline import OfflineTrainer, RowsOfStep
from rlhf.training.optim import TrainedModule
from rlhf.training.row_order import MapData

LABELS_OF_SIDES = ("chosen_labels", "rejected_labels")
"""Columns of a pair that hold a label for each step of its completions."""


class ProcessRewardModelTrainer(OfflineTrainer[ProcessRewardModel, ProcessRewardModelConfig]):
    """Learns which steps are right: from a label for each, or from pairs of whole solutions of which one is better.

    A step's loss is divided by the steps of the whole optimizer step: neither a solution's length nor the cut into
    micro-batches gives it another weight.

    Called with the fields of ``OfflineInputs``: a ``ProcessRewardModel``, and a ``StepwiseDataset`` for the loss ``steps``, or a
    ``PreferenceDataset`` for ``pairs``, whose completions are cut into steps at the model's separator. With ``step_coef`` their
    columns ``chosen_labels`` and ``rejected_labels`` are learned from, too.
    """

    name = "prm"
    config_class = ProcessRewardModelConfig
    model_kind = "process_reward_model"

    @override
    def prepare(self) -> None:
        """A model with a language head where its loss is wanted."""
        if self.config.lm_coef and self.model.language_head is None:
            raise ConfigError(
                "lm_coef needs the language head; make the model with from_policy(keep_language_head=True)."
            )
        super().prepare()
        self._steps_in_step = 0
        self._right_tokens_in_step = 0

    @override
    def modules(self) -> Sequence[TrainedModule]:
        """Backbone, layers and head."""
        return [TrainedModule("prm", self.model.member, self.config.learning_rate)]

    @override
    def collect(self, phase: int, metrics: Metrics) -> RowsOfStep:
        """The next rows; before the first, a look at whether pairs have steps at all."""
        if phase == 0 and self.config.loss == "pairs" and isinstance(self.train_data, MapData):
            self._look_for_steps(self.train_data)
            self._look_for_labels(self.train_data)
        return super().collect(phase, metrics)

    def _look_for_steps(self, data: MapData) -> None:
        """Say so where every completion is one step: then this is a reward model with a detour. The first that has two ends it."""
        cut = (ends for row in range(len(data)) for ends in self._cut(data[row]).columns["step_ends"])
        if self.log is not None and all(len(ends) == 1 for ends in cut):
            self.log.alarm(
                f"prm: no completion of the {counted(len(data), 'pair')} has more than one step, as none has the separator "
                f"{self.model.step_separator!r} inside: nothing is learned about steps. Give the step_separator of this data, or "
                "train a reward model.",
                step=1, guard="one_step", metric="steps of a completion", value=1, limit=1, action="warn",
            )  # fmt: skip

    def _look_for_labels(self, data: MapData) -> None:
        """Refuse rows without any label where labels have a weight."""
        if self.config.step_coef and not any(
            name in data[row].columns for row in range(len(data)) for name in LABELS_OF_SIDES
        ):
            raise DataError(
                f"step_coef weighs labels of steps, and none of the {counted(len(data), 'pair')} has any; give the columns "
                f"{' and '.join(LABELS_OF_SIDES)}, a label for each step, or leave step_coef out."
            )

    @override
    def pack(self, groups: Sequence[Group]) -> PackedBatch:
        """Solutions with their steps marked."""
        return pack_steps([self._cut(group) for group in groups] if self.config.loss == "pairs" else groups)

    @override
    def before_step(self, batches: Sequence[PackedBatch], metrics: Metrics) -> None:
        """Count what the means of this step are over."""
        self._steps_in_step = sum(int(self._counted(*_labels(batch)).sum()) for batch in batches)
        self._right_tokens_in_step = sum(int(batch.token_columns["in_right_step"].sum()) for batch in batches)

    @override
    def loss(self, batch: PackedBatch, totals: Totals, metrics: Metrics) -> Tensor:
        """Mean over the step's steps, or its pairs; next to it, where asked, that of their steps and the language model's."""
        config = self.config
        batch = batch.to(self.model.device)
        logprobs: Tensor | None = None
        if config.lm_coef:
            scores, logprobs = self.model.step_scores_and_logprobs(batch)
        else:
            scores = self.model.step_scores(batch)
        if config.loss == "pairs":
            losses = self._pair_losses(batch, scores, metrics, "prm")
            loss = losses.sum() / totals.num_groups
            if config.step_coef:
                of_steps = self._step_losses(batch, scores, metrics, "prm/step_accuracy")
                metrics.mean("loss/steps", of_steps)
                loss = loss + config.step_coef * of_steps.sum() / max(1, self._steps_in_step)
        else:
            losses = self._step_losses(batch, scores, metrics, "prm/accuracy")
            loss = losses.sum() / max(1, self._steps_in_step)
        metrics.mean("loss/train", losses)
        if logprobs is not None:
            right = batch.token_columns["in_right_step"]
            nll = nll_loss(logprobs[right])
            metrics.mean("loss/lm", nll)
            loss = loss + config.lm_coef * nll.sum() / max(1, self._right_tokens_in_step)
        return loss

    @override
    def measure(self, batch: PackedBatch, metrics: Metrics) -> None:
        """Loss and accuracy; of labeled steps also whether the first wrong one is found."""
        batch = batch.to(self.model.device)
        scores = self.model.step_scores(batch)
        if self.config.loss == "pairs":
            metrics.mean("eval/loss", self._pair_losses(batch, scores, metrics, "eval"))
            if self.config.step_coef:
                metrics.mean("eval/step_loss", self._step_losses(batch, scores, metrics, "eval/step_accuracy"))
            return
        metrics.mean("eval/loss", self._step_losses(batch, scores, metrics, "eval/accuracy"))
        labels, step_seq, _ = _labels(batch)
        for sequence in range(batch.num_sequences):
            own = step_seq == sequence
            true = first_wrong_step((labels[own] >= 0.5).tolist())
            predicted = first_wrong_step((scores[own] >= 0).tolist())
            metrics.mean("eval/sound" if true is None else "eval/first_wrong", torch.tensor(float(predicted == true)))

    @override
    def evaluate(self) -> dict[str, float]:
        """What ``measure`` adds up, and the harmonic mean of finding errors and leaving sound solutions alone."""
        metrics = super().evaluate()
        if "eval/first_wrong" in metrics and "eval/sound" in metrics:
            first, sound = metrics["eval/first_wrong"], metrics["eval/sound"]
            metrics["eval/f1"] = 2 * first * sound / (first + sound) if first + sound else 0.0
        return metrics

    @override
    def headline(self, metrics: Mapping[str, float]) -> str:
        """Loss and accuracy."""
        return describe(metrics, {"loss/train": "loss", "prm/accuracy": "accuracy"})

    def _step_losses(self, batch: PackedBatch, scores: Tensor, metrics: Metrics, accuracy: str) -> Tensor:
        """[K'] losses of the steps that count, and what people watch; their accuracy under that name."""
        labels, step_seq, labeled = _labels(batch)
        counted = self._counted(labels, step_seq, labeled)
        scores, labels = scores[counted], labels[counted]
        right = labels >= 0.5
        metrics.mean(accuracy, ((scores >= 0) == right).double())
        metrics.mean(f"{accuracy.partition('/')[0]}/wrong_found", (scores[~right] < 0).double())
        return step_loss(scores, labels, wrong_weight=self.config.wrong_weight)

    def _counted(self, labels: Tensor, step_seq: Tensor, labeled: Tensor) -> Tensor:
        """bool [K] steps whose labels are learned from."""
        if self.config.until_first_error:
            return labeled & steps_until_first_error(labels, step_seq)
        return labeled

    def _pair_losses(self, batch: PackedBatch, scores: Tensor, metrics: Metrics, prefix: str) -> Tensor:
        """[P] losses, and what people watch."""
        _, step_seq = step_rows(batch)
        count, how = batch.num_sequences, self.config.aggregate
        chosen, rejected = split_pairs(aggregate_steps(scores.detach(), step_seq, count, how=how))
        metrics.mean(f"{prefix}/accuracy", share_above(chosen, rejected))
        metrics.mean(f"{prefix}/margin", chosen - rejected)
        return pairwise_outcome_loss(scores, step_seq, count, how=how)

    def _cut(self, group: Group) -> Group:
        """A pair whose completions are cut into steps."""
        if len(group.branches) != 2 or any(branch.scored is not None for branch in group.branches):
            raise DataError(
                f"Row {group.columns.get('id')}: the loss `pairs` cuts two completions of one turn each into steps; this is "
                "something else."
            )
        cut = [self.model.cutter(branch.tokens) for branch in group.branches]
        columns = {**group.columns, "step_ends": [solution.ends for solution in cut]}
        if self.config.step_coef:
            columns["labels_of"] = [
                _labels_of_side(group, name, len(solution.ends))
                for name, solution in zip(LABELS_OF_SIDES, cut, strict=True)
            ]
        return replace(group, branches=[Branch(solution.tokens) for solution in cut], columns=columns)


def _labels(batch: PackedBatch) -> tuple[Tensor, Tensor, Tensor]:
    """[K] labels of the steps, [K] the solution of each, and bool [K] whether it has a label."""
    columns = batch.token_columns
    ends = columns["step_end"]
    return columns["step_label"][ends], batch.score_seq[ends], columns["step_labeled"][ends]


def _labels_of_side(group: Group, name: str, num_steps: int) -> list[float] | None:
    """One for each step of a completion; None where the row has none. Of a completion that was cut to length, those of its first steps.

    Raises:
        DataError: Naming the row: they are no labels, or not as many as the completion has steps.
    """
    labels: Any = group.columns.get(name)
    if labels is None:
        return None
    if not isinstance(labels, list) or not all(isinstance(one, bool | int | float) and 0 <= one <= 1 for one in labels):
        raise DataError(
            f"Row {group.columns.get('id')}: {name} should be a list with true, false or a probability for each step; got {labels!r}."
        )
    if group.columns.get("truncated"):
        labels = labels[:num_steps]
    if len(labels) != num_steps:
        raise DataError(
            f"Row {group.columns.get('id')}: {name} has {counted(len(labels), 'label')}, and the completion has {counted(num_steps, 'step')}; "
            "give one for each, or check step_separator."
        )
    return [float(one) for one in labels]
