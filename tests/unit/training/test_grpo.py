from __future__ import annotations

import pytest
import torch

from rlhf.rewards.types import ScoreResult
from rlhf.training.algorithm import Totals
from rlhf.training.metrics import Metrics
from tests.fixtures import toy


class Given:
    """Scores from a list, in order."""

    name = "given"

    def __init__(self, scores: list[float]) -> None:
        self.scores = scores

    def score(self, prompts, completions):
        return ScoreResult(self.scores[: len(completions)])


SCORES = [1.0, 2.0, 6.0, 0.0, 0.0, 3.0, 5.0, 5.0, 5.0, 1.0, 0.0, 0.0]


def test_a_group_of_equal_scores_teaches_nothing():
    trainer = toy.build_trainer("grpo", scorer=toy.Constant(0.7), kl={"coef": 0.0}, rollouts=3)
    before = toy.weights_of(trainer)
    result = trainer.train()
    assert toy.largest_difference(toy.weights_of(trainer), before) == 0.0
    assert result.metrics["grad_norm"] == 0.0
    metrics = Metrics()
    trainer.collect(0, metrics)
    assert metrics.result()["grpo/equal_groups_frac"] == 1.0
    assert metrics.result()["grpo/reward_std"] == 0.0


def test_every_token_of_a_completion_has_its_advantage_over_its_siblings():
    metrics = Metrics()
    trainer = toy.build_trainer("grpo", scorer=Given(SCORES), advantage="group_mean")
    experience = trainer.collect(0, metrics)
    # less the means of each three: 3, 1, 5 and 1/3
    expected = torch.tensor([-2.0, -1.0, 3.0, -1.0, -1.0, 2.0, 0.0, 0.0, 0.0, 2 / 3, -1 / 3, -1 / 3])
    torch.testing.assert_close(experience.token_columns["advantages"], expected[experience.score_seq])
    found = metrics.result()
    assert found["grpo/reward_mean"] == pytest.approx(sum(SCORES) / 12)
    assert found["grpo/advantage_mean"] == pytest.approx(0, abs=1e-6)
    assert found["grpo/equal_groups_frac"] == 0.25


def test_dividing_by_the_deviation_makes_groups_alike():
    trainer = toy.build_trainer("grpo", scorer=Given(SCORES))
    experience = trainer.collect(0, Metrics())
    firsts = [int((experience.score_seq == s).nonzero()[0]) for s in range(12)]
    by_group = experience.token_columns["advantages"][firsts].view(4, 3)
    assert by_group.std(dim=1).tolist() == pytest.approx([1, 1, 0, 1], abs=1e-3)


def test_a_penalty_in_the_reward_is_paid_by_the_whole_completion():
    trainer = toy.build_trainer(
        "grpo", scorer=toy.Constant(0.0), advantage="group_mean", kl={"where": "reward", "estimator": "k1", "coef": 0.5}
    )
    toy.change_weights(trainer.policy.model, by=0.2)
    experience = trainer.collect(0, Metrics())
    columns = experience.token_columns
    gap = torch.zeros(12).index_add(0, experience.score_seq, columns["old_logprobs"] - columns["ref_logprobs"])
    rewards = -0.5 * gap
    expected = rewards - rewards.view(4, 3).mean(1).repeat_interleave(3)
    torch.testing.assert_close(columns["advantages"], expected[experience.score_seq])


@pytest.mark.parametrize("how", ["token", "sequence", "constant"])
def test_the_loss_is_brought_to_one_number_as_asked(how):
    trainer = toy.build_trainer("grpo", scorer=Given(SCORES), aggregation=how, kl={"coef": 0.0}, advantage="group_mean")
    experience = trainer.collect(0, Metrics())
    # cut some completions short, so that the three ways differ
    for number, group in enumerate(experience.groups):
        for place, branch in enumerate(group.branches):
            object.__setattr__(branch, "tokens", branch.tokens[: 1 + (number + place) % 4])
    fresh = type(experience)(experience.groups)
    advantages = torch.tensor([-2.0, -1.0, 3.0, -1.0, -1.0, 2.0, 0.0, 0.0, 0.0, 2 / 3, -1 / 3, -1 / 3])
    old = fresh.map(trainer.policy.logprobs, max_tokens=10**6)
    fresh.token_columns.update(old_logprobs=old, ref_logprobs=old, advantages=advantages[fresh.score_seq])
    batches = fresh.batches(range(4), max_tokens=10)
    loss = float(sum(trainer.loss(b, Totals.of(batches), Metrics()).detach() for b in batches))
    # the ratio is 1 everywhere, so a token's loss is minus its advantage
    lengths = [1 + (s // 3 + s % 3) % 4 for s in range(12)]
    weighted = sum(n * a for n, a in zip(lengths, advantages.tolist(), strict=True))
    expected = {"token": -weighted / sum(lengths), "sequence": 0.0, "constant": -weighted / (12 * 5)}[how]
    assert loss == pytest.approx(expected, abs=1e-5)


def test_groups_stay_whole_when_a_rollout_is_cut_into_steps():
    trainer = toy.build_trainer("grpo", prompts_per_rollout=5, sequences_per_step=6)
    steps = list(trainer.steps(0, trainer.collect(0, Metrics())))
    assert trainer.steps_per_phase == len(steps) == 6  # 2 epochs of 5 groups, 2 to a step
    sizes = [[batch.num_groups for batch in step] for step in steps]
    assert sizes == [[2], [2], [1]] * 2
    assert all(batch.num_sequences == 3 * batch.num_groups for step in steps for batch in step)
