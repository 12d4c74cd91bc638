"""Keys and values of many sequences in blocks of equal size: memory is proportional to the live tokens, in any order of allocation
and release.

A sequence's tokens lie in the blocks of its table, one after the other; a sequence that is forked from another shares its full
blocks (Kwon et al. 2023, section 4, arXiv:2309.06180).

The local engine keeps the keys and values that it decodes with in dense tables (``rlhf.rollout.cache``): torch has no attention on a CPU
that follows a table of blocks, so every step would first gather what the products read. Measured for one layer, 40 rows of 120 tokens, 8
heads of width 32, float32: gathering takes 4.8 ms and the two products on what was gathered 0.25. Blocks hold what waits:
``rlhf.rollout.prefix_cache`` keeps prompts for later requests in them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rlhf.errors import ConfigError, DataError, MemoryLimitError

FIRST_BLOCKS = 16
"""Blocks that memory is taken for at first on a GPU; it doubles when they are used up."""


@dataclass(slots=True)
class _Sequence:
    blocks: list[int]
    length: int
    places: Tensor | None = None
    """int64 [blocks * block_tokens] where each token is, blocks end to end; worked out when it is needed."""


class PagedKVCache:
    """Blocks of ``block_tokens`` tokens for all layers; B blocks exist, some of them free."""

    def __init__(
        self,
        *,
        num_layers: int,
        kv_heads: int,
        head_width: int,
        max_blocks: int,
        block_tokens: int = 16,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        """Prepare; memory is taken as it is needed.

        Args:
            num_layers: Attention layers.
            kv_heads: Heads of keys and values.
            head_width: D, the width of each.
            max_blocks: Blocks that may exist.
            block_tokens: Tokens in a block.
            dtype: Of what is stored.
            device: Where it is stored.

        Raises:
            ConfigError: A size is below 1.
        """
        sizes = {
            "num_layers": num_layers,
            "kv_heads": kv_heads,
            "head_width": head_width,
            "max_blocks": max_blocks,
            "block_tokens": block_tokens,
        }
        for name, size in sizes.items():
            if size < 1:
                raise ConfigError(f"{name} is {size}; wanted 1 or more.")
        self.max_blocks, self.block_tokens = max_blocks, block_tokens
        on_cpu = torch.device(device).type == "cpu"
        count = max_blocks if on_cpu else min(FIRST_BLOCKS, max_blocks)
        shape = (num_layers, 2, count, block_tokens, kv_heads, head_width)
        self._memory = _zero_pages(shape, dtype) if on_cpu else torch.zeros(shape, dtype=dtype, device=device)
        self._free = list(range(count - 1, -1, -1))
        self._users = [0] * count
        self._num_touched = 0
        """Blocks that were ever handed out: the first ones."""
        self._sequences: dict[Hashable, _Sequence] = {}

    @property
    def num_bytes(self) -> int:
        """Memory taken."""
        blocks = self._num_touched if self._memory.device.type == "cpu" else len(self._users)
        return self._memory.nbytes // len(self._users) * blocks

    @property
    def used_blocks(self) -> int:
        """Blocks that hold tokens of a sequence; a shared one counts once."""
        return len(self._users) - len(self._free)

    @property
    def free_blocks(self) -> int:
        """Blocks that could still be handed out, those that memory was not taken for yet included."""
        return self.max_blocks - self.used_blocks

    def length(self, name: Hashable) -> int:
        """Tokens of a sequence."""
        return self._find(name).length

    def allocate(self, name: Hashable, num_tokens: int = 0) -> None:
        """Begin a sequence with room for some tokens, to be filled by ``write``.

        Raises:
            DataError: There is one of this name.
            MemoryLimitError: There are not enough blocks; nothing was changed.
        """
        self._check_new(name)
        self._sequences[name] = _Sequence([], 0)
        try:
            self.extend(name, num_tokens)
        except (DataError, MemoryLimitError):
            del self._sequences[name]
            raise

    def extend(self, name: Hashable, num_tokens: int) -> None:
        """Make room for more tokens at a sequence's end.

        Raises:
            DataError: There is no such sequence, or a negative number of tokens was asked for.
            MemoryLimitError: There are not enough blocks; nothing was changed.
        """
        sequence = self._find(name)
        if num_tokens < 0:
            raise DataError(f"Sequence {name!r} can't grow by {num_tokens} tokens; give 0 or more.")
        total = sequence.length + num_tokens
        sequence.blocks += self._take(-(-total // self.block_tokens) - len(sequence.blocks), name)
        sequence.length = total

    def fork(self, source: Hashable, name: Hashable, num_tokens: int | None = None) -> None:
        """Begin a sequence with what another holds: full blocks are shared, the last one is copied where it is not full.

        Args:
            source: The other one.
            name: The new one.
            num_tokens: How many of its first tokens; None for all.

        Raises:
            DataError: There is no ``source``, it has fewer tokens, or ``name`` exists.
            MemoryLimitError: There is no block for the copy; nothing was changed.
        """
        origin = self._find(source)
        self._check_new(name)
        length = origin.length if num_tokens is None else num_tokens
        if not 0 <= length <= origin.length:
            raise DataError(f"Sequence {source!r} has {origin.length} tokens; {length} of them can't be forked.")
        full = length // self.block_tokens
        blocks = self._take(-(-length // self.block_tokens) - full, name)
        if blocks:
            self._memory[:, :, blocks[0]] = self._memory[:, :, origin.blocks[full]]
        for block in origin.blocks[:full]:
            self._users[block] += 1
        self._sequences[name] = _Sequence([*origin.blocks[:full], *blocks], length)

    def free(self, name: Hashable) -> None:
        """End a sequence; blocks that no other shares can be handed out again.

        Raises:
            DataError: There is no such sequence, or it was freed before.
        """
        for block in reversed(self._find(name).blocks):
            self._users[block] -= 1
            if self._users[block] == 0:
                self._free.append(block)
        del self._sequences[name]

    def write(self, layer: int, name: Hashable, first: int, keys: Tensor, values: Tensor) -> None:
        """Store keys and values, [N, kv_heads, D] each, of the tokens from ``first`` on; no gradient reaches what is stored.

        Raises:
            DataError: There is no such sequence or layer, keys or values have another shape, the sequence has no room for these
                tokens, or they lie in a block that another sequence shares.
        """
        self._check_layer(layer)
        self._check_shape("keys", keys)
        self._check_shape("values", values)
        sequence = self._find(name)
        last = first + len(keys)
        if not 0 <= first <= last <= sequence.length or len(keys) != len(values):
            raise DataError(
                f"Sequence {name!r} has room for {sequence.length} tokens; {len(keys)} keys and {len(values)} values from {first} "
                "on do not fit. Call extend() before write()."
            )
        shared = [
            b for b in sequence.blocks[first // self.block_tokens : -(-last // self.block_tokens)] if self._users[b] > 1
        ]
        if shared and last > first:
            raise DataError(
                f"Sequence {name!r} shares its tokens from {first} on with another; only what follows may be written."
            )
        places = self._places(sequence)[first:last]
        for memory, new in zip(self._memory[layer].flatten(1, 2), (keys, values), strict=True):
            memory.index_copy_(0, places, new.detach().to(memory))

    def tokens(self, layer: int, name: Hashable, count: int) -> tuple[Tensor, Tensor]:
        """Keys and values, [count, kv_heads, D] each, of a sequence's first tokens.

        Raises:
            DataError: There is no such layer or sequence, or it has fewer tokens.
        """
        self._check_layer(layer)
        sequence = self._find(name)
        self._check_count(name, sequence, count)
        places = self._places(sequence)[:count]
        keys, values = (memory.index_select(0, places) for memory in self._memory[layer].flatten(1, 2))
        return keys, values

    def read(
        self, layer: int, names: Sequence[Hashable], counts: Sequence[int] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gather sequences side by side.

        Args:
            layer: Which.
            names: S sequences, at least one; one may come several times.
            counts: S numbers, how many of each one's first tokens; None for all. T is the largest.

        Returns:
            Keys and values [S, kv_heads, T, D], and a mask bool [S, T], True where there is a token; the rest holds zeros.

        Raises:
            DataError: There is no such layer, no sequence was named, or one of them does not exist or has fewer tokens.
        """
        self._check_layer(layer)
        if not names:
            raise DataError("read() was given no sequence; name at least one.")
        sequences = [self._find(name) for name in names]
        wanted = list(counts) if counts is not None else [sequence.length for sequence in sequences]
        for name, count, sequence in zip(names, wanted, sequences, strict=True):
            self._check_count(name, sequence, count)
        lengths = torch.tensor(wanted, device=self._memory.device)
        longest = max(wanted)
        widest = -(-longest // self.block_tokens)
        table = torch.tensor([(s.blocks + [0] * widest)[:widest] for s in sequences], device=self._memory.device).long()
        mask = torch.arange(longest, device=lengths.device) < lengths[:, None]
        keys, values = (
            memory.index_select(0, table.flatten()).view(len(sequences), -1, *memory.shape[2:])[:, :longest]
            .masked_fill(~mask[:, :, None, None], 0).transpose(1, 2)
            for memory in self._memory[layer]
        )  # fmt: skip
        return keys, values, mask

    def _places(self, sequence: _Sequence) -> Tensor:
        """Where the tokens of a sequence are among all, blocks end to end."""
        if sequence.places is None or len(sequence.places) != len(sequence.blocks) * self.block_tokens:
            blocks = torch.tensor(sequence.blocks, dtype=torch.int64)[:, None]
            places = blocks * self.block_tokens + torch.arange(self.block_tokens)
            sequence.places = places.flatten().to(self._memory.device)
        return sequence.places

    def _take(self, count: int, name: Hashable) -> list[int]:
        if count > self.free_blocks:
            raise MemoryLimitError(
                f"Sequence {name!r} needs {count} more blocks of {self.block_tokens} tokens and {self.free_blocks} of {self.max_blocks} "
                "are free. Free sequences that have ended, or give the cache more max_blocks."
            )
        while len(self._free) < count:
            self._grow()
        blocks = [self._free.pop() for _ in range(count)]
        for block in blocks:
            self._users[block] = 1
            self._num_touched = max(self._num_touched, block + 1)
        return blocks

    def _grow(self) -> None:
        before = len(self._users)
        after = min(2 * before, self.max_blocks)
        memory = self._memory.new_zeros(*self._memory.shape[:2], after, *self._memory.shape[3:])
        memory[:, :, :before] = self._memory
        self._memory = memory
        self._users += [0] * (after - before)
        self._free = [*range(after - 1, before - 1, -1), *self._free]

    def _find(self, name: Hashable) -> _Sequence:
        sequence = self._sequences.get(name)
        if sequence is None:
            raise DataError(f"The cache has no sequence {name!r}: it was never allocated, or was freed before.")
        return sequence

    def _check_layer(self, layer: int) -> None:
        count = len(self._memory)
        if not 0 <= layer < count:
            raise DataError(f"The cache has no layer {layer}; its {count} are counted from 0 to {count - 1}.")

    def _check_count(self, name: Hashable, sequence: _Sequence, count: int) -> None:
        if not 0 <= count <= sequence.length:
            raise DataError(f"Sequence {name!r} has {sequence.length} tokens; {count} of them can't be read.")

    def _check_shape(self, what: str, given: Tensor) -> None:
        """Two of the axes could broadcast to the cache's silently."""
        heads, width = self._memory.shape[-2:]
        if given.dim() != 3 or given.shape[1:] != (heads, width):
            raise DataError(
                f"The {what} have the shape {list(given.shape)}; wanted [tokens, {heads}, {width}]: {heads} heads of width {width}."
            )

    def _check_new(self, name: Hashable) -> None:
        if name in self._sequences:
            raise DataError(f"The cache holds a sequence {name!r} already; free it first, or take another name.")


def _zero_pages(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Zeros for which the system gives pages as they are written (NumPy asks for them by ``calloc``, torch writes them): no block is ever
    moved, and what is not used takes no memory."""
    data = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(data).view(dtype).view(*shape)
