"""Wrong keywords of constructors, and names that are looked for, are answered with the right ones."""

from __future__ import annotations

import inspect
import re

import pytest

import rlhf
from rlhf.config.foreign.names import ABSENT_ARGUMENTS, ARGUMENTS, NAMES, explain_arguments
from rlhf.errors import ConfigError, UnknownArgumentError


def constructors():
    public = {name: getattr(rlhf, name) for name in rlhf.PUBLIC}
    return {name: cls for name, cls in public.items() if inspect.isclass(cls) and cls.__module__.startswith("rlhf.")}


@pytest.mark.parametrize(
    ("name", "argument", "right"),
    [
        ("PolicyModel", "base_model", "'model'"),
        ("GRPOTrainer", "num_generations", "GRPOConfig(group_size=...)"),
        ("GRPOTrainer", "learning_rate", "GRPOConfig(learning_rate=...)"),
        ("PPOTrainer", "kl_coef", "PPOConfig(kl={'coef': ...})"),
        ("DPOTrainer", "ref_model", "'reference'"),
        ("DPOTrainer", "beta", "DPOConfig(beta=...)"),
        ("RewardModelTrainer", "base_model", "'model'"),
        ("SFTTrainer", "processing_class", "tokenizer"),
        ("LearnedReward", "reward_model", "'model'"),
    ],
)
def test_a_wrong_keyword_of_a_constructor_is_answered(name, argument, right):
    with pytest.raises(UnknownArgumentError) as caught:
        getattr(rlhf, name)(**{argument: 1})
    assert argument in str(caught.value)
    assert right in str(caught.value)
    assert isinstance(caught.value, TypeError)


def test_all_wrong_keywords_are_named_and_the_right_ones_work():
    class Trainer:
        def __init__(self, policy, config=None):
            self.policy = policy

    explain_arguments(Trainer)
    with pytest.raises(UnknownArgumentError) as caught:
        Trainer(model=1, args=2)
    assert "'policy'" in str(caught.value)
    assert "'config'" in str(caught.value)
    assert Trainer(policy=3).policy == 3
    assert list(inspect.signature(Trainer).parameters) == ["policy", "config"]
    with pytest.raises(TypeError, match="missing 1 required"):
        Trainer()


def test_from_pretrained_is_answered_too():
    with pytest.raises(UnknownArgumentError, match=r"PolicyModel\.from_pretrained.*ModelConfig\(dtype"):
        rlhf.PolicyModel.from_pretrained("model", torch_dtype="bfloat16")


@pytest.mark.parametrize(
    ("config", "key", "right"),
    [
        ("PPOConfig", "value_clip_range", "'clip_value'"),
        ("PPOConfig", "kl_penalty_coef", "'kl.coef'"),
        ("RewardModelConfig", "base_model", "'model'"),
    ],
)
def test_a_wrong_key_of_a_config_is_answered_by_the_same_tables(config, key, right):
    with pytest.raises(ConfigError) as caught:
        getattr(rlhf, config)(**{key: 1})
    assert right in str(caught.value)


@pytest.mark.parametrize("name", sorted(NAMES.keys() - rlhf.PUBLIC.keys()))
def test_a_name_that_is_not_here_says_what_to_use(name):
    with pytest.raises(ImportError, match=re.escape(NAMES[name])):
        exec(f"from rlhf import {name}")


def test_losses_and_classes_that_are_named_exist():
    import rlhf.losses

    for text in NAMES.values():
        for word in text.replace(";", " ").replace(",", " ").split():
            if word.startswith("rlhf.losses."):
                assert hasattr(rlhf.losses, word.removeprefix("rlhf.losses.").rstrip(".")), word


def test_an_argument_that_is_suggested_is_one_of_some_class():
    taken = {name for cls in constructors().values() for name in inspect.signature(cls).parameters}
    for theirs, ours in ARGUMENTS.items():
        assert taken & set(ours), theirs
    assert not ABSENT_ARGUMENTS.keys() & ARGUMENTS.keys()
