"""What is not a model, scorer or config is refused by the name of its parameter, before anything is done with it."""

from __future__ import annotations

import pytest

import rlhf
from rlhf.errors import ConfigError
from rlhf.rewards.composite import Component

GROUP = [{"prompt": "a", "completion": " b"}]


@pytest.fixture
def policy(tiny_llama, tiny_tokenizer):
    return rlhf.PolicyModel(tiny_llama, tiny_tokenizer)


@pytest.mark.parametrize(
    ("trainer", "config"),
    [
        (rlhf.SFTTrainer, rlhf.SFTConfig()),
        (rlhf.DPOTrainer, rlhf.DPOConfig()),
        (rlhf.SimPOTrainer, rlhf.SimPOConfig()),
        (rlhf.ORPOTrainer, rlhf.ORPOConfig()),
        (rlhf.KTOTrainer, rlhf.KTOConfig()),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_folder_is_no_policy_and_a_dict_no_config(trainer, config, policy):
    with pytest.raises(ConfigError, match=r"model .*'folder'.*from_pretrained"):
        trainer("folder", config, GROUP)
    with pytest.raises(ConfigError, match="config is a dict"):
        trainer(policy, {"learning_rate": 1e-5}, GROUP)


def test_judges_trainers_name_the_judge(policy):
    with pytest.raises(ConfigError, match=r"PolicyModel.*RewardModel\.from_policy"):
        rlhf.RewardModelTrainer(policy, rlhf.RewardModelConfig(), GROUP)
    with pytest.raises(ConfigError, match=r"PolicyModel.*ProcessRewardModel\.from_policy"):
        rlhf.ProcessRewardModelTrainer(policy, rlhf.ProcessRewardModelConfig(), GROUP)


def test_trainers_that_sample_name_each_input(policy, tiny_tokenizer):
    prompts = rlhf.GRPODataset(["What?"], tiny_tokenizer)
    good = {"policy": policy, "prompts": prompts, "scorer": rlhf.RuleBasedReward(), "reference": policy}
    wrong = {"policy": "folder", "scorer": 7, "reference": "folder", "prompts": ["What?"]}
    for name, value in wrong.items():
        with pytest.raises(ConfigError, match=name):
            rlhf.GRPOTrainer(config=rlhf.GRPOConfig(), **{**good, name: value})
    for trainer in (rlhf.PPOTrainer, rlhf.TRPOTrainer):
        kind = trainer.config_class
        with pytest.raises(ConfigError, match=r"value_model .*'critic'"):
            trainer(config=kind(), value_model="critic", **good)
        with pytest.raises(ConfigError, match="config is an SFTConfig"):
            trainer(config=rlhf.SFTConfig(), value_model=rlhf.ValueModel.from_policy(policy), **good)


def test_a_trainer_takes_a_function_or_settings_in_the_place_of_a_scorer(policy, tiny_tokenizer):
    good = {"policy": policy, "prompts": rlhf.GRPODataset(["What?"], tiny_tokenizer), "reference": policy}
    for scorer, name in ((lambda prompts, completions: [1.0], "lambda"), ("rules", "rules")):
        assert rlhf.GRPOTrainer(config=rlhf.GRPOConfig(), scorer=scorer, **good).inputs.scorer.name == name
    with pytest.raises(TypeError, match="'scorer'"):
        rlhf.GRPOTrainer(config=rlhf.GRPOConfig(), scorr=len, **good)


def test_an_input_that_is_left_out_is_named_with_what_it_is():
    with pytest.raises(
        TypeError, match=r"GRPOTrainer needs config=, prompts=, reference= \(.*ReferenceModel\(policy\)"
    ):
        rlhf.GRPOTrainer("folder")
    with pytest.raises(TypeError, match="DPOTrainer needs config=, train_data="):
        rlhf.DPOTrainer(model="folder")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: rlhf.LearnedReward(7), "model is an int"),
        (lambda: rlhf.ReferenceModel(7), "policy is an int"),
        (lambda: rlhf.PolicyModel("folder", None), "from_pretrained"),
        (lambda: rlhf.ValueModel.from_policy("folder"), "policy is the text"),
        (lambda: rlhf.CompositeReward([len]), "component"),
        (lambda: Component(scorer=len), "scorer is a builtin_function"),
        (lambda: rlhf.EnsembleReward([len, len]), "scorer"),
        (lambda: rlhf.EnsembleReward("folder"), "scorers is the text"),
        (lambda: rlhf.ValueModel("folder"), "model is the text"),
        (lambda: rlhf.RewardModel("folder", None), "members is the text"),
        (lambda: rlhf.ProcessRewardModel("folder", None), "member is the text"),
        (lambda: rlhf.RewardFunctionFactory().from_function(7), "function is an int"),
        (lambda: rlhf.Pipeline("recipe.yaml"), "load_recipe"),
        (lambda: rlhf.RLHFTrainer({"model_name": "a"}), "config is a dict"),
        (lambda: rlhf.HumanEvalProtocol(criteria=["clear"]), "AnnotationGuideline"),
        (lambda: rlhf.SFTDataset(GROUP, "folder"), "tokenizer is the text 'folder'"),
        (lambda: rlhf.GRPODataset(GROUP, None), "tokenizer is None"),
    ],
)
def test_other_doors(call, words):
    with pytest.raises(ConfigError, match=words):
        call()
