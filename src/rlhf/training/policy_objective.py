"""What an advantage does to a token: the policy losses that a recipe chooses from, and what is watched about their ratios."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor

from rlhf.config.formulas import argument_values
from rlhf.config.policy import RLConfig
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
from rlhf.losses.formula import load_formula
from rlhf.models.divergence import exact_kl_per_token
from rlhf.models.policy import PolicyModel
from rlhf.models.reference import Reference
from rlhf.models.score import TokenScores, evaluating
from rlhf.training.experience import RolloutExperience
from rlhf.training.metrics import Metrics

LARGEST_EXPONENT = 700.0
"""exp of more is infinite in float64."""


def policy_losses(config: RLConfig, logprobs: Tensor, batch: PackedBatch) -> Tensor:
    """The loss of each scored token, before penalties: ``policy_loss`` of the recipe.

    Args:
        config: ``policy_loss`` and its bounds.
        logprobs: [M] current policy, nats; the only input with gradient.
        batch: With the token columns ``advantages``, ``old_logprobs`` where a rollout is more than one step (see ``old_or_own``),
            and ``importance_weights`` where sampler and trainer differ.

    Returns:
        [M].
    """
    formula = config.policy_formula
    function = load_formula(formula.function)
    tensors = {
        "logprobs": logprobs,
        "old_logprobs": old_or_own(logprobs, batch),
        "advantages": batch.token_columns["advantages"],
        "score_seq": batch.score_seq,
    }
    asked = {name: tensor for name, tensor in tensors.items() if name in inspect.signature(function).parameters}
    how = {} if formula.sequence_ratio is None else {"how": formula.sequence_ratio}
    losses = function(**asked, **argument_values(config, formula.arguments), **how)
    weights = batch.token_columns.get("importance_weights")
    return losses if weights is None else weights * losses


def old_or_own(logprobs: Tensor, batch: PackedBatch) -> Tensor:
    """[M] without gradient, of the policy that the ratios are taken against.

    A rollout that is one step has no other policy than the one that takes it: its ratios are 1, and nothing was computed ahead.
    """
    old = batch.token_columns.get("old_logprobs")
    return logprobs.detach() if old is None else old


@torch.no_grad()
def measure_ratios(name: str, config: RLConfig, logprobs: Tensor, batch: PackedBatch, metrics: Metrics) -> None:
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
    if config.policy_formula.clips is not None:
        metrics.mean(f"{name}/clip_frac", held_back(config, logprobs, batch))


def held_back(config: RLConfig, logprobs: Tensor, batch: PackedBatch) -> Tensor:
    """bool [M] tokens that a clip took out of the gradient, or whose weight it cut."""
    low, high, dual = config.clip_low, config.clip_high, config.dual_clip
    ours, theirs = _compared(config, logprobs, batch)
    if config.policy_formula.clips == "weight":
        ratio = (ours - theirs).exp()
        return (ratio < 1 - low) | (ratio > 1 + high)
    advantages = batch.token_columns["advantages"]
    return clipped_tokens(ours, theirs, advantages, clip_low=low, clip_high=high, dual_clip=dual)


def kl_in_loss(
    config: RLConfig,
    scores: TokenScores,
    batch: PackedBatch,
    metrics: Metrics,
    *,
    policy: PolicyModel,
    reference: Reference,
) -> Tensor:
    """[M] the KL estimate that is added to the loss, with gradient, before its weight."""
    if config.kl.estimator == "exact":
        temperature = config.sampling.temperature
        kl = exact_kl_per_token(policy, reference, batch, temperature=temperature, hidden=scores.hidden)
    else:
        kl = _estimate(config, scores.logprobs, batch.token_columns["ref_logprobs"], metrics)
    if config.kl.unbiased:
        kl = off_policy_kl(kl, scores.logprobs, old_or_own(scores.logprobs, batch))
    metrics.mean("loss/kl", kl)
    return kl


def kl_in_reward(
    config: RLConfig, experience: RolloutExperience, metrics: Metrics, *, policy: PolicyModel, reference: Reference
) -> Tensor:
    """[M] the KL estimate that is subtracted from the reward, without gradient, before its weight."""
    if config.kl.estimator == "exact":
        temperature = config.sampling.temperature
        with evaluating(policy.model):
            return experience.map(
                lambda batch: exact_kl_per_token(policy, reference, batch, temperature=temperature),
                max_tokens=config.microbatch_tokens,
            )
    columns = experience.token_columns
    return _estimate(config, columns["old_logprobs"], columns["ref_logprobs"], metrics)


def correct_sampler(
    config: RLConfig, experience: RolloutExperience, sampling_logprobs: Tensor, metrics: Metrics
) -> None:
    """Add the token column ``importance_weights``, where the recipe asks for it: old policy over sampler, bounded.

    Both are constants of the rollout, so that the weights are taken once and know nothing of steps or micro-batches.

    Args:
        config: ``importance``.
        experience: With the token column ``old_logprobs``.
        sampling_logprobs: [M] nats, under the distribution that was drawn from.
        metrics: Gets ratios before the bounds, and shares of units (tokens or completions) out of them.
    """
    settings = config.importance
    if settings is None:
        return
    found = importance_weights(
        experience.token_columns["old_logprobs"], sampling_logprobs, experience.score_seq,
        level=settings.level, bound=settings.bound, low=settings.low, high=settings.high,
    )  # fmt: skip
    experience.token_columns["importance_weights"] = found.weights
    units = float(found.num_units)
    metrics.mean("importance/ratio_mean", found.ratio_sum / units, units)
    metrics.largest("importance/ratio_max", found.ratio_max)
    metrics.mean("importance/too_low_frac", found.num_too_low / units, units)
    metrics.mean("importance/too_high_frac", found.num_too_high / units, units)
    metrics.total("importance/out_of_bounds", found.num_too_low + found.num_too_high)


def _compared(config: RLConfig, logprobs: Tensor, batch: PackedBatch) -> tuple[Tensor, Tensor]:
    """[M] and [M], whose difference is the log-ratio that the policy loss clips."""
    old = old_or_own(logprobs, batch)
    how = config.policy_formula.sequence_ratio
    if how is None:
        return logprobs, old
    log_ratios = sequence_log_ratios(logprobs, old, batch.score_seq, how=how)
    return log_ratios, torch.zeros_like(log_ratios)


def _estimate(config: RLConfig, logprobs: Tensor, ref_logprobs: Tensor, metrics: Metrics) -> Tensor:
    if config.kl.estimator == "k3":
        metrics.total("loss/kl_overflows", kl_overflows(logprobs, ref_logprobs).sum())
    return KL_ESTIMATORS[config.kl.estimator](logprobs, ref_logprobs)
