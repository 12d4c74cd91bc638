from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf.errors import ConfigError, DataError, UnknownNameError
from rlhf.losses.process import pairwise_outcome_loss, step_loss
from rlhf.losses.step_aggregation import STEP_AGGREGATIONS, aggregate_steps, steps_until_first_error
from tests.unit.losses.helpers import (
    check_parts_add_up,
    check_unscored_tokens_cannot_reach,
    double,
    gradient,
    per_token,
)

ALL = pytest.mark.parametrize("how", STEP_AGGREGATIONS)
TWO = torch.tensor([0, 0, 0, 1])
SURE = double(1 / 2, 3 / 4, 1 / 4, 2 / 3).logit()
"""Step scores of two solutions, by the probability that they stand for."""


def test_steps_are_judged_by_the_probability_of_being_right():
    # log-odds log 3: 3/4 right; a wrong step of weight 2 costs 2 * -log(1/4)
    scores = double(math.log(3), math.log(3))
    torch.testing.assert_close(step_loss(scores, double(1, 0)), double(0.2876820724517809, 1.3862943611198906))
    torch.testing.assert_close(
        step_loss(scores, double(1, 0), wrong_weight=2.0), double(0.2876820724517809, 2.772588722239781)
    )


def test_labels_may_be_bool_or_the_share_of_continuations_that_succeed():
    scores = double(0.4, -2)
    assert torch.equal(step_loss(scores, torch.tensor([True, False])), step_loss(scores, double(1, 0)))
    even = double(0, grad=True)
    assert gradient(step_loss(even, double(0.75)), even)[0].item() == -0.25


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("min", (1 / 4, 2 / 3)),
        ("product", (3 / 32, 2 / 3)),
        ("mean", (1 / 2, 2 / 3)),
        ("last", (1 / 4, 2 / 3)),
    ],
)
def test_aggregations_by_hand(how: str, expected):
    torch.testing.assert_close(aggregate_steps(SURE, TWO, 2, how=how).exp(), double(*expected))


STEPS = st.lists(st.lists(st.floats(-30, 30), min_size=1, max_size=5), min_size=1, max_size=4)


def flat(solutions):
    scores = torch.tensor([score for steps in solutions for score in steps], dtype=torch.float64)
    return scores, torch.repeat_interleave(torch.tensor([len(steps) for steps in solutions]))


@settings(deadline=None)
@given(STEPS)
def test_product_is_below_min_is_below_mean_and_none_is_above_one(solutions):
    aggregated = {how: aggregate_steps(*flat(solutions), len(solutions), how=how) for how in STEP_AGGREGATIONS}
    slack = 1e-12
    assert (aggregated["product"] <= aggregated["min"] + slack).all()
    assert (aggregated["min"] <= aggregated["mean"] + slack).all()
    assert (aggregated["min"] <= aggregated["last"]).all()
    assert all((value <= slack).all() for value in aggregated.values())


@ALL
@settings(deadline=None)
@given(st.floats(-30, 30))
def test_a_solution_of_one_step_is_as_good_as_its_step(how, score):
    actual = aggregate_steps(double(score), torch.tensor([0]), 1, how=how).exp()
    torch.testing.assert_close(actual, double(score).sigmoid())


@ALL
@settings(deadline=None)
@given(STEPS)
def test_solutions_side_by_side_are_solutions_apart(how, solutions):
    together = aggregate_steps(*flat(solutions), len(solutions), how=how)
    apart = [aggregate_steps(*flat([steps]), 1, how=how) for steps in solutions]
    torch.testing.assert_close(together, torch.cat(apart))


@settings(deadline=None)
@given(st.permutations([-2.0, -0.5, 0.3, 1.7, 4.0]))
def test_the_order_of_steps_matters_to_the_last_only(steps):
    aggregated = {how: aggregate_steps(*flat([steps]), 1, how=how) for how in STEP_AGGREGATIONS}
    before = {how: aggregate_steps(*flat([sorted(steps)]), 1, how=how) for how in STEP_AGGREGATIONS}
    for how in ("min", "product", "mean"):
        torch.testing.assert_close(aggregated[how], before[how])
    assert (aggregated["last"] == before["last"]).item() == (steps[-1] == 4.0)


def test_where_the_gradient_of_an_aggregation_goes():
    def grad(how):
        scores = double(0, -1, 2, grad=True)
        return gradient(aggregate_steps(scores, torch.zeros(3, dtype=torch.int64), 1, how=how), scores)[0] != 0

    assert grad("min").tolist() == [False, True, False]
    assert grad("last").tolist() == [False, False, True]
    assert grad("product").tolist() == grad("mean").tolist() == [True, True, True]


@ALL
def test_outcome_pairs_by_hand(how: str):
    # probabilities 3/4 against 1/4 of solutions of one step: the better one wins with 3/4 / (3/4 + 1/4)
    scores = double(math.log(3), -math.log(3))
    loss = pairwise_outcome_loss(scores, torch.tensor([0, 1]), 2, how=how)
    torch.testing.assert_close((-loss).exp(), double(3 / 4))


def test_outcomes_teach_the_steps_of_both_solutions():
    scores = double(0.5, -0.5, 0.1, 0.2, 1, grad=True)
    (grad,) = gradient(pairwise_outcome_loss(scores, torch.tensor([0, 0, 1, 1, 1]), 2, how="product"), scores)
    assert grad.sign().tolist() == [-1, -1, 1, 1, 1]


def test_margin_and_smoothing_reach_the_pair():
    scores, seq = double(2, 0.5, 1, -1), torch.tensor([0, 1, 2, 3])
    plain = pairwise_outcome_loss(scores, seq, 4, how="min")
    asked = pairwise_outcome_loss(scores, seq, 4, how="min", margin=double(0, 1), label_smoothing=double(0.5, 0))
    assert (asked > plain).all()


@ALL
def test_gradients_are_those_of_finite_differences(how: str):
    scores = double(0.5, -0.5, 0.1, 0.2, 25, -25, grad=True)
    seq = torch.tensor([0, 0, 1, 1, 1, 1])
    assert torch.autograd.gradcheck(lambda s: pairwise_outcome_loss(s, seq, 2, how=how), (scores,))
    labels = double(1, 0, 0.3, 1, 1, 0)
    assert torch.autograd.gradcheck(lambda s: step_loss(s, labels, wrong_weight=3.0), (scores,))


@ALL
def test_steps_of_ten_thousand_stay_finite(how: str):
    scores = torch.tensor([1e4, -1e4, -1e4, 1e4, 0.0]).requires_grad_()
    aggregated = aggregate_steps(scores, torch.tensor([0, 0, 1, 1, 1]), 2, how=how)
    assert aggregated.isfinite().all()
    assert gradient(aggregated, scores)[0].isfinite().all()


def test_steps_after_the_first_wrong_one_are_left_out():
    labels = double(1, 0, 1, 0, 1, 1, 0, 0.4)
    step_seq = torch.tensor([0, 0, 0, 0, 1, 1, 3, 3])
    expected = [True, True, False, False, True, True, True, False]
    assert steps_until_first_error(labels, step_seq).tolist() == expected
    assert steps_until_first_error(labels >= 0.5, step_seq).tolist() == expected
    assert steps_until_first_error(labels[:0], step_seq[:0]).tolist() == []


@settings(deadline=None)
@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=6), max_size=5))
def test_exactly_the_steps_before_a_wrong_one_and_itself_are_kept(solutions):
    labels = torch.tensor([label for steps in solutions for label in steps], dtype=torch.bool)
    step_seq = torch.repeat_interleave(torch.tensor([len(steps) for steps in solutions], dtype=torch.int64))
    kept = [all(steps[:number]) for steps in solutions for number in range(len(steps))]
    assert steps_until_first_error(labels, step_seq).tolist() == kept


def _outcome(logprobs, batch):
    """Scored tokens stand in for steps."""
    return pairwise_outcome_loss(logprobs + 1, batch.score_seq, batch.num_sequences, how="product")


def _steps(logprobs, batch):
    return step_loss(logprobs + 1, (per_token(batch, seed=3) > 0).double(), wrong_weight=2.0)


@pytest.mark.parametrize("loss_of", [_outcome, _steps])
def test_an_unscored_token_cannot_reach_it(loss_of):
    check_unscored_tokens_cannot_reach(loss_of)


@pytest.mark.parametrize(
    ("loss_of", "count"),
    [(_outcome, lambda batch: batch.num_sequences / 2), (_steps, lambda batch: batch.num_scored)],
)
def test_two_micro_batches_equal_one(loss_of, count):
    check_parts_add_up(lambda logprobs, part, whole: loss_of(logprobs, part).sum() / count(whole))


def test_a_solution_without_steps_is_refused_by_its_number():
    with pytest.raises(DataError, match=r"\[1, 3\].*no steps"):
        aggregate_steps(double(1, 2), torch.tensor([0, 2]), 4, how="min")


def test_a_misspelled_aggregation_is_refused_with_the_known_ones():
    with pytest.raises(UnknownNameError, match=r"'prod'.*'product'.*min, product, mean, last"):
        aggregate_steps(SURE, TWO, 2, how="prod")


def test_steps_out_of_order_are_refused_where_order_matters():
    with pytest.raises(ConfigError, match="must be contiguous"):
        aggregate_steps(double(1, 2, 3), torch.tensor([0, 1, 0]), 2, how="last")
    with pytest.raises(ConfigError, match="must be contiguous"):
        steps_until_first_error(double(1, 0, 1), torch.tensor([0, 1, 0]))


def test_shapes_that_would_broadcast_are_refused():
    with pytest.raises(ConfigError, match=r"shapes \[2\], \[1\]"):
        step_loss(double(1, 2), double(1))
    with pytest.raises(ConfigError, match=r"shapes \[4\], \[1\]"):
        aggregate_steps(SURE, torch.tensor([0]), 1, how="min")
