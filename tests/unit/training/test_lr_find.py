from __future__ import annotations

import math

import pytest
import torch

from rlhf.config.policy import PPOConfig, TRPOConfig
from rlhf.errors import ConfigError
from rlhf.training.log import TrainingLogger
from rlhf.training.lr_find import FACTOR, KL_OF_A_STEP, rate_by_kl, rate_by_loss
from tests.fixtures import toy
from tests.fixtures.toy import build_trainer, weights_of

MEASURABLE = [name for name in toy.NAMES if name != "trpo"]
"""All whose policy has a learning rate."""


def trained(name, **settings):
    """Weights of every module, what was logged of each step, and the events of lr_find."""
    log = TrainingLogger()
    if name == "vapo":
        settings["value_warmup_rollouts"] = 0
    trainer = build_trainer(name, log=log, dropout=0.2, ema_decay=0.9, **settings)
    trainer.train()
    return weights_of(trainer), [event["metrics"] for event in log.read("metrics")], log.read("lr_find")


@pytest.mark.parametrize("name", MEASURABLE)
def test_a_suggestion_leaves_no_trace_in_the_training(name):
    plain, steps, none = trained(name)
    actual, measured, (event,) = trained(name, lr_find="suggest")
    assert none == []
    assert plain.keys() == actual.keys()
    for key, weights in plain.items():
        assert torch.equal(weights, actual[key]), key
    assert steps == measured
    assert len(event["rates"]) == len(event["values"]) > 3
    assert event["used"] is False


@pytest.mark.parametrize("name", ["sft", "reward", "dpo", "ppo", "grpo"])
def test_a_suggestion_lies_where_the_curve_says_and_is_used_where_asked(name):
    _, steps, (event,) = trained(name, lr_find="use", schedule="constant", warmup_frac=0.0)
    suggested = event["suggested"]
    assert event["used"] is True
    assert steps[0]["learning_rate"] == steps[-1]["learning_rate"] == suggested
    assert event["objective"] == ("kl" if name in ("ppo", "grpo") else "loss")
    assert 1e-7 <= suggested < max(event["rates"])


def test_a_critic_with_a_rate_of_its_own_keeps_it():
    trainer = build_trainer("ppo", lr_find="use", value_learning_rate=0.0123, schedule="constant", warmup_frac=0.0)
    seen = []
    step = trainer.take_step
    trainer.take_step = lambda optimizer, *rest: (seen.append(optimizer), step(optimizer, *rest))[1]
    trainer.train()
    rates = {group["peak"] for group in seen[-1].adamw.param_groups}
    assert 0.0123 in rates
    assert len(rates) == 2


@pytest.mark.parametrize("name", ["sft", "grpo"])
def test_a_resumed_run_keeps_the_rate_that_was_found(name, tmp_path):
    whole = trained(name, lr_find="use", checkpoint_dir=tmp_path / "whole", save_every=2)

    class KilledError(BaseException):
        pass

    trainer = build_trainer(
        name,
        log=TrainingLogger(),
        dropout=0.2,
        ema_decay=0.9,
        lr_find="use",
        checkpoint_dir=tmp_path / "killed",
        save_every=2,
    )
    step, taken = trainer.take_step, []

    def until_killed(optimizer, number, batches):
        taken.append(number)
        if number == 3:
            raise KilledError
        return step(optimizer, number, batches)

    trainer.take_step = until_killed
    with pytest.raises(KilledError):
        trainer.train()
    resumed = trained(name, lr_find="use", checkpoint_dir=tmp_path / "killed", save_every=2)
    assert resumed[2] == [], "the search is not repeated"
    assert [metrics["learning_rate"] for metrics in resumed[1]] == [m["learning_rate"] for m in whole[1][2:]]
    for key, weights in whole[0].items():
        assert torch.equal(weights, resumed[0][key]), key


def test_the_rate_by_loss_is_below_the_lowest_point():
    curve = [(0.0, 2.0), (1e-4, 1.99), (2e-4, 1.9), (4e-4, 1.5), (8e-4, 1.2), (1.6e-3, 1.6), (3.2e-3, math.nan)]
    assert rate_by_loss(curve) == 1e-4
    assert rate_by_loss([(0.0, 2.0), (1e-4, 2.0), (2e-4, 1.999), (4e-4, 9.0)]) is None, "it never fell"
    assert rate_by_loss([(0.0, math.nan)]) is None


def test_the_rate_by_kl_is_read_between_two_rates():
    kl = {rate: KL_OF_A_STEP * (rate / 3e-4) ** 2 for rate in (1e-4, 2e-4, 4e-4)}
    assert rate_by_kl([(0.0, 0.0), *kl.items()]) == pytest.approx(3e-4, rel=0.02)
    assert rate_by_kl([(0.0, 0.0), (1e-4, KL_OF_A_STEP / 2)]) is None
    assert rate_by_kl([(0.0, 0.0), (1e-4, math.inf)]) == pytest.approx(1e-4 / FACTOR)


@pytest.mark.parametrize(
    ("config", "other"), [(TRPOConfig, {}), (PPOConfig, {"value_warmup_rollouts": 2})], ids=["trpo", "warm-up"]
)
def test_what_has_no_rate_of_the_policy_to_find_is_refused(config, other):
    with pytest.raises(ConfigError, match="lr_find"):
        config.of({"lr_find": "use", **other})
