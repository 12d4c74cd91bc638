"""Losses, advantages and divergences as pure functions of flat tensors: no config, no model, no mask, no padding.

    supervised    nll_loss [M]
    reward        bradley_terry_loss [P], centring_penalty [P]
    preference    dpo_loss, dpo_hinge_loss, ipo_loss [P]; implicit_rewards, split_pairs
    policy        clipped_policy_loss [M]; clipped_tokens, ratio_statistics
    value         clipped_value_loss [M]
    kl            kl_k1, kl_k2, kl_k3, kl_abs [M]; exact_kl of whole distributions
    advantage     add_score_at_last_token, gae [M]; group_advantages, leave_one_out_advantages [S]
    whitening     moments, whiten
    aggregation   token_mean, sequence_mean, constant_mean: the only place where a loss becomes one number
    segments      segment_sum, segment_mean, segment_max, segment_count, segment_cumsum_reverse

[M] scored tokens, [S] sequences, [P] pairs. A loss returns one number per token, sequence or pair; reduction is the
caller's, because denominators are where algorithms differ. All work in float32 and float64.
"""

from __future__ import annotations

from rlhf.losses.advantage import add_score_at_last_token, gae, group_advantages, leave_one_out_advantages
from rlhf.losses.aggregation import AGGREGATIONS, aggregate, constant_mean, sequence_mean, token_mean
from rlhf.losses.kl import KL_ESTIMATORS, exact_kl, kl_abs, kl_k1, kl_k2, kl_k3
from rlhf.losses.policy import (
    MAX_LOG_RATIO,
    RatioStatistics,
    clipped_policy_loss,
    clipped_tokens,
    ratio_statistics,
)
from rlhf.losses.preference import (
    PREFERENCE_LOSSES,
    dpo_hinge_loss,
    dpo_loss,
    implicit_rewards,
    ipo_loss,
    split_pairs,
)
from rlhf.losses.reward import bradley_terry_loss, centring_penalty
from rlhf.losses.segments import (
    segment_count,
    segment_cumsum_reverse,
    segment_max,
    segment_mean,
    segment_sum,
)
from rlhf.losses.supervised import nll_loss
from rlhf.losses.value import clipped_value_loss
from rlhf.losses.whitening import moments, whiten

__all__ = [
    "AGGREGATIONS",
    "KL_ESTIMATORS",
    "MAX_LOG_RATIO",
    "PREFERENCE_LOSSES",
    "RatioStatistics",
    "add_score_at_last_token",
    "aggregate",
    "bradley_terry_loss",
    "centring_penalty",
    "clipped_policy_loss",
    "clipped_tokens",
    "clipped_value_loss",
    "constant_mean",
    "dpo_hinge_loss",
    "dpo_loss",
    "exact_kl",
    "gae",
    "group_advantages",
    "implicit_rewards",
    "ipo_loss",
    "kl_abs",
    "kl_k1",
    "kl_k2",
    "kl_k3",
    "leave_one_out_advantages",
    "moments",
    "nll_loss",
    "ratio_statistics",
    "segment_count",
    "segment_cumsum_reverse",
    "segment_max",
    "segment_mean",
    "segment_sum",
    "sequence_mean",
    "split_pairs",
    "token_mean",
    "whiten",
]
