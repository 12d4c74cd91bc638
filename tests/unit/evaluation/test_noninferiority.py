"""Gates: numbers worked by hand, and the share of runs in which each decision is wrong."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from rlhf.errors import CheckpointError, ConfigError
from rlhf.evaluation.decision import Decision, combined
from rlhf.evaluation.noninferiority import (
    SequentialBetter,
    SequentialNoninferiority,
    better,
    mean_above,
    no_room_to_lose,
    noninferiority,
    noninferiority_of_tasks,
)
from rlhf.evaluation.paired_tests import holm


def changes(num_worse, num_better, n):
    return np.array([-1.0] * num_worse + [1.0] * num_better + [0.0] * (n - num_worse - num_better))


def drawn(rng, n, true, discordant=0.15):
    return rng.choice([-1.0, 1.0, 0.0], size=n, p=[(discordant - true) / 2, (discordant + true) / 2, 1 - discordant])


def test_the_bounds_by_hand():
    # 10 worse and 10 better of 400: mean 0, sum d^2 = 20; c = (log 20 / 1.644854)^2 = 3.31703; no skew
    # se = sqrt(23.31703) / 400 = .0120719, so +- 1.644854 * .0120719 = .0198565
    ruling = noninferiority(changes(10, 10, 400), 0.02)
    assert ruling.evidence["low"] == pytest.approx(-0.0198565, abs=1e-6)
    assert ruling.evidence["high"] == pytest.approx(0.0198565, abs=1e-6)
    assert ruling.decision is Decision.PASS
    assert noninferiority(changes(10, 10, 400), 0.0198).decision is Decision.UNDECIDED
    assert ruling.evidence["p_within"] == pytest.approx(0.0488, abs=5e-4)


def test_no_change_at_all_excludes_what_the_rule_of_three_does():
    # -log(.05) / 150 = .019972
    assert noninferiority(np.zeros(150), 0.02).evidence["low"] == pytest.approx(math.log(0.05) / 150)
    assert noninferiority(np.zeros(150), 0.02).decision is Decision.PASS
    assert noninferiority(np.zeros(149), 0.02).decision is Decision.UNDECIDED


def test_skewed_losses_move_both_bounds_down():
    # 20 losses of 400: mean -.05, m3 = (20 * -.95^3 + 380 * .05^3) / 400 = -.04275, sum of squares 19, variance 22.31703 / 400
    # k = -.04275 * (1 + 2 * 2.705543) / (6 * 400 * .0557926) = -.00204675
    evidence = noninferiority(changes(20, 0, 400), 0.02).evidence
    half = 1.6448536 * math.sqrt(22.31703) / 400
    assert evidence["low"] == pytest.approx(-0.05 - 0.00204675 - half, abs=1e-6)
    assert evidence["high"] == pytest.approx(-0.05 - 0.00204675 + half, abs=1e-6)


def test_without_bounds_it_is_students_interval():
    # mean 2, sd 1, t_2(.95) = 2.919986, symmetric
    ruling = noninferiority([1.0, 2.0, 3.0], 1.0, largest=None)
    assert ruling.evidence["low"] == pytest.approx(2 - 2.919986 / math.sqrt(3), abs=1e-6)
    assert ruling.decision is Decision.PASS
    assert noninferiority([2.0, 2.0, 2.0], 1.0, largest=None).decision is Decision.UNDECIDED, (
        "no spread is no certainty"
    )


def test_scores_without_room_for_the_margin_decide_nothing():
    """4 of 100 right, a margin of 4 points: losing all of them is a loss of no more than the margin."""
    few = [1.0] * 4 + [0.0] * 96
    actual = no_room_to_lose(few, 0.04)
    assert actual.decision is Decision.UNDECIDED
    assert actual.evidence == {"champion": 0.04, "bound": -0.04, "n": 100}
    assert no_room_to_lose(few, 0.039) is None
    assert no_room_to_lose([0.1] * 3, 0.1) is not None, "0.1 + 0.1 + 0.1 is not 0.3"
    many = [1.0] * 96 + [0.0] * 4
    assert no_room_to_lose(many, 0.04, lower_is_better=True).decision is Decision.UNDECIDED
    assert no_room_to_lose(many, 0.03, lower_is_better=True) is None
    assert no_room_to_lose(many, 0.04) is None
    assert no_room_to_lose([math.nan], 0.1) is None


def test_better_is_two_sided():
    assert better(changes(10, 30, 400)).decision is Decision.PASS
    assert better(changes(30, 10, 400)).decision is Decision.FAIL
    # 12 against 23: one-sided 5 % would do, two-sided does not
    assert better(changes(12, 23, 400)).decision is Decision.UNDECIDED
    assert better(changes(12, 23, 400), confidence=0.9).decision is Decision.PASS
    assert better(changes(10, 10, 400)).evidence["num_more"] is None, "no number tells a difference of 0"


def test_undecided_says_how_many_more_prompts():
    # 15 % discordant: 6.1826 * (.15 + 3.317 / 500) / .02^2 = 2,422, of which 500 are there
    ruling = noninferiority(changes(38, 37, 500), 0.02)
    assert ruling.decision is Decision.UNDECIDED
    assert ruling.evidence["num_more"] == pytest.approx(1921, abs=3)
    late = noninferiority(changes(390, 310, 4700), 0.02)
    assert late.decision is Decision.UNDECIDED
    assert late.evidence["num_more"] > 4700, "an unchanged system would have passed: what was seen counts"


def test_the_number_of_more_prompts_knows_the_confidence():
    # (2.326348 + .841621)^2 (.15 + (log 100 / 2.326348)^2 / 500) / .02^2 = 4,180 at 99 %, of which 500 are there
    ruling = noninferiority(changes(38, 37, 500), 0.02, confidence=0.99)
    variance = (75 - 1 / 500 + (math.log(100) / 2.326348) ** 2) / 500
    assert ruling.evidence["num_more"] == pytest.approx((2.326348 + 0.841621) ** 2 * variance / 0.02**2 - 500, abs=2)
    assert ruling.evidence["num_more"] > 3000
    exactly = noninferiority(changes(40, 20, 1000), 0.02)
    assert (exactly.decision, exactly.evidence["num_more"]) == (Decision.UNDECIDED, None)


def test_a_margin_as_large_as_numbers_get_is_no_error():
    assert noninferiority([1.0, 2.0, 3.0], 1e308, largest=None).decision is Decision.PASS


def test_equals_win_all_of_few_prompts_by_chance():
    """2^-5 = 3.1 % is above 2.5 %, 2^-6 = 1.6 % is below; of a one-sided 95 %, 2^-4 = 6.25 % is above and 2^-5 below."""
    for n in (4, 5):
        assert better(np.ones(n)).decision is Decision.UNDECIDED
        assert better(-np.ones(n)).decision is Decision.UNDECIDED
        assert better(np.ones(n)).evidence["num_more"] == 6 - n
    assert better(np.ones(6)).decision is Decision.PASS
    assert better(-np.ones(6)).decision is Decision.FAIL
    assert mean_above(np.ones(4), 0.0).decision is Decision.UNDECIDED
    assert mean_above(np.ones(5), 0.0).decision is Decision.PASS
    for n in range(
        2, 13
    ):  # all 2^n ways in which n prompts that change can fall, each as likely where no one is better
        won = [math.comb(n, k) for k in range(n + 1) if better(changes(n - k, k, n)).decision is Decision.PASS]
        assert sum(won) / 2**n <= 0.025


@pytest.mark.parametrize("values", [[], [0.0], [0.1, math.nan], [0.1, math.inf]])
@pytest.mark.parametrize("gate", [lambda d: noninferiority(d, 0.1), better])
def test_trap_07_too_little_or_missing_decides_nothing(gate, values):
    """A standard error of 0 at n = 1 would pass."""
    ruling = gate(values)
    assert ruling.decision is Decision.UNDECIDED
    assert ruling.reason
    json.dumps(ruling.to_dict(), allow_nan=False)


def test_units_are_averaged_first():
    samples = np.repeat([1.0, -1.0, 0.0, 0.0], 8)
    units = np.repeat(np.arange(4), 8).tolist()
    assert noninferiority(samples, 0.1, units=units) == noninferiority([1.0, -1.0, 0.0, 0.0], 0.1)


def decisions(gate, true, n, *, runs=1500, seed=0, discordant=0.15):
    rng = np.random.default_rng(seed)
    reached = [gate(drawn(rng, n, true, discordant)) for _ in range(runs)]
    return {decision: sum(ruling.decision is decision for ruling in reached) / runs for decision in Decision}


def test_trap_16_a_loss_that_is_not_significant_does_not_pass():
    """500 prompts, a true loss of 2 points and one of 4: the naive gate passes half and nearly all that it can't call worse."""
    at_margin = decisions(lambda d: noninferiority(d, 0.02), -0.02, 500)
    beyond = decisions(lambda d: noninferiority(d, 0.02), -0.04, 500)
    not_significant = decisions(better, -0.04, 500)
    assert at_margin[Decision.PASS] < 0.065
    assert beyond[Decision.PASS] < 0.01
    assert 1 - not_significant[Decision.FAIL] > 0.3, "naive: no significant loss is a pass"
    assert decisions(lambda d: noninferiority(d, 0.02), 0.0, 500)[Decision.PASS] == pytest.approx(0.30, abs=0.04)


@pytest.mark.parametrize(("n", "margin"), [(50, 0.1), (150, 0.02), (300, 0.02)])
def test_rare_losses_of_the_margin_pass_in_5_of_100_runs(n, margin):
    """Every change is a loss: a normal interval without the two corrections passes 11 to 20 %."""
    passed = decisions(lambda d: noninferiority(d, margin), -margin, n, discordant=margin, runs=2000)[Decision.PASS]
    assert passed < 0.065


def test_trap_17_an_unchanged_suite_fails_in_5_of_100_runs_and_a_broken_task_still_fails():
    rng = np.random.default_rng(8)
    naive = corrected = 0
    for _ in range(150):
        suite = {f"task{k}": drawn(rng, 300, -0.05) for k in range(20)}  # each exactly at its margin
        alone = {name: noninferiority(d, 0.05) for name, d in suite.items()}
        naive += combined(alone) is Decision.FAIL
        corrected += combined(noninferiority_of_tasks(suite, 0.05)) is Decision.FAIL
    assert naive > 0.5 * 150
    assert corrected <= 0.10 * 150
    suite["task0"] = drawn(rng, 300, -0.15, discordant=0.25)
    rulings = noninferiority_of_tasks(suite, dict.fromkeys(suite, 0.05))
    assert rulings["task0"].decision is Decision.FAIL
    assert combined(rulings) is Decision.FAIL


def test_a_task_without_numbers_leaves_the_others_their_correction():
    rulings = noninferiority_of_tasks({"a": changes(60, 0, 300), "b": [math.nan, 1.0]}, 0.05)
    assert (rulings["a"].decision, rulings["b"].decision) == (Decision.FAIL, Decision.UNDECIDED)
    assert rulings["a"].evidence["p_beyond_holm"] == rulings["a"].evidence["p_beyond"]


def test_tasks_with_and_without_bounds_are_one_family():
    tasks = {"accuracy": changes(13, 0, 100), "reward": np.resize([-3.0, 1.0], 60)}
    alone = [
        noninferiority(tasks["accuracy"], 0.05).evidence["p_beyond"],
        noninferiority(tasks["reward"], 0.05, largest=None).evidence["p_beyond"],
    ]
    rulings = noninferiority_of_tasks(tasks, 0.05, largest={"accuracy": 1.0, "reward": None})
    assert [rulings[name].evidence["p_beyond_holm"] for name in tasks] == pytest.approx(list(holm(alone)))
    assert max(holm(alone)) > max(alone) or min(holm(alone)) > min(alone)


# --------------------------------------------------------------------------------------------------------- sequential


def test_the_sequential_gate_keeps_its_first_decision():
    gate = SequentialNoninferiority(0.1)
    assert gate.ruling().decision is Decision.UNDECIDED
    passed = gate.update(np.ones(60))
    assert passed.decision is Decision.PASS
    assert passed.evidence["decided_at"] < 60
    after = gate.update(-np.ones(500))
    assert after.decision is Decision.PASS
    assert after.evidence["decided_at"] == passed.evidence["decided_at"]


def test_the_sequential_gate_in_pieces_and_through_json_is_the_same_as_at_once():
    d = drawn(np.random.default_rng(1), 800, -0.08)
    whole, first, second = (SequentialNoninferiority(0.02) for _ in range(3))
    whole.update(d)
    first.update(d[:133])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    second.update(d[133:])
    assert second.ruling().decision is whole.ruling().decision is Decision.FAIL
    assert second.decided_at == whole.decided_at
    assert second.ruling().evidence == pytest.approx(whole.ruling().evidence)
    with pytest.raises(CheckpointError, match="margin"):
        SequentialNoninferiority(0.03).load_state_dict(whole.state_dict())


def test_trap_03_adding_prompts_until_a_gate_passes_needs_the_sequential_one():
    rng = np.random.default_rng(9)
    looks = range(500, 5001, 500)
    fixed = sequential = 0
    for _ in range(200):
        d = drawn(rng, 5000, -0.02)
        fixed += any(noninferiority(d[:n], 0.02).decision is Decision.PASS for n in looks)
        sequential += SequentialNoninferiority(0.02).update(d).decision is Decision.PASS
    assert fixed > 0.11 * 200, "measured 17 %"
    assert sequential <= 0.04 * 200, "measured 2 %"


def test_the_sequential_gate_has_the_power_that_was_measured():
    # at every prompt; looked at every 500 prompts it is the 34 % of research/evaluation.md
    rng = np.random.default_rng(10)
    passed = [
        SequentialNoninferiority(0.02).update(drawn(rng, 2000, 0.0)).decision is Decision.PASS for _ in range(300)
    ]
    assert np.mean(passed) == pytest.approx(0.42, abs=0.09)


def test_sequentially_better_has_half_the_error_on_each_side():
    gate = SequentialBetter(confidence=0.9)
    assert gate.confidence == pytest.approx(0.95)
    assert gate.update(np.ones(40)).decision is Decision.PASS
    assert SequentialBetter().update(-np.ones(60)).decision is Decision.FAIL
    rng = np.random.default_rng(11)
    wrong = [SequentialBetter().update(drawn(rng, 1500, 0.0)).decision is not Decision.UNDECIDED for _ in range(200)]
    assert np.mean(wrong) <= 0.05


@pytest.mark.parametrize(
    "ask",
    [
        lambda: noninferiority([0.0, 2.0], 0.1),
        lambda: noninferiority([0.0, 1.0], 0.0),
        lambda: noninferiority([0.0, 1.0], math.inf),
        lambda: noninferiority([0.0, 1.0], 0.1, confidence=95),
        lambda: noninferiority([0.0, 1.0], 0.1, confidence=0.5),
        lambda: noninferiority([0.0, 0.0], 0.1, largest=0.0),
        lambda: better([0.0, 1.0], confidence=1.0),
        lambda: noninferiority([0.0, 1.0], 0.1, units=["a"]),
        lambda: SequentialNoninferiority(0.1).update([math.nan]),
        lambda: SequentialNoninferiority(0.1).update([1.5]),
        lambda: SequentialNoninferiority(1.0),
    ],
)
def test_wrong_differences_and_margins_are_refused(ask):
    with pytest.raises(ConfigError):
        ask()
