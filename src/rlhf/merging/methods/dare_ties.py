"""Drop and rescale, then elect signs."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from rlhf.merging.arithmetic import combine, drop, task_vectors
from rlhf.merging.merge_method import MergeMethod


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
    seeds: list[int],
    notes: dict[str, Any],
) -> Tensor:
    """DARE (Yu et al. 2023, arXiv:2311.03099) in place of TIES' trimming, then TIES' vote on signs (arXiv:2306.01708)."""
    deltas = task_vectors(tensors, base)
    by = rescale_by if rescale else "none"
    notes["kept"] = [drop(delta, share, seed, by) for delta, share, seed in zip(deltas, density, seeds, strict=True)]
    return combine(deltas, weight, base, normalize=normalize, scale=lambda_, vote=elect, notes=notes)


DARE_TIES = MergeMethod(dare_ties, base="required", least=0, title="DARE, TIES", arxiv="2311.03099")
