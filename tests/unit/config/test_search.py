"""Settings of searches: what is accepted, what is refused before anything runs, and what a stage's key follows."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from rlhf.config.file_stages import BestOfNStage, EvaluateStage
from rlhf.config.search import SearchConfig, SearchSection, strategies_of
from rlhf.config.search_revision import RevisionConfig
from rlhf.config.search_stages import SearchCompareStage
from rlhf.config.search_strategies import STRATEGY_KINDS, StrategyConfig
from rlhf.errors import ConfigError
from rlhf.pipeline.code_hash import code_of_stage

STAGE = {"kind": "search_compare", "policy": "p", "prompts": "x.jsonl", "judge": "rules", "reward": "rules"}


@pytest.mark.parametrize("kind", STRATEGY_KINDS)
def test_every_kind_names_its_function_and_takes_its_settings(kind: type[StrategyConfig]):
    import inspect

    from rlhf.config.search_strategies import AnswerConfig
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
        ({"strategy": {"kind": "confidence_stopping", "min_samples": 17}, "reward": "rules"}, "min_samples"),
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
    same_file = [{"kind": "greedy", "name": "vote+"}, {"kind": "sample", "name": "Vote"}]
    with pytest.raises(ConfigError, match=r"'Vote'.*'vote\+'"):
        SearchCompareStage(**STAGE, strategies=same_file)
    with pytest.raises(ConfigError, match="\u6295\u7968"):
        SearchCompareStage(**STAGE, strategies=[{"kind": "greedy", "name": "\u6295\u7968"}])
    with pytest.raises(ConfigError, match="seconds"):
        SearchCompareStage(**STAGE, strategies=["greedy"], budget={"seconds": 5})


def test_a_stage_s_key_follows_the_code_of_its_strategies():
    def code(*strategies):
        return set(code_of_stage("search_compare", SearchCompareStage(**STAGE, strategies=list(strategies))))

    beam = "search/strategies/step_beam.py"
    assert beam in code({"kind": "beam"})
    assert beam not in code("greedy")
    assert {beam, "search/strategies/diverse_beam.py"} <= code({"kind": "diverse_beam"})
    assert [s.kind for s in strategies_of(SearchCompareStage(**STAGE, strategies=["greedy", "sample"]))] == [
        "greedy",
        "sample",
    ]


REFINE = {"strategy": "refine", "reward": "rules", "critic": "policy"}


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({**REFINE, "critic": None}, "critic"),
        ({**REFINE, "reward": None}, "reward"),
        ({**REFINE, "critic": "my.py:judge", "reward": "my.py:judge"}, "my.py:judge"),
        ({**REFINE, "critic": "models/a", "reward": {"kind": "learned", "source": "models/a"}}, "models/a"),
        ({**REFINE, "critic": {"kind": "policy", "critique": "What is wrong?"}}, "draft"),
        ({**REFINE, "strategy": {"kind": "refine", "revision": {"prompt": "{draft}"}}}, "critique"),
        ({"strategy": "tpo", "reward": "rules"}, "critic"),
        (
            {"strategy": {"kind": "mcts", "value_weight": 0.5}, "reward": {"kind": "process", "source": "p"}},
            "value_model",
        ),
        ({"strategy": "mcts", "reward": "rules", "step_separator": ";"}, "from 0 to 1"),
        ({"strategy": "beam", "reward": "rules"}, "step_separator"),
    ],
)
def test_a_search_that_makes_no_sense_is_refused_by_name(wrong, named):
    with pytest.raises(ConfigError, match=named):
        SearchConfig(**wrong)


def test_a_text_names_a_critic():
    kinds = {
        text: SearchConfig(**{**REFINE, "critic": text}).critic.kind for text in ("policy", "my.py:f", "org/model")
    }
    assert kinds == {"policy": "policy", "my.py:f": "function", "org/model": "model"}
    tpo = SearchConfig(
        strategy="tpo", reward="my.py:judge", critic="my.py:judge"
    )  # its reward decides about samples of its own
    assert tpo.critic.function == "my.py:judge"


def test_placeholders_in_a_draft_are_text():
    how = RevisionConfig(prompt="{draft} / {critique} / {other}")
    assert how.text(prompt="p", draft="{critique}", critique="{draft}") == "{critique} / {draft} / {other}"


EVALUATE = {"kind": "evaluate", "policy": "p", "prompts": "q", "judge": "rules", "metrics": ["judge_score"]}
BEST = {"strategy": {"kind": "best_of_n"}, "reward": {"kind": "learned", "source": "rm"}}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"search": BEST, "prompts": None, "metrics": ["perplexity"], "texts": "t", "judge": None}, "prompts"),
        ({"search": BEST, "sampling": {"temperature": 0}}, "temperature"),
        ({"search": "greedy", "samples_per_prompt": 2}, "greedy"),
        ({"search": {**BEST, "budget": {"seconds": 3}}}, "seconds"),
        ({"search": BEST, "metrics": ["kl_divergence"], "baseline": "b"}, "kl_divergence"),
        ({"search": {**BEST, "reward": "rules"}}, "judge"),
        ({"search": BEST, "judge": {"kind": "learned", "source": "rm", "name": "another"}}, "judge"),
    ],
)
def test_an_evaluation_that_can_not_be_searched_is_refused_by_key(settings, named):
    with pytest.raises(ConfigError, match=named):
        EvaluateStage.of({**EVALUATE, **settings})
    EvaluateStage.of({**EVALUATE, "search": BEST})


def test_best_of_n_s_search_needs_different_completions():
    stage = {"kind": "best_of_n", "model": "m", "prompts": "q", "reward": "rules"}
    with pytest.raises(ConfigError, match="greedy"):
        BestOfNStage.of({**stage, "search": "greedy"})
    assert "refined_pairs.jsonl" in BestOfNStage.of({**stage, "search": REFINE}).files_written()
    assert "refined_pairs.jsonl" not in BestOfNStage.of({**stage, "search": BEST}).files_written()


def test_a_section_may_lie_in_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "search.yaml").write_text("search:\n  strategy: {kind: best_of_n, num_samples: 3}\n  reward: rules\n")
    assert (
        EvaluateStage.of({**EVALUATE, "judge": "mine.py:judge", "search": "search.yaml"}).search.strategy.num_samples
        == 3
    )


def test_the_key_of_an_evaluation_follows_the_code_of_searches_only_where_it_has_one():
    plain, searched = (
        set(code_of_stage("evaluate", EvaluateStage.of({**EVALUATE, **more}))) for more in ({}, {"search": BEST})
    )
    assert "search/search_run.py" not in plain
    assert {"search/search_run.py", "search/search_engine.py", "search/strategies/highest_score.py"} <= searched


def test_an_empty_file_is_told_what_a_search_needs(tmp_path):
    (tmp_path / "search.yaml").write_text("", encoding="utf-8")
    with pytest.raises(ValidationError, match="strategy: greedy"):
        TypeAdapter(SearchSection).validate_python(str(tmp_path / "search.yaml"))
