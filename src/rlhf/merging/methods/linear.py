"""Weighted average of weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rlhf.merging.arithmetic import blocks, flat
from rlhf.merging.merge_method import MergeMethod, always


def linear(tensors: list[Tensor], base: Tensor | None, *, weight: list[float], normalize: bool = True) -> Tensor:
    """W = sum_i w_i W_i, divided by sum_i w_i with ``normalize`` (model soups, Wortsman et al. 2022, arXiv:2203.05482)."""
    out, *others = map(flat, tensors)  # in place of the first
    factors = torch.tensor(weight, dtype=out.dtype)
    total = factors.sum()
    for part in blocks(out.numel()):
        mixed = out[part].mul_(factors[0])
        for tensor, factor in zip(others, factors[1:], strict=True):
            mixed.addcmul_(tensor[part], factor)  # as mergekit does, to the bit
        if normalize:
            mixed /= total
    return out.reshape(tensors[0].shape)


def no_average(settings: Mapping[str, Any]) -> str | None:
    """Weights that cancel, up to what float32 keeps of them, have no average."""
    weight = settings["weight"]
    if settings["normalize"] and abs(math.fsum(weight)) <= 1e-6 * math.fsum(map(abs, weight)):
        return "parameters.weight: the weights of a normalized average add up to 0; change one, or set normalize: false"
    return None


LINEAR = MergeMethod(
    linear, base="model", title="weighted average", arxiv="2203.05482", by_parts=always, complaint=no_average
)
