"""What a frozen reference says about rows: asked once, before the first step, and kept; no step pays for it again, and no later run.

All rows of a run, held-out ones too, are packed for the reference in an order that their content alone decides, each distinct row
once. So its answers are the same bits for any seed, order or split, and a file of them stands for the forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rlhf.activity import doing
from rlhf.config.preference import DPOConfig, KTOConfig
from rlhf.config.training import Autocast
from rlhf.data.message_text import counted
from rlhf.data.pack import Group, PackedBatch, pack, split_by_tokens
from rlhf.distributed.ranks import current_ranks
from rlhf.distributed.work_shares import share_of
from rlhf.losses import segment_sum
from rlhf.models.logprob_cache import LogprobCache, cache_folder, cache_key, group_digest, settle_path
from rlhf.models.reference import Reference
from rlhf.training.log import TrainingLogger
from rlhf.training.optim import mixed_precision
from rlhf.training.row_order import MapData

ROWS_FOR_PATH = 3
"""The longest, by which a reference chooses its path where nobody chose before."""
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

    def ask(
        self,
        reference: Reference,
        config: DPOConfig | KTOConfig,
        device: torch.device,
        log: TrainingLogger | None = None,
    ) -> None:
        """Have the rows scored that were not yet; ``log`` gets a note where a file stood in for the reference, or could not."""
        missing = [rows for rows in self._sets.values() if rows.ref_logprobs is None]
        if not missing:
            return
        groups = [rows.data[i] for rows in missing for i in range(len(rows))]
        for group in groups:
            self.check(group)
        said = self._scores(groups, reference, config, device, log or TrainingLogger())
        for rows, part in zip(missing, said.split([len(rows) for rows in missing]), strict=True):
            rows.ref_logprobs = part.clone()

    def state_dict(self) -> dict[str, Any]:
        """The scores: after the first step, a policy that was its own reference could not give them again."""
        return {name: rows.ref_logprobs for name, rows in self._sets.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken; one from before the reference was asked takes nothing away."""
        for name, rows in self._sets.items():
            if state.get(name) is not None:
                rows.ref_logprobs = state[name]

    def _scores(
        self,
        groups: Sequence[Group],
        reference: Reference,
        config: DPOConfig | KTOConfig,
        device: torch.device,
        log: TrainingLogger,
    ) -> Tensor:
        """[rows, branches] nats, in the order of the rows."""
        digests = [group_digest(group) for group in groups]
        distinct = dict(zip(digests, groups, strict=True))
        order = sorted(distinct, key=lambda digest: (distinct[digest].num_tokens, digest))
        runs = split_by_tokens([distinct[digest] for digest in order], max_tokens=config.microbatch_tokens)
        logprobs = reference_logprobs(reference, runs, order, config=config, device=device, log=log)
        sums, start = [], 0
        for batch in map(pack, runs):
            end = start + batch.num_scored
            sums.append(self.sums(logprobs[start:end], batch).view(batch.num_groups, -1))
            start = end
        place = {digest: number for number, digest in enumerate(order)}
        return torch.cat(sums)[[place[digest] for digest in digests]]


def reference_logprobs(
    reference: Reference,
    runs: Sequence[Sequence[Group]],
    digests: Sequence[bytes],
    *,
    config: DPOConfig | KTOConfig,
    device: torch.device,
    log: TrainingLogger,
) -> Tensor:
    """[M] log-probabilities of distinct rows, on the CPU: from a file, or asked for and kept in one.

    Args:
        reference: Frozen.
        runs: The rows of each batch.
        digests: ``group_digest`` of all rows, in that order.
        config: Type of the products, tokens in a batch, and where files lie.
        device: The model's.
        log: Gets a note where a file stood in for the reference, or could not.
    """
    settle_path(reference, runs[-1][-ROWS_FOR_PATH:])
    # Over ranks no file: its key is a hash of whole weights, and all ranks would have to find it or not.
    folder = cache_folder(config.cache_reference) if current_ranks().size == 1 else None
    key = None
    if folder is not None:
        limit = config.microbatch_tokens
        key = cache_key(reference, digests, max_tokens=limit, autocast=config.autocast, device=device)
    if folder is None or key is None:
        return _asked(reference, runs, config.autocast, device)
    cache = LogprobCache(folder, tell=log.say)
    known = cache.read(key, num_scored=sum(group.num_scored for run in runs for group in run))
    if known is not None:
        log.say(f"What the reference says of {counted(len(digests), 'row')} was read from {cache.path(key)}.")
        return known
    logprobs = _asked(reference, runs, config.autocast, device)
    cache.keep(key, logprobs)
    return logprobs


def _asked(reference: Reference, runs: Sequence[Sequence[Group]], autocast: Autocast, device: torch.device) -> Tensor:
    """[M] from the reference itself; ranks share the batches."""
    ranks = current_ranks()
    costs = [sum(group.num_tokens for group in run) for run in runs]
    own: dict[int, Tensor] = {}
    with doing("reference", tokens=sum(costs)), mixed_precision(autocast, device):
        for number, _ in share_of(costs, rank=ranks.rank, size=ranks.size):
            own[number] = reference.logprobs(pack(runs[number]).to(device)).cpu()
    said = {number: logprobs for part in ranks.gather(own) for number, logprobs in part.items()}
    return torch.cat([said[number] for number in range(len(runs))])
