"""What one rollout brought: token ids, and numbers per completion and per token, ready to be cut into optimiser steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rlhf.data.pack import Branch, Group, PackedBatch, pack, split_by_tokens


class RolloutExperience:
    """Groups of completions with flat columns.

    Args:
        groups: One for each prompt, a branch for each completion; every completion token is scored.
        columns: [S] numbers per completion, in the order of the branches.
        token_columns: [M] numbers per completion token, in the same order.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        *,
        columns: Mapping[str, Tensor] | None = None,
        token_columns: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.groups = list(groups)
        self.columns: dict[str, Tensor] = dict(columns or {})
        self.token_columns: dict[str, Tensor] = dict(token_columns or {})
        sizes = torch.tensor([len(group.branches) for group in self.groups])
        self.lengths = torch.tensor([len(branch.tokens) for group in self.groups for branch in group.branches])
        self.first_sequence = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
        self.first_token = torch.cat([torch.zeros(1, dtype=torch.int64), self.lengths.cumsum(0)])
        self.group = torch.repeat_interleave(torch.arange(len(self.groups)), sizes)
        """int64 [S] group of each completion."""
        self.score_seq = torch.repeat_interleave(torch.arange(len(self.lengths)), self.lengths)
        """int64 [M] completion of each token."""

    @property
    def num_sequences(self) -> int:
        """S."""
        return len(self.lengths)

    def batch(self, numbers: Sequence[int]) -> PackedBatch:
        """Some groups, packed, with their columns."""
        sequences = torch.cat([torch.arange(*self.first_sequence[n : n + 2].tolist()) for n in numbers])
        tokens = torch.cat([torch.arange(*self.first_token[s : s + 2].tolist()) for s in sequences.tolist()])
        return (
            pack([self.groups[n] for n in numbers])
            .with_columns(**{name: value[sequences] for name, value in self.columns.items()})
            .with_token_columns(**{name: value[tokens] for name, value in self.token_columns.items()})
        )

    def batches(self, numbers: Sequence[int], *, max_tokens: int) -> list[PackedBatch]:
        """Some groups in micro-batches of at most ``max_tokens`` distinct tokens."""
        runs = split_by_tokens([self.groups[n] for n in numbers], max_tokens=max_tokens)
        found = []
        first = 0
        for run in runs:
            found.append(self.batch(numbers[first : first + len(run)]))
            first += len(run)
        return found

    @torch.no_grad()
    def map_tokens(self, function: Callable[[PackedBatch], Tensor], *, max_tokens: int, device: torch.device) -> Tensor:
        """[M] numbers that ``function`` gives for the tokens of each micro-batch, in order, on the CPU."""
        everything = list(range(len(self.groups)))
        parts = [function(batch.to(device)).float().cpu() for batch in self.batches(everything, max_tokens=max_tokens)]
        return torch.cat(parts)

    def state_dict(self) -> dict[str, Any]:
        """Plain lists and tensors."""
        return {
            "groups": [
                {"prefix": list(g.prefix), "branches": [list(b.tokens) for b in g.branches], "id": str(g.columns.get("id", ""))}
                for g in self.groups
            ],
            "columns": self.columns,
            "token_columns": self.token_columns,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> RolloutExperience:
        """The experience that ``state_dict`` described."""
        groups = [
            Group(g["prefix"], [Branch(tokens) for tokens in g["branches"]], {"id": g["id"]}) for g in state["groups"]
        ]
        return cls(groups, columns=state["columns"], token_columns=state["token_columns"])


def steps_of(order: Sequence[int], groups_per_step: int) -> Iterator[Sequence[int]]:
    """Cut an order of groups into optimiser steps; a last, smaller one is kept."""
    for first in range(0, len(order), groups_per_step):
        yield order[first : first + groups_per_step]
