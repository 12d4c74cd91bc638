"""A reference that follows the policy."""

from __future__ import annotations

import pytest
import torch

from rlhf.config.grpo_settings import GRPOConfig
from rlhf.config.on_policy import DistillConfig
from rlhf.errors import ConfigError, ModelError
from rlhf.models.reference import ReferenceModel
from rlhf.training.grpo import GRPOTrainer
from rlhf.training.log import TrainingLogger
from rlhf.training.moving_reference import MovingReference
from tests.fixtures import toy

KL = {"where": "loss", "estimator": "k3", "coef": 0.5}


def build(**settings):
    log = TrainingLogger()
    return toy.build_trainer("grpo", log=log, dtype=torch.float64, kl=KL, **settings), log


def test_it_moves_before_every_second_rollout_by_its_share_of_the_way_to_the_policy():
    trainer, _ = build(rollouts=5, moving_reference={"every": 2, "decay": 0.75})
    policies, real = [toy.weights_of(trainer)], trainer.collect

    def watched(rollout_index, metrics):
        policies.append(toy.weights_of(trainer))
        return real(rollout_index, metrics)

    trainer.collect = watched
    trainer.train()
    start, second, fourth = policies[0], policies[3], policies[5]  # before rollouts 2 and 4, counted from 0
    kept = {f"policy.{name.removeprefix('model.')}": p for name, p in trainer.reference.copy.named_parameters()}
    assert kept.keys() == start.keys()
    for name, value in kept.items():
        expected = 0.75 * (0.75 * start[name] + 0.25 * second[name]) + 0.25 * fourth[name]
        torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-14)


def test_the_kl_is_that_to_where_it_is():
    kls = {}
    for moving in (None, {"every": 1, "decay": 0.0}):
        trainer, log = build(rollouts=3, moving_reference=moving, learning_rate=3e-3)
        trainer.train()
        kls[moving is None] = [
            e["metrics"]["grpo/ref_kl"] for e in log.read("metrics") if "grpo/ref_kl" in e["metrics"]
        ]
    assert kls[True][0] == kls[False][0]
    assert kls[False] == pytest.approx([0, 0, 0], abs=1e-9), "with decay 0 it is the policy at every rollout"
    assert abs(kls[True][2]) > 1e-5


@pytest.mark.parametrize("name", ["ppo", "grpo", "online_dpo", "trpo"])
def test_one_that_moves_changes_what_is_learned(name):
    ends = []
    for moving in (None, {"decay": 0.1}):
        trainer = toy.build_trainer(name, rollouts=3, moving_reference=moving)
        trainer.train()
        ends.append(toy.weights_of(trainer))
    assert toy.largest_difference(*ends) > 0


def test_a_rollout_that_is_broken_off_moves_it_once():
    trainer, _ = build(rollouts=3, moving_reference={"decay": 0.5})
    toy.change_weights(trainer.policy, by=0.1)
    before = trainer.moving_reference.state_dict()
    trainer.moving_reference.before_rollout(1)
    once = trainer.moving_reference.state_dict()
    trainer.moving_reference.load_state_dict(before)
    trainer.moving_reference.before_rollout(1)
    again = trainer.moving_reference.state_dict()
    assert all(torch.equal(once[name], again[name]) for name in once)
    assert any(not torch.equal(once[name], before[name]) for name in once)


def test_an_evaluation_measures_the_kl_to_where_the_reference_began_too():
    """Decay 0 and an eager pace: the reference is almost the policy, and only the first one shows how far it went."""
    actual = {}
    for moving in (None, {"every": 1, "decay": 0.0}):
        trainer, _ = build(rollouts=4, moving_reference=moving, learning_rate=3e-3, held_out=True)
        trainer.train()
        before = toy.weights_of(trainer)
        where = {name: kept.clone() for name, kept in trainer.reference.copy.named_parameters()}
        actual[moving is None] = trainer.evaluate()
        assert toy.largest_difference(before, toy.weights_of(trainer)) == 0
        assert all(torch.equal(where[name], kept) for name, kept in trainer.reference.copy.named_parameters())
    assert "eval/first_ref_kl" not in actual[True]
    moved = actual[False]
    assert moved["eval/first_ref_kl"] != pytest.approx(moved["eval/ref_kl"], abs=1e-4)
    trainer, _ = build(rollouts=4, moving_reference={"decay": 0.0}, learning_rate=3e-3, held_out=True)
    first = ReferenceModel(trainer.policy)
    trainer.train()
    wanted = trainer.evaluate()["eval/first_ref_kl"]
    trainer.reference = first
    assert trainer.evaluate()["eval/ref_kl"] == wanted


def test_nothing_is_kept_where_nothing_is_evaluated():
    trainer, _ = build(rollouts=2, moving_reference={"decay": 0.5})
    assert trainer.moving_reference.first is None


def test_what_cannot_follow_is_refused():
    policy = toy.build_policy()
    config = GRPOConfig.of({"moving_reference": {}})
    with pytest.raises(ConfigError, match="moving_reference"):
        GRPOTrainer(policy, config, toy.prompts(8), toy.ShareOfGood(), reference=toy.build_policy())
    with pytest.raises(ConfigError, match="name or shape"):
        MovingReference(ReferenceModel(toy.build_policy(llama=True)), policy, every=1, decay=0.9)
    with pytest.raises(ModelError, match="moving reference"):
        MovingReference(ReferenceModel(policy, dtype=torch.bfloat16), policy, every=1, decay=0.9)


@pytest.mark.parametrize("moving", [{"decay": 1.0}, {"decay": -0.1}, {"every": 0}])
def test_impossible_moves_are_refused(moving):
    with pytest.raises(ConfigError, match="moving_reference"):
        GRPOConfig.of({"moving_reference": moving})


def test_where_nothing_pulls_nothing_moves():
    with pytest.raises(ConfigError, match=r"kl\.where"):
        GRPOConfig.of({"moving_reference": {}, "kl": {"where": "none"}})
    with pytest.raises(ConfigError, match="moving_reference"):
        DistillConfig.of({"moving_reference": {}})
