from __future__ import annotations

from collections import defaultdict
from itertools import pairwise, product

import pytest

from rlhf.config.guidelines import STANDARD_GUIDELINES, AnnotationGuideline, overall_rating
from rlhf.errors import DataError


def test_the_overall_rating_weighs_dimensions():
    assert {g.name: g.weight for g in STANDARD_GUIDELINES} == {
        "helpfulness": 1.0, "accuracy": 1.2, "harmlessness": 1.5, "coherence": 0.8,
    }  # fmt: skip
    assert overall_rating({"helpfulness": 5, "harmlessness": 1}) == pytest.approx((5 + 1.5) / 2.5)


def test_completions_that_weigh_exactly_the_same_have_the_same_rating_over_the_whole_grid():
    names = [guideline.name for guideline in STANDARD_GUIDELINES]
    tenths = [10, 12, 15, 8]  # the weights in whole numbers, in which nothing is rounded
    of_sum = defaultdict(set)
    for given in product(range(1, 6), repeat=4):
        exact = sum(weight * rating for weight, rating in zip(tenths, given, strict=True))
        of_sum[exact].add(overall_rating(dict(zip(names, given, strict=True))))
    assert all(len(actual) == 1 for actual in of_sum.values()), "equal sums are one number: a tie"
    in_order = [min(of_sum[exact]) for exact in sorted(of_sum)]
    assert all(low < high for low, high in pairwise(in_order)), "and others are others"


def test_a_weight_is_the_decimal_it_is_written_as():
    weighed = [
        AnnotationGuideline(name=name, description="?", weight=w)
        for name, w in zip("abc", (0.1, 0.2, 0.3), strict=True)
    ]
    assert overall_rating({"a": 4, "b": 4, "c": 2}, weighed) == overall_rating({"a": 3, "b": 3, "c": 3}, weighed) == 3


def test_what_no_guideline_asks_for_is_named():
    with pytest.raises(DataError, match=r"'beauty'.*clarity"):
        overall_rating({"beauty": 3}, [AnnotationGuideline(name="clarity", description="Is it clear?")])
    with pytest.raises(DataError, match="Nothing is rated"):
        overall_rating({})
