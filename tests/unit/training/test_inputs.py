"""A trainer is called with the fields of its inputs object, or with the object."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

import rlhf
from rlhf.config.grpo_settings import GRPOConfig
from rlhf.config.sft import SFTConfig
from rlhf.errors import ConfigError
from rlhf.models.reference import ReferenceModel
from rlhf.training.grpo import GRPOTrainer
from rlhf.training.inputs import OfflineInputs, RLInputs
from rlhf.training.ppo import PPOTrainer
from rlhf.training.sft import SFTTrainer
from tests.fixtures import toy


def test_fields_and_object_give_the_same_trainer():
    def trained(*, as_object: bool):
        policy = toy.build_policy()
        config, scorer, reference = GRPOConfig.of(toy.SHORT["grpo"]), toy.ShareOfGood(), ReferenceModel(policy)
        if as_object:
            trainer = GRPOTrainer(RLInputs(policy, config, toy.prompts(8), scorer, reference=reference))
        else:
            trainer = GRPOTrainer(policy, config, toy.prompts(8), scorer, reference=reference)
        trainer.train()
        return toy.weights_of(trainer)

    assert toy.largest_difference(trained(as_object=True), trained(as_object=False)) == 0


def test_the_scorer_may_be_given_as_reward_and_a_function_is_one():
    def longest(prompts, completions, **columns):
        return [float(len(completion)) for completion in completions]

    policy, config = toy.build_policy(), GRPOConfig.of(toy.SHORT["grpo"])
    rest = {"reference": ReferenceModel(policy)}
    trainer = GRPOTrainer(policy, config, toy.prompts(8), reward=longest, **rest)
    assert trainer.inputs.scorer.name == "longest"
    with pytest.raises(TypeError, match=r"GRPOTrainer .*'scorer' and 'reward'"):
        GRPOTrainer(policy, config, toy.prompts(8), longest, reward=longest, **rest)
    with pytest.raises(TypeError, match=r"GRPOTrainer .*'scorer' and 'reward'"):
        GRPOTrainer(policy, config, toy.prompts(8), scorer=longest, reward=longest, **rest)


def test_a_public_trainer_takes_reward_and_answers_other_names_for_it():
    policy = toy.build_policy()
    given = {"reference": ReferenceModel(policy), "reward": toy.ShareOfGood()}
    trainer = rlhf.GRPOTrainer(policy, GRPOConfig.of(toy.SHORT["grpo"]), toy.prompts(8), **given)
    assert isinstance(trainer.inputs.scorer, toy.ShareOfGood)
    with pytest.raises(TypeError, match=r"'reward_funcs'.* 'reward'"):
        rlhf.GRPOTrainer(policy, GRPOConfig.of(toy.SHORT["grpo"]), toy.prompts(8), reward_funcs=[toy.ShareOfGood()])


def test_a_trainer_on_files_takes_its_object_too():
    policy, rows = toy.build_policy(), toy.rows(4)
    trainer = SFTTrainer(OfflineInputs(policy, SFTConfig(), rows))
    assert trainer.policy is policy
    assert trainer.rows.num_steps == SFTTrainer(policy, SFTConfig(), rows).rows.num_steps


@pytest.mark.parametrize(("keyword", "meant"), [("refrence", "reference"), ("value_modle", "value_model")])
def test_a_keyword_that_is_no_field_is_answered_with_the_nearest(keyword, meant):
    with pytest.raises(TypeError, match=f"PPOTrainer .*'{keyword}'.* '{meant}'"):
        PPOTrainer(toy.build_policy(), None, [], None, **{keyword: None})


def test_help_shows_the_fields():
    shown = list(inspect.signature(GRPOTrainer).parameters)
    assert shown[:4] == ["policy", "config", "prompts", "scorer"]
    assert "checkpoint_dir" in shown


@pytest.mark.parametrize(("name", "field"), [("ppo", "value_model"), ("distill", "teacher")])
def test_what_a_method_needs_beyond_the_others_is_asked_for_by_name(name, field):
    given = toy.build_trainer(name).inputs
    with pytest.raises(ConfigError, match=f"{field}="):
        type(toy.build_trainer(name))(dataclasses.replace(given, **{field: None}))
