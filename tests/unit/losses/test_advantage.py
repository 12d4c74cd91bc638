from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf.errors import ConfigError, DataError
from rlhf.losses.advantage import (
    add_score_at_last_token,
    batch_std_advantages,
    gae,
    greedy_baseline_advantages,
    group_advantages,
    leave_one_out_advantages,
    length_adaptive_lambda,
    reinforce_plus_plus_advantages,
)
from rlhf.losses.whitening import moments
from tests.unit.losses.helpers import double

PATIENT = settings(deadline=None)
"""The first example may have to import half of torch, which takes a second on a busy machine."""

REWARDS = double(0, 0, 1)
VALUES = double(0.5, 0.6, 0.7)
ONE_SEQUENCE = torch.zeros(3, dtype=torch.int64)


def test_gae_by_hand():
    # gamma 0.9, lambda 0.5: deltas 0.9 * 0.6 - 0.5, 0.9 * 0.7 - 0.6, 1 - 0.7
    # advantages 0.3; 0.03 + 0.45 * 0.3; 0.04 + 0.45 * 0.165
    advantages, returns = gae(REWARDS, VALUES, ONE_SEQUENCE, gamma=0.9, gae_lambda=0.5)
    torch.testing.assert_close(advantages, double(0.11425, 0.165, 0.3))
    torch.testing.assert_close(returns, double(0.61425, 0.765, 1.0))


def test_a_truncated_sequence_expects_what_the_critic_expects_after_it():
    # last delta 1 + 0.9 * 2 - 0.7 = 2.1; a sequence that ended expects nothing
    score_seq = torch.tensor([0, 0, 0, 1])
    arguments = (double(0, 0, 1, 1), double(0.5, 0.6, 0.7, 0.7), score_seq)
    advantages, _ = gae(*arguments, gamma=0.9, gae_lambda=0.0, bootstrap_values=double(2, 0))
    torch.testing.assert_close(advantages[2:], double(2.1, 0.3))


def test_with_lambda_and_gamma_one_returns_are_rewards_to_go_whatever_the_critic_says():
    rewards, score_seq = double(1, 2, 4, 8, 16), torch.tensor([0, 0, 0, 1, 1])
    values = torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    _, returns = gae(rewards, values, score_seq, gamma=1.0, gae_lambda=1.0)
    torch.testing.assert_close(returns, double(7, 6, 4, 24, 16))


def test_a_critic_that_is_right_leaves_no_advantage():
    rewards, score_seq = double(1, 2, 4), ONE_SEQUENCE
    for lam in (0.0, 0.5, 0.95):
        advantages, _ = gae(rewards, double(7, 6, 4), score_seq, gamma=1.0, gae_lambda=lam)
        assert advantages.abs().max() == 0


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.integers(0, 99))
def test_sequences_side_by_side_are_sequences_apart(lengths: list[int], seed: int):
    score_seq = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    rewards, values = torch.randn(2, len(score_seq), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    together, returns = gae(rewards, values, score_seq, gamma=0.99, gae_lambda=0.9)
    apart = [
        gae(r, v, torch.zeros(len(r), dtype=torch.int64), gamma=0.99, gae_lambda=0.9)[0]
        for r, v in zip(rewards.split(lengths), values.split(lengths), strict=True)
    ]
    assert torch.equal(together, torch.cat(apart))
    assert torch.equal(returns, together + values)


def test_a_broken_value_stays_in_its_sequence():
    advantages, _ = gae(double(1, 1, 1), double(1, math.nan, 1), torch.tensor([0, 1, 2]), gamma=1.0, gae_lambda=1.0)
    assert advantages.isnan().tolist() == [False, True, False]


def test_numbers_of_sequences_may_have_gaps():
    after = double(100, 3, 200, 300, 5)  # the values after sequences 0, 2 and 3 belong to nobody here
    advantages, _ = gae(
        double(1, 2), double(0, 0), torch.tensor([1, 4]), gamma=1.0, gae_lambda=1.0, bootstrap_values=after
    )
    assert advantages.tolist() == [4, 7]


def test_credit_carries_no_gradient_and_changes_no_input():
    rewards, values = REWARDS.clone(), VALUES.clone().requires_grad_()
    scores = double(5, grad=True)
    shaped = add_score_at_last_token(rewards, scores, ONE_SEQUENCE)
    advantages, returns = gae(shaped, values, ONE_SEQUENCE, gamma=1.0, gae_lambda=0.95)
    grouped = group_advantages(double(1, 2, grad=True), torch.tensor([0, 0]))
    left_out = leave_one_out_advantages(double(1, 2, grad=True), torch.tensor([0, 0]))
    assert not any(x.requires_grad for x in (shaped, advantages, returns, grouped, left_out))
    assert torch.equal(rewards, REWARDS)
    assert torch.equal(values, VALUES)


def test_the_score_lands_on_the_last_scored_token_by_hand():
    rewards = double(-1, -1, -1, -1, -1)
    score_seq = torch.tensor([0, 0, 0, 1, 2])
    assert add_score_at_last_token(rewards, double(10, 20, 30), score_seq).tolist() == [-1, -1, 9, 19, 29]


def test_every_token_of_a_sequence_sees_the_whole_score():
    # the trap of a score one past the end: some token would have a return without it
    score_seq = torch.tensor([0, 0, 0, 1])
    shaped = add_score_at_last_token(torch.zeros(4, dtype=torch.float64), double(3, 5), score_seq)
    _, returns = gae(shaped, torch.zeros(4, dtype=torch.float64), score_seq, gamma=1.0, gae_lambda=1.0)
    assert returns.tolist() == [3, 3, 3, 5]


def test_a_score_without_a_token_to_carry_it_is_not_lost_in_silence():
    with pytest.raises(DataError, match=r"Sequences \[1, 3\]"):
        add_score_at_last_token(double(0, 0), double(1, 2, 3, 4), torch.tensor([0, 2]))


def test_a_pair_of_scores_by_hand():
    # 1 and 3: mean 2, unbiased deviation sqrt(2), biased 1
    group = torch.tensor([0, 0])
    unit = 0.7070567862983917  # 1 / (sqrt(2) + 1e-4)
    torch.testing.assert_close(group_advantages(double(1, 3), group), double(-unit, unit))
    torch.testing.assert_close(group_advantages(double(1, 3), group, unbiased=False, eps=0.0), double(-1, 1))
    torch.testing.assert_close(group_advantages(double(1, 3), group, divide_by_std=False), double(-1, 1))


@pytest.mark.parametrize("credit", [group_advantages, leave_one_out_advantages])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_group_of_equal_rewards_teaches_nothing(credit, size: int, dtype: torch.dtype):
    # the mean of three times 0.1 is not 0.1 in floating point; divided by eps, the rounding would become an advantage
    out = credit(torch.full((size,), 0.1, dtype=dtype), torch.full((size,), 5))
    assert out.tolist() == [0] * size


@pytest.mark.parametrize("credit", [group_advantages, leave_one_out_advantages])
def test_groups_do_not_mix_and_may_stand_in_any_order(credit):
    scores, group = double(1, 100, 3, 400, 8, 100), torch.tensor([9, -2, 9, -2, 9, -2])
    out = credit(scores, group)
    torch.testing.assert_close(out[0::2], credit(double(1, 3, 8), torch.zeros(3, dtype=torch.int64)))
    torch.testing.assert_close(out[1::2], credit(double(100, 400, 100), torch.zeros(3, dtype=torch.int64)))


@pytest.mark.parametrize("credit", [group_advantages, leave_one_out_advantages])
def test_advantages_of_a_group_sum_to_zero_and_do_not_see_a_shift(credit):
    scores, group = (
        torch.randn(12, dtype=torch.float64, generator=torch.Generator().manual_seed(0)),
        torch.arange(12) % 3,
    )
    out = credit(scores, group)
    torch.testing.assert_close(out.reshape(4, 3).sum(0), double(0, 0, 0), rtol=0, atol=1e-13)
    torch.testing.assert_close(credit(scores + 1000, group), out, rtol=1e-9, atol=1e-9)


def test_dividing_by_the_deviation_takes_the_scale_away_and_not_dividing_keeps_it():
    scores, group = double(0, 1, 5), torch.tensor([0, 0, 0])
    torch.testing.assert_close(group_advantages(scores * 10, group, eps=0.0), group_advantages(scores, group, eps=0.0))
    torch.testing.assert_close(
        group_advantages(scores * 10, group, divide_by_std=False),
        10 * group_advantages(scores, group, divide_by_std=False),
    )


def test_leave_one_out_by_hand():
    # 1 against (2 + 6) / 2, 2 against (1 + 6) / 2, 6 against (1 + 2) / 2
    torch.testing.assert_close(
        leave_one_out_advantages(double(1, 2, 6), torch.tensor([0, 0, 0])), double(-3, -1.5, 4.5)
    )


def test_scores_ten_thousand_apart_stay_finite_in_float32():
    out = group_advantages(torch.tensor([1e4, -1e4, 1e4 + 1]), torch.tensor([0, 0, 0]))
    assert out.isfinite().all()
    assert out[1] < 0 < out[0] <= out[2]


def test_whole_number_scores_are_refused_rather_than_rounded():
    with pytest.raises(ConfigError, match=r"torch\.int64"):
        group_advantages(torch.tensor([1, 2]), torch.tensor([0, 0]))


def test_shapes_that_would_broadcast_are_refused():
    with pytest.raises(ConfigError, match=r"shapes \[3\], \[1\], \[3\]"):
        gae(REWARDS, double(1), ONE_SEQUENCE, gamma=1.0, gae_lambda=1.0)
    with pytest.raises(ConfigError, match=r"shapes \[2\], \[3\]"):
        group_advantages(double(1, 2), ONE_SEQUENCE)


def test_the_critics_lambda_may_be_its_own_by_hand():
    # advantages as in test_gae_by_hand; returns are rewards to come: 1, discounted by 0.9 a token
    advantages, returns = gae(REWARDS, VALUES, ONE_SEQUENCE, gamma=0.9, gae_lambda=0.5, value_gae_lambda=1.0)
    torch.testing.assert_close(advantages, double(0.11425, 0.165, 0.3))
    torch.testing.assert_close(returns, double(0.81, 0.9, 1.0))


def test_each_sequence_may_have_its_lambda_by_hand():
    # the sequence of test_gae_by_hand twice: with lambda 0.5, and with 0, whose advantages are the deltas
    score_seq = torch.tensor([0, 0, 0, 1, 1, 1])
    advantages, returns = gae(REWARDS.repeat(2), VALUES.repeat(2), score_seq, gamma=0.9, gae_lambda=double(0.5, 0))
    torch.testing.assert_close(advantages, double(0.11425, 0.165, 0.3, 0.04, 0.03, 0.3))
    torch.testing.assert_close(returns, advantages + VALUES.repeat(2))


@PATIENT
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.floats(0, 1), st.integers(0, 99))
def test_one_lambda_for_each_sequence_is_one_lambda_where_they_are_equal(
    lengths: list[int], gae_lambda: float, seed: int
):
    score_seq = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    rewards, values = torch.randn(2, len(score_seq), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    each = gae(
        rewards, values, score_seq, gamma=0.99, gae_lambda=torch.full((len(lengths),), gae_lambda, dtype=torch.float64)
    )
    one = gae(rewards, values, score_seq, gamma=0.99, gae_lambda=gae_lambda)
    torch.testing.assert_close(each, one, rtol=1e-10, atol=1e-12)


def test_sequences_with_their_own_lambda_cannot_reach_each_other():
    score_seq = torch.tensor([0, 0, 1, 1, 1, 2])
    rewards = double(1, 1, math.nan, 1, 1, 1)
    advantages, _ = gae(rewards, torch.zeros_like(rewards), score_seq, gamma=1.0, gae_lambda=double(1, 1, 1))
    assert advantages.isnan().tolist() == [False, False, True, False, False, False]
    torch.testing.assert_close(advantages[[0, 1, 3, 4, 5]], double(2, 1, 2, 1, 1))


def test_the_adaptive_lambda_by_hand():
    # 1 - 1 / (0.05 * 40), ... 1000; at 20 it is 0 and below that it stays there, where the formula would be negative
    actual = length_adaptive_lambda(torch.tensor([40, 1000, 20, 3, 1]))
    torch.testing.assert_close(actual, double(0.5, 0.98, 0, 0, 0))


@PATIENT
@given(st.integers(21, 20_000))
def test_the_trace_of_the_adaptive_lambda_reaches_over_its_share_of_the_tokens(length: int):
    lam = length_adaptive_lambda(torch.tensor([length])).item()
    assert 1 / (1 - lam) == pytest.approx(0.05 * length)


def test_no_gae_over_no_tokens():
    empty = double()
    for lam in (0.9, double()):
        advantages, returns = gae(empty, empty, ONE_SEQUENCE[:0], gamma=1.0, gae_lambda=lam)
        assert advantages.shape == returns.shape == (0,)


def test_reinforce_plus_plus_by_hand():
    # scores 2 and 0 at the ends, a penalty of -1 on token 0: returns 1, 2, 0; mean 1, deviation 1
    score_seq = torch.tensor([0, 0, 1])
    advantages = reinforce_plus_plus_advantages(double(-1, 0, 0), double(2, 0), score_seq)
    torch.testing.assert_close(advantages, double(0, 1, -1))


def test_its_baseline_form_by_hand():
    # groups (3, 1) and (10, 10): centered 1, -1, 0, 0 over 1, 1, 1 and 1 tokens; variance 2 / 3
    advantages = reinforce_plus_plus_advantages(
        double(0, 0, 0, 0), double(3, 1, 10, 10), torch.arange(4), group=torch.tensor([7, 7, 4, 4])
    )
    torch.testing.assert_close(advantages, double(1.5**0.5, -(1.5**0.5), 0, 0))


RETURNS_OF_TWO_RANKS = (double(0, 0, 0, 0, 0), double(1, 2, 30, 50), torch.tensor([0, 0, 1, 2, 3]))


def _on_two_ranks(credit):
    """``credit(slice of tokens, slice of sequences, add_up)`` on either rank, the other's moments added as all_reduce would."""
    seen: list[torch.Tensor] = []
    for part in ((slice(0, 3), slice(0, 2)), (slice(3, 5), slice(2, 4))):
        credit(*part, lambda totals: seen.append(totals) or totals)
    everywhere = seen[0] + seen[1]
    return torch.cat(
        [credit(*part, lambda totals: everywhere) for part in ((slice(0, 3), slice(0, 2)), (slice(3, 5), slice(2, 4)))]
    )


def test_whitening_is_over_all_ranks_and_not_over_each():
    rewards, scores, score_seq = RETURNS_OF_TWO_RANKS
    whole = reinforce_plus_plus_advantages(rewards, scores, score_seq)

    def rank(tokens, sequences, add_up):
        local = score_seq[tokens] - score_seq[tokens][0]
        return reinforce_plus_plus_advantages(rewards[tokens], scores[sequences], local, add_up=add_up)

    torch.testing.assert_close(_on_two_ranks(rank), whole, rtol=1e-12, atol=1e-12)
    # the trap: each rank on its own finds something bad among the best completions of all
    alone = rank(slice(3, 5), slice(2, 4), None)
    assert alone[0] < 0 < whole[3]


def test_whitened_advantages_have_no_mean_and_unit_deviation():
    generator = torch.Generator().manual_seed(0)
    scores = 5 + 3 * torch.randn(40, dtype=torch.float64, generator=generator)
    advantages = reinforce_plus_plus_advantages(torch.zeros_like(scores), scores, torch.arange(40))
    total, squares, count = moments(advantages)
    assert total.abs() < 1e-12
    assert squares / (count - 1) == pytest.approx(1)


@pytest.mark.parametrize("size", [1e-15, 1.0, 1e19, 1e30])
def test_advantages_do_not_depend_on_the_size_of_scores_that_float32_can_hold(size):
    scores, group = torch.tensor([1.0, -1.0, 1.0, -1.0]) * size, torch.zeros(4, dtype=torch.int64)
    wanted = torch.tensor([1.0, -1.0, 1.0, -1.0]) * 3**0.5 / 2
    torch.testing.assert_close(group_advantages(scores, group, eps=0.0), wanted)


def test_equal_scores_teach_nothing_on_any_road():
    scores, group = double(0.1, 0.1, 0.1), torch.tensor([0, 0, 0])
    assert reinforce_plus_plus_advantages(double(0, 0, 0), scores, torch.arange(3)).abs().max() < 1e-12
    assert reinforce_plus_plus_advantages(double(0, 0, 0), scores, torch.arange(3), group=group).tolist() == [0, 0, 0]
    assert batch_std_advantages(scores, group).tolist() == [0, 0, 0]


def test_a_score_without_a_token_is_refused():
    with pytest.raises(DataError, match=r"Sequences \[1\] of this batch"):
        reinforce_plus_plus_advantages(double(0, 0), double(1, 2, 3), torch.tensor([0, 2]))


def test_the_deviation_of_the_batch_by_hand():
    # centered 1, -1, 3, -3: squares sum to 20, over 3; a group of its own deviation would give all four the same size
    scores, group = double(5, 3, 13, 7), torch.tensor([0, 0, 1, 1])
    expected = double(1, -1, 3, -3) / (20 / 3) ** 0.5
    torch.testing.assert_close(batch_std_advantages(scores, group, eps=0.0), expected)
    torch.testing.assert_close(group_advantages(scores, group, eps=0.0), double(1, -1, 1, -1) / 2**0.5)


def test_the_deviation_of_the_batch_is_that_of_all_ranks():
    scores, group = double(5, 3, 13, 7), torch.tensor([0, 0, 1, 1])

    def rank(_, sequences, add_up):
        return batch_std_advantages(scores[sequences], group[sequences], add_up=add_up)

    torch.testing.assert_close(_on_two_ranks(rank), batch_std_advantages(scores, group), rtol=1e-12, atol=0)


def test_the_greedy_baseline_by_hand():
    advantages = greedy_baseline_advantages(double(1, 5, 2), double(3, 2), torch.tensor([0, 0, 1]))
    assert advantages.tolist() == [-2, 2, 0]


def test_leaving_one_out_of_two_is_the_difference_of_the_two():
    advantages = leave_one_out_advantages(double(1, 5), torch.tensor([0, 0]))
    assert advantages.tolist() == [-4, 4]


@PATIENT
@given(st.permutations(range(6)), st.floats(-5, 5))
def test_order_and_a_shift_of_scores_change_no_advantage_but_place(order: list[int], shift: float):
    scores, group = double(0.3, 2, -1, 4, 0.5, 0.5), torch.tensor([0, 1, 0, 1, 2, 2])
    greedy = double(1, -1, 0.5)

    def all_of(scores: torch.Tensor, group: torch.Tensor, greedy: torch.Tensor) -> torch.Tensor:
        return torch.stack(
            [
                group_advantages(scores, group),
                leave_one_out_advantages(scores, group),
                batch_std_advantages(scores, group),
                greedy_baseline_advantages(scores, greedy, group),
                reinforce_plus_plus_advantages(torch.zeros_like(scores), scores, torch.arange(6)),
                reinforce_plus_plus_advantages(torch.zeros_like(scores), scores, torch.arange(6), group=group),
            ]
        )

    moved = all_of(scores[order] + shift, group[order], greedy + shift)
    torch.testing.assert_close(moved, all_of(scores, group, greedy)[:, order], rtol=1e-8, atol=1e-8)


def test_greedy_scores_of_other_prompts_and_a_lambda_without_share_are_refused():
    with pytest.raises(ConfigError, match=r"0 to 2.*scores of 2"):
        greedy_baseline_advantages(double(1, 2), double(0, 0), torch.tensor([0, 2]))
    with pytest.raises(ConfigError, match=r"alpha .*is 0"):
        length_adaptive_lambda(torch.tensor([3]), alpha=0)
