"""Drop and rescale, then sum."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from rlhf.merging.arithmetic import combine, task_vectors
from rlhf.merging.merge_method import MergeMethod, always
from rlhf.merging.sparsity import Drop, drops


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
    notes: dict[str, Any],
    prepared: list[Drop],
) -> Tensor:
    """DARE with task arithmetic (Yu et al. 2023, arXiv:2311.03099).

    Each element of a task vector stays with probability ``density``; then W = W_0 + lambda sum_i w_i d~_i. The paper divides
    what stayed by the density (``rescale_by: density``), mergekit gives it the L1 norm it had (``l1``).
    """
    deltas = task_vectors(tensors, base)
    deltas = [drop(delta) for drop, delta in zip(prepared, deltas, strict=True)]
    notes["kept"] = [drop.kept for drop in prepared]
    return combine(deltas, weight, base, normalize=normalize, scale=lambda_, vote=None, notes=notes)


DARE_LINEAR = MergeMethod(
    dare_linear,
    base="required",
    least=0,
    title="DARE, linear",
    arxiv="2311.03099",
    shares=("density",),
    by_parts=always,
    prepare=drops,
    held_bytes=1,
)
