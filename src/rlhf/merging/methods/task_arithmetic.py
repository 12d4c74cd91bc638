"""Sum of task vectors on the base."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rlhf.merging.arithmetic import combine, task_vectors
from rlhf.merging.merge_method import MergeMethod, always


def task_arithmetic(
    tensors: list[Tensor],
    base: Tensor,
    *,
    weight: list[float],
    normalize: bool = False,
    lambda_: float = 1.0,
    notes: dict[str, Any],
) -> Tensor:
    """W = W_0 + lambda sum_i w_i (W_i - W_0), divided by sum_i w_i with ``normalize`` (Ilharco et al. 2022, arXiv:2212.04089)."""
    deltas = task_vectors(tensors, base)
    return combine(deltas, weight, base, normalize=normalize, scale=lambda_, vote=None, notes=notes)


TASK_ARITHMETIC = MergeMethod(
    task_arithmetic, base="required", least=0, title="task arithmetic", arxiv="2212.04089", by_parts=always
)
