"""Settings of searches: what is accepted, what is refused before anything runs, and what a stage's key follows."""

from __future__ import annotations

import pytest

from rlhf.config.search import STRATEGY_KINDS, SearchConfig, StrategyConfig, strategies_of
from rlhf.config.search_stages import SearchCompareStage
from rlhf.errors import ConfigError
from rlhf.pipeline.code_hash import code_of_stage

STAGE = {"kind": "search_compare", "policy": "p", "prompts": "x.jsonl", "judge": "rules", "reward": "rules"}


@pytest.mark.parametrize("kind", STRATEGY_KINDS)
def test_every_kind_names_its_function_and_takes_its_settings(kind: type[StrategyConfig]):
    import inspect

    from rlhf.config.search import AnswerConfig
    from rlhf.search.configured_search import arguments_of, strategy_function

    if kind.kind_name() == "function":
        return
    config = kind()
    function = strategy_function(config)
    inspect.signature(function).bind("ask", **arguments_of(config, AnswerConfig()))


def test_a_text_is_a_kind_or_a_function():
    assert SearchConfig(strategy="greedy").strategy.kind == "greedy"
    own = SearchConfig(strategy="my_search.py:shortest").strategy
    assert (own.kind, own.function, own.title) == ("function", "my_search.py:shortest", "shortest")


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"strategy": "best_of_n"}, "reward"),
        ({"strategy": "gredy"}, "gredy"),
        ({"strategy": {"kind": "beam", "widht": 2}, "reward": "rules"}, "widht"),
        ({"strategy": {"kind": "confidence_stopping", "rule": "vote", "threshold": 0.3}}, "threshold"),
        ({"strategy": {"kind": "adaptive_compute", "first": 9}, "reward": "rules"}, "first"),
        ({"strategy": "greedy", "answer": {"pattern": "("}}, "pattern"),
        ({"strategy": "greedy", "budget": {"policy_tokens": 0}}, "policy_tokens"),
    ],
)
def test_wrong_settings_are_refused_by_key(wrong, named):
    with pytest.raises(ConfigError, match=named):
        SearchConfig(**wrong)


def test_strategies_that_are_compared_have_names_of_their_own():
    with pytest.raises(ConfigError, match="beam 1x4"):
        SearchCompareStage(**STAGE, strategies=[{"kind": "beam"}, {"kind": "beam", "max_steps": 3}])
    with pytest.raises(ConfigError, match="seconds"):
        SearchCompareStage(**STAGE, strategies=["greedy"], budget={"seconds": 5})


def test_a_stage_s_key_follows_the_code_of_its_strategies():
    def code(*strategies):
        return set(code_of_stage("search_compare", SearchCompareStage(**STAGE, strategies=list(strategies))))

    beam = "search/strategies/step_beam.py"
    assert beam in code({"kind": "beam"})
    assert beam not in code("greedy")
    assert [s.kind for s in strategies_of(SearchCompareStage(**STAGE, strategies=["greedy", "sample"]))] == [
        "greedy",
        "sample",
    ]
