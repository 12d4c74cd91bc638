"""Policy losses beyond PPO's clip against TRL's, in float64 on log-probabilities of our choosing: value and gradient.

TRL's option names are translated where they stand: its ``epsilon_high`` of CISPO is a bound, ours a distance from 1.
"""

from __future__ import annotations

import copy
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from rlhf.data.pack import Branch, Group, pack
from rlhf.losses import (
    aggregate,
    cispo_loss,
    clipped_policy_loss,
    clipped_tokens,
    generalized_jsd,
    kl_k3,
    off_policy_kl,
    sapo_loss,
    sequence_log_ratios,
    sequence_policy_loss,
)
from rlhf.models.score import TokenScores
from rlhf.training.algorithm import Totals
from rlhf.training.metrics import Metrics
from tests.fixtures import toy
from tests.oracle.conftest import PROMPTS
from tests.oracle.test_trl_losses import ADVANTAGES, COMPLETION_LENGTH, LENGTHS, PROMPT_LENGTH, Stub, compare

pytestmark = pytest.mark.numeric

AGGREGATION_OF = {
    "grpo": ("sequence", None),
    "bnpo": ("token", None),
    "dr_grpo": ("constant", COMPLETION_LENGTH),
    "dapo": ("token", None),
    "luspo": ("constant", 1),
    "cispo": ("token", None),
    "sapo": ("sequence", None),
}
"""By TRL's loss type, ours and its constant. luspo sums over a sequence, which is a constant of one token."""

WINDOW = 3
"""How many times this micro-batch's tokens the whole step has, for the loss types that count over it."""


@pytest.fixture
def rollout() -> SimpleNamespace:
    """Log-probabilities [rows, columns] of padded completions, further from the old policy than in test_trl_losses."""
    draw = torch.rand(
        3, len(LENGTHS), COMPLETION_LENGTH, dtype=torch.float64, generator=torch.Generator().manual_seed(7)
    )
    mask = torch.arange(COMPLETION_LENGTH)[None] < LENGTHS[:, None]
    logprobs = (-6 * draw[0]).requires_grad_()
    return SimpleNamespace(
        logprobs=logprobs,
        old=(logprobs + 4 * (draw[1] - 0.5)).detach(),
        ref=(logprobs + 3 * (draw[2] - 0.5)).detach(),
        mask=mask,
        score_seq=mask.nonzero()[:, 0],
    )


@pytest.fixture(scope="module")
def build_rl_trainer(build_trainer: Any, policy: Any) -> Any:
    def build(kind: str) -> Any:
        return build_trainer(
            kind,
            copy.deepcopy(policy),
            [{"prompt": prompt} for prompt in PROMPTS[:2]],
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            per_device_train_batch_size=6,
            num_generations=3,
            max_completion_length=COMPLETION_LENGTH,
            temperature=1.0,
            beta=0.0,
        )

    return build


@pytest.fixture(scope="module")
def grpo_trainer(build_rl_trainer: Any) -> Any:
    return build_rl_trainer("GRPO")


@pytest.fixture(scope="module")
def rloo_trainer(build_rl_trainer: Any) -> Any:
    return build_rl_trainer("RLOO")


def their_loss(trainer: Any, rollout: SimpleNamespace, **inputs: Tensor) -> Tensor:
    """TRL's loss of the rollout, its model a stub that returns the log-probabilities."""
    prompt = torch.ones(len(LENGTHS), PROMPT_LENGTH, dtype=torch.long)
    left = rollout.logprobs.new_zeros(len(LENGTHS), PROMPT_LENGTH - 1)
    common = {
        "prompt_ids": prompt, "prompt_mask": prompt,
        "completion_ids": rollout.mask.long(), "completion_mask": rollout.mask.long(), "advantages": ADVANTAGES,
    }  # fmt: skip
    return trainer._compute_loss(Stub(torch.cat([left, rollout.logprobs], dim=1)), common | inputs)


def their_grpo(
    trainer: Any,
    rollout: SimpleNamespace,
    loss_type: str,
    *,
    level: str = "token",
    low: float = 0.2,
    high: float = 0.2,
    kl_coef: float = 0.0,
    temperatures: tuple[float, float] = (1.0, 1.05),
    unbiased: bool = True,
) -> Tensor:
    trainer.loss_type, trainer.importance_sampling_level = loss_type, level
    trainer.epsilon_low, trainer.epsilon_high, trainer.beta = low, high, kl_coef
    trainer.args.delta, trainer.args.steps_per_generation, trainer.args.use_bias_correction_kl = None, 1, unbiased
    trainer.args.sapo_temperature_pos, trainer.args.sapo_temperature_neg = temperatures
    return their_loss(
        trainer, rollout,
        old_per_token_logps=rollout.old, ref_per_token_logps=rollout.ref, num_items_in_batch=_tokens(loss_type),
    )  # fmt: skip


def _tokens(loss_type: str) -> Tensor:
    return LENGTHS.sum() * (WINDOW if loss_type in ("dapo", "cispo") else 1)


def reduced(losses: Tensor, rollout: SimpleNamespace, loss_type: str) -> Tensor:
    how, constant = AGGREGATION_OF[loss_type]
    return aggregate(
        losses, rollout.score_seq, how=how, constant=constant,
        num_tokens=int(_tokens(loss_type)), num_sequences=len(LENGTHS),
    )  # fmt: skip


def flat(rollout: SimpleNamespace) -> tuple[Tensor, Tensor, Tensor]:
    return rollout.logprobs[rollout.mask], rollout.old[rollout.mask], ADVANTAGES[rollout.score_seq]


@pytest.mark.parametrize("bounds", [(0.03, 0.04), (0.2, 0.28)])
@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dr_grpo", "dapo", "luspo"])
def test_the_loss_of_gspo_is_trls(grpo_trainer, rollout, loss_type: str, bounds: tuple[float, float]):
    low, high = bounds
    theirs = their_grpo(grpo_trainer, rollout, loss_type, level="sequence", low=low, high=high)
    logprobs, old, advantages = flat(rollout)
    losses = sequence_policy_loss(logprobs, old, advantages, rollout.score_seq, clip_low=low, clip_high=high)
    compare(theirs, reduced(losses, rollout, loss_type), rollout.logprobs)
    log_ratios = sequence_log_ratios(logprobs, old, rollout.score_seq)
    clipped = clipped_tokens(log_ratios, torch.zeros_like(log_ratios), advantages, clip_low=low, clip_high=high)
    # TRL counts sequences here: one token of each is enough
    first = torch.cat([rollout.score_seq.new_ones(1), rollout.score_seq.diff()]).bool()
    assert 0 < clipped.sum() < len(clipped)
    their_share = grpo_trainer._metrics["train"]["clip_ratio/region_mean"][-1]
    assert clipped[first].double().mean().item() == pytest.approx(their_share, rel=1e-6)


@pytest.mark.parametrize("bound", [1.28, 2.0, 5.0])
def test_the_loss_of_cispo_is_trls_with_the_bound_as_a_distance_from_one(grpo_trainer, rollout, bound: float):
    theirs = their_grpo(grpo_trainer, rollout, "cispo", high=bound)
    losses = cispo_loss(*flat(rollout), clip_high=bound - 1)
    compare(theirs, reduced(losses, rollout, "cispo"), rollout.logprobs)


def test_the_trap_in_cispo_is_trls_and_not_ours(grpo_trainer, rollout):
    # TRL's default epsilon_high of 0.2 is the weight itself: on-policy, a fifth of the gradient
    rollout.old = rollout.logprobs.detach()
    logprobs, old, advantages = flat(rollout)
    theirs = their_grpo(grpo_trainer, rollout, "cispo", high=0.2)
    (their_gradient,) = torch.autograd.grad(theirs, rollout.logprobs)
    ours = reduced(cispo_loss(logprobs, old, advantages, clip_high=0.2), rollout, "cispo")
    (our_gradient,) = torch.autograd.grad(ours, rollout.logprobs, retain_graph=True)
    torch.testing.assert_close(their_gradient, 0.2 * our_gradient, rtol=1e-10, atol=0)
    ppo = reduced(clipped_policy_loss(logprobs, old, advantages), rollout, "cispo")
    torch.testing.assert_close(torch.autograd.grad(ppo, rollout.logprobs)[0], our_gradient, rtol=1e-10, atol=0)


# TRL holds its temperatures in float32: these are exact there
@pytest.mark.parametrize("temperatures", [(1.0, 1.0625), (0.5, 2.0)])
def test_the_loss_of_sapo_is_trls(grpo_trainer, rollout, temperatures: tuple[float, float]):
    theirs = their_grpo(grpo_trainer, rollout, "sapo", temperatures=temperatures)
    losses = sapo_loss(*flat(rollout), temperature_good=temperatures[0], temperature_bad=temperatures[1])
    compare(theirs, reduced(losses, rollout, "sapo"), rollout.logprobs)


@pytest.mark.parametrize("kl_coef", [0.04, 1.0])
@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dr_grpo", "dapo"])
def test_the_kl_weighted_by_the_ratio_is_trls(grpo_trainer, rollout, loss_type: str, kl_coef: float):
    theirs = their_grpo(grpo_trainer, rollout, loss_type, kl_coef=kl_coef)
    logprobs, old, advantages = flat(rollout)
    kl = off_policy_kl(kl_k3(logprobs, rollout.ref[rollout.mask]), logprobs, old)
    losses = clipped_policy_loss(logprobs, old, advantages) + kl_coef * kl
    compare(theirs, reduced(losses, rollout, loss_type), rollout.logprobs)


@pytest.mark.parametrize("clip", [0.2, 0.9])
def test_the_loss_of_rloo_is_trls(rloo_trainer, rollout, clip: float):
    rloo_trainer.epsilon_low = rloo_trainer.epsilon_high = clip
    theirs = their_loss(rloo_trainer, rollout, old_logps=(rollout.old * rollout.mask).sum(1))
    losses = sequence_policy_loss(*flat(rollout), rollout.score_seq, how="sum", clip_low=clip, clip_high=clip)
    compare(theirs, reduced(losses, rollout, "grpo"), rollout.logprobs)


TRAINERS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "grpo": ("grpo", {}, {"kl_coef": 0.04, "unbiased": False}),
    "grpo_with_an_unbiased_kl": ("grpo", {"kl": {"unbiased": True}}, {"kl_coef": 0.04}),
    "dr_grpo": ("dr_grpo", {}, {}),
    "dapo": ("dapo", {}, {"high": 0.28}),
    "gspo": ("gspo", {}, {"level": "sequence", "low": 3e-3, "high": 4e-3}),
    "cispo": ("cispo", {}, {"high": 5.0}),
    "sapo": ("sapo", {"gate_temperatures": (1.0, 1.0625)}, {"temperatures": (1.0, 1.0625)}),
}
"""Case to settings class and what differs from its defaults (or from the toy's bounds), and what TRL calls these."""
LOSS_TYPE_OF = {"gspo": "grpo"}


def term_of(name: str, settings: dict[str, Any], rollout: SimpleNamespace, *, window: int, size: int) -> Tensor:
    """What our trainer adds up over micro-batches of ``size`` completions: all its settings, and none of its formulas here."""
    trainer = toy.build_trainer(name, sampling={"max_new_tokens": COMPLETION_LENGTH}, **settings)
    totals = Totals(window * int(LENGTHS.sum()), len(LENGTHS), len(LENGTHS))
    terms = []
    for first in range(0, len(LENGTHS), size):
        rows = slice(first, first + size)
        mask = rollout.mask[rows]
        batch = pack([Group([3], [Branch([4] * n)]) for n in LENGTHS[rows].tolist()])
        batch = batch.with_token_columns(
            old_logprobs=rollout.old[rows][mask],
            ref_logprobs=rollout.ref[rows][mask],
            advantages=ADVANTAGES[rows][batch.score_seq],
        )
        terms.append(trainer.policy_term(TokenScores(rollout.logprobs[rows][mask]), batch, totals, Metrics()))
    return torch.stack(terms).sum()


@pytest.mark.parametrize("size", [6, 2], ids=["one_batch", "three_micro_batches"])
@pytest.mark.parametrize("case", TRAINERS)
def test_what_the_trainer_adds_up_is_trls(grpo_trainer, rollout, case: str, size: int):
    name, ours, theirs = TRAINERS[case]
    loss_type = LOSS_TYPE_OF.get(name, name)
    window = WINDOW if loss_type in ("dapo", "cispo") else 1  # TRL counts over the whole step there
    expected = their_grpo(grpo_trainer, rollout, loss_type, **theirs)
    compare(expected, term_of(name, ours, rollout, window=window, size=size), rollout.logprobs)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("gspo", {"clip_low": 3e-3, "clip_high": 4.04e-3}),
        ("gspo", {"policy_loss": "clip"}),
        ("dr_grpo", {"policy_loss": "sequence", "clip_low": 3e-3, "clip_high": 4e-3}),
    ],
    ids=["a_bound_off_by_one_percent", "a_ratio_for_each_token", "another_denominator"],
)
def test_the_comparison_of_trainers_notices(grpo_trainer, rollout, name: str, settings: dict[str, Any]):
    theirs = their_grpo(grpo_trainer, rollout, "grpo", level="sequence", low=3e-3, high=4e-3)
    with pytest.raises(AssertionError, match="not close"):
        compare(theirs, term_of(name, settings, rollout, window=1, size=6), rollout.logprobs)


def test_the_plain_gradient_of_our_rloo_is_that_of_trls_on_policy(rloo_trainer, rollout):
    # TRL's loss has the clipped ratio of whole completions, which is 1 there; ours is divided by a constant more
    rollout.old = rollout.logprobs.detach()
    rloo_trainer.epsilon_low = rloo_trainer.epsilon_high = 0.2
    theirs = their_loss(rloo_trainer, rollout, old_logps=(rollout.old * rollout.mask).sum(1))
    (their_gradient,) = torch.autograd.grad(theirs, rollout.logprobs)
    ours = term_of("rloo", {}, rollout, window=1, size=2)
    (our_gradient,) = torch.autograd.grad(ours, rollout.logprobs)
    assert their_gradient.abs().max() > 0
    torch.testing.assert_close(COMPLETION_LENGTH * our_gradient, their_gradient, rtol=1e-10, atol=1e-12)


@pytest.fixture(scope="module")
def their_jsd(trl: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # says that the module may change; the version is pinned
        from trl.experimental.gkd import GKDTrainer
    return GKDTrainer.generalized_jsd_loss


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_the_generalized_jsd_is_trls(their_jsd, beta: float, temperature: float):
    generator = torch.Generator().manual_seed(0)
    student, teacher = 2 * torch.randn(2, 4, 5, 11, dtype=torch.float64, generator=generator)
    student.requires_grad_()
    theirs = their_jsd(student, teacher, beta=beta, temperature=temperature, reduction="sum")
    compare(theirs, generalized_jsd(student / temperature, teacher / temperature, beta=beta).sum(), student)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda *tokens, seq: sequence_policy_loss(*tokens, seq, clip_low=0.2, clip_high=0.283),
        lambda *tokens, seq: sequence_policy_loss(*tokens, seq, how="sum", clip_low=0.2, clip_high=0.28),
        lambda *tokens, seq: clipped_policy_loss(*tokens, clip_low=0.2, clip_high=0.28),
    ],
    ids=["a_bound_off_by_one_percent", "the_sum_for_the_mean", "tokens_for_sequences"],
)
def test_the_comparison_notices(grpo_trainer, rollout, wrong: Any):
    theirs = their_grpo(grpo_trainer, rollout, "grpo", level="sequence", low=0.2, high=0.28)
    losses = wrong(*flat(rollout), seq=rollout.score_seq)
    with pytest.raises(AssertionError, match="not close"):
        compare(theirs, reduced(losses, rollout, "grpo"), rollout.logprobs)
