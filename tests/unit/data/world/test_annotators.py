"""Annotators that rank, rate, compare by degrees and approve: worked by hand from the judge's rubric."""

from __future__ import annotations

import pytest

from rlhf.data.world.annotators import approve, compare, rank, rate
from rlhf.errors import ConfigError

PROMPT = "User: What should I feed a pig?\nAssistant:"
BEST, RIGHT, RUBBISH = (
    " A pig eats acorns. Have a nice day!",  # right +1, polite +0.5
    " A pig eats acorns.",  # right +1
    " Pig pig pig.",  # no answer -0.5, not in the language -0.5
)
ALL = [RIGHT, RUBBISH, BEST, RIGHT]


def labels_of(annotator, texts, *, noise=0.0, ended=None, seed=0, prompt=PROMPT):
    return annotator([prompt], [texts], ended=[ended or [True] * len(texts)], noise=noise, seed=seed)[0]


def test_a_ranking_orders_completions_and_gives_equal_ones_one_rank():
    assert labels_of(rank, ALL) == [{"completions": ALL, "ranks": [2, 3, 1, 2], "flipped": False}]
    assert labels_of(rank, [RIGHT, RIGHT]) is None


def test_ratings_follow_the_rubric():
    rows = labels_of(rate, [BEST, RIGHT, RUBBISH])
    assert [(row["completion"], row["rating"]) for row in rows] == [(BEST, 5), (RIGHT, 4), (RUBBISH, 2)]


def test_a_comparison_says_how_clear_it_is_and_tells_ties():
    (slight,) = labels_of(compare, [RIGHT, BEST])
    assert (slight["preference"], slight["strength"]) == ("b", "slightly")  # 1.0 against 1.5
    (clear,) = labels_of(compare, [BEST, RUBBISH])
    assert (clear["preference"], clear["strength"]) == ("a", "significantly")  # 1.5 against -1.0
    (tie,) = labels_of(compare, [RUBBISH, " Pig pig pig pig."])
    assert tie == {"completion_a": RUBBISH, "completion_b": " Pig pig pig pig.", "preference": "tie", "flipped": False}
    assert labels_of(compare, [RIGHT, RIGHT]) is None, "equal texts are not a comparison"


def test_what_is_right_is_good_and_what_is_not_is_bad():
    rows = labels_of(approve, [BEST, RIGHT, RUBBISH])
    assert [row["label"] for row in rows] == [True, True, False]


def test_a_completion_that_was_cut_is_shown_to_nobody():
    assert [row["completion"] for row in labels_of(rate, [BEST, RIGHT], ended=[False, True])] == [RIGHT]
    assert labels_of(approve, [BEST], ended=[False]) is None


@pytest.mark.parametrize("annotator", [rank, rate, compare, approve])
def test_slips_are_as_frequent_as_asked_for_and_belong_to_the_prompt(annotator):
    prompts = [PROMPT]
    texts = [BEST, RUBBISH, RIGHT]
    many = [annotator(prompts, [texts], ended=[[True] * 3], noise=0.3, seed=seed)[0] for seed in range(300)]
    flips = [row["flipped"] for rows in many for row in rows]
    assert 0.2 < sum(flips) / len(flips) < 0.4
    assert many[7] == annotator(prompts, [texts], ended=[[True] * 3], noise=0.3, seed=7)[0]
    with pytest.raises(ConfigError, match="is wanted"):
        annotator(prompts, [texts], ended=[[True] * 3], noise=0.5, seed=0)


def test_a_slip_changes_what_the_row_says():
    def slipped(annotator):
        for seed in range(100):
            rows = labels_of(annotator, [BEST, RUBBISH], noise=0.49, seed=seed)
            if rows[0]["flipped"]:
                return rows[0]
        raise AssertionError("no slip in a hundred seeds")

    assert slipped(rank)["ranks"] == [2, 1]
    assert slipped(compare)["preference"] == "b"
    assert slipped(approve)["label"] is False
