"""Engines that sample for a trainer: which weights they are told, and what becomes of one that samples from others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlhf.errors import TrainingError
from rlhf.rollout.local import LocalEngine
from rlhf.training.log import TrainingLogger
from rlhf.training.ppo import PPOTrainer
from tests.fixtures import toy

ONE_STEP = {"rollouts": 5, "epochs_per_rollout": 1, "minibatch_size": 12, "learning_rate": 3e-3}


def with_engine(engine_of, log=None, **settings):
    base = toy.build_trainer("ppo", **settings)
    return PPOTrainer(
        base.policy, base.config, base.prompts, base.inputs.scorer,
        value_model=base.value_model, reference=base.reference, eval_prompts=base.inputs.eval_prompts, engine=engine_of(base.policy), log=log,
    )  # fmt: skip


class Recording(LocalEngine):
    """Notes which versions it was told to sample with."""

    def __init__(self, policy):
        super().__init__(policy)
        self.told: list[int] = []

    def load_weights(self, version):
        self.told.append(version)
        super().load_weights(version)


def test_an_engine_is_told_every_version_of_the_weights_also_after_a_resume():
    trainer = with_engine(Recording, rollouts=3, eval_every=1, held_out=True)
    trainer.train()
    assert trainer.collector.engine.told == [0, 1, 1, 2, 2, 3], "to sample with, to be evaluated with"
    resumed = with_engine(Recording, rollouts=3, held_out=True)
    trainer.collector.version = 1
    resumed.load_state_dict(trainer.state_dict())
    resumed.evaluate()
    assert resumed.collector.engine.told == [2]


def test_an_engine_with_old_weights_stops_the_run():
    class Stale(LocalEngine):
        def load_weights(self, version):
            pass

    trainer = with_engine(Stale, rollouts=3)
    with pytest.raises(TrainingError, match=r"ppo: .*version 0, .* 1"):
        trainer.train()


@pytest.mark.parametrize(("autocast", "shift"), [("none", 0.01), ("bfloat16", 0.6)])
def test_a_sampler_in_this_process_that_goes_wrong_later_is_found(autocast, shift, monkeypatch):
    own = LocalEngine.generate

    def wrong_from_the_second_on(engine, prompts, *, rollout_index, **how):
        groups = own(engine, prompts, rollout_index=rollout_index, **how)
        return [[replace(c, logprobs=[x - shift * (rollout_index > 0) for x in c.logprobs]) for c in g] for g in groups]

    monkeypatch.setattr(LocalEngine, "generate", wrong_from_the_second_on)
    monkeypatch.setattr("rlhf.training.sampler_checks.CHECKED_EVERY", 2)
    log = TrainingLogger()
    toy.build_trainer("grpo", **ONE_STEP, autocast=autocast, log=log).train()
    alarms = [event for event in log.read("alarm") if event["guard"] == "engine"]
    assert [event["step"] for event in alarms] == [3, 5]
    assert "differ from the trainer's by up to" in alarms[0]["message"]


def test_an_engine_that_samples_from_another_model_raises_an_alarm_in_every_rollout():
    class Elsewhere(LocalEngine):
        def generate(self, *args, **kwargs):
            groups = super().generate(*args, **kwargs)
            return [[replace(c, logprobs=[x - 0.01 for x in c.logprobs]) for c in group] for group in groups]

    log = TrainingLogger()
    trainer = with_engine(Elsewhere, log=log, rollouts=3)
    trainer.train()
    assert [event["step"] for event in log.read("alarm")] == [1, 5, 9]
    assert "differ from the trainer's by up to 0.01 nats" in log.read("alarm")[1]["message"]
    ratios = [event["metrics"]["ppo/ratio_mean"] for event in log.read("metrics")]
    assert ratios[0] == pytest.approx(1, abs=1e-5), "the trainer's own numbers are the ones that count"


def test_an_engine_that_is_given_takes_the_same_steps_as_the_own_one():
    own, given = toy.build_trainer("ppo"), with_engine(LocalEngine)
    own.train()
    given.train()
    assert toy.largest_difference(toy.weights_of(own), toy.weights_of(given)) < 1e-5
