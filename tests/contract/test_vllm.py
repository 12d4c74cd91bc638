"""The engine over the real vLLM, in the environment that RLHF_VLLM_PYTHON names; docs/vllm.md says how to make one.

What holds with the fake vLLM is tested in tests/unit/rollout/test_vllm.py; here is what only the real one can show.
"""

from __future__ import annotations

import os
import signal

import pytest
import torch

from rlhf.config.engines import VLLMEngineConfig
from rlhf.config.grpo_settings import GRPOConfig
from rlhf.config.model import LoRAConfig
from rlhf.config.policy import SamplingConfig
from rlhf.data.pack import Branch, Group, pack
from rlhf.errors import TrainingError
from rlhf.models.adapters import add_lora
from rlhf.models.policy import PolicyModel
from rlhf.models.reference import build_reference
from rlhf.rollout.vllm import VLLMEngine
from rlhf.testing import ENGINE_CHECKS
from rlhf.training.grpo import GRPOTrainer
from rlhf.training.log import TrainingLogger
from tests.fixtures import toy
from tests.fixtures.tiny import build_llama
from tests.fixtures.vllm_engines import build_policy, nudge
from tests.unit.rollout.helpers import build_prompts

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

SHAPE = {"hidden_size": 128, "intermediate_size": 96, "initializer_range": 0.1}
"""Heads of 32: vLLM's attention on a CPU has no smaller ones."""
PROMPTS = build_prompts((9, 2, 14, 5))
SAMPLING = SamplingConfig(max_new_tokens=12)
RUN = {
    "rollouts": 12, "prompts_per_rollout": 8, "group_size": 4, "minibatch_size": 32, "learning_rate": 1e-2, "warmup_frac": 0,
    "sampling": {"max_new_tokens": 5}, "eval_every": 1000, "seed": 3,
}  # fmt: skip


def settings(**changes):
    return {"kind": "vllm", "python": os.environ["RLHF_VLLM_PYTHON"], "max_model_len": 128, **changes}


def build_engine(policy, **changes):
    return VLLMEngine(policy, VLLMEngineConfig(**settings(**changes)))


@pytest.fixture(scope="module")
def policy(tiny_tokenizer):
    return build_policy(tiny_tokenizer, **SHAPE)


@pytest.fixture(scope="module")
def engine(policy):
    engine = build_engine(policy)
    yield engine
    engine.close()


def ask(engine, *, num_samples=2, **changes):
    return engine.generate(
        PROMPTS, num_samples=num_samples, sampling=SAMPLING.updated(**changes), seed=1, rollout_index=0
    )


def largest_gap(engine, policy, **changes):
    """Nats between what vLLM reports and what the trainer computes."""
    temperature = changes.get("temperature", 1.0)
    gaps = []
    for prompt, group in zip(PROMPTS, ask(engine, **changes), strict=True):
        for completion in group:
            batch = pack([Group(list(prompt.ids), [Branch(completion.tokens)])])
            own = policy.logprobs(batch, temperature=temperature)
            gaps.append(float((own - torch.tensor(completion.logprobs)).abs().max()))
    return max(gaps)


@pytest.mark.parametrize("check", ENGINE_CHECKS, ids=lambda check: check.__name__)
def test_vllm_keeps_the_contract(check, engine):
    check(engine, PROMPTS)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_its_log_probabilities_are_the_trainers(engine, policy, temperature):
    assert largest_gap(engine, policy, temperature=temperature) < 2e-5


def test_pushed_weights_are_sampled_from_and_no_old_keys_and_values_stay(tiny_tokenizer):
    policy = build_policy(tiny_tokenizer, **SHAPE)
    engine = build_engine(policy)
    before = ask(engine)
    nudge(policy)
    assert largest_gap(engine, policy) > 0.01, "nobody told it"
    engine.load_weights(1)
    assert largest_gap(engine, policy) < 2e-5, (
        "the same prompts: their cached prefixes were computed with the old weights"
    )
    assert [[c.tokens for c in group] for group in ask(engine)] != [[c.tokens for c in group] for group in before]
    assert engine.fingerprint() == policy.fingerprint()
    engine.close()


def test_a_head_that_shares_the_embeddings_follows_them(tiny_tokenizer):
    policy = build_policy(tiny_tokenizer, **SHAPE, tie_word_embeddings=True)
    engine = build_engine(policy)
    engine.load_weights(0)
    nudge(policy)
    engine.load_weights(1)
    assert largest_gap(engine, policy) < 2e-5
    engine.close()


def test_half_precision_is_within_the_limits(tiny_tokenizer):
    policy = build_policy(tiny_tokenizer, **SHAPE)
    engine = build_engine(policy, dtype="bfloat16")
    assert 1e-4 < largest_gap(engine, policy) < 0.5
    assert not engine.exact
    engine.close()


def test_an_adapter_arrives_merged(tiny_tokenizer):
    lora = LoRAConfig(rank=2, alpha=4, target_modules=["q_proj", "v_proj"])
    model = build_llama(vocab_size=len(tiny_tokenizer), **SHAPE)
    policy = PolicyModel(add_lora(model, lora, task="CAUSAL_LM", seed=0), tiny_tokenizer)
    nudge(policy, by=2.0)
    engine = build_engine(policy)
    assert largest_gap(engine, policy) < 5e-5
    with policy.adapter_off():
        assert largest_gap(engine, policy) > 0.01, "the adapter does something"
    engine.close()


def test_killed_it_comes_back_with_the_newest_weights(tiny_tokenizer):
    policy = build_policy(tiny_tokenizer, **SHAPE)
    engine = build_engine(policy)
    engine.load_weights(0)
    nudge(policy)
    engine.load_weights(1)
    expected = ask(engine)
    os.killpg(engine._session._process.process.pid, signal.SIGKILL)
    assert ask(engine) == expected
    assert engine.restarts == 1
    assert largest_gap(engine, policy) < 2e-5
    engine.close()


def train(policy, sampler=None, **changes):
    log = TrainingLogger(stage="grpo")
    config = GRPOConfig.of({**RUN, **changes})
    reference = build_reference(policy)
    trainer = GRPOTrainer(
        policy, config, toy.prompts(8), toy.ShareOfGood(), reference=reference, engine=sampler, log=log
    )
    trainer.train()
    return [event["metrics"] for event in log.read("metrics")]


def test_a_run_learns_as_it_does_with_the_local_engine(tiny_tokenizer):
    rises = []
    for engine in (settings(), {"kind": "local"}):
        metrics = train(build_policy(tiny_tokenizer, **SHAPE), engine=engine)
        scores = [each["grpo/score_mean"] for each in metrics]
        rises.append(sum(scores[-3:]) / 3 - scores[0])
        if engine["kind"] == "vllm":
            assert max(each["rollout/prob_gap"] for each in metrics) < 1e-5
    assert min(rises) > 0.2
    assert abs(rises[0] - rises[1]) < 0.15


def test_a_run_whose_weights_do_not_arrive_is_stopped_with_the_cause(tiny_tokenizer, monkeypatch):
    policy = build_policy(tiny_tokenizer, **SHAPE)
    engine = build_engine(policy)
    first = engine._outbox.write(policy, untied=True)
    # The trainer writes its first weights for ever and calls them new: every hash is in order, and only measuring can tell.
    monkeypatch.setattr(engine._outbox, "write", lambda policy, **kwargs: first)
    monkeypatch.setattr(engine, "fingerprint", policy.fingerprint)
    with pytest.raises(TrainingError, match=r"stale weights.*version"):
        train(policy, engine, learning_rate=0.05)
    engine.close()
