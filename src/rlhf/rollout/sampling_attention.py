"""Attention while sampling: which rows attend to which, and access to the cache. Axes as in ``cache``.

A decoding step multiplies all queries of a group with their prompt in one product, each row's query with the row's own
tokens in another, and takes one softmax over both.

Rows may have started at different times. All write their newest token to the same position of a ring buffer for completions,
so none is moved while the oldest row fits into the ring; a row does not attend to entries from before its start.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlhf.models.attention import AttentionSettings, attend
from rlhf.native.kernels import Trees, attend_behind
from rlhf.rollout.cache import GROW_BLOCK, KVCache

MaskKind = tuple[int | None, int | None]
"""Window and chunk, as ``AttentionSettings`` has them."""


class RowLayout(ABC):
    """Attention whose rows lie end to end, as a model's own attention layers call it and as a fused model does."""

    __slots__ = ()

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, settings: AttentionSettings
    ) -> Tensor:
        """query [1, heads, N, D], key and value [1, kv_heads, N, D] -> [1, N, heads, D']."""
        query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))
        return self.attend_rows(module, query, key, value, settings).unsqueeze(0)

    @abstractmethod
    def attend_rows(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, settings: AttentionSettings
    ) -> Tensor:
        """query [N, heads, D], key and value [N, kv_heads, D] -> [N, heads, D']."""


@dataclass(slots=True)
class PrefillLayout(RowLayout):
    """Prompts end to end on one row; each sees itself, and its keys and values go into the cache."""

    cache: KVCache
    shape: tuple[int, int, int, int]
    """P, L, R, C of the whole cache."""
    first: int
    """Place in the cache of the first prompt on this row; the others follow."""
    rows: Tensor | None
    """int64 [B * Q] rows of the packed tokens, prompt by prompt, padded with the prompt's first row; None where all are equally long."""
    size: tuple[int, int]
    """B, Q."""
    places: Tensor | None
    """int64 [N] position of each packed row among the padded ones; likewise."""
    trees: Trees | None = None
    """Which rows see which, where attention is in C."""
    masks: dict[MaskKind, Tensor | None] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        prompts: Sequence[Sequence[int]],
        cache: KVCache,
        shape: tuple[int, int, int, int],
        first: int,
        device: torch.device,
        *,
        in_c: bool = False,
    ) -> PrefillLayout:
        """The layout of prompts laid end to end; ``in_c`` for attention in C."""
        trees = prompt_trees([len(ids) for ids in prompts]) if in_c else None
        lengths = np.array([len(ids) for ids in prompts])
        longest = int(lengths.max())
        if int(lengths.min()) == longest:
            return cls(cache, shape, first, rows=None, size=(len(prompts), longest), places=None, trees=trees)
        starts = np.cumsum(lengths) - lengths
        inside = np.arange(longest)[None] < lengths[:, None]
        rows = np.where(inside, starts[:, None] + np.arange(longest), starts[:, None])
        places = np.flatnonzero(inside)
        return cls(
            cache=cache,
            shape=shape,
            first=first,
            rows=torch.from_numpy(rows.reshape(-1)).to(device),
            size=(len(prompts), longest),
            places=torch.from_numpy(places).to(device),
            trees=trees,
        )

    def attend_rows(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, settings: AttentionSettings
    ) -> Tensor:
        """query [N, heads, D], key and value [N, kv_heads, D] -> [N, heads, D']."""
        q, k, v = (self.padded(x) for x in (query, key, value))
        layer = self.cache.layers.get(module) or self.cache.make_layer(module, key, value, self.shape, settings)
        here, longest = slice(self.first, self.first + self.size[0]), self.size[1]
        for table, new in ((layer.prompt_keys, k), (layer.prompt_values, v)):
            table[here, :, :longest] = new
            table[here, :, longest:] = 0  # memory as it was found may hold NaN, which no mask can hide
        if self.trees is not None:
            return attend_known(query, key, value, self.trees, settings)
        # Prompts are padded on the right, so a plain causal mask hides the padding from every real query.
        out = attend(q, k, v, self._mask(settings, query.device), settings, training=False)
        return self.unpadded(out)

    def padded(self, x: Tensor) -> Tensor:
        """[N, heads, D] -> [B, heads, Q, D]."""
        x = x if self.rows is None else x.index_select(0, self.rows)
        return x.unflatten(0, self.size).transpose(1, 2)

    def unpadded(self, x: Tensor) -> Tensor:
        """[B, heads, Q, D] -> [N, heads, D]."""
        x = x.transpose(1, 2).flatten(0, 1)
        return x if self.places is None else x.index_select(0, self.places)

    def _mask(self, settings: AttentionSettings, device: torch.device) -> Tensor | None:
        kind = (settings.sliding_window, settings.chunk)
        if kind not in self.masks:
            position = torch.arange(self.size[1], device=device)
            seen = _seen(position[:, None], position[None], kind)
            self.masks[kind] = None if seen is None else seen & (position[None] <= position[:, None])
        return self.masks[kind]


def prompt_trees(counts: Sequence[int], known: Sequence[int] | None = None) -> Trees:
    """Prompts as ``attend_known`` takes them.

    Args:
        counts: [B] tokens of each that are read now; their rows lie end to end.
        known: [B] tokens before them that were read earlier, whose rows follow behind all of those; None for none.
    """
    branches: dict[tuple[int, int], list[tuple[int, int]]] = {}
    first, behind = 0, sum(counts)
    for count, before in zip(counts, known or [0] * len(counts), strict=True):
        if before:
            branches[behind, before] = [(first, count)]
        else:
            branches[first, count] = []
        first, behind = first + count, behind + before
    return Trees.of(branches)


def attend_known(query: Tensor, key: Tensor, value: Tensor, trees: Trees, settings: AttentionSettings) -> Tensor:
    """Attention in C of the rows that are read, [N, heads, D], to keys and values [N + K, kv_heads, D] of read and of known ones."""
    return attend_behind(
        query, key, value, trees, scaling=settings.scaling, window=settings.sliding_window, chunk=settings.chunk
    )


@dataclass(frozen=True, slots=True)
class _Views:
    """A layer's tables, their first two axes as one."""

    keys: Tensor
    """[R * kv_heads, C, D]."""
    values: Tensor
    prompt_keys: Tensor
    """[P * kv_heads, D, L]."""
    prompt_values: Tensor
    """[P * kv_heads, L, D]."""


class DecodeLayout(RowLayout):
    """One new token for each live row; reads the cache and appends to it."""

    several = False
    """Whether a row may be fed several tokens at once."""

    def __init__(
        self, cache: KVCache, group: np.ndarray, prompt_lens: np.ndarray, device: torch.device, *, room: int
    ) -> None:
        """Start after the prefill.

        Args:
            cache: Filled by ``PrefillLayout``.
            group: int64 [R] the prompt of each row.
            prompt_lens: int64 [P] tokens.
            device: Where the model is.
            room: C, of the cache.
        """
        self.cache = cache
        self.device = device
        self.room = room
        self.time = 0
        """Tokens fed since the beginning of the oldest row that there was."""
        self.born = np.zeros(len(group), dtype=np.int64)
        """[R] the time at which each row began."""
        self._masks: dict[MaskKind, tuple[Tensor | None, Tensor | None]] = {}
        self._padding: Tensor | None = None
        """What hides the places behind shorter prompts, worked out when it is needed."""
        self._views: dict[nn.Module, _Views] = {}
        self.derived: dict[Any, Any] = {}
        """Values derived from the current arrangement of rows; cleared when it changes."""
        self._arrange(group, prompt_lens)

    @property
    def num_rows(self) -> int:
        """R."""
        return len(self.group)

    def positions(self) -> Tensor:
        """int64 [R] of the tokens being fed."""
        return self.begins + self.time

    @property
    def place(self) -> int:
        """Of the tokens being fed, in the room for completions."""
        return self.time % self.room

    def fed_rows(self) -> Tensor:
        """int64 [R] the row of each token being fed."""
        return torch.arange(self.num_rows, device=self.device)

    def fed_places(self) -> Tensor:
        """int64 [R] where it goes in its row's room."""
        return torch.full((self.num_rows,), self.place, device=self.device)

    @property
    def filled(self) -> int:
        """T, places that hold tokens of some row, those being fed included."""
        return min(self.time + 1, self.room)

    def advance(self) -> None:
        """The tokens just fed are in the cache."""
        self.time += 1
        self._masks = (
            {} if self.staggered else {kind: mask for kind, mask in self._masks.items() if kind == (None, None)}
        )

    def make_place(self, most: int) -> None:
        """See to it that the next token overwrites none of a living row: the room grows, up to ``most``, where it must."""
        oldest = int(self.born.min())
        if self.time - oldest < self.room:
            return
        bigger = min(self.room + max(GROW_BLOCK, self.room // 2), most)
        assert bigger > self.room, "a row has come to hold more tokens than there is room for"
        self.cache.grow(self.num_rows, bigger, first=oldest % self.room)
        self.room, self.time = bigger, self.time - oldest
        self._set_born(self.born - oldest)

    def join(self, group: np.ndarray, prompt_lens: np.ndarray) -> None:
        """New rows are appended after the others, and so are their prompts, which are in the cache; both as at the start."""
        former, num_prompts = self.num_rows, len(self.prompt_lens)
        # Places from before a row began are hidden from it, but NaN in memory as it was found would come through.
        self.cache.clear_rows(former, former + len(group), self.filled)
        self.born = np.concatenate([self.born, np.full(len(group), self.time)])
        self._arrange(
            np.concatenate([self.group, group + num_prompts]), np.concatenate([self.prompt_lens, prompt_lens])
        )

    def keep(self, alive: np.ndarray) -> np.ndarray:
        """Drop finished rows, and prompts that have none left; the last places move into the holes.

        Args:
            alive: bool [R].

        Returns:
            int64 [R'] the former place of each row that stays.
        """
        rows = _filled(alive)
        alive_prompts = np.zeros(len(self.prompt_lens), dtype=bool)
        alive_prompts[self.group[rows]] = True
        prompts = _filled(alive_prompts)
        new_place = np.empty(len(self.prompt_lens), dtype=np.int64)
        new_place[prompts] = np.arange(len(prompts))
        self.cache.move(prompts=self._moves(prompts), rows=self._moves(rows), filled=min(self.time, self.room))
        self.born = self.born[rows]
        self._arrange(new_place[self.group[rows]], self.prompt_lens[prompts])
        return rows

    def attend_rows(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, settings: AttentionSettings
    ) -> Tensor:
        """query [R, heads, D], key and value [R, kv_heads, D] -> [R, heads, D']."""
        views = self._views.get(module) or self._view(module)
        num_rows, heads, kv_heads = self.num_rows, query.shape[1], key.shape[1]
        place, filled = self.place, self.filled
        views.keys.select(1, place).copy_(key.flatten(0, 1))
        views.values.select(1, place).copy_(value.flatten(0, 1))
        own_keys, own_values = views.keys.narrow(1, 0, filled), views.values.narrow(1, 0, filled)
        q = query if settings.scaling == 1 else query * settings.scaling
        q = q.reshape(num_rows, kv_heads, heads // kv_heads, -1)  # head h reads key head h // (heads / kv_heads)
        prompt_scores = self._times_prompt(q, views.prompt_keys)
        own_scores = torch.bmm(q.to(own_keys.dtype).flatten(0, 1), own_keys.transpose(1, 2)).view(num_rows, heads, -1)
        probs = self._softmax(prompt_scores, own_scores, settings)
        probs = probs.view(num_rows, kv_heads, heads // kv_heads, -1)
        of_prompt, of_own = probs.split([self.longest, filled], dim=-1)
        out = torch.bmm(of_own.to(own_values.dtype).flatten(0, 1), own_values).view(num_rows, heads, -1)
        out = out.add_(self._times_prompt(of_prompt, views.prompt_values))
        return out if out.dtype == query.dtype else out.to(query.dtype)

    def _view(self, module: nn.Module) -> _Views:
        """A layer's tables as the products take them: the same for every step until rows leave or the tables grow."""
        layer = self.cache.layers[module]
        rows, prompts = self.num_rows, len(self.prompt_lens)
        views = self._views[module] = _Views(
            keys=layer.keys[:rows].flatten(0, 1),
            values=layer.values[:rows].flatten(0, 1),
            prompt_keys=layer.prompt_keys[:prompts, :, : self.longest].flatten(0, 1).transpose(1, 2),
            prompt_values=layer.prompt_values[:prompts, :, : self.longest].flatten(0, 1),
        )
        return views

    def _times_prompt(self, x: Tensor, tables: Tensor) -> Tensor:
        """Each row's part times its prompt's matrix: x [R, kv, repeats, A] by [P * kv, A, B] -> [R, kv * repeats, B]."""
        num_prompts, widest = len(self.prompt_lens), self.widest
        _, kv_heads, repeats, width = x.shape
        x = x.to(tables.dtype)
        if self.grid is not None:
            x = x.index_select(0, self.grid)
        if widest > 1:
            x = x.reshape(num_prompts, widest, kv_heads, repeats, width).transpose(1, 2)
        out = torch.bmm(x.reshape(num_prompts * kv_heads, widest * repeats, width), tables)
        if widest > 1:
            out = out.view(num_prompts, kv_heads, widest, repeats, -1).transpose(1, 2)
        out = out.reshape(num_prompts * widest, kv_heads * repeats, -1)
        return out if self.places is None else out.index_select(0, self.places)

    def _softmax(self, prompt_scores: Tensor, own_scores: Tensor, settings: AttentionSettings) -> Tensor:
        """[R, heads, ..., L + T] probabilities, in float32 at least."""
        parts = [prompt_scores, own_scores]
        for scores, hidden in zip(parts, self._hidden(settings), strict=True):
            if settings.softcap is not None:
                scores.div_(settings.softcap).tanh_().mul_(settings.softcap)
            if hidden is not None:
                scores.add_(hidden)  # the row's own token is always seen, so a softmax is finite
        if settings.sinks is not None:
            parts.append(self._sinks(settings.sinks.to(own_scores.dtype), own_scores).expand(*own_scores.shape[:-1], 1))
        exact = torch.promote_types(own_scores.dtype, torch.float32)
        probs = torch.softmax(torch.cat(parts, dim=-1).to(exact), dim=-1)  # to() first: a softmax that casts is slow
        return probs if settings.sinks is None else probs[..., :-1].contiguous()

    def _sinks(self, sinks: Tensor, scores: Tensor) -> Tensor:
        """[heads] in the shape that broadcasts with scores [R, heads, T]."""
        return sinks.view(1, -1, 1)

    def _hidden(self, settings: AttentionSettings) -> tuple[Tensor | None, Tensor | None]:
        """[R, 1, L] and [R, 1, T] to be added to scores, minus infinity where a row may not look; None where nothing is hidden."""
        kind = (settings.sliding_window, settings.chunk)
        if kind not in self._masks:
            self._masks[kind] = (self._hidden_prompt(kind), self._hidden_own(kind))
        return self._masks[kind]

    def _hidden_prompt(self, kind: MaskKind) -> Tensor | None:
        if self._padding is None and self.ragged:
            places = torch.arange(self.longest, device=self.device)[None]
            self._padding = _added((places >= self.row_lens[:, None])[:, None])
        if kind == (None, None):
            return self._padding
        places = torch.arange(self.longest, device=self.device)[None]
        unseen = _added(~_seen_always(self.positions()[:, None], places, kind)[:, None])
        return unseen if self._padding is None else unseen.add_(self._padding)

    def _hidden_own(self, kind: MaskKind) -> Tensor | None:
        if kind == (None, None) and not self.staggered:
            return None
        ages = (self.place - torch.arange(self.filled, device=self.device)[None]).remainder(self.room)
        query_places = self.positions()[:, None]
        places = query_places - ages
        hidden = places < self.row_lens[:, None]
        if kind != (None, None):
            hidden = hidden | ~_seen_always(query_places, places, kind)
        return _added(hidden[:, None])

    def _arrange(self, group: np.ndarray, prompt_lens: np.ndarray) -> None:
        """Arrange the rows of each group side by side: a grid of P groups by the size of the largest."""
        self.group, self.prompt_lens = group, prompt_lens
        self.longest = int(prompt_lens.max())
        """L of the prompts that are left."""
        counts = np.bincount(group, minlength=len(prompt_lens))
        self.widest = int(counts.max())
        order = np.argsort(group, kind="stable")
        rank = np.arange(len(group)) - (np.cumsum(counts) - counts)[group[order]]
        place = group[order] * self.widest + rank
        grid = np.zeros(len(prompt_lens) * self.widest, dtype=np.int64)  # an empty place repeats row 0
        grid[place] = order
        places = np.empty(len(group), dtype=np.int64)
        places[order] = place
        in_order = len(grid) == len(group) and bool((grid == np.arange(len(grid))).all())
        self.grid = None if in_order else self._to_device(grid)
        self.places = None if in_order else self._to_device(places)
        self.row_lens = self._to_device(prompt_lens[group])
        self.ragged = bool((prompt_lens < self.longest).any())
        self._padding = None
        self._set_born(self.born)

    def _set_born(self, born: np.ndarray) -> None:
        """Record when each row began; values that depend on it are recomputed."""
        self.born = born
        self.staggered = bool(born.any())
        self.begins = self._to_device(self.prompt_lens[self.group] - born)
        """int64 [R] position of a row's token at time 0, had the row been there."""
        self._masks = {}
        self._views = {}
        self.derived = {}

    def _moves(self, kept: np.ndarray) -> tuple[Tensor, Tensor] | None:
        targets = np.flatnonzero(kept != np.arange(len(kept)))
        return (self._to_device(targets), self._to_device(kept[targets])) if len(targets) else None

    def _to_device(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)


def _filled(alive: np.ndarray) -> np.ndarray:
    """Former places of the living, each hole filled from the end, so that as few as possible move."""
    count = int(alive.sum())
    kept = np.arange(count)
    kept[~alive[:count]] = count + np.flatnonzero(alive[count:])
    return kept


def _added(hidden: Tensor) -> Tensor:
    """0 and minus infinity; adding them takes a third of the time of a ``masked_fill_``. Exact in every type of scores."""
    return torch.zeros(hidden.shape, dtype=torch.bfloat16, device=hidden.device).masked_fill_(hidden, -math.inf)


def _seen(query_positions: Tensor, key_positions: Tensor, kind: MaskKind) -> Tensor | None:
    """Whether a key is inside the query's window and chunk; None where there is neither."""
    window, chunk = kind
    seen = None
    if window is not None:
        seen = query_positions - key_positions < window
    if chunk is not None:
        same = query_positions // chunk == key_positions // chunk
        seen = same if seen is None else seen & same
    return seen


def _seen_always(query_positions: Tensor, key_positions: Tensor, kind: MaskKind) -> Tensor:
    seen = _seen(query_positions, key_positions, kind)
    assert seen is not None
    return seen
