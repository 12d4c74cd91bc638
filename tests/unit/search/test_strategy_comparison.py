"""Which strategy to take: what is sure, what is open, and what is not worth its tokens."""

from __future__ import annotations

import functools

import pytest

from rlhf.errors import DataError
from rlhf.evaluation.intervals import paired_difference, share_interval
from rlhf.search.contract import Cost, SearchResult
from rlhf.search.strategy_comparison import advise, outcome_of, pool_of, vote_curve

DIFFERENCE = functools.partial(paired_difference, shares=True)


def outcome(title, solved, tokens):
    results = [
        SearchResult(
            prompt_id=str(i), completion=None, score=None, details={}, stopped_by=None, cost=Cost(policy_tokens=tokens), trace=[]
        )
        for i in range(len(solved))
    ]  # fmt: skip
    return outcome_of(title, "own", results, solved, share=share_interval)


def solved(count, of=400):
    return [1.0] * count + [0.0] * (of - count)


def test_the_cheapest_that_surely_solves_hardly_less_is_taken():
    outcomes = [
        outcome("lavish", solved(361), 900),
        outcome("frugal", solved(360), 300),
        outcome("poor", solved(100), 50),
    ]
    advice = advise(outcomes, DIFFERENCE, tolerance=0.03)
    assert (advice.best, advice.take, advice.undecided) == ("lavish", "frugal", None)
    assert "poor" in " ".join(advice.sentences)


def test_what_few_problems_leave_open_is_said_to_be_open():
    outcomes = [outcome("lavish", solved(18, 20), 900), outcome("frugal", solved(17, 20), 300)]
    advice = advise(outcomes, DIFFERENCE, tolerance=0.03)
    assert (advice.take, advice.undecided) == ("lavish", "frugal")


def test_a_strategy_that_costs_more_and_solves_less_is_outdone():
    outcomes = [outcome("good", solved(300), 100), outcome("bad", solved(200), 200), outcome("near", solved(298), 200)]
    assert advise(outcomes, DIFFERENCE, tolerance=0.0).outdone == {"bad": "good"}


def test_costs_are_for_each_problem():
    row = outcome("one", solved(2, 4), 30).to_dict()
    assert row["cost"]["policy_tokens"] == 30
    assert row["accuracy"]["value"] == 0.5
    with pytest.raises(DataError):
        outcome_of("none", "own", [], [], share=share_interval)


def test_the_curve_of_votes_by_hand():
    # One problem, three samples: answers a, a, b, of which b is right and weighs most.
    answers, correct = [["a", "a", "b"]], [[0.0, 0.0, 1.0]]
    votes = vote_curve(answers, correct, None, [1, 3], seed=0)
    assert votes[3] == 0
    assert votes[1] == pytest.approx(1 / 3, abs=0.15)
    assert vote_curve(answers, correct, [[0.1, 0.1, 0.9]], [3], seed=0)[3] == 1


def test_a_search_by_steps_has_no_pool():
    def result(*events):
        return SearchResult(
            prompt_id="p", completion=None, score=None, details={}, stopped_by=None, cost=Cost(), trace=events
        )

    def sampled(start):
        return {"did": "sampled", "candidates": [0], "from": start, "texts": ["x"], "finish_reasons": ["length"]}

    assert pool_of(result(sampled(3))) is None
    pool = pool_of(result(sampled(None), {"did": "scored", "candidates": [0], "scores": [0.5]}))
    assert (pool.texts, pool.truncated, pool.scores) == (["x"], [True], [0.5])
