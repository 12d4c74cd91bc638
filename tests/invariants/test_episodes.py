"""Learning from episodes: what an environment said is read, and nothing is learned from it."""

from __future__ import annotations

import pytest
import torch

from rlhf.training.algorithm import Totals
from rlhf.training.metrics import Metrics
from tests.fixtures import toy

pytestmark = pytest.mark.numeric

NAMES = ("ppo", "grpo")


def trainer_and_rollout(name: str, **settings):
    trainer = toy.build_trainer(name, episodes=True, dtype=torch.float64, **settings)
    experience = trainer.collect(0, Metrics())
    return trainer, experience


@pytest.mark.parametrize("name", NAMES)
def test_a_rollout_of_episodes_has_numbers_for_the_policys_own_tokens_alone(name):
    _, experience = trainer_and_rollout(name)
    branches = [branch for group in experience.groups for branch in group.branches]
    own = [
        t for b in branches for t, scored in zip(b.tokens, b.scored or [True] * len(b.tokens), strict=True) if scored
    ]
    foreign = sum(len(b.tokens) for b in branches) - len(own)
    assert foreign > 5, "the environment has spoken"
    batch = experience.batch(range(len(experience.groups)))
    batch.check()
    assert batch.score_token.tolist() == own
    for column in ("old_logprobs", "ref_logprobs", "advantages"):
        assert len(experience.token_columns[column]) == len(own), column


def padded_gradients(trainer, experience) -> dict[str, torch.Tensor]:
    """Of the mean of ratio times advantage over the policy's own tokens, one whole sequence at a time."""
    model, number, total = trainer.policy.model, 0, len(experience.token_columns["advantages"])
    model.zero_grad()
    for group in experience.groups:
        for branch in group.branches:
            row = torch.tensor([[*group.prefix, *branch.tokens]])
            logprobs = model(row).logits[0, :-1].log_softmax(-1).gather(1, row[0, 1:, None]).squeeze(1)
            mask = [False] * (len(group.prefix) - 1) + list(branch.scored or [True] * len(branch.tokens))
            own = logprobs[torch.tensor(mask)]
            here = slice(number, number + len(own))
            old, advantages = (experience.token_columns[name][here] for name in ("old_logprobs", "advantages"))
            (-((own - old).exp() * advantages).sum() / total).backward()
            number += len(own)
    assert number == total
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_is_that_of_the_policys_own_tokens_in_whole_padded_sequences(name):
    settings = {"ppo": {"value_coef": 0.0}, "grpo": {"aggregation": "token", "kl": {"coef": 0.0}}}[name]
    trainer, experience = trainer_and_rollout(name, **settings)
    wanted = padded_gradients(trainer, experience)
    trainer.policy.model.zero_grad()
    batches = trainer.all_batches(experience)
    for batch in batches:
        trainer.loss(batch, Totals.of(batches), Metrics()).backward()
    grads = {key: p.grad for key, p in trainer.policy.model.named_parameters() if p.grad is not None}
    assert max(float(grad.abs().max()) for grad in wanted.values()) > 1e-4
    for key, grad in wanted.items():
        torch.testing.assert_close(grads[key], grad, rtol=1e-9, atol=1e-12, msg=lambda text, key=key: f"{key}: {text}")


def test_scoring_what_the_environment_said_would_give_another_gradient():
    """The control of the test above: it can tell the difference."""
    trainer, experience = trainer_and_rollout("grpo", aggregation="token", kl={"coef": 0.0})
    wanted = padded_gradients(trainer, experience)
    model = trainer.policy.model
    model.zero_grad()
    for group in experience.groups:
        for branch in group.branches:
            row = torch.tensor([[*group.prefix, *branch.tokens]])
            logprobs = model(row).logits[0, :-1].log_softmax(-1).gather(1, row[0, 1:, None]).squeeze(1)
            (-logprobs[len(group.prefix) - 1 :].sum() / len(experience.token_columns["advantages"])).backward()
    differences = [float((p.grad - wanted[name]).abs().max()) for name, p in model.named_parameters() if name in wanted]
    assert max(differences) > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_the_value_of_an_episode_stands_where_the_policy_speaks(name):
    """Rewards, KL and GAE run over the policy's own tokens: the score of an episode is on the last of them."""
    _, experience = trainer_and_rollout(name)
    ends = [int((experience.score_seq == s).nonzero()[-1]) for s in range(experience.num_sequences)]
    batch = experience.batch(range(len(experience.groups)))
    for sequence, end in enumerate(ends):
        branch = [b for g in experience.groups for b in g.branches][sequence]
        last_own = max(i for i, scored in enumerate(branch.scored or [True] * len(branch.tokens)) if scored)
        assert int(batch.score_token[end]) == branch.tokens[last_own]
    if name == "ppo":
        returns, values = experience.token_columns["returns"], experience.token_columns["values"]
        assert returns.shape == values.shape == experience.token_columns["old_logprobs"].shape


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_keeps_who_said_what(name):
    _, experience = trainer_and_rollout(name)
    again = type(experience).from_state(experience.state_dict())
    for number in range(len(experience.groups)):
        first, second = experience.batch([number]), again.batch([number])
        assert torch.equal(first.score_at, second.score_at)
        assert torch.equal(first.token_columns["advantages"], second.token_columns["advantages"])
