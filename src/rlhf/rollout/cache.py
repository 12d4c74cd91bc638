"""Keys and values of prompts and of what was sampled after them, kept from step to step.

    P  prompts with a live completion      R  live completions, one row each      C  room for sampled tokens
    L  longest prompt                      T  tokens sampled so far, the one being fed included

A prompt's keys and values are there once, whatever the size of its group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rlhf.models.attention import AttentionSettings

GROW_BLOCK = 64
"""Tokens by which the room for completions grows."""
MOST_SLACK = 2
"""Places of a table for prompts to those that are asked for, where it keeps the larger of both axes so as not to be made again soon."""


class Buffer:
    """Memory that is kept and handed out in other shapes: fresh pages cost a CPU as much as the arithmetic."""

    def __init__(self) -> None:
        self._memory: Tensor | None = None

    @property
    def num_bytes(self) -> int:
        """What it holds."""
        return self._memory.nbytes if self._memory is not None else 0

    def room(self, size: int, like: Tensor, dtype: torch.dtype) -> int:
        """How many parts of so many numbers it could hand out without more memory."""
        memory = self._memory
        usable = memory is not None and memory.dtype == dtype and memory.device == like.device
        return memory.numel() // size if memory is not None and usable else 0

    def view(self, shape: Sequence[int], like: Tensor, dtype: torch.dtype) -> Tensor:
        """A tensor of this shape, not initialized, on the device of ``like``; the one given before becomes invalid."""
        size = math.prod(shape)
        memory = self._memory
        if memory is None or memory.numel() < size or memory.dtype != dtype or memory.device != like.device:
            with torch.inference_mode(False):  # it outlives the rollout, and others write to it outside of that mode
                memory = self._memory = torch.empty(size, dtype=dtype, device=like.device)
        return memory[:size].view(*shape)


@dataclass(slots=True)
class LayerCache:
    """One attention layer's keys and values."""

    prompt_keys: Tensor
    """[P, kv_heads, L, D] right-padded; padding holds finite numbers."""
    prompt_values: Tensor
    keys: Tensor
    """[R, kv_heads, C, D]."""
    values: Tensor
    settings: AttentionSettings
    """The layer's attention options when it read the prompts."""


class KVCache:
    """The caches of all attention layers, found by module; memory is reused from one rollout to the next."""

    def __init__(self, *, has_slack: bool = False) -> None:
        """Empty.

        Args:
            has_slack: Tables are larger than asked for, so that those of a server, where prompts come and go one by one, are seldom
                reallocated; without it they are as large as asked for.
        """
        self._has_slack = has_slack
        self.layers: dict[nn.Module, LayerCache] = {}
        self.wide_rows = True
        """Whether what was sampled is kept in float32 on a CPU where prompts are in half precision; see ``_row_dtype``."""
        self._buffers: dict[tuple[nn.Module, str], Buffer] = {}

    def clear(self) -> None:
        """Forget the contents, keep the memory."""
        self.layers = {}

    def release(self) -> None:
        """Give the memory back too."""
        self.layers, self._buffers = {}, {}

    def release_if_larger(self, num_bytes: int) -> None:
        """Keep a small memory for the next rollout, but do not hold a large one while others train."""
        if sum(buffer.num_bytes for buffer in self._buffers.values()) > num_bytes:
            self.release()

    def make_layer(
        self,
        module: nn.Module,
        key: Tensor,
        value: Tensor,
        shape: tuple[int, int, int, int],
        settings: AttentionSettings,
    ) -> LayerCache:
        """Room for a layer.

        Args:
            module: The attention layer.
            key: [N, kv_heads, D], for widths and device.
            value: [N, kv_heads, D'].
            shape: P, L, R, C.
            settings: What the layer asks of attention.
        """
        prompts, longest, rows, room = shape

        def table(name: str, like: Tensor, first: int, second: int, dtype: torch.dtype) -> Tensor:
            buffer = self._buffers.setdefault((module, name), Buffer())
            a_place = like.shape[1] * second * like.shape[2]
            there = buffer.room(a_place, like, dtype) if self._has_slack else 0  # others may join without a new table
            return buffer.view((max(first, there), like.shape[1], second, like.shape[2]), like, dtype)

        layer = self.layers[module] = LayerCache(
            prompt_keys=table("prompt_keys", key, prompts, longest, _cache_dtype(key)),
            prompt_values=table("prompt_values", value, prompts, longest, _cache_dtype(value)),
            keys=table("keys", key, rows, room, self._row_dtype(key)),
            values=table("values", value, rows, room, self._row_dtype(value)),
            settings=settings,
        )
        return layer

    def _row_dtype(self, x: Tensor) -> torch.dtype:
        """A row's product with its own tokens is one of a vector and a matrix: for torch on a CPU that takes three times as long in
        half precision as in float32 (measured at 40 rows of 8 heads, 64 tokens of width 32: 330 us against 100)."""
        dtype = _cache_dtype(x)
        return torch.promote_types(dtype, torch.float32) if self.wide_rows and x.device.type == "cpu" else dtype

    def grow(self, rows: int, room: int, *, first: int = 0) -> None:
        """Make room for more sampled tokens of the first ``rows`` rows, which are all that live; what was at the place ``first`` of a
        ring is moved to its beginning."""
        for module in self.layers:
            for name in ("keys", "values"):
                old, bigger = self._replace(module, name, first=rows, second=room)
                filled = old.shape[2]
                bigger[:, :, : filled - first] = old[:rows, :, first:]
                bigger[:, :, filled - first : filled] = old[:rows, :, :first]

    def reserve(self, *, live: tuple[int, int], prompts: int, longest: int, rows: int) -> None:
        """Make room for more prompts and rows.

        Args:
            live: Prompts and rows whose contents stay.
            prompts: P then.
            longest: L then, at least that of the prompts that stay.
            rows: R then.
        """
        for module, layer in self.layers.items():
            have = (*layer.prompt_keys.shape[:3:2], layer.keys.shape[0])
            if have[0] >= prompts and have[1] >= longest and have[2] >= rows:
                continue
            first, second, more_rows = max(have[0], prompts + prompts // 4), max(have[1], longest), rows + rows // 4
            if not self._has_slack:
                more_rows = rows
            if not self._has_slack or first * second > MOST_SLACK * prompts * longest:
                first, second = prompts, longest
            for name in ("prompt_keys", "prompt_values"):  # all of them: what one no longer needs, another may
                old, new = self._replace(module, name, first=first, second=second)
                both = min(old.shape[2], second)
                new[: live[0], :, :both] = old[: live[0], :, :both]
                new[: live[0], :, both:] = 0
            for name in ("keys", "values"):
                old, new = self._replace(module, name, first=more_rows, second=layer.keys.shape[2])
                new[: live[1]] = old[: live[1]]

    def clear_rows(self, first: int, last: int, filled: int) -> None:
        """Set ``filled`` places of the rows from ``first`` up to ``last`` to zero."""
        for layer in self.layers.values():
            for table in (layer.keys, layer.values):
                table[first:last, :, :filled] = 0

    def _replace(self, module: nn.Module, name: str, *, first: int, second: int) -> tuple[Tensor, Tensor]:
        """A layer's former table, and the new one in its place, of other first and third axes and not initialized."""
        layer = self.layers[module]
        old: Tensor = getattr(layer, name)
        buffer = self._buffers[module, name] = Buffer()  # not the old one: its memory is being read
        new = buffer.view((first, old.shape[1], second, old.shape[3]), old, old.dtype)
        setattr(layer, name, new)
        return old, new

    def move(self, *, prompts: tuple[Tensor, Tensor] | None, rows: tuple[Tensor, Tensor] | None, filled: int) -> None:
        """Copy places into holes, each (targets, sources); ``filled`` places of a row hold tokens."""
        for layer in self.layers.values():
            if prompts is not None:
                for table in (layer.prompt_keys, layer.prompt_values):
                    table[prompts[0]] = table[prompts[1]]
            if rows is not None:
                for table in (layer.keys, layer.values):
                    table[rows[0], :, :filled] = table[rows[1], :, :filled]


def _cache_dtype(x: Tensor) -> torch.dtype:
    """Under autocast the products are in its type, so the cache is too: cast once, not at every step."""
    if torch.is_autocast_enabled(x.device.type):
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype
