"""Losses on pairs without a reference policy: SimPO, CPO and ORPO. P is the number of pairs.

Only the policy is evaluated, so only the loss itself keeps it near its start: a likelihood term if there is one, a
target margin, a small learning rate. Units differ and are in the names: ``logprobs`` are nats summed over a completion's
scored tokens (``segment_sum``), ``mean_logprobs`` are nats per token (``segment_mean``).

A likelihood term is never added implicitly: it is a sum that the caller writes, ``cpo_loss(...) + coef * chosen_nll(...)``,
and so is ORPO's, whose weight is 1 and whose odds ratio has the coefficient.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rlhf.losses.shapes import check_same_shape, check_smoothing


def simpo_loss(
    chosen_mean_logprobs: Tensor,
    rejected_mean_logprobs: Tensor,
    *,
    beta: float,
    target_margin: float,
    label_smoothing: float = 0.0,
) -> Tensor:
    """SimPO: the mean log-probability per token is the reward, and it has to win by a margin.

        x    = beta (chosen - rejected) - target_margin
        loss = -(1 - s) log sigmoid(x) - s log sigmoid(-x)

    Source: Meng et al. 2024, eq. 6, arXiv:2405.14734, where the margin is called gamma; s > 0 as in the authors' code.

    Args:
        chosen_mean_logprobs: [P] nats per token of the chosen completion.
        rejected_mean_logprobs: [P] the same for the rejected completion.
        beta: Reward per nat per token; the paper has 2 to 10, far above DPO's 0.1 per nat of a whole completion.
        target_margin: In units of the reward; the paper has 0.3 to 1.6. Often given as a share of beta.
        label_smoothing: Share of pairs believed to be labeled the wrong way round, in [0, 0.5).

    Returns:
        [P] loss per pair, without any likelihood term. The caller reduces.

    Raises:
        ConfigError: ``label_smoothing`` is outside its range.
    """
    check_same_shape(chosen_mean_logprobs, rejected_mean_logprobs)
    check_smoothing(label_smoothing)
    logits = beta * (chosen_mean_logprobs - rejected_mean_logprobs) - target_margin
    return -(1 - label_smoothing) * F.logsigmoid(logits) - label_smoothing * F.logsigmoid(-logits)


def cpo_loss(
    chosen_logprobs: Tensor, rejected_logprobs: Tensor, *, beta: float, label_smoothing: float = 0.0
) -> Tensor:
    """The preference part of contrastive preference optimization: DPO with a uniform reference.

        margin = chosen - rejected,  loss as ``dpo_loss``

    The paper's whole loss adds the chosen completion's negative log-likelihood, ``chosen_nll``, at weight 1: without it
    nothing keeps the chosen completion likely.

    Source: Xu et al. 2024, eq. 3, arXiv:2401.08417.

    Args:
        chosen_logprobs: [P] nats, summed over the completion's tokens.
        rejected_logprobs: [P].
        beta: Reward per nat; the paper has 0.1.
        label_smoothing: Share of pairs believed to be labeled the wrong way round, in [0, 0.5).

    Returns:
        [P] loss per pair, without the likelihood term. The caller reduces.

    Raises:
        ConfigError: ``label_smoothing`` is outside its range.
    """
    check_same_shape(chosen_logprobs, rejected_logprobs)
    check_smoothing(label_smoothing)
    logits = beta * (chosen_logprobs - rejected_logprobs)
    return -(1 - label_smoothing) * F.logsigmoid(logits) - label_smoothing * F.logsigmoid(-logits)


def odds_ratio_loss(chosen_mean_logprobs: Tensor, rejected_mean_logprobs: Tensor) -> Tensor:
    """ORPO's preference part: how far the odds of the chosen completion exceed those of the rejected one.

        -log sigmoid(log_odds(chosen) - log_odds(rejected))

    The paper's whole loss, its eq. 6, is ``chosen_nll(...) + coef * odds_ratio_loss(...)``, the coefficient called lambda there and
    beta in TRL. The likelihood is that of the completion; the authors' code and TRL count the prompt's tokens too.

    Source: Hong et al. 2024, eq. 7, arXiv:2403.07691.

    Args:
        chosen_mean_logprobs: [P] nats per token of the chosen completion.
        rejected_mean_logprobs: [P] the same for the rejected completion.

    Returns:
        [P] loss per pair, before its weight. The caller reduces.
    """
    check_same_shape(chosen_mean_logprobs, rejected_mean_logprobs)
    return -F.logsigmoid(log_odds(chosen_mean_logprobs) - log_odds(rejected_mean_logprobs))


def log_odds(mean_logprobs: Tensor) -> Tensor:
    """log(P / (1 - P)) for P = exp(mean log-probability), finite at P = 1 too.

    Source: Hong et al. 2024, eq. 4, arXiv:2403.07691.

    Args:
        mean_logprobs: [S] nats per token, at most 0.

    Returns:
        [S] log-odds; at P = 1 those of the smallest normal 1 - P that the dtype has, without gradient.
    """
    bounded = mean_logprobs.clamp(max=-torch.finfo(mean_logprobs.dtype).tiny)
    # expm1 keeps 1 - P exact where P is nearly 1; where P is small, both ways are
    return bounded - torch.log(-torch.expm1(bounded))
