"""Divergences other than reverse KL between policy and reference, for every loss on a margin (f-DPO).

Where a policy maximizes reward - beta * D_f(policy || reference), its implicit reward is beta * f'(policy / reference):
the log-ratio of DPO is the case of reverse KL. A loss that sees log-ratios only by their margin takes these scores in
their place, which reads "log-probabilities" with zeros for the reference:

    scores = divergence_scores(logprobs, ref_logprobs, divergence="js")
    zeros  = torch.zeros_like(scores)
    losses = dpo_loss(*split_pairs(scores), *split_pairs(zeros), beta=0.1)

``MARGIN_LOSSES`` names those losses. Divided by lengths, a score is one per token, in whichever unit the score has.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from rlhf.errors import ConfigError, look_up
from rlhf.losses.shapes import check_same_shape

EXP_LINEAR_ABOVE = 20.0
"""Exponent from which the exponential goes on along its tangent: exp(20) is 5e8, and float32 overflows at 88."""


def reverse_kl_scores(logratios: Tensor) -> Tensor:
    """f'(u) = log u + 1, without the constant: DPO itself, and what a completion loses has no end.

    Args:
        logratios: [S] log u, policy over reference, nats summed over each completion.

    Returns:
        [S] the same.
    """
    return logratios


def forward_kl_scores(logratios: Tensor) -> Tensor:
    """f'(u) = 1 - 1 / u: at most 1, so what is won is soon won, and what is lost weighs exponentially.

    The exponential goes on along its tangent beyond ``EXP_LINEAR_ABOVE``: at a log-ratio of -100, 1 / u is 3e43, of two
    such numbers float32 makes NaN, and a clamp would let go of exactly the pairs that are most wrong. The tangent keeps
    the order of scores and a gradient that points the right way.

    Args:
        logratios: [S] log u, policy over reference, nats summed over each completion.

    Returns:
        [S] scores.
    """
    return -_expm1(-logratios)


def js_scores(logratios: Tensor) -> Tensor:
    """f'(u) = log(2 u / (1 + u)), Jensen-Shannon: at most log 2, and a log-ratio where u is small.

    Args:
        logratios: [S] log u, policy over reference, nats summed over each completion.

    Returns:
        [S] scores.
    """
    return math.log(2) + F.logsigmoid(logratios)


def alpha_scores(logratios: Tensor, *, alpha: float) -> Tensor:
    """f'(u) = (u^(alpha - 1) - 1) / (alpha - 1): forward KL at alpha = 0, reverse KL at 1, and all between.

    TRL's convention (1.16, ``f_alpha_divergence_coef``). The paper counts from the other end, f'(u) = (1 - u^-a) / a with
    reverse KL at a = 0: its a is 1 - alpha. The exponential goes on along its tangent as in ``forward_kl_scores``.

    Args:
        logratios: [S] log u, policy over reference, nats summed over each completion.
        alpha: In [0, 1] for the family between the two directions of KL; others are defined too.

    Returns:
        [S] scores.
    """
    if alpha == 1:
        return logratios
    return _expm1((alpha - 1) * logratios) / (alpha - 1)


DIVERGENCES: dict[str, Callable[..., Tensor]] = {
    "reverse_kl": reverse_kl_scores,
    "forward_kl": forward_kl_scores,
    "js": js_scores,
    "alpha": alpha_scores,
}
"""Scores ``(logratios) -> [S]`` by the name a recipe uses; "alpha" also needs its ``alpha``."""


def divergence_scores(logprobs: Tensor, ref_logprobs: Tensor, *, divergence: str, alpha: float | None = None) -> Tensor:
    """Replacement of the log-ratio under another divergence; 0 where policy and reference agree.

        f'(u) - f'(1),  u = policy / reference

    Source: Wang et al. 2023 (f-DPO), arXiv:2309.16240.

    Args:
        logprobs: [S] policy, nats summed over each completion.
        ref_logprobs: [S] the same under the reference.
        divergence: A key of ``DIVERGENCES``.
        alpha: For "alpha", which needs it; None for the others.

    Returns:
        [S] scores, in the order of the log-ratios.

    Raises:
        UnknownNameError: No divergence has that name.
        ConfigError: ``alpha`` is missing, or was given to a divergence that has none.
    """
    check_same_shape(logprobs, ref_logprobs)
    score = look_up(DIVERGENCES, divergence, kind="divergence")
    if (alpha is not None) != (score is alpha_scores):
        raise ConfigError(
            f"alpha belongs to the divergence 'alpha', and that one needs it; got divergence={divergence!r}, alpha={alpha}."
        )
    logratios = logprobs - ref_logprobs
    return score(logratios) if alpha is None else alpha_scores(logratios, alpha=alpha)


def _expm1(exponents: Tensor) -> Tensor:
    """exp(x) - 1, along its tangent beyond ``EXP_LINEAR_ABOVE``: value and gradient stay finite and rising."""
    bounded = exponents.clamp(max=EXP_LINEAR_ABOVE)
    # relu, not (exponents - bounded): below the limit a slope of 5e8 must not enter the gradient, even to cancel
    return torch.expm1(bounded) + math.exp(EXP_LINEAR_ABOVE) * F.relu(exponents - EXP_LINEAR_ABOVE)
