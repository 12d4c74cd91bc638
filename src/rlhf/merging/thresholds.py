"""The k-th largest magnitude over all tensors of a model, found in passes that hold one tensor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from rlhf.errors import ConfigError

HALF = 16
BINS = 1 << HALF


def magnitude_thresholds(deltas: Iterable[list[Tensor]], densities: Sequence[float]) -> list[float]:
    """For each model the magnitude that its ``density`` largest elements have at least.

    Positive floats are ordered as their bits are. The first pass counts the upper 16 bits, the second the lower 16 of those in the bin
    that the k-th is in: an exact selection, whatever the size. Equal magnitudes all stay.

    Args:
        deltas: Gives one tensor of each model at a time; iterated twice.
        densities: Share that stays, of each model: one number for all tensors.
    """
    if any(not isinstance(density, float | int) for density in densities):
        raise ConfigError(
            "parameters.density: `trim_over: model` takes one density for all tensors of a model, no gradient."
        )
    counts = [torch.zeros(BINS, dtype=torch.int64) for _ in densities]
    totals = [0 for _ in densities]
    for tensors in deltas:
        for place, tensor in enumerate(tensors):
            counts[place] += torch.bincount(_bits(tensor) >> HALF, minlength=BINS)
            totals[place] += tensor.numel()
    wanted = [max(1, int(density * total)) for density, total in zip(densities, totals, strict=True)]
    upper = [_bin_of(count, want) for count, want in zip(counts, wanted, strict=True)]
    lower = [torch.zeros(BINS, dtype=torch.int64) for _ in densities]
    for tensors in deltas:
        for place, tensor in enumerate(tensors):
            bits = _bits(tensor)
            inside = bits[(bits >> HALF) == upper[place][0]]
            lower[place] += torch.bincount(inside & (BINS - 1), minlength=BINS)
    thresholds = []
    for place, density in enumerate(densities):
        at, above = upper[place]
        low, _ = _bin_of(lower[place], wanted[place] - above)
        value = float(torch.tensor([(at << HALF) + low], dtype=torch.int32).view(torch.float32)[0])
        thresholds.append(float("inf") if density <= 0 else 0.0 if density >= 1 else value)
    return thresholds


def _bits(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).float().abs().view(torch.int32)


def _bin_of(counts: Tensor, wanted: int) -> tuple[int, int]:
    """The bin that holds the ``wanted``-th largest, and how many are in higher ones."""
    from_top = counts.flip(0).cumsum(0)
    place = int(torch.searchsorted(from_top, wanted))
    above = int(from_top[place - 1]) if place else 0
    return BINS - 1 - place, above
