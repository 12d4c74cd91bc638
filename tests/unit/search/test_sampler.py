"""Searches from Python, with a real policy and real reward models of a few thousand parameters."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from rlhf.config.policy import SamplingConfig
from rlhf.config.search_revision import PolicyCriticConfig
from rlhf.data.datasets import PreferenceDataset
from rlhf.errors import ConfigError, DataError
from rlhf.models.policy import PolicyModel
from rlhf.models.process_reward import ProcessRewardModel
from rlhf.models.reward import RewardModel
from rlhf.rewards.learned import LearnedReward
from rlhf.rewards.steps import ProcessReward
from rlhf.rollout.local import LocalEngine
from rlhf.rollout.text_completions import generate_texts
from rlhf.search.critics import ModelCritic, function_identity
from rlhf.search.prompt_texts import PromptTexts
from rlhf.search.sampler import BestOfNSampler, IterativeRefiner, MCTSGenerator, SearchGenerator
from rlhf.search.strategies.step_beam import beam

SAMPLING = SamplingConfig(max_new_tokens=24)


@pytest.fixture
def policy(tiny_llama, tiny_tokenizer) -> PolicyModel:
    with torch.no_grad():  # random weights that say different things, with many ends of lines
        tiny_llama.lm_head.weight.mul_(6)
    return PolicyModel(tiny_llama, tiny_tokenizer)


@pytest.fixture
def process(policy) -> ProcessReward:
    groups = generate_texts(policy, ["The cow", "The quick brown fox"], num_samples=20, sampling=SAMPLING)
    said = "".join(each.text for group in groups for each in group)
    separator, _ = Counter(letter for letter in said if letter.isascii() and letter.isalpha()).most_common(1)[0]
    model = ProcessRewardModel.from_policy(policy, step_separator=separator, seed=1)
    return ProcessReward(model, tokenizer=policy.tokenizer)


longer = lambda prompts, completions: [float(len(completion)) for completion in completions]  # noqa: E731 - stays in this process


def test_the_best_of_n_is_the_engine_s_best_sample(policy):
    sampler = BestOfNSampler(policy, longer, num_samples=6, sampling=SAMPLING, seed=5)
    results = sampler.generate(["The cow", "The fox"])
    plain = generate_texts(policy, ["The cow", "The fox"], num_samples=6, sampling=SAMPLING, seed=5)
    for result, group in zip(results, plain, strict=True):
        own_end = [each for each in group if not each.truncated] or group
        assert len(result.completion.text) == max(len(each.text) for each in own_end)
        assert result.cost.policy_tokens == sum(len(each.tokens) for each in group)
        assert result.cost.scorer_tokens == 0


def test_the_curve_of_one_pool_is_exact(policy):
    sampler = BestOfNSampler(policy, longer, num_samples=4, sampling=SAMPLING)
    results = sampler.generate(["The cow"])
    scores = sorted(results[0].trace[1]["scores"])
    curve = sampler.curve(results)
    assert list(curve) == [1, 2, 3, 4]
    assert curve[1] == pytest.approx(sum(scores) / 4)
    # Of the six pairs, the largest is the best of three, the next of two, the third of one.
    assert curve[2] == pytest.approx((3 * scores[3] + 2 * scores[2] + scores[1]) / 6)
    assert curve[4] == scores[3]
    assert 0 <= sampler.kl_with_ties(results, 2) <= 0.2 < sampler.kl
    with pytest.raises(DataError):
        sampler.curve(results, [[1.0, 0.0]])


@pytest.mark.parametrize("aggregate", ["product", "min", "mean", "last"])
def test_a_step_scored_behind_its_beginning_is_as_in_the_whole(policy, process, aggregate):
    """A tree's nodes are scored step by step, their beginnings read once; the whole completion gets the same score."""
    scorer = ProcessReward(process.model, tokenizer=policy.tokenizer, aggregate=aggregate)
    assert scorer.takes_ids
    how = {"sampling": SAMPLING, "seed": 2}
    search = SearchGenerator(policy, beam, scorer, arguments={"width": 2, "samples": 3, "max_steps": 4}, **how)
    prompt = "The quick brown fox"
    (result,) = search.generate([prompt])
    steps = [event for event in result.trace if event["did"] == "sampled"]
    assert len(steps) > 1, "this seed should take several steps"
    from rlhf.data.contracts import Prompt

    ids = policy.tokenizer(prompt)["input_ids"]
    whole = scorer.score([Prompt("p", ids, prompt)], [result.completion]).scores[0]
    assert result.score == pytest.approx(whole, abs=1e-5)


def test_siblings_pay_for_their_beginning_once(policy, process):
    search = SearchGenerator(policy, beam, process, arguments={"samples": 4, "max_steps": 1}, sampling=SAMPLING)
    (result,) = search.generate(["The quick brown fox"])
    prompt = len(policy.tokenizer("The quick brown fox")["input_ids"])
    assert result.cost.prefill_tokens == prompt
    scored = next(event for event in result.trace if event["did"] == "scored")
    distinct = {tuple(t) for t in result.trace[0]["texts"]}
    assert len(scored["candidates"]) <= len(result.trace[0]["texts"])
    assert distinct
    assert result.cost.scorer_tokens <= prompt + result.cost.policy_tokens


def test_a_tree_search_of_a_real_policy_is_repeatable(policy, process):
    def texts(seed):
        search = MCTSGenerator(policy, process, sampling=SAMPLING, seed=seed, max_children=4, max_expansions=6)
        return [result.completion.text for result in search.generate(["The cow", "The fox"])]

    assert texts(1) == texts(1)
    assert texts(1) != texts(2)


def test_choosing_by_scores_needs_a_reward(policy):
    with pytest.raises(ConfigError, match="reward"):
        BestOfNSampler(policy)
    with pytest.raises(ConfigError):
        BestOfNSampler(policy, longer, choose="socre")
    assert BestOfNSampler(policy, choose="vote", sampling=SAMPLING).generate(["1"])[0].completion is not None


def complains(prompts, completions, rejected):
    return ["it could be longer"] * len(completions)


def test_a_refiner_keeps_what_its_judge_prefers_and_writes_it_as_pairs(policy, tmp_path):
    refiner = IterativeRefiner(policy, complains, longer, rounds=2, sampling=SAMPLING, seed=3)
    results = refiner.generate(["The cow", "The fox", "A quick dog"])
    kept = [pair for result in results for pair in result.details["accepted"]]
    assert kept
    assert all(len(pair["after"]) > len(pair["before"]) for pair in kept)
    path = tmp_path / "pairs.jsonl"
    assert refiner.save_preferences(path) == len(kept)
    data = PreferenceDataset(path, policy.tokenizer)
    assert len(data) == len(kept)
    for row, pair in zip(data.rows, kept, strict=True):
        assert row.columns["lineage"]["policy"] == policy.fingerprint()
        assert row.columns["lineage"]["critic"].endswith("complains")
        assert row.columns["chosen_ids"] == pair["after_ids"]


@pytest.mark.parametrize("judge", [complains, "tests.unit.search.test_sampler:complains"])
def test_a_refiner_whose_judge_is_its_critic_is_refused(policy, judge):
    with pytest.raises(ConfigError, match="complains"):
        IterativeRefiner(policy, complains, judge)


def test_a_model_is_not_the_judge_of_its_own_critique(policy):
    judge = RewardModel.from_policy(policy, seed=1)
    critic = PolicyModel(policy.model, policy.tokenizer)
    IterativeRefiner(
        policy, critic, LearnedReward(judge, tokenizer=policy.tokenizer)
    )  # other weights: a head of its own
    asked = ModelCritic(LocalEngine(policy), PromptTexts(policy.tokenizer), PolicyCriticConfig(), name="policy")
    refiner = IterativeRefiner(policy, "policy", longer)
    assert refiner.helpers.critic.identity == asked.identity == policy.fingerprint()


def test_two_lambdas_are_two_functions():
    one, other = (lambda p, c: [0.0]), (lambda p, c: [1.0])
    assert function_identity(one) == function_identity(one)
    assert function_identity(complains) == function_identity("tests.unit.search.test_sampler:complains")
    assert function_identity(one) != function_identity(complains)
    assert function_identity(other) != function_identity(complains)


def test_what_is_no_setting_is_refused_by_name(policy):
    with pytest.raises(DataError, match="give \\[prompt\\]"):
        BestOfNSampler(policy, longer).generate("The cow")
    for how, name in (({"budget": {"policy_tokens": 9}}, "budget"), ({"sampling": {"max_new_tokens": 9}}, "sampling")):
        with pytest.raises(ConfigError, match=f"{name} is a dict"):
            BestOfNSampler(policy, longer, **how)
    with pytest.raises(ConfigError, match="max_childs"):
        MCTSGenerator(policy, longer, max_childs=4)
    with pytest.raises(ConfigError, match="leaves_at_once"):
        MCTSGenerator(policy, longer, leaves_at_once=0)
    with pytest.raises(ConfigError, match="judge"):
        IterativeRefiner(policy, longer, None)
    with pytest.raises(ConfigError, match="critic"):
        IterativeRefiner(policy, None, longer)
