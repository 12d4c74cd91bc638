"""Trim, elect sign, merge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from torch import Tensor

from rlhf.merging.arithmetic import combine, task_vectors
from rlhf.merging.merge_method import MergeMethod, always
from rlhf.merging.sparsity import Cut, cuts
from rlhf.merging.thresholds import magnitude_thresholds


def ties(
    tensors: list[Tensor],
    base: Tensor,
    *,
    weight: list[float],
    density: list[float] = 1.0,  # type: ignore[assignment]  # of each
    normalize: bool = True,
    lambda_: float = 1.0,
    elect: Literal["weighted", "unweighted"] = "weighted",
    trim_over: Literal["tensor", "model"] = "tensor",
    notes: dict[str, Any],
    prepared: list[Cut],
) -> Tensor:
    """TIES-Merging (Yadav et al. 2023, arXiv:2306.01708).

    Each task vector keeps its ``density`` largest magnitudes; each element takes the sign of the sum; what has that sign is averaged.
    mergekit trims each tensor by itself and elects by w_i d_i; the paper trims a model's vector as a whole
    (``trim_over: model``) and elects by d_i (``elect: unweighted``).
    """
    deltas = task_vectors(tensors, base)
    deltas = [cut(delta) for cut, delta in zip(prepared, deltas, strict=True)]
    notes["kept"] = [cut.share_of(delta) for cut, delta in zip(prepared, deltas, strict=True)]
    return combine(deltas, weight, base, normalize=normalize, scale=lambda_, vote=elect, notes=notes)


class _Survey:
    """Thresholds of whole models, where they are asked for."""

    gives = ("thresholds",)

    def __call__(self, settings: Mapping[str, Any], deltas: Iterable[list[Tensor]]) -> Mapping[str, list[float]]:
        if settings["trim_over"] != "model":
            return {}
        return {"thresholds": magnitude_thresholds(deltas, settings["density"])}


TIES = MergeMethod(
    ties,
    base="required",
    least=0,
    title="TIES",
    arxiv="2306.01708",
    survey=_Survey(),
    shares=("density",),
    by_parts=always,
    prepare=cuts,
    held_bytes=4,
)
