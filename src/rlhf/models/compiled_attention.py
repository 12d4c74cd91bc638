"""``tree_attention`` in C (``rlhf.native.kernels``), for processors: which rows form a tree, and a comparison before the first use."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rlhf.data.pack import Branch, Group, pack
from rlhf.errors import TrainingError
from rlhf.models.buckets import Bucket, build_buckets
from rlhf.models.tree_attention import tree_attention
from rlhf.native.kernels import TREE_DTYPES, Trees, attend_trees

ALLOWED_GAP, ALLOWED_HALF_GAP = 1e-4, 0.05
"""Between outputs and gradients in C and in tiles of float64, as a share of 1 plus their size, in float32 and in bfloat16; where torch's
own tiles of bfloat16 are farther from them, as far as those."""
_CHECKED: set[tuple[int, int, torch.dtype]] = set()


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
        TrainingError: What it made computes something else.
    """
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else value.dtype
    if dtype not in TREE_DTYPES or torch.float64 in (query.dtype, key.dtype):
        return tree_attention(query, key, value, buckets, scaling=scaling, window=window, chunk=chunk)
    _check(query.shape[2], value.shape[2], dtype)
    return attend_trees(query, key, value, _trees(buckets), scaling=scaling, window=window, chunk=chunk, dtype=dtype)


def _trees(buckets: Sequence[Bucket]) -> Trees:
    branches: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for unit in (unit for bucket in buckets for unit in bucket.units):
        if unit.prefix_length:
            branches.setdefault((unit.prefix_first, unit.prefix_length), []).append((unit.first, unit.length))
        else:
            branches.setdefault((unit.first, unit.length), [])
    return Trees.of(branches)


def _check(width: int, value_width: int, dtype: torch.dtype) -> None:
    """Compare once what the library computes: compilers have faults, and flags that let sums be added up in any order find them."""
    if (width, value_width, dtype) in _CHECKED:
        return
    _CHECKED.add((width, value_width, dtype))  # before it is asked
    try:
        gap, of_tiles = _largest_gaps(width, value_width, dtype)
        if not gap <= (max(ALLOWED_HALF_GAP, of_tiles) if dtype == torch.bfloat16 else ALLOWED_GAP):
            raise TrainingError(
                f"Attention in C, as the compiler of this machine made it, is off by {gap:.2g} of its size for heads of {width}: leave "
                "compiled out, or name another compiler in $CC."
            )
    except BaseException:
        _CHECKED.discard((width, value_width, dtype))
        raise


def _largest_gaps(width: int, value_width: int, dtype: torch.dtype) -> tuple[float, float]:
    """From outputs and gradients in tiles of float64, for a few rows of random numbers, as a share of 1 plus their size.

    Returns:
        Of those in C, and of those in tiles of ``dtype``.
    """
    buckets = build_buckets(
        pack([Group([0] * 37, [Branch([0] * 40), Branch([0] * 9)]), Group([0] * 5, [Branch([0] * 70)])])
    )[0]
    draw, outputs = torch.Generator().manual_seed(0), []
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
            outputs.append([x.double() for x in (out.detach(), *torch.autograd.grad(out.square().sum(), (q, k, v)))])
    true, *others = outputs
    ours, tiles = (
        float(torch.stack([((a - b).abs() / (1 + b.abs())).max() for a, b in zip(mine, true, strict=True)]).max())
        for mine in others
    )
    return ours, tiles  # NaN comes through
