from __future__ import annotations

import math

import pytest
import torch

from rlhf.config.on_policy import OnlineDPOConfig
from rlhf.data.pack import Branch, Group
from rlhf.errors import ConfigError
from rlhf.losses import segment_sum
from rlhf.training.algorithm import Totals
from rlhf.training.experience import RolloutExperience
from rlhf.training.log import TrainingLogger
from rlhf.training.loop import Loop
from rlhf.training.metrics import Metrics
from rlhf.training.online_dpo import best_and_worst
from tests.fixtures import toy


def experience(scores, lengths=None):
    """Groups of three completions, each of its own length; token numbers say where they were."""
    lengths = lengths or [1 + number % 3 for number in range(len(scores))]
    branches = [Branch([3 + number] * length) for number, length in enumerate(lengths)]
    groups = [Group([5, 6], branches[first : first + 3], {"id": str(first)}) for first in range(0, len(scores), 3)]
    return RolloutExperience(
        groups,
        columns={"scores": torch.tensor(scores)},
        token_columns={"number": torch.repeat_interleave(torch.arange(len(scores)), torch.tensor(lengths))},
    )


def test_the_best_comes_first_and_the_worst_second_with_all_that_belongs_to_them():
    pairs = best_and_worst(experience([0.0, 2.0, 1.0, 5.0, 4.0, 3.0]))
    assert [[list(b.tokens) for b in group.branches] for group in pairs.groups] == [[[4, 4], [3]], [[6], [8, 8, 8]]]
    assert pairs.columns["scores"].tolist() == [2.0, 0.0, 5.0, 3.0]
    assert pairs.token_columns["number"].tolist() == [1, 1, 0, 3, 5, 5, 5]
    assert pairs.columns["teaches"].tolist() == [1.0] * 4
    assert [group.columns["id"] for group in pairs.groups] == ["0", "3"]


def test_of_equal_scores_the_pair_is_still_two_completions():
    pairs = best_and_worst(experience([1.0, 0.0, 1.0, 0.0, 1.0, 0.0]))
    assert pairs.token_columns["number"].unique_consecutive().tolist() == [0, 1, 4, 5]


def test_groups_of_equal_scores_are_left_out():
    pairs = best_and_worst(experience([1.0, 1.0, 1.0, 5.0, 4.0, 3.0]))
    assert [group.columns["id"] for group in pairs.groups] == ["3"]


def test_where_all_scores_are_equal_the_rollout_stays_and_teaches_nothing():
    pairs = best_and_worst(experience([1.0] * 6))
    assert len(pairs.groups) == 2
    assert pairs.columns["teaches"].tolist() == [0.0] * 4
    log = TrainingLogger()
    trainer = toy.build_trainer("online_dpo", scorer=toy.Constant(1.0), log=log, rollouts=1)
    before = toy.weights_of(trainer)
    metrics = Metrics()
    batches = next(iter(trainer.steps(0, trainer.collect(0, metrics))))
    assert metrics.result()["online_dpo/equal_groups_frac"] == 1
    loss = trainer.loss(batches[0], Totals.of(batches), Metrics())
    assert float(loss.detach()) == 0
    trainer.train()
    assert toy.largest_difference(toy.weights_of(trainer), before) == 0
    assert {e["guard"] for e in log.read("alarm")} == {"equal_rewards"}


def test_the_first_step_costs_log_2_and_its_ratios_are_1():
    trainer = toy.build_trainer("online_dpo", dtype=torch.float64)
    loop = Loop(trainer, trainer.config)
    figures = loop._step(next(iter(trainer.steps(0, trainer.collect(0, Metrics())))))
    assert figures["loss/train"] == pytest.approx(math.log(2), rel=1e-6)
    assert figures["online_dpo/ratio_max"] == pytest.approx(1, abs=1e-5)
    assert figures["online_dpo/reward_margin"] == pytest.approx(0, abs=1e-6)


def test_the_loss_is_that_of_dpo_on_the_margin_by_hand():
    trainer = toy.build_trainer("online_dpo", dtype=torch.float64, beta=0.7)
    pairs = trainer.collect(0, Metrics())
    toy.change_weights(trainer.policy.model, by=0.1)
    batch = pairs.batch(range(len(pairs.groups)))
    metrics = Metrics()
    loss = trainer.loss(batch, Totals.of([batch]), metrics)
    log_ratio = trainer.policy.logprobs(batch) - trainer.reference.logprobs(batch)
    sums = segment_sum(log_ratio, batch.score_seq, batch.num_sequences)
    margins = sums[0::2] - sums[1::2]
    expected = sum(math.log1p(math.exp(-0.7 * margin)) for margin in margins.tolist()) / len(margins)
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-6)
    assert metrics.result()["online_dpo/reward_margin"] == pytest.approx(0.7 * float(margins.mean()), rel=1e-6)


def test_a_step_makes_the_better_completion_likelier_than_the_worse_one():
    trainer = toy.build_trainer("online_dpo", learning_rate=1e-2)
    pairs = trainer.collect(0, Metrics())
    batch = pairs.batch(range(len(pairs.groups)))

    def margin():
        sums = segment_sum(trainer.policy.logprobs(batch), batch.score_seq, batch.num_sequences)
        return float((sums[0::2] - sums[1::2]).mean())

    before = margin()
    loop = Loop(trainer, trainer.config)
    for batches in trainer.steps(0, pairs):
        loop._step(batches)
    assert margin() > before + 0.1


def test_only_the_policy_changes():
    trainer = toy.build_trainer("online_dpo")
    reference = trainer.reference.fingerprint()
    before = toy.weights_of(trainer)
    trainer.train()
    assert trainer.reference.fingerprint() == reference
    assert toy.largest_difference(toy.weights_of(trainer), before) > 0
    assert list(toy.modules_of(trainer)) == ["policy"]


def test_the_policy_gets_better():
    log = TrainingLogger()
    trainer = toy.build_trainer(
        "online_dpo", log=log, rollouts=10, prompts_per_rollout=32, group_size=2, minibatch_size=32,
        learning_rate=1e-2, epochs_per_rollout=1, beta=0.1,
    )  # fmt: skip
    trainer.train()
    scores = [
        e["metrics"]["online_dpo/score_mean"] for e in log.read("metrics") if "online_dpo/score_mean" in e["metrics"]
    ]
    assert scores[-1] > scores[0] + 0.1


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"loss": "ipo", "label_smoothing": 0.1}, "label_smoothing belongs to"),
        ({"loss": "exo"}, "without label_smoothing; give one"),
        ({"kl": {"where": "reward"}}, "leave kl.where at `none`"),
        ({"policy_loss": "clip"}, "policy_loss does nothing for online DPO"),
        ({"aggregation": "sequence"}, "aggregation does nothing for online DPO"),
        ({"entropy_coef": 0.1}, "entropy_coef does nothing for online DPO"),
        ({"importance": {}}, "importance does nothing for online DPO"),
        ({"group_size": 1}, "group_size"),
    ],
)
def test_what_would_be_ignored_is_refused(settings, complaint):
    with pytest.raises(ConfigError, match=complaint):
        OnlineDPOConfig.of(settings)
