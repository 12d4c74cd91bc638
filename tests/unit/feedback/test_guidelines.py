from __future__ import annotations

import pytest

from rlhf.errors import DataError
from rlhf.feedback.guidelines import DEFAULT_GUIDELINES, AnnotationGuideline, overall_rating


def test_the_overall_rating_weighs_dimensions():
    assert {g.name: g.weight for g in DEFAULT_GUIDELINES} == {
        "helpfulness": 1.0, "accuracy": 1.2, "harmlessness": 1.5, "coherence": 0.8,
    }  # fmt: skip
    assert overall_rating({"helpfulness": 5, "harmlessness": 1}) == pytest.approx((5 + 1.5) / 2.5)


def test_what_no_guideline_asks_for_is_named():
    with pytest.raises(DataError, match="'beauty' is rated, but the guidelines are clarity"):
        overall_rating({"beauty": 3}, [AnnotationGuideline(name="clarity", description="Is it clear?")])
    with pytest.raises(DataError, match="Nothing is rated"):
        overall_rating({})
