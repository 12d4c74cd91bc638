from __future__ import annotations

from typing import Any

import pytest

from rlhf.config.grpo_settings import GRPOConfig
from rlhf.config.on_policy import DistillConfig, OnlineDPOConfig
from rlhf.config.policy import ImportanceConfig, PPOConfig
from rlhf.errors import ConfigError


@pytest.mark.parametrize("cls", [PPOConfig, GRPOConfig])
def test_older_completions_are_corrected_unless_something_else_is_said(cls):
    assert cls().importance is None
    assert cls(async_rollouts={"max_staleness": 1}).importance == ImportanceConfig(
        level="token", bound="truncate", low=0, high=2
    )
    said = cls.of(
        {"async_rollouts": {"max_staleness": 1}, "importance": {"level": "sequence", "bound": "mask", "high": 3}}
    )
    assert said.importance == ImportanceConfig(level="sequence", bound="mask", high=3)
    assert cls(seed=3).updated(async_rollouts={"max_staleness": 1}).importance == ImportanceConfig()
    with pytest.raises(ConfigError, match=r"importance is null"):
        cls.of({"async_rollouts": {"max_staleness": 1}, "importance": None})


def test_none_ahead_needs_no_correction_and_refuses_nothing():
    none: dict[str, Any] = {"async_rollouts": {"max_staleness": 0}}
    assert GRPOConfig.of(none).importance is None
    assert GRPOConfig.of(none | {"kl": {"unbiased": True}, "engine": "vllm"}).max_staleness == 0
    assert GRPOConfig().max_staleness == 0
    assert GRPOConfig.of({"async_rollouts": {}}).max_staleness == 1
    assert GRPOConfig.of({"async_rollouts": {"max_staleness": 4}}).importance == ImportanceConfig()
    with pytest.raises(ConfigError, match=r"async_rollouts\.max_staleness"):
        GRPOConfig.of({"async_rollouts": {"max_staleness": -1}})


@pytest.mark.parametrize("cls", [OnlineDPOConfig, DistillConfig])
def test_losses_without_advantages_need_no_correction(cls):
    assert cls(async_rollouts={"max_staleness": 1}).importance is None


def test_a_kl_that_is_unbiased_only_for_its_own_samples_is_refused():
    with pytest.raises(ConfigError, match=r"kl\.unbiased"):
        GRPOConfig.of({"async_rollouts": {"max_staleness": 1}, "kl": {"unbiased": True}})
    assert GRPOConfig.of({"kl": {"unbiased": True}}).async_rollouts is None


def test_a_settings_file_written_from_the_resolved_one_means_the_same():
    config = PPOConfig(async_rollouts={"max_staleness": 1})
    assert PPOConfig.of(config.model_dump(mode="json")) == config
