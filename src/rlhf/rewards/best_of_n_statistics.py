"""What best-of-n selection does to a policy: how far it moves, and what it gains; exact, from one pool of samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from rlhf.errors import ConfigError


def best_of_n_kl(n: int) -> float:
    """How far the best of n samples is from the distribution that they were drawn from: KL(best || one) in nats.

        log n - (n - 1) / n

    Exact where no two samples tie; with ties (a small world repeats itself) it is an upper bound.

    Sources: Stiennon et al. 2020, appendix G.3, arXiv:2009.01325; the bound: Beirami et al. 2024, arXiv:2401.01879.
    """
    if n < 1:
        raise ConfigError(f"The best of {n} samples was asked for; wanted 1 or more.")
    return math.log(n) - (n - 1) / n


def best_of_n_kl_with_ties(shares: ArrayLike, n: int) -> float:
    """The same where samples tie, a tie being broken by chance: exact for these shares.

        sum over levels s of  q_s log(q_s / p_s),   q_s = F_s^n - F_{s-1}^n,   F_s = p_1 + ... + p_s

    The best of n has the level s with probability q_s, and within a level selection says nothing, so this is the whole divergence. It is
    at most ``best_of_n_kl(n)``, and 0 where all tie.

    Source: Beirami et al. 2024, arXiv:2401.01879, whose bound it refines by treating completions of one score as one outcome.

    Args:
        shares: [L] probability of each level of the score, lowest first; they sum to 1. For an estimate, the shares among samples: see
            ``score_shares``.
        n: 1 or more.
    """
    p = np.asarray(shares, dtype=np.float64)
    if n < 1 or p.ndim != 1 or not len(p) or (p < 0).any() or abs(p.sum() - 1) > 1e-6:
        raise ConfigError(
            f"The best of {n} among levels of shares {p.tolist()} was asked for; wanted n of 1 or more, and shares that sum to 1."
        )
    p = p[p > 0]
    ends = np.concatenate([[0.0], np.minimum(np.cumsum(p), 1.0)])
    q = np.diff(ends**n)
    known = q > 0
    return float(max(0.0, (q[known] * np.log(q[known] / p[known])).sum()))


def score_shares(scores: Sequence[float]) -> list[float]:
    """Share of the samples at each score, lowest first: the plug-in estimate for ``best_of_n_kl_with_ties``.

    With N samples whose scores all differ it says at most log N, so take N several times n.
    """
    _, counts = np.unique(np.asarray(scores, dtype=np.float64), return_counts=True)
    return [float(share) for share in counts / counts.sum()]


def best_of_n_means(proxy: ArrayLike, values: ArrayLike, n: int) -> float:
    """Mean over all sets of n among N samples of the value of the set's best by proxy: unbiased, and exact over the sets.

        sum over i of C(i - 1, n - 1) / C(N, n) * value of rank i,   ranks 1 .. N by proxy, the best last

    Samples with equal proxies share their ranks' weight: which of them would be taken is a matter of chance.

    Source: Nakano et al. 2021 (WebGPT), appendix I, arXiv:2112.09332, whose estimator Gao et al. 2022 use.

    Args:
        proxy: [N] what chooses.
        values: [N] what is measured of the chosen one; the proxy itself for its own curve.
        n: From 1 to N.
    """
    scores, values = np.asarray(proxy, dtype=np.float64), np.asarray(values, dtype=np.float64)
    total = len(scores)
    if scores.shape != values.shape or scores.ndim != 1 or not 1 <= n <= total:
        raise ConfigError(
            f"The best of {n} among samples of shapes {scores.shape} and {values.shape} was asked for; wanted one proxy and "
            f"one value each, and n from 1 to {total}."
        )
    weights = np.array([math.comb(rank - 1, n - 1) / math.comb(total, n) for rank in range(1, total + 1)])
    order = np.argsort(scores, kind="stable")
    _, ties = np.unique(scores[order], return_inverse=True)
    shared = np.bincount(ties, weights=weights) / np.bincount(ties)
    return float(shared[ties] @ values[order])
