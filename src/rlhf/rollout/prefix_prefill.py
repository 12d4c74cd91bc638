"""Reading prompts of which the beginning is known already, in one pass or in several. Axes as in ``cache``.

B  prompts in one pass      Q  most tokens that are read of one of them      J  most tokens of one of them, known ones included
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlhf.models.attention import AttentionSettings, attend
from rlhf.native.kernels import Trees
from rlhf.rollout.cache import KVCache
from rlhf.rollout.fused import FusedModel
from rlhf.rollout.packed import PackedDecoder
from rlhf.rollout.prefix_cache import KeptPrefix, PrefixCache, fits_pages
from rlhf.rollout.sampling_attention import (
    MaskKind,
    PrefillLayout,
    RowLayout,
    _seen,
    attend_known,
    prompt_trees,
)


class PromptReading(Sequence[int]):
    """A prompt on its way into the model: its tokens, and how many of them were read."""

    def __init__(self, ids: Sequence[int], prefix: KeptPrefix, name: int | None) -> None:
        """Use ``PrefixDecoder.begin``.

        Args:
            ids: All tokens.
            prefix: What is in the cache of them.
            name: What the cache keeps them under; None where it does not.
        """
        self.ids, self.prefix, self.name = list(ids), prefix, name
        self.from_cache = prefix.length
        """Tokens that an earlier prompt had read."""

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, place):  # type: ignore[no-untyped-def]  # a list's own signature
        return self.ids[place]

    def __iter__(self) -> Iterator[int]:
        return iter(self.ids)

    @property
    def num_unread(self) -> int:
        """Tokens that are left."""
        return len(self.ids) - self.prefix.length

    @property
    def can_wait(self) -> bool:
        """Whether some of it may be read now and the rest later."""
        return self.name is not None


@dataclass(slots=True)
class ContinuedLayout(RowLayout):
    """Further tokens of prompts, end to end on one row; each sees its prompt's earlier ones, wherever those are."""

    own: PrefillLayout
    """Places of the tokens that are read, without their beginnings."""
    prefixes: PrefixCache
    readings: list[PromptReading]
    known: np.ndarray
    """int64 [B] tokens that were read before."""
    counts: np.ndarray
    """int64 [B] tokens that are read now."""
    joins: bool
    """Whether the prompts get their place in the tables of the live rows."""
    device: torch.device
    trees: Trees | None = None
    """Which rows see which, where attention is in C."""
    masks: dict[MaskKind, Tensor | None] = field(default_factory=dict)

    @property
    def longest(self) -> int:
        """J."""
        return int((self.known + self.counts).max())

    def attend_rows(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, settings: AttentionSettings
    ) -> Tensor:
        """query [N, heads, D], key and value [N, kv_heads, D] -> [N, heads, D']."""
        own, size = self.own, len(self.readings)
        former = self._exchanged(module, key, value)
        tables = []
        if self.joins:
            layer = own.cache.layers.get(module) or own.cache.make_layer(module, key, value, own.shape, settings)
            tables = [table[own.first : own.first + size] for table in (layer.prompt_keys, layer.prompt_values)]
        elif self.trees is None:
            tables = [new.new_empty(size, new.shape[1], self.longest, new.shape[2]) for new in (key, value)]
        for table, new, before in zip(tables, (key, value), former, strict=False):
            self._fill(table, new, before)
        if self.trees is not None:
            keys, values = (torch.cat([new, *before]) for new, before in zip((key, value), former, strict=True))
            return attend_known(query, keys, values, self.trees, settings)
        keys, values = (table[:, :, : self.longest].to(query.dtype) for table in tables)
        out = attend(own.padded(query), keys, values, self._mask(settings), settings, training=False)
        return own.unpadded(out)

    def _exchanged(self, module: nn.Module, key: Tensor, value: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Keys and values [T, kv_heads, D] of what is known of each prompt of which something is; what was read goes into the cache of
        prefixes, where a prompt has room in it."""
        keys, values, last = [], [], 0
        for reading, known, count in zip(self.readings, self.known.tolist(), self.counts.tolist(), strict=True):
            first, last = last, last + count
            if reading.name is not None:
                self.prefixes.write(module, reading.name, known, key[first:last], value[first:last])
            if known:
                former = self.prefixes.read(module, reading.prefix)
                keys.append(former[0])
                values.append(former[1])
        return keys, values

    def _fill(self, table: Tensor, new: Tensor, former: list[Tensor]) -> None:
        """Known and read tokens [.., kv_heads, D] into a table [B, kv_heads, J or more, D], and zeros behind them."""
        last, before = 0, iter(former)
        for place, (known, count) in enumerate(zip(self.known.tolist(), self.counts.tolist(), strict=True)):
            first, last = last, last + count
            tokens = table[place].transpose(0, 1)
            if known:
                tokens[:known] = next(before)
            tokens[known : known + count] = new[first:last]
            tokens[known + count :] = 0  # memory as it was may hold NaN, which no mask can hide

    def _mask(self, settings: AttentionSettings) -> Tensor | None:
        """bool [B, 1, Q, J] what each token sees, itself included; None for plain causal attention."""
        kind = (settings.sliding_window, settings.chunk)
        if kind not in self.masks:
            if kind == (None, None) and not self.known.any():
                self.masks[kind] = None
            else:
                known = torch.from_numpy(self.known).to(self.device)[:, None, None]
                queries = known + torch.arange(int(self.counts.max()), device=self.device)[None, :, None]
                keys = torch.arange(self.longest, device=self.device)[None, None]
                seen = _seen(queries, keys, kind)
                mask = keys <= queries if seen is None else seen & (keys <= queries)
                self.masks[kind] = mask[:, None]
        return self.masks[kind]


class PrefixDecoder(PackedDecoder):
    """A ``PackedDecoder`` that reads no beginning of a prompt twice, and a long prompt in parts."""

    def __init__(
        self,
        model: PreTrainedModel,
        cache: KVCache,
        *,
        max_prefill_tokens: int,
        prefixes: PrefixCache,
        fused: FusedModel | None = None,
    ) -> None:
        """Read prompts as ``PackedDecoder`` does, behind what is kept.

        Args:
            model: One that takes the packed path.
            cache: Of the live rows.
            max_prefill_tokens: Prompt tokens in one forward pass.
            prefixes: Of this model with these weights.
            fused: Computes in the model's place.
        """
        super().__init__(model, cache, max_prefill_tokens=max_prefill_tokens, fused=fused)
        self.prefixes = prefixes

    def begin(self, ids: Sequence[int], scope: Hashable = None) -> PromptReading:
        """Find what is known of a prompt among those of its scope, and keep room for it."""
        nothing = KeptPrefix(-1, 0)
        prefix = self.prefixes.longest(ids, scope)
        name = self.prefixes.begin(ids, prefix, scope)
        if name is None:
            return PromptReading(ids, nothing, None)
        # under its own name, which shares the blocks: the other prompt may be dropped before this one is read
        return PromptReading(ids, KeptPrefix(name, prefix.length) if prefix.length else nothing, name)

    def read_ahead(self, reading: PromptReading, num_tokens: int) -> None:
        """Read some of a prompt's next tokens, never its last one; for a prompt that ``can_wait``."""
        assert reading.name is not None
        first, last = reading.prefix.length, min(reading.prefix.length + num_tokens, len(reading) - 1)
        if last > first:
            if self.fused is not None:
                self.fused.prepare(self.first_position + len(reading))
            self._pass([reading], [last - first], (0, 0, 0, 0), first=0, joins=False)
            reading.prefix = KeptPrefix(reading.name, last)

    def learn(self, token: int) -> None:
        """Read a token to know the layers: what is read first can be kept then, too. Rows that are there are gone."""
        if self.prefixes.like is None:
            self.prefill([[token]], np.zeros(1, dtype=np.int64), 1)

    def forget(self, reading: PromptReading) -> None:
        """Of a prompt that nobody waits for any more and that was not read to its end."""
        if reading.name is not None:
            self.prefixes.drop(reading.name)

    def _read(self, prompts: list[Sequence[int]], shape: tuple[int, int, int, int], first: int) -> Tensor:
        readings = [p if isinstance(p, PromptReading) else PromptReading(p, KeptPrefix(-1, 0), None) for p in prompts]
        hidden = self._pass(readings, [reading.num_unread for reading in readings], shape, first=first, joins=True)
        for reading in readings:
            if reading.name is not None:
                self.prefixes.finish(reading.name, reading.ids)
        if self.prefixes.like is None:
            self._look_at_layers()
        ends = np.cumsum([reading.num_unread for reading in readings]) - 1
        return hidden.index_select(0, torch.from_numpy(ends).to(self.device))

    def _pass(
        self,
        readings: list[PromptReading],
        counts: list[int],
        shape: tuple[int, int, int, int],
        *,
        first: int,
        joins: bool,
    ) -> Tensor:
        """[N, H] of the next ``counts`` tokens of each prompt."""
        known = [reading.prefix.length for reading in readings]
        ids = [reading.ids[a : a + n] for reading, a, n in zip(readings, known, counts, strict=True)]
        tokens = torch.tensor([token for part in ids for token in part], device=self.device)
        positions = torch.cat([torch.arange(a, a + n) for a, n in zip(known, counts, strict=True)]).to(self.device)
        layout = ContinuedLayout(
            own=PrefillLayout.of(ids, self.cache, shape, first, self.device),
            prefixes=self.prefixes,
            readings=readings,
            known=np.array(known),
            counts=np.array(counts),
            joins=joins,
            device=self.device,
            trees=prompt_trees(counts, known) if self.in_c else None,
        )
        return self._hidden(tokens, positions, layout)

    def _look_at_layers(self) -> None:
        """Whether blocks of one size can hold all layers' keys and values."""
        layers = list(self.cache.layers.values())
        sizes = {(x.prompt_keys.shape[1], x.prompt_keys.shape[3], x.prompt_keys.dtype) for x in layers}
        if len(sizes) == 1 and all(fits_pages(x.prompt_keys, x.prompt_values) for x in layers):
            self.prefixes.modules = list(self.cache.layers)
            self.prefixes.like = layers[0].prompt_keys.new_empty(0, *layers[0].prompt_keys.shape[1::2])
