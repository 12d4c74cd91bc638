"""What is checked at the start of every policy run, and what is said when it does not hold."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from torch import nn

from rlhf.errors import TrainingError
from rlhf.models.reference import ReferenceModel
from rlhf.rollout.local import LocalEngine
from rlhf.training.grpo import GRPOTrainer
from rlhf.training.log import TrainingLogger
from tests.fixtures import toy

NAMES = ("ppo", "grpo")


def alarms(log: TrainingLogger) -> list[str]:
    return [event["message"] for event in log.read("alarm")]


@pytest.mark.parametrize("name", NAMES)
def test_a_sound_run_notes_its_self_checks_and_raises_no_alarm(name):
    log = TrainingLogger(stage=name)
    toy.build_trainer(name, log=log).train()
    assert alarms(log) == []
    (note,) = [e["message"] for e in log.read("note") if "Self-checks" in e["message"]]
    assert "gap between sampler and trainer" in note
    assert "first ratio's distance from 1" in note
    assert "KL to the reference" in note


@pytest.mark.parametrize("name", NAMES)
def test_dropout_left_on_is_found_by_the_first_ratio(name):
    log = TrainingLogger(stage=name)
    toy.build_trainer(name, log=log, dropout=0.5).train()
    (actual,) = [message for message in alarms(log) if "first ratio" in message]
    assert "should be below 0.001" in actual
    assert "Is dropout on" in actual


def test_behind_a_warm_up_of_the_critic_the_first_ratio_is_that_of_the_policys_first_step():
    def run(dropout: float) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
        log = TrainingLogger(stage="ppo")
        toy.build_trainer("ppo", log=log, dropout=dropout, rollouts=3, value_warmup_rollouts=1).train()
        notes = [(e["step"], e["message"]) for e in log.read("note") if "Self-checks" in e["message"]]
        return notes, [(e["step"], e["message"]) for e in log.read("alarm") if e["guard"] == "self-check"]

    notes, none = run(dropout=0.0)
    assert none == []
    assert [step for step, _ in notes] == [1, 5]
    assert "first ratio" not in notes[0][1]
    assert "step 5, the policy's first: the first ratio's distance from 1" in notes[1][1]
    _, actual = run(dropout=0.5)
    assert [step for step, _ in actual] == [5]
    assert "first ratio's distance from 1" in actual[0][1]
    assert "Is dropout on" in actual[0][1]


def test_a_reference_that_claims_to_be_the_policy_but_scores_otherwise_is_found():
    class Lying(ReferenceModel):
        def logprobs(self, batch: Any, *, temperature: float = 1.0) -> Any:
            return super().logprobs(batch, temperature=2 * temperature)

        def fingerprint(self) -> str:
            return policy.fingerprint()

    policy = toy.build_policy()
    log = TrainingLogger(stage="grpo")
    config = toy.GRPOConfig.of(toy.SHORT["grpo"])
    GRPOTrainer(policy, config, toy.prompts(8), toy.ShareOfGood(), reference=Lying(policy), log=log).train()
    (actual,) = [message for message in alarms(log) if "KL to the reference" in message]
    assert "the reference is not the policy that this run starts from" in actual


def test_another_reference_on_purpose_is_no_alarm():
    policy, other = toy.build_policy(), toy.build_policy(seed=1)
    log = TrainingLogger(stage="grpo")
    config = toy.GRPOConfig.of(toy.SHORT["grpo"])
    GRPOTrainer(policy, config, toy.prompts(8), toy.ShareOfGood(), reference=ReferenceModel(other), log=log).train()
    assert alarms(log) == []


class Outside(LocalEngine):
    """An engine with weights of its own, as one in another process has."""

    def __init__(self, policy: Any, *, follows: bool, stuck_after: int = 10**9) -> None:
        super().__init__(copy.deepcopy(policy))
        self.trained, self.follows, self.stuck_after = policy, follows, stuck_after

    def load_weights(self, version: int) -> None:
        super().load_weights(version)
        if self.follows and version < self.stuck_after:
            self.policy.load_state_dict(self.trained.state_dict())


def train_with(engine: Any, policy: Any, log: TrainingLogger, **settings: Any) -> None:
    config = toy.GRPOConfig.of({**toy.SHORT["grpo"], "rollouts": 4, "learning_rate": 1e-2, **settings})
    reference = ReferenceModel(policy)
    GRPOTrainer(policy, config, toy.prompts(8), toy.ShareOfGood(), reference=reference, engine=engine, log=log).train()


def test_an_engine_that_follows_is_sound():
    policy, log = toy.build_policy(), TrainingLogger(stage="grpo")
    train_with(Outside(policy, follows=True), policy, log)
    assert alarms(log) == []


def test_an_engine_that_never_gets_the_trained_weights_stops_the_run_at_the_first_that_were_trained():
    policy, log = toy.build_policy(), TrainingLogger(stage="grpo")
    with pytest.raises(TrainingError) as caught:
        train_with(Outside(policy, follows=False), policy, log)
    message = str(caught.value)
    assert "the engine's weights are not the trainer's at version 1" in message
    assert "an adapter that never reached the sampler" in message
    assert "load_weights" in message


def test_an_engine_that_gets_stuck_later_is_found_by_its_log_probabilities():
    policy, log = toy.build_policy(), TrainingLogger(stage="grpo")
    train_with(Outside(policy, follows=True, stuck_after=2), policy, log)
    messages = [message for message in alarms(log) if "log-probabilities differ" in message]
    assert messages
    assert "stale weights" in messages[0]


def test_an_engine_that_says_an_old_version_is_refused():
    class Forgetful(LocalEngine):
        def load_weights(self, version: int) -> None:
            super().load_weights(0)

    policy = toy.build_policy()
    with pytest.raises(TrainingError, match=r"version 0.* 1"):
        train_with(Forgetful(policy), policy, TrainingLogger(stage="grpo"))


def test_modules_are_left_in_evaluation_mode_after_training():
    trainer = toy.build_trainer("grpo")
    trainer.train()
    module: nn.Module = trainer.policy.model
    assert not module.training
