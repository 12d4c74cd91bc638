"""What all losses on pairs have in common, by the table."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf.errors import ConfigError
from rlhf.losses.pair_losses import MARGIN_LOSSES, PAIR_LOSSES, WHOLE_STEP_LOSSES
from rlhf.losses.preference import dpo_loss
from rlhf.losses.segments import segment_sum, split_pairs
from tests.unit.losses.helpers import (
    check_parts_add_up,
    check_unscored_tokens_cannot_reach,
    double,
    gradient,
    per_token,
)

CHOSEN, REJECTED = double(-10, -30, -12), double(-14, -20, -12.5)
REF_CHOSEN, REF_REJECTED = double(-12, -31, -12.25), double(-13, -25, -12)
FOUR = (CHOSEN, REJECTED, REF_CHOSEN, REF_REJECTED)
ALL = pytest.mark.parametrize("name", PAIR_LOSSES)
LOGPROBS = st.floats(-300, 0, allow_nan=False, width=32)
PAIRS = st.lists(st.tuples(LOGPROBS, LOGPROBS, LOGPROBS, LOGPROBS), min_size=1, max_size=6)

AT_START = {
    "sigmoid": math.log(2),
    "hinge": 1.0,
    "ipo": 1.0,  # beta 0.5 draws the margin to 1
    "robust": math.log(2),
    "exo": math.log(0.25 / (0.999 * 0.001)) / 2,
    "discopop": math.log(2) / 2 + 0.5,
    "nca": 2 * math.log(2),
    "bco": 2 * math.log(2),
    "sppo": 2.0,  # both sides are drawn to a log-ratio of 1
    "apo_zero": 1.0,
    "apo_down": 1.0,
    "aot": math.log(2),
    "aot_unpaired": math.log(2),
}


@ALL
def test_a_policy_that_is_its_reference_has_the_same_known_loss_for_every_pair(name):
    at_start = PAIR_LOSSES[name](CHOSEN, REJECTED, CHOSEN, REJECTED, beta=0.5)
    assert at_start.tolist() == pytest.approx([AT_START[name]] * 3)


@pytest.mark.parametrize(
    "name", sorted(PAIR_LOSSES.keys() - {"discopop"})
)  # which first goes the other way: see its tests
def test_at_the_start_the_margin_is_pushed_up(name):
    chosen, rejected = CHOSEN.clone().requires_grad_(), REJECTED.clone().requires_grad_()
    up, down = gradient(PAIR_LOSSES[name](chosen, rejected, CHOSEN, REJECTED, beta=0.1), chosen, rejected)
    assert (up - down < 0).all()
    if name not in ("sppo", "nca", "apo_down"):
        torch.testing.assert_close(up, -down)


@ALL
def test_gradients_are_those_of_finite_differences(name):
    inputs = [tensor.clone().requires_grad_() for tensor in FOUR]
    assert torch.autograd.gradcheck(lambda *four: PAIR_LOSSES[name](*four, beta=0.13), inputs)


@ALL
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [100.0, 1000.0, 1e4])
def test_log_ratios_of_thousands_stay_finite(name, dtype, size):
    chosen = torch.tensor([-size, 0, -100, size, size, -size], dtype=dtype).requires_grad_()
    rejected = torch.tensor([0, -size, 0, size, -size, size], dtype=dtype).requires_grad_()
    zeros = torch.zeros(6, dtype=dtype)
    value = PAIR_LOSSES[name](chosen, rejected, zeros, zeros, beta=0.5)
    assert value.dtype == dtype
    assert value.isfinite().all()
    assert all(grad.isfinite().all() for grad in gradient(value, chosen, rejected))


@ALL
def test_an_unscored_token_cannot_reach_it(name):
    check_unscored_tokens_cannot_reach(lambda logprobs, batch: _loss(name, logprobs, batch))


@pytest.mark.parametrize("name", sorted(PAIR_LOSSES.keys() - WHOLE_STEP_LOSSES))
def test_two_micro_batches_equal_one(name):
    check_parts_add_up(lambda logprobs, part, whole: _loss(name, logprobs, part).sum() / (whole.num_sequences / 2))


@pytest.mark.parametrize("name", sorted(WHOLE_STEP_LOSSES))
def test_losses_over_a_whole_step_are_named_because_they_would_not_add_up(name):
    four = (CHOSEN, REJECTED, REF_CHOSEN.flip(0), REF_REJECTED.flip(0))
    in_parts = torch.cat([PAIR_LOSSES[name](*[x[rows] for x in four], beta=0.1) for rows in ([0], [1, 2])])
    assert not torch.isclose(in_parts.sum(), PAIR_LOSSES[name](*four, beta=0.1).sum(), rtol=1e-3)


@ALL
@settings(deadline=None, max_examples=25)
@given(pairs=PAIRS, data=st.data())
def test_the_order_of_pairs_does_not_matter(name, pairs, data):
    order = data.draw(st.permutations(range(len(pairs))))
    four = torch.tensor(pairs, dtype=torch.float64).T
    total = PAIR_LOSSES[name](*four, beta=0.1).sum()
    torch.testing.assert_close(PAIR_LOSSES[name](*four[:, order], beta=0.1).sum(), total)


@ALL
@settings(deadline=None, max_examples=25)
@given(pairs=PAIRS, shift=LOGPROBS, other=LOGPROBS)
def test_what_policy_and_reference_agree_on_cancels(name, pairs, shift, other):
    chosen, rejected, ref_chosen, ref_rejected = torch.tensor(pairs, dtype=torch.float64).T.round(decimals=3)
    moved = PAIR_LOSSES[name](chosen + shift, rejected + other, ref_chosen + shift, ref_rejected + other, beta=0.1)
    still = PAIR_LOSSES[name](chosen, rejected, ref_chosen, ref_rejected, beta=0.1)
    # sums: a tie that rounding breaks may exchange two pairs of equal rank
    torch.testing.assert_close(moved.sum(), still.sum(), rtol=1e-7, atol=1e-7)


@ALL
def test_only_losses_on_margins_let_both_sides_fall_together(name):
    fallen = PAIR_LOSSES[name](CHOSEN - 3, REJECTED - 3, REF_CHOSEN, REF_REJECTED, beta=0.1)
    same = torch.allclose(fallen, PAIR_LOSSES[name](*FOUR, beta=0.1))
    assert same == (name in MARGIN_LOSSES | WHOLE_STEP_LOSSES)


@pytest.mark.parametrize("name", sorted(MARGIN_LOSSES))
def test_a_swapped_pair_is_the_pair_of_the_negative_margin(name):
    swapped = PAIR_LOSSES[name](REJECTED, CHOSEN, REF_REJECTED, REF_CHOSEN, beta=0.1)
    margin = (CHOSEN - REF_CHOSEN) - (REJECTED - REF_REJECTED)
    zeros = torch.zeros_like(margin)
    torch.testing.assert_close(swapped, PAIR_LOSSES[name](-margin, zeros, zeros, zeros, beta=0.1))


@given(pairs=PAIRS, smoothing=st.floats(0, 0.49))
@settings(deadline=None, max_examples=25)
def test_smoothing_is_the_loss_of_the_swapped_pair_at_its_share(pairs, smoothing):
    chosen, rejected, ref_chosen, ref_rejected = torch.tensor(pairs, dtype=torch.float64).T
    kept = dpo_loss(chosen, rejected, ref_chosen, ref_rejected, beta=0.1)
    swapped = dpo_loss(rejected, chosen, ref_rejected, ref_chosen, beta=0.1)
    smoothed = dpo_loss(chosen, rejected, ref_chosen, ref_rejected, beta=0.1, label_smoothing=smoothing)
    torch.testing.assert_close(smoothed, (1 - smoothing) * kept + smoothing * swapped)


@ALL
def test_an_option_that_a_loss_takes_is_not_ignored(name):
    values = {"label_smoothing": 0.2, "tau": 0.5, "shift": 0.3, "win_probabilities": double(0.6, 0.7, 0.8)}
    values |= {"chosen_lengths": double(4, 2, 3), "rejected_lengths": double(2, 5, 1)}
    options = inspect.signature(PAIR_LOSSES[name]).parameters.keys() & values.keys()
    plain = PAIR_LOSSES[name](*FOUR, beta=0.1)
    groups = [{"chosen_lengths", "rejected_lengths"}] if "chosen_lengths" in options else [{o} for o in options]
    for group in groups:
        changed = PAIR_LOSSES[name](*FOUR, beta=0.1, **{option: values[option] for option in group})
        assert not torch.isclose(changed, plain).any(), group
    if name in ("sigmoid", "robust", "exo", "aot", "aot_unpaired"):
        assert "label_smoothing" in options


@ALL
def test_shapes_that_would_broadcast_are_refused(name):
    with pytest.raises(ConfigError, match=r"shapes \[3\], \[3\], \[3, 1\], \[3\]"):
        PAIR_LOSSES[name](CHOSEN, REJECTED, REF_CHOSEN[:, None], REF_REJECTED, beta=0.1)


def test_the_tables_agree():
    assert PAIR_LOSSES.items() <= PAIR_LOSSES.items()
    assert PAIR_LOSSES.keys() >= MARGIN_LOSSES | WHOLE_STEP_LOSSES
    assert AT_START.keys() == PAIR_LOSSES.keys()


def _loss(name, logprobs, batch):
    summed = split_pairs(segment_sum(logprobs, batch.score_seq, batch.num_sequences))
    reference = split_pairs(segment_sum(per_token(batch, seed=5) - 2, batch.score_seq, batch.num_sequences))
    return PAIR_LOSSES[name](*summed, *reference, beta=0.1)
