"""Task vectors of which only a part stays: the largest magnitudes, or what is drawn."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlhf.merging.arithmetic import blocks
from rlhf.merging.tensor_parts import TensorParts

SMALLEST = 1e-7
"""Norms below it are not divided by."""


@dataclass
class Cut:
    """Zeroes small magnitudes of a flat task vector that comes in parts, in order."""

    below: float
    """Magnitudes up to this one go."""
    kept: float
    """The share of elements that stays; NaN where it is not known beforehand."""
    equal: int = 0
    """So many of the first that have the magnitude ``below`` stay all the same."""

    def __call__(self, part: Tensor) -> Tensor:
        """A part with what goes zeroed."""
        if self.below < 0:
            return part
        result = torch.nn.functional.hardshrink(part, self.below)
        if self.equal:
            first = np.flatnonzero(part.abs().numpy() == self.below)[: self.equal]
            result[torch.from_numpy(first)] = part[torch.from_numpy(first)]
            self.equal -= len(first)
        return result

    def share_of(self, result: Tensor) -> float:
        """Of a part that was cut, the share that stayed."""
        if not math.isnan(self.kept):
            return self.kept
        return float(np.count_nonzero(result.abs().numpy() > self.below)) / max(1, result.numel())


NOTHING_GOES = Cut(-1.0, 1.0)


def largest(parts: Iterable[Tensor], count: int, density: float, dtype: torch.dtype) -> Cut:
    """Keeps the ``density`` largest magnitudes; of equal ones the first stay.

    At least one element stays for a density above 0. Source: TIES-Merging, Yadav et al. 2023, section 3, step 1, arXiv:2306.01708.

    Args:
        parts: Of a flat task vector.
        count: Elements of all.
        density: Share that stays.
        dtype: Of the parts.
    """
    kept = max(1, int(density * count))
    if density >= 1 or not count or (density > 0 and kept == count):
        return NOTHING_GOES
    if density <= 0:
        return Cut(math.inf, 0.0)
    magnitudes = torch.empty(count, dtype=dtype)
    start = 0
    for part in parts:
        torch.abs(part, out=magnitudes[start : start + part.numel()])
        start += part.numel()
    values = magnitudes.numpy()
    values.partition(count - kept)
    threshold = values[count - kept]
    above = np.count_nonzero(values[count - kept :] > threshold)
    return Cut(float(threshold), kept / count, equal=kept - int(above))


def at_least(threshold: float, dtype: torch.dtype) -> Cut:
    """Keeps magnitudes from a threshold on."""
    if threshold <= 0:
        return NOTHING_GOES
    lower = torch.nextafter(torch.tensor(threshold, dtype=dtype), torch.tensor(0.0, dtype=dtype))
    return Cut(float(lower), math.nan)


def cuts(parts: TensorParts, keywords: Mapping[str, Any]) -> list[Cut]:
    """One for each model: by the thresholds of whole models where there are some, else by the density in this tensor."""
    dtype = parts.dtype
    if keywords.get("thresholds") is not None:
        return [at_least(threshold, dtype) for threshold in keywords["thresholds"]]
    return [
        largest(parts.differences(model), parts.count, density, dtype)
        for model, density in enumerate(keywords["density"])
    ]


@dataclass
class Drop:
    """Zeroes what was drawn of a flat task vector that comes in parts, in order, and makes up for the loss."""

    kept: float
    """The share of elements that stays."""
    masks: Iterator[Tensor] | None = None
    """uint8, of each block; None: everything stays."""
    factor: float = 1.0
    divisor: float = 1.0

    def __call__(self, delta: Tensor) -> Tensor:
        """A part, overwritten."""
        if self.masks is None:
            return delta
        for part in blocks(delta.numel()):
            delta[part] *= next(self.masks).to(delta.dtype)
        if self.factor != 1:
            delta *= self.factor
        if self.divisor != 1:
            delta /= self.divisor
        return delta


def drawn(parts: Iterable[Tensor], density: float, seed: int, rescale: str) -> Drop:
    """Keeps each element with probability ``density``.

        d~ = m * d * s,   m ~ Bernoulli(density),   s = 1 / density   or   ||d||_1 / ||m * d||_1   or   1

    Source: DARE, Yu et al. 2023, eq. 2, arXiv:2311.03099 (``density``); mergekit matches the L1 norm (``l1``).

    Args:
        parts: Of a flat task vector; overwritten.
        density: Probability to stay.
        seed: Of the mask.
        rescale: ``l1``, ``density`` or ``none``.
    """
    if density >= 1:
        return Drop(1.0)
    generator = torch.Generator().manual_seed(seed)
    before = after = kept = 0.0
    count, masks = 0, []
    for part in parts:
        stays = torch.rand(part.numel(), generator=generator).lt_(density)
        count, kept = count + part.numel(), kept + float(stays.sum())
        masks.append(stays.to(torch.uint8))
        if rescale == "l1":
            before += float(part.abs_().sum())
            after += float(part.mul_(stays).sum())
    drop = Drop(kept / max(1, count), iter(masks))
    if rescale == "density" and density > 0:
        drop.divisor = density
    if rescale == "l1" and before >= SMALLEST and after >= SMALLEST:
        drop.factor = before / after
    return drop


def drops(parts: TensorParts, keywords: Mapping[str, Any]) -> list[Drop]:
    """One for each model."""
    rescale = keywords["rescale_by"] if keywords["rescale"] else "none"
    each = enumerate(zip(keywords["density"], keywords["seeds"], strict=True))
    return [drawn(parts.differences(model), density, seed, rescale) for model, (density, seed) in each]
