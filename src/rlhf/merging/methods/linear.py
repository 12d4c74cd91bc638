"""Weighted average of weights."""

from __future__ import annotations

import torch
from torch import Tensor

from rlhf.merging.arithmetic import blocks, flat
from rlhf.merging.method import MergeMethod


def linear(tensors: list[Tensor], base: Tensor | None, *, weight: list[float], normalize: bool = True) -> Tensor:
    """W = sum_i w_i W_i, divided by sum_i w_i with ``normalize`` (model soups, Wortsman et al. 2022, arXiv:2203.05482)."""
    out = torch.empty_like(flat(tensors[0]))
    factors = torch.tensor(weight, dtype=out.dtype)
    total = factors.sum()
    for part in blocks(out.numel()):
        mixed = torch.zeros_like(out[part])
        for tensor, factor in zip(tensors, factors, strict=True):
            mixed.addcmul_(flat(tensor)[part], factor)
        out[part] = mixed.div_(total) if normalize else mixed
    return out.reshape(tensors[0].shape)


LINEAR = MergeMethod(linear, base="model", title="weighted average", arxiv="2203.05482")
