"""The sampler's probabilities against the trainer's: measured in every rollout, and the cause named where they part."""

from __future__ import annotations

import copy
import math
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from rlhf.config.engines import MismatchConfig
from rlhf.config.grpo_settings import GRPOConfig
from rlhf.config.model import LoRAConfig
from rlhf.data.pack import Branch, Group, pack
from rlhf.errors import ConfigError, TrainingError
from rlhf.models.adapters import add_lora
from rlhf.models.policy import PolicyModel
from rlhf.models.reference import build_reference
from rlhf.rollout.local import LocalEngine
from rlhf.training.grpo import GRPOTrainer
from rlhf.training.log import TrainingLogger
from rlhf.training.mismatch import probability_gap
from tests.fixtures import toy
from tests.fixtures.tiny import build_llama
from tests.fixtures.vllm_engines import build_policy, fake_settings, nudge

SETTINGS = {
    "rollouts": 4, "prompts_per_rollout": 4, "group_size": 2, "minibatch_size": 8, "learning_rate": 1e-2, "warmup_frac": 0,
    "sampling": {"max_new_tokens": 5}, "eval_every": 1000, "seed": 3,
}  # fmt: skip


class Outside(LocalEngine):
    """An engine with weights of its own that makes one mistake."""

    def __init__(self, policy, *, stuck_at=10**9, bend=None):
        super().__init__(PolicyModel(copy.deepcopy(policy.model), policy.tokenizer))
        self.trained, self.stuck_at, self.bend = policy, stuck_at, bend

    def fingerprint(self):
        return self.trained.fingerprint()  # it believes in itself

    def load_weights(self, version):
        super().load_weights(version)
        if version < self.stuck_at:
            self.policy.load_state_dict(self.trained.state_dict())

    def generate(self, *args, **kwargs):
        groups = super().generate(*args, **kwargs)
        if self.bend is None:
            return groups
        return [[replace(c, logprobs=[self.bend(x) for x in c.logprobs]) for c in group] for group in groups]


def build_trainer(policy, sampler=None, log=None, **settings):
    config = GRPOConfig.of({**SETTINGS, **settings})
    reference = build_reference(policy)
    return GRPOTrainer(policy, config, toy.prompts(8), toy.ShareOfGood(), reference=reference, engine=sampler, log=log)


def train(policy, sampler=None, **settings):
    log = TrainingLogger(stage="grpo")
    trainer = build_trainer(policy, sampler, log, **settings)
    try:
        trainer.train()
    except TrainingError as err:
        return log, str(err)
    return log, ""


def train_with_vllm(policy, tmp_path, **settings):
    return train(policy, engine=fake_settings(tmp_path / "faults"), **settings)


def gaps(log):
    return [e["metrics"]["rollout/prob_gap"] for e in log.read("metrics") if "rollout/prob_gap" in e["metrics"]]


@pytest.fixture
def policy(tiny_tokenizer):
    return build_policy(tiny_tokenizer)


@pytest.fixture
def adapted(tiny_tokenizer):
    lora = LoRAConfig(rank=2, alpha=4, target_modules=["q_proj", "v_proj", "lm_head"])
    model = build_llama(vocab_size=len(tiny_tokenizer), initializer_range=0.3)
    policy = PolicyModel(add_lora(model, lora, task="CAUSAL_LM", seed=0), tiny_tokenizer)
    nudge(policy, by=1.0)
    return policy


def test_the_gap_is_a_mean_of_probabilities():
    # |0.5 - 0.25| and |0.1 - 0.1|, on average 0.125
    first, second = torch.tensor([0.5, 0.1]).log(), torch.tensor([0.25, 0.1]).log()
    assert probability_gap(first, second) == pytest.approx(0.125)


def test_a_sound_engine_has_no_gap_in_any_rollout(policy):
    log, error = train(policy, Outside(policy))
    assert error == ""
    assert len(gaps(log)) == 4
    assert max(gaps(log)) < 1e-5
    assert log.read("alarm") == []


def test_the_own_engine_is_not_watched(policy):
    log, error = train(policy)
    assert error == ""
    assert gaps(log) == []


def test_a_small_gap_is_told_once_and_a_large_one_stops_the_run(policy):
    log, error = train(policy, Outside(policy, bend=lambda x: math.log(math.exp(x) + 0.007)))
    assert error == ""
    told = [a for a in log.read("alarm") if a["metric"] == "rollout/prob_gap"]
    assert [alarm["step"] for alarm in told] == [1], "once, though every rollout has it"
    assert told[0]["limit"] == 0.005
    assert told[0]["value"] == pytest.approx(0.007, abs=1e-5)
    assert "the cause is none that was looked for" in told[0]["message"]
    log, error = train(policy, Outside(policy, bend=lambda x: math.log(math.exp(x) + 0.02)))
    assert "0.01 is the limit (engine.mismatch.stop_at)" in error
    assert "Nothing was learned from this rollout" in error
    assert gaps(log) == [], "no step was taken"


def test_numbers_that_are_none_stop_the_run_too(policy):
    log, error = train(policy, Outside(policy, bend=lambda x: math.nan))
    assert "0.01 is the limit (engine.mismatch.stop_at)" in error
    assert gaps(log) == []


def test_stale_weights_that_call_themselves_new_are_found_by_what_they_say_again(policy):
    _, error = train(policy, Outside(policy, stuck_at=2), learning_rate=0.1)
    assert "stale weights: asked again what it was asked at version 1, the engine answers as it did then" in error
    assert "though it says that it has version 2" in error


def test_a_temperature_that_is_not_in_the_numbers_is_named(policy):
    class Raw(Outside):
        def generate(self, prompts, **kwargs):
            groups = super().generate(prompts, **kwargs)
            return [[self.without_temperature(p, c) for c in g] for p, g in zip(prompts, groups, strict=True)]

        def without_temperature(self, prompt, completion):
            batch = pack([Group(list(prompt.ids), [Branch(completion.tokens)])])
            return replace(completion, logprobs=self.policy.logprobs(batch).tolist())

    _, error = train(policy, Raw(policy), sampling={"max_new_tokens": 5, "temperature": 0.5})
    assert (
        "temperature: the engine's log-probabilities are those at temperature 1, and it was asked to sample at 0.5"
        in error
    )


def test_an_adapter_that_never_arrived_is_named(adapted):
    class Bare(Outside):
        def generate(self, *args, **kwargs):
            with self.policy.adapter_off():
                return super().generate(*args, **kwargs)

    _, error = train(adapted, Bare(adapted))
    assert (
        "adapter not applied: the engine's log-probabilities are those of the base model without its adapter" in error
    )


def test_an_engine_that_shows_other_weights_is_stale(policy):
    class Honest(Outside):
        def fingerprint(self):
            return self.policy.fingerprint()

    _, error = train(policy, Honest(policy, stuck_at=3), learning_rate=0.1)
    assert "stale weights: the engine holds" in error


def test_a_run_with_vllm_learns_and_stays_in_step(policy, tmp_path):
    log, error = train_with_vllm(
        policy, tmp_path, rollouts=12, prompts_per_rollout=8, group_size=4, minibatch_size=32, learning_rate=3e-2
    )
    assert error == ""
    assert max(gaps(log)) < 1e-5
    assert [alarm for alarm in log.read("alarm") if alarm["guard"] == "engine"] == []
    scores = [e["metrics"]["grpo/score_mean"] for e in log.read("metrics")]
    assert scores[-1] > scores[0] + 0.2, "weights that arrive are weights that learn"


@pytest.mark.parametrize("faults", ["", "raise"])
def test_a_run_takes_its_vllm_with_it_however_it_ends(policy, tmp_path, faults):
    (tmp_path / "faults").write_text(faults)
    trainer = build_trainer(policy, rollouts=1, engine=fake_settings(tmp_path / "faults"))
    trainer.collector.engine.load_weights(0)
    process = trainer.collector.engine._session._process.process
    with pytest.raises(TrainingError, match="an engine core died") if faults else nullcontext():
        trainer.train()
    assert process.poll() is not None
    assert trainer.collector.engine._session._process is None


def test_vllm_that_leaves_the_temperature_out_is_stopped(policy, tmp_path):
    faults = tmp_path / "faults"
    faults.write_text("temperature")
    _, error = train_with_vllm(policy, tmp_path, sampling={"max_new_tokens": 5, "temperature": 0.5})
    assert "temperature: the engine's log-probabilities are those at temperature 1" in error


def test_vllm_with_stale_weights_that_lies_about_them_is_stopped(policy, tmp_path):
    faults = tmp_path / "faults"
    faults.write_text("stale and lie")
    _, error = train_with_vllm(policy, tmp_path, learning_rate=0.1)
    assert "stale weights: asked again what it was asked at version 0" in error


def test_vllm_that_loads_all_but_a_part_is_told_from_one_that_is_stale(policy, tmp_path):
    (tmp_path / "faults").write_text("head stays")
    _, error = train_with_vllm(policy, tmp_path, learning_rate=0.1)
    assert "weights left behind: an engine that was started again with the same weights has a gap of" in error


def test_vllm_that_dies_while_a_run_samples_is_an_alarm_and_changes_nothing(tiny_tokenizer, tmp_path):
    calm, shaken = build_policy(tiny_tokenizer), build_policy(tiny_tokenizer)
    train_with_vllm(calm, tmp_path, rollouts=2)
    (tmp_path / "faults").write_text("die once")
    log, error = train_with_vllm(shaken, tmp_path, rollouts=2)
    assert error == ""
    (alarm,) = log.read("alarm")
    assert "vLLM's process was ended by SIGKILL" in alarm["message"]
    assert calm.fingerprint() == shaken.fingerprint(), "the same run, bit for bit"


def test_limits_are_in_order():
    with pytest.raises(ConfigError, match=r"warn_at \(0\.02\).*stop_at \(0\.01\)"):
        MismatchConfig(warn_at=0.02)
    assert MismatchConfig(warn_at=0.02, stop_at=None).stop_at is None
