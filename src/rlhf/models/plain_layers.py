"""Norms, rotations and gates by torch, and how those in C (``rlhf.native.kernels``) are compared with them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from rlhf.errors import TrainingError
from rlhf.native.kernels import LAYER_DTYPES, compiled_gate, compiled_norm, compiled_rotation

ALLOWED_GAP, ALLOWED_HALF_GAP = 1e-4, 0.05
"""Between outputs and gradients in C and by torch, as a share of 1 plus their size, in float32 and where bfloat16 is among the types."""


def plain_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """What ``compiled_norm`` gives, by torch."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


def plain_rotation(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """What ``compiled_rotation`` gives, by torch."""
    low, high = x.chunk(2, dim=-1)
    return x * cos.unsqueeze(1) + torch.cat((-high, low), dim=-1) * sin.unsqueeze(1)


def plain_gate(gate: Tensor, up: Tensor) -> Tensor:
    """What ``compiled_gate`` gives, by torch."""
    return F.silu(gate) * up


@functools.cache
def check_layers() -> None:
    """Compare what the library computes with torch: compilers have faults, and flags that let sums be added up in any order find them.

    Raises:
        ConfigError: There is no C compiler, or it failed.
        TrainingError: They differ.
    """
    with torch.inference_mode(False):  # what is drawn there could not be differentiated
        for types in [(a, b) for a in LAYER_DTYPES for b in LAYER_DTYPES]:
            _check_types(*types)


def _check_types(first: torch.dtype, second: torch.dtype) -> None:
    x, weight = draw(70, 37, dtype=first), draw(37, dtype=second)
    cos, sin = draw(1, 35, 6, dtype=second, grad=False), draw(1, 35, 6, dtype=second, grad=False)
    heads, gate, up = draw(2, 3, 35, 6, dtype=first), draw(70, 61, dtype=first), draw(70, 61, dtype=first)
    tries: tuple[tuple[str, Callable[[], Tensor], Callable[[], Tensor], list[Tensor]], ...] = (
        ("A norm", lambda: compiled_norm(x, weight, 1e-2), lambda: plain_norm(x, weight, 1e-2), [x, weight]),
        ("A rotation", lambda: compiled_rotation(heads, cos, sin), lambda: plain_rotation(heads, cos, sin), [heads]),
        ("A gate", lambda: compiled_gate(gate, up), lambda: plain_gate(gate, up), [gate, up]),
    )  # fmt: skip
    for name, ours, plain, leaves in tries:
        gap = largest_gap(ours, plain, leaves)
        if not gap <= allowed_gap(first, second):
            raise TrainingError(
                f"{name} in C, as the compiler of this machine made it, is off by {gap:.2g} of its size: leave compiled out, or "
                "name another compiler in $CC."
            )


def draw(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = True) -> Tensor:
    """Random numbers, the same for the same shape."""
    numbers = torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)
    return numbers.requires_grad_(grad)


def allowed_gap(*dtypes: torch.dtype) -> float:
    """For ``largest_gap`` between functions of tensors of these types."""
    return ALLOWED_HALF_GAP if torch.bfloat16 in dtypes else ALLOWED_GAP


def largest_gap(ours: Callable[[], Tensor], theirs: Callable[[], Tensor], leaves: Sequence[Tensor]) -> float:
    """Between outputs of two functions, and gradients by leaves that both read, as a share of 1 plus their size; NaN comes through.

    Infinite where types or shapes differ.
    """
    outputs = []
    with torch.enable_grad(), torch.inference_mode(False), torch.autocast("cpu", enabled=False):
        for function in (ours, theirs):
            out = function()
            directions = torch.randn(out.shape, generator=torch.Generator().manual_seed(9))
            outputs.append([out.detach(), *torch.autograd.grad((out.float() * directions).sum(), leaves)])
    pairs = list(zip(*outputs, strict=True))
    if any((a.shape, a.dtype) != (b.shape, b.dtype) for a, b in pairs):
        return float("inf")
    return float(torch.stack([((a.float() - b.float()).abs() / (1 + b.float().abs())).max() for a, b in pairs]).max())
