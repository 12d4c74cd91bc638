"""pass@k: the probability that at least one of k samples solves a problem."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from rlhf.errors import ConfigError
from rlhf.evaluation.intervals import CONFIDENCE, Array, Estimate, share_interval
from rlhf.training.held_out import chance_of_a_success


def pass_at_k(num_correct: Sequence[int], num_samples: int | Sequence[int], k: int) -> Array:
    """Unbiased estimate of pass@k for each problem, from n >= k samples of which c are right.

        pass@k = 1 - C(n - c, k) / C(n, k)

    The share of the sets of k samples among n that hold a right one. The plain 1 - (1 - c/n)^k is too low: for n = k = 1
    they agree, for one right sample of n = k = 8 it says 0.66 and the truth is 1. Binomials are exact integers here, so
    there is nothing to overflow or to cancel.

    Source: Chen et al. 2021, "Evaluating Large Language Models Trained on Code", eq. 1, arXiv:2107.03374.

    Args:
        num_correct: [P] c, from 0 to n.
        num_samples: n of every problem, or [P] n of each.
        k: Samples that may be tried; at least 1, at most the smallest n.

    Returns:
        [P] in [0, 1].
    """
    samples = [num_samples] * len(num_correct) if isinstance(num_samples, int) else list(num_samples)
    if len(samples) != len(num_correct):
        raise ConfigError(
            f"pass@k got the number of samples of {len(samples)} problems and the right ones of {len(num_correct)}; give "
            "one of each for each problem."
        )
    if k < 1:
        raise ConfigError(f"pass@k was asked for k = {k}; at least one sample must be tried.")
    for problem, (c, n) in enumerate(zip(num_correct, samples, strict=True)):
        if not 0 <= c <= n:
            raise ConfigError(f"Problem {problem} has {c} right samples of {n}; wanted from 0 to {n}.")
        if k > n:
            raise ConfigError(
                f"pass@{k} needs at least {k} samples of each problem, and problem {problem} has {n}; draw more, or ask "
                "for a smaller k."
            )
    return np.array(
        [chance_of_a_success(int(c), int(n), k) for c, n in zip(num_correct, samples, strict=True)], dtype=np.float64
    )


def pass_curve(
    correct: Sequence[ArrayLike], ks: Sequence[int] | None = None, *, confidence: float = CONFIDENCE
) -> dict[int, Estimate]:
    """Mean pass@k over problems, each with its interval; the problem is the unit.

    Args:
        correct: [P] for each problem, which of its samples are right: bools, or 0 and 1.
        ks: Each at least 1 and at most the smallest number of samples; by default 1, 2, 4 ... up to that number.
        confidence: Share of such intervals that hold the truth.

    Returns:
        k -> pass@k; missing where there is no problem.
    """
    outcomes = [np.asarray(samples, dtype=np.float64) for samples in correct]
    for problem, samples in enumerate(outcomes):
        if samples.ndim != 1 or not np.isin(samples, (0.0, 1.0)).all():
            raise ConfigError(f"The samples of problem {problem} must be a flat list, each right (1) or wrong (0).")
    fewest = min((len(samples) for samples in outcomes), default=1)
    if fewest == 0:
        empty = next(number for number, samples in enumerate(outcomes) if len(samples) == 0)
        raise ConfigError(f"Problem {empty} has no samples, so it can't be evaluated; draw some or leave it out.")
    if ks is None:
        ks = [2**power for power in range(fewest.bit_length())]
    right, drawn = [int(samples.sum()) for samples in outcomes], [len(samples) for samples in outcomes]
    return {k: share_interval(pass_at_k(right, drawn, k), confidence=confidence) for k in ks}
