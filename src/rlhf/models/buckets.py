"""The tree of a packed batch cut into attention calls: a prefix sees itself, a branch sees its prefix and itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlhf.data.pack import PackedBatch

SMALL_BUCKET_WASTE = 16_384
"""Query-key pairs that padding may always add to one call: below this a call's fixed cost is higher than its arithmetic."""
BUCKET_WASTE_FRAC = 0.3
"""Share of padding allowed in a larger call."""
BEYOND = np.iinfo(np.int32).max
"""Position of a key that no query may see."""

Sees = tuple[int | None, int | None]
"""Window and chunk of a layer, None for none."""


class Unit(NamedTuple):
    """A prefix, or a branch behind its prefix: consecutive rows that see each other causally and all of the prefix."""

    first: int
    length: int
    prefix_first: int
    prefix_length: int


class Tile(NamedTuple):
    """Queries [start, stop) of every unit of a bucket, against the first ``keys`` keys."""

    start: int
    stop: int
    keys: int
    bias: Tensor
    """[B, 1, 1, queries, keys] 0 where seen, -inf elsewhere, in the type of the scores."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Queries and keys of a few sequences, laid side by side for one attention call.

    Padding lives only here, inside an attention call, never in the row that the rest of the model sees.
    """

    query_rows: Tensor
    """int64 [B * Q] rows of the packed batch; a padded place repeats row 0 of its sequence."""
    key_rows: Tensor
    """int64 [B * K]."""
    shape: tuple[int, int, int]
    """B, Q, K."""
    query_positions: Tensor
    """int32 [B, 1, Q, 1]."""
    key_positions: Tensor
    """int32 [B, 1, 1, K]; BEYOND where the key is padding."""
    units: list[Unit]
    """B prefixes and branches."""
    masks: dict[Sees, Tensor]
    """Built on first use for each (window, chunk) that a layer of the model uses."""
    tiles: dict[tuple[Sees, torch.dtype], list[Tile]]
    """Likewise, of ``tree_attention``."""

    def mask(self, window: int | None, chunk: int | None) -> Tensor:
        """bool [B, 1, Q, K]: causal by position, inside the window and the chunk."""
        mask = self.masks.get((window, chunk))
        if mask is None:
            mask = self.key_positions <= self.query_positions
            if window is not None:
                mask &= self.key_positions > self.query_positions - window
            if chunk is not None:
                mask &= self.key_positions // chunk == self.query_positions // chunk
            self.masks[window, chunk] = mask
        return mask


def build_buckets(batch: PackedBatch) -> tuple[list[Bucket], Tensor]:
    """Sort prefixes and branches by size and fill buckets until padding would cost more than another call.

    Returns:
        The buckets, and int64 [N] the position of each packed row in their concatenated outputs.
    """
    starts, lengths = batch.start.cpu().numpy(), batch.length.cpu().numpy()
    prefix_starts, prefix_lens = batch.prefix_start.cpu().numpy(), batch.prefix_len.cpu().numpy()
    first_of_group = np.unique(prefix_starts, return_index=True)[1]
    units = [Unit(int(prefix_starts[s]), int(prefix_lens[s]), 0, 0) for s in first_of_group]
    units += [
        Unit(int(a), int(n), int(p), int(m))
        for a, n, p, m in zip(starts, lengths, prefix_starts, prefix_lens, strict=True)
    ]
    units = sorted((u for u in units if u.length), key=lambda u: (u.length + u.prefix_length, u.length))
    runs: list[list[Unit]] = []
    real = 0
    widest = 0
    for unit in units:
        area = unit[1] * (unit[1] + unit[3])
        wider = max(widest, unit[1])
        padded = (len(runs[-1]) + 1) * wider * (unit[1] + unit[3]) if runs else 0
        if not runs or padded - (real + area) > max(SMALL_BUCKET_WASTE, BUCKET_WASTE_FRAC * (real + area)):
            runs.append([])
            real, wider = 0, unit[1]
        runs[-1].append(unit)
        real, widest = real + area, wider
    device = batch.tokens.device
    inverse = np.empty(batch.num_tokens, dtype=np.int64)
    buckets = []
    offset = 0
    for run in runs:
        buckets.append(_build_bucket(run, inverse, offset, device))
        offset += buckets[-1].query_rows.numel()
    return buckets, torch.from_numpy(inverse).to(device)


def _build_bucket(units: list[Unit], inverse: np.ndarray, offset: int, device: torch.device) -> Bucket:
    size = len(units)
    num_queries = max(u[1] for u in units)
    num_keys = max(u[1] + u[3] for u in units)
    query_rows = np.zeros((size, num_queries), dtype=np.int64)
    key_rows = np.zeros((size, num_keys), dtype=np.int64)
    query_positions = np.zeros((size, num_queries), dtype=np.int32)
    key_positions = np.full((size, num_keys), BEYOND, dtype=np.int32)
    for i, (first, count, prefix_first, prefix_count) in enumerate(units):
        own = np.arange(first, first + count)
        query_rows[i, :count] = own
        query_rows[i, count:] = first
        # a padded query has the position of its unit's first token: it attends to something, so its softmax is finite
        query_positions[i] = prefix_count
        query_positions[i, :count] = np.arange(prefix_count, prefix_count + count)
        key_rows[i, :prefix_count] = np.arange(prefix_first, prefix_first + prefix_count)
        key_rows[i, prefix_count : prefix_count + count] = own
        key_rows[i, prefix_count + count :] = first
        key_positions[i, : prefix_count + count] = np.arange(prefix_count + count)
        inverse[own] = offset + i * num_queries + np.arange(count)
    return Bucket(
        query_rows=torch.from_numpy(query_rows.reshape(-1)).to(device),
        key_rows=torch.from_numpy(key_rows.reshape(-1)).to(device),
        shape=(size, num_queries, num_keys),
        query_positions=torch.from_numpy(query_positions[:, None, :, None]).to(device),
        key_positions=torch.from_numpy(key_positions[:, None, None, :]).to(device),
        units=units,
        masks={},
        tiles={},
    )
