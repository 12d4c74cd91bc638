"""Losses on the margin between a chosen and a rejected completion. P is the number of pairs.

Log-probabilities are those of whole completions, in nats, summed over their scored tokens: ``segment_sum(logprobs,
score_seq, num_sequences)``. Only those of the policy carry a gradient. All pair losses take the same four tensors in the
same order; what the losses of this file see of them is one number per pair, the margin:

    margin = (chosen - ref_chosen) - (rejected - ref_rejected)

Reference-free: give zeros for the reference. With another divergence than reverse KL: ``divergences``. Losses that also
anchor each side separately: ``anchored``; that compare the pairs of a step with each other: ``transport``.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from rlhf.errors import ConfigError
from rlhf.losses.shapes import check_same_shape, check_smoothing


def dpo_loss(
    chosen_logprobs: Tensor,
    rejected_logprobs: Tensor,
    ref_chosen_logprobs: Tensor,
    ref_rejected_logprobs: Tensor,
    *,
    beta: float,
    label_smoothing: float = 0.0,
) -> Tensor:
    """DPO loss of each pair; smoothing > 0 gives the conservative variant.

        margin = (chosen - ref_chosen) - (rejected - ref_rejected)
        loss   = -(1 - s) log sigmoid(beta margin) - s log sigmoid(-beta margin)

    Sources: Rafailov et al. 2023, eq. 7, arXiv:2305.18290 (s = 0); Mitchell 2023, "A note on DPO with noisy
    preferences", eq. 3 (s > 0).

    Args:
        chosen_logprobs: [P] log-probability of the chosen completion, in nats, summed over its tokens. A mean per token
            would be another loss.
        rejected_logprobs: [P] the same for the rejected completion.
        ref_chosen_logprobs: [P] chosen completion under the frozen reference.
        ref_rejected_logprobs: [P] rejected completion under the reference.
        beta: Strength of the pull towards the reference; the paper uses 0.1 to 0.5.
        label_smoothing: Share of pairs believed to be labeled the wrong way round, in [0, 0.5).

    Returns:
        [P] loss per pair. The caller reduces.

    Raises:
        ConfigError: ``label_smoothing`` is outside its range.
    """
    check_smoothing(label_smoothing)
    logits = beta * _margin(chosen_logprobs, rejected_logprobs, ref_chosen_logprobs, ref_rejected_logprobs)
    return -(1 - label_smoothing) * F.logsigmoid(logits) - label_smoothing * F.logsigmoid(-logits)


def dpo_hinge_loss(
    chosen_logprobs: Tensor,
    rejected_logprobs: Tensor,
    ref_chosen_logprobs: Tensor,
    ref_rejected_logprobs: Tensor,
    *,
    beta: float,
) -> Tensor:
    """Hinge loss of each pair: no gradient once the margin reaches 1 / beta.

        max(0, 1 - beta margin),  margin as in ``dpo_loss``

    Sources: Zhao et al. 2023 (SLiC-HF), eq. 1, arXiv:2305.10425; with log-ratios against a reference: Liu et al. 2023
    (RSO), "hinge-norm", arXiv:2309.06657.

    Args:
        chosen_logprobs: [P] nats, summed over the completion's tokens.
        rejected_logprobs: [P].
        ref_chosen_logprobs: [P].
        ref_rejected_logprobs: [P].
        beta: Reciprocal of the margin that is asked for, in nats.

    Returns:
        [P] loss per pair. The caller reduces.
    """
    logits = beta * _margin(chosen_logprobs, rejected_logprobs, ref_chosen_logprobs, ref_rejected_logprobs)
    return F.relu(1 - logits)


def ipo_loss(
    chosen_logprobs: Tensor,
    rejected_logprobs: Tensor,
    ref_chosen_logprobs: Tensor,
    ref_rejected_logprobs: Tensor,
    *,
    beta: float,
    chosen_lengths: Tensor | None = None,
    rejected_lengths: Tensor | None = None,
) -> Tensor:
    """IPO loss of each pair: the margin is drawn to 1 / (2 beta), not pushed without end.

        loss = (margin - 1 / (2 beta))^2

    Two units are in use. Without lengths, ``margin`` is that of ``dpo_loss``, in nats per completion, as in the paper's
    equation. With lengths, each log-ratio is first divided by its completion's length, so ``margin`` and 1 / (2 beta)
    are in nats per token; TRL does so and says that the authors confirmed it for the paper's results. A beta of one
    unit means nothing in the other: 0.1 asks for 5 nats between two whole completions, or for 5 nats at every token.

    Source: Azar et al. 2023, eq. 17, where beta is called tau, arXiv:2310.12036.

    Args:
        chosen_logprobs: [P] nats, summed over the completion's tokens in both units.
        rejected_logprobs: [P].
        ref_chosen_logprobs: [P].
        ref_rejected_logprobs: [P].
        beta: Strength of the pull towards the reference, above 0.
        chosen_lengths: [P] scored tokens of the chosen completion, at least 1; None for the summed unit.
        rejected_lengths: [P] the same for the rejected completion; given if and only if ``chosen_lengths`` is.

    Returns:
        [P] loss per pair. The caller reduces.
    """
    if (chosen_lengths is None) != (rejected_lengths is None):
        raise ConfigError("ipo_loss got the lengths of one side only; give both for nats per token, or none for sums.")
    check_same_shape(chosen_logprobs, rejected_logprobs, ref_chosen_logprobs, ref_rejected_logprobs)
    chosen, rejected = chosen_logprobs - ref_chosen_logprobs, rejected_logprobs - ref_rejected_logprobs
    if chosen_lengths is not None and rejected_lengths is not None:
        check_same_shape(chosen, chosen_lengths, rejected_lengths)
        chosen, rejected = chosen / chosen_lengths, rejected / rejected_lengths
    return (chosen - rejected - 1 / (2 * beta)).square()


def length_normalized_dpo_loss(
    chosen_logprobs: Tensor,
    rejected_logprobs: Tensor,
    ref_chosen_logprobs: Tensor,
    ref_rejected_logprobs: Tensor,
    *,
    beta: float,
    chosen_lengths: Tensor,
    rejected_lengths: Tensor,
    label_smoothing: float = 0.0,
) -> Tensor:
    """DPO on log-ratios per token: a long completion has no more weight than a short one.

        margin = (chosen - ref_chosen) / chosen_length - (rejected - ref_rejected) / rejected_length
        loss   = as ``dpo_loss``

    A margin per token is smaller than one per completion by its length, so beta is larger by as much: 5 in the source,
    where DPO on sums has 0.1.

    Source: Lambert et al. 2024 (Tulu 3), section 5, arXiv:2411.15124.

    Args:
        chosen_logprobs: [P] nats, summed over the completion's tokens.
        rejected_logprobs: [P].
        ref_chosen_logprobs: [P].
        ref_rejected_logprobs: [P].
        beta: Strength of the pull towards the reference, per nat per token.
        chosen_lengths: [P] scored tokens of the chosen completion, at least 1.
        rejected_lengths: [P] the same for the rejected completion.
        label_smoothing: As in ``dpo_loss``.

    Returns:
        [P] loss per pair. The caller reduces.
    """
    check_same_shape(chosen_logprobs, rejected_logprobs, ref_chosen_logprobs, ref_rejected_logprobs)
    check_same_shape(chosen_logprobs, chosen_lengths, rejected_lengths)
    return dpo_loss(
        chosen_logprobs / chosen_lengths,
        rejected_logprobs / rejected_lengths,
        ref_chosen_logprobs / chosen_lengths,
        ref_rejected_logprobs / rejected_lengths,
        beta=beta,
        label_smoothing=label_smoothing,
    )


def robust_dpo_loss(
    chosen_logprobs: Tensor,
    rejected_logprobs: Tensor,
    ref_chosen_logprobs: Tensor,
    ref_rejected_logprobs: Tensor,
    *,
    beta: float,
    label_smoothing: float = 0.0,
) -> Tensor:
    """DPO with the effect of wrong labels taken out: its mean over noisy labels is DPO's over the true ones.

        loss = (-(1 - s) log sigmoid(beta margin) + s log sigmoid(-beta margin)) / (1 - 2 s)

    Where ``dpo_loss`` with smoothing stops at the margin that the noise allows, this one goes on, and is not bounded
    from below: a pair won by far has a loss that falls by s / (1 - 2 s) per nat of beta margin.

    Source: Chowdhury et al. 2024, section 3, arXiv:2403.00409.

    Args:
        chosen_logprobs: [P] nats, summed over the completion's tokens.
        rejected_logprobs: [P].
        ref_chosen_logprobs: [P].
        ref_rejected_logprobs: [P].
        beta: As in ``dpo_loss``.
        label_smoothing: Share of labels that are the wrong way round, s, in [0, 0.5).

    Returns:
        [P] loss per pair. The caller reduces.

    Raises:
        ConfigError: ``label_smoothing`` is outside [0, 0.5): at half, labels carry no information.
    """
    check_smoothing(label_smoothing)
    logits = beta * _margin(chosen_logprobs, rejected_logprobs, ref_chosen_logprobs, ref_rejected_logprobs)
    noisy = -(1 - label_smoothing) * F.logsigmoid(logits) + label_smoothing * F.logsigmoid(-logits)
    return noisy / (1 - 2 * label_smoothing)


def exo_loss(
    chosen_logprobs: Tensor,
    rejected_logprobs: Tensor,
    ref_chosen_logprobs: Tensor,
    ref_rejected_logprobs: Tensor,
    *,
    beta: float,
    label_smoothing: float = 1e-3,
) -> Tensor:
    """EXO for pairs: reverse KL between the policy's and the annotator's choice, where DPO has forward KL.

        q = sigmoid(beta margin);  loss = q log(q / (1 - s)) + (1 - q) log((1 - q) / s)

    The annotator prefers the chosen completion with probability 1 - s. The loss is 0 where the policy does so too.
    Beware: being mode-seeking, a pair that is lost by far has hardly any gradient.

    Source: Ji et al. 2024, eq. 16, arXiv:2402.00856.

    Args:
        chosen_logprobs: [P] nats, summed over the completion's tokens.
        rejected_logprobs: [P].
        ref_chosen_logprobs: [P].
        ref_rejected_logprobs: [P].
        beta: As in ``dpo_loss``.
        label_smoothing: s, in (0, 0.5); 0 would ask for an infinite margin at an infinite loss.

    Returns:
        [P] loss per pair. The caller reduces.

    Raises:
        ConfigError: ``label_smoothing`` is outside (0, 0.5).
    """
    if not 0 < label_smoothing < 0.5:
        raise ConfigError(f"exo_loss needs a label_smoothing above 0 and below 0.5; got {label_smoothing}.")
    logits = beta * _margin(chosen_logprobs, rejected_logprobs, ref_chosen_logprobs, ref_rejected_logprobs)
    won = logits.sigmoid() * (F.logsigmoid(logits) - math.log1p(-label_smoothing))
    lost = (-logits).sigmoid() * (F.logsigmoid(-logits) - math.log(label_smoothing))
    return won + lost


def discopop_loss(
    chosen_logprobs: Tensor,
    rejected_logprobs: Tensor,
    ref_chosen_logprobs: Tensor,
    ref_rejected_logprobs: Tensor,
    *,
    beta: float,
    tau: float = 0.05,
) -> Tensor:
    """Log-ratio modulated loss, found by a language model that searched for loss functions.

        x = beta margin,  w = sigmoid(x / tau)
        loss = -(1 - w) log sigmoid(x) + w exp(-x)

    DPO's loss where the pair is lost, an exponential where it is won. It is not convex: at the usual tau it has a minimum
    at x = -0.12 and a maximum at 0.07, so a policy that is its reference is first pushed to lose its pairs by a little,
    and only pairs above the maximum go on to be won. The product w exp(-x) is computed in one exponential: exp(-x) alone
    overflows where w makes up for it.

    Source: Lu et al. 2024, eq. 5, arXiv:2406.08414.

    Args:
        chosen_logprobs: [P] nats, summed over the completion's tokens.
        rejected_logprobs: [P].
        ref_chosen_logprobs: [P].
        ref_rejected_logprobs: [P].
        beta: As in ``dpo_loss``.
        tau: How sharply the two parts are separated, in nats times beta, in (0, 1].

    Returns:
        [P] loss per pair. The caller reduces.

    Raises:
        ConfigError: ``tau`` is outside (0, 1]; above 1 the loss of a lost pair would grow exponentially.
    """
    if not 0 < tau <= 1:
        raise ConfigError(f"discopop_loss needs a tau above 0 and at most 1; got {tau}.")
    logits = beta * _margin(chosen_logprobs, rejected_logprobs, ref_chosen_logprobs, ref_rejected_logprobs)
    logistic = -(-logits / tau).sigmoid() * F.logsigmoid(logits)
    return logistic + torch.exp(F.logsigmoid(logits / tau) - logits)


def implicit_rewards(logprobs: Tensor, ref_logprobs: Tensor, *, beta: float) -> Tensor:
    """The implicit reward of a policy, up to a constant per prompt: the basis of DPO's accuracy and margin.

        beta * (log pi(y | x) - log pi_ref(y | x))

    Source: Rafailov et al. 2023, eq. 5 without its partition term, arXiv:2305.18290.

    Args:
        logprobs: [S] nats, summed over each completion.
        ref_logprobs: [S] the same under the reference.
        beta: As in the loss.

    Returns:
        [S].
    """
    check_same_shape(logprobs, ref_logprobs)
    return beta * (logprobs - ref_logprobs)


def _margin(chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor) -> Tensor:
    check_same_shape(chosen, rejected, ref_chosen, ref_rejected)
    return (chosen - ref_chosen) - (rejected - ref_rejected)
