from __future__ import annotations

import pytest

from rlhf.data.contracts import (
    ComparisonType,
    Preference,
    PreferenceRow,
    PreferenceSample,
    RankingSample,
    RatingSample,
    RowError,
    Strength,
)


def sample(**changes):
    given = {"prompt": "p", "completion_a": "first", "completion_b": "second", "preference": "a"}
    return PreferenceSample(**{**given, **changes})


def test_the_preferred_completion_is_chosen():
    assert (sample().pair().chosen, sample().pair().rejected) == ("first", "second")
    other = sample(preference="b").pair()
    assert (other.chosen, other.rejected) == ("second", "first")


def test_a_tie_gives_no_pair():
    assert sample(preference="tie").pair() is None


def test_plain_strings_become_the_enum():
    made = sample(preference="b", strength="slightly")
    assert made.preference is Preference.B
    assert made.strength is Strength.SLIGHTLY


def test_who_judged_and_how_surely_travels_to_the_pair():
    pair = sample(
        annotator_id="ann-3",
        label_probability=0.75,
        strength="significantly",
        metadata={"seconds": 12},
        columns={"topic": "cows"},
    ).pair()
    assert pair.columns == {
        "annotator_id": "ann-3",
        "label_probability": 0.75,
        "strength": "significantly",
        "metadata": {"seconds": 12},
        "topic": "cows",
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"preference": "A better"}, "preference is 'A better'; wanted one of a, b, tie"),
        ({"strength": "hugely"}, "strength is 'hugely'; wanted one of significantly, slightly"),
        ({"preference": "tie", "strength": "slightly"}, "a tie can't be slightly better"),
        ({"label_probability": 1.5}, "label_probability is 1.5; wanted a number from 0 to 1"),
        ({"label_probability": float("nan")}, "label_probability is nan"),
    ],
)
def test_an_impossible_judgment_is_refused(changes, message):
    with pytest.raises(RowError, match=message):
        sample(where="file.jsonl:3", **changes)


def test_a_ranking_gives_all_pairs_and_skips_ties():
    # b is best, a and c are tied behind it: b > a and b > c, nothing about a and c.
    pairs = RankingSample(id="r", prompt="p", completions=["a", "b", "c"], ranks=[2, 1, 2]).pairs()
    assert [(pair.chosen, pair.rejected) for pair in pairs] == [("b", "a"), ("b", "c")]
    assert [pair.id for pair in pairs] == ["r#1-0", "r#1-2"]
    assert pairs[0].columns == {"chosen_rank": 1, "rejected_rank": 2}


def test_four_ranked_completions_give_six_pairs():
    pairs = RankingSample(prompt="p", completions=list("abcd"), ranks=[4, 3, 2, 1]).pairs()
    assert {(pair.chosen, pair.rejected) for pair in pairs} == {
        ("d", "a"), ("d", "b"), ("d", "c"), ("c", "a"), ("c", "b"), ("b", "a"),
    }  # fmt: skip


def test_a_high_rating_beats_a_low_one_though_a_high_rank_loses():
    rated = RankingSample(prompt="p", completions=["x", "y"], ratings=[5, 2])
    assert rated.pairs()[0].chosen == "x"
    assert rated.pairs()[0].columns == {"chosen_rating": 5, "rejected_rating": 2}
    assert rated.comparison is ComparisonType.RATING
    ranked = RankingSample(prompt="p", completions=["x", "y"], ranks=[5, 2])
    assert ranked.pairs()[0].chosen == "y"
    assert ranked.comparison is ComparisonType.RANKING


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ranks": [1]}, "1 ranks for 2 completions"),
        ({"ranks": [0, 1]}, "rank 0 is not 1"),
        ({"ratings": [1, 6]}, "rating 6 is not a number from 1"),
        ({"ratings": [1, float("nan")]}, "rating nan is not"),
        ({}, "either ranks .* or ratings"),
        ({"ranks": [1, 2], "ratings": [1, 2]}, "not both"),
    ],
)
def test_an_impossible_ranking_is_refused(given, message):
    with pytest.raises(RowError, match=message):
        RankingSample(prompt="p", completions=["x", "y"], **given)


def test_a_rating_is_from_one_to_five():
    assert RatingSample(prompt="p", completion="c", rating=5).comparison is ComparisonType.RATING
    with pytest.raises(RowError, match=r"f:2: rating 5.5 is not"):
        RatingSample(where="f:2", prompt="p", completion="c", rating=5.5)


def test_a_row_is_written_without_its_place_and_with_its_other_columns():
    row = PreferenceRow(id="f:1", where="/x/f:1", columns={"margin": 2}, prompt="p", chosen="c", rejected="r")
    assert row.to_dict() == {"prompt": "p", "chosen": "c", "rejected": "r", "margin": 2}
