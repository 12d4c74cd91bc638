"""The judge's score over the distance from the reference, as a curve with a peak, from the rollouts of one training run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rlhf.evaluation.intervals import CONFIDENCE, Array, finite_or_none
from rlhf.seeds import derive_seed

MIN_POINTS = 12
"""Rollouts with a KL and a judgment; four for each number of the curve."""
RESAMPLES = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldOverKL:
    """gold(d) = start + d (alpha - beta log d), d = sqrt(KL in nats per sequence)."""

    start: float
    alpha: float
    beta: float
    r2: float
    """Share of the variance over rollouts that the curve explains."""
    peak_kl: float
    """KL at which the curve is highest; NaN where it has no peak within the distances that were seen."""
    peak_low: float
    """Interval of ``peak_kl`` over resampled rollouts; NaN where more than a tenth of them have no peak there."""
    peak_high: float
    min_kl: float
    """Smallest distance that was seen."""
    max_kl: float
    """Largest; the curve says nothing outside the two."""

    def __call__(self, kl: Sequence[float] | Array) -> Array:
        """Fitted score at distances in nats."""
        gold: Array = _features(np.asarray(kl, dtype=np.float64)) @ np.array([self.start, self.alpha, self.beta])
        return gold

    def to_dict(self) -> dict[str, Any]:
        """For JSON: NaN becomes null."""
        return {name: finite_or_none(value) for name, value in asdict(self).items()}


def fit_gold_over_kl(curve: Sequence[Mapping[str, Any]], *, seed: int = 0) -> GoldOverKL | None:
    """Least squares over the rollouts of a run.

    The interval of the peak comes from resampled rollouts, in which neighbors are treated as independent: it is narrower than what another
    training seed would show. Source of the form: Gao et al. 2022, eq. for RL in section 3.1, arXiv:2210.10760; the start is fitted
    as well, because a run's first rollouts are as noisy as the others.

    Args:
        curve: Points with ``kl`` (nats per sequence) and ``gold``, as of ``rlhf.evaluation.overoptimization.judge_rollouts``.
        seed: Of the resampling.

    Returns:
        None where fewer than ``MIN_POINTS`` points have both, or the KL never moved.
    """
    known = [(p.get("kl"), p.get("gold")) for p in curve]
    points = np.array([(kl, gold) for kl, gold in known if kl is not None and gold is not None], dtype=np.float64)
    if len(points) < MIN_POINTS or np.ptp(points[:, 0]) == 0:
        return None
    kl, gold = np.maximum(points[:, 0], 0.0), points[:, 1]
    features = _features(kl)
    solution = _solve(features, gold)
    total = float(np.square(gold - gold.mean()).sum())
    largest = float(kl.max())
    rng = np.random.default_rng(derive_seed(seed, "gold_over_kl"))
    draws = rng.integers(0, len(kl), size=(RESAMPLES, len(kl)))
    peaks = np.array([_peak(_solve(features[draw], gold[draw]), largest) for draw in draws])
    known_peaks, peak = peaks[np.isfinite(peaks)], _peak(solution, largest)
    low = high = math.nan
    if math.isfinite(peak) and len(known_peaks) >= 0.9 * RESAMPLES:
        tail = (1 - CONFIDENCE) / 2
        low, high = (float(each) for each in np.quantile(known_peaks, [tail, 1 - tail]))
    return GoldOverKL(
        start=float(solution[0]), alpha=float(solution[1]), beta=float(solution[2]),
        r2=1 - float(np.square(gold - features @ solution).sum()) / total if total else math.nan,
        peak_kl=peak, peak_low=low, peak_high=high, min_kl=float(kl.min()), max_kl=largest,
    )  # fmt: skip


def _features(kl: Array) -> Array:
    """[P, 3] what start, alpha and beta are multiplied with."""
    d = np.sqrt(np.maximum(kl, 0.0))
    return np.stack([np.ones_like(d), d, -d * np.log(np.where(d > 0, d, 1.0))], axis=-1)


def _solve(features: Array, gold: Array) -> Array:
    array: Array = np.asarray(np.linalg.lstsq(features, gold, rcond=None)[0], dtype=np.float64)
    return array


def _peak(solution: Array, largest: float) -> float:
    """exp(2 (alpha / beta - 1)), where the derivative alpha - beta (log d + 1) is 0; NaN unless it is a peak that was reached."""
    _, alpha, beta = (float(each) for each in solution)
    if beta <= 0:
        return math.nan
    exponent = 2 * (alpha / beta - 1)
    return math.exp(exponent) if exponent < math.log(largest) else math.nan
