"""Norms, rotations and gates in C (``rlhf/native/layers.c``), for processors: one pass over memory each, where torch makes up to ten.

Sums are in float32, and their order depends only on the number of rows. In bfloat16 a result is rounded once, where the operations of a
family round what lies between too.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from ctypes import POINTER, Structure, byref, c_float, c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlhf.native.library import load
from rlhf.native.threads import in_parts

LETTERS = {torch.float32: "f", torch.bfloat16: "h"}
"""Types that the C file is written for, as it names them."""
LAYER_DTYPES = tuple(LETTERS)
"""Types of what norms, rotations and gates read."""
FLOATS: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}
"""Of what is made for C, whatever a user's defaults are."""
NUMBERS_APIECE = 30_000
"""That a thread gets at least: fewer are done before another thread is awake."""


class _Norm(Structure):
    """``norm_t``."""

    _fields_ = (
        ("rows", c_int64),
        ("width", c_int64),
        ("eps", c_float),
        ("x", c_void_p),
        ("w", c_void_p),
        ("inverse", c_void_p),
        ("y", c_void_p),
        ("grad_y", c_void_p),
        ("grad_x", c_void_p),
        ("grad_w", c_void_p),
    )


class _Rotation(Structure):
    """``rotation_t``."""

    _fields_ = (
        ("rows", c_int64),
        ("heads", c_int64),
        ("width", c_int64),
        ("angles", c_int64),
        ("back", c_int64),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("x", c_void_p),
        ("y", c_void_p),
    )


class _Gate(Structure):
    """``gate_t``."""

    _fields_ = (
        ("count", c_int64),
        ("gate", c_void_p),
        ("up", c_void_p),
        ("out", c_void_p),
        ("grad_out", c_void_p),
        ("grad_gate", c_void_p),
        ("grad_up", c_void_p),
    )


def compiled_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root mean square norm, ``weight * x / sqrt(mean(x^2) + eps)``, as Llama has it.

    Source: Zhang and Sennrich 2019, eq. 4, arXiv:1910.07467.

    Args:
        x: [..., W] float32 or bfloat16, on a CPU.
        weight: [W] one of these.
        eps: Above 0.

    Returns:
        [..., W] in the type that both promote to. Differentiable once.

    Raises:
        ConfigError: There is no C compiler, or it failed.
    """
    out: Tensor = _CompiledNorm.apply(x, weight, eps)  # type: ignore[no-untyped-call]
    return out


def compiled_rotation(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions of queries or keys: ``x * cos + rotate_half(x) * sin``.

    ``rotate_half`` of halves (a, b) is (-b, a). Source: Su et al. 2021, eq. 34, arXiv:2104.09864, with halves in place of neighbors.

    Args:
        x: [B, heads, N, D] float32 or bfloat16, on a CPU; D is even.
        cos: [1 or B, N, D] one of these; no gradient goes there.
        sin: The same.

    Returns:
        [B, heads, N, D] in the type that x and cos promote to, its memory [B, N, heads, D]. Differentiable once.

    Raises:
        ConfigError: There is no C compiler, or it failed.
    """
    angles = (cos.detach().float().contiguous(), sin.detach().float().contiguous())
    dtype = torch.promote_types(x.dtype, cos.dtype)
    out: Tensor = _CompiledRotation.apply(x.transpose(1, 2), *angles, dtype)  # type: ignore[no-untyped-call]
    return out.transpose(1, 2)


def compiled_gate(gate: Tensor, up: Tensor) -> Tensor:
    """SwiGLU, ``silu(gate) * up``; the backward pass recomputes ``silu(gate)``.

    Source: Shazeer 2020, eq. 5, arXiv:2002.05202.

    Args:
        gate: Of any shape, float32 or bfloat16, on a CPU.
        up: Of the same shape and type.

    Returns:
        The same shape and type. Differentiable once.

    Raises:
        ConfigError: There is no C compiler, or it failed.
    """
    out: Tensor = _CompiledGate.apply(gate, up)  # type: ignore[no-untyped-call]
    return out


class _CompiledNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        x, w = x.contiguous(), weight.float().contiguous()
        out = torch.empty_like(x, dtype=torch.promote_types(x.dtype, weight.dtype))
        inverse = torch.empty(x.shape[:-1], **FLOATS)
        _run_norm("norm_forward", x, w, inverse, eps, out.dtype, y=out)
        ctx.save_for_backward(x, w, inverse)
        ctx.settings = (eps, weight.dtype)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        x, w, inverse = ctx.saved_tensors
        eps, dtype = ctx.settings
        grad_x, grad_w = torch.empty_like(x), torch.empty_like(w)
        pieces = torch.empty(-(-inverse.numel() // _library().block()), len(w), **FLOATS)
        places = {"grad_y": grad_out.contiguous(), "grad_x": grad_x, "grad_w": pieces}
        norm = _run_norm("norm_backward", x, w, inverse, eps, grad_out.dtype, **places)
        _library().norm_weight(byref(norm), grad_w.data_ptr())
        return grad_x, grad_w.to(dtype), None


class _CompiledRotation(torch.autograd.Function):
    """Of rows, [B, N, heads, D]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.dtype = x.dtype
        return _rotated(x, cos, sin, dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return _rotated(grad_out, cos, sin, ctx.dtype, back=True), None, None, None


class _CompiledGate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        gate, up = gate.contiguous(), up.contiguous()
        out = torch.empty_like(gate)
        _run_gate("gate_forward", gate, up, out=out)
        ctx.save_for_backward(gate, up)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        gate, up = ctx.saved_tensors
        grad_gate, grad_up = torch.empty_like(gate), torch.empty_like(up)
        _run_gate("gate_backward", gate, up, grad_out=grad_out.contiguous(), grad_gate=grad_gate, grad_up=grad_up)
        return grad_gate, grad_up


def _run_norm(
    name: str, x: Tensor, w: Tensor, inverse: Tensor, eps: float, dtype: torch.dtype, **others: Tensor
) -> _Norm:
    """Call a function in C for all rows; it writes to some of the others."""
    tensors = {"x": x, "w": w, "inverse": inverse, **others}
    norm = _Norm(rows=inverse.numel(), width=x.shape[-1], eps=eps, **_places(tensors))
    _run(f"{name}_{LETTERS[x.dtype]}{LETTERS[dtype]}", norm, norm.rows, norm.width, _library().block())
    return norm


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, dtype: torch.dtype, *, back: bool = False) -> Tensor:
    """Rows [B, N, heads, D], turned by their angles or back."""
    x = x.contiguous()
    out = torch.empty_like(x, dtype=dtype)
    heads, width = x.shape[2:]
    rows, angles = x.shape[0] * x.shape[1], cos.shape[0] * cos.shape[1]
    places = _places({"cos": cos, "sin": sin, "x": x, "y": out})
    turn = _Rotation(rows=rows, heads=heads, width=width, angles=angles, back=int(back), **places)
    _run(f"rotate_{LETTERS[x.dtype]}{LETTERS[dtype]}", turn, rows, heads * width, _library().block())
    return out


def _run_gate(name: str, gate: Tensor, up: Tensor, **others: Tensor) -> None:
    """The same for all numbers of a gate."""
    all_of_it = _Gate(count=gate.numel(), **_places({"gate": gate, "up": up, **others}))
    _run(f"{name}_{LETTERS[gate.dtype]}", all_of_it, gate.numel(), 1, _library().piece())


def _run(name: str, batch: Structure, rows: int, width: int, size: int) -> None:
    """Call a function in C for all pieces of ``size`` rows."""
    function: Callable[..., None] = getattr(_library(), name)
    cost = size * width
    if pieces := -(-rows // size):
        in_parts(
            lambda _, first, last: function(byref(batch), first, last),
            reached=range(0, (pieces + 1) * cost, cost),
            least=NUMBERS_APIECE,
            scratch=0,
        )


def _places(tensors: dict[str, Tensor]) -> dict[str, int]:
    return {name: tensor.data_ptr() for name, tensor in tensors.items()}


@functools.cache
def _library() -> ctypes.CDLL:
    library = load("layers", HALF=1)
    kinds: dict[type[Structure], Sequence[str]] = {
        _Norm: [f"norm_{way}_{types}" for way in ("forward", "backward") for types in ("ff", "hf", "hh")],
        _Rotation: [f"rotate_{types}" for types in ("ff", "fh", "hf", "hh")],
        _Gate: [f"gate_{way}_{letter}" for way in ("forward", "backward") for letter in "fh"],
    }
    for kind, names in kinds.items():
        for name in names:
            function = getattr(library, name)
            function.argtypes, function.restype = (POINTER(kind), c_int64, c_int64), None
    library.norm_weight.argtypes, library.norm_weight.restype = (POINTER(_Norm), c_void_p), None
    for size in (library.block, library.piece):
        size.argtypes, size.restype = (), c_int64
    return library
