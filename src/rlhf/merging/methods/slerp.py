"""Spherical linear interpolation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.linalg import vector_norm

from rlhf.merging.arithmetic import blocks, flat
from rlhf.merging.merge_method import MergeMethod, always
from rlhf.merging.tensor_parts import TensorParts

NEARLY_PARALLEL = 0.9995
"""Above this |cos| the arc is a line."""
SMALLEST = 1e-8
"""A tensor of a smaller norm has no direction and is not normalized."""


def slerp(tensors: list[Tensor], base: Tensor, *, t: float, prepared: tuple[Tensor, Tensor]) -> Tensor:
    """From the base (t = 0) to the model (t = 1) along the arc between them, each tensor as one vector.

        W = sin((1 - t) a) / sin(a) W_0 + sin(t a) / sin(a) W_1,   cos(a) = W_0 W_1 / (||W_0|| ||W_1||)

    and (1 - t) W_0 + t W_1 where |cos(a)| > 0.9995. Source: Shoemake 1985, "Animating rotation with quaternion curves", section 3.3.
    """
    of_base, of_model = prepared
    first, second = flat(base), flat(tensors[0])
    for part in blocks(first.numel()):
        second[part].mul_(of_model)
        second[part] += of_base * first[part]
    return second.reshape(base.shape)


def shares(parts: TensorParts, keywords: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """What the base and the model are multiplied by."""
    at = torch.tensor(keywords["t"], dtype=parts.dtype)
    lengths = [(vector_norm(base), vector_norm(model)) for (model,), base in parts]
    if not lengths:
        return 1 - at, at
    norms = [vector_norm(torch.stack(column)) for column in zip(*lengths, strict=True)]
    norms = [torch.where(norm > SMALLEST, norm, 1) for norm in norms]
    dots = [((base / norms[0]) * (model / norms[1])).sum() for (model,), base in parts if base is not None]
    cosine = torch.stack(dots).sum().clamp(-1, 1)
    if cosine.abs() > NEARLY_PARALLEL:
        return 1 - at, at
    angle = torch.acos(cosine)
    return torch.sin((1 - at) * angle) / torch.sin(angle), torch.sin(at * angle) / torch.sin(angle)


SLERP = MergeMethod(slerp, base="required", least=1, most=1, title="SLERP", by_parts=always, prepare=shares)
