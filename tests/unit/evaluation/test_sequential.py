"""Sequential tests: evidence worked by hand, and errors that stay what they are however often one looks."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy.special import logsumexp

from rlhf.errors import CheckpointError, ConfigError
from rlhf.evaluation.intervals import wilson_interval
from rlhf.evaluation.sequential import BETS, BettingProcess, VoteProcess, mixture_interval


def test_evidence_of_votes_by_hand():
    # a = 1: E = 2^n B(1 + s, 1 + f) / B(1, 1) = 2^n s! f! / (n + 1)!; after three wins 8 / 4
    votes = VoteProcess(prior=1.0)
    assert np.exp(votes.update([1, 1, 1])) == pytest.approx([1.0, 4 / 3, 2.0])
    assert math.exp(votes.update([0])[-1]) == pytest.approx(16 * 6 / 120)
    assert votes.p_value == pytest.approx(1 / 2), "of the best moment"
    votes.update([0.5, 0.5])
    assert (votes.wins, votes.losses, votes.ties) == (3, 1, 2)
    assert math.exp(votes.log_e) == pytest.approx(0.8), "ties say nothing"


def test_the_interval_of_votes_ends_where_evidence_reaches_the_limit():
    votes = VoteProcess(prior=1.0)
    votes.update([1] * 60 + [0] * 40)
    estimate = votes.interval()
    # E(p0) = B(61, 41) / (p0^60 (1 - p0)^40)
    for end in (estimate.low, estimate.high):
        log_e = math.lgamma(61) + math.lgamma(41) - math.lgamma(102) - 60 * math.log(end) - 40 * math.log(1 - end)
        assert log_e == pytest.approx(math.log(20), abs=1e-6)
    fixed = wilson_interval(60, 100)
    assert estimate.low < fixed.low < estimate.value < fixed.high < estimate.high, "the price of looking"


def test_votes_that_all_went_one_way_have_one_end():
    votes = VoteProcess()
    assert not votes.interval().measured
    votes.update([1] * 30)
    estimate = votes.interval()
    assert estimate.value == estimate.high == 1.0
    assert 0.6 < estimate.low < 1


def test_evidence_of_bets_by_hand():
    process = BettingProcess(0.5, bets=(0.4,))
    # (1 + .4 * .5) (1 + .4 * -.5) (1 + .4 * .25)
    assert np.exp(process.update([1.0, 0.0, 0.75])) == pytest.approx([1.2, 0.96, 1.056])
    below = BettingProcess(0.5, side="below", bets=(0.4, 0.8))
    below.update([1.0])
    assert math.exp(below.log_e) == pytest.approx((0.8 + 0.6) / 2)
    assert below.p_value == 1.0


@pytest.mark.parametrize("make", [VoteProcess, lambda: BettingProcess(0.49), lambda: BettingProcess(0.5, side="below")])
def test_a_process_in_pieces_and_through_json_is_the_same_as_at_once(make):
    y = np.random.default_rng(0).choice([0.0, 0.5, 1.0], size=200)
    whole, first, second = make(), make(), make()
    path = whole.update(y)
    assert first.update(y[:77]) == pytest.approx(path[:77])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.update(y[77:]) == pytest.approx(path[77:])
    assert second.update([]).size == 0
    assert second.state_dict() == pytest.approx(whole.state_dict(), abs=1e-9) if make is VoteProcess else True
    assert (second.log_e, second.p_value) == (pytest.approx(whole.log_e), pytest.approx(whole.p_value))


def test_a_state_of_another_hypothesis_is_refused():
    with pytest.raises(CheckpointError, match="mean"):
        BettingProcess(0.5).load_state_dict(BettingProcess(0.49).state_dict())
    with pytest.raises(CheckpointError, match="prior"):
        VoteProcess().load_state_dict(VoteProcess(prior=2).state_dict())


def ever(paths, limit):
    return float(np.mean([path.max() >= limit for path in paths]))


def test_trap_03_peeking_calls_equal_systems_different_and_an_e_process_does_not():
    rng = np.random.default_rng(4)
    votes = (rng.random((600, 1000)) < 0.5).astype(float)
    looks = np.arange(50, 1001, 10)
    wins = votes.cumsum(axis=1)[:, looks - 1]
    z, share = 1.959964, wins / looks
    center = (share + z * z / (2 * looks)) / (1 + z * z / looks)
    half = z * np.sqrt(share * (1 - share) / looks + z * z / (4 * looks**2)) / (1 + z * z / looks)
    assert 0.25 < np.mean((np.abs(center - 0.5) > half).any(axis=1)) < 0.37, "measured 31 %"
    assert ever([VoteProcess().update(run) for run in votes], math.log(20)) <= 0.05


def test_a_betting_process_keeps_its_level_when_prompts_differ():
    """Ties and prompts of very different difficulty; the average is the hypothesis."""
    rng = np.random.default_rng(5)
    chances = np.tile([0.1, 0.9, 0.4, 0.6], 250)
    runs = [(rng.random(1000) < rng.permutation(chances)).astype(float) for _ in range(300)]
    assert ever([BettingProcess(0.5).update(run) for run in runs], math.log(20)) <= 0.05
    better = [(rng.random(1000) < 0.6).astype(float) for _ in range(100)]
    assert ever([BettingProcess(0.5).update(run) for run in better], math.log(20)) > 0.95


def test_the_average_of_bets_is_one_of_wealth_and_not_of_logs():
    process = BettingProcess(0.4)
    y = np.random.default_rng(6).random(50)
    logs = [np.log1p(bet * (y - 0.4)).sum() for bet in BETS]
    assert process.update(y)[-1] == pytest.approx(logsumexp(logs) - math.log(len(BETS)))


def test_the_mixture_interval_by_hand():
    # alpha .05: log(1/alpha^2) = 5.99146, its log 1.79033; r = 200 / 8.78179 = 22.7744
    # sqrt(.5 * 222.7744 / 200^2 * log(sqrt(222.7744 / 22.7744) / .05)) = sqrt(.00278468 * 4.13593)
    interval = mixture_interval([1.0, 0.0] * 100, best_at=200)
    assert interval.value == 0.5
    assert interval.high - 0.5 == pytest.approx(math.sqrt(0.00278468 * 4.13593), abs=1e-5)
    assert mixture_interval([1.0, -1.0] * 100, best_at=200, spread=2).high == pytest.approx(2 * (interval.high - 0.5))


def test_the_mixture_interval_holds_at_all_times_together():
    rng = np.random.default_rng(7)
    held = 0
    for _ in range(150):
        y = (rng.random(600) < 0.5).astype(float)
        held += all((interval := mixture_interval(y[:n])).low <= 0.5 <= interval.high for n in range(20, 601, 10))
    assert held >= 0.95 * 150


@pytest.mark.parametrize(
    "ask",
    [
        lambda: VoteProcess().update([0.3]),
        lambda: VoteProcess(prior=0),
        lambda: BettingProcess(0.5).update([math.nan]),
        lambda: BettingProcess(0.5).update([1.5]),
        lambda: BettingProcess(1.0),
        lambda: BettingProcess(0.5, bets=(1.5,)),
        lambda: BettingProcess(0.5, side="left"),
        lambda: mixture_interval([0.0, 2.0]),
        lambda: mixture_interval([0.0, 1.0], confidence=0.05),
    ],
)
def test_wrong_outcomes_and_hypotheses_are_refused(ask):
    with pytest.raises(ConfigError):
        ask()


def test_missing_outcomes_are_missing():
    assert "not finite" in mixture_interval([0.5, math.nan]).reason
    assert not mixture_interval([]).measured
