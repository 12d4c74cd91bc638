"""Quantiles over samples of several prompts: places by hand, coverage, and no limit where the data holds none."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from rlhf.evaluation.metrics.quantiles import QuantileStatistic


def test_the_median_of_ten_lies_between_the_second_and_the_ninth():
    # P(Bin(10, 1/2) < 2) = 11 / 1024 = 1.1 %, < 3: 5.5 %
    estimate = QuantileStatistic(np.arange(1.0, 11.0)[:, None], 0.5).estimate()
    assert (estimate.value, estimate.low, estimate.high, estimate.n) == (5.5, 2.0, 9.0, 10)


def test_a_95_percent_quantile_of_few_prompts_has_no_upper_limit():
    rows = np.random.default_rng(0).lognormal(3, 0.5, (71, 1))
    few = QuantileStatistic(rows, 0.95)
    assert few.fewest == 72, "0.95^72 = 2.49 %: that all of so many lie below it"
    assert math.isfinite(few.estimate().value)
    assert math.isnan(few.estimate().high)
    assert "72" in few.estimate().reason
    assert few.moments() is None
    assert math.isnan(few.gain(few).high)


@pytest.mark.parametrize(("n", "samples", "share"), [(10, 1, 0.5), (80, 1, 0.95), (80, 4, 0.95), (60, 4, 0.5)])
def test_quantiles_hold_the_truth_with_samples_that_resemble_each_other(n, samples, share):
    rng, held, changes = np.random.default_rng(1), 0, 0
    truth = math.exp(3 + 0.5 * {0.5: 0.0, 0.95: 1.6449}[share])
    for _ in range(300):
        one, other = (
            QuantileStatistic(rng.lognormal(3, 0.4, (n, 1)) * rng.lognormal(0, 0.3, (n, samples)), share) for _ in "ab"
        )
        estimate, gain = one.estimate(), one.gain(other)
        held += estimate.low <= truth <= estimate.high
        changes += gain.low <= 0 <= gain.high
    assert held / 300 > 0.92
    assert changes / 300 > 0.94


def test_copies_of_a_prompt_are_one_prompt():
    rows = np.random.default_rng(2).normal(size=(40, 1))
    once, copied = (QuantileStatistic(np.repeat(rows, k, axis=1), 0.5).estimate() for k in (1, 8))
    assert (copied.low, copied.high) == (pytest.approx(once.low), pytest.approx(once.high))
    naive = binom.ppf([0.025, 0.975], 320, 0.5).astype(int)
    assert np.sort(np.repeat(rows, 8))[naive[1]] < copied.high, "as if all samples were independent"
