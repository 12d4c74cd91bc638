"""What an advantage does to a token: the policy losses that a recipe chooses from, and what is watched about their ratios."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rlhf.config.formulas import PolicyFormula
from rlhf.data.pack import PackedBatch
from rlhf.losses import (
    KL_ESTIMATORS,
    clipped_tokens,
    importance_weights,
    kl_overflows,
    off_policy_kl,
    ratio_statistics,
    sequence_log_ratios,
)
from rlhf.losses.formula import asked_of, load_formula
from rlhf.models.divergence import exact_kl_per_token
from rlhf.models.offload import on_device
from rlhf.models.policy import PolicyModel
from rlhf.models.reference import Reference
from rlhf.models.score import TokenScores, evaluating
from rlhf.training.experience import RolloutExperience
from rlhf.training.metrics import Metrics

LARGEST_EXPONENT = 700.0
"""exp of more is infinite in float64."""


def policy_losses(
    logprobs: Tensor,
    batch: PackedBatch,
    *,
    formula: PolicyFormula,
    arguments: Mapping[str, Any],
) -> Tensor:
    """The loss of each scored token, before penalties.

    Args:
        logprobs: [M] current policy, nats; the only input with gradient.
        batch: With the token columns ``advantages``, ``old_logprobs`` where a rollout is more than one step (see ``old_or_own``),
            and ``importance_weights`` where sampler and trainer differ.
        formula: The loss, such as ``rlhf.config.policy_losses.POLICY_LOSSES["clip"]``.
        arguments: Its bounds: the formula's keywords in addition to the tensors.

    Returns:
        [M].
    """
    function = load_formula(formula.function)
    tensors = {
        "logprobs": logprobs,
        "old_logprobs": old_or_own(logprobs, batch),
        "advantages": batch.token_columns["advantages"],
        "score_seq": batch.score_seq,
    }
    how = {} if formula.sequence_ratio is None else {"how": formula.sequence_ratio}
    losses = function(**asked_of(function, tensors), **arguments, **how)
    weights = batch.token_columns.get("importance_weights")
    return losses if weights is None else weights * losses


def old_or_own(logprobs: Tensor, batch: PackedBatch) -> Tensor:
    """[M] without gradient, of the policy that the ratios are taken against.

    A rollout that is one step has no other policy than the one that takes it: its ratios are 1, and nothing was computed ahead.
    """
    old = batch.token_columns.get("old_logprobs")
    return logprobs.detach() if old is None else old


@torch.no_grad()
def measure_ratios(
    logprobs: Tensor,
    batch: PackedBatch,
    metrics: Metrics,
    *,
    name: str,
    formula: PolicyFormula,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> None:
    """How far the update has moved each token, and how many the policy loss in use holds back, under ``name/``.

    Ratios are those of tokens whatever the policy loss: a completion's mean hides the token that broke. What is clipped
    is what the loss clips, so a completion's ratio where it has one; losses without a bound have no ``clip_frac``.
    """
    old = old_or_own(logprobs, batch)
    statistics = ratio_statistics(logprobs, old)
    size = float(len(logprobs))
    metrics.mean(f"{name}/ratio_mean", statistics.mean, size)
    metrics.mean(f"{name}/kl_mean", statistics.approx_kl, size)
    ratio = (logprobs - old).double().clamp(min=-LARGEST_EXPONENT, max=LARGEST_EXPONENT).exp()
    metrics.largest(f"{name}/ratio_max", ratio)
    metrics.smallest(f"{name}/ratio_min", ratio)
    metrics.mean(f"{name}/ratio_overflow_frac", statistics.num_overflowed / size, size)
    metrics.total("loss/ratio_overflows", statistics.num_overflowed)
    if formula.clips is not None:
        clipped = clipped_mask(
            logprobs, batch, formula=formula, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip
        )
        metrics.mean(f"{name}/clip_frac", clipped)


def clipped_mask(
    logprobs: Tensor,
    batch: PackedBatch,
    *,
    formula: PolicyFormula,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
) -> Tensor:
    """bool [M] tokens that a clip took out of the gradient, or whose weight it cut."""
    ours, theirs = _compared(logprobs, batch, formula=formula)
    if formula.clips == "weight":
        ratio = (ours - theirs).exp()
        return (ratio < 1 - clip_low) | (ratio > 1 + clip_high)
    advantages = batch.token_columns["advantages"]
    return clipped_tokens(ours, theirs, advantages, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)


def kl_in_loss(
    scores: TokenScores,
    batch: PackedBatch,
    metrics: Metrics,
    *,
    policy: PolicyModel,
    reference: Reference,
    estimator: str,
    unbiased: bool = False,
    temperature: float = 1.0,
) -> Tensor:
    """The KL estimate that is added to the loss, before its weight.

    Args:
        scores: The policy's, with its last hidden states for the exact KL.
        batch: With the token column ``ref_logprobs``, except for the exact KL.
        metrics: Gets ``loss/kl``.
        policy: Asked for its distributions by the exact KL.
        reference: The same.
        estimator: ``k1``, ``k2``, ``k3`` or ``exact``.
        unbiased: Weigh by the ratio to the policy that sampled.
        temperature: Of the distributions that the exact KL compares.

    Returns:
        [M] nats, with gradient.
    """
    if estimator == "exact":
        kl = exact_kl_per_token(policy, reference, batch, temperature=temperature, hidden=scores.hidden)
    else:
        kl = _estimate(scores.logprobs, batch.token_columns["ref_logprobs"], metrics, estimator=estimator)
    if unbiased:
        kl = off_policy_kl(kl, scores.logprobs, old_or_own(scores.logprobs, batch))
    metrics.mean("loss/kl", kl)
    return kl


def kl_in_reward(
    experience: RolloutExperience,
    metrics: Metrics,
    *,
    policy: PolicyModel,
    reference: Reference,
    estimator: str,
    temperature: float = 1.0,
    microbatch_tokens: int,
) -> Tensor:
    """The KL estimate that is subtracted from the reward, before its weight.

    Args:
        experience: With the token columns ``old_logprobs`` and ``ref_logprobs``, except for the exact KL.
        metrics: Gets ``loss/kl_overflows`` of ``k3``.
        policy: Asked for its distributions by the exact KL.
        reference: The same.
        estimator: ``k1``, ``k2``, ``k3`` or ``exact``.
        temperature: Of the distributions that the exact KL compares.
        microbatch_tokens: Distinct tokens in one forward pass of the exact KL.

    Returns:
        [M] nats, without gradient.
    """
    if estimator == "exact":
        with on_device(reference), evaluating(policy.model):
            return experience.map(
                lambda batch: exact_kl_per_token(policy, reference, batch, temperature=temperature),
                max_tokens=microbatch_tokens,
                whole=[policy.model],
            )
    columns = experience.token_columns
    return _estimate(columns["old_logprobs"], columns["ref_logprobs"], metrics, estimator=estimator)


def correct_sampler(
    experience: RolloutExperience,
    sampling_logprobs: Tensor,
    metrics: Metrics,
    *,
    level: str,
    bound: str,
    low: float,
    high: float,
) -> None:
    """Add the token column ``importance_weights``: old policy over sampler, bounded.

    Both are constants of the rollout, so that the weights are taken once and do not depend on steps or micro-batches.

    Args:
        experience: With the token column ``old_logprobs``.
        sampling_logprobs: [M] nats, under the distribution that was drawn from.
        metrics: Gets ratios before the bounds, and shares of units (tokens or completions) out of them.
        level: Whose ratio is bounded, one of ``IMPORTANCE_LEVELS``.
        bound: What happens to a ratio out of bounds, one of ``IMPORTANCE_BOUNDS``.
        low: Lowest ratio.
        high: Highest ratio.
    """
    correction = importance_weights(
        experience.token_columns["old_logprobs"], sampling_logprobs, experience.score_seq,
        level=level, bound=bound, low=low, high=high,
    )  # fmt: skip
    experience.token_columns["importance_weights"] = correction.weights
    units = float(correction.num_units)
    metrics.mean("importance/ratio_mean", correction.ratio_sum / units, units)
    metrics.largest("importance/ratio_max", correction.ratio_max)
    metrics.mean("importance/too_low_frac", correction.num_too_low / units, units)
    metrics.mean("importance/too_high_frac", correction.num_too_high / units, units)
    metrics.total("importance/out_of_bounds", correction.num_too_low + correction.num_too_high)


def _compared(logprobs: Tensor, batch: PackedBatch, *, formula: PolicyFormula) -> tuple[Tensor, Tensor]:
    """[M] and [M], whose difference is the log-ratio that the policy loss clips."""
    old = old_or_own(logprobs, batch)
    how = formula.sequence_ratio
    if how is None:
        return logprobs, old
    log_ratios = sequence_log_ratios(logprobs, old, batch.score_seq, how=how)
    return log_ratios, torch.zeros_like(log_ratios)


def _estimate(logprobs: Tensor, ref_logprobs: Tensor, metrics: Metrics, *, estimator: str) -> Tensor:
    if estimator == "k3":
        metrics.total("loss/kl_overflows", kl_overflows(logprobs, ref_logprobs).sum())
    return KL_ESTIMATORS[estimator](logprobs, ref_logprobs)
