"""The judge's score over KL: the curve that made the points is found again, and no peak is claimed where none was reached."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlhf.evaluation.gold_over_kl import fit_gold_over_kl


def points(alpha, beta, *, largest, noise=0.0, start=1.5, n=40):
    rng = np.random.default_rng(0)
    kl = np.linspace(0, largest, n)
    d = np.sqrt(kl)
    gold = start + d * (alpha - beta * np.log(np.where(d > 0, d, 1))) + noise * rng.standard_normal(n)
    return [{"kl": float(k), "gold": float(g)} for k, g in zip(kl, gold, strict=True)]


def test_the_curve_and_its_peak_are_found():
    fit = fit_gold_over_kl(points(2.0, 1.5, largest=40))
    assert (fit.start, fit.alpha, fit.beta) == pytest.approx((1.5, 2.0, 1.5))
    assert fit.peak_kl == pytest.approx(math.exp(2 * (2 / 1.5 - 1)))
    fine = np.linspace(0.01, 40, 100_000)
    assert fine[fit(fine).argmax()] == pytest.approx(fit.peak_kl, abs=1e-3)
    assert fit.r2 == pytest.approx(1)


def test_the_interval_of_the_peak_holds_it_under_noise():
    held = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        curve = [{**p, "gold": p["gold"] + 0.1 * rng.standard_normal()} for p in points(2.0, 1.5, largest=40)]
        fit = fit_gold_over_kl(curve)
        held += fit.peak_low <= math.exp(2 * (2 / 1.5 - 1)) <= fit.peak_high
    assert held >= 16, "P(Bin(20, .95) < 16) = .3 %"


def test_a_score_that_still_rises_has_no_peak():
    fit = fit_gold_over_kl(points(2.0, 0.5, largest=5))
    assert math.isnan(fit.peak_kl)
    assert fit.to_dict()["peak_kl"] is None


def test_noise_without_a_trend_claims_no_sure_peak():
    fit = fit_gold_over_kl(points(0.0, 0.0, largest=10, noise=1.0))
    assert math.isnan(fit.peak_low)


@pytest.mark.parametrize(
    "curve", [[], points(1, 1, largest=1)[:5], [{"kl": 0.0, "gold": 1.0}] * 20, [{"kl": None, "gold": 1}] * 20]
)
def test_too_little_fits_nothing(curve):
    assert fit_gold_over_kl(curve) is None
