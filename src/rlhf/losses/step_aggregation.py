"""Aggregation of the scores of a solution's steps. K steps of all solutions, S solutions.

A step's score is the log-odds that the step is right; it is read at the step's last token. ``step_seq`` says which
solution a step belongs to, as ``score_seq`` does for tokens. Their losses: ``process``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rlhf.errors import DataError, UnknownNameError, did_you_mean
from rlhf.losses.segments import segment_count, segment_ends, segment_max, segment_sum
from rlhf.losses.shapes import check_same_shape


@torch.no_grad()
def steps_until_first_error(labels: Tensor, step_seq: Tensor) -> Tensor:
    """Which steps come no later than the first wrong one of their solution.

    What follows from a wrong step is neither right nor wrong, and data such as PRM800K does not label it.

    Source: Lightman et al. 2023, section 2.6, arXiv:2305.20050.

    Args:
        labels: [K] numbers or bool; below 1/2 is wrong.
        step_seq: [K] int64, never decreasing, a solution's steps in order.

    Returns:
        bool [K]: all steps of a solution without a wrong one, else those up to the first wrong one and itself.
    """
    check_same_shape(labels, step_seq)
    wrong = (labels < 0.5).long()
    wrong_before = wrong.cumsum(0) - wrong
    last, lengths = segment_ends(step_seq)
    of_other_solutions = wrong_before[last - lengths + 1].repeat_interleave(lengths)
    return wrong_before == of_other_solutions


STEP_AGGREGATIONS = ("min", "product", "mean", "last")
"""What ``aggregate_steps`` chooses from, by the name a recipe uses."""


def aggregate_steps(step_scores: Tensor, step_seq: Tensor, num_sequences: int, *, how: str) -> Tensor:
    """One log-probability for each solution, from those of its steps. With p = sigmoid(score):

        min       log min p             a solution is as good as its weakest step
        product   sum of log p          all steps are right, were they independent; falls with the number of steps
        mean      log of the mean of p  forgives a wrong step among many right ones
        last      log p of the last     right where the last step's label is about the whole solution, so not where
                                        steps are labeled independently

    Sources: product and min: Lightman et al. 2023, section 2.6 and appendix F, arXiv:2305.20050; min: Wang et al. 2023
    (Math-Shepherd), arXiv:2312.08935; last: Snell et al. 2024, arXiv:2408.03314.

    Args:
        step_scores: [K] log-odds that the step is right.
        step_seq: [K] int64, never decreasing, a solution's steps in order.
        num_sequences: S.
        how: One of ``STEP_AGGREGATIONS``.

    Returns:
        [S] nats, at most 0. The gradient of a minimum that several steps share is split evenly among them.

    Raises:
        UnknownNameError: No aggregation has this name.
        DataError: A solution has no steps.
    """
    check_same_shape(step_scores, step_seq)
    count = segment_count(step_seq, num_sequences)
    if bool((count == 0).any()):
        empty = (count == 0).nonzero().flatten().tolist()
        raise DataError(f"Solutions {empty} of this batch have no steps to judge; leave them out of the batch.")
    logprobs = F.logsigmoid(step_scores)
    match how:
        case "min":
            return -segment_max(-logprobs, step_seq, num_sequences)
        case "product":
            return segment_sum(logprobs, step_seq, num_sequences)
        case "mean":
            highest = segment_max(logprobs.detach(), step_seq, num_sequences)
            share = segment_sum((logprobs - highest[step_seq]).exp(), step_seq, num_sequences) / count
            return highest + share.log()
        case "last":
            return logprobs[segment_ends(step_seq)[0]]
    raise UnknownNameError(
        f"No aggregation of steps is called {how!r}.{did_you_mean(how, STEP_AGGREGATIONS)} "
        f"Known: {', '.join(STEP_AGGREGATIONS)}."
    )
