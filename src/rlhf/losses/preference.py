"""Losses on pairs of a chosen and a rejected completion. P is the number of pairs.

Log-probabilities are those of whole completions, in nats, summed over their scored tokens: ``segment_sum(logprobs,
score_seq, num_sequences)``. Only those of the policy carry a gradient.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from rlhf.errors import ConfigError
from rlhf.losses.shapes import check_same_shape


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
        label_smoothing: Share of pairs believed to be labelled the wrong way round, in [0, 0.5).

    Returns:
        [P] loss per pair. The caller reduces.
    """
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


PREFERENCE_LOSSES: dict[str, Callable[..., Tensor]] = {
    "sigmoid": dpo_loss,
    "hinge": dpo_hinge_loss,
    "ipo": ipo_loss,
}
"""Losses that share ``dpo_loss``'s four tensors and ``beta``, by the name a recipe uses."""


def implicit_rewards(logprobs: Tensor, ref_logprobs: Tensor, *, beta: float) -> Tensor:
    """The reward that a policy stands for, up to a constant per prompt: what DPO's accuracy and margin are measured on.

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


def split_pairs(values: Tensor) -> tuple[Tensor, Tensor]:
    """Chosen and rejected halves of per-sequence values, in the order in which packing lays a pair's branches.

    Args:
        values: [2P] one number per sequence: chosen, rejected, chosen, rejected ...

    Returns:
        [P] of the chosen and [P] of the rejected completions.

    Raises:
        ConfigError: The number of sequences is odd.
    """
    if len(values) % 2:
        raise ConfigError(f"Pairs come as two sequences each; got {len(values)} sequences, which is odd.")
    return values[0::2], values[1::2]


def _margin(chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor) -> Tensor:
    check_same_shape(chosen, rejected, ref_chosen, ref_rejected)
    return (chosen - ref_chosen) - (rejected - ref_rejected)
