"""Towards the average, as far as the models' angles tell."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rlhf.merging.merge_method import MergeMethod
from rlhf.merging.tensor_parts import TensorParts

SMALLEST = 1e-6


def model_stock(
    tensors: list[Tensor], base: Tensor, *, filter_wise: bool = False, prepared: Tensor | None = None
) -> Tensor:
    """Model Stock (Jang et al. 2024, eq. 5 and 6, arXiv:2403.19522).

        W = t mean_i W_i + (1 - t) W_0,   t = N cos / (1 + (N - 1) cos),   cos the mean over pairs of the angle between d_i and d_j

    each tensor as one vector, or each row with ``filter_wise``. Where 1 + (N - 1) cos is 0 there is no estimate and the base stays.
    """
    share = by_rows(tensors, base) if prepared is None else prepared
    mean = tensors[0]
    for tensor in tensors[1:]:
        mean += tensor
    mean /= len(tensors)
    return mean.mul_(share).add_((1 - share) * base)


def shares(parts: TensorParts, keywords: Mapping[str, Any]) -> Tensor | None:
    """t of a whole tensor; None for rows."""
    if keywords["filter_wise"]:
        return None
    norms, dots = [], []
    for tensors, base in parts:
        assert base is not None
        part_norms, part_dots = _norms_and_dots([tensor - base for tensor in tensors])
        norms.append(part_norms)
        dots.append(part_dots)
    if not norms:
        return torch.tensor(1.0, dtype=parts.dtype)
    return _share(torch.linalg.vector_norm(torch.stack(norms), dim=0), torch.stack(dots).sum(dim=0))


def by_rows(tensors: list[Tensor], base: Tensor) -> Tensor:
    """t of each row, to be multiplied with the rows; a vector is one row."""
    rows = [(tensor - base).reshape(1, -1) if base.dim() <= 1 else tensor - base for tensor in tensors]
    share = _share(*_norms_and_dots(rows))
    return share.reshape(()) if base.dim() <= 1 else share.unsqueeze(-1)


def _norms_and_dots(offsets: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Over the last axis: [N, ...] and, of pairs, [N (N - 1) / 2, ...]."""
    pairs = itertools.combinations(offsets, 2)
    norms = torch.stack([torch.norm(offset, dim=-1) for offset in offsets])
    return norms, torch.stack([(first * second).sum(dim=-1) for first, second in pairs])


def _share(norms: Tensor, dots: Tensor) -> Tensor:
    """t, from norms [N, ...] and dot products of pairs."""
    count = len(norms)
    lengths = torch.stack([first * second for first, second in itertools.combinations(norms, 2)])
    cosine = (dots / lengths.clamp(min=SMALLEST)).clamp(-1, 1).mean(dim=0)
    below = 1 + (count - 1) * cosine
    singular = below.abs() < SMALLEST
    return torch.where(singular, 0, count * cosine / torch.where(singular, 1, below))


def _is_whole(settings: Mapping[str, Any]) -> bool:
    return not settings["filter_wise"]


MODEL_STOCK = MergeMethod(
    model_stock, base="required", least=2, title="Model Stock", arxiv="2403.19522", by_parts=_is_whole, prepare=shares
)
