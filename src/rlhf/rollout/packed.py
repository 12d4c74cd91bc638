"""Decoding with packed rows: each prompt once, one token per step for every live row, no padding outside attention."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlhf.models.attention import IMPLEMENTATION, attention_layout, install_attention
from rlhf.models.score import split_head
from rlhf.rollout.cache import GROW_BLOCK, KVCache
from rlhf.rollout.fused import FusedModel
from rlhf.rollout.sampling_attention import DecodeLayout, PrefillLayout, RowLayout

SMALL_PASS = 1 << 18
"""Pairs of query and key, padding included, up to which another pass would cost more than the padding."""
MAX_PADDING = 2
"""Pairs with padding to pairs without, in one pass over prompts."""


class PackedDecoder:
    """For families whose attention goes through ``rlhf.models.attention``."""

    layout_type = DecodeLayout
    """How rows are arranged in the cache."""

    def __init__(
        self, model: PreTrainedModel, cache: KVCache, *, max_prefill_tokens: int, fused: FusedModel | None = None
    ) -> None:
        """Prepare for one set of rows.

        Args:
            model: One that takes the packed path.
            cache: Its memory is reused, its contents are not.
            max_prefill_tokens: Prompt tokens in one forward pass; a longer prompt goes alone.
            fused: Computes in the model's place.
        """
        if model.config._attn_implementation != IMPLEMENTATION:
            install_attention(model)
        self.backbone, self.head = split_head(model)
        self.device = next(model.parameters()).device
        self.cache = cache
        cache.wide_rows = not (fused is not None and fused.attends_itself)
        self.max_prefill_tokens = max_prefill_tokens
        self.fused = fused
        self.in_c = fused is not None and fused.attends_itself
        """Whether prompts attend in C, as decoding steps do."""
        self.first_position = 0
        """Of every prompt's first token; a comparison moves it."""

    def prefill(self, prompts: Sequence[Sequence[int]], group: np.ndarray, max_new_tokens: int) -> Tensor:
        """Read the prompts.

        Args:
            prompts: P lists of token ids.
            group: int64 [R] the prompt of each row.
            max_new_tokens: Tokens that a row may come to hold.

        Returns:
            [R, V] logits of each row's first token, temperature 1.
        """
        self.cache.clear()
        self.max_new_tokens = max_new_tokens
        room = min(GROW_BLOCK, max_new_tokens)
        lengths, places = _by_length(prompts)
        shape = (len(prompts), int(lengths[-1]), len(group), room)
        logits = self._read_all(prompts, group, shape, first=0)
        self.layout = self.layout_type(self.cache, places[group], lengths, self.device, room=room)
        return logits

    def join(self, prompts: Sequence[Sequence[int]], group: np.ndarray) -> Tensor:
        """Prefill more prompts while other rows are being sampled; ``group`` and the result as above, for the new rows only."""
        layout = self.layout
        live = (len(layout.prompt_lens), layout.num_rows)
        lengths, places = _by_length(prompts)
        num_prompts, num_rows = live[0] + len(prompts), live[1] + len(group)
        longest = max(layout.longest, int(lengths[-1]))
        self.cache.reserve(live=live, prompts=num_prompts, longest=longest, rows=num_rows)
        logits = self._read_all(prompts, group, (num_prompts, longest, num_rows, layout.room), first=live[0])
        layout.join(places[group], lengths)
        return logits

    def step(self, tokens: Tensor) -> Tensor:
        """Feed each row's newest token, int64 [R]; gives [R, V] logits of the next."""
        self.layout.make_place(self.max_new_tokens)
        hidden = self._hidden(tokens, self.layout.positions(), self.layout)
        self.layout.advance()
        return self._logits(hidden)

    def keep(self, alive: np.ndarray) -> np.ndarray:
        """Drop rows; int64 [R'] gives the former index of each remaining row."""
        return self.layout.keep(alive)

    def _read_all(
        self, prompts: Sequence[Sequence[int]], group: np.ndarray, shape: tuple[int, int, int, int], *, first: int
    ) -> Tensor:
        """[R', V] logits of new rows; their prompts go into the cache from its place ``first`` on, the shortest first."""
        lengths, places = _by_length(prompts)
        if self.fused is not None:
            self.fused.prepare(self.first_position + int(lengths[-1]) + self.max_new_tokens)
        order = np.argsort(places)
        runs = self._runs(order, lengths)
        hidden = torch.cat([self._read([prompts[i] for i in run], shape, first + start) for start, run in runs])
        return self._logits(hidden).index_select(0, torch.from_numpy(places[group]).to(self.device))

    def _runs(self, order: np.ndarray, lengths: np.ndarray) -> list[tuple[int, list[int]]]:
        """Cut the prompts, in the order of their lengths, into passes; each with the place of its first prompt."""
        runs: list[tuple[int, list[int]]] = []
        room = pairs = 0
        for place, prompt in enumerate(order.tolist()):
            length = int(lengths[place])
            # Attention pads the prompts of a pass to the longest of them, which is this one.
            padded = (len(runs[-1][1]) + 1) * length**2 if runs else 0
            if not runs or length > room or padded > max(SMALL_PASS, MAX_PADDING * (pairs + length**2)):
                runs.append((place, []))
                room, pairs = self.max_prefill_tokens, 0
            runs[-1][1].append(prompt)
            room, pairs = room - length, pairs + length**2
        return runs

    def _read(self, prompts: list[Sequence[int]], shape: tuple[int, int, int, int], first: int) -> Tensor:
        """[B, H] hidden states of each prompt's last token; fills the cache."""
        tokens = torch.tensor([token for ids in prompts for token in ids], device=self.device)
        positions = torch.cat([torch.arange(len(ids), device=self.device) for ids in prompts])
        layout = PrefillLayout.of(prompts, self.cache, shape, first, self.device, in_c=self.in_c)
        hidden = self._hidden(tokens, positions, layout)
        last = torch.tensor(np.cumsum([len(ids) for ids in prompts]) - 1, device=self.device)
        return hidden.index_select(0, last)

    def _hidden(self, tokens: Tensor, positions: Tensor, layout: RowLayout) -> Tensor:
        """[N, H] what the last layer gives for tokens [N]; before its norm where the model is fused."""
        positions = positions + self.first_position if self.first_position else positions
        if self.fused is not None:
            return self.fused.hidden(tokens, positions, layout)
        with attention_layout(layout):
            out = self.backbone(input_ids=tokens[None], position_ids=positions[None], use_cache=False)
        hidden: Tensor = out.last_hidden_state[0]
        return hidden

    def _logits(self, hidden: Tensor) -> Tensor:
        """[R, V] at temperature 1, float32 at least, the same arithmetic as the trainer's."""
        if self.fused is not None:
            return self.fused.logits(hidden)
        module: nn.Module = self.head.module
        logits: Tensor = module(hidden)
        return self.head.transform(logits.to(torch.promote_types(logits.dtype, torch.float32)), 1.0)


def _by_length(prompts: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Lengths in ascending order, and the place of each prompt in that order: prompts of like length share a pass, so that attention
    pads little; both int64 [P]."""
    lengths = np.array([len(ids) for ids in prompts])
    order = np.argsort(lengths, kind="stable")
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    return lengths[order], places
