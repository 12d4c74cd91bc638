"""Over-optimization curves: proxy reward and true reward by distance from the first policy, with a fitted form.

Distance is d = sqrt(KL(policy || first policy)), nats of whole completions. Gao et al. 2022, "Scaling Laws for Reward Model
Overoptimization", arXiv:2210.10760, find for both rewards, gold (the truth) and proxy (what was optimized):

    best-of-n               R(d) = d (alpha - beta d)
    reinforcement learning  R(d) = d (alpha - beta log d)

with R = 0 at the start. beta measures how fast the proxy and the true reward diverge.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import expit

from rlhf.errors import DataError
from rlhf.evaluation.intervals import CONFIDENCE, Array
from rlhf.seeds import derive_seed

Form = Literal["best_of_n", "rl"]
LARGEST_SCALE = 1e6
"""Of a recalibrated proxy; where every pair's order is right in truth and in proxy there is no largest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A policy at some moment, on the completions that were drawn from it; [R] rows, several of which may share a prompt."""

    label: str
    prompt: Array
    """[R] number of the row's prompt: the unit of the bootstrap."""
    kl: Array
    """[R] nats, unbiased for the KL to the first policy."""
    proxy: Array
    gold: Array

    def means(self, weights: Array | None = None) -> tuple[float, float, float]:
        """d, proxy and gold, each prompt with a weight; a KL that came out below 0 is 0."""
        w = None if weights is None else weights[self.prompt.astype(np.int64)]
        kl, proxy, gold = (float(np.average(values, weights=w)) for values in (self.kl, self.proxy, self.gold))
        return math.sqrt(max(kl, 0.0)), proxy, gold


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingFit:
    """alpha and beta of a curve, with bootstrap intervals over prompts."""

    form: Form
    alpha: tuple[float, float, float]
    """Value, low, high."""
    beta: tuple[float, float, float]
    r2: float
    """Share of the variance around 0, the value at the start, that the curve explains."""
    peak: float | None
    """d at which the fitted curve is highest; None where it never falls."""

    def __call__(self, d: ArrayLike) -> Array:
        """R(d)."""
        return _features(np.asarray(d, dtype=np.float64), self.form) @ np.array([self.alpha[0], self.beta[0]])


def recalibrated_scale(proxy_gaps: ArrayLike, gold_gaps: ArrayLike) -> float:
    """Factor that puts a proxy on the scale of the truth: its Bradley-Terry odds then agree best with the truth's.

        argmin over c of the mean cross-entropy of sigmoid(c proxy gap) against sigmoid(gold gap)

    Source: Gao et al. 2022, section 2.2, arXiv:2210.10760 ("recalibrate ... by rescaling the logits to minimize
    cross-entropy loss using a validation set of soft labels").

    Args:
        proxy_gaps: [P] proxy of one sample less that of another.
        gold_gaps: [P] the same of the truth.

    Raises:
        DataError: The proxy orders pairs no better than a coin, so no factor above 0 helps.
    """
    x, target = np.asarray(proxy_gaps, dtype=np.float64), expit(np.asarray(gold_gaps, dtype=np.float64))

    def slope(scale: float) -> float:
        return float(((expit(scale * x) - target) * x).mean())

    if not slope(0.0) < 0:
        raise DataError(
            "The proxy reward does not agree with the truth on these pairs: its order is no better than chance."
        )
    if slope(LARGEST_SCALE) < 0:
        return LARGEST_SCALE
    return float(brentq(slope, 0.0, LARGEST_SCALE, xtol=1e-9))


def fit_scaling(
    moments: Sequence[Moment],
    of: Literal["proxy", "gold"],
    *,
    form: Form,
    num_prompts: int,
    seed: int = 0,
    resamples: int = 400,
    confidence: float = CONFIDENCE,
) -> ScalingFit:
    """Least squares over moments, with intervals from resampled prompts.

    The intervals tell what the draw of prompts and completions leaves open, not what another training seed would give.

    Args:
        moments: At least two at a distance from the start; rewards on a scale on which the start has 0.
        of: Which reward.
        form: See the top of this file.
        num_prompts: Prompts that the moments number.
        seed: Of the resampling.
        resamples: Bootstrap draws.
        confidence: Share of such intervals that hold the value.

    Raises:
        DataError: Fewer than two different distances above 0.
    """
    which = 1 if of == "proxy" else 2

    def fit(weights: Array | None) -> tuple[Array, Array, Array]:
        means = [moment.means(weights) for moment in moments]
        d, reward = np.array([each[0] for each in means]), np.array([each[which] for each in means])
        solution: Array = np.linalg.lstsq(_features(d, form), reward, rcond=None)[0]
        return solution, d, reward

    solution, d, reward = fit(None)
    if len(np.unique(d[d > 0])) < 2:
        raise DataError("A curve needs policies at two distances from the start at least; these never moved from it.")
    rng = np.random.default_rng(derive_seed(seed, "scaling", of, form))
    even = np.full(num_prompts, 1 / num_prompts)
    draws = np.array([fit(rng.multinomial(num_prompts, even).astype(np.float64) + 1e-12)[0] for _ in range(resamples)])
    tail = (1 - confidence) / 2
    low, high = np.quantile(draws, [tail, 1 - tail], axis=0)
    left = float(np.square(reward - _features(d, form) @ solution).sum())
    total = float(np.square(reward).sum())
    return ScalingFit(
        form=form,
        alpha=(float(solution[0]), float(low[0]), float(high[0])),
        beta=(float(solution[1]), float(low[1]), float(high[1])),
        r2=1 - left / total if total else math.nan,
        peak=_peak(float(solution[0]), float(solution[1]), form),
    )


def _features(d: Array, form: Form) -> Array:
    """[P, 2] what alpha and beta are multiplied with; both are 0 at the start."""
    bend = d if form == "best_of_n" else np.log(np.where(d > 0, d, 1.0))
    return np.stack([d, -d * bend], axis=-1)


def _peak(alpha: float, beta: float, form: Form) -> float | None:
    if beta <= 0:
        return None
    if form == "best_of_n":
        return alpha / (2 * beta) if alpha > 0 else 0.0
    exponent = alpha / beta - 1  # beyond the largest double there is no peak that any policy reaches
    return math.exp(exponent) if exponent < 700 else None
