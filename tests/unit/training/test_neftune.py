from __future__ import annotations

import math

import pytest
import torch

from rlhf.data.pack import Branch, Group, pack
from rlhf.models.paths import PathChoice
from rlhf.training.neftune import COLUMN, noisy_embeddings, row_noise, with_noise_seeds
from tests.fixtures import toy

WIDTH = 32


def noise_of(groups: list[Group], *, seed: int = 0, step: int = 0, alpha: float = 5.0) -> torch.Tensor:
    batch = with_noise_seeds(pack(groups), seed, step)
    return row_noise(batch, torch.empty(batch.num_tokens, WIDTH, dtype=torch.float64), alpha=alpha)


def test_a_row_has_the_same_noise_whatever_lies_beside_it():
    groups = toy.rows(4)
    together, turned = noise_of(groups), noise_of(groups[::-1])
    alone = [noise_of([group]) for group in groups]
    assert torch.equal(together, torch.cat(alone))
    assert torch.equal(turned, torch.cat(alone[::-1]))


def test_rows_steps_and_runs_have_noise_of_their_own():
    row, other = Group([5, 6], [Branch([7, 8])]), Group([5, 6], [Branch([7, 9])])
    first = noise_of([row])
    for changed in (noise_of([other]), noise_of([row], step=1), noise_of([row], seed=1)):
        assert first.shape == changed.shape
        assert not torch.equal(first, changed)


def test_noise_has_the_size_that_the_paper_gives_a_row():
    # every number is uniform within alpha / sqrt(L H), so a row's squared norm is alpha^2 / 3 on average
    noise = noise_of([Group([5] * 100, [Branch([7] * 300)])], alpha=6.0)
    assert float(noise.abs().max()) <= 6.0 / math.sqrt(400 * WIDTH)
    assert float(noise.square().sum()) == pytest.approx(12.0, rel=0.03)


def test_completions_that_share_a_prefix_share_its_noise():
    group = Group([5, 6], [Branch([7, 8]), Branch([9])])
    batch = with_noise_seeds(pack([group, *toy.rows(2)]), 0, 0)
    assert batch.columns[COLUMN].tolist()[0] == batch.columns[COLUMN].tolist()[1]
    assert len(set(batch.columns[COLUMN].tolist())) == 3
    assert row_noise(batch, torch.empty(batch.num_tokens, WIDTH), alpha=5.0).shape == (batch.num_tokens, WIDTH)


@pytest.mark.parametrize("path", ["padded", "logits"])
def test_noise_is_the_same_on_every_path(path):
    policy = toy.build_policy(dtype=torch.float64)
    batch = with_noise_seeds(pack(toy.rows(5)), 0, 0)
    actual = {}
    for way in ("packed", path):
        policy.choice = PathChoice(way, 0.0, "said so")
        with noisy_embeddings(policy, batch, alpha=5.0):
            actual[way] = policy.score(batch).logprobs
    torch.testing.assert_close(actual["packed"], actual[path], rtol=0, atol=1e-12)
    policy.choice = PathChoice("packed", 0.0, "said so")
    assert (policy.score(batch).logprobs - actual[path]).abs().max() > 1e-3, "outside there is none"


def test_a_batch_without_seeds_is_read_as_it_is():
    policy, batch = toy.build_policy(), pack(toy.rows(3))
    with noisy_embeddings(policy, batch, alpha=5.0):
        inside = policy.score(batch).logprobs
    assert torch.equal(inside, policy.score(batch).logprobs)


def test_the_first_batch_of_a_policy_chooses_its_path_without_noise():
    policy = toy.build_policy()
    batch = with_noise_seeds(pack(toy.rows(3)), 0, 0)
    with noisy_embeddings(policy, batch, alpha=50.0):
        policy.score(batch)
    assert policy.path == "packed"
