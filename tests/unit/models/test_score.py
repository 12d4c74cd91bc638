from __future__ import annotations

import torch

from rlhf.data.pack import Branch, Group, pack
from rlhf.models.score import PATHS, sampled_targets
from tests.fixtures import toy


def test_drawn_tokens_follow_the_models_own_distribution():
    policy = toy.build_policy()
    toy.change_weights(policy.model, by=0.5)
    group, copies = Group([5, 6], [Branch([7])]), 8000
    with torch.no_grad():
        probs = policy.model(torch.tensor([[5, 6]])).logits[0, 1].softmax(-1)
    policy.score(pack([group]))  # chooses its path
    drawn = sampled_targets(
        policy.model, pack([Group([5, 6], [Branch([7])] * copies)]), generator=torch.Generator().manual_seed(0)
    )
    counts = torch.bincount(drawn, minlength=toy.VOCABULARY)
    likely = probs * copies > 5
    # Pearson's statistic has as many as its degrees of freedom on average, and twice that as its variance
    statistic = float(((counts - probs * copies).square() / (probs * copies))[likely].sum())
    freedom = int(likely.sum()) - 1
    assert abs(statistic - freedom) < 5 * (2 * freedom) ** 0.5
    assert freedom > 10


def test_all_paths_draw_the_same_tokens_from_the_same_seed():
    policy, batch = toy.build_policy(dtype=torch.float64), pack(toy.rows(6))
    policy.score(batch)
    drawn = [
        sampled_targets(policy.model, batch, generator=torch.Generator().manual_seed(3), path=path) for path in PATHS
    ]
    assert all(torch.equal(actual, drawn[0]) for actual in drawn)
    other = sampled_targets(policy.model, batch, generator=torch.Generator().manual_seed(4))
    assert not torch.equal(drawn[0], other)
    assert drawn[0].shape == batch.score_token.shape
