"""Keys and values of prompts that were read before, for later prompts that begin alike.

A prompt is kept in blocks of a ``PagedKVCache``; one that continues another shares its full blocks, so what many have in common (a system
prompt, a conversation that grows) is in memory once. What was used longest ago goes first when the blocks are used up.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from rlhf.errors import MemoryLimitError
from rlhf.rollout.paged import PagedKVCache

logger = logging.getLogger(__name__)

BLOCK_TOKENS = 16
FEWEST_TOKENS = 16
"""A shorter beginning in common is read again: finding and copying it would take as long."""


@dataclass(frozen=True, slots=True)
class KeptPrefix:
    """The beginning of a prompt that is in the cache."""

    name: int
    """Of the sequence that holds it."""
    length: int
    """Tokens; 0 for a prompt of which nothing is there."""


class PrefixCache:
    """The prompts of one model.

    Args:
        max_tokens: Tokens that are kept at most; 0 keeps none.
        fewest_tokens: A shorter beginning in common is read again.
    """

    def __init__(self, max_tokens: int, *, fewest_tokens: int = FEWEST_TOKENS) -> None:
        self.max_blocks = max_tokens // BLOCK_TOKENS
        self.fewest_tokens = fewest_tokens
        self._pages: PagedKVCache | None = None
        self._layers: dict[nn.Module, int] = {}
        self._prompts: OrderedDict[int, np.ndarray] = OrderedDict()
        """Name -> token ids, the one used longest ago first."""
        self._scopes: dict[int, Hashable] = {}
        """Name -> whose prompt it is."""
        self._of_scope: dict[Hashable, dict[int, None]] = {}
        """The finished prompts of each."""
        self._next = 0
        self.like: Tensor | None = None
        """[..., kv_heads, D] of a layer, known after the first pass."""
        self.modules: list[nn.Module] = []
        """The attention layers, in order."""

    @property
    def num_bytes(self) -> int:
        """Memory taken."""
        return self._pages.num_bytes if self._pages is not None else 0

    @property
    def used_frac(self) -> float:
        """Share of the blocks that hold tokens."""
        return self._pages.used_blocks / self.max_blocks if self._pages is not None and self.max_blocks else 0.0

    def longest(self, ids: Sequence[int], scope: Hashable = None) -> KeptPrefix:
        """The longest kept beginning of a prompt among those of its scope; its last token is never among it, as somebody must predict
        the next one."""
        wanted = np.asarray(ids[:-1], dtype=np.int64)
        best, length = -1, 0
        for name in self._of_scope.get(scope, ()):
            common = _common(self._prompts[name], wanted)
            if common >= length:  # of equal ones the newest
                best, length = name, common
        if length < self.fewest_tokens:
            return KeptPrefix(-1, 0)
        self._prompts.move_to_end(best)
        return KeptPrefix(best, length)

    def read(self, module: nn.Module, prefix: KeptPrefix) -> tuple[Tensor, Tensor]:
        """Keys and values [T, kv_heads, D] of an attention layer for the T tokens of a prefix, which has some."""
        assert self._pages is not None
        return self._pages.tokens(self._layers[module], prefix.name, prefix.length)

    def begin(self, ids: Sequence[int], prefix: KeptPrefix, scope: Hashable = None) -> int | None:
        """Room for a prompt, of which ``prefix`` is there; the rest is to be written.

        Args:
            ids: All its tokens.
            prefix: What ``longest`` found for it.
            scope: Whose it is.

        Returns:
            The name to write under; None where there is no room, or the layers are not known yet.
        """
        if self._pages is None:
            if not self.max_blocks or self.like is None:
                return None
            layers, like = self.modules, self.like
            self._layers = {module: number for number, module in enumerate(layers)}
            try:
                self._pages = PagedKVCache(
                    num_layers=len(layers), kv_heads=like.shape[-2], head_width=like.shape[-1], max_blocks=self.max_blocks,
                    block_tokens=BLOCK_TOKENS, dtype=like.dtype, device=like.device,
                )  # fmt: skip
            except MemoryError as err:  # the system gives no room that it surely does not have
                logger.warning(
                    "No prompt is kept for later ones that begin alike: %d tokens of keys and values need more memory than there is (%s).",
                    self.max_blocks * BLOCK_TOKENS,
                    err,
                )
                self.max_blocks = 0
                return None
        needed = -(-len(ids) // BLOCK_TOKENS) - prefix.length // BLOCK_TOKENS
        if needed > self.max_blocks:
            return None
        while self._pages.free_blocks < needed:
            oldest = next((name for name in self._prompts if name != prefix.name), None)
            if oldest is None:
                return None
            self.drop(oldest)
        name, self._next = self._next, self._next + 1
        try:
            if prefix.length:
                self._pages.fork(prefix.name, name, prefix.length)
                self._pages.extend(name, len(ids) - prefix.length)
            else:
                self._pages.allocate(name, len(ids))
        except MemoryLimitError:
            return None
        self._scopes[name] = scope
        return name

    def write(self, module: nn.Module, name: int, first: int, keys: Tensor, values: Tensor) -> None:
        """Keys and values [N, kv_heads, D] of a prompt's tokens from ``first`` on."""
        assert self._pages is not None
        self._pages.write(self._layers[module], name, first, keys, values)

    def finish(self, name: int, ids: Sequence[int]) -> None:
        """Every layer was written: later prompts may use it. Prompts that this one continues are of no more use by themselves. Said again
        of one that was read again, it changes nothing."""
        kept = np.asarray(ids, dtype=np.int64)
        own = self._of_scope.setdefault(self._scopes[name], {})
        for other in list(own):
            shorter = self._prompts[other]
            if other != name and len(shorter) <= len(kept) and _common(shorter, kept) == len(shorter):
                self.drop(other)
        self._prompts[name] = kept
        own[name] = None

    def drop(self, name: int) -> None:
        """Forget a prompt, finished or not."""
        assert self._pages is not None
        self._prompts.pop(name, None)
        self._of_scope.get(self._scopes.pop(name), {}).pop(name, None)
        self._pages.free(name)

    def drop_scope(self, scope: Hashable) -> None:
        """Forget the finished prompts of a scope."""
        for name in list(self._of_scope.pop(scope, ())):
            self.drop(name)

    def fit(self, num_bytes: int) -> None:
        """As many blocks as this memory has room for, once the layers are known and before anything is kept."""
        if self.like is not None:
            a_token = 2 * len(self.modules) * self.like.shape[-2] * self.like.shape[-1] * self.like.element_size()
            self.max_blocks = num_bytes // (BLOCK_TOKENS * a_token)

    def clear(self) -> None:
        """Forget all, and give the memory back: the weights are others."""
        self._pages, self._layers = None, {}
        self._prompts.clear()
        self._scopes.clear()
        self._of_scope.clear()


def _common(first: np.ndarray, second: np.ndarray) -> int:
    """Tokens at the beginning that are the same."""
    length = min(len(first), len(second))
    different = np.flatnonzero(first[:length] != second[:length])
    return int(different[0]) if len(different) else length


def fits_pages(keys: Tensor, values: Tensor) -> bool:
    """Whether keys and values of a layer, [..., kv_heads, D], can be in the same blocks."""
    return keys.shape == values.shape and keys.dtype == values.dtype and torch.is_floating_point(keys)
