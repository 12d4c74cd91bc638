"""Paired tests: numbers worked by hand, statsmodels as oracle, and the traps of many tests and of two intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlhf.errors import ConfigError
from rlhf.evaluation.intervals import mean_interval
from rlhf.evaluation.paired_tests import benjamini_hochberg, holm, mcnemar_test, sign_flip_test, sign_test

P_VALUES = [0.001, 0.008, 0.039, 0.041, 0.042, 0.06, 0.074, 0.205]


def test_the_sign_test_by_hand():
    # 2 (C(15,0) + C(15,1) + C(15,2) + C(15,3)) / 2^15 = 2 * 576 / 32768; mid-p: less 455 / 32768
    assert sign_test(3, 12) == sign_test(12, 3) == pytest.approx(1152 / 32768)
    assert sign_test(3, 12, mid_p=True) == pytest.approx(697 / 32768)
    assert sign_test(71, 24) == pytest.approx(1.46e-6, rel=5e-3), "PandaLM, llama against opt"
    assert sign_test(0, 0) == sign_test(4, 4) == 1.0


def test_mcnemar_is_that_of_statsmodels():
    contingency_tables = pytest.importorskip("statsmodels.stats.contingency_tables")
    rng = np.random.default_rng(0)
    for _ in range(20):
        old, new = rng.random(60) < 0.6, rng.random(60) < 0.7
        table = np.array([[(old & new).sum(), (old & ~new).sum()], [(~old & new).sum(), (~old & ~new).sum()]])
        assert mcnemar_test(old, new) == pytest.approx(contingency_tables.mcnemar(table, exact=True).pvalue)


def test_a_sign_flip_test_of_few_prompts_tries_all_flips():
    # of the 2^3 sign patterns of 1, 2, 3 only +++ and --- have a mean as far from 0 as 2
    assert sign_flip_test([1.0, 2.0, 3.0], seed=0) == pytest.approx(2 / 8)
    assert sign_flip_test([1.0, -1.0], seed=0) == 1.0


def test_a_sign_flip_test_on_signs_is_the_sign_test_and_depends_only_on_its_seed():
    signs = [1.0] * 12 + [-1.0] * 3
    assert sign_flip_test(signs, seed=1, num_resamples=2**15) == pytest.approx(1152 / 32768)
    drawn = sign_flip_test(signs, seed=1)
    assert drawn == sign_flip_test(signs, seed=1)
    assert drawn == pytest.approx(1152 / 32768, abs=0.006)


def test_holm_and_benjamini_hochberg_by_hand_and_by_statsmodels():
    # Holm: 8 * .001, 7 * .008, 6 * .039, then never less than that
    assert holm(P_VALUES) == pytest.approx([0.008, 0.056, *[0.234] * 6])
    wanted = [0.008, 0.032, 0.0672, 0.0672, 0.0672, 0.08, 0.084571, 0.205]
    assert benjamini_hochberg(P_VALUES) == pytest.approx(wanted, abs=5e-7)
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    shuffled = np.random.default_rng(1).permutation([*P_VALUES, 0.9, 0.041])
    assert holm(shuffled) == pytest.approx(multitest.multipletests(shuffled, method="holm")[1])
    assert benjamini_hochberg(shuffled) == pytest.approx(multitest.multipletests(shuffled, method="fdr_bh")[1])
    assert holm([]).size == benjamini_hochberg([]).size == 0


def test_trap_02_two_intervals_overlap_where_the_difference_is_clear():
    rng = np.random.default_rng(2)
    difficulty = rng.normal(0, 1, 80)
    old, new = difficulty + rng.normal(0, 0.2, 80), difficulty + rng.normal(0.15, 0.2, 80)
    apart, before = mean_interval(new), mean_interval(old)
    assert apart.low < before.high, "the naive comparison sees nothing"
    assert mean_interval(new - old).low > 0
    assert sign_flip_test(new - old, seed=0) < 0.001


def test_trap_17_a_suite_of_unchanged_tasks_shows_a_regression_unless_corrected():
    rng = np.random.default_rng(3)
    worse = rng.binomial(200, 0.5, size=(400, 20))
    p_of = np.array([sign_test(200 - w, w, mid_p=True) for w in range(201)])
    p = p_of[worse]
    assert np.mean((p < 0.05).any(axis=1)) > 0.5
    corrected = np.mean([(holm(run) < 0.05).any() for run in p])
    assert corrected <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)


@pytest.mark.parametrize(
    "ask",
    [
        lambda: sign_test(-1, 3),
        lambda: mcnemar_test([0, 1, 0.5], [0, 1, 1]),
        lambda: mcnemar_test([0, 1], [0, 1, 1]),
        lambda: sign_flip_test([0.1, math.nan], seed=0),
        lambda: sign_flip_test([], seed=0),
        lambda: holm([0.1, 1.2]),
        lambda: benjamini_hochberg([math.nan]),
    ],
)
def test_what_can_not_be_tested_is_refused(ask):
    with pytest.raises(ConfigError):
        ask()
