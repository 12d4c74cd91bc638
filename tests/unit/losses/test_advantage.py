from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf.errors import ConfigError, DataError
from rlhf.losses.advantage import add_score_at_last_token, gae, group_advantages, leave_one_out_advantages
from tests.unit.losses.helpers import double

REWARDS = double(0, 0, 1)
VALUES = double(0.5, 0.6, 0.7)
ONE_SEQUENCE = torch.zeros(3, dtype=torch.int64)


def test_gae_by_hand():
    # gamma 0.9, lambda 0.5: deltas 0.9 * 0.6 - 0.5, 0.9 * 0.7 - 0.6, 1 - 0.7
    # advantages 0.3; 0.03 + 0.45 * 0.3; 0.04 + 0.45 * 0.165
    advantages, returns = gae(REWARDS, VALUES, ONE_SEQUENCE, gamma=0.9, lam=0.5)
    torch.testing.assert_close(advantages, double(0.11425, 0.165, 0.3))
    torch.testing.assert_close(returns, double(0.61425, 0.765, 1.0))


def test_a_truncated_sequence_expects_what_the_critic_expects_after_it():
    # last delta 1 + 0.9 * 2 - 0.7 = 2.1; a sequence that ended expects nothing
    score_seq = torch.tensor([0, 0, 0, 1])
    arguments = (double(0, 0, 1, 1), double(0.5, 0.6, 0.7, 0.7), score_seq)
    advantages, _ = gae(*arguments, gamma=0.9, lam=0.0, bootstrap_values=double(2, 0))
    torch.testing.assert_close(advantages[2:], double(2.1, 0.3))


def test_with_lambda_and_gamma_one_returns_are_rewards_to_go_whatever_the_critic_says():
    rewards, score_seq = double(1, 2, 4, 8, 16), torch.tensor([0, 0, 0, 1, 1])
    values = torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    _, returns = gae(rewards, values, score_seq, gamma=1.0, lam=1.0)
    torch.testing.assert_close(returns, double(7, 6, 4, 24, 16))


def test_a_critic_that_is_right_leaves_no_advantage():
    rewards, score_seq = double(1, 2, 4), ONE_SEQUENCE
    for lam in (0.0, 0.5, 0.95):
        advantages, _ = gae(rewards, double(7, 6, 4), score_seq, gamma=1.0, lam=lam)
        assert advantages.abs().max() == 0


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.integers(0, 99))
def test_sequences_side_by_side_are_sequences_apart(lengths: list[int], seed: int):
    score_seq = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    rewards, values = torch.randn(2, len(score_seq), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    together, returns = gae(rewards, values, score_seq, gamma=0.99, lam=0.9)
    apart = [
        gae(r, v, torch.zeros(len(r), dtype=torch.int64), gamma=0.99, lam=0.9)[0]
        for r, v in zip(rewards.split(lengths), values.split(lengths), strict=True)
    ]
    assert torch.equal(together, torch.cat(apart))
    assert torch.equal(returns, together + values)


def test_a_broken_value_stays_in_its_sequence():
    advantages, _ = gae(double(1, 1, 1), double(1, math.nan, 1), torch.tensor([0, 1, 2]), gamma=1.0, lam=1.0)
    assert advantages.isnan().tolist() == [False, True, False]


def test_numbers_of_sequences_may_have_gaps():
    after = double(100, 3, 200, 300, 5)  # the values after sequences 0, 2 and 3 belong to nobody here
    advantages, _ = gae(double(1, 2), double(0, 0), torch.tensor([1, 4]), gamma=1.0, lam=1.0, bootstrap_values=after)
    assert advantages.tolist() == [4, 7]


def test_credit_carries_no_gradient_and_changes_no_input():
    rewards, values = REWARDS.clone(), VALUES.clone().requires_grad_()
    scores = double(5, grad=True)
    shaped = add_score_at_last_token(rewards, scores, ONE_SEQUENCE)
    advantages, returns = gae(shaped, values, ONE_SEQUENCE, gamma=1.0, lam=0.95)
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
    _, returns = gae(shaped, torch.zeros(4, dtype=torch.float64), score_seq, gamma=1.0, lam=1.0)
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
        gae(REWARDS, double(1), ONE_SEQUENCE, gamma=1.0, lam=1.0)
    with pytest.raises(ConfigError, match=r"shapes \[2\], \[3\]"):
        group_advantages(double(1, 2), ONE_SEQUENCE)
