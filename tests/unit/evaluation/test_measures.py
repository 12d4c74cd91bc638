from __future__ import annotations

import math

import pytest
import torch

from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.evaluation.measures import KnownTexts, distinct_n, effective_pairs, token_measures, why_no_kl
from rlhf.models.policy import PolicyModel
from rlhf.rollout.types import Completion
from tests.fixtures import tiny


@pytest.fixture(scope="module")
def policies():
    tokenizer = tiny.build_tokenizer()
    return [PolicyModel(tiny.build_llama(vocab_size=len(tokenizer), seed=seed), tokenizer) for seed in (0, 1)]


def completion(prompt_id, tokens, sample=0):
    return Completion(
        prompt_id=prompt_id, sample=sample, tokens=tokens, logprobs=[0.0] * len(tokens),
        finish_reason="eos", weight_version=0, text="",
    )  # fmt: skip


PROMPTS = [Prompt("a", [5, 6, 7], ""), Prompt("b", [9, 8], "")]
SAMPLES = [
    [completion("a", [10, 11, 1]), completion("a", [12, 1], 1)],
    [completion("b", [40]), completion("b", [41, 42], 1)],
]


def next_token_logprobs(policy, ids, temperature):
    with torch.no_grad():
        return (policy.model(input_ids=torch.tensor([ids])).logits[0].double() / temperature).log_softmax(-1)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_kl_and_entropy_are_those_of_the_plain_forward(policies, temperature):
    policy, baseline = policies
    measures = token_measures(policy, baseline, PROMPTS, SAMPLES, temperature=temperature)
    number = 0
    for prompt, group in zip(PROMPTS, SAMPLES, strict=True):
        for each in group:
            ids = [*prompt.ids, *each.tokens]
            own, other = (next_token_logprobs(p, ids, temperature) for p in (policy, baseline))
            at = range(len(prompt.ids) - 1, len(ids) - 1)
            d = [float(own[i, ids[i + 1]] - other[i, ids[i + 1]]) for i in at]
            entropy = [-float((own[i].exp() * own[i]).sum()) for i in at]
            assert measures.kl_k1[number] == pytest.approx(sum(d), abs=1e-5)
            assert measures.kl_k3[number] == pytest.approx(sum(math.exp(-x) - 1 + x for x in d), abs=1e-5)
            assert measures.entropy[number] == pytest.approx(sum(entropy) / len(entropy), abs=1e-5)
            number += 1


def test_a_policy_is_at_no_distance_from_itself(policies):
    measures = token_measures(policies[0], policies[0], PROMPTS, SAMPLES)
    assert measures.kl_k1.tolist() == [0.0] * 4
    assert measures.kl_k3.tolist() == [0.0] * 4


def test_both_estimates_are_right_on_average(policies):
    """One-token completions of one prompt, each token as often as the policy says: the exact KL by enumeration."""
    policy, baseline = policies
    prompt = Prompt("a", [5, 6, 7], "")
    own, other = (next_token_logprobs(p, prompt.ids, 1.0)[-1] for p in (policy, baseline))
    every = [[completion("a", [token], token) for token in range(len(own))]]
    measures = token_measures(policy, baseline, [prompt], every)
    exact = float((own.exp() * (own - other)).sum())
    weights = own.exp().numpy()
    assert (measures.kl_k1 * weights).sum() == pytest.approx(exact, abs=1e-5)
    assert (measures.kl_k3 * weights).sum() == pytest.approx(exact, abs=1e-5)
    assert exact > 1e-4


def test_measuring_leaves_the_training_mode_alone(policies):
    policies[0].model.train()
    token_measures(policies[0], policies[1], PROMPTS, SAMPLES)
    assert policies[0].model.training
    policies[0].model.eval()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, None),
        ({"temperature": 0.7}, None),
        ({"temperature": 0}, "greedy"),
        ({"top_k": 5}, "top_k cut"),
        ({"top_p": 0.9, "min_p": 0.1}, "top_p and min_p cut"),
        ({"repetition_penalty": 1.2}, "repetition_penalty cut"),
    ],
)
def test_samples_of_a_cut_distribution_give_no_kl(settings, reason):
    actual = why_no_kl(SamplingConfig(**settings))
    assert actual is None if reason is None else reason in actual


def test_distinct_n_by_hand():
    texts = ["a b a", "b a"]
    # words a b a b a: 2 of 5; pairs (a b)(b a)(b a): 2 of 3; triples (a b a): 1 of 1
    assert [distinct_n(texts, n) for n in (1, 2, 3)] == [0.4, pytest.approx(2 / 3), 1.0]
    assert math.isnan(distinct_n(texts, 4))


def test_variety_counts_pairs_of_letters_by_how_often_they_come():
    assert effective_pairs(["abcabc"]) == pytest.approx(2.87, abs=0.01)  # ab 2, bc 2, ca 1
    assert effective_pairs(["rrrrrrrr"]) == 1
    junk, prose = ["rrrrnrrr", "rrnrrrrr"], ["the film is a delight", "a dull and endless thing"]
    assert effective_pairs(junk) < 3 < effective_pairs(prose) / 5
    assert math.isnan(effective_pairs(["", "a"]))


def test_what_a_judge_knows_are_words_and_their_order():
    known = KnownTexts(["A fine film.", "a dull plot"])
    assert known.unseen_frac("a fine film.") == 0
    assert known.unseen_frac("dull film") == pytest.approx(1 / 3)  # both words are known, not side by side
    assert known.unseen_frac("") == 0
    assert KnownTexts(["電影很好"]).unseen_frac("電影") == 0, "scripts without spaces go by letters"
