"""Drop and rescale, then sum."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from rlhf.merging.arithmetic import combine, drop, task_vectors
from rlhf.merging.merge_method import MergeMethod


def dare_linear(
    tensors: list[Tensor],
    base: Tensor,
    *,
    weight: list[float],
    density: list[float] = 1.0,  # type: ignore[assignment]  # of each
    normalize: bool = False,
    rescale: bool = True,
    rescale_by: Literal["l1", "density"] = "l1",
    lambda_: float = 1.0,
    seeds: list[int],
    notes: dict[str, Any],
) -> Tensor:
    """DARE with task arithmetic (Yu et al. 2023, arXiv:2311.03099).

    Each element of a task vector stays with probability ``density``; then W = W_0 + lambda sum_i w_i d~_i. The paper divides
    what stayed by the density (``rescale_by: density``), mergekit gives it the L1 norm it had (``l1``).
    """
    deltas = task_vectors(tensors, base)
    by = rescale_by if rescale else "none"
    notes["kept"] = [drop(delta, share, seed, by) for delta, share, seed in zip(deltas, density, seeds, strict=True)]
    return combine(deltas, weight, base, normalize=normalize, scale=lambda_, vote=None, notes=notes)


DARE_LINEAR = MergeMethod(dare_linear, base="required", least=0, title="DARE, linear", arxiv="2311.03099")
