"""Bradley-Terry and its kin: closed forms, independent implementations, coverage, and data that say too little."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rlhf.errors import ConfigError, DataError, UnknownNameError
from rlhf.evaluation.ratings.bradley_terry import TIES, bradley_terry_ratings
from rlhf.evaluation.ratings.outcome_models import davidson, half_ties, rao_kupper
from rlhf.losses.tie_losses import davidson_loss, rao_kupper_loss


def played(rng, strengths, n, *, tie_frac=0.0, prefix="s"):
    """Matches between random pairs; each its own prompt."""
    games = []
    for _ in range(n):
        a, b = rng.choice(len(strengths), 2, replace=False)
        p = 1 / (1 + math.exp(strengths[b] - strengths[a]))
        y = 0.5 if rng.random() < tie_frac else float(rng.random() < p)
        games.append((f"{prefix}{a}", f"{prefix}{b}", y))
    return games


def test_two_systems_by_hand():
    # 30 won, 10 lost: log 3; sandwich variance 1/30 + 1/10 with 40 / 38 for the two parameters
    ratings = bradley_terry_ratings([("a", "b", 1)] * 30 + [("a", "b", 0)] * 10)
    lead = ratings.difference("a", "b")
    assert lead.value == pytest.approx(math.log(3))
    # t_38(.975) = 2.024394
    assert lead.high - lead.value == pytest.approx(2.024394 * math.sqrt((1 / 30 + 1 / 10) * 40 / 38), rel=1e-6)
    assert ratings.strengths == {"a": pytest.approx(math.log(3) / 2), "b": pytest.approx(-math.log(3) / 2)}
    assert ratings.loss == pytest.approx(-30 * math.log(0.75) - 10 * math.log(0.25))
    assert ratings.win_probability("a", "b") == pytest.approx(0.75)
    assert ratings.elo()["a"] - ratings.elo()["b"] == pytest.approx(400 * math.log10(3))


def test_ties_of_two_systems_by_hand():
    # 30 won, 20 tied, 10 lost, and each model can match the shares. Davidson: d = log 3, nu = 20 / sqrt(300)
    matches = [("a", "b", 1)] * 30 + [("a", "b", 0.5)] * 20 + [("a", "b", 0)] * 10
    ratings = bradley_terry_ratings(matches, ties="davidson")
    assert ratings.difference("a", "b").value == pytest.approx(math.log(3))
    assert ratings.tie_parameter == pytest.approx(20 / math.sqrt(300))
    # Rao-Kupper: logit(1/2) = d - t, logit(1/6) = -d - t
    ratings = bradley_terry_ratings(matches, ties="rao_kupper")
    assert ratings.difference("a", "b").value == pytest.approx(math.log(5) / 2)
    assert ratings.tie_parameter == pytest.approx(math.exp(math.log(5) / 2))
    # half of each tie: 40 to 20
    assert bradley_terry_ratings(matches).difference("a", "b").value == pytest.approx(math.log(2))


def test_systems_that_always_tie_have_no_interval_of_no_width():
    matches = [(a, b, 0.5, f"p{n}") for n in range(50) for a, b in (("a", "b"), ("b", "c"), ("a", "c"))]
    both_ways = [(a, b, y, f"p{n}") for n in range(50) for a, b in (("a", "b"), ("b", "c")) for y in (0.0, 1.0)]
    for data in (matches, both_ways):
        ratings = bradley_terry_ratings(data)
        for lead in (ratings.difference("a", "b"), *ratings.versus("c").values()):
            assert lead.value == pytest.approx(0, abs=1e-9)
            assert math.isnan(lead.low)
            assert math.isnan(lead.high)
            assert lead.reason
    one_win = bradley_terry_ratings([*matches, ("a", "b", 1.0, "p50")]).difference("a", "b")
    assert one_win.low < one_win.value < one_win.high


@pytest.mark.parametrize("model", [half_ties, davidson, rao_kupper])
def test_slopes_are_those_of_finite_differences(model):
    lead, outcome, tie, h = np.linspace(-3, 3, 13), np.resize([1.0, 0.5, 0.0], 13), 0.4, 1e-5
    actual = model(lead, outcome, tie)
    up, down = model(lead + h, outcome, tie), model(lead - h, outcome, tie)
    more, less = model(lead, outcome, tie + h), model(lead, outcome, tie - h)
    assert actual.lead == pytest.approx((up.value - down.value) / (2 * h), abs=1e-8)
    assert actual.tie == pytest.approx((more.value - less.value) / (2 * h), abs=1e-8)
    assert actual.lead_lead == pytest.approx((up.lead - down.lead) / (2 * h), abs=1e-8)
    assert actual.lead_tie == pytest.approx((more.lead - less.lead) / (2 * h), abs=1e-8)
    assert actual.tie_tie == pytest.approx((more.tie - less.tie) / (2 * h), abs=1e-8)


def test_the_models_of_ties_are_those_that_reward_models_are_trained_with():
    lead, tied = np.array([0.7, 0.7, -1.2]), np.array([False, True, True])
    chosen, rejected = torch.tensor(lead), torch.zeros(3, dtype=torch.float64)
    outcome = np.where(tied, 0.5, 1.0)
    trained = davidson_loss(chosen, rejected, torch.tensor(tied), tie_weight=0.3)
    assert davidson(lead, outcome, math.log(0.3)).value == pytest.approx(-trained.numpy())
    trained = rao_kupper_loss(chosen, rejected, torch.tensor(tied), threshold=0.3)
    assert rao_kupper(lead, outcome, 0.3).value == pytest.approx(-trained.numpy())


def test_strengths_are_those_of_choix_and_evalica():
    choix, evalica = pytest.importorskip("choix"), pytest.importorskip("evalica")
    matches = played(np.random.default_rng(0), [0.8, 0.2, 0.0, -1.0], 400)
    strengths = bradley_terry_ratings(matches).strengths
    number = {name: place for place, name in enumerate(strengths)}
    pairs = [(number[a], number[b]) if y == 1 else (number[b], number[a]) for a, b, y in matches]
    assert list(strengths.values()) == pytest.approx(list(choix.ilsr_pairwise(4, pairs)), abs=1e-5)
    winners = [evalica.Winner.X if y == 1 else evalica.Winner.Y for *_, y in matches]
    scores = evalica.bradley_terry([m[0] for m in matches], [m[1] for m in matches], winners).scores
    logs = np.log([scores[name] for name in strengths])
    assert list(strengths.values()) == pytest.approx(list(logs - logs.mean()), abs=1e-3)


def test_intervals_hold_the_truth_in_95_of_100_runs():
    """Also with the models of ties, and with ties: benchmarks/evaluation_statistics.py."""
    rng, truth, held = np.random.default_rng(1), [0.6, 0.0, -0.6], 0
    for _ in range(250):
        lead = bradley_terry_ratings(played(rng, truth, 80)).difference("s0", "s2")
        held += lead.low <= 1.2 <= lead.high
    assert 0.91 <= held / 250 <= 0.985


def test_trap_01_matches_of_one_prompt_are_one_unit():
    """Copies of matches bring nothing; four matches of a prompt that agree are no four prompts."""
    matches = played(np.random.default_rng(2), [0.5, 0.0, -0.5], 100)
    once = bradley_terry_ratings([(*match, n) for n, match in enumerate(matches)]).difference("s0", "s2")
    copied = bradley_terry_ratings([(*match, n) for n, match in enumerate(matches) for _ in range(4)]).difference(
        "s0", "s2"
    )
    naive = bradley_terry_ratings([match for match in matches for _ in range(4)]).difference("s0", "s2")
    assert (copied.value, copied.low, copied.n) == (pytest.approx(once.value), pytest.approx(once.low), 100)
    assert naive.high - naive.low < 0.55 * (once.high - once.low)


@pytest.mark.parametrize(
    ("matches", "groups"),
    [
        ([("a", "b", 1), ("b", "c", 1), ("a", "c", 1)], ["a", "b", "c"]),
        ([("a", "b", 1), ("b", "a", 1), ("c", "d", 1), ("d", "c", 1)], ["a", "d"]),
        ([("a", "b", 1), ("b", "a", 1), ("a", "c", 1), ("b", "c", 1)], ["a", "c"]),
    ],
)
@pytest.mark.parametrize("ties", TIES)
def test_trap_04_systems_that_can_not_be_compared_are_refused_by_name(matches, groups, ties):
    """choix' opt_pairwise gives +-12 and evalica 1e-6 for everybody, both silently."""
    with pytest.raises(DataError) as refused:
        bradley_terry_ratings(matches * 20, ties=ties)
    assert all(repr(name) in str(refused.value) for name in groups)


def test_trap_04_a_parameter_for_ties_can_run_away_although_strengths_are_connected():
    matches = [("a", "b", 1)] * 10 + [("a", "b", 0.5)] * 10
    assert bradley_terry_ratings(matches).difference("a", "b").value == pytest.approx(math.log(3))
    for ties in ("davidson", "rao_kupper"):
        with pytest.raises(DataError, match="prior"):
            bradley_terry_ratings(matches, ties=ties)
    # a tie of each with a third does not help, a loss does
    with pytest.raises(DataError):
        bradley_terry_ratings([*matches, ("b", "c", 0.5), ("c", "a", 0.5)], ties="davidson")
    assert bradley_terry_ratings([*matches, ("b", "a", 1)], ties="davidson").tie_parameter > 0


def test_a_declared_prior_rates_who_never_lost():
    # 4 won of 4 and half of one match against an average: s(-th) + ... solved by 4 s(-2th) = s(th) - 1/2
    ratings = bradley_terry_ratings([("a", "b", 1)] * 4, prior=1.0)
    strength = ratings.strengths["a"]
    assert 4 / (1 + math.exp(2 * strength)) == pytest.approx(1 / (1 + math.exp(-strength)) - 0.5)
    assert bradley_terry_ratings([("a", "b", 1)] * 4, ties="davidson", prior=1.0).tie_parameter == 0
    far = bradley_terry_ratings([("a", "b", 1), ("c", "d", 0)], prior=0.1)
    assert far.strengths["a"] > 1 > far.strengths["b"]


def test_ratings_answer_by_name():
    ratings = bradley_terry_ratings([("a", "b", 1), ("b", "a", 1), ("b", "c", 1), ("c", "b", 1), ("b", "c", 1)] * 5)
    assert list(ratings.versus("a")) == ["b", "c"]
    assert ratings.versus("a")["c"].value == pytest.approx(-ratings.difference("a", "c").value)
    with pytest.raises(UnknownNameError, match="'d'"):
        ratings.difference("a", "d")


def test_too_few_prompts_have_strengths_without_intervals():
    actual = bradley_terry_ratings([("a", "b", 1), ("b", "a", 1)]).difference("a", "b")
    assert actual.value == pytest.approx(0)
    assert math.isnan(actual.low)
    assert actual.reason


@pytest.mark.parametrize(
    ("matches", "error"),
    [
        ([], DataError),
        ([("a", "a", 1)], DataError),
        ([("a", "b", 2)], DataError),
        ([("a", "b", math.nan)], DataError),
        ([("a", "b", None)], DataError),
        ([("a", "b")], DataError),
    ],
)
def test_wrong_matches_are_refused(matches, error):
    with pytest.raises(error):
        bradley_terry_ratings(matches)


def test_wrong_settings_are_refused():
    for settings in ({"ties": "thirds"}, {"prior": -1.0}, {"confidence": 95}):
        with pytest.raises(ConfigError):
            bradley_terry_ratings([("a", "b", 1), ("b", "a", 1)], **settings)
