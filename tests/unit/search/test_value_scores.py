"""A value model in a search: what it is asked, what it costs, and how far it decides."""

from __future__ import annotations

import pytest
import torch

from rlhf.config.policy import SamplingConfig
from rlhf.data.datasets import GRPODataset
from rlhf.data.pack import Branch, Group, pack
from rlhf.errors import ConfigError, ModelError
from rlhf.models.policy import PolicyModel
from rlhf.models.value import ValueModel
from rlhf.rewards.types import ScoreResult
from rlhf.rollout.text_completions import generate_texts
from rlhf.search.contract import Budget
from rlhf.search.search_helpers import SearchHelpers
from rlhf.search.search_run import run_search
from rlhf.search.strategies.tree_search import mcts
from rlhf.search.value_scores import ValueScores
from tests.fixtures import tiny
from tests.fixtures.step_world import DigitEngine, DigitScorer, prompt, worth

PROMPTS = [prompt(f"p{i}", f"{i % 4}{(i + 1) % 4}{(i // 4 + 2) % 4}") for i in range(8)]


@pytest.fixture
def policy(tiny_llama, tiny_tokenizer) -> PolicyModel:
    return PolicyModel(tiny_llama, tiny_tokenizer)


def test_a_candidate_s_value_is_that_behind_its_last_token(policy):
    value = ValueModel.from_policy(policy, head="random", seed=1)
    prompts = list(GRPODataset([{"prompt": "The cow"}, {"prompt": "A fox"}], policy.tokenizer))
    groups = generate_texts(policy, ["The cow", "A fox"], num_samples=1, sampling=SamplingConfig(max_new_tokens=5))
    said = [group[0] for group in groups]
    scores = ValueScores(value, policy).score(prompts, said).scores
    rows = [Group(p.ids, [Branch(c.tokens)]) for p, c in zip(prompts, said, strict=True)]
    with torch.no_grad():
        expected = [value.values(pack([row]), at="final").item() for row in rows]
    assert scores == pytest.approx(expected, abs=1e-5)
    assert len(set(scores)) == 2


def test_a_value_model_that_can_not_read_the_policy_is_refused(policy, tiny_tokenizer):
    with pytest.raises(ModelError, match="value_model: separate"):
        ValueScores(ValueModel.shared(policy), policy)
    other = PolicyModel(tiny.build_llama(vocab_size=len(tiny_tokenizer) + 8), tiny_tokenizer)
    with pytest.raises(ModelError, match="different tokens"):
        ValueScores(ValueModel.from_policy(other), policy)


class Values:
    """Expects ``worth`` of everything, and of what begins right more."""

    name = "value"

    def __init__(self, bonus: float) -> None:
        self.bonus = bonus
        self.asked = 0

    def score(self, prompts, completions):
        self.asked += len(completions)
        right = [worth(p.columns["wanted"], c.text) == 1 for p, c in zip(prompts, completions, strict=True)]
        return ScoreResult([0.2 + self.bonus * each for each in right])


class Undecided(DigitScorer):
    """Says nothing of beginnings."""

    def score(self, prompts, completions):
        result = super().score(prompts, completions)
        result.scores[:] = [
            s if c.text.count(";") == 3 else 0.5 for s, c in zip(result.scores, completions, strict=True)
        ]
        return result


def search(values=None, budget=None, **arguments):
    how = {"max_children": 4, "max_expansions": 6, "widen_below": 0.0, **arguments}
    return run_search(
        PROMPTS, mcts, engine=DigitEngine(), scorer=Undecided(), helpers=SearchHelpers(value=values), arguments=how,
        sampling=SamplingConfig(max_new_tokens=7), separator=";", budget=budget,
    ).results  # fmt: skip


def test_the_value_model_leads_the_tree_where_the_reward_says_nothing():
    values = Values(bonus=0.7)
    without, led = search(), search(values, value_weight=1.0)
    assert values.asked > 0
    assert sum(r.score for r in led) > sum(r.score for r in without)
    # A complete answer is judged by the reward alone.
    assert all(r.score in (1.0, pytest.approx(0.1), pytest.approx(0.01), pytest.approx(0.001)) for r in led)


def test_values_are_counted_and_limited_like_scores():
    values = Values(bonus=0.7)
    results = search(values, value_weight=0.5)
    assert sum(r.cost.scorer_forwards for r in results) == values.asked + sum(
        len(event["scores"]) for r in results for event in r.trace if event["did"] == "scored"
    )
    for result in search(Values(bonus=0.7), value_weight=0.5, budget=Budget(scorer_forwards=5)):
        assert result.cost.scorer_forwards <= 5


def test_values_outside_of_the_scale_are_counted():
    results = search(Values(bonus=3.0), value_weight=0.5)
    assert sum(r.details["values_outside"] for r in results) > 0


def test_a_weight_needs_a_value_model():
    with pytest.raises(ConfigError, match="value_model"):
        search(value_weight=0.5)
