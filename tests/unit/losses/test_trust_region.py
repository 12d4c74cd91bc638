from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf.errors import ConfigError, TrainingError
from rlhf.losses.kl import exact_kl
from rlhf.losses.policy import clipped_policy_loss
from rlhf.losses.trust_region import conjugate_gradient, fisher_product, line_search, trust_region_step
from tests.unit.losses.helpers import double

PATIENT = settings(deadline=None)
"""The first example may have to import half of torch, which takes a second on a busy machine."""


def _positive_definite(size: int, seed: int = 0) -> torch.Tensor:
    root = torch.randn(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return root @ root.T + torch.eye(size, dtype=torch.float64)


def test_two_equations_by_hand():
    # 4x + y = 1, x + 3y = 2: x = 1/11, y = 7/11, in as many iterations as there are unknowns
    solution = conjugate_gradient(lambda v: double(4 * v[0] + v[1], v[0] + 3 * v[1]), double(1, 2), tolerance=1e-12)
    torch.testing.assert_close(solution.solution, double(1 / 11, 7 / 11))
    assert solution.num_iterations == 2
    assert solution.residual < 1e-12


@PATIENT
@given(st.integers(1, 8), st.integers(0, 999))
def test_it_solves_what_is_positive_definite(size: int, seed: int):
    matrix, b = _positive_definite(size, seed), torch.arange(1.0, size + 1, dtype=torch.float64)
    solution = conjugate_gradient(lambda v: matrix @ v, b, max_iterations=50, tolerance=1e-12)
    torch.testing.assert_close(matrix @ solution.solution, b, rtol=1e-9, atol=1e-9)


def test_fewer_iterations_leave_a_residual_and_say_so():
    matrix, b = _positive_definite(30), torch.ones(30, dtype=torch.float64)
    solution = conjugate_gradient(lambda v: matrix @ v, b, max_iterations=5)
    assert solution.num_iterations == 5
    assert solution.residual == pytest.approx(((b - matrix @ solution.solution).norm() / b.norm()).item(), rel=1e-6)
    # what it has is already an ascent direction
    assert solution.solution @ b > 0


def test_nothing_to_solve_takes_no_product():
    solution = conjugate_gradient(lambda v: pytest.fail("asked for a product"), double(0, 0, 0))
    assert (solution.solution.tolist(), solution.residual, solution.num_iterations) == ([0, 0, 0], 0, 0)


@pytest.mark.parametrize(("matvec", "curvature"), [(lambda v: -v, "-5"), (lambda v: v * math.nan, "nan")])
def test_a_curvature_that_is_not_positive_is_refused(matvec, curvature: str):
    with pytest.raises(TrainingError, match=rf"direction 1 .* is {curvature}; .*damping"):
        conjugate_gradient(matvec, double(1, 2))


def test_a_gradient_that_is_not_finite_or_not_flat_is_refused():
    with pytest.raises(TrainingError, match="not finite"):
        conjugate_gradient(lambda v: v, double(1, math.nan))
    with pytest.raises(ConfigError, match=r"shape \[1, 2\]"):
        conjugate_gradient(lambda v: v, double(1, 2)[None])


def test_the_step_spends_exactly_the_kl_allowed_in_the_quadratic_model_by_hand():
    # s' F s = 2 * 9 = 18; sqrt(2 * 0.01 / 18) = 1 / 30; the model's KL, half of step' F step, is 0.01
    step = trust_region_step(double(3, 0), lambda v: 2 * v, max_kl=0.01)
    torch.testing.assert_close(step, double(0.1, 0))


def test_no_direction_and_no_kl_give_no_step():
    with pytest.raises(TrainingError, match=r"is 0; .*positive"):
        trust_region_step(double(0, 0), lambda v: v, max_kl=0.01)
    with pytest.raises(ConfigError, match="max_kl is 0"):
        trust_region_step(double(1, 0), lambda v: v, max_kl=0)


class Quadratic:
    """Improvement f - curvature f^2 and KL kl f^2 of a share f of the step; counts the calls."""

    def __init__(self, curvature: float, kl: float) -> None:
        self.curvature, self.kl = curvature, kl
        self.asked: list[float] = []

    def __call__(self, fraction: float) -> tuple[float, float]:
        self.asked.append(fraction)
        return fraction - self.curvature * fraction**2, self.kl * fraction**2


def test_a_step_that_keeps_its_promise_is_taken_whole():
    step = line_search(Quadratic(0.1, 0.01), expected_improvement=1.0, max_kl=0.01)
    assert step == (1.0, 0.9, 0.01, 1)


def test_a_step_is_halved_until_surrogate_and_kl_both_agree_by_hand():
    # kl: 0.1, 0.025, 0.00625, within 0.01 from a quarter on. Surrogate alone: 1 - 3 < 0, a half: -0.25, a quarter: 0.0625
    assert line_search(Quadratic(0.0, 0.1), expected_improvement=1.0, max_kl=0.01).fraction == 0.25
    assert line_search(Quadratic(3.0, 0.0), expected_improvement=1.0, max_kl=0.01).fraction == 0.25
    # a fifth of what a quarter promises (0.25) is 0.05: enough; a third is not, and an eighth has 0.078 of its 0.042
    assert line_search(Quadratic(3.0, 0.0), expected_improvement=1.0, max_kl=0.01, min_share=0.2).fraction == 0.25
    assert line_search(Quadratic(3.0, 0.0), expected_improvement=1.0, max_kl=0.01, min_share=0.34).fraction == 0.125


@pytest.mark.parametrize("result", [(math.nan, 0.0), (1.0, math.nan), (-1.0, 0.0), (1.0, 1.0)])
def test_where_no_try_is_good_enough_the_policy_stays(result: tuple[float, float]):
    asked: list[float] = []
    step = line_search(
        lambda fraction: asked.append(fraction) or result, expected_improvement=1.0, max_kl=0.01, max_tries=3
    )
    assert step == (0.0, 0.0, 0.0, 3)
    assert asked == [1.0, 0.5, 0.25]


def test_a_search_without_tries_or_without_a_promise_is_refused():
    for wrong in ({"shrink": 1.0}, {"max_tries": 0}):
        with pytest.raises(ConfigError, match="between 0 and 1"):
            line_search(Quadratic(0, 0), expected_improvement=1.0, max_kl=0.01, **wrong)
    for expected in (0.0, -1.0, math.nan):
        with pytest.raises(TrainingError, match="sign of the gradient"):
            line_search(Quadratic(0, 0), expected_improvement=expected, max_kl=0.01)


def _policy() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits [states, actions] made of two parameters: weights [3, 4] and a bias [4] shared by all states."""
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(5, 3, dtype=torch.float64, generator=generator)
    weights = torch.randn(3, 4, dtype=torch.float64, generator=generator).requires_grad_()
    return states, weights, torch.zeros(4, dtype=torch.float64, requires_grad=True)


def test_fisher_products_are_those_of_the_covariance_of_the_score_by_hand():
    # one state, logits themselves as parameters: F = diag(p) - p p'
    logits = double(0.2, -1.0, 0.7, grad=True)
    p = logits.detach().softmax(-1)
    fisher = torch.diag(p) - p.outer(p)
    product = fisher_product(exact_kl(logits.detach(), logits), [logits], damping=0.0)
    damped = fisher_product(exact_kl(logits.detach(), logits), [logits], damping=0.5)
    for v in torch.eye(3, dtype=torch.float64):
        torch.testing.assert_close(product(v), fisher @ v, rtol=1e-10, atol=1e-14)
        torch.testing.assert_close(damped(v), fisher @ v + 0.5 * v, rtol=1e-10, atol=1e-14)


def test_fisher_products_over_several_parameters_are_those_of_the_hessian():
    states, weights, bias = _policy()
    unused = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    old = (states @ weights + bias).detach()

    def kl(flat: torch.Tensor) -> torch.Tensor:
        return exact_kl(old, states @ flat[:12].view(3, 4) + flat[12:16]).mean()

    at = torch.cat([weights.detach().flatten(), bias.detach()])
    hessian = torch.autograd.functional.hessian(kl, at)
    product = fisher_product(exact_kl(old, states @ weights + bias).mean(), [weights, bias, unused], damping=0.0)
    v = torch.randn(18, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(product(v)[:16], hessian @ v[:16], rtol=1e-9, atol=1e-12)
    assert product(v)[16:].tolist() == [0, 0]


@pytest.mark.parametrize("max_kl", [1e-4, 1e-2])
def test_a_whole_update_improves_the_policy_and_keeps_the_kl(max_kl: float):
    states, weights, bias = _policy()
    parameters = [weights, bias]
    old = (states @ weights + bias).detach()
    actions = torch.arange(5) % 4
    advantages = double(1, -1, 2, 0.5, -2)

    def surrogate(logits: torch.Tensor) -> torch.Tensor:
        rows = torch.arange(5)
        return -clipped_policy_loss(
            logits.log_softmax(-1)[rows, actions], old.log_softmax(-1)[rows, actions], advantages,
            clip_low=1.0, clip_high=1e6,
        ).mean()  # fmt: skip

    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(surrogate(states @ weights + bias), parameters)])
    product = fisher_product(exact_kl(old, states @ weights + bias).mean(), parameters, damping=1e-3)
    step = trust_region_step(conjugate_gradient(product, gradient).solution, product, max_kl=max_kl)
    before = surrogate(old).item()

    def measured(fraction: float) -> tuple[float, float]:
        moved = states @ (weights + fraction * step[:12].view(3, 4)) + bias + fraction * step[12:]
        return surrogate(moved).item() - before, exact_kl(old, moved).mean().item()

    actual = line_search(measured, expected_improvement=(gradient @ step).item(), max_kl=max_kl)
    assert actual.fraction > 0
    assert actual.improvement > 0
    assert max_kl / 10 < actual.kl <= max_kl
    # the natural direction buys more for the same KL than the plain gradient does
    scaled = gradient * math.sqrt(2 * max_kl / (gradient @ product(gradient)).item())
    assert gradient @ step > gradient @ scaled
