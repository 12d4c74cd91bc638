"""An engine that samples with a copy of the weights in a lower precision."""

from __future__ import annotations

import copy

import pytest
import torch

from rlhf.config.engines import LocalEngineConfig, PromptLookupConfig
from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.data.pack import Branch, Group, pack
from rlhf.models.policy import PolicyModel
from rlhf.rollout import int8
from rlhf.rollout.engines import build_engine, exactly, is_exact
from rlhf.rollout.local import LocalEngine
from rlhf.rollout.snapshot import Job, Request, SnapshotSampler, Start
from tests.unit.rollout.helpers import build_family, build_prompts

pytestmark = pytest.mark.numeric

SAMPLED = SamplingConfig(max_new_tokens=12)


@pytest.fixture(autouse=True)
def everything_is_rounded(monkeypatch):
    """The layers here are small."""
    monkeypatch.setattr(int8, "SMALLEST", 1)


@pytest.fixture
def prompts() -> list[Prompt]:
    return build_prompts((11, 3, 1, 17))


@pytest.fixture
def policy(word_tokenizer) -> PolicyModel:
    return PolicyModel(build_family("llama"), word_tokenizer)


def ask(engine, prompts, sampling=SAMPLED, *, num_samples=4):
    return engine.generate(prompts, num_samples=num_samples, sampling=sampling, seed=3, rollout_index=1)


def gap(policy, prompts, groups) -> float:
    """Mean difference of log-probabilities, nats, between the engine and the trainer."""
    batch = pack([Group(p.ids, [Branch(c.tokens) for c in group]) for p, group in zip(prompts, groups, strict=True)])
    said = torch.tensor([x for group in groups for c in group for x in c.logprobs])
    return float((said - policy.logprobs(batch)).abs().mean())


@pytest.mark.parametrize("family", ["llama", "qwen3", "granite", "gpt2", "mistral", "gpt_neo"])
@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
def test_samples_come_from_nearly_the_policy(family, weights, word_tokenizer, prompts):
    policy = PolicyModel(build_family(family), word_tokenizer)
    groups = ask(LocalEngine(policy, weights=weights), prompts)
    assert 1e-4 < gap(policy, prompts, groups) < 0.1
    assert gap(policy, prompts, ask(LocalEngine(policy), prompts)) < 1e-5


@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
def test_few_kernels_and_the_models_own_code_round_about_equally(weights, policy, prompts):
    gaps = [gap(policy, prompts, ask(LocalEngine(policy, weights=weights, fused=f), prompts)) for f in (True, False)]
    assert max(gaps) < 3 * min(gaps)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
def test_a_copy_follows_every_update(fused, weights, policy, prompts):
    engine = LocalEngine(policy, weights=weights, fused=fused)
    before = ask(engine, prompts)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=generator))
    after = ask(engine, prompts)
    assert gap(policy, prompts, after) < 0.15 < 0.2 * gap(policy, prompts, before), "what a stale copy would say"
    assert after == ask(LocalEngine(policy, weights=weights, fused=fused), prompts)


@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
def test_the_policy_itself_stays_untouched(weights, policy, prompts):
    before = copy.deepcopy(policy.state_dict())
    version = policy.fingerprint()
    engine = LocalEngine(policy, weights=weights, fused=False)
    ask(engine, prompts)
    assert policy.fingerprint() == version == engine.fingerprint()
    assert all(torch.equal(before[name], value) for name, value in policy.state_dict().items())
    assert {p.dtype for p in policy.parameters()} == {torch.float32}


def test_the_policys_own_weights_can_be_asked_for_a_while(policy, prompts):
    engine = build_engine(policy, LocalEngineConfig(weights="int8"))
    assert not is_exact(engine)
    rounded = ask(engine, prompts)
    with exactly(engine):
        assert is_exact(engine)
        exact = ask(engine, prompts)
    assert exact == ask(LocalEngine(policy), prompts)
    assert ask(engine, prompts) == rounded != exact


@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
def test_guesses_change_nothing_here_either(weights, policy, prompts):
    sampling = SamplingConfig(max_new_tokens=40, temperature=0.3)
    guessing = PromptLookupConfig(ngram_tokens=1, max_rows=100)
    reply = ask(LocalEngine(policy, weights=weights, speculate=guessing), prompts, sampling)
    expected = ask(LocalEngine(policy, weights=weights), prompts, sampling)
    # A product of another shape adds up in another order, which half precision turns into another rounding: a few tokens may differ.
    pairs = [(a.tokens, b.tokens) for g, h in zip(reply, expected, strict=True) for a, b in zip(g, h, strict=True)]
    assert sum(a == b for a, b in pairs) >= len(pairs) - 2


def test_a_snapshot_samples_as_its_settings_say(policy, prompts):
    settings = LocalEngineConfig(weights="int8", speculate=PromptLookupConfig(ngram_tokens=1, max_rows=100))
    sampling = SamplingConfig(max_new_tokens=40, temperature=0.3)
    policy.choose_path([Group([5, 6], [Branch([7])])])
    sampler = SnapshotSampler(Start(copy.deepcopy(policy), (), "none", 1, settings))
    request = Request(prompts=prompts, num_samples=4, sampling=sampling, seed=3, rollout_index=1)
    sampled = sampler.sample(Job(0, request, False))
    assert sampled.groups == ask(build_engine(policy, settings), prompts, sampling)
    assert sampled.figures["rollout/tokens_per_forward"] > 1
