from __future__ import annotations

import inspect

import pytest

from rlhf.config import grpo_settings, policy, preference, sft, training
from rlhf.config.base import BaseConfig
from rlhf.config.descriptions import described_fields
from rlhf.config.error_messages import TAGS
from rlhf.config.policy_losses import OF_SOME_LOSSES, POLICY_LOSSES
from rlhf.errors import ConfigError
from rlhf.losses.formula import load_formula
from tests.fixtures.settings import config_classes

CLASSES = config_classes()


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_setting_is_explained_where_it_is_declared(cls):
    silent = [name for name, field in described_fields(cls).items() if not field.description and name not in TAGS]
    assert not silent, f"{cls.__name__}: {silent} have no docstring below them"
    assert cls.__doc__, f"{cls.__name__} has no docstring"


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_config_class_is_strict_and_immutable(cls):
    assert issubclass(cls, BaseConfig)
    assert cls.model_config["extra"] == "forbid"
    assert cls.model_config["frozen"]


def test_a_part_of_grpos_penalty_keeps_the_rest_as_the_paper_has_it():
    config = grpo_settings.GRPOConfig.of({"kl": {"coef": 0.01}})
    assert (config.kl.where, config.kl.estimator, config.kl.coef) == ("loss", "k3", 0.01)
    assert (policy.PPOConfig().kl.where, policy.PPOConfig().kl.estimator) == ("reward", "k1")


@pytest.mark.parametrize("name", ["epochs", "max_steps", "batch_size", "batch_tokens"])
def test_settings_that_an_online_trainer_would_not_read_are_refused(name):
    assert name in sft.SFTConfig.model_fields
    assert name not in policy.PPOConfig.model_fields
    assert name not in grpo_settings.GRPOConfig.model_fields


def test_choices_are_the_keys_of_the_tables_that_serve_them():
    from typing import get_args

    from rlhf.losses import AGGREGATIONS, KL_ESTIMATORS, PAIR_LOSSES
    from rlhf.training.trackers import TRACKERS

    def choices(cls: type[BaseConfig], field: str) -> set[str]:
        return set(get_args(cls.model_fields[field].annotation))

    assert choices(preference.DPOConfig, "loss") == PAIR_LOSSES.keys()
    assert choices(policy.KLConfig, "estimator") == {*KL_ESTIMATORS, "exact"}
    assert choices(grpo_settings.GRPOKLConfig, "estimator") == {*KL_ESTIMATORS, "exact"}
    assert choices(grpo_settings.GRPOConfig, "aggregation") == set(AGGREGATIONS)
    (tracker,) = get_args(training.TrainConfig.model_fields["log_to"].annotation)
    assert set(get_args(tracker)) == TRACKERS.keys()


def test_every_policy_loss_is_given_what_its_formula_takes():
    for name, loss in POLICY_LOSSES.items():
        parameters = inspect.signature(load_formula(loss.function)).parameters.values()
        keywords = {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}
        assert keywords == loss.arguments.keys() | ({"how"} if loss.sequence_ratio else set()), name
        tensors = {each.name for each in parameters} - keywords
        assert tensors <= {"logprobs", "old_logprobs", "advantages", "score_seq"}, name
        assert ("old_logprobs" in tensors) == loss.has_ratio, name
    assert frozenset().union(*(loss.settings for loss in POLICY_LOSSES.values())) == set(OF_SOME_LOSSES)
    assert policy.RLConfig.model_fields.keys() >= set(OF_SOME_LOSSES)


@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_a_setting_of_another_policy_loss_is_refused(name):
    changed = {"clip_low": 0.3, "clip_high": 0.3, "dual_clip": 3.0, "gate_temperatures": [2.0, 2.0]}
    assert changed.keys() == set(OF_SOME_LOSSES)
    for key, value in changed.items():
        given = {"policy_loss": name, key: value}
        if key in POLICY_LOSSES[name].settings:
            assert grpo_settings.GRPOConfig.of(given).policy_formula is POLICY_LOSSES[name]
        else:
            with pytest.raises(ConfigError, match=rf"{key} .*policy_loss is '{name}'"):
                grpo_settings.GRPOConfig.of(given)
