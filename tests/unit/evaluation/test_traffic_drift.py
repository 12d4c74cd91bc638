"""Drift of traffic: alarms where something changed, and no more of them than was said where nothing did."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlhf.errors import ConfigError
from rlhf.evaluation.traffic_drift import WEEK_SECONDS, DriftWatch, UnigramSurprise


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def alarms_in_a_week(rng: np.random.Generator, *, windows: int, false_alarms: float, shift: float = 0.0) -> int:
    """Of a real-valued number and of one with many ties, whose reference is drawn anew for each week."""
    reference = {"reward": rng.normal(size=150), "length": rng.poisson(6, size=150).astype(float)}
    watch = DriftWatch(reference, window=50, false_alarms=false_alarms)
    alarms = 0
    for _ in range(50 * windows):
        for name, value in (("reward", rng.normal() + shift), ("length", float(rng.poisson(6)))):
            test = watch.add(name, value)
            alarms += test is not None and test.is_alarm
    return alarms


def test_weeks_without_change_have_an_alarm_as_rarely_as_was_said():
    rng = np.random.default_rng(0)
    weeks, alpha = 150, 0.2
    bad = sum(alarms_in_a_week(rng, windows=4, false_alarms=alpha) > 0 for _ in range(weeks))
    assert bad <= weeks * alpha + 3 * math.sqrt(weeks * alpha * (1 - alpha))
    assert bad >= 5, "a rate of next to nothing would be a test that never speaks"


@pytest.mark.slow
def test_the_default_rate_holds_over_many_weeks_of_many_windows():
    rng = np.random.default_rng(1)
    weeks, alpha = 400, 0.05
    bad = sum(alarms_in_a_week(rng, windows=20, false_alarms=alpha) > 0 for _ in range(weeks))
    assert bad <= weeks * alpha + 3 * math.sqrt(weeks * alpha * (1 - alpha))


def test_a_shift_of_one_and_a_half_deviations_is_seen_in_the_first_window():
    rng = np.random.default_rng(0)
    assert all(alarms_in_a_week(rng, windows=1, false_alarms=0.05, shift=1.5) for _ in range(30))


def test_thresholds_fall_within_a_week_and_begin_anew_with_the_next():
    clock = Clock()
    watch = DriftWatch({"a": range(50), "b": range(50)}, window=2, false_alarms=0.05, clock=clock)

    def threshold() -> float:
        assert watch.add("a", 0.0) is None
        test = watch.add("a", 1.0)
        assert test is not None
        return test.threshold

    first, second = threshold(), threshold()
    assert first == pytest.approx(0.05 * 6 / math.pi**2 / 2)
    assert second == pytest.approx(first / 4)
    clock.now = WEEK_SECONDS
    assert threshold() == first
    assert watch.filled("b") == 0


def test_surprise_is_the_mean_negative_log_probability_with_one_added_to_each_count():
    surprise = UnigramSurprise([[0, 0, 1], [0]], vocabulary=3)  # counts 3, 1, 0; with one added 4, 2, 1 of 7
    assert surprise([0]) == pytest.approx(math.log(7 / 4))
    assert surprise([1, 2]) == pytest.approx((math.log(7 / 2) + math.log(7)) / 2)


def test_a_small_reference_is_refused():
    with pytest.raises(ConfigError, match="49 values of reward"):
        DriftWatch({"reward": [0.0] * 49})
