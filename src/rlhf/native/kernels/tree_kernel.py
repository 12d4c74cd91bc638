"""Attention of prefixes and their branches in C (``rlhf/native/tree.c``).

Products of a few hundred rows and 32 or 64 columns are too small for oneDNN to be fast in, and between them torch writes scores to
memory and reads them back, about ten times. Here a score stays in registers and the first-level cache, keys that are masked for a
whole piece cost nothing, and a prefix is laid out once for all of its branches.

Gradients by a prefix's keys are summed up branch by branch in the order of rows, whatever the number of threads.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import POINTER, Structure, byref, c_float, c_int64, c_void_p
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlhf.native.library import load
from rlhf.native.threads import in_parts

TREE_DTYPES = (torch.float32, torch.bfloat16)
"""Types of the products that the C file is written for."""
SCORES_APIECE = 20_000
"""Scores that a thread gets at least: fewer are done before another thread is awake."""
Run = tuple[int, int]
"""First row and length of consecutive rows, a prefix or a branch."""


class _Batch(Structure):
    """``batch_t``."""

    _fields_ = (
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("window", c_int64),
        ("chunk", c_int64),
        ("known", c_int64),
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


class Trees(NamedTuple):
    """The prefixes of a batch, each with its branches, in the order of rows; made by ``Trees.of``."""

    runs: Tensor
    """int64 [R, 2] first row and length: each tree's prefix, then its branches."""
    bounds: Tensor
    """int64 [T + 1] where a tree's runs begin."""
    scores: tuple[int, ...]
    """[T] of one head."""
    num_rows: int
    """In all runs."""

    @classmethod
    def of(cls, branches: Mapping[Run, Iterable[Run]]) -> Trees:
        """Trees of a mapping from each prefix to its branches.

        Args:
            branches: Each a first row and a length; rows without branches are a prefix with none. No prefix begins twice.
        """
        assert len({first for first, _ in branches}) == len(branches), "rows of a prefix are seen all together"
        trees = [[prefix, *sorted(own)] for prefix, own in sorted(branches.items())]
        return cls(
            torch.tensor([run for runs in trees for run in runs], dtype=torch.int64),
            torch.tensor([*accumulate(map(len, trees), initial=0)], dtype=torch.int64),
            tuple(_num_scores(*runs) for runs in trees),
            sum(length for runs in trees for _, length in runs),
        )


class _Asked(NamedTuple):
    scaling: float
    window: int | None
    chunk: int | None
    dtype: torch.dtype
    """Of values, outputs and their gradients."""
    known: bool = False
    """Whether prefixes that have branches have no queries."""


def attend_trees(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    trees: Trees,
    *,
    scaling: float,
    window: int | None = None,
    chunk: int | None = None,
    dtype: torch.dtype,
) -> Tensor:
    """Attention ``softmax(scaling q k^T) v`` of rows to earlier rows of their own run and to their tree's prefix.

    Scores are in float32 and stay with the thread; the backward pass recomputes them from the saved log-sums.
    Sources: Vaswani et al. 2017, eq. 1, arXiv:1706.03762; backward as in Dao et al. 2022, algorithm 4, arXiv:2205.14135.

    Args:
        query: [N, heads, D] on a CPU, of any floating type; read as float32.
        key: [N, kv_heads, D] likewise; heads is a multiple of kv_heads.
        value: [N, kv_heads, D'] likewise; read as ``dtype``.
        trees: Which rows see which.
        scaling: Of the scores.
        window: A query sees keys less than this many positions back, itself included.
        chunk: A query sees only keys of its own chunk of this many positions.
        dtype: One of ``TREE_DTYPES``: bfloat16 rounds the factors of all products but the scores where the processor multiplies
            bfloat16; elsewhere values, outputs and the gradients by them alone.

    Returns:
        [N, heads, D'] in ``dtype``; rows in no tree are 0. Differentiable once.

    Raises:
        ConfigError: There is no C compiler, or it failed.
    """
    with torch.autocast("cpu", enabled=False):
        asked = _Asked(scaling, window, chunk, dtype)
        out: Tensor = _AttendTrees.apply(query, key, value, trees, asked)  # type: ignore[no-untyped-call]
    return out


def attend_behind(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    trees: Trees,
    *,
    scaling: float,
    window: int | None = None,
    chunk: int | None = None,
) -> Tensor:
    """``attend_trees`` for rows whose prefixes were read before: a prefix that has branches has keys and values, and no queries.

    Args:
        query: [N, heads, D] on a CPU; of the rows that are read now, which come first.
        key: [N + K, kv_heads, D]; behind those rows the prefixes'.
        value: [N + K, kv_heads, D'] in one of ``TREE_DTYPES``.
        trees: A prefix's first row is N or later where it has a branch, and each of the N rows is in a run.
        scaling: Of the scores.
        window: As there.
        chunk: As there.

    Returns:
        [N, heads, D'] in the type of the values. Not differentiable.

    Raises:
        ConfigError: There is no C compiler, or it failed.
    """
    asked = _Asked(scaling, window, chunk, value.dtype, known=True)
    q, k, v = query.float().contiguous(), key.float().contiguous(), value.contiguous()
    out = torch.empty(*q.shape[:2], v.shape[2], dtype=v.dtype, device="cpu")
    log_sums = torch.empty(q.shape[:2], dtype=torch.float32, device="cpu")
    _run("forward", (q, k, v), trees, asked, out=out, log_sums=log_sums)
    return out


class _AttendTrees(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, trees: Trees, asked: _Asked) -> Tensor:
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


def _blank(trees: Trees, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """What C writes the rows of: zeros where it does not write all of them."""
    make = torch.empty if trees.num_rows == shape[0] else torch.zeros
    return make(*shape, dtype=dtype, device="cpu")


def _run(name: str, tensors: tuple[Tensor, Tensor, Tensor], trees: Trees, asked: _Asked, **others: Tensor) -> None:
    """Call a function in C for all trees and key heads; it writes to some of the others."""
    q, k, v = tensors
    library = _functions(q.shape[2], v.shape[2], half=asked.dtype == torch.bfloat16)
    batch = _Batch(
        heads=q.shape[1],
        kv_heads=k.shape[1],
        window=asked.window or 0,
        chunk=asked.chunk or 0,
        known=int(asked.known),
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


def _num_scores(prefix: Run, *branches: Run) -> int:
    """Of a tree, where nothing but the order hides a key."""
    own = sum(length * (length + 1) // 2 for _, length in (prefix, *branches))
    return own + prefix[1] * sum(length for _, length in branches)


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
