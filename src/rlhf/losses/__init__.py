"""Losses, advantages and divergences as pure functions of flat tensors: no config, no model, no mask, no padding.

[M] scored tokens, [S] sequences, [P] pairs, [R] rankings, [K] steps of solutions, [D] parameters. A loss returns one number for
each of them; reduction is the caller's, because denominators are where algorithms differ. All work in float32 and float64.

The imports below are the list of what there is.
"""

from __future__ import annotations

# [M] add_score_at_last_token, gae, reinforce_plus_plus_advantages; [S] the others and a lambda for each length
from rlhf.losses.advantage import add_score_at_last_token as add_score_at_last_token
from rlhf.losses.advantage import batch_std_advantages as batch_std_advantages
from rlhf.losses.advantage import gae as gae
from rlhf.losses.advantage import greedy_baseline_advantages as greedy_baseline_advantages
from rlhf.losses.advantage import group_advantages as group_advantages
from rlhf.losses.advantage import leave_one_out_advantages as leave_one_out_advantages
from rlhf.losses.advantage import length_adaptive_lambda as length_adaptive_lambda
from rlhf.losses.advantage import reinforce_plus_plus_advantages as reinforce_plus_plus_advantages

# [] the only place where a loss becomes one number
from rlhf.losses.aggregation import AGGREGATIONS as AGGREGATIONS
from rlhf.losses.aggregation import aggregate as aggregate
from rlhf.losses.aggregation import constant_mean as constant_mean
from rlhf.losses.aggregation import sequence_mean as sequence_mean
from rlhf.losses.aggregation import token_mean as token_mean

# [P] each side of a pair against the reference
from rlhf.losses.anchored import apo_down_loss as apo_down_loss
from rlhf.losses.anchored import apo_zero_loss as apo_zero_loss
from rlhf.losses.anchored import bco_pair_loss as bco_pair_loss
from rlhf.losses.anchored import nca_loss as nca_loss
from rlhf.losses.anchored import sppo_loss as sppo_loss

# [M] against a teacher's distributions
from rlhf.losses.distillation import distillation_loss as distillation_loss
from rlhf.losses.distillation import generalized_jsd as generalized_jsd

# [S] other divergences than reverse KL in the place of log-ratios
from rlhf.losses.divergences import DIVERGENCES as DIVERGENCES
from rlhf.losses.divergences import divergence_scores as divergence_scores

# [M] a sampler that is not quite the policy
from rlhf.losses.importance import IMPORTANCE_BOUNDS as IMPORTANCE_BOUNDS
from rlhf.losses.importance import IMPORTANCE_LEVELS as IMPORTANCE_LEVELS
from rlhf.losses.importance import ImportanceWeights as ImportanceWeights
from rlhf.losses.importance import importance_weights as importance_weights
from rlhf.losses.importance import off_policy_kl as off_policy_kl

# [M] estimates of a token's KL; exact_kl of whole distributions
from rlhf.losses.kl import KL_ESTIMATORS as KL_ESTIMATORS
from rlhf.losses.kl import exact_kl as exact_kl
from rlhf.losses.kl import kl_abs as kl_abs
from rlhf.losses.kl import kl_k1 as kl_k1
from rlhf.losses.kl import kl_k2 as kl_k2
from rlhf.losses.kl import kl_k3 as kl_k3
from rlhf.losses.kl import kl_overflows as kl_overflows

# losses on pairs by name
from rlhf.losses.pair_losses import MARGIN_LOSSES as MARGIN_LOSSES
from rlhf.losses.pair_losses import PAIR_LOSSES as PAIR_LOSSES
from rlhf.losses.pair_losses import WHOLE_STEP_LOSSES as WHOLE_STEP_LOSSES

# [P] chosen_nll, wpo_weights; [S] length_desensitized_logprobs
from rlhf.losses.pair_tokens import chosen_nll as chosen_nll
from rlhf.losses.pair_tokens import length_desensitized_logprobs as length_desensitized_logprobs
from rlhf.losses.pair_tokens import log_collision_probs as log_collision_probs
from rlhf.losses.pair_tokens import wpo_weights as wpo_weights

# [M] policy-gradient losses by token
from rlhf.losses.policy import MAX_LOG_RATIO as MAX_LOG_RATIO
from rlhf.losses.policy import RatioStatistics as RatioStatistics
from rlhf.losses.policy import cispo_loss as cispo_loss
from rlhf.losses.policy import clipped_policy_loss as clipped_policy_loss
from rlhf.losses.policy import clipped_tokens as clipped_tokens
from rlhf.losses.policy import ratio_statistics as ratio_statistics
from rlhf.losses.policy import reinforce_loss as reinforce_loss
from rlhf.losses.policy import sapo_loss as sapo_loss

# [P] margins against a reference (DPO and its relatives); implicit_rewards
from rlhf.losses.preference import discopop_loss as discopop_loss
from rlhf.losses.preference import dpo_hinge_loss as dpo_hinge_loss
from rlhf.losses.preference import dpo_loss as dpo_loss
from rlhf.losses.preference import exo_loss as exo_loss
from rlhf.losses.preference import implicit_rewards as implicit_rewards
from rlhf.losses.preference import ipo_loss as ipo_loss
from rlhf.losses.preference import length_normalized_dpo_loss as length_normalized_dpo_loss
from rlhf.losses.preference import robust_dpo_loss as robust_dpo_loss

# [K] step_loss, [P] pairwise_outcome_loss: steps of solutions
from rlhf.losses.process import pairwise_outcome_loss as pairwise_outcome_loss
from rlhf.losses.process import step_loss as step_loss

# [R] plackett_luce_loss: orders of several completions
from rlhf.losses.rankings import num_choices as num_choices
from rlhf.losses.rankings import plackett_luce_loss as plackett_luce_loss
from rlhf.losses.rankings import ranked_pairs as ranked_pairs

# [P] without a reference: SimPO, CPO, the odds ratio of ORPO
from rlhf.losses.reference_free import cpo_loss as cpo_loss
from rlhf.losses.reference_free import log_odds as log_odds
from rlhf.losses.reference_free import odds_ratio_loss as odds_ratio_loss
from rlhf.losses.reference_free import simpo_loss as simpo_loss

# [] ewc_penalty, l2_penalty; [M] entropy_bonus; [N, H] neftune_noise
from rlhf.losses.regularizers import DiagonalFisher as DiagonalFisher
from rlhf.losses.regularizers import entropy_bonus as entropy_bonus
from rlhf.losses.regularizers import ewc_penalty as ewc_penalty
from rlhf.losses.regularizers import l2_penalty as l2_penalty
from rlhf.losses.regularizers import neftune_noise as neftune_noise

# [P] Bradley-Terry and hinge, with margins and label smoothing; [S] ratings and verdicts
from rlhf.losses.reward import binary_loss as binary_loss
from rlhf.losses.reward import bradley_terry_loss as bradley_terry_loss
from rlhf.losses.reward import centering_penalty as centering_penalty
from rlhf.losses.reward import hinge_margin_loss as hinge_margin_loss
from rlhf.losses.reward import label_noise as label_noise
from rlhf.losses.reward import loss_under_label_noise as loss_under_label_noise
from rlhf.losses.reward import rating_loss as rating_loss

# what unpaired losses remember
from rlhf.losses.running import RunningMean as RunningMean
from rlhf.losses.running import RunningReferencePoint as RunningReferencePoint
from rlhf.losses.running import RunningRewardShift as RunningRewardShift

# sums, means and the like of each sequence's tokens
from rlhf.losses.segments import segment_count as segment_count
from rlhf.losses.segments import segment_cumsum_reverse as segment_cumsum_reverse
from rlhf.losses.segments import segment_max as segment_max
from rlhf.losses.segments import segment_mean as segment_mean
from rlhf.losses.segments import segment_sum as segment_sum
from rlhf.losses.segments import split_pairs as split_pairs

# [M] one ratio for a whole sequence
from rlhf.losses.sequence_ratio import SEQUENCE_RATIOS as SEQUENCE_RATIOS
from rlhf.losses.sequence_ratio import sequence_log_ratios as sequence_log_ratios
from rlhf.losses.sequence_ratio import sequence_policy_loss as sequence_policy_loss

# [S] what happens to scores before credit
from rlhf.losses.shaping import overlong_penalty as overlong_penalty
from rlhf.losses.shaping import teaching_groups as teaching_groups

# [S] aggregate_steps, [K] steps_until_first_error
from rlhf.losses.step_aggregation import STEP_AGGREGATIONS as STEP_AGGREGATIONS
from rlhf.losses.step_aggregation import aggregate_steps as aggregate_steps
from rlhf.losses.step_aggregation import steps_until_first_error as steps_until_first_error

# [M] of demonstrations
from rlhf.losses.supervised import dft_loss as dft_loss
from rlhf.losses.supervised import label_smoothed_loss as label_smoothed_loss
from rlhf.losses.supervised import nll_loss as nll_loss

# [P] pairs of which some are tied; the outcomes' log-probabilities [P, 3]
from rlhf.losses.tie_losses import davidson_logprobs as davidson_logprobs
from rlhf.losses.tie_losses import davidson_loss as davidson_loss
from rlhf.losses.tie_losses import graded_loss as graded_loss
from rlhf.losses.tie_losses import ordered_margins as ordered_margins
from rlhf.losses.tie_losses import rao_kupper_logprobs as rao_kupper_logprobs
from rlhf.losses.tie_losses import rao_kupper_loss as rao_kupper_loss

# [P] over a whole step
from rlhf.losses.transport import aot_loss as aot_loss
from rlhf.losses.transport import aot_unpaired_loss as aot_unpaired_loss
from rlhf.losses.transport import same_rank as same_rank

# [D] TRPO's direction, length and line search
from rlhf.losses.trust_region import Solution as Solution
from rlhf.losses.trust_region import StepFound as StepFound
from rlhf.losses.trust_region import conjugate_gradient as conjugate_gradient
from rlhf.losses.trust_region import fisher_product as fisher_product
from rlhf.losses.trust_region import line_search as line_search
from rlhf.losses.trust_region import trust_region_step as trust_region_step

# [S] of single completions, good or bad: KTO and BCO
from rlhf.losses.unpaired import bco_loss as bco_loss
from rlhf.losses.unpaired import kto_loss as kto_loss
from rlhf.losses.unpaired import kto_reference_point as kto_reference_point
from rlhf.losses.unpaired import mismatched_rows as mismatched_rows

# [M] of the critic
from rlhf.losses.value import clipped_value_loss as clipped_value_loss

# to mean 0 and deviation 1
from rlhf.losses.whitening import moments as moments
from rlhf.losses.whitening import whiten as whiten
