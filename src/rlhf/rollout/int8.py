"""Linear layers with 8-bit integer weights, for sampling only.

    w[o, i] = scale[o] * code[o, i],   scale[o] = max |w[o, :]| / 127,   code in -127 .. 127

On a CPU with VNNI instructions, the product is an integer product too: a token's activations are quantized to 8 bits as well, by their
largest, so that a row's result does not depend on other rows. Elsewhere the codes are multiplied in the input's type, which saves
memory but no time.

Sources: one scale for each output, and one for each token: Dettmers et al. 2022, section 2.1 ("vector-wise"), arXiv:2208.07339.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

LARGEST = 127
"""Of a code; -128 is left out, so that a weight and its negative are rounded alike."""
ZERO = 128
"""The code of 0 among a token's, which are unsigned: the instruction multiplies unsigned by signed numbers."""
TINY = 1e-30
"""In the place of a largest number of 0."""
SMALLEST = 1 << 19
"""Maps with fewer weights keep them: rounding a token's numbers costs more there than the product saves. Measured at 8 rows: 768 by 256,
125 us against 55 in float32; 2304 by 768, 245 against 480; 32,000 by 256, 860 against 3,500."""
BLOCK = 1024
"""Rows of a weight that are rounded at once, so that what lies between fits a cache."""
ADAPTER = "lora_"
"""In the names of an adapter's maps, which are small, and all that training changes."""


class Int8Projection:
    """A linear map with codes in the place of its weight."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Round.

        Args:
            weight: [out, in].
            bias: [out], kept as it is.
        """
        self.scale, codes = quantize(weight)
        self.bias = bias.detach() if bias is not None else None
        self._packed = torch.ops.onednn.qlinear_prepack(codes, None) if _has_kernel(weight) else None
        self._codes = codes if self._packed is None else None
        self._zeros = torch.zeros(len(codes), dtype=torch.int64) if self._packed is not None else None

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out] in the type of ``x``."""
        out = self._by_codes(x) if self._codes is not None else self._by_kernel(x)
        return out if self.bias is None else out.add_(self.bias.to(out.dtype))

    def _by_codes(self, x: Tensor) -> Tensor:
        assert self._codes is not None
        return F.linear(x, self._codes.to(x.dtype)).mul_(self.scale.to(x.dtype))

    def _by_kernel(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).float()
        largest = torch.linalg.vector_norm(rows, ord=math.inf, dim=1, keepdim=True).clamp_(min=TINY)
        codes = torch.addcmul(rows.new_tensor(ZERO), rows, LARGEST / largest).round_().to(torch.uint8)
        out: Tensor = torch.ops.onednn.qlinear_pointwise(
            codes, 1 / LARGEST, ZERO, self._packed, self.scale, self._zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return out.mul_(largest).to(x.dtype).view(*x.shape[:-1], -1)


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Scale float32 [out] and codes int8 [out, in] of a weight [out, in]."""
    scale = torch.empty(len(weight), device=weight.device)
    codes = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    for first in range(0, len(weight), BLOCK):
        rows = slice(first, first + BLOCK)
        exact = weight.detach()[rows].float()
        scale[rows] = torch.linalg.vector_norm(exact, ord=math.inf, dim=1).clamp_(min=TINY).div_(LARGEST)
        codes[rows] = exact.div(scale[rows, None]).round_()
    return scale, codes


def is_large(weight: Tensor) -> bool:
    """Whether a weight [out, in] is worth a copy in codes."""
    return weight.numel() >= SMALLEST


@contextmanager
def int8_linears(model: PreTrainedModel) -> Iterator[None]:
    """While this lasts, a model's linear maps multiply with the codes of the weights that they have when it begins.

    Their own weights stay untouched. Embeddings, norms, an adapter's maps, small maps and a mixture's experts are computed as usual.
    """
    lowered: list[tuple[nn.Module, object]] = []
    try:
        for name, module in model.named_modules():
            weight = _weight(module)
            if weight is None or not is_large(weight) or ADAPTER in name:
                continue
            lowered.append((module, module.__dict__.get("forward")))
            module.forward = Int8Projection(weight, module.bias)
        yield
    finally:
        for module, own in lowered:
            if own is None:
                del module.forward
            else:
                module.forward = own  # type: ignore[assignment]


def _weight(module: nn.Module) -> Tensor | None:
    """[out, in] of a linear map, None for anything else."""
    if type(module) is nn.Linear:
        return module.weight
    if type(module) is Conv1D:
        return module.weight.T
    return None


def _has_kernel(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and torch.backends.mkldnn.is_available() and _kernel_is_exact()


@functools.cache
def _kernel_is_exact() -> bool:
    """Without VNNI, which ONEDNN_MAX_CPU_ISA can forbid too, oneDNN cuts sums of two products to 16 bits: tried with the largest."""
    if not torch.cpu._is_vnni_supported():
        return False
    tokens, codes = torch.full((1, 16), 255, dtype=torch.uint8), torch.full((16, 16), 127, dtype=torch.int8)
    packed = torch.ops.onednn.qlinear_prepack(codes, None)
    scale, zeros = torch.ones(16, dtype=torch.float32), torch.zeros(16, dtype=torch.int64)
    out: Tensor = torch.ops.onednn.qlinear_pointwise(
        tokens, 1.0, 0, packed, scale, zeros, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return bool((out == 16 * 255 * 127).all())
