from __future__ import annotations

import math
import re

import pytest

from rlhf.config.kl import KLConfig
from rlhf.config.policy import PPOConfig
from rlhf.errors import ConfigError
from rlhf.training.control import (
    AdaptiveKLController,
    ConstraintKLController,
    DoublingKLController,
    EarlyStopping,
    build_kl_controller,
)


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


@pytest.mark.parametrize(
    "build",
    [
        lambda coef: AdaptiveKLController(coef, target=6.0, horizon=100),
        lambda coef: DoublingKLController(coef, target=6.0),
    ],
)
@pytest.mark.parametrize("coef", [1e-5, 1e3])
def test_a_limit_does_not_overrule_the_weight_that_the_recipe_gives(build, coef: float):
    controller = build(coef)
    controller.update(0.0 if coef < 1 else 100.0, 100)  # further out than the recipe says, it does not go
    assert controller.coef == coef
    controller.update(100.0 if coef < 1 else 0.0, 100)
    assert abs(controller.coef / coef - 1) > 0.1


def test_a_weight_that_is_only_reported_is_adapted_by_nobody():
    controller = build_kl_controller(KLConfig(where="none", coef=0.0, target=1.0))
    controller.update(100.0, 10_000)
    assert controller.coef == 0.0


def warmed(**settings: object) -> KLConfig:
    return KLConfig.of({"coef": 0.5, "warmup": {"from": 0.1, "rollouts": 4}, **settings})


def test_a_warmed_weight_goes_in_a_straight_line_and_then_stays():
    controller = build_kl_controller(warmed())
    weights = []
    for _ in range(7):
        weights.append(controller.coef)
        controller.update(math.nan, 8)
    assert weights[:4] == pytest.approx([0.1, 0.2, 0.3, 0.4], rel=1e-15)
    assert weights[4:] == [0.5, 0.5, 0.5]


def test_after_the_warmup_the_controller_adapts_the_weight_from_its_first_rollout_on():
    controller = build_kl_controller(warmed(target=6.0, controller="doubling"))
    for _ in range(4):
        controller.update(600.0, 8)  # of other weights: moves nothing
    assert controller.coef == 0.5
    controller.update(600.0, 8)
    assert controller.coef == 1.0


def test_the_state_of_a_warmup_brings_it_back():
    first, second = build_kl_controller(warmed(target=6.0)), build_kl_controller(warmed(target=6.0))
    for _ in range(2):
        first.update(1.0, 8)
    second.load_state_dict(first.state_dict())
    for _ in range(5):
        assert first.coef == second.coef
        first.update(60.0, 800)
        second.update(60.0, 800)


@pytest.mark.parametrize(
    ("settings", "kl", "weight"),
    [
        ({"horizon": 100, "error_clip": 0.5}, 60.0, 0.5 * 1.5),
        ({"horizon": 1, "error_clip": 0.5, "max_coef": 0.8}, 60.0, 0.8),
        ({"horizon": 1, "error_clip": 0.005, "min_coef": 0.45}, 0.0, 0.45),
        ({"controller": "doubling", "tolerance": 3.0, "factor": 4.0}, 18.1, 2.0),
        ({"controller": "doubling", "tolerance": 3.0, "factor": 4.0}, 17.9, 0.5),
        ({"controller": "doubling", "max_coef": 0.6}, 60.0, 0.6),
        ({"controller": "doubling", "min_coef": 0.4}, 0.0, 0.4),
        ({"controller": "constraint", "step_size": 1.0, "max_coef": 0.7}, 60.0, 0.7),
    ],
)
def test_a_recipe_sets_what_a_controller_multiplies_by_and_its_limits(settings, kl, weight):
    controller = build_kl_controller(KLConfig.of({"coef": 0.5, "target": 6.0, **settings}))
    controller.update(kl, 100)
    assert controller.coef == pytest.approx(weight, rel=1e-15)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"max_coef": 1.0}, "kl.max_coef"),
        ({"error_clip": 0.1}, "kl.error_clip"),
        ({"target": 6.0, "factor": 3.0}, "kl.factor"),
        ({"target": 6.0, "controller": "doubling", "error_clip": 0.1}, "kl.error_clip"),
        ({"target": 6.0, "controller": "constraint", "min_coef": 0.1}, "kl.min_coef"),
        ({"target": 6.0, "max_coef": 0.05}, "kl.coef"),
        ({"target": 6.0, "controller": "doubling", "tolerance": 1.0}, "tolerance"),
        ({"where": "none", "warmup": {"rollouts": 2}}, "kl.warmup"),
        ({"warmup": {"from": -1, "rollouts": 2}}, "warmup.from"),
        ({"warmup": {"fron": 1, "rollouts": 2}}, "Did you mean 'from'"),
    ],
)
def test_settings_of_the_weight_that_would_do_nothing_are_refused(settings, key):
    with pytest.raises(ConfigError, match=re.escape(key)):
        KLConfig.of(settings)


def test_a_warmup_as_long_as_the_run_is_refused():
    with pytest.raises(ConfigError, match=r"kl\.warmup\.rollouts"):
        PPOConfig.of({"rollouts": 3, "kl": {"warmup": {"rollouts": 3}}})


def test_a_warmup_is_written_as_it_is_read():
    config = warmed()
    assert config.model_dump(mode="json")["warmup"] == {"from": 0.1, "rollouts": 4}
    assert KLConfig.of(config.model_dump(mode="json")) == config


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


def test_a_kl_far_from_the_target_doubles_or_halves_the_weight_and_one_near_it_does_nothing():
    # the band of a target of 6 is 4 to 9, both included
    controller = DoublingKLController(0.5, target=6.0)
    heard = []
    for kl in (9.0, 9.1, 4.0, 6.0, 3.9, 0.0, 600.0):
        controller.update(kl, 64)
        heard.append(controller.coef)
    assert heard == [0.5, 1.0, 1.0, 1.0, 0.5, 0.25, 0.5]


def test_the_doubled_weight_stays_inside_its_limits():
    high, low = (DoublingKLController(1.0, target=1.0, limits=(0.01, 50.0)) for _ in range(2))
    for _ in range(20):
        high.update(100.0)
        low.update(0.0)
    assert (high.coef, low.coef) == (50.0, 0.01)


def test_a_limit_costs_nothing_until_it_is_reached():
    controller = ConstraintKLController(limit=2.0, step_size=0.1)
    heard = []
    for kl in (1.0, 4.0, 3.0, 2.0, 1.0, 0.0):
        controller.update(kl, 64)
        heard.append(controller.coef)
    assert heard == pytest.approx([0, 0.1, 0.15, 0.15, 0.1, 0])
    for _ in range(3):
        controller.update(1e6)
    assert controller.coef == 10.0


@pytest.mark.parametrize("kl", [math.nan, math.inf, -math.inf])
def test_no_controller_believes_a_kl_that_is_not_finite(kl: float):
    doubling, constraint = DoublingKLController(0.5, target=1.0), ConstraintKLController(0.5, limit=1.0)
    doubling.update(kl)
    constraint.update(kl)
    assert doubling.coef == constraint.coef == 0.5


@pytest.mark.parametrize(
    "build", [lambda: DoublingKLController(0.5, target=1.0), lambda: ConstraintKLController(0.5, limit=1.0)]
)
def test_the_state_of_the_other_controllers_brings_them_back(build):
    controller, other = build(), build()
    controller.update(3.0)
    assert controller.coef != 0.5
    other.load_state_dict(controller.state_dict())
    controller.update(3.0)
    other.update(3.0)
    assert other.coef == controller.coef


def test_a_policy_that_answers_the_weight_is_held_near_its_target():
    # a KL that falls as the weight grows: every controller ends where the KL is what was asked for
    doubling, constraint = DoublingKLController(0.01, target=1.0), ConstraintKLController(limit=1.0, step_size=0.05)
    for controller in (doubling, constraint):
        for _ in range(300):
            controller.update(0.3 / (controller.coef + 1e-3))
    assert 1 / 1.5 <= 0.3 / (doubling.coef + 1e-3) <= 1.5
    assert 0.3 / (constraint.coef + 1e-3) == pytest.approx(1.0, rel=1e-2)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: AdaptiveKLController(0.0, target=1.0), "KL weight of 0.0 can't be moved"),
        (lambda: AdaptiveKLController(0.1, target=0.0), "target KL of 0.0"),
        (lambda: DoublingKLController(0.0, target=1.0), "KL weight of 0.0 with a target KL of 1.0"),
        (lambda: DoublingKLController(0.1, target=0.0), "target KL of 0.0"),
        (lambda: DoublingKLController(0.1, target=1.0, tolerance=1.0), "beyond 1.0 times the target"),
        (lambda: DoublingKLController(0.1, target=1.0, factor=math.nan), "by a factor of nan"),
        (lambda: ConstraintKLController(limit=0.0), "limit 0.0"),
        (
            lambda: ConstraintKLController(11.0, limit=1.0),
            "from 0 to 10.0; got limit 1.0, step size 0.01, multiplier 11.0",
        ),
    ],
)
def test_controllers_that_could_not_control_are_refused(build, said: str):
    with pytest.raises(ConfigError, match=said):
        build()


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({}, AdaptiveKLController),
        ({"target": 2.0}, AdaptiveKLController),
        ({"target": 2.0, "controller": "doubling"}, DoublingKLController),
        ({"target": 2.0, "controller": "constraint", "step_size": 0.2}, ConstraintKLController),
    ],
)
def test_the_controller_of_a_recipe_is_built_with_its_numbers(settings, kind):
    controller = build_kl_controller(KLConfig(coef=0.5, **settings))
    assert type(controller) is kind
    assert controller.coef == 0.5
    controller.update(4.0, 10_000)  # twice the target
    expected = {DoublingKLController: 1.0, ConstraintKLController: 0.7}.get(kind, 0.6 if settings else 0.5)
    assert controller.coef == pytest.approx(expected)
