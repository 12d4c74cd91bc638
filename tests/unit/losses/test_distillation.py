from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf.errors import ConfigError
from rlhf.losses.aggregation import token_mean
from rlhf.losses.distillation import distillation_loss, generalized_jsd
from rlhf.losses.kl import exact_kl
from tests.unit.losses.helpers import (
    VOCABULARY,
    check_parts_add_up,
    check_unscored_tokens_cannot_reach,
    double,
    gradient,
)

PATIENT = settings(deadline=None)
"""The first example may have to import half of torch, which takes a second on a busy machine."""

BETAS = pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 0.9, 1.0])


def _logits(seed: int, *shape: int) -> torch.Tensor:
    return 2 * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_two_coins_by_hand():
    # teacher (3/4, 1/4), student (1/4, 3/4), mixture of halves (1/2, 1/2): KL of either to it is
    # 3/4 log(3/2) + 1/4 log(1/2) = 0.130812; KL of one to the other is 1/2 log 3 = 0.549306
    teacher, student = double(0.75, 0.25).log(), double(0.25, 0.75).log()
    divergences = [generalized_jsd(student, teacher, beta=beta).item() for beta in (0, 0.5, 1)]
    assert divergences == pytest.approx([0.5493061443340549, 0.1308120359, 0.5493061443340549], rel=1e-9)


def test_a_quarter_by_hand():
    # teacher certain of token 0, student even; mixture 1/4 (1, 0) + 3/4 (1/2, 1/2) = (5/8, 3/8)
    # 1/4 log(8/5) + 3/4 (1/2 log(4/5) + 1/2 log(4/3))
    expected = 0.25 * math.log(1.6) + 0.375 * (math.log(0.8) + math.log(4 / 3))
    divergence = generalized_jsd(double(0, 0), double(0, -math.inf), beta=0.25)
    assert divergence.item() == pytest.approx(expected, rel=1e-12)


@PATIENT
@given(st.integers(0, 999), st.floats(0.01, 0.99))
def test_it_is_a_bounded_divergence_and_symmetric_where_beta_and_sides_are_swapped(seed: int, beta: float):
    student, teacher = _logits(seed, 2, 5)
    there = generalized_jsd(student, teacher, beta=beta)
    assert 0 < there < math.log(2)
    torch.testing.assert_close(generalized_jsd(teacher, student, beta=1 - beta), there, rtol=1e-9, atol=1e-12)


def test_at_one_half_student_and_teacher_may_be_swapped():
    student, teacher = _logits(3, 2, 4, 9)
    torch.testing.assert_close(
        generalized_jsd(student, teacher, beta=0.5), generalized_jsd(teacher, student, beta=0.5), rtol=1e-12, atol=0
    )


def test_the_ends_are_the_divergences_of_one_from_the_other():
    student, teacher = _logits(3, 2, 4, 9)
    assert torch.equal(generalized_jsd(student, teacher, beta=0), exact_kl(teacher, student))
    assert torch.equal(generalized_jsd(student, teacher, beta=1), exact_kl(student, teacher))


def test_towards_the_ends_it_tends_to_them_as_beta_does():
    student, teacher = _logits(3, 2, 4, 9)
    beta = 1e-6
    forward = generalized_jsd(student, teacher, beta=beta) / beta
    reverse = generalized_jsd(student, teacher, beta=1 - beta) / beta
    torch.testing.assert_close(forward, exact_kl(teacher, student), rtol=1e-3, atol=0)
    torch.testing.assert_close(reverse, exact_kl(student, teacher), rtol=1e-3, atol=0)


@BETAS
def test_equal_distributions_do_not_diverge_and_do_not_pull(beta: float):
    student = _logits(0, 3, 7).requires_grad_()
    loss = generalized_jsd(student, student.detach() + 5, beta=beta)  # a shift of all logits is no difference
    assert loss.abs().max() < 1e-14
    assert gradient(loss, student)[0].abs().max() < 1e-14


@BETAS
def test_gradients_are_those_of_finite_differences_and_the_teacher_has_none(beta: float):
    student, teacher = _logits(1, 3, 6).requires_grad_(), _logits(2, 3, 6).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: generalized_jsd(x, teacher, beta=beta), student)
    assert torch.autograd.grad(generalized_jsd(student, teacher, beta=beta).sum(), teacher, allow_unused=True) == (
        None,
    )


@BETAS
def test_descent_brings_the_student_to_the_teacher(beta: float):
    student, teacher = _logits(1, 6).requires_grad_(), _logits(2, 6)
    before = generalized_jsd(student, teacher, beta=beta)
    after = generalized_jsd(student - 0.05 * gradient(before, student)[0], teacher, beta=beta)
    assert after < before


@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9])
def test_tokens_barred_to_both_or_to_one_add_what_they_should(beta: float):
    student = torch.tensor([0.0, 1.0, -math.inf, -math.inf], requires_grad=True)
    teacher = torch.tensor([1.0, -math.inf, 0.0, -math.inf])
    loss = generalized_jsd(student, teacher, beta=beta)
    (grad,) = gradient(loss, student)
    assert loss.isfinite()
    assert grad[:2].isfinite().all()
    assert grad[:2].abs().min() > 0
    assert grad[2:].nan_to_num(0).tolist() == [0, 0]
    # disjoint supports: as far apart as can be, -(b log b + (1 - b) log(1 - b))
    apart = generalized_jsd(double(0, -math.inf), double(-math.inf, 0), beta=beta)
    assert apart.item() == pytest.approx(-(beta * math.log(beta) + (1 - beta) * math.log(1 - beta)))


@BETAS
def test_logits_of_a_thousand_stay_finite_in_float32(beta: float):
    student = torch.tensor([1000.0, -1000.0, 0.0]).requires_grad_()
    loss = generalized_jsd(student, torch.tensor([-1000.0, 1000.0, 0.0]), beta=beta)
    assert loss.isfinite()
    assert gradient(loss, student)[0].isfinite().all()


def test_half_precision_is_measured_in_single():
    student, teacher = _logits(0, 2, 3, 50)
    exact = generalized_jsd(student.bfloat16().double(), teacher.bfloat16().double(), beta=0.5)
    divergence = generalized_jsd(student.bfloat16(), teacher.bfloat16(), beta=0.5)
    assert divergence.dtype == torch.float32
    torch.testing.assert_close(divergence.double(), exact, rtol=1e-5, atol=1e-7)


def _heads() -> tuple[torch.Tensor, torch.Tensor]:
    student, teacher = _logits(5, 2, VOCABULARY, 4)
    return student.requires_grad_(), teacher


@BETAS
@pytest.mark.parametrize("tile_tokens", [1, 3, 11, 100])
def test_tiles_give_what_the_whole_gives_in_value_and_in_gradient(beta: float, tile_tokens: int):
    head, teacher_head = _heads()
    hidden, teacher_hidden = _logits(6, 11, 4).requires_grad_(), _logits(7, 11, 4)
    whole = generalized_jsd(hidden @ head.T, teacher_hidden @ teacher_head.T, beta=beta)
    tiled = distillation_loss(
        hidden, teacher_hidden, lambda h: h @ head.T, lambda h: h @ teacher_head.T, beta=beta, tile_tokens=tile_tokens
    )
    torch.testing.assert_close(tiled, whole, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(gradient(tiled, hidden, head), gradient(whole, hidden, head), rtol=1e-10, atol=1e-14)


def test_logits_are_made_for_one_tile_at_a_time():
    head, teacher_head = _heads()
    sizes = []

    def student(rows: torch.Tensor) -> torch.Tensor:
        sizes.append(len(rows))
        return rows @ head.T

    hidden = _logits(6, 11, 4).requires_grad_()
    loss = distillation_loss(hidden, _logits(7, 11, 4), student, lambda h: h @ teacher_head.T, beta=0.5, tile_tokens=4)
    assert sizes == [4, 4, 3]
    loss.sum().backward()
    assert sorted(sizes) == [3, 3, 4, 4, 4, 4], "made again in the backward pass, never kept"


def test_an_unscored_token_cannot_reach_it():
    def loss(logprobs, batch):
        # a distribution of two outcomes: the sampled token, and everything else
        student = torch.stack([logprobs, torch.log1p(-logprobs.exp())], dim=-1)
        return generalized_jsd(student, torch.zeros_like(student), beta=0.3)

    check_unscored_tokens_cannot_reach(loss)


def test_two_micro_batches_equal_one():
    def share(logprobs, part, whole):
        student = torch.stack([logprobs, torch.log1p(-logprobs.exp())], dim=-1)
        losses = generalized_jsd(student, torch.zeros_like(student), beta=0.3)
        return token_mean(losses, num_tokens=whole.num_scored)

    check_parts_add_up(share)


@pytest.mark.parametrize("beta", [-0.1, 1.1])
def test_a_beta_out_of_range_is_refused(beta: float):
    with pytest.raises(ConfigError, match=rf"is {beta}; .*\[0, 1\]"):
        generalized_jsd(double(0, 0), double(0, 0), beta=beta)


def test_another_vocabulary_is_refused():
    with pytest.raises(ConfigError, match=r"shapes \[3, 7\] and \[3, 8\].*same vocabulary"):
        generalized_jsd(_logits(0, 3, 7), _logits(0, 3, 8), beta=0.5)


def test_hidden_states_of_other_tokens_and_empty_tiles_are_refused():
    head = torch.nn.Identity()
    with pytest.raises(ConfigError, match=r"student has 3 .*teacher 4"):
        distillation_loss(_logits(0, 3, 7), _logits(0, 4, 7), head, head, beta=0.5)
    with pytest.raises(ConfigError, match="tile_tokens is 0"):
        distillation_loss(_logits(0, 3, 7), _logits(0, 3, 7), head, head, beta=0.5, tile_tokens=0)


def test_no_tokens_make_no_tile_and_no_loss():
    head = torch.nn.Linear(4, 3, dtype=torch.float64)
    assert distillation_loss(_logits(0, 0, 4), _logits(1, 0, 4), head, head, beta=0.5).shape == (0,)
