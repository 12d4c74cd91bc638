"""The natural-gradient step of TRPO, in terms of functions: no model, no distribution, no flat parameter vector kept.

    1. direction = conjugate_gradient(fisher, gradient).solution       F^-1 g, without ever building F
    2. step      = trust_region_step(direction, fisher, max_kl=...)    as long as the quadratic model allows
    3. found     = line_search(try_fraction, ...)                      shortened until the exact KL agrees

``fisher`` maps a vector [D] to F v, F the Hessian of the mean exact KL(old || new) at the old parameters;
``fisher_product`` makes it from that KL by differentiating twice. Add damping there.

Source of the whole: Schulman et al. 2015 (TRPO), appendix C, arXiv:1502.05477.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rlhf.errors import ConfigError, TrainingError


class Solution(NamedTuple):
    """What ``conjugate_gradient`` found."""

    solution: Tensor
    """[D]."""
    residual: float
    """Norm of b - A x over the norm of b; 0 for b = 0."""
    num_iterations: int


class StepFound(NamedTuple):
    """What ``line_search`` found."""

    fraction: float
    """Share of the full step to take; 0 where no try was good enough, so that the old parameters stay."""
    improvement: float
    """Measured improvement of the surrogate there; 0 for no step."""
    kl: float
    """Measured KL there, nats; 0 for no step."""
    num_tries: int


def fisher_product(kl: Tensor, parameters: Sequence[Tensor], *, damping: float = 0.1) -> Callable[[Tensor], Tensor]:
    """The map v -> (F + damping I) v, F the Hessian of a KL that is 0 at the present parameters.

    Two backward passes through the same graph (Pearlmutter 1994): as dear as two gradients, whatever D is.

    Args:
        kl: 0-dimensional mean KL(old || new) with the graph of the new policy at the old parameters.
        parameters: What F is taken over; [D] is all of them end to end, in this order.
        damping: Added to the diagonal; without it F is singular wherever a parameter does not matter.

    Returns:
        A function of [D], usable any number of times while the graph lives.
    """
    gradient = _flat(torch.autograd.grad(kl, parameters, create_graph=True, allow_unused=True), parameters)

    def product(vector: Tensor) -> Tensor:
        with torch.enable_grad():  # the solver that asks for products runs without
            along = (gradient * vector.detach()).sum()
        second = torch.autograd.grad(along, parameters, retain_graph=True, allow_unused=True)
        return _flat(second, parameters).detach() + damping * vector

    return product


@torch.no_grad()
def conjugate_gradient(
    matvec: Callable[[Tensor], Tensor], b: Tensor, *, max_iterations: int = 10, tolerance: float = 1e-5
) -> Solution:
    """Approximate solution of A x = b, for a symmetric positive definite A known by its products.

    Exact after D iterations but for rounding; 10 give a good direction in any dimension. Each costs one product.

    Source: Hestenes and Stiefel 1952; 10 iterations: Schulman et al. 2015, appendix C.

    Args:
        matvec: [D] -> [D], v to A v.
        b: [D].
        max_iterations: Products to spend, at most.
        tolerance: Relative residual that is small enough.

    Returns:
        See ``Solution``.

    Raises:
        TrainingError: A curvature is not positive, or not finite: A is not positive definite.
    """
    if b.ndim != 1:
        raise ConfigError(f"Conjugate gradients take one flat vector; got shape {list(b.shape)}.")
    if not bool(b.isfinite().all()):
        raise TrainingError("The right side of the conjugate gradients, a gradient, holds a number that is not finite.")
    x, residual, direction = torch.zeros_like(b), b.clone(), b.clone()
    size = start = float(b.dot(b))
    iteration = 0
    while iteration < max_iterations and size > start * tolerance**2:
        product = matvec(direction)
        curvature = float(direction.dot(product))
        if not 0 < curvature < math.inf:
            raise TrainingError(
                f"The curvature of the KL along direction {iteration + 1} of the conjugate gradients is {curvature:g}; it "
                "must be positive and finite. Raise the damping, or check that the KL is finite."
            )
        length = size / curvature
        x += length * direction
        residual -= length * product
        before, size = size, float(residual.dot(residual))
        direction = residual + (size / before) * direction
        iteration += 1
    return Solution(x, math.sqrt(size / start) if start else 0.0, iteration)


@torch.no_grad()
def trust_region_step(direction: Tensor, matvec: Callable[[Tensor], Tensor], *, max_kl: float) -> Tensor:
    """The longest step along a direction that the quadratic model of the KL allows.

        sqrt(2 max_kl / (s' F s)) * s

    Args:
        direction: [D] s, an approximate F^-1 g.
        matvec: [D] -> [D], v to F v.
        max_kl: Nats that the step may cost; 0.01 in the paper.

    Returns:
        [D], to be added where g is the gradient of what is to grow.
    """
    if max_kl <= 0:
        raise ConfigError(f"max_kl is {max_kl}; a step needs a KL above 0 to spend, such as 0.01.")
    curvature = float(direction.dot(matvec(direction)))
    if not 0 < curvature < math.inf:
        raise TrainingError(
            f"The curvature of the KL along the step is {curvature:g}; it must be positive and finite. A gradient of 0 "
            "(no completion better than another) gives no direction at all: skip the update then."
        )
    return direction * math.sqrt(2 * max_kl / curvature)


def line_search(
    try_fraction: Callable[[float], tuple[float, float]],
    *,
    expected_improvement: float,
    max_kl: float,
    min_share: float = 0.1,
    shrink: float = 0.5,
    max_tries: int = 10,
) -> StepFound:
    """The first of the steps 1, shrink, shrink^2, ... that keeps its promise: surrogate better, KL within bounds.

    The quadratic model is right near the old policy only; here the real surrogate and the exact KL are measured. A try
    that is not finite is a failed one.

    Args:
        try_fraction: Measures a share of the full step: (improvement of the surrogate, mean KL(old || new) in nats).
        expected_improvement: Improvement of the full step to first order, gradient . step; above 0.
        max_kl: Nats.
        min_share: Share of the expected improvement, at that fraction, that must be there.
        shrink: Factor from one try to the next, between 0 and 1.
        max_tries: Measurements to spend, at most.

    Returns:
        See ``StepFound``; leaves it to the caller to set the parameters.
    """
    if not 0 < shrink < 1 or max_tries < 1:
        raise ConfigError(
            f"A line search shrinks the step by a factor between 0 and 1 in at least one try; got {shrink} and {max_tries}."
        )
    if not 0 < expected_improvement < math.inf:
        raise TrainingError(
            f"The step promises an improvement of {expected_improvement:g}; it must be positive, else the direction does "
            "not lead upwards (check the sign of the gradient)."
        )
    for attempt in range(max_tries):
        fraction = shrink**attempt
        improvement, kl = try_fraction(fraction)
        if improvement >= min_share * fraction * expected_improvement and kl <= max_kl:
            return StepFound(fraction, improvement, kl, attempt + 1)
    return StepFound(0.0, 0.0, 0.0, max_tries)


def _flat(gradients: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> Tensor:
    """End to end; zeros for a parameter that was not used."""
    return torch.cat(
        [
            (torch.zeros_like(parameter) if gradient is None else gradient).flatten()
            for gradient, parameter in zip(gradients, parameters, strict=True)
        ]
    )
