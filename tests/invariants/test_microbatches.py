"""How a step is cut into forward passes is a matter of memory: the gradient does not know it."""

from __future__ import annotations

import pytest
import torch

from rlhf.training.algorithm import Totals
from rlhf.training.loop import Loop
from rlhf.training.metrics import Metrics
from tests.fixtures.toy import build_trainer, largest_difference, weights_of

CASES = {
    "sft": {},
    "sft by tokens": {"tokens_per_step": 40},
    "reward": {"head_dropout": 0.0},
    "reward ensemble": {"head_dropout": 0.0, "num_models": 2, "label_smoothing": 0.1, "center_coef": 0.01},
    "reward with margins": {"head_dropout": 0.0, "use_margin": True},
    "dpo": {},
    "dpo ipo and sft": {"loss": "ipo", "ipo_per_token": True, "sft_coef": 0.5},
    "ppo": {},
    "ppo, everything on": {
        "entropy_coef": 0.01,
        "whiten_rewards": True,
        "kl": {"where": "loss", "estimator": "k3", "coef": 0.1},
        "bootstrap_truncated": True,
        "shared_value": True,
    },
    "grpo sequence": {"aggregation": "sequence"},
    "grpo token": {"aggregation": "token", "entropy_coef": 0.01},
    "grpo constant": {"aggregation": "constant", "advantage": "group_mean"},
    "grpo, penalty in the reward": {"kl": {"where": "reward", "estimator": "k1"}},
}


def double_trainer(case: str, **settings):
    name = case.replace(",", " ").split()[0]
    return build_trainer(name, dtype=torch.float64, **CASES[case], **settings)


def gradients(trainer) -> tuple[dict[str, torch.Tensor], int]:
    """Of the second step of the first phase (where ratios are not 1), and the number of its micro-batches."""
    loop = Loop(trainer, trainer.config)
    experience = trainer.collect(0, Metrics())
    steps = trainer.steps(0, experience)
    first = next(steps)
    for batches in steps:
        loop._step(first)
        first = batches
        break
    totals = Totals.of(first)
    for batch in first:
        trainer.loss(batch, totals, Metrics()).backward()
    found = {f"{m.name}.{k}": p.grad for m in trainer.modules() for k, p in m.module.named_parameters()}
    return {name: grad for name, grad in found.items() if grad is not None}, len(first)


@pytest.mark.parametrize("case", CASES)
def test_the_gradient_of_a_step_does_not_depend_on_its_micro_batches(case):
    whole, one = gradients(double_trainer(case, tokens_per_microbatch=10**6))
    split, many = gradients(double_trainer(case, tokens_per_microbatch=1))
    assert one == 1
    assert many > 1
    assert max(float(grad.abs().max()) for grad in whole.values()) > 1e-4
    for name, grad in whole.items():
        torch.testing.assert_close(
            split[name], grad, rtol=1e-9, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("case", CASES)
def test_the_weights_after_a_run_do_not_depend_on_micro_batches(case):
    runs = []
    # A large eps, as AdamW makes a whole step of a gradient that is nothing but rounding.
    for limit in (10**6, 30, 1):
        trainer = double_trainer(case, tokens_per_microbatch=limit, eps=1e-6)
        start = weights_of(trainer)
        trainer.train()
        runs.append(weights_of(trainer))
    assert largest_difference(start, runs[0]) > 1e-3
    assert largest_difference(runs[0], runs[1]) < 1e-8
    assert largest_difference(runs[0], runs[2]) < 1e-8
