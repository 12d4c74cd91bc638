"""Types of tensors in a GGUF file, and how far rounding to each may move a weight. `gguf`, llama.cpp's own package, does the rounding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf.errors import require

BLOCK = 32
"""Neighbors in a row that share a scale, in all quantized types here."""
SMALLEST_HALF = 2.0**-24
"""Step of float16 below 2^-14: a scale is never nearer than half of this."""


@dataclass(frozen=True, slots=True)
class StoredType:
    """A type for matrices; what has one dimension is always float32."""

    gguf_name: str
    """Name in ``GGMLQuantizationType``."""
    file_type: int
    """llama.cpp's ``LLAMA_FTYPE`` of a file that is mostly this (include/llama.h)."""
    relative: float
    """Largest error, as a share of the number, or of the largest number of its block where it is quantized."""
    levels: int = 1
    """Largest factor of a scale: how often its own rounding counts."""


TYPES: Mapping[str, StoredType] = {
    "float32": StoredType("F32", 0, 0.0),
    "float16": StoredType("F16", 1, 2.0**-11),
    "bfloat16": StoredType("BF16", 32, 2.0**-8),
    # Half a step of the scale, and the rounding of scale (and minimum) to float16.
    "int8": StoredType("Q8_0", 7, 0.5 / 127 + 2.0**-11, 127),
    "q5_1": StoredType("Q5_1", 9, 1 / 31 + 3 * 2.0**-11, 32),
    # A block's largest number is -16 steps; one as large of the other sign would be +16, and the last level is +15.
    "q5_0": StoredType("Q5_0", 8, 1 / 16 + 2.0**-11, 16),
    "q4_1": StoredType("Q4_1", 3, 1 / 15 + 3 * 2.0**-11, 16),
    "q4_0": StoredType("Q4_0", 2, 1 / 8 + 2.0**-11, 8),
}
"""By the name that an export has for it."""


def stored(value: np.ndarray[Any, Any], kind: StoredType) -> tuple[np.ndarray[Any, Any], Any]:
    """A tensor as it is written, and its type; rows that a block does not fit into are kept in float16.

    Args:
        value: Float32.
        kind: For matrices.
    """
    gguf = require("gguf", extra="export", needed_for="Export to gguf")
    types = gguf.GGMLQuantizationType
    if value.ndim < 2:
        return value, types.F32
    wanted = types[kind.gguf_name]
    if kind.levels > 1 and value.shape[-1] % BLOCK:
        wanted = types.F16
    return gguf.quantize(value, wanted), wanted


def allowed_difference(value: np.ndarray[Any, Any], type_name: str) -> np.ndarray[Any, Any]:
    """What rounding to a type may do to each number of a float32 tensor.

    Args:
        value: The original.
        type_name: Of the type it has in the file.
    """
    kind = next(kind for kind in TYPES.values() if kind.gguf_name == type_name)
    size = np.abs(value)
    if kind.levels > 1:
        blocks = size.reshape(*value.shape[:-1], -1, BLOCK)
        size = np.broadcast_to(blocks.max(-1, keepdims=True), blocks.shape).reshape(value.shape)
    slack = 0.0 if kind.gguf_name in ("F32", "BF16") else SMALLEST_HALF * kind.levels
    return size * (kind.relative * (1 + 1e-6)) + slack
