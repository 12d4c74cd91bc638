from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf.errors import ConfigError
from rlhf.losses.rankings import num_choices, plackett_luce_loss, ranked_pairs
from rlhf.losses.reward import bradley_terry_loss
from rlhf.losses.segments import segment_sum
from tests.unit.losses.helpers import check_parts_add_up, check_unscored_tokens_cannot_reach, double, gradient

ONE = torch.zeros(3, dtype=torch.int64)
STRENGTHS = double(6, 3, 1)


def loss_of_one(scores, *ranks):
    return plackett_luce_loss(scores, double(*ranks), torch.zeros(len(scores), dtype=torch.int64), 1)


def test_three_completions_in_order_by_hand():
    # strengths 6, 3, 1: the best of all with 6 / 10, the best of the rest with 3 / 4
    torch.testing.assert_close((-loss_of_one(STRENGTHS.log(), 1, 2, 3)).exp(), double(6 / 10 * 3 / 4))
    torch.testing.assert_close((-loss_of_one(STRENGTHS.log(), 3, 1, 2)).exp(), double(3 / 10 * 1 / 7))


def test_a_best_without_an_order_of_the_others_is_one_choice():
    torch.testing.assert_close((-loss_of_one(STRENGTHS.log(), 2, 1, 2)).exp(), double(3 / 10))


def test_the_first_of_a_partial_ranking_are_what_all_orders_of_the_others_add_up_to():
    scores = double(0.3, -1, 2, 0.7, -0.2)
    orders = [(1, 2, *rest) for rest in itertools.permutations((3, 4, 5))]
    total = sum((-loss_of_one(scores, *order)).exp() for order in orders)
    torch.testing.assert_close(total, (-loss_of_one(scores, 1, 2, 9, 9, 9)).exp())


def test_completions_of_equal_rank_are_not_compared_with_each_other():
    # two at the top of strengths 6 and 3 over one of 1: 6 / 7 and 3 / 4, each against the one below alone
    torch.testing.assert_close((-loss_of_one(STRENGTHS.log(), 1, 1, 2)).exp(), double(6 / 7 * 3 / 4))
    scores = STRENGTHS.log().requires_grad_()
    loss = loss_of_one(scores, 1, 1, 1)
    assert loss.item() == 0
    assert gradient(loss, scores)[0].tolist() == [0, 0, 0]


@settings(deadline=None)
@given(st.lists(st.floats(-20, 20), min_size=2, max_size=4))
def test_all_orders_together_have_probability_one(scores):
    numbers = torch.tensor(scores, dtype=torch.float64)
    orders = itertools.permutations(range(len(scores)))
    torch.testing.assert_close(sum((-loss_of_one(numbers, *order)).exp() for order in orders), double(1))


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(-40, 40), st.floats(-40, 40)), min_size=1, max_size=5))
def test_two_completions_are_bradley_and_terrys_pair(pairs):
    scores = torch.tensor(pairs, dtype=torch.float64)
    ranking = torch.arange(len(pairs)).repeat_interleave(2)
    ranks = torch.tensor([1, 2]).repeat(len(pairs))
    loss = plackett_luce_loss(scores.flatten(), ranks, ranking, len(pairs))
    torch.testing.assert_close(loss, bradley_terry_loss(scores[:, 0], scores[:, 1]), rtol=1e-12, atol=0)


RANKED = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.floats(-9, 9)), min_size=1, max_size=9)


@settings(deadline=None)
@given(RANKED, st.randoms(use_true_random=False), st.floats(-50, 50))
def test_rows_may_stand_in_any_order_and_each_ranking_may_be_shifted(rows, random, shift):
    def loss(rows, shift):
        ranking, ranks, scores = (torch.tensor(column) for column in zip(*rows, strict=True))
        return plackett_luce_loss(scores.double() + shift * ranking, ranks, ranking, 3)

    torch.testing.assert_close(loss(random.sample(rows, len(rows)), shift), loss(rows, 0.0), rtol=1e-9, atol=1e-12)


@settings(deadline=None)
@given(RANKED)
def test_only_the_order_of_ranks_matters(rows):
    ranking, ranks, scores = (torch.tensor(column) for column in zip(*rows, strict=True))
    torch.testing.assert_close(
        plackett_luce_loss(scores, ranks.double().exp() - 70, ranking, 3), plackett_luce_loss(scores, ranks, ranking, 3)
    )


def test_the_best_is_pushed_up_and_the_last_down():
    scores = double(0, 0, 0, grad=True)
    (grad,) = gradient(loss_of_one(scores, 1, 2, 3), scores)
    # a third each, then a half each
    torch.testing.assert_close(grad, double(1 / 3 - 1, 1 / 3 + 1 / 2 - 1, 1 / 3 + 1 / 2))


def test_gradients_are_those_of_finite_differences():
    scores = double(0.3, -1, 2, 0.7, -5, 30, grad=True)
    ranking, ranks = torch.tensor([0, 1, 0, 0, 1, 0]), double(1, 2, 3, 3, 1, 2)
    assert torch.autograd.gradcheck(lambda s: plackett_luce_loss(s, ranks, ranking, 2), (scores,))


def test_scores_ten_thousand_apart_stay_finite():
    scores = torch.tensor([1e4, 0.0, -1e4]).requires_grad_()
    right, wrong = (plackett_luce_loss(scores, torch.tensor(r), ONE, 1) for r in ([1, 2, 3], [3, 2, 1]))
    assert (right.item(), wrong.item()) == (0, 3e4)
    # the last is the best of all by right and the second of the rest: each choice pulls its best up and the first down
    assert gradient(wrong, scores)[0].tolist() == [2, -1, -1]


def test_a_lead_of_forty_is_not_rounded_away():
    assert loss_of_one(double(1040, 1000, 900), 1, 2, 3).item() == pytest.approx(math.exp(-40), rel=1e-6)


def test_choices_are_counted_so_that_long_rankings_need_not_weigh_more():
    ranking, ranks = torch.tensor([0, 0, 0, 0, 2, 2, 3]), torch.tensor([1, 2, 2, 3, 1, 1, 1])
    assert num_choices(ranks, ranking, 4).tolist() == [3, 0, 0, 0]
    assert plackett_luce_loss(torch.zeros(7), ranks, ranking, 4)[1:].tolist() == [0, 0, 0]


def test_pairs_of_a_ranking_are_those_of_which_one_is_better():
    ranking, ranks = torch.tensor([0, 1, 0, 0, 1]), torch.tensor([2, 5, 1, 2, 4])
    better, worse = ranked_pairs(ranks, ranking)
    assert list(zip(better.tolist(), worse.tolist(), strict=True)) == [(2, 0), (2, 3), (4, 1)]


def _loss(logprobs, batch):
    scores = segment_sum(logprobs, batch.score_seq, batch.num_sequences)
    position = torch.arange(batch.num_sequences)
    return plackett_luce_loss(scores, position % 2, position // 2, batch.num_sequences // 2)


def test_an_unscored_token_cannot_reach_it():
    check_unscored_tokens_cannot_reach(_loss)


def test_two_micro_batches_equal_one():
    check_parts_add_up(lambda logprobs, part, whole: _loss(logprobs, part).sum() / (whole.num_sequences / 2))


def test_shapes_that_would_broadcast_are_refused():
    with pytest.raises(ConfigError, match=r"shapes \[3\], \[1\], \[3\]"):
        plackett_luce_loss(STRENGTHS, double(1), ONE, 1)
    with pytest.raises(ConfigError, match=r"shapes \[1\], \[3\]"):
        ranked_pairs(double(1), ONE)
