from __future__ import annotations

import pytest
import torch

from rlhf.errors import ConfigError, TrainingError, UnknownNameError
from rlhf.losses.aggregation import AGGREGATIONS, aggregate, constant_mean, sequence_mean, token_mean
from tests.unit.losses.helpers import check_parts_add_up, double, gradient

LOSSES = (1.0, 2.0, 3.0, 10.0)
SCORE_SEQ = torch.tensor([0, 0, 0, 1])


def test_the_three_by_hand():
    losses = double(*LOSSES)
    assert token_mean(losses, num_tokens=4) == 4  # 16 / 4
    assert sequence_mean(losses, SCORE_SEQ, num_sequences=2) == 6  # (2 + 10) / 2
    assert constant_mean(losses, num_sequences=2, constant=5) == 1.6  # 16 / (2 * 5)


@pytest.mark.parametrize(
    ("how", "weights"),
    [("token", [1 / 4] * 4), ("sequence", [1 / 6, 1 / 6, 1 / 6, 1 / 2]), ("constant", [1 / 10] * 4)],
)
def test_each_weighs_a_token_of_a_long_completion_in_its_own_way(how: str, weights: list[float]):
    losses = double(*LOSSES, grad=True)
    loss = aggregate(losses, SCORE_SEQ, how=how, num_tokens=4, num_sequences=2, constant=5)
    torch.testing.assert_close(gradient(loss, losses)[0], double(*weights))


def test_all_agree_where_every_completion_has_the_constant_length():
    losses, score_seq = double(1, 2, 3, 4), torch.tensor([0, 0, 1, 1])
    actual = {
        how: aggregate(losses, score_seq, how=how, num_tokens=4, num_sequences=2, constant=2).item()
        for how in AGGREGATIONS
    }
    assert actual == dict.fromkeys(AGGREGATIONS, 2.5)


@pytest.mark.parametrize("how", AGGREGATIONS)
def test_any_split_of_a_batch_sums_to_the_same(how: str):
    check_parts_add_up(
        lambda logprobs, part, whole: aggregate(
            -logprobs, part.score_seq,
            how=how, num_tokens=whole.num_scored, num_sequences=whole.num_sequences, constant=4,
        )
    )  # fmt: skip


@pytest.mark.parametrize("how", AGGREGATIONS)
def test_a_part_without_tokens_adds_zero_and_no_nan(how: str):
    losses = double(grad=True)
    loss = aggregate(losses, torch.tensor([], dtype=torch.int64), how=how, num_tokens=4, num_sequences=2, constant=5)
    assert loss.item() == 0
    assert gradient(loss, losses)[0].shape == (0,)


def test_a_sequence_without_tokens_adds_zero_to_the_sequence_mean():
    losses = double(4, 8, grad=True)
    loss = sequence_mean(losses, torch.tensor([0, 2]), num_sequences=3)
    assert loss.item() == 4
    torch.testing.assert_close(gradient(loss, losses)[0], double(1 / 3, 1 / 3))


@pytest.mark.parametrize("how", AGGREGATIONS)
def test_a_step_with_nothing_to_learn_from_is_an_error(how: str):
    with pytest.raises(TrainingError, match="has 0 s"):
        aggregate(double(), torch.tensor([], dtype=torch.int64), how=how, num_tokens=0, num_sequences=0, constant=5)


def test_an_unknown_aggregation_is_named_with_the_nearest():
    with pytest.raises(UnknownNameError, match=r"'tokens'.*'token'"):
        aggregate(double(1), torch.tensor([0]), how="tokens", num_tokens=1, num_sequences=1)


@pytest.mark.parametrize("constant", [None, 0, -3])
def test_the_constant_must_be_given_and_positive(constant: float | None):
    with pytest.raises(ConfigError, match="constant"):
        aggregate(double(1), torch.tensor([0]), how="constant", num_tokens=1, num_sequences=1, constant=constant)


def test_the_bias_by_length_of_grpo_is_there_under_its_name_and_gone_under_the_others():
    # two wrong completions of 1 and 4 tokens, every token as wrong: how hard is a token pushed?
    score_seq = torch.tensor([0, 1, 1, 1, 1])

    def push(how: str) -> float:
        losses = torch.ones(5, dtype=torch.float64, requires_grad=True)
        total = aggregate(losses, score_seq, how=how, num_tokens=5, num_sequences=2, constant=4)
        (grad,) = torch.autograd.grad(total, losses)
        return (grad[0] / grad[1]).item()

    assert {how: push(how) for how in AGGREGATIONS} == {"token": 1, "sequence": 4, "constant": 1}
