"""Learning from completions that a copy of the policy in a lower precision has sampled."""

from __future__ import annotations

import pytest
import torch

from rlhf.config.grpo_settings import GRPOConfig
from rlhf.config.on_policy import OnlineDPOConfig
from rlhf.config.policy import ImportanceConfig, PPOConfig
from rlhf.errors import ConfigError, TrainingError
from rlhf.rollout import int8
from rlhf.rollout.local import LocalEngine
from rlhf.training.log import TrainingLogger
from tests.fixtures import toy

WATCHED = {"kind": "local", "weights": "int8", "mismatch": {"warn_at": 0.05, "stop_at": 0.1}}
GUESSING = {"kind": "prompt_lookup", "ngram_tokens": 1, "max_rows": 100}
COLD = {"max_new_tokens": 20, "temperature": 0.1}
"""So cold that random weights say the same again."""


@pytest.fixture(autouse=True)
def everything_is_rounded(monkeypatch):
    """The toy's layers are small."""
    monkeypatch.setattr(int8, "SMALLEST", 1)


@pytest.mark.parametrize("cls", [PPOConfig, GRPOConfig])
def test_what_a_copy_samples_is_corrected_unless_something_else_is_said(cls):
    assert cls.of({"engine": {"kind": "local"}}).importance is None
    assert cls.of({"engine": WATCHED}).importance == ImportanceConfig(level="token", bound="truncate", low=0, high=2)
    said = cls.of({"engine": WATCHED, "importance": {"bound": "mask", "high": 3}})
    assert said.importance == ImportanceConfig(bound="mask", high=3)
    with pytest.raises(ConfigError, match=r"engine\.weights 'int8' .*importance"):
        cls.of({"engine": WATCHED, "importance": None})
    assert cls.of(said.model_dump(mode="json")) == said


def test_losses_on_pairs_need_no_correction():
    assert OnlineDPOConfig.of({"engine": WATCHED}).importance is None


def test_a_copy_in_the_type_that_products_have_anyway_is_refused():
    with pytest.raises(ConfigError, match=r"engine\.weights 'bfloat16' .*autocast 'bfloat16'"):
        GRPOConfig.of({"engine": {"kind": "local", "weights": "bfloat16"}, "autocast": "bfloat16"})
    assert GRPOConfig.of({"engine": WATCHED, "autocast": "bfloat16"})


def metrics_of(log: TrainingLogger) -> list[dict[str, float]]:
    return [
        e["metrics"]
        for e in log.read("metrics")
        if "rollout/length_mean" in e["metrics"] or "grpo/length_mean" in e["metrics"]
    ]


def run(engine, **settings):
    log = TrainingLogger(stage="grpo")
    trainer = toy.build_trainer("grpo", log=log, engine=engine, rollouts=3, learning_rate=3e-2, **settings)
    trainer.train()
    return trainer, metrics_of(log)


@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
def test_the_distance_is_measured_in_every_rollout_and_weighs_in(weights):
    _, rollouts = run(WATCHED | {"weights": weights})
    assert len(rollouts) == 3
    assert all(0 < metrics["rollout/prob_gap"] < 0.05 for metrics in rollouts)
    assert all(metrics["rollout/logprob_gap"] > 0 for metrics in rollouts)
    assert all(metrics["importance/ratio_max"] != 1 for metrics in rollouts)
    assert all(metrics["grpo/ratio_max"] == pytest.approx(1, abs=1e-4) for metrics in rollouts[:1]), (
        "PPO's own ratio is the trainer's"
    )


def test_a_stale_copy_stops_the_run(monkeypatch):
    """A copy is made anew for each call; one that was kept is found out by its probabilities."""
    kept = {}
    make = int8.quantize
    monkeypatch.setattr(int8, "quantize", lambda weight: kept.setdefault(weight.data_ptr(), make(weight)))
    with pytest.raises(TrainingError, match=r"engine's probabilities .*trainer's"):
        run(WATCHED | {"mismatch": {"warn_at": 1e-4, "stop_at": 3e-4}})


def test_a_copy_that_is_too_coarse_is_named_as_the_cause(monkeypatch):
    monkeypatch.setattr(int8, "LARGEST", 3)
    monkeypatch.setattr(int8, "_has_kernel", lambda weight: False)
    with pytest.raises(TrainingError, match=r"rounding: .*policy's own weights"):
        run(WATCHED | {"mismatch": {"warn_at": 1e-5, "stop_at": 4e-5}})


def test_held_out_prompts_are_asked_of_the_policy_itself(monkeypatch):
    asked = []
    generate = LocalEngine.generate
    monkeypatch.setattr(
        LocalEngine, "generate", lambda engine, *a, **k: asked.append(engine.exact) or generate(engine, *a, **k)
    )
    trainer, _ = run(WATCHED, held_out=True, eval_every=1)
    assert asked.count(False) == 3
    assert asked.count(True) >= 3
    exact = toy.build_trainer("grpo", held_out=True, rollouts=3)
    exact.policy.load_state_dict(trainer.policy.state_dict())
    exact.collector.version = trainer.collector.version
    assert trainer.evaluate() == exact.evaluate()


def test_guesses_leave_training_as_it_is_and_are_reported():
    plain, _ = run({"kind": "local"}, sampling=COLD)
    guessing, rollouts = run({"kind": "local", "speculate": GUESSING}, sampling=COLD)
    assert toy.largest_difference(toy.weights_of(plain), toy.weights_of(guessing)) < 3e-3
    assert all(metrics["rollout/tokens_per_forward"] > 1 for metrics in rollouts)
    assert all(0 < metrics["rollout/draft_accept_frac"] < 1 for metrics in rollouts)


@pytest.mark.parametrize("weights", ["same", "int8"])
@pytest.mark.slow
def test_a_process_beside_training_samples_by_the_same_settings(weights):
    engine = WATCHED | {"weights": weights, "speculate": GUESSING}
    trainer, rollouts = run(engine, async_rollouts={"max_staleness": 1}, sampling=COLD)
    assert max(metrics["rollout/tokens_per_forward"] for metrics in rollouts) > 1
    assert torch.isfinite(torch.cat([w.flatten() for w in toy.weights_of(trainer).values()])).all()
    assert ("rollout/prob_gap" in rollouts[0]) == (weights == "int8")
    assert "rollout/prob_gap" not in rollouts[1], "older weights have a gap of their own"
