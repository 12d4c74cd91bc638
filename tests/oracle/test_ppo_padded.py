"""PPO's whole chain from scores to loss, against the padded form in which TRL had it until 1.12.

TRL has no PPO any more, so the reference is written here from the description of what it computed: rectangles [B, T]
with a mask, a loop over columns, masked means. Only the place of the score differs on purpose: TRL put it one column
past the last token where there was room, where no action is.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from rlhf.losses import (
    add_score_at_last_token,
    clipped_policy_loss,
    clipped_value_loss,
    gae,
    kl_k1,
    kl_k3,
    token_mean,
    whiten,
)

pytestmark = pytest.mark.numeric

GAMMA, LAM, KL_COEF, CLIP, VALUE_CLIP, VALUE_COEF = 0.98, 0.95, 0.05, 0.2, 0.2, 0.1
COLUMNS = 7


@pytest.fixture(params=[[7, 7, 7, 7], [7, 1, 4, 2]], ids=["all_of_full_length", "of_different_lengths"])
def rollout(request: pytest.FixtureRequest) -> SimpleNamespace:
    """Rectangles as TRL held them; whatever stands on padding must not matter, so it is large."""
    lengths = torch.tensor(request.param)
    mask = torch.arange(COLUMNS)[None] < lengths[:, None]
    draw = torch.randn(5, len(lengths), COLUMNS, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    draw = torch.where(mask, draw, 50.0)
    return SimpleNamespace(
        lengths=lengths,
        mask=mask,
        logprobs=(draw[0] - 2).requires_grad_(),
        old=draw[0] - 2 + 0.3 * draw[1],
        ref=draw[0] - 2 + 0.5 * draw[2],
        values=draw[3].clone().requires_grad_(),
        old_values=draw[3] + 0.3 * draw[4],
        scores=torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64),
    )


def padded_loss(r: SimpleNamespace, estimator: str) -> Tensor:
    log_ratio = r.ref - r.old
    kl = -log_ratio if estimator == "k1" else log_ratio.exp() - 1 - log_ratio
    rewards = torch.where(r.mask, -KL_COEF * kl, 0.0)
    rewards[torch.arange(len(r.lengths)), r.lengths - 1] += r.scores
    values = torch.where(r.mask, r.old_values, 0.0)

    advantage = torch.zeros_like(r.scores)
    columns = []
    for column in reversed(range(COLUMNS)):
        following = values[:, column + 1] if column + 1 < COLUMNS else torch.zeros_like(r.scores)
        advantage = rewards[:, column] + GAMMA * following - values[:, column] + GAMMA * LAM * advantage
        columns.append(advantage)
    advantages = torch.stack(columns[::-1], dim=1)
    returns = advantages + values

    count = r.mask.sum()
    mean = advantages[r.mask].mean()
    advantages = (advantages - mean) * torch.rsqrt(advantages[r.mask].var(unbiased=True) + 1e-8)

    ratio = (torch.where(r.mask, r.logprobs, 0.0) - torch.where(r.mask, r.old, 0.0)).exp()
    policy = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - CLIP, 1 + CLIP))
    near = torch.clamp(r.values, r.old_values - VALUE_CLIP, r.old_values + VALUE_CLIP)
    value = torch.maximum((r.values - returns) ** 2, (near - returns) ** 2)
    return (policy * r.mask).sum() / count + VALUE_COEF * 0.5 * (value * r.mask).sum() / count


def flat_loss(r: SimpleNamespace, estimator: str) -> Tensor:
    score_seq = r.mask.nonzero()[:, 0]
    old, old_values = r.old[r.mask], r.old_values[r.mask]
    kl = {"k1": kl_k1, "k3": kl_k3}[estimator](old, r.ref[r.mask])
    rewards = add_score_at_last_token(-KL_COEF * kl, r.scores, score_seq)
    advantages, returns = gae(rewards, old_values, score_seq, gamma=GAMMA, gae_lambda=LAM)
    policy = clipped_policy_loss(r.logprobs[r.mask], old, whiten(advantages), clip_low=CLIP, clip_high=CLIP)
    value = clipped_value_loss(r.values[r.mask], old_values, returns, clip=VALUE_CLIP)
    return token_mean(policy + VALUE_COEF * value, num_tokens=len(score_seq))


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_ppo_on_flat_tokens_is_ppo_on_padded_rows(rollout: SimpleNamespace, estimator: str):
    theirs, ours = padded_loss(rollout, estimator), flat_loss(rollout, estimator)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)
    leaves = (rollout.logprobs, rollout.values)
    for mine, other in zip(torch.autograd.grad(ours, leaves), torch.autograd.grad(theirs, leaves), strict=True):
        assert other.abs().max() > 0
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-13)
