"""One model's tensors as they are."""

from __future__ import annotations

from torch import Tensor

from rlhf.merging.merge_method import MergeMethod, always


def passthrough(tensors: list[Tensor], base: Tensor | None, *, scale: list[float] | None = None) -> Tensor:
    """W = scale * W_1: layers of one model or of several, stacked."""
    factor = None if scale is None else scale[0]
    return tensors[0] if factor is None else tensors[0] * factor


PASSTHROUGH = MergeMethod(passthrough, base="model", least=1, most=1, title="layers as they are", by_parts=always)
