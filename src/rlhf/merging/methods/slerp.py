"""Spherical linear interpolation."""

from __future__ import annotations

import torch
from torch import Tensor

from rlhf.merging.arithmetic import flat
from rlhf.merging.merge_method import MergeMethod

NEARLY_PARALLEL = 0.9995
"""Above this |cos| the arc is a line."""
SMALLEST = 1e-8
"""A tensor of a smaller norm has no direction and is not normalized."""
PART = 1 << 20
"""Elements whose sums are taken at a time."""


def slerp(tensors: list[Tensor], base: Tensor, *, t: float) -> Tensor:
    """From the base (t = 0) to the model (t = 1) along the arc between them, each tensor as one vector.

        W = sin((1 - t) a) / sin(a) W_0 + sin(t a) / sin(a) W_1,   cos(a) = W_0 W_1 / (||W_0|| ||W_1||)

    and (1 - t) W_0 + t W_1 where |cos(a)| > 0.9995. Source: Shoemake 1985, "Animating rotation with quaternion curves", section 3.3.
    """
    first, second = flat(base), flat(tensors[0])
    at = torch.tensor(t, dtype=first.dtype)
    if not first.numel():
        return base.clone()
    parts = [slice(start, min(start + PART, first.numel())) for start in range(0, first.numel(), PART)]
    norms = [
        torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(vector[part]) for part in parts]))
        for vector in (first, second)
    ]
    norms = [torch.where(norm > SMALLEST, norm, 1) for norm in norms]
    dots = [((first[part] / norms[0]) * (second[part] / norms[1])).sum() for part in parts]
    cosine = torch.stack(dots).sum().clamp(-1, 1)
    if cosine.abs() > NEARLY_PARALLEL:
        shares = (1 - at, at)
    else:
        angle = torch.acos(cosine)
        shares = (torch.sin((1 - at) * angle) / torch.sin(angle), torch.sin(at * angle) / torch.sin(angle))
    for part in parts:
        second[part] = shares[0] * first[part] + shares[1] * second[part]
    return second.reshape(base.shape)


SLERP = MergeMethod(slerp, base="required", least=1, most=1, title="SLERP")
