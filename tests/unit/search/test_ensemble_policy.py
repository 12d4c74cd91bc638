"""Several policies as one."""

from __future__ import annotations

import pytest
import torch

from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.errors import ConfigError, ModelError
from rlhf.models.policy import PolicyModel
from rlhf.rollout.local import LocalEngine
from rlhf.search.ensemble_policy import EnsemblePolicy
from rlhf.search.search_run import run_search
from rlhf.search.strategies.single_sample import single_sample
from tests.fixtures.tiny import build_llama, build_tokenizer

HOW = {"num_samples": 3, "sampling": SamplingConfig(max_new_tokens=6), "seed": 4, "rollout_index": 0}


@pytest.fixture(scope="module")
def policies():
    tokenizer = build_tokenizer()
    return [
        PolicyModel(build_llama(vocab_size=len(tokenizer), seed=seed, initializer_range=0.3), tokenizer)
        for seed in (0, 1)
    ]


@pytest.fixture
def prompts(policies):
    return [Prompt(text, policies[0].tokenizer(text)["input_ids"], text) for text in ("The cow", "The quick brown fox")]


def test_equal_members_are_the_policy_itself(policies, prompts):
    ours = EnsemblePolicy([policies[0], policies[0]]).generate(prompts, **HOW)
    plain = LocalEngine(policies[0], fused=False).generate(prompts, **HOW)
    assert [[c.tokens for c in group] for group in ours] == [[c.tokens for c in group] for group in plain]
    assert ours[1][2].logprobs == pytest.approx(plain[1][2].logprobs, abs=1e-4)


@pytest.mark.parametrize("average", ["logits", "probabilities"])
def test_what_is_drawn_has_the_average_s_probability(policies, prompts, average):
    (sample, *_), _ = EnsemblePolicy(policies, average=average).generate(prompts, **HOW)
    ids = torch.tensor([[*prompts[0].ids, *sample.tokens]])
    with torch.no_grad():
        each = torch.stack(
            [policy.model(ids).logits[0, len(prompts[0].ids) - 1 : -1].log_softmax(-1) for policy in policies]
        )
    wanted = each.mean(0).log_softmax(-1) if average == "logits" else each.exp().mean(0).log()
    got = wanted.gather(1, torch.tensor(sample.tokens)[:, None]).squeeze(1)
    assert sample.logprobs == pytest.approx(got.tolist(), abs=1e-4)


def test_a_search_pays_for_every_member(policies, prompts):
    run = run_search(prompts, single_sample, engine=EnsemblePolicy(policies), sampling=SamplingConfig(max_new_tokens=5))
    for result in run.results:
        assert result.cost.policy_tokens == 2 * len(result.completion.tokens)


def test_other_vocabularies_are_refused_and_may_vote(policies, prompts):
    other = build_tokenizer(("other lines give other merges, with other ids",))
    stranger = PolicyModel(build_llama(vocab_size=len(policies[0].tokenizer)), other)
    with pytest.raises(ModelError, match="vocabulary"):
        EnsemblePolicy([policies[0], stranger])
    with pytest.raises(ConfigError):
        EnsemblePolicy(policies[:1])
    with pytest.raises(ConfigError, match="Policy 2 of the ensemble is the text"):
        EnsemblePolicy([policies[0], "folder"])
    choices = EnsemblePolicy.vote(
        [policies[0], stranger], prompts, num_samples=2, answer_of=lambda text: text[:1] or None
    )
    assert [sum(choice.details["votes"].values()) <= 4 for choice in choices] == [True, True]
    assert all(choice.completion.tokens for choice in choices)
