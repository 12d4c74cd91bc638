"""Linear layers in tiles of bfloat16 (``rlhf/native/linear.h``), on processors with AMX.

oneDNN's products are as fast for many rows. A decoding step has few: there it matters to read the weight once, at memory speed,
without a new kernel for each number of live rows.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, byref, c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor

from rlhf.native.threads import in_parts

DEEP, PANEL = 32, 32
"""Of linear.h: numbers along the sum in a tile, and columns that are done together."""
LAST_ROWS = 16
"""Rows that are copied where they are not a multiple of it."""
APIECE = 1 << 18
"""Numbers of a weight that a thread gets at least: waking one costs as much as reading so many."""


class Linear(Structure):
    """``linear_t``."""

    _fields_ = (("weight", c_void_p), ("bias", c_void_p), ("in", c_int64), ("out", c_int64))


SIGNATURES: dict[str, tuple[Any, ...]] = {
    "lay_weight": (c_void_p, c_int64, c_int64, c_void_p),
    "linear": (POINTER(Linear), c_void_p, c_void_p, c_int64, c_void_p, c_int64, c_int64),
}
"""Types of the arguments of each function in C."""


class TiledLinear:
    """``x W^T + b``: weight, input and output are rounded to bfloat16, sums and bias are float32.

    ``DecodeKernels.tiled_linear`` makes one.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, library: ctypes.CDLL) -> None:
        """Lay out weight [out, in] and keep bias [out] in float32; ``can_tile`` holds for the weight.

        Args:
            weight: Of any type.
            bias: Likewise.
            library: One that holds ``SIGNATURES``.
        """
        self.out, self.wide = weight.shape
        given = weight.to(torch.bfloat16).contiguous()
        self._laid = torch.empty(_up(self.out, PANEL // 2), _up(self.wide, DEEP), dtype=torch.bfloat16, device="cpu")
        library.lay_weight(given.data_ptr(), self.out, self.wide, self._laid.data_ptr())
        self._bias = bias.float().contiguous() if bias is not None else None
        self._linear = library.linear
        self.described = Linear(
            weight=self._laid.data_ptr(), bias=self._bias.data_ptr() if self._bias is not None else None, out=self.out
        )
        setattr(self.described, "in", self.wide)

    @property
    def scratch(self) -> int:
        """Floats that a thread works in."""
        return self.wide * LAST_ROWS // 2

    def __call__(self, x: Tensor) -> Tensor:
        """bfloat16 [N, in] -> bfloat16 [N, out]."""
        assert x.dtype == torch.bfloat16, "C would take other numbers for these"
        assert x.shape[1:] == (self.wide,), "C would read behind the last"
        x = x.contiguous()
        y = torch.empty(len(x), self.out, dtype=torch.bfloat16, device="cpu")
        fixed = (byref(self.described), x.data_ptr(), y.data_ptr(), len(x))
        in_parts(
            lambda *part: self._linear(*fixed, *part),
            reached=range(_up(self.out, PANEL) // PANEL + 1),
            least=max(1, APIECE // (self.wide * PANEL)),
            scratch=self.scratch,
        )
        return y


def can_tile(weight: Tensor) -> bool:
    """Whether a weight [out, in] can be laid out in tiles."""
    wide = weight.shape[1]
    return wide >= DEEP and wide % 2 == 0


def _up(count: int, to: int) -> int:
    return -(-count // to) * to
