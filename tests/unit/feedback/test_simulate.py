from __future__ import annotations

import pytest

from rlhf.errors import ConfigError
from rlhf.feedback.simulate import SimulatedAnnotator, crowd


def share(annotator, *, difference=1.0, answer="a", **how):
    return sum(annotator.judge(n, difference, **how)[0] == answer for n in range(2000)) / 2000


def test_a_careful_annotator_is_right_and_slips_as_often_as_told():
    assert share(SimulatedAnnotator(name="x")) == 1.0
    assert share(SimulatedAnnotator(name="x", error_rate=0.2)) == pytest.approx(0.8, abs=0.03)


def test_the_same_item_and_seed_give_the_same_answer():
    who = SimulatedAnnotator(name="x", is_spammer=True)
    assert [who.judge(n, 1.0, seed=3) for n in range(20)] == [who.judge(n, 1.0, seed=3) for n in range(20)]
    assert [who.judge(n, 1.0, seed=3) for n in range(20)] != [who.judge(n, 1.0, seed=4) for n in range(20)]


def test_biases_lean_to_what_stands_first_and_to_what_is_long():
    leaning = SimulatedAnnotator(name="x", position_bias=2.0)
    assert share(leaning, difference=-1.0, first_is_a=True) == 1.0
    assert share(leaning, difference=-1.0, first_is_a=False) == 0.0
    assert share(SimulatedAnnotator(name="x", length_bias=2.0), difference=-1.0, longer=1) == 1.0


def test_who_does_not_read_takes_the_first_and_is_quick():
    lazy = SimulatedAnnotator(name="x", laziness=1.0)
    assert share(lazy, difference=-1.0) == 1.0
    assert lazy.judge(0, 1.0)[1] < 10
    assert share(SimulatedAnnotator(name="x", is_spammer=True)) == pytest.approx(0.5, abs=0.04)


def test_small_differences_are_ties_or_seen_less_surely():
    assert share(SimulatedAnnotator(name="x", tie_band=0.5), difference=0.3, answer="tie") == 1.0
    assert share(SimulatedAnnotator(name="x", sharpness=1.0), difference=1.0) == pytest.approx(0.731, abs=0.03)


def test_impossible_annotators_are_refused():
    with pytest.raises(ConfigError, match=r"error_rate .*'x' is 0\.7"):
        SimulatedAnnotator(name="x", error_rate=0.7)
    assert len(crowd(2, 1, 3)) == 6
