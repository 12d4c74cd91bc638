"""Searches on the local engine: a node's beginning is read once, answers are those of reading it again, and the account says so."""

from __future__ import annotations

import pytest

from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.models.policy import PolicyModel
from rlhf.rewards.types import ScoreResult
from rlhf.rollout.local import LocalEngine
from rlhf.search.search_run import run_search
from rlhf.search.strategies.diverse_beam import diverse_beam
from rlhf.search.strategies.highest_score import best_of_n
from rlhf.search.strategies.step_beam import beam
from rlhf.search.strategies.tree_search import mcts
from tests.fixtures.tiny import build_llama

SAMPLING = SamplingConfig(max_new_tokens=16)


class Vowels:
    """Likes vowels, whatever they say."""

    name = "vowels"

    def score(self, prompts, completions):
        return ScoreResult([sum(c in "aeiou" for c in each.text) / (1 + len(each.text)) for each in completions])


class Plain:
    """An engine that keeps nothing."""

    weight_version = 0

    def __init__(self, engine):
        self.engine = engine

    def generate(self, prompts, **how):
        return self.engine.generate(prompts, **how)

    def fingerprint(self):
        return self.engine.fingerprint()


@pytest.fixture(scope="module")
def policy(tiny_tokenizer):
    model = build_llama(vocab_size=len(tiny_tokenizer), max_position_embeddings=256, initializer_range=0.2)
    return PolicyModel(model, tiny_tokenizer)


def search(engine, strategy, policy, only=(0, 1, 2), **arguments):
    texts = ["Once upon a time there was a dog who", "The cat", "Once upon a time there was a cat"]
    prompts = [
        Prompt(f"p{number}", policy.tokenizer(text, add_special_tokens=False)["input_ids"], text)
        for number, text in enumerate(texts)
        if number in only
    ]
    how = {"scorer": Vowels(), "sampling": SAMPLING, "separator": "e", "seed": 5}
    return run_search(prompts, strategy, engine=engine, arguments=arguments, **how).results


@pytest.mark.parametrize(
    ("strategy", "arguments"),
    [
        (beam, {"width": 2, "samples": 3}),
        (diverse_beam, {"groups": 3, "samples": 2, "diversity_penalty": 0.2}),
        (mcts, {"max_expansions": 8, "max_children": 6, "stop_at": 2.0}),
        (mcts, {"max_expansions": 9, "leaves_at_once": 3, "commit_after": 4, "stop_at": 2.0}),
    ],
)
def test_answers_are_the_same_and_the_account_shows_what_was_not_read(policy, strategy, arguments):
    plain = search(Plain(LocalEngine(policy)), strategy, policy, **arguments)
    kept = search(LocalEngine(policy), strategy, policy, **arguments)
    for ours, theirs in zip(kept, plain, strict=True):
        assert (ours.completion.tokens, ours.completion.text) == (theirs.completion.tokens, theirs.completion.text)
        assert ours.completion.logprobs == pytest.approx(theirs.completion.logprobs, abs=1e-5)
        assert ours.score == theirs.score
        assert ours.cost.policy_tokens == theirs.cost.policy_tokens
        assert theirs.cost.kept_tokens == 0
        assert ours.cost.prefill_tokens + ours.cost.kept_tokens == theirs.cost.prefill_tokens
        assert ours.cost.kept_tokens > 0
        sampled = [event for event in ours.trace if event["did"] == "sampled"]
        assert sum(event["kept_tokens"] for event in sampled) == ours.cost.kept_tokens
        assert sampled[0]["kept_tokens"] == 0
    read, again = (sum(each.cost.prefill_tokens for each in results) for results in (kept, plain))
    assert read < 0.6 * again


def test_the_account_does_not_depend_on_other_prompts(policy):
    """Two of them begin alike."""
    engine = LocalEngine(policy)
    together = search(engine, beam, policy, width=2, samples=3)
    alone = [search(engine, beam, policy, (number,), width=2, samples=3)[0] for number in range(3)]
    assert [each.cost.prefill_tokens for each in alone] == [each.cost.prefill_tokens for each in together]
    assert engine._trees is None, "nothing stays behind a search"


def test_samples_of_one_request_read_their_prompt_once(policy):
    for result in search(LocalEngine(policy), best_of_n, policy, num_samples=4):
        assert result.cost.kept_tokens == 0
