"""A reward model on held-out pairs: accuracy, calibration, and the lead that it calls a tie."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch

from rlhf.data.pack import Group, pack, split_by_tokens
from rlhf.errors import DataError
from rlhf.evaluation.measures import TOKENS_PER_BATCH
from rlhf.evaluation.reward_quality import RewardQuality, reward_quality
from rlhf.losses import split_pairs
from rlhf.models.reward import RewardModel
from rlhf.models.score import evaluating


class Pairs(Protocol):
    """Held-out pairs: a list of groups, or a ``PreferenceDataset``."""

    def __len__(self) -> int:
        """How many."""
        ...

    def __iter__(self) -> Iterator[Group]:
        """Each with two branches, chosen first."""
        ...


@torch.no_grad()
def judge_reward_model(reward_model: RewardModel, pairs: Pairs, *, seed: int = 0) -> RewardQuality:
    """Accuracy and calibration on held-out pairs.

    Args:
        reward_model: Scores both completions of each pair.
        pairs: Groups with two branches, chosen first.
        seed: For the null of the calibration error.
    """
    for pair in pairs:
        if len(pair.branches) != 2:
            raise DataError(
                f"Pair {pair.columns.get('id', '')} has {len(pair.branches)} completions; give chosen and rejected."
            )
    with evaluating(reward_model):
        parts = split_by_tokens(pairs, max_tokens=TOKENS_PER_BATCH)
        scores = torch.cat([reward_model.scores(pack(part)).cpu().double() for part in parts])
    chosen, rejected = split_pairs(scores)
    slips = [pair.columns.get("flipped") for pair in pairs]
    known = all(slip is not None for slip in slips)
    return reward_quality(
        chosen.numpy(),
        rejected.numpy(),
        flipped=[bool(slip) for slip in slips] if known else None,
        # Undoes the normalization: the Bradley-Terry loss saw raw scores. Exact for one member, near for an ensemble.
        scale=float(reward_model.std.mean()),
        threshold=tie_threshold(reward_model),
        seed=seed,
    )


def tie_threshold(reward_model: RewardModel) -> float:
    """The lead of raw scores below which the model calls two completions equal, mean over its scores; 0 without one.

    Davidson's tie weight is none: his odds of win against loss are those of Bradley and Terry.
    """
    learned = reward_model.learned
    if learned is None or learned.kind not in ("threshold", "margins"):
        return 0.0
    return float(torch.stack([learned.value(score)[0] for score in range(reward_model.num_scores)]).mean())
