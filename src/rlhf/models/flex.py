"""Attention over the tree of a packed batch for a GPU: one call of FlexAttention for the whole row.

A row of the packed batch sees two runs of rows: its own unit (a prefix, or a branch) from its first row up to itself, and its
unit's prefix. So the mask is a few integers for each row, which a fused kernel reads (Dong et al. 2024, "Flex Attention",
arXiv:2412.05496), and fully masked blocks of 128 by 128 rows are skipped. Nothing is gathered, padded or repeated, and no
score leaves the kernel.

    sees(q, k) = first[q] <= k <= q  or  prefix[q] <= k < prefix_end[q];   with a window or a chunk, by position[q] and position[k] too

A soft-cap is FlexAttention's ``score_mod``. A sink, a logit that joins the softmax and is dropped, scales the output:
    exp(s) / (exp(lse) + exp(sink)) = exp(s - lse) * sigmoid(lse - sink)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from rlhf.models.buckets import Bucket, Sees, Unit

BLOCK = 128
"""Rows of a block, FlexAttention's own size."""
LEAST_BLOCKS = 2
"""A size of 1 is never a variable for torch.compile: a batch of one block, listed as two, takes the kernel that others take."""
VARIANTS = 64
"""Compiled forms that may exist side by side: layers with and without a window, with and without gradient, in two types ..."""


@dataclass(slots=True)
class TreeRows:
    """The tree as numbers for each row, and the masks made of them."""

    first: Tensor
    """int32 [N] first row of each row's unit."""
    prefix: Tensor
    """int32 [N] first row of its unit's prefix."""
    prefix_end: Tensor
    """int32 [N] the row behind that prefix's last; equal to ``prefix`` where the unit is a prefix itself."""
    position: Tensor
    """int32 [N] inside the full sequence."""
    units: list[Unit]
    masks: dict[Sees, BlockMask] = field(default_factory=dict)
    """Made on first use for each (window, chunk) that a layer uses."""

    @classmethod
    def of(cls, buckets: Sequence[Bucket]) -> TreeRows:
        """Of all units of a batch, on the device of its buckets."""
        units = [unit for bucket in buckets for unit in bucket.units]
        count = sum(unit.length for unit in units)
        first, prefix, prefix_end, position = (np.empty(count, dtype=np.int32) for _ in range(4))
        for unit in units:
            own = slice(unit.first, unit.first + unit.length)
            first[own], prefix[own], prefix_end[own] = (
                unit.first,
                unit.prefix_first,
                unit.prefix_first + unit.prefix_length,
            )
            position[own] = np.arange(unit.prefix_length, unit.prefix_length + unit.length)
        device = buckets[0].query_rows.device
        arrays = (first, prefix, prefix_end, position)
        on_device = (torch.from_numpy(array).to(device) for array in arrays)
        return cls(next(on_device), next(on_device), next(on_device), next(on_device), units)

    def mask(self, window: int | None, chunk: int | None) -> BlockMask:
        """Which rows see which, and which blocks of rows have anything to do with each other."""
        mask = self.masks.get((window, chunk))
        if mask is None:
            mask = self.masks[window, chunk] = self._build_mask(window, chunk)
        return mask

    def _build_mask(self, window: int | None, chunk: int | None) -> BlockMask:
        touched, full = touched_blocks(self.units, len(self.first), whole=window is None and chunk is None)
        device = self.first.device
        return BlockMask.from_kv_blocks(
            *_listed(touched & ~full, device),
            *_listed(full, device),
            BLOCK_SIZE=BLOCK,
            mask_mod=self._sees(window, chunk),
            seq_lengths=(len(self.first), len(self.first)),
        )

    def _sees(self, window: int | None, chunk: int | None) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        first, prefix, prefix_end, position = self.first, self.prefix, self.prefix_end, self.position

        def in_tree(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return ((k >= first[q]) & (k <= q)) | ((k >= prefix[q]) & (k < prefix_end[q]))

        if window is None and chunk is None:
            return in_tree

        # Only tensors with a number per row: a plain number would be compiled in, and a layer with another number recompiled.
        lowest = position - window + 1 if window is not None else torch.zeros_like(position)
        home = position // chunk if chunk is not None else torch.zeros_like(position)

        def in_reach(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return in_tree(b, h, q, k) & (position[k] >= lowest[q]) & (home[q] == home[k])

        return in_reach


def touched_blocks(units: Sequence[Unit], num_rows: int, *, whole: bool) -> tuple[np.ndarray, np.ndarray]:
    """Blocks of rows that see something of each other, and those of which every row sees every other; bool [blocks, blocks].

    Args:
        units: All of the batch.
        num_rows: N.
        whole: Whether a row sees all of its unit before it and all of its prefix; else no block is full.
    """
    count = max(-(-num_rows // BLOCK), LEAST_BLOCKS)
    touched, full = np.zeros((count, count), dtype=bool), np.zeros((count, count), dtype=bool)
    for unit in units:
        end = unit.first + unit.length
        prefix_end = unit.prefix_first + unit.prefix_length
        for block in range(unit.first // BLOCK, (end - 1) // BLOCK + 1):
            touched[block, unit.first // BLOCK : (min(end, (block + 1) * BLOCK) - 1) // BLOCK + 1] = True
            if unit.prefix_length:
                touched[block, unit.prefix_first // BLOCK : (prefix_end - 1) // BLOCK + 1] = True
            if whole and unit.first <= block * BLOCK and (block + 1) * BLOCK <= end:
                full[block, -(-unit.first // BLOCK) : block] = True
                full[block, -(-unit.prefix_first // BLOCK) : prefix_end // BLOCK] = True
    return touched, full


def flex_tree_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rows: TreeRows,
    *,
    scaling: float,
    window: int | None = None,
    chunk: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention of every row of a packed batch to what it sees.

    Args:
        query: [N, heads, D].
        key: [N, kv_heads, D]; heads is a multiple of kv_heads.
        value: [N, kv_heads, D'].
        rows: The tree.
        scaling: Of the scores.
        window: A query sees keys less than this many positions back, itself included.
        chunk: A query sees only keys of its own chunk of this many positions.
        softcap: Scores become softcap * tanh(scores / softcap).
        sinks: [heads] a logit for each head that joins the softmax and is dropped.

    Returns:
        [N, heads, D'] in the type of autocast, or of the values.
    """
    dtype = product_dtype(query, value)
    heads = [x.to(dtype).transpose(0, 1).unsqueeze(0) for x in (query, key, value)]
    for x in heads:
        torch._dynamo.mark_static(x, [0, 1, 3])  # of a model; the rows, its other size, are of a batch
    attended = _kernel(query.device.type)(
        *heads,
        score_mod=_capped(softcap, heads[0]) if softcap is not None else None,
        block_mask=rows.mask(window, chunk),
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
        return_aux=AuxRequest(lse=True) if sinks is not None else None,
    )
    if sinks is None:
        out: Tensor = attended
    else:
        whole, aux = attended
        kept = torch.sigmoid(aux.lse - sinks.to(aux.lse.dtype).view(1, -1, 1))
        out = (whole * kept.unsqueeze(-1)).to(dtype)
    return out[0].transpose(0, 1)


@functools.cache
def _kernel(kind: str) -> Callable[..., Any]:
    if kind == "cpu":
        return flex_attention  # the fused kernel for CPUs has no backward pass, and this way is for tests
    torch._dynamo.config.recompile_limit = max(VARIANTS, torch._dynamo.config.recompile_limit)
    torch._dynamo.config.specialize_float = True  # the kernel has the scaling as a constant
    # Lengths and counts of blocks are variables from the first batch on: a kernel takes up to half a minute to compile, and compiled
    # for one length it would be compiled again for the second.
    return torch.compile(flex_attention, dynamic=True)


def _capped(softcap: float, query: Tensor) -> Callable[..., Tensor]:
    """A tensor and no plain number, for the same reason as in the masks."""
    exact = torch.promote_types(query.dtype, torch.float32)
    caps = torch.full((query.shape[1],), softcap, dtype=exact, device=query.device)

    def capped(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return caps[h] * torch.tanh(score / caps[h])

    return capped


def product_dtype(query: Tensor, value: Tensor) -> torch.dtype:
    """Of attention's products: autocast's, or the values' own."""
    kind = query.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else value.dtype


def _listed(blocks: np.ndarray, device: torch.device) -> tuple[Tensor, Tensor]:
    """How many blocks of keys each block of queries has, int32 [1, 1, blocks], and which, those first, [1, 1, blocks, blocks]."""
    order = np.argsort(~blocks, axis=1, kind="stable").astype(np.int32)
    counts = blocks.sum(1, dtype=np.int32)
    return torch.from_numpy(counts)[None, None].to(device), torch.from_numpy(order)[None, None].to(device)
