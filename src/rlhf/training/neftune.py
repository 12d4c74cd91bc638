"""NEFTune: noise on the embeddings of demonstrations, drawn for each row from a seed of its own.

A seed comes from the run, the step and the row's own tokens, so the noise depends neither on micro-batches nor on the order of
rows, and a resumed run draws the same. Two rows of a step with the same tokens have the same noise. A row is a prefix with what
follows it: demonstrations have one completion; where several share a prefix they share its noise, and their row's length is
the number of its distinct tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from rlhf.data.pack import PackedBatch
from rlhf.losses import neftune_noise
from rlhf.models.noise import added_to_embeddings
from rlhf.models.paths import groups_of
from rlhf.models.policy import PolicyModel
from rlhf.seeds import derive_seed

COLUMN = "noise_seed"
"""[S] of batches that are learned from with noise; a batch without it is read as it is."""


def with_noise_seeds(batch: PackedBatch, seed: int, step: int) -> PackedBatch:
    """A copy whose rows carry the seeds of their noise in one step of a run."""
    tokens = batch.tokens.tolist()
    seeds = [derive_seed(seed, "neftune", step, " ".join(map(str, tokens[a:b]))) for _, a, b in _rows(batch)]
    return batch.with_columns(**{COLUMN: torch.tensor(seeds)[batch.group]})


@contextmanager
def noisy_embeddings(policy: PolicyModel, batch: PackedBatch, *, alpha: float) -> Iterator[None]:
    """Inside, ``policy.score(batch)`` reads embeddings with noise, if the batch carries seeds for it.

    Args:
        policy: Whose embeddings.
        batch: On the policy's device.
        alpha: Size of the noise, see ``neftune_noise``.
    """
    if COLUMN not in batch.columns:
        yield
        return
    if policy.choice is None:
        policy.choose_path(groups_of(batch, limit=3))  # compared on embeddings without noise
    with added_to_embeddings(policy.model, batch, lambda like: row_noise(batch, like, alpha=alpha)):
        yield


def row_noise(batch: PackedBatch, like: Tensor, *, alpha: float) -> Tensor:
    """[N, H] noise of every row of a batch with seeds.

    Args:
        batch: From ``with_noise_seeds``.
        like: [N, H] embeddings; their shape, dtype and device are used.
        alpha: Size of the noise, see ``neftune_noise``.
    """
    seeds = batch.columns[COLUMN].tolist()
    parts = []
    for sequence, first, end in _rows(batch):
        generator = torch.Generator().manual_seed(seeds[sequence])
        one = torch.zeros(end - first, dtype=torch.int64, device=like.device)
        parts.append(neftune_noise(like[first:end], one, alpha=alpha, generator=generator))
    return torch.cat(parts)


def _rows(batch: PackedBatch) -> list[tuple[int, int, int]]:
    """First sequence, first token and end of each group."""
    before = batch.group.new_full((1,), -1)
    sequences = batch.group.diff(prepend=before).nonzero().flatten().tolist()
    starts = batch.prefix_start[sequences].tolist()
    return list(zip(sequences, starts, [*starts[1:], batch.num_tokens], strict=True))
