"""Means over micro-batches that come out the same however a step was split."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rlhf.distributed.ranks import Ranks


class Metrics:
    """Sums and counts by name; ``result`` divides. Tensors stay on their device until then: nothing waits for a GPU."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, Tensor] = {}
        self.maxima: dict[str, Tensor] = {}
        self.minima: dict[str, Tensor] = {}

    def mean(self, name: str, values: Tensor, weight: float | Tensor = 1.0) -> None:
        """Add values of any shape; the metric is their mean over the whole step, each with this weight."""
        values = values.detach().double()
        weights = torch.as_tensor(weight, dtype=torch.float64, device=values.device).expand_as(values)
        self._add(name, (values * weights).sum(), weights.sum())

    def largest(self, name: str, values: Tensor) -> None:
        """The largest of values of any shape, over the whole step."""
        if values.numel():
            value = values.detach().double().max()
            self.maxima[name] = torch.maximum(self.maxima[name], value) if name in self.maxima else value

    def smallest(self, name: str, values: Tensor) -> None:
        """The smallest of values of any shape, over the whole step."""
        if values.numel():
            value = values.detach().double().min()
            self.minima[name] = torch.minimum(self.minima[name], value) if name in self.minima else value

    def total(self, name: str, value: Tensor) -> None:
        """Add a part of a number that is a sum over micro-batches, such as the loss."""
        self._add(name, value.detach().double(), None)

    def _add(self, name: str, value: Tensor, count: Tensor | None) -> None:
        self.sums[name] = self.sums[name] + value if name in self.sums else value
        if count is not None:
            self.counts[name] = self.counts[name] + count if name in self.counts else count

    def merge(self, other: Metrics) -> None:
        """Add what another has gathered."""
        for name, value in other.sums.items():
            self._add(name, value, other.counts.get(name))
        for name, value in other.maxima.items():
            self.largest(name, value)
        for name, value in other.minima.items():
            self.smallest(name, value)

    def over(self, ranks: Ranks) -> Metrics:
        """What all ranks have gathered, in the same order of adding on each of them."""
        if ranks.size == 1:
            return self
        gathered = Metrics()
        for other in ranks.gather(self):
            gathered.merge(other)
        return gathered

    def result(self) -> dict[str, float]:
        """Name to number; a mean over nothing is left out, since it was not measured."""
        means = {name: float(value) for name, value in {**self.maxima, **self.minima}.items()}
        for name, value in self.sums.items():
            count = self.counts.get(name)
            if count is None:
                means[name] = float(value)
            elif float(count) > 0:
                means[name] = float(value) / float(count)
        return means


def share_above(first: Tensor, second: Tensor) -> Tensor:
    """1 where the first number is larger, 1/2 where both are equal, else 0; the mean is an accuracy."""
    return torch.heaviside(first - second, first.new_tensor(0.5))


def describe(metrics: Mapping[str, float], names: Mapping[str, str]) -> str:
    """A short line for people: ``loss 1.23, accuracy 0.87`` for the metrics that are there."""
    return ", ".join(f"{label} {metrics[name]:.3g}" for name, label in names.items() if name in metrics)
