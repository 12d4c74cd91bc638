"""What several methods share: task vectors and their sum, with a vote on signs or without. All in place where it can be, block by block.

A task vector is what a model has beyond the base: d_i = W_i - W_0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

BLOCK = 1 << 18
"""Elements that are worked on at a time: a block of each of a few tensors fits a processor's cache."""


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
        voters = [delta[part] for delta in deltas]
        pieces = [piece * factor for piece, factor in zip(voters, factors, strict=True)]
        if vote is None:
            mixed = pieces[0]
            for piece in pieces[1:]:
                mixed += piece
            if normalize and abs(divisor) >= 1e-8:
                mixed /= divisor
        else:
            mixed, total, outvoted = _agreeing(pieces, factors, pieces if vote == "weighted" else voters)
            conflicts += outvoted
            if normalize:
                mixed /= total
        if scale != 1:
            mixed *= scale
        torch.add(start[part], mixed, out=out[part])
    if vote is not None:
        notes["sign_conflict"] = conflicts / max(1, out.numel())
    return out.reshape(base.shape)


def _agreeing(pieces: Sequence[Tensor], factors: Tensor, voters: Sequence[Tensor]) -> tuple[Tensor, Tensor, int]:
    """Sum of what has the sign of the voters' sum, the sum of its weights (1 for none), and how often a voter had the other sign.

    Signs and masks are 1, 0 and -1 in the tensors' own type: torch is many times slower with truth values.
    """
    elected = voters[0].clone()
    for voter in voters[1:]:
        elected += voter
    elected.ge_(0).mul_(2).sub_(1)
    mixed, total, lowest = torch.zeros_like(elected), torch.zeros_like(elected), torch.ones_like(elected)
    for piece, factor, voter in zip(pieces, factors, voters, strict=True):
        agrees = elected * voter
        torch.minimum(lowest, agrees, out=lowest)
        agrees.gt_(0)
        mixed += piece * agrees
        total += agrees.mul_(factor)
    if bool((factors < 0).any()):
        total[total == 0] = 1
    else:
        total.clamp_min_(torch.finfo(total.dtype).tiny)  # nothing agrees where it is 0, and 0 / tiny is 0
    return mixed, total, int(lowest.lt_(0).sum())


def distance(first: Tensor, second: Tensor | None) -> float:
    """||a - b||_2, or ||a||_2, summed in float64 over blocks."""
    return squared_distance(first, second) ** 0.5


def squared_distance(first: Tensor, second: Tensor | None) -> float:
    """The square of ``distance``."""
    a, b = flat(first), None if second is None else flat(second)
    total = 0.0
    for part in blocks(a.numel()):
        piece = a[part] if b is None else a[part] - b[part]
        total += float(torch.linalg.vector_norm(piece)) ** 2
    return total
