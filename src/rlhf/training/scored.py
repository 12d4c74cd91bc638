"""What a frozen reference says about rows: asked once, before the first step, and kept. No step pays for it again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from rlhf.activity import doing
from rlhf.config.training import OfflineConfig
from rlhf.data.pack import Group, PackedBatch, pack, split_by_tokens
from rlhf.losses import segment_sum
from rlhf.models.reference import Reference
from rlhf.training.optim import mixed_precision
from rlhf.training.rows import MapData

Sums = Callable[[Tensor, PackedBatch], Tensor]
"""([M] log-probabilities of tokens, their batch) -> [S] of completions."""


def completion_sums(logprobs: Tensor, batch: PackedBatch) -> Tensor:
    """[S] nats, summed over each completion's scored tokens."""
    return segment_sum(logprobs, batch.score_seq, batch.num_sequences)


class ScoredRows:
    """Rows, each with the column ``ref_logprobs`` [branches] once the reference has scored them."""

    def __init__(self, data: MapData) -> None:
        self.data = data
        self.ref_logprobs: Tensor | None = None
        """[rows, branches] nats, one number for each completion."""

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Group:
        group = self.data[index]
        if self.ref_logprobs is None:
            return group
        return Group(group.prefix, group.branches, {**group.columns, "ref_logprobs": self.ref_logprobs[index]})


class ReferenceScores:
    """Training and held-out rows with the reference's scores, which are part of a trainer's state.

    Args:
        train_data: Rows of as many branches each.
        eval_data: Held-out rows, or None.
        check: Raises ``DataError`` for a row that is not what the trainer learns from.
        sums: How tokens become one number for each completion.
    """

    def __init__(
        self,
        train_data: MapData,
        eval_data: MapData | None,
        *,
        check: Callable[[Group], object],
        sums: Sums = completion_sums,
    ) -> None:
        self.check = check
        self.train = ScoredRows(train_data)
        self.held_out = ScoredRows(eval_data) if eval_data else None
        self.sums = sums
        self._sets = {"train": self.train} | ({"eval": self.held_out} if self.held_out else {})

    @property
    def are_there(self) -> bool:
        """Whether the reference has been asked about every row."""
        return all(rows.ref_logprobs is not None for rows in self._sets.values())

    def ask(self, reference: Reference, config: OfflineConfig, device: torch.device) -> None:
        """Have the rows scored that were not yet."""
        for rows in self._sets.values():
            if rows.ref_logprobs is None:
                rows.ref_logprobs = self._scores(rows.data, reference, config, device)

    def state_dict(self) -> dict[str, Any]:
        """The scores: after the first step, a policy that was its own reference could not give them again."""
        return {name: rows.ref_logprobs for name, rows in self._sets.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken; one from before the reference was asked takes nothing away."""
        for name, rows in self._sets.items():
            if state.get(name) is not None:
                rows.ref_logprobs = state[name]

    def _scores(self, data: MapData, reference: Reference, config: OfflineConfig, device: torch.device) -> Tensor:
        """[rows, branches], scored in order of length and put back in order."""
        groups = [data[i] for i in range(len(data))]
        for group in groups:
            self.check(group)
        order = sorted(range(len(groups)), key=lambda i: groups[i].num_tokens)
        runs = split_by_tokens([groups[i] for i in order], max_tokens=config.tokens_per_microbatch)
        found = []
        with (
            doing("reference", tokens=sum(group.num_tokens for group in groups)),
            mixed_precision(config.autocast, device),
        ):
            for batch in (pack(run).to(device) for run in runs):
                found.append(self.sums(reference.logprobs(batch), batch).view(batch.num_groups, -1).cpu())
        in_order = torch.empty(len(groups), found[0].shape[1], dtype=found[0].dtype)
        in_order[order] = torch.cat(found)
        return in_order
