"""Drop and rescale, then elect signs."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from rlhf.merging.arithmetic import combine, task_vectors
from rlhf.merging.merge_method import MergeMethod, always
from rlhf.merging.sparsity import Drop, drops


def dare_ties(
    tensors: list[Tensor],
    base: Tensor,
    *,
    weight: list[float],
    density: list[float] = 1.0,  # type: ignore[assignment]  # of each
    normalize: bool = False,
    rescale: bool = True,
    rescale_by: Literal["l1", "density"] = "l1",
    lambda_: float = 1.0,
    elect: Literal["weighted", "unweighted"] = "weighted",
    notes: dict[str, Any],
    prepared: list[Drop],
) -> Tensor:
    """DARE (Yu et al. 2023, arXiv:2311.03099) in place of TIES' trimming, then TIES' vote on signs (arXiv:2306.01708)."""
    deltas = task_vectors(tensors, base)
    deltas = [drop(delta) for drop, delta in zip(prepared, deltas, strict=True)]
    notes["kept"] = [drop.kept for drop in prepared]
    return combine(deltas, weight, base, normalize=normalize, scale=lambda_, vote=elect, notes=notes)


DARE_TIES = MergeMethod(
    dare_ties,
    base="required",
    least=0,
    title="DARE, TIES",
    arxiv="2311.03099",
    shares=("density",),
    by_parts=always,
    prepare=drops,
    held_bytes=1,
)
