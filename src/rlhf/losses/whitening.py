"""Whitening of flat tensors, with totals that micro-batches and ranks can add up."""

from __future__ import annotations

import torch
from torch import Tensor

from rlhf.losses.shapes import check_same_shape


def moments(values: Tensor, *, weights: Tensor | None = None) -> Tensor:
    """Sum, sum of squares and count: everything a mean and a variance need, in a form that adds.

    The totals of two parts of a batch, or of two ranks, are the sum of their moments (one ``all_reduce`` of three
    numbers). float64, so that subtracting squares is safe as long as the mean is below some 10^6 standard deviations.

    Args:
        values: [M].
        weights: [M] at least 0, how often each value counts; a mask is weights of 0 and 1. None counts each once. What
            a value of weight 0 holds does not matter, NaN included.

    Returns:
        float64 [3] totals, without gradient.
    """
    numbers = values.detach().double()
    if weights is None:
        weights = torch.ones_like(numbers)
    check_same_shape(values, weights)
    weights = weights.double()
    numbers = numbers.masked_fill(weights == 0, 0.0)
    return torch.stack([(weights * numbers).sum(), (weights * numbers.square()).sum(), weights.sum()])


def whiten(values: Tensor, totals: Tensor | None = None, *, shift_mean: bool = True, eps: float = 1e-8) -> Tensor:
    """Values scaled to standard deviation 1, and by default shifted to mean 0.

        (values - mean) / sqrt(variance + eps)  [+ mean, with shift_mean=False]

    The variance is the unbiased one (divided by count - 1). Values that are all equal, or a single one, become 0 (or
    stay as they are with ``shift_mean=False``): they hold nothing to tell apart.

    Sources: advantage whitening (mean and scale) and reward whitening (``shift_mean=False``): Huang et al. 2024, "The
    N+ Implementation Details of RLHF with PPO", arXiv:2403.17031.

    Args:
        values: [M].
        totals: float64 [3], ``moments`` of the population: of these values alone where None, or of the whole optimizer
            step, added over micro-batches and ranks, so that the result does not depend on the split.
        shift_mean: Whether the mean is taken away. Rewards keep theirs: its sign says whether an episode was good at
            all.
        eps: Added to the variance.

    Returns:
        [M] in the dtype of ``values``.
    """
    if totals is None:
        totals = moments(values)
    total, total_of_squares, count = totals.to(values.device).unbind()
    mean = total / count
    # rounding can push the variance of equal values below 0; the floor of 1 keeps a single value from dividing by 0
    variance = ((total_of_squares - total * mean) / (count - 1).clamp(min=1)).clamp(min=0)
    whitened = (values.double() - mean) * torch.rsqrt(variance + eps)
    return (whitened if shift_mean else whitened + mean).to(values.dtype)
