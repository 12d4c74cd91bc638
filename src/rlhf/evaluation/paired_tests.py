"""Tests of two systems on the same prompts, and corrections for many tests. Exact where that is cheap; scipy does the counting.

Every difference is new - old of one prompt: two separate intervals leave the difficulty of the prompts in, and their overlap
decides nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import binom, binomtest, false_discovery_control, permutation_test

from rlhf.errors import ConfigError
from rlhf.evaluation.intervals import Array

RESAMPLES = 9999
"""Sign flips drawn; all of them are tried where there are no more (13 prompts). The smallest p-value is then 1 / 10,000."""


def sign_test(num_better: int, num_worse: int, *, mid_p: bool = False) -> float:
    """Two-sided exact p-value that better and worse are equally likely; ties say nothing and are left out.

        p = 2 P(Bin(better + worse, 1/2) <= min(better, worse)),   mid-p: less P(Bin = min(better, worse))

    On outcomes of 0 and 1 it is McNemar's exact test. The mid-p variant is less conservative and keeps its level nearly always.

    Sources: McNemar 1947, "Note on the sampling error of the difference between correlated proportions", Psychometrika 12;
    mid-p: Fagerland, Lydersen and Laake 2013, BMC Medical Research Methodology 13.

    Args:
        num_better: Prompts on which the new system is better.
        num_worse: Prompts on which it is worse.
        mid_p: Whether the probability of exactly this result counts half.

    Returns:
        p in (0, 1]; 1 where there is no such prompt.
    """
    if min(num_better, num_worse) < 0:
        raise ConfigError(f"A sign test got {num_better} better and {num_worse} worse; counts are 0 or more.")
    n = num_better + num_worse
    if n == 0:
        return 1.0
    exact = float(binomtest(num_better, n, 0.5).pvalue)
    return exact - float(binom.pmf(num_better, n, 0.5)) if mid_p else exact


def mcnemar_test(old: ArrayLike, new: ArrayLike, *, mid_p: bool = False) -> float:
    """``sign_test`` of which prompts were solved before and are now.

    Args:
        old: [n] 0 or 1 (or bools), one for each prompt.
        new: [n] the same prompts in the same order.
        mid_p: See ``sign_test``.
    """
    before, after = np.asarray(old, dtype=np.float64), np.asarray(new, dtype=np.float64)
    if before.shape != after.shape or before.ndim != 1:
        raise ConfigError(
            f"McNemar's test compares two flat lists of the same prompts; got {before.shape} and {after.shape}."
        )
    if not (np.isin(before, (0.0, 1.0)).all() and np.isin(after, (0.0, 1.0)).all()):
        raise ConfigError("McNemar's test takes outcomes of 0 and 1; for other numbers use sign_flip_test.")
    return sign_test(int((after > before).sum()), int((after < before).sum()), mid_p=mid_p)


def sign_flip_test(differences: ArrayLike, *, seed: int, num_resamples: int = RESAMPLES) -> float:
    """Two-sided p-value that differences are symmetric about 0: each one's sign is flipped at random, and the means compared.

    Source: Fisher 1935, "The Design of Experiments", section 21; computed by ``scipy.stats.permutation_test``.

    Args:
        differences: [n] new - old, one for each prompt (average a prompt's samples first, ``unit_means``).
        seed: A named seed (``rlhf.seeds.derive_seed``).
        num_resamples: Flips drawn; where 2^n is no more, all are tried and the p-value is exact.
    """
    d = finite_differences(differences)
    test = permutation_test(
        (d,),
        lambda sample, axis: sample.mean(axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=num_resamples,
        batch=max(1, 2_000_000 // d.size),
        rng=np.random.default_rng(seed),
    )
    return float(test.pvalue)


def holm(p_values: ArrayLike) -> Array:
    """Adjusted p-values: whoever rejects those up to alpha is wrong anywhere in at most alpha of families.

        adjusted (k) = max over j <= k of min(1, (m - j + 1) p(j)),   p(1) <= ... <= p(m)

    Of 20 unchanged tasks tested at 5 % each, 64 % of families show a "regression"; after Holm 4.9 %. Nothing is assumed of
    how the tests depend on each other.

    Source: Holm 1979, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6.

    Args:
        p_values: [m].

    Returns:
        [m] in the same order.
    """
    p = _checked_p_values(p_values)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1)))
    return adjusted


def benjamini_hochberg(p_values: ArrayLike) -> Array:
    """Adjusted p-values: of those up to q, a share of q is expected to be false. For exploring, not for a gate.

    Source: Benjamini and Hochberg 1995, JRSS B 57; computed by ``scipy.stats.false_discovery_control``.

    Args:
        p_values: [m] of tests that are independent or positively dependent.

    Returns:
        [m] in the same order.
    """
    p = _checked_p_values(p_values)
    return np.asarray(false_discovery_control(p), dtype=np.float64) if p.size else p


def finite_differences(differences: ArrayLike) -> Array:
    """[n] float64, refused where there is nothing or a number is missing."""
    d = np.asarray(differences, dtype=np.float64)
    if d.ndim != 1 or d.size == 0 or not np.isfinite(d).all():
        raise ConfigError(
            f"A paired test needs a flat list of finite differences, one for each prompt; got shape {d.shape} with "
            f"{int((~np.isfinite(d)).sum())} missing. Leave out prompts that were not measured, and report how many."
        )
    return d


def _checked_p_values(p_values: ArrayLike) -> Array:
    p = np.asarray(p_values, dtype=np.float64)
    if p.ndim != 1 or not ((p >= 0) & (p <= 1)).all():
        raise ConfigError(f"p-values are a flat list of numbers from 0 to 1; got {p.tolist()}.")
    return p
