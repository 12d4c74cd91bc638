from __future__ import annotations

import math

import pytest

from rlhf.training.control import AdaptiveKLController, EarlyStopping


def test_a_kl_above_the_target_raises_the_weight_and_one_below_lowers_it():
    controller = AdaptiveKLController(0.1, target=6.0, horizon=1000)
    controller.update(6.6, 100)  # error 0.1: 0.1 * (1 + 0.1 * 0.1)
    assert controller.coef == pytest.approx(0.101)
    controller.update(5.4, 100)
    assert controller.coef == pytest.approx(0.101 * 0.99)
    controller.update(6.0, 100)
    assert controller.coef == pytest.approx(0.101 * 0.99)


@pytest.mark.parametrize(("kl", "factor"), [(600.0, 1.02), (-600.0, 0.98), (0.0, 0.98)])
def test_one_rollout_changes_the_weight_by_a_fifth_of_its_share_of_the_horizon_at_most(kl, factor):
    controller = AdaptiveKLController(0.1, target=6.0, horizon=1000)
    controller.update(kl, 100)
    assert controller.coef == pytest.approx(0.1 * factor)


def test_the_weight_stays_inside_its_limits():
    high, low = AdaptiveKLController(1.0, target=1.0, horizon=1), AdaptiveKLController(1.0, target=1.0, horizon=1)
    for _ in range(100):
        high.update(100.0, 1)
        low.update(0.0, 1)
    assert high.coef == 10.0
    assert low.coef == 1e-3


@pytest.mark.parametrize("kl", [math.nan, math.inf])
def test_a_kl_that_is_not_finite_changes_nothing(kl):
    controller = AdaptiveKLController(0.1, target=6.0)
    controller.update(kl, 10_000)
    assert controller.coef == 0.1


def test_without_a_target_the_weight_is_fixed():
    controller = AdaptiveKLController(0.0)
    controller.update(100.0, 10_000)
    assert controller.coef == 0.0


def test_the_state_of_the_controller_brings_it_back():
    controller = AdaptiveKLController(0.1, target=6.0, horizon=100)
    controller.update(60.0, 100)
    other = AdaptiveKLController(0.1, target=6.0, horizon=100)
    other.load_state_dict(controller.state_dict())
    assert other.coef == controller.coef != 0.1


def test_patience_counts_evaluations_since_the_best():
    stopping = EarlyStopping(mode="min", patience=2)
    heard = [(stopping.update(value, step), stopping.should_stop) for step, value in enumerate([3.0, 2.0, 2.5, 2.0])]
    assert heard == [(True, False), (True, False), (False, False), (False, True)]
    assert (stopping.best, stopping.best_step) == (2.0, 1)


def test_higher_may_be_better():
    stopping = EarlyStopping(mode="max", patience=1)
    assert stopping.update(0.5, 0)
    assert stopping.update(0.6, 1)
    assert not stopping.update(0.59, 2)
    assert stopping.should_stop


def test_small_changes_do_not_count():
    stopping = EarlyStopping(mode="min", patience=1, min_delta=0.1)
    stopping.update(1.0, 0)
    assert not stopping.update(0.95, 1)
    assert stopping.should_stop


def test_nan_is_never_the_best():
    stopping = EarlyStopping(mode="min", patience=2)
    assert not stopping.update(math.nan, 0)
    assert stopping.update(5.0, 1)
    assert not stopping.update(math.nan, 2)


def test_without_patience_it_only_watches():
    stopping = EarlyStopping(mode="min", patience=None)
    for step in range(50):
        stopping.update(float(step), step)
    assert not stopping.should_stop
    assert stopping.best == 0.0


def test_the_state_of_early_stopping_brings_it_back():
    stopping = EarlyStopping(mode="min", patience=3)
    for step, value in enumerate([2.0, 3.0, 3.0]):
        stopping.update(value, step)
    other = EarlyStopping(mode="min", patience=3)
    other.load_state_dict(stopping.state_dict())
    other.update(2.5, 3)
    assert other.should_stop
    assert (other.best, other.best_step) == (2.0, 0)
