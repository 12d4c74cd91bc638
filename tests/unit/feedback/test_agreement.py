from __future__ import annotations

import functools
import gzip
import json
import math
import re
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlhf.errors import DataError, UnknownNameError
from rlhf.feedback.agreement import (
    MIN_ITEMS,
    Labels,
    agreement_estimate,
    calculate_fleiss_kappa,
    cohen_kappa,
    coincidences,
    contingencies,
    fleiss_kappa,
    krippendorff_alpha,
    observed_agreement,
)

KRIPPENDORFF = {  # the worked example of Krippendorff 2011: four observers, twelve units, gaps
    "A": [1, 2, 3, 3, 2, 1, 4, 1, 2, None, None, None],
    "B": [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, None, 3],
    "C": [None, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, None],
    "D": [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, None],
}


def labels_of(table):
    return Labels.of([(item, who, value) for who, row in table.items() for item, value in enumerate(row)])


@pytest.mark.parametrize(("metric", "expected"), [("nominal", 0.743), ("ordinal", 0.815), ("interval", 0.849)])
def test_krippendorffs_own_example(metric, expected):
    labels = labels_of(KRIPPENDORFF)
    alpha = krippendorff_alpha(coincidences(labels).sum(0), metric=metric, scale=labels.scale)
    assert float(alpha) == pytest.approx(expected, abs=5e-4)


def test_fleiss_of_ten_subjects_and_fourteen_raters():
    # the table in the literature on ten subjects, five categories: P = 0.378, P_e = 0.213, kappa = 0.210
    counts = [
        [0, 0, 0, 0, 14], [0, 2, 6, 4, 2], [0, 0, 3, 5, 6], [0, 3, 9, 2, 0], [2, 2, 8, 1, 1],
        [7, 7, 0, 0, 0], [3, 2, 6, 3, 0], [2, 5, 3, 2, 2], [6, 5, 2, 1, 0], [0, 2, 2, 3, 7],
    ]  # fmt: skip
    rows = [
        (item, rater, value)
        for item, row in enumerate(counts)
        for rater, value in enumerate(v for v, count in enumerate(row) for _ in range(count))
    ]
    table = coincidences(Labels.of(rows)).sum(0)
    assert float(observed_agreement(table)) == pytest.approx(0.378, abs=5e-4)
    assert float(fleiss_kappa(table)) == pytest.approx(0.210, abs=5e-4)


def test_cohen_by_hand():
    # 20 both yes, 5 yes-no, 10 no-yes, 15 both no: observed .7, by chance .5, kappa .4
    table = np.array([[20.0, 5.0], [10.0, 15.0]])
    assert float(cohen_kappa(table)) == pytest.approx(0.4)


def test_a_near_miss_costs_less_with_weights():
    # three grades; one of four pairs misses by one step. Chance: rows 2/4, 1/4, 1/4; columns 1/4, 2/4, 1/4.
    table = np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    # linear: observed 1; expected 4 * (2*2*1 + 2*1*2 + 1*1*1 + 1*1*1 + 1*1*2 + 1*2*1) / 16 = 14/4
    assert float(cohen_kappa(table, weights="linear")) == pytest.approx(1 - 1 / 3.5)
    # quadratic: observed 1; expected (2*2*1 + 2*1*4 + 1 + 1 + 1*1*4 + 1*2*1) / 4 = 20/4
    assert float(cohen_kappa(table, weights="quadratic")) == pytest.approx(1 - 1 / 5)
    assert float(cohen_kappa(table)) < float(cohen_kappa(table, weights="linear"))


def test_one_value_for_everything_is_not_measured():
    labels = Labels.of([(item, who, "a") for item in range(5) for who in "xyz"])
    table = coincidences(labels)
    for coefficient in (krippendorff_alpha, fleiss_kappa):
        assert math.isnan(float(coefficient(table.sum(0))))
    assert math.isnan(float(cohen_kappa(contingencies(labels, "x", "y").sum(0))))
    agreement = agreement_estimate(table, krippendorff_alpha)
    assert not agreement.measured
    assert "same value" in agreement.reason


def test_items_judged_once_say_nothing_about_agreement():
    labels = Labels.of([(0, "x", 1), (1, "y", 2)])
    assert len(coincidences(labels)) == 0
    assert "no item was judged by two" in agreement_estimate(coincidences(labels), krippendorff_alpha).reason


@settings(max_examples=60, deadline=None)
@example(rows=[[0, None, None]] * 4, order=[0, 1, 2])  # nobody to agree with
@given(
    rows=st.lists(st.lists(st.sampled_from([0, 1, 2, None]), min_size=3, max_size=3), min_size=4, max_size=12),
    order=st.permutations(range(3)),
)
def test_nominal_coefficients_do_not_know_names(rows, order):
    named = [(item, who, value) for item, row in enumerate(rows) for who, value in enumerate(row)]
    if all(value is None for _, _, value in named):
        return
    renamed = [(item, 2 - who, None if value is None else order[value]) for item, who, value in named]
    first, second = (Labels.of(j, scale=(0, 1, 2)) for j in (named, renamed))
    for coefficient in (krippendorff_alpha, fleiss_kappa, observed_agreement):
        one, other = (float(coefficient(coincidences(labels).sum(0))) for labels in (first, second))
        assert one == pytest.approx(other, nan_ok=True)


def test_an_interval_holds_its_value_and_is_repeatable():
    tables = np.repeat(coincidences(labels_of(KRIPPENDORFF)), 2, axis=0)
    alpha = functools.partial(krippendorff_alpha, metric="ordinal")
    actual, again = (agreement_estimate(tables, alpha, seed=3) for _ in range(2))
    assert actual == again
    assert actual.low < actual.value < actual.high
    assert actual.n == 22, "the twelfth unit has one value"


def test_few_items_or_items_all_alike_have_a_value_and_no_interval():
    one = agreement_estimate(coincidences(Labels.of([(0, "x", 0), (0, "y", 1)])), krippendorff_alpha)
    assert one.value == 0
    assert math.isnan(one.low)
    assert math.isnan(one.high)
    assert one.reason == f"no interval: 1 item, and it takes {MIN_ITEMS}"
    alike = Labels.of([(item, who, item % 2) for item in range(60) for who in "xy"])
    agreement = agreement_estimate(coincidences(alike), krippendorff_alpha)
    assert agreement.value == 1
    assert math.isnan(agreement.low)
    assert "no spread" in agreement.reason


@pytest.mark.parametrize(("annotators", "accuracy"), [(3, 0.8), (2, 0.9), (3, 0.6)])
def test_intervals_of_the_fewest_items_hold_the_truth(annotators, accuracy):
    # two balanced classes: expected disagreement 1/2, observed 2 p (1 - p), so alpha = 1 - 4 p (1 - p)
    truth = 1 - 4 * accuracy * (1 - accuracy)
    rng, held, given = np.random.default_rng(8), 0, 0
    for seed in range(400):
        right = rng.random((MIN_ITEMS, annotators)) < accuracy
        side = rng.integers(0, 2, (MIN_ITEMS, 1))
        values = np.where(right, side, 1 - side)
        judgments = [(i, a, int(values[i, a])) for i in range(MIN_ITEMS) for a in range(annotators)]
        agreement = agreement_estimate(
            coincidences(Labels.of(judgments, scale=(0, 1))), krippendorff_alpha, seed=seed, resamples=300
        )
        if math.isfinite(agreement.low):
            given += 1
            held += agreement.low <= truth <= agreement.high
    assert given > 380
    assert held / given > 0.91, "the standard error is 0.011"


def rare(num_rare, num_items, *, split=0):
    """Tables of two annotators who agree on so many rare items and on all others, apart from the split ones."""
    said = [(i, a, int(i < num_rare or (i < num_rare + split and a == 0))) for i in range(num_items) for a in (0, 1)]
    return coincidences(Labels.of(said, scale=(0, 1)))


def test_a_value_that_many_draws_lack_has_no_interval_and_the_reason_is_true():
    # a draw of 60 lacks one item in (59/60)^60 = 36 %
    one = agreement_estimate(rare(1, 60), krippendorff_alpha)
    assert one.value == 1
    assert math.isnan(one.low)
    assert re.fullmatch(
        r"no interval: all values but one are so rare that 3\d\s% of draws of the items lack them", one.reason
    )
    assert math.isnan(agreement_estimate(rare(1, 60, split=1), krippendorff_alpha).low)
    five = agreement_estimate(rare(5, 60), krippendorff_alpha)
    assert five.reason == "no interval: every draw of the items agrees as much, so there is no spread"
    assert agreement_estimate(rare(5, 60, split=1), krippendorff_alpha).low < 1


def test_intervals_of_a_rare_value_hold_the_truth():
    # q: how often a judgment has the rare value; alpha = 1 - observed / expected disagreement
    prevalence, error, items = 0.02, 0.01, 50
    q = prevalence * (1 - error) + (1 - prevalence) * error
    truth = 1 - error * (1 - error) / (q * (1 - q))
    rng, held, given = np.random.default_rng(3), 0, 0
    for seed in range(1200):
        side = rng.random((items, 1)) < prevalence
        values = (side ^ (rng.random((items, 2)) < error)).astype(int)
        said = [(i, a, int(values[i, a])) for i in range(items) for a in range(2)]
        agreement = agreement_estimate(
            coincidences(Labels.of(said, scale=(0, 1))), krippendorff_alpha, seed=seed, resamples=400
        )
        if math.isfinite(agreement.low):
            given += 1
            held += agreement.low <= truth <= agreement.high
    assert given > 80, "where four items or more are rare"
    assert held / given > 0.85, "the standard error is 0.02; without the bar it is 0.62"


@pytest.mark.parametrize("missing", [None, math.nan, np.float32("nan"), np.float64("nan"), Decimal("nan")])
def test_a_judgment_that_was_not_made_is_left_out_whatever_says_so(missing):
    labels = Labels.of([(0, "x", 1.0), (0, "y", missing), (1, "y", 2.0)])
    assert labels.scale == (1.0, 2.0)
    assert len(labels.values) == 2


@pytest.mark.parametrize(
    ("judgments", "words"),
    [
        ([], "There is no judgment"),
        ([(1, "ann", "a"), (1, "ann", "b")], "'ann' judged item 1 twice"),
        ([(1, "ann", "c")], "value 'c', which is not on the scale"),
    ],
)
def test_wrong_judgments_are_named(judgments, words):
    with pytest.raises(DataError, match=words):
        Labels.of(judgments, scale=("a", "b"))


def test_a_weighting_that_does_not_exist_is_named():
    with pytest.raises(UnknownNameError, match="'quadratic'"):
        cohen_kappa(np.eye(2), weights="quadratik")


def test_the_published_figures_of_pandalm(assets):
    rows = json.loads(gzip.decompress((assets / "pandalm" / "testset-v1.json.gz").read_bytes()))
    labels = Labels.of([(row["idx"], who, row[f"annotator{who}"]) for row in rows for who in (1, 2, 3)])
    kappas = [float(cohen_kappa(contingencies(labels, *pair).sum(0))) for pair in ((1, 2), (1, 3), (2, 3))]
    assert kappas == pytest.approx([0.852023, 0.878944, 0.861661], abs=1e-6)
    table = coincidences(labels).sum(0)
    assert float(fleiss_kappa(table)) == pytest.approx(0.864175, abs=1e-6)
    assert float(krippendorff_alpha(table)) == pytest.approx(0.864221, abs=1e-6)


def test_kappa_of_ratings_and_of_counts():
    # P = (1/3 + 1) / 2 = 2/3; P_e = (1/3)^2 + (2/3)^2 = 5/9; kappa = (2/3 - 5/9) / (4/9) = 1/4
    assert calculate_fleiss_kappa([["a", "a", "b"], ["b", "b", "b"]]) == pytest.approx(0.25)
    assert calculate_fleiss_kappa(counts=[[2, 1], [0, 3]]) == pytest.approx(0.25)
    assert calculate_fleiss_kappa([["a", "a"], ["b", "b"]]) == pytest.approx(1.0)
    assert math.isnan(calculate_fleiss_kappa([["a", "a"], ["a", "a"]]))


@pytest.mark.parametrize(
    "arguments",
    [
        {"ratings": [["a", "a"], ["a"]]},
        {"ratings": [["a"], ["b"]]},
        {"ratings": []},
        {"ratings": [["a", None], ["b", "b"]]},
        {},
        {"ratings": [["a", "a"]], "counts": [[2]]},
    ],
)
def test_tables_that_have_no_kappa_are_refused(arguments):
    with pytest.raises(DataError, match="ratings"):
        calculate_fleiss_kappa(**arguments)
