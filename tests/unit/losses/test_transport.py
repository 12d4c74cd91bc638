from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf.losses.preference import dpo_loss
from rlhf.losses.transport import aot_loss, aot_unpaired_loss, same_rank
from tests.unit.losses.helpers import double, gradient

ZEROS = double(0, 0, 0)


def softplus(x: float) -> float:
    return math.log1p(math.exp(x))


def test_aot_by_hand():
    # differences of the policy 5, 1, 3 and of the reference 0, 4, 2: by rank 5 meets 4, 1 meets 0, 3 meets 2
    loss = aot_loss(double(5, 1, 3), ZEROS, double(0, 4, 2), ZEROS, beta=0.5)
    assert loss.tolist() == pytest.approx([softplus(-0.5)] * 3)


def test_unpaired_aot_by_hand():
    # log-ratios 5, 1, 3 of the chosen and 4, 0, -2 of the rejected: 5 meets 4, 1 meets -2, 3 meets 0
    loss = aot_unpaired_loss(double(5, 1, 3), double(4, 0, -2), ZEROS, ZEROS, beta=1)
    assert loss.tolist() == pytest.approx([softplus(-1), softplus(-3), softplus(-3)])


def test_who_was_paired_with_whom_does_not_matter_to_the_unpaired_form():
    chosen, rejected, ref = double(5, 1, 3), double(4, 0, -2), double(0.5, 1, 2)
    order = [2, 0, 1]
    once = aot_unpaired_loss(chosen, rejected, ZEROS, ref, beta=0.3)
    torch.testing.assert_close(aot_unpaired_loss(chosen, rejected[order], ZEROS, ref[order], beta=0.3), once)


def _step() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    return list(-20 * torch.rand(4, 8, dtype=torch.float64, generator=generator))


def test_aot_matched_over_the_step_is_the_same_in_any_micro_batches():
    chosen, rejected, ref_chosen, ref_rejected = _step()
    leaf = chosen.requires_grad_()
    whole = aot_loss(leaf, rejected, ref_chosen, ref_rejected, beta=0.2, label_smoothing=0.1)
    match = same_rank(leaf - rejected, ref_chosen - ref_rejected)
    parts = [
        dpo_loss(
            leaf[rows],
            rejected[rows],
            ref_chosen[match[rows]],
            ref_rejected[match[rows]],
            beta=0.2,
            label_smoothing=0.1,
        )
        for rows in (slice(0, 3), slice(3, 8))
    ]
    torch.testing.assert_close(torch.cat(parts), whole)
    torch.testing.assert_close(gradient(torch.cat(parts), leaf), gradient(whole, leaf))
    # the trap: ranks within a micro-batch are others
    apart = [aot_loss(*[x[rows] for x in _step()], beta=0.2) for rows in (slice(0, 3), slice(3, 8))]
    assert not torch.isclose(torch.cat(apart).sum(), aot_loss(*_step(), beta=0.2).sum(), rtol=1e-3)


def test_unpaired_aot_matched_over_the_step_is_the_same_in_any_micro_batches():
    chosen, rejected, ref_chosen, ref_rejected = _step()
    whole = aot_unpaired_loss(chosen, rejected, ref_chosen, ref_rejected, beta=0.2)
    match = same_rank(chosen - ref_chosen, rejected - ref_rejected)
    rejected, ref_rejected = rejected[match], ref_rejected[match]
    parts = [
        dpo_loss(chosen[rows], rejected[rows], ref_chosen[rows], ref_rejected[rows], beta=0.2)
        for rows in (slice(0, 5), slice(5, 8))
    ]
    torch.testing.assert_close(torch.cat(parts), whole)


@given(
    values=st.lists(st.integers(-3, 3), min_size=1, max_size=8),
    others=st.lists(st.integers(-3, 3), min_size=8, max_size=8),
)
@settings(deadline=None, max_examples=50)
def test_same_rank_is_a_permutation_that_sorts_the_one_as_the_other(values, others):
    first, second = double(*values), double(*others[: len(values)])
    match = same_rank(first, second)
    assert sorted(match.tolist()) == list(range(len(values)))
    by_value = first.argsort(stable=True)
    assert (second[match][by_value].diff() >= 0).all()


def test_gradients_are_those_of_finite_differences():
    inputs = [x.requires_grad_() for x in _step()]
    for loss in (aot_loss, aot_unpaired_loss):
        assert torch.autograd.gradcheck(lambda *four, loss=loss: loss(*four, beta=0.2, label_smoothing=0.2), inputs)
