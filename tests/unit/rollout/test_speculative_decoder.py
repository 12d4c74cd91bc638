"""A draft model changes how many passes are made, and not what is sampled."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import chi2, chi2_contingency

from rlhf import SpeculativeDecoder
from rlhf.config.engines import DraftModelConfig
from rlhf.config.policy import SamplingConfig
from rlhf.errors import ConfigError, ModelError
from rlhf.models.paths import PathChoice
from rlhf.models.policy import PolicyModel
from rlhf.rollout.draft_model import ModelDrafter
from rlhf.rollout.local import LocalEngine
from tests.unit.rollout.helpers import EOS_IDS, FAMILIES, build_family, build_prompts
from tests.unit.rollout.test_speculation import ask, differences

pytestmark = pytest.mark.numeric

PACKED = PathChoice("packed", 0.0, "given")
GREEDY = SamplingConfig(max_new_tokens=70, temperature=0.0)
DRAFTED = DraftModelConfig(model="given", draft_tokens=3, max_rows=100)


def near(model: torch.nn.Module, *, noise: float) -> torch.nn.Module:
    """A copy that is right often and not always."""
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += noise * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    return other


@pytest.fixture
def policy(word_tokenizer) -> PolicyModel:
    return PolicyModel(build_family("llama").double(), word_tokenizer, choice=PACKED)


@pytest.fixture
def endless(monkeypatch) -> None:
    """No token ends a completion."""
    monkeypatch.setattr("rlhf.rollout.continuous_batching.eos_ids", lambda *_: [])


@pytest.fixture
def draft(policy) -> PolicyModel:
    return PolicyModel(near(policy.model, noise=0.02), policy.tokenizer, choice=PACKED)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"temperature": 1.0},
        {"temperature": 1.0, "top_p": 0.9},
        {"temperature": 0.7, "top_k": 10},
        {"temperature": 0.3, "repetition_penalty": 1.1},
        {"stop": ["w7", "w44"]},
        {"max_new_tokens": 1},
        {"max_new_tokens": 2},
    ],
)
@pytest.mark.parametrize("limits", [{}, {"max_rows": 4}], ids=["at once", "as there is room"])
def test_completions_are_those_without_a_draft(changes, limits, policy, draft):
    """Prompts of 1 to 17 tokens, three samples each; some end in the middle of right guesses."""
    sampling, prompts = GREEDY.updated(**changes), build_prompts()
    expected = ask(LocalEngine(policy, **limits), prompts, sampling)
    engine = LocalEngine(policy, speculate=DRAFTED, draft=draft, **limits)
    assert differences(expected, ask(engine, prompts, sampling)) < 1e-12
    if sampling.max_new_tokens > 2:
        assert 0.1 < engine.figures["rollout/draft_accept_frac"] < 1
        assert any(c.tokens[-1] in EOS_IDS for group in expected for c in group) or sampling.stop


@pytest.mark.parametrize("compiled", [False, True])
def test_so_are_those_of_single_precision_and_of_decoding_in_c(compiled, word_tokenizer):
    model = build_family("qwen3")
    policy, draft = (PolicyModel(each, word_tokenizer, choice=PACKED) for each in (model, near(model, noise=0.02)))
    expected = ask(LocalEngine(policy), build_prompts(), GREEDY)
    engine = LocalEngine(policy, speculate=DRAFTED, draft=draft, compiled=compiled, max_rows=5)
    assert differences(expected, ask(engine, build_prompts(), GREEDY)) < 2e-5


def test_a_draft_that_is_the_policy_is_always_right(policy, endless):
    engine = LocalEngine(policy, speculate=DRAFTED, draft=policy)
    replies = ask(engine, build_prompts((7,)), SamplingConfig(max_new_tokens=41), num_samples=1)
    assert len(replies[0][0].tokens) == 41
    assert engine.figures["rollout/draft_accept_frac"] == 1
    assert engine.figures["rollout/tokens_per_forward"] == 4


def test_a_draft_that_is_always_wrong_costs_passes_and_changes_nothing(policy, draft, monkeypatch):
    expected = ask(LocalEngine(policy), build_prompts(), GREEDY)
    said = {row: c.tokens for row, c in enumerate(c for group in expected for c in group)}

    def wrong(drafter, run, most):
        ages = zip(run.rows.tolist(), run.ages.tolist(), most.tolist(), strict=True)
        return [[(token + 1) % 120 for token in said[row][age : age + count]] for row, age, count in ages]

    monkeypatch.setattr(ModelDrafter, "propose", wrong)
    engine = LocalEngine(policy, speculate=DRAFTED, draft=draft)
    assert differences(expected, ask(engine, build_prompts(), GREEDY)) < 1e-12
    assert engine.figures["rollout/draft_accept_frac"] == 0
    assert engine.figures["rollout/tokens_per_forward"] == 1


@pytest.mark.parametrize("keeps", ["samples", "distribution"])
@pytest.mark.parametrize("changes", [{}, {"temperature": 0.6}, {"top_p": 0.8}, {"top_k": 4}], ids=str)
def test_the_distribution_is_that_of_direct_sampling(changes, keeps, word_tokenizer, endless):
    """Chi-square of pairs of tokens against the policy's own probabilities, and against samples of other seeds without a draft."""
    model = build_family("llama")
    policy, draft = (PolicyModel(each, word_tokenizer, choice=PACKED) for each in (model, near(model, noise=0.02)))
    sampling = SamplingConfig(max_new_tokens=3, **changes)
    prompts = build_prompts((5,))
    drafted = LocalEngine(policy, speculate=DRAFTED.updated(max_rows=4000, keeps=keeps), draft=draft)
    [ours] = drafted.generate(prompts, num_samples=3000, sampling=sampling, seed=1, rollout_index=0)
    [plain] = LocalEngine(policy).generate(prompts, num_samples=3000, sampling=sampling, seed=2, rollout_index=0)
    assert 0.2 < drafted.figures["rollout/draft_accept_frac"] < 0.95
    counts = [Counter(tuple(c.tokens[1:]) for c in each) for each in (ours, plain)]
    pairs = [pair for pair, count in (counts[0] + counts[1]).most_common() if count >= 20]
    table = np.array([[each[pair] for pair in pairs] + [3000 - sum(each[pair] for pair in pairs)] for each in counts])
    assert chi2_contingency(table[:, table.sum(0) > 0]).pvalue > 1e-3
    probs = second_token_probs(model, prompts[0].ids, ours, sampling)
    seen = np.bincount([c.tokens[1] for c in ours], minlength=120)
    often = probs * 3000 >= 5
    expected = np.append(probs[often], probs[~often].sum()) * 3000
    observed = np.append(seen[often], seen[~often].sum())
    assert not seen[probs == 0].any()
    statistic = float(((observed - expected) ** 2 / np.maximum(expected, 1e-9)).sum())
    assert chi2.sf(statistic, len(expected) - 1) > 1e-3


def second_token_probs(model, prompt, completions, sampling) -> np.ndarray:
    """[V] what the second token should be drawn from, given how often each first token was: one forward pass of the model itself."""
    firsts = Counter(c.tokens[0] for c in completions)
    mixture = np.zeros(120)
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, first] for first in firsts])).logits[:, -1].double().numpy()
    for row, count in zip(logits / sampling.temperature, firsts.values(), strict=True):
        probs = np.exp(row - row.max())
        order = np.argsort(-probs)
        kept = order[: sampling.top_k or len(order)]
        share = np.cumsum(probs[kept]) / probs[kept].sum()
        kept = kept[: int((share < sampling.top_p).sum()) + 1]
        mixture[kept] += count * probs[kept] / probs[kept].sum()
    return mixture / sum(firsts.values())


def test_rejection_sampling_accepts_more_and_gives_the_same_again(policy, draft, endless):
    prompts, sampling = build_prompts(), SamplingConfig(max_new_tokens=50)
    accepted = {}
    for keeps in ("samples", "distribution"):
        engine = LocalEngine(policy, speculate=DRAFTED.updated(keeps=keeps), draft=draft)
        reply = ask(engine, prompts, sampling)
        accepted[keeps] = engine.figures["rollout/draft_accept_frac"]
        assert ask(engine, prompts, sampling) == reply
    assert accepted["distribution"] > accepted["samples"] + 0.03
    itself = LocalEngine(policy, speculate=DRAFTED.updated(keeps="distribution"), draft=policy)
    ask(itself, build_prompts((7,)), sampling, num_samples=1)
    assert itself.figures["rollout/draft_accept_frac"] == 1


def test_log_probabilities_of_accepted_guesses_are_the_policys(policy, draft):
    """They are those that scoring the completion gives, and with filters also those of what is left."""
    sampling = SamplingConfig(max_new_tokens=30, top_k=10)
    engine = LocalEngine(policy, speculate=DRAFTED.updated(keeps="distribution"), draft=draft)
    prompt = build_prompts((11,))[0]
    [[completion]] = ask(engine, [prompt], sampling, num_samples=1)
    with torch.no_grad():
        logits = policy.model(torch.tensor([[*prompt.ids, *completion.tokens]])).logits[0, len(prompt.ids) - 1 : -1]
    tokens = torch.tensor(completion.tokens)[:, None]
    assert completion.logprobs == pytest.approx(logits.log_softmax(-1).gather(1, tokens)[:, 0].tolist(), abs=1e-9)
    kept = logits.masked_fill(logits < logits.topk(10).values[:, -1:], -torch.inf).log_softmax(-1)
    assert completion.sampling_logprobs == pytest.approx(kept.gather(1, tokens)[:, 0].tolist(), abs=1e-9)


def test_guesses_stop_while_many_rows_are_sampled_and_go_on_after(policy, draft):
    """The draft model then reads at once what it has missed."""
    prompts, sampling = build_prompts((11, 3, 8)), SamplingConfig(max_new_tokens=70, temperature=0.3)
    expected = ask(LocalEngine(policy), prompts, sampling)
    engine = LocalEngine(policy, speculate=DRAFTED.updated(max_rows=4), draft=draft)
    assert differences(expected, ask(engine, prompts, sampling)) < 1e-12
    assert engine.figures["rollout/draft_accept_frac"] > 0.1


def test_embeddings_may_be_padded_to_another_size(word_tokenizer, monkeypatch):
    """Of two models with one tokenizer; neither reads or draws what the other does not have."""
    model = build_family("llama").double()
    policy = PolicyModel(model, word_tokenizer, choice=PACKED)
    for size in (112, 136):
        monkeypatch.setitem(FAMILIES, "llama", FAMILIES["llama"] | {"vocab_size": size})
        other = PolicyModel(build_family("llama", seed=3).double(), word_tokenizer, choice=PACKED)
        engine = LocalEngine(policy, speculate=DRAFTED, draft=other)
        prompts, sampling = (
            [replace(p, ids=[n % 112 for n in p.ids]) for p in build_prompts()],
            GREEDY.updated(temperature=1.0),
        )
        expected = ask(LocalEngine(policy), prompts, sampling)
        assert max(token for group in expected for c in group for token in c.tokens) >= 112
        assert differences(expected, ask(engine, prompts, sampling)) < 1e-12


def test_another_vocabulary_is_refused_before_anything_is_sampled(policy, draft, tiny_tokenizer):
    other = PolicyModel(draft.model, tiny_tokenizer, choice=PACKED)
    with pytest.raises(ModelError, match="another vocabulary"):
        SpeculativeDecoder(policy, other)


@pytest.mark.parametrize("which", ["policy", "draft"])
def test_a_state_that_can_not_be_rolled_back_is_refused(which, policy, draft):
    mamba = PolicyModel(build_family("mamba"), policy.tokenizer)
    pair = (mamba, draft) if which == "policy" else (policy, mamba)
    with pytest.raises(ModelError, match="Mamba"):
        ask(SpeculativeDecoder(*pair).engine, build_prompts(), GREEDY)


def test_the_class_gives_what_the_policy_gives_and_tells_how_often_the_draft_was_right(policy, draft, tmp_path):
    texts = ["w5 w9 w3", "w20"]
    expected = policy.generate(texts, num_samples=2, temperature=0.5, max_new_tokens=30, seed=4)
    draft.save_pretrained(tmp_path / "draft")
    for how in (draft, tmp_path / "draft", "prompt_lookup"):
        decoder = SpeculativeDecoder(policy, how, max_rows=8, keeps="samples")
        assert decoder.acceptance_rate is None
        reply = decoder.generate(texts, num_samples=2, temperature=0.5, max_new_tokens=30, seed=4)
        assert differences(expected, reply) < 1e-12
        assert decoder.tokens_per_forward >= 1
        assert decoder.generate(texts, num_samples=2, temperature=0.5, max_new_tokens=30, seed=4) == reply
    assert SpeculativeDecoder(policy, draft).generate(texts, max_new_tokens=9) != reply


def test_settings_are_checked(policy):
    with pytest.raises(ConfigError, match="draft_tokens"):
        SpeculativeDecoder(policy, draft_tokens=0)
    for draft in ("prompt_lookup", policy):
        with pytest.raises(ConfigError, match="keeps"):
            SpeculativeDecoder(policy, draft, keeps="x")  # type: ignore[arg-type]
