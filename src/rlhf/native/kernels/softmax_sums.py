"""What the log-probabilities of a tile of logits need of each row, in C (``rlhf/native/softmax.c``): the tile is read once.

torch makes four passes over it, one of them to widen it to float32, and writes log-probabilities that are never read.
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, Structure, byref, c_int64, c_void_p
from typing import NamedTuple

import torch
from torch import Tensor

from rlhf.errors import TrainingError
from rlhf.native.library import load
from rlhf.native.threads import in_parts

ROW_SUM_DTYPES = (torch.float32, torch.bfloat16)
"""Of logits that the C file is written for."""
ELEMENTS_APIECE = 1 << 15
"""Logits that a thread gets at least."""
ALLOWED_GAP = 1e-3
"""Between sums in C and by torch, of logits of the size of 1."""
ALLOWED_HALF_GAP = 1e-2
"""Between probabilities in bfloat16, as a share of the largest."""


class RowSums(NamedTuple):
    """Of a tile of logits; [M] each but for the first and the last. Float32, or float64 where the logits are."""

    logits: Tensor
    """[M, tile] in any type."""
    logsumexp: Tensor
    expected: Tensor | None = None
    """Mean of the logits under their softmax."""
    squares: Tensor | None = None
    """Sum of the squared probabilities."""
    total: Tensor | None = None
    """Sum of the logits."""
    probs: Tensor | None = None
    """[M, tile] softmax, in the type of the products."""


class _Rows(Structure):
    """``rows_t``."""

    _fields_ = (
        ("width", c_int64),
        ("logits", c_void_p),
        ("probs", c_void_p),
        ("log_sums", c_void_p),
        ("expected", c_void_p),
        ("squares", c_void_p),
        ("totals", c_void_p),
    )


def row_sums(
    logits: Tensor, *, expected: bool = False, squares: bool = False, total: bool = False, probs: Tensor | None = None
) -> RowSums:
    """Sums over each row of a tile: with p = softmax(x), log sum exp(x), sum p x, sum p^2 and sum x.

    The largest logit is subtracted first, so no exponent overflows.

    Args:
        logits: [M, tile] on the CPU, contiguous, of one of ``ROW_SUM_DTYPES``.
        expected: Also the logits' mean under their softmax.
        squares: Also the sum of the squared probabilities.
        total: Also the sum of the logits.
        probs: [M, tile] likewise; gets the softmax of each row, and may be ``logits`` itself.

    Returns:
        Sums in float32.

    Raises:
        ConfigError: There is no C compiler, or it failed.
        TrainingError: What it made computes something else.
    """
    _check(logits.dtype)
    return _row_sums(logits, (expected, squares, total), probs)


def _row_sums(logits: Tensor, wanted: tuple[bool, bool, bool], probs: Tensor | None) -> RowSums:
    rows, width = logits.shape
    assert logits.is_contiguous(), "C reads one row behind the other"
    assert probs is None or (probs.is_contiguous() and (probs.shape, probs.dtype) == (logits.shape, logits.dtype))
    log_sums = torch.empty(rows, dtype=torch.float32, device="cpu")
    expected, squares, total = (torch.empty_like(log_sums) if asked else None for asked in wanted)
    asked = _Rows(
        width, *(x if x is None else x.data_ptr() for x in (logits, probs, log_sums, expected, squares, total))
    )
    library = _library(logits.dtype == torch.bfloat16)
    in_parts(
        lambda *part: library.softmax(byref(asked), *part),
        reached=range(0, rows * width + 1, width),
        least=ELEMENTS_APIECE,
        scratch=width + library.lanes(),
    )
    return RowSums(logits, log_sums, expected, squares, total, probs)


@functools.cache
def _library(half: bool) -> ctypes.CDLL:
    library = load("softmax", HALF=int(half))
    library.softmax.argtypes, library.softmax.restype = (POINTER(_Rows), c_void_p, c_int64, c_int64), None
    library.lanes.argtypes, library.lanes.restype = (), c_int64
    return library


@functools.cache
def _check(dtype: torch.dtype) -> None:
    """Compare the library with torch before its first use: compilers have faults."""
    logits = torch.randn(3, 77, generator=torch.Generator().manual_seed(0)).to(dtype)
    sums = _row_sums(logits, (True, True, True), torch.empty_like(logits))
    wide = logits.double()
    probs = torch.softmax(wide, 1)
    expected = (wide.logsumexp(1), (probs * wide).sum(1), probs.square().sum(1), wide.sum(1))
    assert sums.probs is not None
    gaps = torch.stack(
        [(mine - true).abs().max() for mine, true in zip(sums[1:5], expected, strict=True) if mine is not None]
    )
    half_gap = (sums.probs - probs).abs().max() / probs.max()
    if not (gaps.max() <= ALLOWED_GAP and half_gap <= ALLOWED_HALF_GAP):
        raise TrainingError(
            f"The softmax in C, as the compiler of this machine made it, is off by {gaps.max():.2g} in its sums and {half_gap:.2g} in its "
            "probabilities: leave compiled out, or name another compiler in $CC."
        )
