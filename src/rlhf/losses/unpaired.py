"""Losses on single completions that are known to be desirable or not: KTO and unpaired BCO. S is the number of rows.

Both compare a completion's implicit reward with a reference point that belongs to the whole optimizer step, never to a
micro-batch: KTO's z0 is the distance of the policy from the reference, BCO's shift is the reward of an average completion.
It is a plain number here. Per step:

    match  = mismatched_rows(prompts, seed=derive_seed(seed, "kto", "mismatch", step))
    # score prompt i with the completion of row match[i], under policy and reference, without gradient
    z0     = kto_reference_point(mismatched_logprobs, ref_mismatched_logprobs)
    losses = kto_loss(logprobs, ref_logprobs, desirable, beta=0.1, reference_point=z0)

or, for one forward pass less, with the running averages of ``running``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Hashable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from rlhf.errors import ConfigError
from rlhf.losses.shapes import check_same_shape


def kto_loss(
    logprobs: Tensor,
    ref_logprobs: Tensor,
    desirable: Tensor,
    *,
    beta: float,
    reference_point: float,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> Tensor:
    """KTO: what a completion is worth, as a human would feel it, against the reference point.

        desirable:    desirable_weight   * (1 - sigmoid(beta (logratio - z0)))
        undesirable:  undesirable_weight * (1 - sigmoid(beta (z0 - logratio)))

    With z0 = 0 this is the unpaired form of APO-zero.

    Source: Ethayarajh et al. 2024, section 4, arXiv:2402.01306; z0 = 0: D'Oosterlinck et al. 2024, arXiv:2408.06266.

    Args:
        logprobs: [S] policy, nats summed over each completion.
        ref_logprobs: [S] the same under the frozen reference.
        desirable: bool [S].
        beta: Strength of the pull towards the reference; the paper has 0.1.
        reference_point: z0 of the whole step, nats; carries no gradient. ``kto_reference_point``, or a running average.
        desirable_weight: Weight of desirable rows. The paper keeps the ratio of (weight times rows) between desirable
            and undesirable from 1 to 3/2.
        undesirable_weight: Weight of the others.

    Returns:
        [S] loss per row. The caller reduces, over all rows of both kinds.
    """
    sign = _sign(logprobs, ref_logprobs, desirable)
    weights = torch.where(desirable, logprobs.new_tensor(desirable_weight), logprobs.new_tensor(undesirable_weight))
    return weights * (-beta * sign * (logprobs - ref_logprobs - reference_point)).sigmoid()


def bco_loss(logprobs: Tensor, ref_logprobs: Tensor, desirable: Tensor, *, beta: float, shift: float) -> Tensor:
    """Binary classifier optimization: the implicit reward, less a shift, is the logit of "this one is desirable".

        desirable:    -log sigmoid(beta logratio - shift)
        undesirable:  -log sigmoid(shift - beta logratio)

    Source: Jung et al. 2024, arXiv:2404.04656. Its importance weights for undesirable prompts of another distribution
    multiply the result.

    Args:
        logprobs: [S] policy, nats summed over each completion.
        ref_logprobs: [S] the same under the frozen reference.
        desirable: bool [S].
        beta: Strength of the pull towards the reference.
        shift: delta, nats times beta, of the whole step: ``RunningRewardShift.value``.

    Returns:
        [S] loss per row. The caller reduces.
    """
    sign = _sign(logprobs, ref_logprobs, desirable)
    return -F.logsigmoid(sign * (beta * (logprobs - ref_logprobs) - shift))


def kto_reference_point(mismatched_logprobs: Tensor, ref_mismatched_logprobs: Tensor) -> float:
    """KTO's z0: an estimate of KL(policy || reference) from completions that belong to other prompts.

        max(0, mean of (log policy(y' | x) - log reference(y' | x)))

    The completion's own prompt would measure its reward, not a KL; so the pairs come from ``mismatched_rows``.

    Source: Ethayarajh et al. 2024, section 4, arXiv:2402.01306.

    Args:
        mismatched_logprobs: [S] policy, nats summed over each mismatched completion; all rows of the step, of all ranks.
        ref_mismatched_logprobs: [S] the same under the reference.

    Returns:
        z0, nats, at least 0; NaN where one of them is, so that the step's loss says so.

    Raises:
        ConfigError: There are no rows.
    """
    check_same_shape(mismatched_logprobs, ref_mismatched_logprobs)
    if not len(mismatched_logprobs):
        raise ConfigError(
            "kto_reference_point got no rows; it takes the mismatched rows of a whole step, at least two."
        )
    mean = float((mismatched_logprobs.detach() - ref_mismatched_logprobs).double().mean())
    return mean if math.isnan(mean) else max(0.0, mean)  # max(0.0, nan) is 0.0, and would hide it


def mismatched_rows(prompts: Sequence[Hashable], *, seed: int) -> list[int]:
    """For each row of a step, the row whose completion it is given for z0: at random, and never one of its own prompt.

    Rows are shuffled, those of one prompt put side by side, and all moved on by as many places as the most frequent
    prompt has rows: none stays within its prompt, and each completion is used once. Where one prompt has more than half
    of the rows, that can't be; then completions of the others are used several times.

    Args:
        prompts: What tells the prompt of each row apart: an id, the text, a tuple of tokens; all rows of the step.
        seed: ``derive_seed(run_seed, "kto", "mismatch", step)``.

    Returns:
        [S] indices of rows. They depend on the step's rows and the seed alone, not on how the step is split.

    Raises:
        ConfigError: All rows have the same prompt, or there is but one.
    """
    rows_of: dict[Hashable, list[int]] = {}
    shuffled = list(range(len(prompts)))
    random.Random(seed).shuffle(shuffled)
    for row in shuffled:
        rows_of.setdefault(prompts[row], []).append(row)
    if len(rows_of) < 2:
        raise ConfigError(
            f"KTO's reference point needs completions of other prompts, and all {len(prompts)} rows of the step have the "
            "same one; make steps of more rows, or take the running average."
        )
    blocks = sorted(rows_of.values(), key=len, reverse=True)  # stable: equal blocks stay in random order
    order = [row for block in blocks for row in block]
    largest = len(blocks[0])
    others = order[largest:]
    if largest <= len(others):
        donors = others + order[:largest]
    else:
        donors = [others[k % len(others)] for k in range(largest)] + order[: len(others)]
    match = dict(zip(order, donors, strict=True))
    return [match[row] for row in range(len(prompts))]


def _sign(logprobs: Tensor, ref_logprobs: Tensor, desirable: Tensor) -> Tensor:
    """[S] +1 for desirable rows and -1 for the others."""
    check_same_shape(logprobs, ref_logprobs, desirable)
    if desirable.dtype != torch.bool:
        raise ConfigError(
            f"desirable must be boolean, one per row; got {desirable.dtype}. Compare scores with a bound."
        )
    return torch.where(desirable, 1.0, -1.0).to(logprobs.dtype)
