"""Decoding with drafts: several tokens of a row in one step, its newest one and drafted ones. Axes as in ``cache``.

K is the number of tokens of the row that has most of them, N that of all rows together.

Rows differ in how many drafted tokens are accepted, so here each row stores its tokens in order from the beginning of its own room, and
not in a ring shared by all rows. The keys of a rejected token stay until the next tokens overwrite them: no
token attends to positions after its own.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from rlhf.models.attention import AttentionSettings
from rlhf.rollout.cache import GROW_BLOCK, KVCache
from rlhf.rollout.packed import PackedDecoder
from rlhf.rollout.sampling_attention import DecodeLayout, MaskKind, _added, _seen_always


class DraftLayout(DecodeLayout):
    """A ``DecodeLayout`` of several new tokens for each live row. ``time`` counts the places in which any row has tokens."""

    several = True

    def __init__(
        self, cache: KVCache, group: np.ndarray, prompt_lens: np.ndarray, device: torch.device, *, room: int
    ) -> None:
        """Start after the prefill."""
        super().__init__(cache, group, prompt_lens, device, room=room)
        # Hidden places must be finite all the same: memory as it was found may hold NaN.
        cache.clear_rows(0, self.num_rows, room)

    def feed(self, held: np.ndarray, counts: np.ndarray, *, most: int) -> None:
        """Prepare for the next tokens, which overwrite what was guessed wrongly; the room grows, up to ``most``, where it must.

        Args:
            held: int64 [R] tokens of each row before those, all of them right.
            counts: int64 [R] tokens being fed, at least one each.
            most: Largest room.
        """
        self.time = int((held + counts).max())
        if self.time > self.room:
            self._grow(max(self.time, min(self.room + max(GROW_BLOCK, self.room // 2), most)))
        rows = np.repeat(np.arange(len(counts)), counts)
        starts = np.cumsum(counts) - counts
        offsets = np.arange(len(rows)) - starts[rows]
        self.deepest = int(counts.max())
        """K."""
        self.even = len(rows) == len(counts) * self.deepest
        """Whether all rows have equally many tokens."""
        self._tokens_at = self._to_device(rows * self.deepest + offsets)
        """int64 [N] position of each token in a table [R * K]."""
        table = starts[:, None] + np.minimum(np.arange(self.deepest), counts[:, None] - 1)  # the last token fills up
        self._table = self._to_device(table.reshape(-1))
        self._own_places = self._to_device(held[rows] + offsets)
        """int64 [N] of the tokens in their rows' room."""
        self._fed_positions = self.row_lens.index_select(0, self._to_device(rows)) + self._own_places
        self._query_places = self._own_places.index_select(0, self._table).view(len(counts), self.deepest, 1)
        self._rows_fed = self._to_device(rows)
        self._written: dict[int, Tensor] = {}
        self._masks = {}
        self.derived.pop("step", None)

    def positions(self) -> Tensor:
        """int64 [N] of the tokens being fed."""
        return self._fed_positions

    def fed_rows(self) -> Tensor:
        """int64 [N] the row of each token being fed."""
        return self._rows_fed

    def fed_places(self) -> Tensor:
        """int64 [N] where it goes in its row's room."""
        return self._own_places

    @override
    def join(self, group: np.ndarray, prompt_lens: np.ndarray) -> None:
        former, num_prompts = self.num_rows, len(self.prompt_lens)
        self.cache.clear_rows(former, former + len(group), self.room)
        self.born = np.concatenate([self.born, np.zeros(len(group), dtype=np.int64)])
        self._arrange(
            np.concatenate([self.group, group + num_prompts]), np.concatenate([self.prompt_lens, prompt_lens])
        )

    def attend_rows(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, settings: AttentionSettings
    ) -> Tensor:
        """query [N, heads, D], key and value [N, kv_heads, D] -> [N, heads, D']."""
        views = self._views.get(module) or self._view(module)
        heads, kv_heads = query.shape[1], key.shape[1]
        deepest, filled, repeats = self.deepest, self.time, heads // kv_heads
        written = self._written_rows(kv_heads)
        for table, new in ((views.keys, key), (views.values, value)):
            table.view(-1, table.shape[-1]).index_copy_(0, written, new.flatten(0, 1).to(table.dtype))
        own_keys, own_values = views.keys.narrow(1, 0, filled), views.values.narrow(1, 0, filled)
        q = query if settings.scaling == 1 else query * settings.scaling
        # A row's tokens are so many more heads that read the same keys: [R, kv_heads, K * repeats, D].
        q = self._spread(q).view(-1, deepest, kv_heads, repeats, q.shape[-1]).transpose(1, 2).flatten(2, 3)
        shape = (-1, kv_heads, deepest, repeats)
        prompt_scores = self._times_prompt(q, views.prompt_keys).unflatten(1, shape[1:])
        own_scores = torch.bmm(q.to(own_keys.dtype).flatten(0, 1), own_keys.transpose(1, 2)).view(*shape, filled)
        probs = self._softmax(prompt_scores, own_scores, settings).flatten(2, 3)
        of_prompt, of_own = probs.split([self.longest, filled], dim=-1)
        out = torch.bmm(of_own.to(own_values.dtype).flatten(0, 1), own_values).view(len(q), heads * deepest, -1)
        out = out.add_(self._times_prompt(of_prompt, views.prompt_values))
        out = out.view(*shape, out.shape[-1]).transpose(1, 2).reshape(len(q) * deepest, heads, -1)
        out = out.contiguous() if self.even else out.index_select(0, self._tokens_at)
        return out.to(query.dtype)

    def _spread(self, x: Tensor) -> Tensor:
        """[N, ...] -> [R * K, ...]; rows with fewer tokens repeat their last one."""
        return x if self.even else x.index_select(0, self._table)

    def _written_rows(self, kv_heads: int) -> Tensor:
        """int64 [N * kv_heads] the row of a table [R * kv_heads * C, D] that each new key goes to; the same for all layers."""
        if kv_heads not in self._written:
            heads = torch.arange(kv_heads, device=self.device)
            first = (self._rows_fed[:, None] * kv_heads + heads) * self.room
            self._written[kv_heads] = (first + self._own_places[:, None]).flatten()
        return self._written[kv_heads]

    def _sinks(self, sinks: Tensor, scores: Tensor) -> Tensor:
        """[heads] in the shape that broadcasts with scores [R, kv_heads, K, repeats, T]."""
        return sinks.view(1, scores.shape[1], 1, -1, 1)

    def _hidden_prompt(self, kind: MaskKind) -> Tensor | None:
        """[R, 1, K, 1, L], or [R, 1, 1, 1, L] where all tokens of a row see the same."""
        if self._padding is None and self.ragged:
            places = torch.arange(self.longest, device=self.device)[None]
            self._padding = _added((places >= self.row_lens[:, None])[:, None, None, None])
        if kind == (None, None):
            return self._padding
        places = torch.arange(self.longest, device=self.device)
        queries = self._query_places + self.row_lens[:, None, None]
        unseen = _added(~_seen_always(queries, places, kind)[:, None, :, None])
        return unseen if self._padding is None else unseen.add_(self._padding)

    def _hidden_own(self, kind: MaskKind) -> Tensor:
        """[R, 1, K, 1, T]."""
        places = torch.arange(self.time, device=self.device)
        hidden = places > self._query_places
        if kind != (None, None):
            before = self.row_lens[:, None, None]
            hidden = hidden | ~_seen_always(self._query_places + before, places + before, kind)
        return _added(hidden[:, None, :, None])

    def _grow(self, room: int) -> None:
        """More room for every row, with zeros in it."""
        former = self.room
        self.cache.grow(self.num_rows, room)
        for layer in self.cache.layers.values():
            layer.keys[:, :, former:] = 0
            layer.values[:, :, former:] = 0
        self.room = room
        self._views = {}
        self.derived = {}


class DraftingDecoder(PackedDecoder):
    """A ``PackedDecoder`` that feeds a row several tokens at once."""

    layout_type = DraftLayout
    layout: DraftLayout

    def step_drafted(self, tokens: Tensor, counts: np.ndarray, held: np.ndarray) -> Tensor:
        """Feed each row's newest token and guesses at those after it.

        Args:
            tokens: int64 [N] row by row.
            counts: int64 [R] how many of them each row has, at least one.
            held: int64 [R] how many tokens of its completion each row has before those.

        Returns:
            [N, V] logits of what follows each of these tokens.
        """
        self.layout.feed(held, counts, most=self.max_new_tokens)
        return self._logits(self._hidden(tokens, self.layout.positions(), self.layout))
