"""``tree_attention`` in C (``rlhf/native/tree.c``), for processors.

Products of a few hundred rows and 32 or 64 columns are too small for oneDNN to be fast in, and between them torch writes scores to
memory and reads them back, about ten times. Here a score stays in registers and the first-level cache, keys that are masked for a
whole piece cost nothing, and a prefix is laid out once for all of its branches.

Gradients by a prefix's keys are summed up branch by branch in the order of rows, whatever the number of threads.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from ctypes import POINTER, Structure, byref, c_float, c_int64, c_void_p
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlhf.data.pack import Branch, Group, pack
from rlhf.errors import TrainingError
from rlhf.models.buckets import Bucket, build_buckets
from rlhf.models.tree_attention import tree_attention
from rlhf.native.library import load
from rlhf.native.threads import in_parts

DTYPES = (torch.float32, torch.bfloat16)
"""Types of the products that the C file is written for."""
ALLOWED_GAP, ALLOWED_HALF_GAP = 1e-4, 0.05
"""Between outputs and gradients in C and in tiles of float64, as a share of 1 plus their size, in float32 and in bfloat16; where torch's
own tiles of bfloat16 are farther from them, as far as those."""
_CHECKED: set[tuple[int, int, bool]] = set()
SCORES_APIECE = 20_000
"""Scores that a thread gets at least: fewer are done before another thread is awake."""


class _Batch(Structure):
    """``batch_t``."""

    _fields_ = (
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("window", c_int64),
        ("chunk", c_int64),
        ("scaling", c_float),
        ("runs", c_void_p),
        ("trees", c_void_p),
        ("query", c_void_p),
        ("key", c_void_p),
        ("value", c_void_p),
        ("out", c_void_p),
        ("log_sums", c_void_p),
        ("grad_out", c_void_p),
        ("grad_query", c_void_p),
        ("grad_key", c_void_p),
        ("grad_value", c_void_p),
    )


class _Run(NamedTuple):
    """``run_t``: consecutive rows, a prefix or a branch."""

    first: int
    length: int


class _Trees(NamedTuple):
    """The units of a batch by prefix, in the order of rows."""

    runs: Tensor
    """int64 [R, 2] first row and length: each tree's prefix, then its branches."""
    bounds: Tensor
    """int64 [T + 1] where a tree's runs begin."""
    scores: tuple[int, ...]
    """[T] of one head."""
    num_rows: int
    """In all runs."""


class _Asked(NamedTuple):
    scaling: float
    window: int | None
    chunk: int | None
    dtype: torch.dtype
    """Of values, outputs and their gradients."""


def compiled_tree_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    buckets: Sequence[Bucket],
    *,
    scaling: float,
    window: int | None = None,
    chunk: int | None = None,
) -> Tensor:
    """What ``tree_attention`` gives, on a CPU and in float32 or bfloat16; in other types it is ``tree_attention`` that is called.

    Scores are in float32. In bfloat16 the factors of all other products are rounded to it where the processor multiplies bfloat16;
    elsewhere values, outputs and the gradients by them alone.

    Args:
        query: [N, heads, D].
        key: [N, kv_heads, D]; heads is a multiple of kv_heads.
        value: [N, kv_heads, D'].
        buckets: All units of the batch, see ``rlhf.models.buckets``.
        scaling: Of the scores.
        window: A query sees keys less than this many positions back, itself included.
        chunk: A query sees only keys of its own chunk of this many positions.

    Returns:
        [N, heads, D'] in the type of autocast, or of the values. Differentiable once.

    Raises:
        ConfigError: There is no C compiler, or it failed.
    """
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else value.dtype
    if dtype not in DTYPES or torch.float64 in (query.dtype, key.dtype):
        return tree_attention(query, key, value, buckets, scaling=scaling, window=window, chunk=chunk)
    with torch.autocast("cpu", enabled=False):
        asked = _Asked(scaling, window, chunk, dtype)
        out: Tensor = _CompiledTreeAttention.apply(query, key, value, _trees(buckets), asked)  # type: ignore[no-untyped-call]
    return out


class _CompiledTreeAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, trees: _Trees, asked: _Asked) -> Tensor:
        q, k, v = query.float().contiguous(), key.float().contiguous(), value.to(asked.dtype).contiguous()
        out = _blank(trees, (*q.shape[:2], v.shape[2]), asked.dtype)
        log_sums = torch.empty(q.shape[:2], dtype=torch.float32, device="cpu")
        _run("forward", (q, k, v), trees, asked, out=out, log_sums=log_sums)
        ctx.save_for_backward(q, k, v, out, log_sums)
        ctx.settings = (trees, asked, (query.dtype, key.dtype, value.dtype))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, log_sums = ctx.saved_tensors
        trees, asked, dtypes = ctx.settings
        grads = [_blank(trees, x.shape, torch.float32) for x in (q, k, v)]
        places = dict(zip(("grad_query", "grad_key", "grad_value"), grads, strict=True))
        grad_out = grad_out.to(asked.dtype).contiguous()
        _run("backward", (q, k, v), trees, asked, out=out, log_sums=log_sums, grad_out=grad_out, **places)
        return *(grad.to(dtype) for grad, dtype in zip(grads, dtypes, strict=True)), None, None


def _blank(trees: _Trees, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """What C writes the rows of: zeros where it does not write all of them."""
    make = torch.empty if trees.num_rows == shape[0] else torch.zeros
    return make(*shape, dtype=dtype, device="cpu")


def _run(name: str, tensors: tuple[Tensor, Tensor, Tensor], trees: _Trees, asked: _Asked, **others: Tensor) -> None:
    """Call a function in C for all trees and key heads; it writes to some of the others."""
    q, k, v = tensors
    library = _checked_functions(q.shape[2], v.shape[2], half=asked.dtype == torch.bfloat16)
    batch = _Batch(
        heads=q.shape[1],
        kv_heads=k.shape[1],
        window=asked.window or 0,
        chunk=asked.chunk or 0,
        scaling=asked.scaling,
        runs=trees.runs.data_ptr(),
        trees=trees.bounds.data_ptr(),
        query=q.data_ptr(),
        key=k.data_ptr(),
        value=v.data_ptr(),
        **{place: tensor.data_ptr() for place, tensor in others.items()},
    )
    function: Callable[..., None] = getattr(library, name)
    room: Callable[..., int] = getattr(library, f"{name}_room")
    repeats = q.shape[1] // k.shape[1]
    in_parts(
        lambda *part: function(byref(batch), *part),
        reached=list(accumulate((scores * repeats for scores in trees.scores for _ in range(k.shape[1])), initial=0)),
        least=SCORES_APIECE,
        scratch=room(byref(batch), len(trees.scores)),
    )


def _trees(buckets: Sequence[Bucket]) -> _Trees:
    branches: dict[_Run, list[_Run]] = {}
    for unit in (unit for bucket in buckets for unit in bucket.units):
        if unit.prefix_length:
            branches.setdefault(_Run(unit.prefix_first, unit.prefix_length), []).append(_Run(unit.first, unit.length))
        else:
            branches.setdefault(_Run(unit.first, unit.length), [])
    assert len({prefix.first for prefix in branches}) == len(branches), "rows of a prefix are seen all together"
    trees = [[prefix, *sorted(own)] for prefix, own in sorted(branches.items())]
    return _Trees(
        torch.tensor([run for runs in trees for run in runs], dtype=torch.int64),
        torch.tensor([*accumulate(map(len, trees), initial=0)], dtype=torch.int64),
        tuple(_num_scores(*runs) for runs in trees),
        sum(run.length for runs in trees for run in runs),
    )


def _num_scores(prefix: _Run, *branches: _Run) -> int:
    """Of a tree, where nothing but the order hides a key."""
    own = sum(run.length * (run.length + 1) // 2 for run in (prefix, *branches))
    return own + prefix.length * sum(run.length for run in branches)


def _checked_functions(width: int, value_width: int, *, half: bool) -> ctypes.CDLL:
    """The library, once what it computes was compared: compilers have faults, and flags that let sums be added up in any order find them."""
    library = _functions(width, value_width, half=half)
    if (width, value_width, half) not in _CHECKED:
        _CHECKED.add((width, value_width, half))  # before it is asked
        try:
            gap, of_tiles = _largest_gaps(width, value_width, torch.bfloat16 if half else torch.float32)
            if not gap <= (max(ALLOWED_HALF_GAP, of_tiles) if half else ALLOWED_GAP):
                raise TrainingError(
                    f"Attention in C, as the compiler of this machine made it, is off by {gap:.2g} of its size for heads of {width}: leave "
                    "compiled out, or name another compiler in $CC."
                )
        except BaseException:
            _CHECKED.discard((width, value_width, half))
            raise
    return library


def _largest_gaps(width: int, value_width: int, dtype: torch.dtype) -> tuple[float, float]:
    """From outputs and gradients in tiles of float64, for a few rows of random numbers, as a share of 1 plus their size.

    Returns:
        Of those in C, and of those in tiles of ``dtype``.
    """
    buckets = build_buckets(
        pack([Group([0] * 37, [Branch([0] * 40), Branch([0] * 9)]), Group([0] * 5, [Branch([0] * 70)])])
    )[0]
    draw, found = torch.Generator().manual_seed(0), []
    with torch.enable_grad(), torch.inference_mode(False), torch.autocast("cpu", enabled=False):
        tensors = [
            torch.randn(161, heads, size, generator=draw).to(dtype)
            for heads, size in ((4, width), (2, width), (2, value_width))
        ]
        for attend, kind in (
            (tree_attention, torch.float64),
            (compiled_tree_attention, dtype),
            (tree_attention, dtype),
        ):
            q, k, v = (x.to(kind).requires_grad_() for x in tensors)
            out = attend(q, k, v, buckets, scaling=width**-0.5)
            found.append([x.double() for x in (out.detach(), *torch.autograd.grad(out.square().sum(), (q, k, v)))])
    true, *others = found
    ours, tiles = (
        float(torch.stack([((a - b).abs() / (1 + b.abs())).max() for a, b in zip(mine, true, strict=True)]).max())
        for mine in others
    )
    return ours, tiles  # NaN comes through


@functools.cache
def _functions(width: int, value_width: int, *, half: bool) -> ctypes.CDLL:
    macros = {"WIDTH": width, "VALUE_WIDTH": value_width, "HALF": int(half)}
    library = load("tree", **macros)
    if not library.tiles_allowed():
        library = load("tree", **macros, TILES=0)
    for name in ("forward", "backward"):
        function, room = getattr(library, name), getattr(library, f"{name}_room")
        function.argtypes, function.restype = (POINTER(_Batch), c_void_p, c_int64, c_int64), None
        room.argtypes, room.restype = (POINTER(_Batch), c_int64), c_int64
    return library
