"""Attention over the tree of a packed batch for a CPU: few large matrix products, and nothing kept of a size above the batch's.

    S = Q K^T / sqrt(d),  P = softmax(S + mask),  O = P V
    dV = P^T dO,  dP = dO V^T,  dS = P * (dP - rowsum(dP * P)),  dQ = dS K / sqrt(d),  dK = dS^T Q / sqrt(d)

Scores live for one tile of queries at a time and are computed again in the backward pass, as in FlashAttention (Dao et al. 2022,
arXiv:2205.14135, algorithm 4); a tile stops at the last key that its queries see. PyTorch's own flash kernel for the CPU takes
three to five times as long at the sizes of preference data. Scores and their softmax are in float32 or wider, because a score
rounded to bfloat16 is off by a hundredth of a nat; the other products are in the type of autocast.

Query heads that share a key head are stacked as rows of one product, so keys and values are never repeated.
Scores, probabilities and their gradients of all tiles reuse the same memory, each softmax overwriting its input
taken of: what a processor writes for the first time it must fetch before, and that was a fifth of the whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from rlhf.models.buckets import Bucket, Tile, Unit

TILE_SCORES = 1 << 20
"""Scores alive at once: 4 MiB, since they are float32 whatever the rest is; 8 where the model is float64."""
LEAST_TILE = 64
"""Queries of a tile, at least: below that a product's fixed cost is higher than its arithmetic."""


def tree_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    buckets: Sequence[Bucket],
    *,
    scaling: float,
    window: int | None = None,
    chunk: int | None = None,
) -> Tensor:
    """Attention of every row of a packed batch to what it sees.

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
    """
    kind = query.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else value.dtype
    with torch.autocast(kind, enabled=False):  # it would round the scores' factors again
        out: Tensor = _TreeAttention.apply(query, key, value, buckets, scaling, (window, chunk), dtype)  # type: ignore[no-untyped-call]
    return out


class _TreeAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        buckets: Sequence[Bucket],
        scaling: float,
        sees: tuple[int | None, int | None],
        dtype: torch.dtype,
    ) -> Tensor:
        exact = torch.promote_types(torch.promote_types(query.dtype, key.dtype), torch.float32)
        scaled, key_c, value_c = (query * scaling).to(exact), key.to(exact), value.to(dtype)
        out = torch.empty((*query.shape[:2], value.shape[2]), dtype=dtype, device=query.device)
        room = _Room()
        for bucket in buckets:
            q, k, v = _queries(scaled, bucket, key.shape[1]), _keys(key_c, bucket), _keys(value_c, bucket)
            o = v.new_empty((*q.shape[:3], v.shape[2]))
            for tile in _tiles(bucket, sees, q):
                probs = room.cast("rounded", _probs(q, k, tile, room), dtype)
                o[:, :, tile.start : tile.stop] = torch.bmm(probs, v[:, : tile.keys]).unflatten(1, (q.shape[1], -1))
            _put_queries(o, bucket, out)
        ctx.save_for_backward(scaled, key_c, value_c)
        ctx.settings = (buckets, scaling, sees, (query.dtype, key.dtype, value.dtype))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        with torch.autocast(grad_out.device.type, enabled=False):  # whatever surrounds the call of backward()
            grads = _gradients(ctx.saved_tensors, ctx.settings, grad_out)  # type: ignore[attr-defined]
        return *grads, None, None, None, None


def _gradients(saved: tuple[Tensor, ...], settings: tuple[Any, ...], grad_out: Tensor) -> tuple[Tensor, ...]:
    """By query, key and value."""
    scaled, key, value = saved
    buckets, scaling, sees, dtypes = settings
    exact, dtype = scaled.dtype, value.dtype
    grad_out = grad_out.to(dtype)
    grad_query = torch.empty_like(scaled)
    grad_key = torch.zeros_like(key, dtype=exact)
    grad_value = torch.zeros_like(value, dtype=exact)
    room = _Room()
    for bucket in buckets:
        q, k, v = _queries(scaled, bucket, key.shape[1]), _keys(key, bucket), _keys(value, bucket)
        do = _queries(grad_out, bucket, key.shape[1])
        _silence_padding(do, bucket)
        q_c, k_c = q.to(dtype), k.to(dtype)
        dq = torch.empty_like(q)
        dk, dv = torch.zeros_like(k), torch.zeros_like(v, dtype=exact)
        for tile in _tiles(bucket, sees, q):
            rows, seen = slice(tile.start, tile.stop), slice(0, tile.keys)
            do_tile, q_tile = (x[:, :, rows].flatten(1, 2) for x in (do, q_c))
            probs = _probs(q, k, tile, room)
            dv[:, seen] += torch.bmm(room.cast("rounded", probs, dtype).transpose(1, 2), do_tile)
            rounded = room.view("rounded", probs.shape, probs, dtype)
            grad = room.cast("grad", torch.bmm(do_tile, v[:, seen].transpose(1, 2), out=rounded), exact)
            torch.ops.aten._softmax_backward_data.out(grad, probs, -1, exact, grad_input=grad)
            grad_scores = room.cast("rounded", grad, dtype)
            dq[:, :, rows] = torch.bmm(grad_scores, k_c[:, seen]).unflatten(1, (q.shape[1], -1)).to(exact)
            dk[:, seen] += torch.bmm(grad_scores.transpose(1, 2), q_tile)
        _put_queries(dq, bucket, grad_query)
        _add_keys(dk, bucket, grad_key)
        _add_keys(dv, bucket, grad_value)
    return grad_query.to(dtypes[0]) * scaling, grad_key.to(dtypes[1]), grad_value.to(dtypes[2])


class _Room:
    """Memory by name for tensors of one tile; the next of a name takes the place of the one before."""

    def __init__(self) -> None:
        self._memory: dict[tuple[str, torch.dtype], Tensor] = {}

    def view(self, name: str, shape: Sequence[int], like: Tensor, dtype: torch.dtype) -> Tensor:
        """Of this shape, with whatever it holds."""
        size = math.prod(shape)
        memory = self._memory.get((name, dtype))
        if memory is None or memory.numel() < size:
            memory = self._memory[name, dtype] = like.new_empty(size, dtype=dtype)
        return memory[:size].view(*shape)

    def cast(self, name: str, x: Tensor, dtype: torch.dtype) -> Tensor:
        """The same numbers in another type; x itself where it has that one."""
        return x if x.dtype == dtype else self.view(name, x.shape, x, dtype).copy_(x)


def _probs(q: Tensor, k: Tensor, tile: Tile, room: _Room) -> Tensor:
    """[B * kv_heads, R * queries, keys] attention probabilities of a tile."""
    heads = k.shape[0] // tile.bias.shape[0]
    queries = q[:, :, tile.start : tile.stop].flatten(1, 2)
    scores = room.view("scores", (*queries.shape[:2], tile.keys), queries, queries.dtype)
    torch.bmm(queries, k[:, : tile.keys].transpose(1, 2), out=scores)
    scores.view(tile.bias.shape[0], heads, q.shape[1], tile.stop - tile.start, tile.keys).add_(tile.bias)
    return torch.softmax(scores, -1, out=scores)


def _tiles(bucket: Bucket, sees: tuple[int | None, int | None], q: Tensor) -> Iterator[Tile]:
    """The bucket's queries cut so that a tile's scores stay in the cache; cut once for all layers."""
    size, queries, keys = bucket.shape
    known = bucket.tiles.get((sees, q.dtype))
    if known is None:
        rows = size * (q.shape[0] // size) * q.shape[1]
        step = max(LEAST_TILE, TILE_SCORES // max(1, rows * keys))
        seen = bucket.mask(*sees)[:, 0]
        known = []
        for start in range(0, queries, step):
            stop = min(queries, start + step)
            reach = max(unit.prefix_length + min(stop, unit.length) for unit in bucket.units)
            bias = torch.zeros(size, 1, 1, stop - start, reach, dtype=q.dtype, device=q.device)
            bias.masked_fill_(~seen[:, None, None, start:stop, :reach], float("-inf"))
            known.append(Tile(start, stop, reach, bias))
        bucket.tiles[sees, q.dtype] = known
    yield from known


def _queries(rows: Tensor, bucket: Bucket, kv_heads: int) -> Tensor:
    """[N, heads, D] -> [B * kv_heads, R, Q, D], heads that share a key head together."""
    size, queries, _ = bucket.shape
    gathered = rows.index_select(0, bucket.query_rows) if size > 1 else _slice(rows, bucket.units[0])
    return gathered.view(size, queries, kv_heads, -1, rows.shape[2]).permute(0, 2, 3, 1, 4).flatten(0, 1).contiguous()


def _keys(rows: Tensor, bucket: Bucket) -> Tensor:
    """[N, kv_heads, D] -> [B * kv_heads, K, D]."""
    size, _, keys = bucket.shape
    gathered = rows.index_select(0, bucket.key_rows)
    return gathered.view(size, keys, *rows.shape[1:]).transpose(1, 2).flatten(0, 1).contiguous()


def _slice(rows: Tensor, unit: Unit) -> Tensor:
    return rows[unit.first : unit.first + unit.length].contiguous()


def _put_queries(queries: Tensor, bucket: Bucket, rows: Tensor) -> None:
    """[B * kv_heads, R, Q, D] -> the units' own rows of [N, heads, D]."""
    size = len(bucket.units)
    whole = queries.unflatten(0, (size, -1)).permute(0, 3, 1, 2, 4)  # [B, Q, kv_heads, R, D]
    for unit, part in zip(bucket.units, whole, strict=True):
        rows[unit.first : unit.first + unit.length] = part[: unit.length].flatten(1, 2)


def _add_keys(keys: Tensor, bucket: Bucket, rows: Tensor) -> None:
    """[B * kv_heads, K, D] added to the rows that the keys came from; branches share their prefix's rows."""
    whole = keys.unflatten(0, (len(bucket.units), -1)).transpose(1, 2)  # [B, K, kv_heads, D]
    for (first, length, prefix_first, prefix_length), part in zip(bucket.units, whole, strict=True):
        if prefix_length:
            rows[prefix_first : prefix_first + prefix_length] += part[:prefix_length]
        rows[first : first + length] += part[prefix_length : prefix_length + length]


def _silence_padding(grad: Tensor, bucket: Bucket) -> None:
    """A padded query repeats a real row, whose gradient is not its own."""
    parts = grad.unflatten(0, (len(bucket.units), -1))
    for unit, part in zip(bucket.units, parts, strict=True):
        part[:, :, unit.length :] = 0
