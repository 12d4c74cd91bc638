"""What several methods share: task vectors, trimming, dropping, the vote on signs. All in place where it can be, block by block.

A task vector is what a model has beyond the base: d_i = W_i - W_0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

BLOCK = 1 << 18
"""Elements that are worked on at a time: a block of each of a few tensors fits a processor's cache."""
SMALLEST = 1e-7
"""Norms below it are not divided by."""


def blocks(count: int) -> Iterator[slice]:
    """Consecutive parts of a flat tensor."""
    return (slice(start, min(start + BLOCK, count)) for start in range(0, count, BLOCK))


def flat(tensor: Tensor) -> Tensor:
    """The same elements in one dimension; no copy of a contiguous tensor."""
    return tensor.reshape(-1)


def task_vectors(tensors: Sequence[Tensor], base: Tensor) -> list[Tensor]:
    """d_i = W_i - W_0, in place of W_i, flat."""
    start = flat(base)
    return [flat(tensor).sub_(start) for tensor in tensors]


def trim(delta: Tensor, density: float) -> float:
    """Zero all but the ``density`` largest magnitudes of a flat tensor, in place; of equal ones the first stay.

    At least one element stays for a density above 0. Source: TIES-Merging, Yadav et al. 2023, section 3, step 1, arXiv:2306.01708.

    Returns:
        The share of elements that stayed.
    """
    count = delta.numel()
    if density >= 1 or not count:
        return 1.0
    if density <= 0:
        delta.zero_()
        return 0.0
    kept = max(1, int(density * count))
    magnitudes = delta.abs()
    if kept == count:
        return 1.0
    values = magnitudes.numpy()
    threshold = float(np.partition(values, count - kept)[count - kept])
    above = int(torch.count_nonzero(magnitudes > threshold))
    equal = torch.nonzero(magnitudes == threshold).reshape(-1)
    delta.masked_fill_(magnitudes < threshold, 0)
    delta[equal[kept - above :]] = 0
    return kept / count


def trim_below(delta: Tensor, threshold: float) -> float:
    """Zero magnitudes below a threshold, in place; gives the share that stayed."""
    small = delta.abs() < threshold
    delta.masked_fill_(small, 0)
    return 1 - int(torch.count_nonzero(small)) / max(1, delta.numel())


def drop(delta: Tensor, density: float, seed: int, rescale: str) -> float:
    """Keep each element with probability ``density``, in place, and make up for the loss.

        d~ = m * d * s,   m ~ Bernoulli(density),   s = 1 / density   or   ||d||_1 / ||m * d||_1   or   1

    Source: DARE, Yu et al. 2023, eq. 2, arXiv:2311.03099 (``density``); mergekit matches the L1 norm (``l1``).

    Args:
        delta: A flat task vector.
        density: Probability to stay.
        seed: Of the mask.
        rescale: ``l1``, ``density`` or ``none``.

    Returns:
        The share of elements that stayed.
    """
    if density >= 1 or not delta.numel():
        return 1.0
    generator = torch.Generator().manual_seed(seed)
    before, kept = absolute_sum(delta) if rescale == "l1" else 0.0, 0
    for part in blocks(delta.numel()):
        stays = torch.rand(part.stop - part.start, generator=generator) < density
        delta[part] *= stays
        kept += int(torch.count_nonzero(stays))
    if rescale == "density" and density > 0:
        delta /= density
    if rescale == "l1":
        after = absolute_sum(delta)
        if before >= SMALLEST and after >= SMALLEST:
            delta *= before / after
    return kept / delta.numel()


def absolute_sum(tensor: Tensor) -> float:
    """||x||_1."""
    return float(tensor.abs().sum())


def combine(
    deltas: Sequence[Tensor],
    weights: Sequence[float],
    base: Tensor,
    *,
    normalize: bool,
    scale: float,
    vote: str | None,
    notes: dict[str, Any],
) -> Tensor:
    """base + scale * (weighted sum of task vectors), with a vote on each element's sign or without.

        with a vote:   W = W_0 + lambda sum_{i: sgn(d_i) = s} w_i d_i / sum_{i: sgn(d_i) = s} w_i,   s = sgn(sum_i w_i d_i)
        without:       W = W_0 + lambda sum_i w_i d_i   (/ sum_i w_i with ``normalize``)

    A sum of 0 counts as positive. Sources: task arithmetic, Ilharco et al. 2022, arXiv:2212.04089; TIES, section 3, steps 2 and 3,
    arXiv:2306.01708, in which the vote is on the sum of d_i and no weights are.

    Args:
        deltas: Flat task vectors; overwritten.
        weights: One for each.
        base: Of any shape; its shape is the result's.
        normalize: Whether to divide by the sum of the weights that went in.
        scale: lambda.
        vote: ``weighted`` elects by w_i d_i, ``unweighted`` by d_i; None holds no vote.
        notes: Gets ``sign_conflict``: the share of elements in which some model was outvoted.
    """
    start = flat(base)
    if not deltas:
        return base.clone()
    out = deltas[0]
    dtype = out.dtype
    factors = torch.tensor(list(weights), dtype=dtype)
    divisor = float(factors.sum()) if vote is None else 0.0
    conflicts = 0
    for part in blocks(out.numel()):
        pieces = [delta[part] for delta in deltas]
        voters, pieces = pieces, [piece * factor for piece, factor in zip(pieces, factors, strict=True)]
        if vote is None:
            mixed = pieces[0]
            for piece in pieces[1:]:
                mixed += piece
            if normalize and abs(divisor) >= 1e-8:
                mixed /= divisor
        else:
            mixed, total, outvoted = _agreeing(pieces, factors, pieces if vote == "weighted" else voters)
            conflicts += int(torch.count_nonzero(outvoted))
            if normalize:
                mixed /= total
        if scale != 1:
            mixed *= scale
        torch.add(start[part], mixed, out=out[part])
    if vote is not None:
        notes["sign_conflict"] = conflicts / max(1, out.numel())
    return out.reshape(base.shape)


def _agreeing(pieces: Sequence[Tensor], factors: Tensor, voters: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Sum of what has the sign of the voters' sum, the sum of its weights (1 for none), and where a voter had the other sign."""
    votes = voters[0].clone()
    for voter in voters[1:]:
        votes += voter
    positive = votes >= 0
    mixed, total = torch.zeros_like(pieces[0]), torch.zeros_like(pieces[0])
    outvoted = torch.zeros_like(positive)
    for piece, factor, voter in zip(pieces, factors, voters, strict=True):
        agrees = torch.where(positive, voter > 0, voter < 0)
        mixed += piece * agrees
        total += agrees * factor
        outvoted |= (voter != 0) & ~agrees
    total[total == 0] = 1
    return mixed, total, outvoted


def distance(first: Tensor, second: Tensor | None) -> float:
    """||a - b||_2, or ||a||_2, summed in float64 over blocks."""
    a, b = flat(first), None if second is None else flat(second)
    total = 0.0
    for part in blocks(a.numel()):
        piece = a[part] if b is None else a[part] - b[part]
        total += float(torch.linalg.vector_norm(piece)) ** 2
    return float(total**0.5)
