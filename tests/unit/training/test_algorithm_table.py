"""Methods by name, built from Python."""

from __future__ import annotations

import importlib

import pytest

from rlhf import ALGORITHMS, GRPOTrainer, PolicyModel, SFTDataset, SFTTrainer
from rlhf.config.methods import METHODS
from rlhf.config.sft import SFTConfig
from rlhf.config.stages import MODEL_STAGES
from rlhf.data.contracts import Prompt
from rlhf.errors import ConfigError, UnknownNameError
from rlhf.models.reference import ReferenceModel
from rlhf.rewards.rules import RuleBasedReward


@pytest.fixture
def policy(tiny_llama, tiny_tokenizer):
    return PolicyModel(tiny_llama, tiny_tokenizer)


@pytest.fixture
def rows(tiny_tokenizer):
    return SFTDataset([{"prompt": "a", "completion": " b"}] * 4, tiny_tokenizer)


@pytest.fixture
def own_name():
    yield "mine"
    if "mine" in ALGORITHMS.registered:
        ALGORITHMS.remove("mine")


def test_every_kind_that_trains_is_there_with_the_settings_class_of_its_trainer():
    assert list(ALGORITHMS) == [name for name, method in METHODS.items() if method.kind in MODEL_STAGES]
    for name, entry in ALGORITHMS.items():
        entry.config.of(dict(entry.settings), source=name)
        assert callable(entry.trainer_class().train)
        assert entry.config.__module__ != importlib.import_module("rlhf.config.training_stages").__name__


def test_a_trainer_is_built_from_inputs_and_settings(policy, rows):
    trainer = ALGORITHMS.build("dft", model=policy, train_data=rows, max_steps=1, batch_size=2)
    assert isinstance(trainer, SFTTrainer)
    assert (trainer.config.loss, trainer.config.batch_size) == ("dft", 2)
    assert trainer.train().steps == 1


def test_the_reference_is_made_from_the_policy_unless_it_is_given(policy, tiny_tokenizer):
    prompts = [Prompt("a", tiny_tokenizer("What?").input_ids, text="What?")]
    trainer = ALGORITHMS.build(
        "dapo",
        policy=policy,
        prompts=prompts,
        scorer=RuleBasedReward(),
        prompts_per_rollout=1,
        minibatch_size=8,
        group_size=8,
    )
    assert isinstance(trainer, GRPOTrainer)
    assert (trainer.name, trainer.config.clip_high) == ("dapo", 0.28)
    assert isinstance(trainer.reference, ReferenceModel)


def test_what_is_wrong_is_named(policy, rows):
    with pytest.raises(UnknownNameError, match="ppo"):
        ALGORITHMS.build("ppoo")
    with pytest.raises(ConfigError, match="learning_rate"):
        ALGORITHMS.build("sft", model=policy, train_data=rows, learning_rat=1)
    with pytest.raises(ConfigError, match="train_data="):
        ALGORITHMS.build("sft", model=policy)
    with pytest.raises(ConfigError, match="beta"):
        ALGORITHMS.build("dpo", model=policy, train_data=rows, beta=-1)


def test_a_trainer_registered_in_this_process_is_built_by_its_name(policy, rows, own_name):
    class Mine(SFTTrainer):
        pass

    ALGORITHMS.register(own_name, Mine, SFTConfig, {"batch_size": 4})
    assert ALGORITHMS.registered == [own_name]
    trainer = ALGORITHMS.build(own_name, model=policy, train_data=rows)
    assert isinstance(trainer, Mine)
    assert trainer.config.batch_size == 4
    with pytest.raises(ConfigError, match="'ppo'"):
        ALGORITHMS.register("ppo", Mine, SFTConfig)
    with pytest.raises(ConfigError, match="train"):
        ALGORITHMS.register(own_name, dict, SFTConfig)
    with pytest.raises(ConfigError, match="TrainConfig"):
        ALGORITHMS.register(own_name, Mine, dict)
    with pytest.raises(ConfigError, match="batch_size"):
        ALGORITHMS.register(own_name, Mine, SFTConfig, {"batch_size": 0})
