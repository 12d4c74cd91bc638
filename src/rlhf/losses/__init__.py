"""Losses, advantages and divergences as pure functions of flat tensors: no config, no model, no mask, no padding.

    supervised    nll_loss, label_smoothed_loss, dft_loss [M]
    reward        bradley_terry_loss, hinge_margin_loss, centring_penalty [P]; rating_loss, binary_loss [S]; label_noise
    ties          graded_loss, rao_kupper_loss, davidson_loss [P]; ordered_margins; the outcomes' log-probabilities [P, 3]
    rankings      plackett_luce_loss [R]; num_choices, ranked_pairs
    process       step_loss [K], pairwise_outcome_loss [P] of the steps of solutions
    steps         aggregate_steps [S], steps_until_first_error [K]
    regularizers  ewc_penalty, l2_penalty, DiagonalFisher; entropy_bonus [M]; neftune_noise [N, H]
    preference    dpo_loss, length_normalized_dpo_loss, dpo_hinge_loss, ipo_loss, robust_dpo_loss, exo_loss, discopop_loss
                  [P]: margins against a reference; implicit_rewards
    anchored      nca_loss, bco_pair_loss, sppo_loss, apo_zero_loss, apo_down_loss [P]: each side against the reference
    transport     aot_loss, aot_unpaired_loss [P] over a whole step; same_rank
    pairs         PAIR_LOSSES: the three above by name
    formula       load_formula: a loss that settings name by text
    reference_free  simpo_loss, cpo_loss, odds_ratio_loss [P]; log_odds
    divergences   divergence_scores [S]: other divergences than reverse KL in the place of log-ratios
    pair_tokens   chosen_nll, wpo_weights [P]; length_desensitized_logprobs [S]; log_collision_probs
    unpaired      kto_loss, bco_loss [S]; kto_reference_point, mismatched_rows
    running       RunningMean, RunningReferencePoint, RunningRewardShift: what unpaired losses remember
    policy        clipped_policy_loss, reinforce_loss, cispo_loss, sapo_loss [M]; clipped_tokens, ratio_statistics;
                  with one ratio for a whole sequence: sequence_policy_loss, sequence_log_ratios [M]
    importance    importance_weights, off_policy_kl [M]: a sampler that is not quite the policy
    distillation  generalized_jsd, distillation_loss [M] against a teacher's distributions
    trust_region  fisher_product, conjugate_gradient, trust_region_step, line_search [D]
    shaping       overlong_penalty, teaching_groups [S]: what happens to scores before credit
    value         clipped_value_loss [M]
    kl            kl_k1, kl_k2, kl_k3, kl_abs [M]; exact_kl of whole distributions; kl_overflows
    advantage     add_score_at_last_token, gae, reinforce_plus_plus_advantages [M]; group_advantages,
                  leave_one_out_advantages, batch_std_advantages, greedy_baseline_advantages [S]; length_adaptive_lambda
    whitening     moments, whiten
    aggregation   token_mean, sequence_mean, constant_mean: the only place where a loss becomes one number
    segments      segment_sum, segment_mean, segment_max, segment_count, segment_cumsum_reverse; split_pairs

[M] scored tokens, [S] sequences, [P] pairs, [R] rankings, [K] steps of solutions. A loss returns one number for each of
them; reduction is the caller's, because denominators are where algorithms differ. All work in float32 and float64.
"""

from __future__ import annotations

from rlhf.losses.advantage import (
    add_score_at_last_token,
    batch_std_advantages,
    gae,
    greedy_baseline_advantages,
    group_advantages,
    leave_one_out_advantages,
    length_adaptive_lambda,
    reinforce_plus_plus_advantages,
)
from rlhf.losses.aggregation import AGGREGATIONS, aggregate, constant_mean, sequence_mean, token_mean
from rlhf.losses.anchored import apo_down_loss, apo_zero_loss, bco_pair_loss, nca_loss, sppo_loss
from rlhf.losses.distillation import distillation_loss, generalized_jsd
from rlhf.losses.divergences import DIVERGENCES, divergence_scores
from rlhf.losses.importance import (
    IMPORTANCE_BOUNDS,
    IMPORTANCE_LEVELS,
    ImportanceWeights,
    importance_weights,
    off_policy_kl,
)
from rlhf.losses.kl import KL_ESTIMATORS, exact_kl, kl_abs, kl_k1, kl_k2, kl_k3, kl_overflows
from rlhf.losses.pair_tokens import chosen_nll, length_desensitized_logprobs, log_collision_probs, wpo_weights
from rlhf.losses.pairs import MARGIN_LOSSES, PAIR_LOSSES, WHOLE_STEP_LOSSES
from rlhf.losses.policy import (
    MAX_LOG_RATIO,
    RatioStatistics,
    cispo_loss,
    clipped_policy_loss,
    clipped_tokens,
    ratio_statistics,
    reinforce_loss,
    sapo_loss,
)
from rlhf.losses.preference import (
    discopop_loss,
    dpo_hinge_loss,
    dpo_loss,
    exo_loss,
    implicit_rewards,
    ipo_loss,
    length_normalized_dpo_loss,
    robust_dpo_loss,
)
from rlhf.losses.process import pairwise_outcome_loss, step_loss
from rlhf.losses.rankings import num_choices, plackett_luce_loss, ranked_pairs
from rlhf.losses.reference_free import cpo_loss, log_odds, odds_ratio_loss, simpo_loss
from rlhf.losses.regularizers import DiagonalFisher, entropy_bonus, ewc_penalty, l2_penalty, neftune_noise
from rlhf.losses.reward import (
    binary_loss,
    bradley_terry_loss,
    centring_penalty,
    hinge_margin_loss,
    label_noise,
    rating_loss,
)
from rlhf.losses.running import RunningMean, RunningReferencePoint, RunningRewardShift
from rlhf.losses.segments import (
    segment_count,
    segment_cumsum_reverse,
    segment_max,
    segment_mean,
    segment_sum,
    split_pairs,
)
from rlhf.losses.sequence_ratio import SEQUENCE_RATIOS, sequence_log_ratios, sequence_policy_loss
from rlhf.losses.shaping import overlong_penalty, teaching_groups
from rlhf.losses.steps import STEP_AGGREGATIONS, aggregate_steps, steps_until_first_error
from rlhf.losses.supervised import dft_loss, label_smoothed_loss, nll_loss
from rlhf.losses.ties import (
    davidson_logprobs,
    davidson_loss,
    graded_loss,
    ordered_margins,
    rao_kupper_logprobs,
    rao_kupper_loss,
)
from rlhf.losses.transport import aot_loss, aot_unpaired_loss, same_rank
from rlhf.losses.trust_region import (
    Solution,
    StepFound,
    conjugate_gradient,
    fisher_product,
    line_search,
    trust_region_step,
)
from rlhf.losses.unpaired import bco_loss, kto_loss, kto_reference_point, mismatched_rows
from rlhf.losses.value import clipped_value_loss
from rlhf.losses.whitening import moments, whiten

__all__ = [
    "AGGREGATIONS",
    "DIVERGENCES",
    "IMPORTANCE_BOUNDS",
    "IMPORTANCE_LEVELS",
    "KL_ESTIMATORS",
    "MARGIN_LOSSES",
    "MAX_LOG_RATIO",
    "PAIR_LOSSES",
    "SEQUENCE_RATIOS",
    "STEP_AGGREGATIONS",
    "WHOLE_STEP_LOSSES",
    "DiagonalFisher",
    "ImportanceWeights",
    "RatioStatistics",
    "RunningMean",
    "RunningReferencePoint",
    "RunningRewardShift",
    "Solution",
    "StepFound",
    "add_score_at_last_token",
    "aggregate",
    "aggregate_steps",
    "aot_loss",
    "aot_unpaired_loss",
    "apo_down_loss",
    "apo_zero_loss",
    "batch_std_advantages",
    "bco_loss",
    "bco_pair_loss",
    "binary_loss",
    "bradley_terry_loss",
    "centring_penalty",
    "chosen_nll",
    "cispo_loss",
    "clipped_policy_loss",
    "clipped_tokens",
    "clipped_value_loss",
    "conjugate_gradient",
    "constant_mean",
    "cpo_loss",
    "davidson_logprobs",
    "davidson_loss",
    "dft_loss",
    "discopop_loss",
    "distillation_loss",
    "divergence_scores",
    "dpo_hinge_loss",
    "dpo_loss",
    "entropy_bonus",
    "ewc_penalty",
    "exact_kl",
    "exo_loss",
    "fisher_product",
    "gae",
    "generalized_jsd",
    "graded_loss",
    "greedy_baseline_advantages",
    "group_advantages",
    "hinge_margin_loss",
    "implicit_rewards",
    "importance_weights",
    "ipo_loss",
    "kl_abs",
    "kl_k1",
    "kl_k2",
    "kl_k3",
    "kl_overflows",
    "kto_loss",
    "kto_reference_point",
    "l2_penalty",
    "label_noise",
    "label_smoothed_loss",
    "leave_one_out_advantages",
    "length_adaptive_lambda",
    "length_desensitized_logprobs",
    "length_normalized_dpo_loss",
    "line_search",
    "log_collision_probs",
    "log_odds",
    "mismatched_rows",
    "moments",
    "nca_loss",
    "neftune_noise",
    "nll_loss",
    "num_choices",
    "odds_ratio_loss",
    "off_policy_kl",
    "ordered_margins",
    "overlong_penalty",
    "pairwise_outcome_loss",
    "plackett_luce_loss",
    "ranked_pairs",
    "rao_kupper_logprobs",
    "rao_kupper_loss",
    "rating_loss",
    "ratio_statistics",
    "reinforce_loss",
    "reinforce_plus_plus_advantages",
    "robust_dpo_loss",
    "same_rank",
    "sapo_loss",
    "segment_count",
    "segment_cumsum_reverse",
    "segment_max",
    "segment_mean",
    "segment_sum",
    "sequence_log_ratios",
    "sequence_mean",
    "sequence_policy_loss",
    "simpo_loss",
    "split_pairs",
    "sppo_loss",
    "step_loss",
    "steps_until_first_error",
    "teaching_groups",
    "token_mean",
    "trust_region_step",
    "whiten",
    "wpo_weights",
]
