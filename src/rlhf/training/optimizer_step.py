"""One optimizer step: its micro-batches, the terms of the weights alone, and what is left out because it is not finite."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rlhf.activity import doing
from rlhf.config.training import Autocast
from rlhf.data.pack import PackedBatch
from rlhf.distributed.ranks import Ranks
from rlhf.distributed.sharding import is_shard
from rlhf.distributed.work_shares import share_of
from rlhf.training.algorithm import Algorithm, Penalty, Totals
from rlhf.training.metrics import Metrics
from rlhf.training.monitoring.alarms import Watch, rows_not_finite
from rlhf.training.optim import Optimizer, WeightAverage, mixed_precision
from rlhf.training.randomness import random_state_kept


class OptimizerStep:
    """Takes the steps of a loop.

    Args:
        algorithm: Whose losses.
        optimizer: Of its modules.
        penalties: Terms of the loss that are functions of the weights alone.
        average: Moving average of the weights; None for none.
        watch: Counts the steps that are left out.
        autocast: Type that the forward passes compute in.
        ranks: Who takes the micro-batches of a step between them.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        optimizer: Optimizer,
        *,
        penalties: Sequence[Penalty],
        average: WeightAverage | None,
        watch: Watch,
        autocast: Autocast,
        ranks: Ranks,
    ) -> None:
        self.algorithm = algorithm
        self.modules = algorithm.modules()
        self.optimizer = optimizer
        self.penalties = penalties
        self.average = average
        self.watch = watch
        self.autocast = autocast
        self.ranks = ranks

    def take(self, batches: Sequence[PackedBatch], step: int) -> dict[str, float]:
        """One optimizer step from its micro-batches.

        Args:
            batches: All micro-batches of the step, on every rank.
            step: Steps taken before.

        Returns:
            Metrics.

        Raises:
            TrainingError: Too many steps were not finite.
        """
        metrics = Metrics()
        for trained in self.modules:
            trained.module.train()
        self._before_step(batches, metrics if self.ranks.is_main else Metrics())
        wrong = self.add_gradients(batches, metrics)
        taken: dict[str, float] = {}
        if wrong is None:
            with doing("optimizer"):
                taken = self.algorithm.take_step(self.optimizer, step, batches)
            if not math.isfinite(taken["grad_norm"]) and not self.optimizer.searches_scale:
                wrong = ("the norm of the gradient", taken["grad_norm"])
        if wrong is not None:
            self.optimizer.clear()
            with random_state_kept():
                names = rows_not_finite(batches, self._is_finite)
            self.watch.leave_out(step + 1, *wrong, names)
        elif self.average is not None:
            self.average.update()
        return metrics.over(self.ranks).result() | taken | {"tokens": float(sum(b.num_tokens for b in batches))}

    def add_gradients(self, batches: Sequence[PackedBatch], metrics: Metrics) -> tuple[str, float] | None:
        """Those of a step, penalties included, of all ranks; what is not finite on any rank, where all of them stop."""
        wrong = self._add_shares(batches, Totals.of(batches), metrics)
        if wrong is None:
            self._add_penalties(metrics)
            self._sum_whole_gradients()
        return wrong

    def _add_shares(self, batches: Sequence[PackedBatch], totals: Totals, metrics: Metrics) -> tuple[str, float] | None:
        """Forward and backward of this rank's share."""
        costs = [batch.num_tokens for batch in batches]
        for index, counts in share_of(costs, rank=self.ranks.rank, size=self.ranks.size):
            batch = batches[index]
            loss = self._loss(batch, totals, metrics if counts else Metrics())
            if not all(self.ranks.gather(bool(torch.isfinite(loss)))):
                return "the loss", sum(self.ranks.gather(float(loss.detach())))
            with doing("backward", tokens=batch.num_tokens):
                self.optimizer.backward(loss if counts else loss * 0.0)
        return None

    def _sum_whole_gradients(self) -> None:
        """Of parameters that every rank has whole, as those of shards were summed on the way back."""
        if self.ranks.size > 1 and self.optimizer.adds_whole_gradients:
            gradients = (p.grad for p in self.optimizer.parameters if not is_shard(p))
            self.ranks.sum_in_place([gradient for gradient in gradients if gradient is not None])

    def _before_step(self, batches: Sequence[PackedBatch], metrics: Metrics) -> None:
        with doing("scoring"), torch.no_grad(), mixed_precision(self.autocast, self.optimizer.device):
            self.algorithm.before_step(batches, metrics)

    def _add_penalties(self, metrics: Metrics) -> None:
        """Terms of the weights alone, once a step, however many micro-batches it has."""
        for penalty in self.penalties:
            loss = penalty()
            metrics.total(f"loss/{penalty.name}", loss)
            if loss.requires_grad:  # a rank may have nothing to count
                self.optimizer.backward(loss)

    def _loss(self, batch: PackedBatch, totals: Totals, metrics: Metrics) -> Tensor:
        with doing("forward", tokens=batch.num_tokens), mixed_precision(self.autocast, self.optimizer.device):
            return self.algorithm.loss(batch, totals, metrics)

    def _is_finite(self, row: PackedBatch) -> bool:
        """Whether a row has a finite loss and a finite gradient by itself, on all ranks alike."""
        self._before_step([row], Metrics())
        loss = self._loss(row, Totals.of([row]), Metrics())
        if not torch.isfinite(loss):
            return False
        return all(self.ranks.gather(self.optimizer.has_finite_gradient(loss)))
