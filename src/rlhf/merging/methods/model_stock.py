"""Towards the average, as far as the models' angles tell."""

from __future__ import annotations

import torch
from torch import Tensor

from rlhf.merging.merge_method import MergeMethod

SMALLEST = 1e-6


def model_stock(tensors: list[Tensor], base: Tensor, *, filter_wise: bool = False) -> Tensor:
    """Model Stock (Jang et al. 2024, eq. 5 and 6, arXiv:2403.19522).

        W = t mean_i W_i + (1 - t) W_0,   t = N cos / (1 + (N - 1) cos),   cos the mean over pairs of the angle between d_i and d_j

    each tensor as one vector, or each row with ``filter_wise``. Where 1 + (N - 1) cos is 0 there is no estimate and the base stays.
    """
    shape = base.shape
    start, weights = base, tensors
    if not filter_wise:
        start, weights = base.reshape(-1), [tensor.reshape(-1) for tensor in tensors]
    elif base.dim() <= 1:
        start, weights = base.reshape(1, -1), [tensor.reshape(1, -1) for tensor in tensors]
    offsets = [weight - start for weight in weights]
    cosines = []
    for place, first in enumerate(offsets):
        for second in offsets[place + 1 :]:
            norms = torch.norm(first, dim=-1) * torch.norm(second, dim=-1)
            cosines.append(((first * second).sum(dim=-1) / norms.clamp(min=SMALLEST)).clamp(-1, 1))
    del offsets
    cosine = torch.stack(cosines).mean(dim=0).unsqueeze(-1)
    count = len(weights)
    below = 1 + (count - 1) * cosine
    singular = below.abs() < SMALLEST
    ratio = torch.where(singular, 0, count * cosine / torch.where(singular, 1, below))
    mean = weights[0]
    for weight in weights[1:]:
        mean += weight
    mean /= count
    return (ratio * mean + (1 - ratio) * start).reshape(shape)


MODEL_STOCK = MergeMethod(model_stock, base="required", least=2, title="Model Stock", arxiv="2403.19522")
