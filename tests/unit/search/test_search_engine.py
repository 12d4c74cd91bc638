"""A search in place of an engine."""

from __future__ import annotations

import pytest

from rlhf.config.policy import SamplingConfig
from rlhf.config.search import SearchConfig
from rlhf.errors import ConfigError
from rlhf.search.search_engine import SearchEngine
from tests.fixtures.step_world import DigitEngine, DigitScorer, prompt

HOW = {"sampling": SamplingConfig(max_new_tokens=7), "seed": 1, "rollout_index": 0}
BEST = SearchConfig(strategy={"kind": "best_of_n", "num_samples": 4}, reward="my_rewards.py:digits")


def engine(**changes):
    return SearchEngine(DigitEngine(), BEST.updated(**changes), DigitScorer())


def test_each_sample_is_a_search_of_its_own():
    prompts = [prompt("a", "012"), prompt("b", "321")]
    groups = engine().generate(prompts, num_samples=3, **HOW)
    assert [[(c.prompt_id, c.sample) for c in group] for group in groups] == [[(p, i) for i in range(3)] for p in "ab"]
    assert len({c.text for c in groups[0]}) > 1
    alone = engine().generate(prompts[1:], num_samples=3, **HOW)
    assert [c.text for c in alone[0]] == [c.text for c in groups[1]]
    other = engine().generate(prompts, num_samples=3, **{**HOW, "rollout_index": 1})
    assert [c.text for c in other[0]] != [c.text for c in groups[0]]


def test_its_cost_is_counted():
    searching = engine()
    searching.generate([prompt("a", "012")], num_samples=2, **HOW)
    assert searching.cost.policy_tokens == 2 * 4 * 7


def test_a_prompt_without_a_completion_is_an_error():
    with pytest.raises(ConfigError, match="budget"):
        engine(budget={"seconds": 1e-9}).generate([prompt("a", "012")], num_samples=1, **HOW)
