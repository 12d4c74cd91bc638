from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf.errors import ConfigError
from rlhf.losses.segments import segment_sum
from rlhf.losses.unpaired import bco_loss, kto_loss, kto_reference_point, mismatched_rows
from rlhf.seeds import derive_seed
from tests.unit.losses.helpers import (
    check_parts_add_up,
    check_unscored_tokens_cannot_reach,
    double,
    gradient,
    per_token,
)

THREE = math.log(3)
GOOD_BAD = torch.tensor([True, False])
LOSSES = {
    "kto": lambda logprobs, ref, good: kto_loss(
        logprobs, ref, good, beta=0.3, reference_point=0.7, undesirable_weight=2
    ),
    "bco": lambda logprobs, ref, good: bco_loss(logprobs, ref, good, beta=0.3, shift=0.7),
}
ALL = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)


def test_kto_by_hand():
    # beta 0.5, z0 = 1: 0.5 * (2 log 3 + 1 - 1) = log 3 for both rows: 1 - 3/4 and 1 - 1/4
    logprobs = double(2 * THREE + 1, 2 * THREE + 1)
    loss = kto_loss(logprobs, double(0, 0), GOOD_BAD, beta=0.5, reference_point=1)
    torch.testing.assert_close(loss, double(0.25, 0.75))
    weighed = kto_loss(
        logprobs, double(0, 0), GOOD_BAD, beta=0.5, reference_point=1, desirable_weight=1.1, undesirable_weight=0.1
    )
    torch.testing.assert_close(weighed, double(0.275, 0.075), rtol=1e-15, atol=0)


def test_bco_by_hand():
    # reward 0.5 * 2 log 3 + 1, shift 1: log 3 for both rows: -log 3/4 and -log 1/4
    logprobs = double(2 * THREE + 2, 2 * THREE + 2)
    loss = bco_loss(logprobs, double(0, 0), GOOD_BAD, beta=0.5, shift=1)
    torch.testing.assert_close(loss, double(math.log(4 / 3), math.log(4)))


def test_a_policy_that_is_its_reference_has_a_known_loss():
    rows = double(-3, -70)
    torch.testing.assert_close(kto_loss(rows, rows, GOOD_BAD, beta=0.1, reference_point=0), double(0.5, 0.5))
    torch.testing.assert_close(bco_loss(rows, rows, GOOD_BAD, beta=0.1, shift=0), double(math.log(2), math.log(2)))


@ALL
def test_desirable_rows_are_pushed_up_and_the_others_down(loss):
    rows = double(-3, -7, grad=True)
    up, down = gradient(loss(rows, double(-4, -5), GOOD_BAD), rows)[0].tolist()
    assert up < 0 < down


@ALL
@given(logratio=st.floats(-50, 50))
@settings(deadline=None, max_examples=25)
def test_a_row_of_the_other_kind_is_the_mirror_image_about_the_reference_point(loss, logratio):
    # KTO's point is 0.7 nats, BCO's 0.7 / 0.3; the weight of KTO's undesirable rows is 2
    kto = loss is LOSSES["kto"]
    center, weight = (0.7, 2) if kto else (0.7 / 0.3, 1)
    good = loss(double(center + logratio), double(0), GOOD_BAD[:1])
    bad = loss(double(center - logratio), double(0), GOOD_BAD[1:])
    torch.testing.assert_close(weight * good, bad, rtol=1e-9, atol=1e-12)


@ALL
def test_gradients_are_those_of_finite_differences(loss):
    inputs = [double(-3, -7, grad=True), double(-4, -5, grad=True)]
    assert torch.autograd.gradcheck(lambda logprobs, ref: loss(logprobs, ref, GOOD_BAD), inputs)


@ALL
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_ratios_of_thousands_stay_finite(loss, dtype):
    rows = torch.tensor([-1e4, 1e4, -1000, 1000], dtype=dtype).requires_grad_()
    value = loss(rows, torch.zeros(4, dtype=dtype), torch.tensor([True, True, False, False]))
    assert value.dtype == dtype
    assert value.isfinite().all()
    assert gradient(value, rows)[0].isfinite().all()


@ALL
def test_an_unscored_token_cannot_reach_it_and_two_micro_batches_equal_one(loss):
    def of_batch(logprobs, batch):
        sums = [segment_sum(x, batch.score_seq, batch.num_sequences) for x in (logprobs, per_token(batch, seed=5) - 2)]
        return loss(*sums, torch.arange(batch.num_sequences) % 2 == 0)

    check_unscored_tokens_cannot_reach(of_batch)
    check_parts_add_up(lambda logprobs, part, whole: of_batch(logprobs, part).sum() / whole.num_sequences)


@ALL
def test_labels_that_are_numbers_are_refused(loss):
    with pytest.raises(ConfigError, match=r"desirable .*boolean.*torch\.int64"):
        loss(double(0, 0), double(0, 0), torch.tensor([1, 0]))


@ALL
def test_shapes_that_would_broadcast_are_refused(loss):
    with pytest.raises(ConfigError, match=r"shapes \[2\], \[2\], \[2, 1\]"):
        loss(double(0, 0), double(0, 0), GOOD_BAD[:, None])


def test_the_reference_point_by_hand():
    # (1 + 5 - 3) / 3; a negative estimate of what is never negative is 0
    assert kto_reference_point(double(-4, -5, -9), double(-5, -10, -6)) == 1
    assert kto_reference_point(double(-9), double(-6)) == 0


def test_the_reference_point_is_that_of_the_step_and_not_the_mean_of_its_micro_batches():
    policy, ref = double(-9, -1, -2), double(-5, -4, -6)  # log-ratios -4, 3, 4: mean 1
    apart = [kto_reference_point(policy[rows], ref[rows]) for rows in (slice(0, 1), slice(1, 3))]
    assert kto_reference_point(policy, ref) == 1
    assert apart == [0, 3.5]  # the trap: two points, neither that of the step


def test_the_reference_point_carries_no_gradient():
    rows = double(-3, grad=True)
    assert isinstance(kto_reference_point(rows, double(-4)), float)


def test_a_reference_point_of_no_rows_is_refused():
    with pytest.raises(ConfigError, match=r"kto_reference_point.*no rows"):
        kto_reference_point(double(), double())


@given(prompts=st.lists(st.integers(0, 4), min_size=2, max_size=12), seed=st.integers(0, 2**63 - 1))
@settings(deadline=None, max_examples=200)
def test_no_row_is_matched_with_its_own_prompt_and_each_is_used_evenly(prompts, seed):
    if len(set(prompts)) == 1:
        with pytest.raises(ConfigError, match=f"all {len(prompts)} rows"):
            mismatched_rows(prompts, seed=seed)
        return
    match = mismatched_rows(prompts, seed=seed)
    assert len(match) == len(prompts)
    assert all(prompts[row] != prompts[other] for row, other in enumerate(match))
    most = max(Counter(prompts).values())
    if 2 * most <= len(prompts):
        assert sorted(match) == list(range(len(prompts)))
    else:
        assert max(Counter(match).values()) <= math.ceil(most / (len(prompts) - most))


@pytest.mark.parametrize("rows", range(2, 9))
def test_a_step_of_any_size_has_no_row_paired_with_itself(rows):
    # rotating within blocks of 4 pairs the last of 5 or of 9 rows with itself
    for seed in range(20):
        assert all(row != other for row, other in enumerate(mismatched_rows(range(rows), seed=seed)))


def test_matches_are_those_of_the_seed_and_differ_between_steps():
    steps = [mismatched_rows(range(16), seed=derive_seed(0, "kto", "mismatch", step)) for step in (0, 0, 1)]
    assert steps[0] == steps[1] != steps[2]


def test_a_single_row_is_refused():
    with pytest.raises(ConfigError, match=r"other prompts"):
        mismatched_rows(["only"], seed=0)


def test_a_reference_point_that_is_not_a_number_is_not_taken_for_zero():
    assert math.isnan(kto_reference_point(torch.tensor([1.0, math.nan]), torch.zeros(2)))
