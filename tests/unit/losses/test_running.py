from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf.errors import CheckpointError, ConfigError, TrainingError
from rlhf.losses.running import RunningMean, RunningReferencePoint, RunningRewardShift
from tests.unit.losses.helpers import double


def test_a_running_mean_by_hand():
    mean = RunningMean(0.75)
    assert mean.mean is None
    mean.update(double(1, 3))
    assert mean.mean == 2  # the first step as it is, not a quarter of it
    mean.update(double(4, 8, 6))
    assert mean.mean == 0.75 * 2 + 0.25 * 6


def test_a_step_without_values_changes_nothing():
    mean = RunningMean(0.5)
    mean.update(double())
    assert mean.mean is None
    mean.update(double(4))
    mean.update(double())
    assert mean.mean == 4


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), data=st.data())
@settings(deadline=None, max_examples=50)
def test_the_order_of_rows_does_not_matter_to_the_last_bit(values, data):
    first, second = RunningMean(0.9), RunningMean(0.9)
    first.update(double(*values))
    second.update(double(*data.draw(st.permutations(values))))
    assert first.mean == second.mean


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_is_refused_by_row_and_not_kept(bad):
    mean = RunningMean(0.5)
    mean.update(double(4))
    with pytest.raises(TrainingError, match=rf"given {bad} \(row 1 of 3\)"):
        mean.update(double(1, bad, 2))
    assert mean.mean == 4


@pytest.mark.parametrize("decay", [-0.1, 1.0])
def test_a_decay_that_forgets_or_learns_nothing_is_refused(decay):
    with pytest.raises(ConfigError, match=f"below 1; got {decay}"):
        RunningMean(decay)


def test_the_reference_point_is_cut_when_read_and_not_when_averaged():
    point = RunningReferencePoint(decay=0.5)
    assert point.value == 0
    point.update(double(-6), double(-2))  # -4
    assert point.value == 0
    point.update(double(-2), double(-8))  # 6: half of -4 and half of 6
    assert point.value == 1  # 3, had the first been cut to 0 before averaging


def test_the_shift_lies_half_way_between_the_kinds_however_many_rows_each_has():
    shift = RunningRewardShift(decay=0.5)
    shift.update(double(4, 0, 2, -4), torch.tensor([True, True, True, False]))
    assert shift.value == (2 - 4) / 2


def test_a_step_of_one_kind_moves_the_shift_by_that_kind_alone():
    shift = RunningRewardShift(decay=0.5)
    assert shift.value == 0
    shift.update(double(4), torch.tensor([True]))
    assert shift.value == 4
    shift.update(double(-2), torch.tensor([False]))
    assert shift.value == 1
    shift.update(double(8), torch.tensor([True]))
    assert shift.value == (6 - 2) / 2


def test_a_resumed_average_goes_on_to_the_last_bit():
    steps = 3 * torch.randn(5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    good = torch.arange(8) < 3
    for kind, update in (
        (RunningReferencePoint, lambda state, step: state.update(step, torch.zeros_like(step))),
        (RunningRewardShift, lambda state, step: state.update(step, good)),
    ):
        straight, stopped, resumed = kind(0.9), kind(0.9), kind(0.9)
        for step in steps:
            update(straight, step)
        for step in steps[:3]:
            update(stopped, step)
        resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
        for step in steps[3:]:
            update(resumed, step)
        assert resumed.value == straight.value
        assert resumed.state_dict() == straight.state_dict()


def test_a_fresh_average_can_be_saved_too():
    fresh = RunningRewardShift(0.9)
    fresh.load_state_dict(RunningRewardShift(0.9).state_dict())
    assert fresh.value == 0


@pytest.mark.parametrize("state", [RunningMean(0.5), RunningReferencePoint(), RunningRewardShift()])
def test_the_state_of_something_else_is_refused(state):
    with pytest.raises(CheckpointError, match=r"got \['cursor'\]"):
        state.load_state_dict({"cursor": 3})
