"""What one rollout brought: token ids, with numbers per completion and per token, to be cut into optimizer steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from rlhf.data.contracts import Prompt
from rlhf.data.pack import Branch, Group, PackedBatch, pack, split_by_tokens
from rlhf.distributed.ranks import current_ranks
from rlhf.distributed.sharding import whole_weights
from rlhf.distributed.work_shares import even_limit, share_of
from rlhf.rollout.types import Completion


class RolloutExperience:
    """Groups of completions with flat columns.

    Args:
        groups: One for each prompt, a branch for each completion; what the policy sampled of it is scored.
        columns: [S] numbers per completion, in the order of the branches.
        token_columns: [M] numbers per scored token, in the same order.
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
        sizes = [len(group.branches) for group in self.groups]
        lengths = [
            len(branch.tokens) if branch.scored is None else sum(branch.scored)
            for group in self.groups
            for branch in group.branches
        ]
        self.num_sequences = len(lengths)
        """S."""
        self.group = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes, dtype=torch.int64))
        """int64 [S] group of each completion."""
        self.score_seq = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths, dtype=torch.int64))
        """int64 [M] completion of each scored token."""
        self.num_tokens = sum(group.num_tokens for group in self.groups)
        """Distinct tokens: N of the whole, packed."""
        first_token = [0, *accumulate(lengths)]
        self._first_sequence = [0, *accumulate(sizes)]
        self._first_token = [first_token[sequence] for sequence in self._first_sequence]

    @classmethod
    def of(cls, prompts: Sequence[Prompt], completions: Sequence[Sequence[Completion]]) -> RolloutExperience:
        """What an engine gave for these prompts, without columns yet."""
        return cls(
            [
                Group(prompt.ids, [Branch(c.tokens, c.scored) for c in group], {"id": prompt.id})
                for prompt, group in zip(prompts, completions, strict=True)
            ]
        )

    @classmethod
    def joined(cls, parts: Sequence[RolloutExperience]) -> RolloutExperience:
        """Several, one after the other; all of them have the same columns."""
        return cls(
            [group for part in parts for group in part.groups],
            columns={name: torch.cat([part.columns[name] for part in parts]) for name in parts[0].columns},
            token_columns={
                name: torch.cat([part.token_columns[name] for part in parts]) for name in parts[0].token_columns
            },
        )

    def only(self, numbers: Sequence[int]) -> RolloutExperience:
        """Some groups, with their columns."""
        sequences = _ranges(self._first_sequence, numbers)
        tokens = _ranges(self._first_token, numbers)
        return RolloutExperience(
            [self.groups[n] for n in numbers],
            columns={name: value[sequences] for name, value in self.columns.items()},
            token_columns={name: value[tokens] for name, value in self.token_columns.items()},
        )

    def batch(self, numbers: Sequence[int]) -> PackedBatch:
        """Some groups, packed, with their columns."""
        part = self.only(numbers)
        return replace(pack(part.groups), columns=part.columns, token_columns=part.token_columns)

    def batches(self, numbers: Sequence[int], *, max_tokens: int) -> list[PackedBatch]:
        """Some groups in micro-batches of at most ``max_tokens`` distinct tokens; over ranks in as many as all have turns."""
        return [self.batch(run) for run in self._runs(numbers, max_tokens)]

    def _runs(self, numbers: Sequence[int], max_tokens: int) -> list[Sequence[int]]:
        """The groups of each micro-batch."""
        groups = [self.groups[n] for n in numbers]
        limit = even_limit(
            lambda tokens: len(split_by_tokens(groups, max_tokens=tokens)), limit=max_tokens, size=current_ranks().size
        )
        bounds = [0, *accumulate(len(run) for run in split_by_tokens(groups, max_tokens=limit))]
        return [numbers[first:end] for first, end in pairwise(bounds)]

    def steps(self, order: Sequence[int], *, groups_per_step: int, max_tokens: int) -> Iterator[list[PackedBatch]]:
        """The groups in this order, cut into optimizer steps, each in micro-batches; a last, smaller step is kept."""
        for first in range(0, len(order), groups_per_step):
            yield self.batches(order[first : first + groups_per_step], max_tokens=max_tokens)

    @torch.no_grad()
    def map(
        self, function: Callable[[PackedBatch], Tensor], *, max_tokens: int, whole: Sequence[nn.Module] = ()
    ) -> Tensor:
        """[M] or [S] numbers that ``function`` gives for each micro-batch, in order, on the CPU; ranks share the micro-batches.

        Args:
            function: Called equally often on all ranks, since a pass through weights in shards is one of all ranks.
            max_tokens: Distinct tokens of a micro-batch.
            whole: Models whose weights ``function`` uses outside of their passes.
        """
        ranks, runs = current_ranks(), self._runs(range(len(self.groups)), max_tokens)
        costs = [sum(self.groups[n].num_tokens for n in run) for run in runs]
        own = {}
        with whole_weights(whole):
            for number, counts in share_of(costs, rank=ranks.rank, size=ranks.size):
                values = function(self.batch(runs[number])).cpu()
                if counts:
                    own[number] = values
        said = {number: values for part in ranks.gather(own) for number, values in part.items()}
        return torch.cat([said[number] for number in range(len(runs))])

    def state_dict(self) -> dict[str, Any]:
        """Plain lists and tensors."""
        return {
            "groups": [
                {
                    "prefix": list(group.prefix),
                    "branches": [list(branch.tokens) for branch in group.branches],
                    "scored": [None if b.scored is None else list(b.scored) for b in group.branches],
                    "id": str(group.columns.get("id", "")),
                }
                for group in self.groups
            ],
            "columns": self.columns,
            "token_columns": self.token_columns,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> RolloutExperience:
        """The experience that ``state_dict`` described."""
        groups = [
            Group(
                g["prefix"],
                [Branch(tokens, scored) for tokens, scored in zip(g["branches"], g["scored"], strict=True)],
                {"id": g["id"]},
            )
            for g in state["groups"]
        ]
        return cls(groups, columns=state["columns"], token_columns=state["token_columns"])


def _ranges(first: Sequence[int], numbers: Sequence[int]) -> Tensor:
    """int64: first[n] .. first[n + 1] for each n, one after the other."""
    return torch.tensor([index for n in numbers for index in range(first[n], first[n + 1])])
