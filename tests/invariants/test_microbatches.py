"""How a step is cut into forward passes is a matter of memory: the gradient does not know it."""

from __future__ import annotations

import pytest
import torch

from rlhf.training.algorithm import Totals
from rlhf.training.loop import Loop
from rlhf.training.metrics import Metrics
from tests.fixtures import toy
from tests.fixtures.toy import build_trainer, largest_difference, weights_of

pytestmark = pytest.mark.numeric

CASES = {
    "sft": {},
    "sft by tokens": {"batch_tokens": 40},
    "sft smoothed": {"label_smoothing": 0.2},
    "sft dft with noise": {"loss": "dft", "neftune_alpha": 10.0},
    "reward": {"head_dropout": 0.0},
    "reward ensemble": {"head_dropout": 0.0, "num_models": 2, "label_smoothing": 0.1, "center_coef": 0.01},
    "reward with margins": {"head_dropout": 0.0, "margin": "column"},
    "reward by confidence": {"head_dropout": 0.0, "use_label_probability": True},
    "reward hinge": {"head_dropout": 0.0, "loss": "hinge"},
    "reward graded": {"head_dropout": 0.0, "loss": "graded", "num_models": 2},
    "reward rao_kupper": {"head_dropout": 0.0, "loss": "rao_kupper", "num_heads": 2, "center_coef": 0.1},
    "reward davidson": {"head_dropout": 0.0, "loss": "davidson"},
    "reward plackett_luce": {"head_dropout": 0.0, "loss": "plackett_luce"},
    "reward rating": {"head_dropout": 0.0, "loss": "rating"},
    "reward binary": {"head_dropout": 0.0, "loss": "binary"},
    "prm": {"wrong_weight": 2.0},
    "prm until the first error, beside the language": {
        "until_first_error": True,
        "lm_coef": 0.5,
        "extra_layers": 1,
    },
    "prm pairs": {"loss": "pairs", "aggregate": "mean"},
    "dpo": {},
    "dpo ipo and sft": {"loss": "ipo", "ipo_per_token": True, "sft_coef": 0.5},
    "dpo aot": {"loss": "aot", "label_smoothing": 0.1},
    "dpo aot_unpaired": {"loss": "aot_unpaired"},
    "simpo": {},
    "cpo": {},
    "orpo": {},
    "kto": {},
    "kto running": {"reference_point": "running"},
    "kto bco": {"loss": "bco"},
    "ppo": {},
    "ppo, everything on": {
        "entropy_coef": 0.01,
        "whiten_rewards": True,
        "kl": {"where": "loss", "estimator": "k3", "coef": 0.1},
        "bootstrap_truncated": True,
        "shared_value": True,
    },
    "ppo, of good completions the likelihood": {
        "positive_nll_coef": 0.3,
        "positive_score": 0.4,
        "aggregation": "sequence",
    },
    "ppo, exact KL in the loss": {"kl": {"where": "loss", "estimator": "exact", "coef": 0.1}},
    "ppo, exact KL in the reward": {
        "kl": {"where": "reward", "estimator": "exact", "coef": 0.1},
        "epochs_per_rollout": 1,
    },
    "vapo": {"value_warmup_rollouts": 0},
    "trpo": {"entropy_coef": 0.01},
    "trpo, from some of the completions": {"fisher_frac": 0.5, "max_kl": 0.05},
    "online_dpo": {},
    "online_dpo ipo": {"loss": "ipo"},
    "distill": {},
    "distill, reverse, with what is in the loss": {
        "divergence_beta": 1.0,
        "aggregation": "sequence",
        "entropy_coef": 0.01,
        "kl": {"where": "loss", "estimator": "k3", "coef": 0.1},
    },
    "ppo in episodes": {"episodes": True, "bootstrap_truncated": True},
    "grpo in episodes": {"episodes": True, "aggregation": "token"},
    "grpo sequence": {"aggregation": "sequence"},
    "grpo token": {"aggregation": "token", "entropy_coef": 0.01},
    "grpo constant": {"aggregation": "constant", "advantage": "group_mean"},
    "grpo, penalty in the reward": {"kl": {"where": "reward", "estimator": "k1"}},
    "grpo, sampler corrected and exact KL": {
        "importance": {"level": "geometric", "high": 1.5},
        "kl": {"where": "loss", "estimator": "exact", "coef": 0.1},
        "sampling": {"max_new_tokens": 5, "top_k": 20},
    },
    "grpo, one deviation for all": {"advantage": "batch_std", "kl": {"where": "reward", "estimator": "exact"}},
    **{name: {} for name in toy.GROUPS},
    "gspo by token": {"policy_loss": "sequence_token", "dual_clip": 1.01},
    "reinforce_pp against siblings": {"baseline": "group", "group_size": 3, "prompts_per_rollout": 4},
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
    with torch.no_grad():
        trainer.before_step(first, Metrics())
    for batch in first:
        trainer.loss(batch, totals, Metrics()).backward()
    grads = {f"{m.name}.{k}": p.grad for m in trainer.modules() for k, p in m.module.named_parameters()}
    return {name: grad for name, grad in grads.items() if grad is not None}, len(first)


@pytest.mark.parametrize("case", CASES)
def test_the_gradient_of_a_step_does_not_depend_on_its_micro_batches(case):
    whole, one = gradients(double_trainer(case, microbatch_tokens=10**6))
    split, many = gradients(double_trainer(case, microbatch_tokens=1))
    assert one == 1
    assert many > 1
    assert max(float(grad.abs().max()) for grad in whole.values()) > 1e-4
    for name, grad in whole.items():
        torch.testing.assert_close(
            split[name], grad, rtol=1e-9, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_weights_after_a_run_do_not_depend_on_micro_batches(case):
    runs = []
    # A large eps, as AdamW makes a whole step of a gradient that is nothing but rounding.
    for limit in (10**6, 30, 1):
        trainer = double_trainer(case, microbatch_tokens=limit, eps=1e-6)
        start = weights_of(trainer)
        trainer.train()
        runs.append(weights_of(trainer))
    assert largest_difference(start, runs[0]) > 1e-3
    assert largest_difference(runs[0], runs[1]) < 1e-8
    assert largest_difference(runs[0], runs[2]) < 1e-8
