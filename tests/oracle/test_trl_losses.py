"""Each loss against TRL's own, on log-probabilities of our choosing: a stub stands where TRL expects a model.

Everything is in float64, so agreement is to rounding: value and the gradient of every single token.
"""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from rlhf.losses import (
    aggregate,
    bradley_terry_loss,
    centering_penalty,
    clipped_policy_loss,
    clipped_tokens,
    dpo_hinge_loss,
    dpo_loss,
    group_advantages,
    ipo_loss,
    kl_k3,
    leave_one_out_advantages,
    segment_count,
    segment_sum,
)
from tests.oracle.conftest import PROMPTS, preference_rows

pytestmark = pytest.mark.numeric

PROMPT_LENGTH, COMPLETION_LENGTH = 3, 6
LENGTHS = torch.tensor([6, 2, 1, 4, 3, 5])


class Stub(torch.nn.Module):
    """Returns the log-probabilities it was given in the shape of TRL's fused head."""

    def __init__(self, logprobs: Tensor) -> None:
        super().__init__()
        self.logprobs = logprobs

    def forward(self, **_: Any) -> SimpleNamespace:
        zeros = torch.zeros_like(self.logprobs)
        return SimpleNamespace(
            log_probs=self.logprobs, entropy=zeros, mean_logits=zeros, is_top1=zeros.bool(), aux_loss=None
        )


@pytest.fixture
def tokens() -> SimpleNamespace:
    """Random log-probabilities [rows, columns] of six padded completions, and the same tokens flat."""
    generator = torch.Generator().manual_seed(0)
    draw = torch.rand(5, len(LENGTHS), COMPLETION_LENGTH, dtype=torch.float64, generator=generator)
    mask = torch.arange(COMPLETION_LENGTH)[None] < LENGTHS[:, None]
    logprobs = (-6 * draw[0]).requires_grad_()
    return SimpleNamespace(
        logprobs=logprobs,
        old=(logprobs + 1.5 * (draw[1] - 0.5)).detach(),
        ref=(logprobs + 3 * (draw[2] - 0.5)).detach(),
        mask=mask,
        score_seq=mask.nonzero()[:, 0],
    )


def compare(theirs: Tensor, ours: Tensor, leaf: Tensor) -> None:
    """Equal to rounding in value and in every gradient, and there is something to compare."""
    (their_gradient,) = torch.autograd.grad(theirs, leaf)
    (our_gradient,) = torch.autograd.grad(ours, leaf)
    assert their_gradient.abs().max() > 0
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(our_gradient, their_gradient, rtol=1e-10, atol=1e-12)


@pytest.fixture(scope="module")
def dpo_trainer(build_trainer, policy, reference):
    trainer = build_trainer("DPO", copy.deepcopy(policy), preference_rows(), ref_model=copy.deepcopy(reference))
    trainer.precompute_ref_logps = True
    return trainer


def _their_dpo(trainer: Any, tokens: SimpleNamespace, rows: list[int], loss_type: str, beta: float, smoothing: float):
    """TRL's loss of the pairs made of the given rows, chosen rows first."""
    mask = torch.cat([torch.zeros(len(LENGTHS), PROMPT_LENGTH, dtype=torch.long), tokens.mask.long()], dim=1)[rows]
    left = tokens.logprobs.new_zeros(len(rows), PROMPT_LENGTH - 1)
    masked = torch.where(tokens.mask, tokens.logprobs, 0.0)[rows]
    ref = torch.where(tokens.mask, tokens.ref, 0.0).sum(1)[rows]
    trainer.loss_types, trainer.loss_weights, trainer.beta, trainer.label_smoothing = (
        [loss_type],
        [1.0],
        beta,
        smoothing,
    )
    inputs = {
        "input_ids": torch.ones_like(mask), "attention_mask": torch.ones_like(mask), "completion_mask": mask,
        "ref_chosen_logps": ref[: len(rows) // 2], "ref_rejected_logps": ref[len(rows) // 2 :],
    }  # fmt: skip
    return trainer._compute_loss(Stub(torch.cat([left, masked], dim=1)), inputs, return_outputs=False)


def _our_pairs(tokens: SimpleNamespace) -> tuple[tuple[Tensor, ...], Tensor]:
    """The four tensors of the pairs (row 0, row 3), (1, 4), (2, 5), and the completions' lengths."""
    policy = segment_sum(tokens.logprobs[tokens.mask], tokens.score_seq, len(LENGTHS))
    ref = segment_sum(tokens.ref[tokens.mask], tokens.score_seq, len(LENGTHS))
    return (policy[:3], policy[3:], ref[:3], ref[3:]), segment_count(tokens.score_seq, len(LENGTHS))


@pytest.mark.parametrize("beta", [0.05, 0.5])
@pytest.mark.parametrize("name", ["sigmoid", "hinge", "ipo"])
def test_dpo_losses_are_trls(dpo_trainer, tokens, name: str, beta: float):
    four, lengths = _our_pairs(tokens)
    if name == "ipo":
        ours = ipo_loss(*four, beta=beta, chosen_lengths=lengths[:3], rejected_lengths=lengths[3:])
    else:
        ours = {"sigmoid": dpo_loss, "hinge": dpo_hinge_loss}[name](*four, beta=beta)
    compare(_their_dpo(dpo_trainer, tokens, list(range(6)), name, beta, 0.0), ours.mean(), tokens.logprobs)


@pytest.mark.parametrize("pair", [0, 1, 2])
def test_conservative_dpo_is_trls_aot_of_one_pair(dpo_trainer, tokens, pair: int):
    # TRL offers no conservative DPO; its "aot" sorts pairs first, which changes nothing where there is one
    four, _ = _our_pairs(tokens)
    ours = dpo_loss(*[x[pair : pair + 1] for x in four], beta=0.3, label_smoothing=0.2)
    compare(_their_dpo(dpo_trainer, tokens, [pair, pair + 3], "aot", 0.3, 0.2), ours.mean(), tokens.logprobs)


def test_the_comparison_notices_a_beta_that_is_off_by_one_percent(dpo_trainer, tokens):
    theirs = _their_dpo(dpo_trainer, tokens, list(range(6)), "sigmoid", 0.1, 0.0)
    with pytest.raises(AssertionError, match="not close"):
        compare(theirs, dpo_loss(*_our_pairs(tokens)[0], beta=0.101).mean(), tokens.logprobs)


@pytest.fixture(scope="module")
def reward_trainer(build_trainer, reward_model):
    return build_trainer("Reward", copy.deepcopy(reward_model), preference_rows())


@pytest.mark.parametrize("with_margin", [False, True])
@pytest.mark.parametrize("centering", [None, 0.01])
def test_reward_losses_are_trls(reward_trainer, with_margin: bool, centering: float | None):
    generator = torch.Generator().manual_seed(0)
    scores = (3 * torch.randn(8, dtype=torch.float64, generator=generator)).requires_grad_()
    margin = torch.rand(4, dtype=torch.float64, generator=generator)
    reward_trainer.args.center_rewards_coefficient = centering
    inputs = {"attention_mask": torch.ones(8, 2)} | ({"margin": margin} if with_margin else {})
    theirs = reward_trainer.compute_loss(lambda **_: SimpleNamespace(logits=scores[:, None]), inputs)
    ours = bradley_terry_loss(scores[:4], scores[4:], margin=margin if with_margin else None)
    if centering is not None:
        ours = ours + centering * centering_penalty(scores[:4], scores[4:])
    compare(theirs, ours.mean(), scores)


@pytest.fixture(scope="module")
def grpo_trainer(build_trainer, policy):
    return build_trainer(
        "GRPO",
        copy.deepcopy(policy),
        [{"prompt": prompt} for prompt in PROMPTS[:2]],
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        per_device_train_batch_size=6,
        num_generations=3,
        max_completion_length=COMPLETION_LENGTH,
        temperature=1.0,
    )


GRPO_AGGREGATIONS = {"grpo": "sequence", "bnpo": "token", "dr_grpo": "constant", "dapo": "token"}
ADVANTAGES = torch.tensor([1.2, -0.7, 0.4, -1.5, 0.0, 2.0], dtype=torch.float64)


@pytest.mark.parametrize("kl_coef", [0.0, 0.04])
@pytest.mark.parametrize("dual_clip", [None, 1.5])
@pytest.mark.parametrize("loss_type", GRPO_AGGREGATIONS)
def test_grpo_token_losses_are_trls(grpo_trainer, tokens, loss_type: str, dual_clip: float | None, kl_coef: float):
    # dapo divides by the tokens of the whole step: here twice those of this micro-batch
    num_tokens = int(LENGTHS.sum()) * (2 if loss_type == "dapo" else 1)
    trainer = grpo_trainer
    trainer.loss_type, trainer.beta, trainer.epsilon_low, trainer.epsilon_high = loss_type, kl_coef, 0.2, 0.28
    trainer.args.delta, trainer.args.use_bias_correction_kl, trainer.args.steps_per_generation = dual_clip, False, 1
    prompt = torch.ones(len(LENGTHS), PROMPT_LENGTH, dtype=torch.long)
    left = tokens.logprobs.new_zeros(len(LENGTHS), PROMPT_LENGTH - 1)
    theirs = trainer._compute_loss(
        Stub(torch.cat([left, tokens.logprobs], dim=1)),
        {
            "prompt_ids": prompt, "prompt_mask": prompt,
            "completion_ids": tokens.mask.long(), "completion_mask": tokens.mask.long(),
            "advantages": ADVANTAGES, "old_per_token_logps": tokens.old, "ref_per_token_logps": tokens.ref,
            "num_items_in_batch": torch.tensor(num_tokens),
        },
    )  # fmt: skip

    logprobs, old = tokens.logprobs[tokens.mask], tokens.old[tokens.mask]
    advantages = ADVANTAGES[tokens.score_seq]
    losses = clipped_policy_loss(logprobs, old, advantages, clip_low=0.2, clip_high=0.28, dual_clip=dual_clip)
    losses = losses + kl_coef * kl_k3(logprobs, tokens.ref[tokens.mask])
    ours = aggregate(
        losses, tokens.score_seq, how=GRPO_AGGREGATIONS[loss_type],
        num_tokens=num_tokens, num_sequences=len(LENGTHS), constant=COMPLETION_LENGTH,
    )  # fmt: skip
    compare(theirs, ours, tokens.logprobs)

    their_share = trainer._metrics["train"]["clip_ratio/region_mean"][-1]
    if dual_clip is None:  # TRL does not count the other bound
        our_share = clipped_tokens(logprobs, old, advantages, clip_low=0.2, clip_high=0.28).double().mean()
        assert 0 < our_share < 1
        assert our_share.item() == pytest.approx(their_share, rel=1e-6)


SCORES = [0.5, 2.0, -1.0, 3.0, 3.0, 3.0]


@pytest.mark.parametrize("divide_by_std", [True, False])
def test_group_advantages_are_trls(grpo_trainer, divide_by_std: bool):
    grpo_trainer.beta = 0.0
    grpo_trainer.scale_rewards = "group" if divide_by_std else "none"
    compare_advantages(grpo_trainer, lambda s, g: group_advantages(s, g, divide_by_std=divide_by_std))


def test_leave_one_out_advantages_are_trls(build_trainer, policy):
    trainer = build_trainer(
        "RLOO",
        copy.deepcopy(policy),
        [{"prompt": prompt} for prompt in PROMPTS[:2]],
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        per_device_train_batch_size=6,
        num_generations=3,
        max_completion_length=COMPLETION_LENGTH,
        beta=0.0,
    )
    compare_advantages(trainer, leave_one_out_advantages)


def compare_advantages(trainer: Any, credit: Any) -> None:
    """Let TRL sample and give its advantages for scores of our choosing."""
    trainer.reward_funcs = [lambda completions, **_: SCORES]
    rows = [{"prompt": PROMPTS[row // 3]} for row in range(6)]
    theirs = trainer._generate_and_score_completions(rows)["advantages"]
    ours = credit(torch.tensor(SCORES), torch.arange(6) // 3)
    assert theirs.abs().max() > 0.5
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
