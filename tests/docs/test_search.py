"""docs/search.md: its own strategy runs, its sections are read, its table of kinds is the library's."""

from __future__ import annotations

import re

import pytest
import yaml

from rlhf.config.recipe import load_recipe
from rlhf.config.search import SearchConfig
from rlhf.config.search_strategies import STRATEGY_KINDS
from rlhf.search.configured_search import search_with
from tests.fixtures.source import ROOT
from tests.fixtures.step_world import DigitEngine, DigitScorer, prompt

PAGE = (ROOT / "docs" / "search.md").read_text(encoding="utf-8")
FILES = {
    name: code
    for _, name, code in re.findall(
        r"^```(yaml|python)\n# (\S+\.(?:yaml|py))\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL
    )
}


def test_a_strategy_of_your_own_in_twenty_lines(tmp_path, monkeypatch):
    from rlhf.config.policy import SamplingConfig

    assert len(FILES["shortest_right.py"].splitlines()) + len(FILES["own.yaml"].splitlines()) <= 20
    (tmp_path / "shortest_right.py").write_text(FILES["shortest_right.py"])
    monkeypatch.chdir(tmp_path)
    config = SearchConfig.of(yaml.safe_load(FILES["own.yaml"]))
    run = search_with(
        config, config.strategy, [prompt("p", "012")], engine=DigitEngine(), scorer=DigitScorer(),
        sampling=SamplingConfig(max_new_tokens=7), seed=0,
    )  # fmt: skip
    assert run.results[0].cost.policy_tokens == 4 * 7
    assert run.results[0].completion.text.count(";") == 3


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".yaml")])
def test_every_section_is_read(name):
    SearchConfig.of(yaml.safe_load(FILES[name]))


def test_the_table_lists_every_kind():
    table = PAGE.partition("## Strategies")[2].partition("\n\n[")[0]
    for kind in STRATEGY_KINDS:
        name = kind.kind_name()
        assert f"`{name}`" in table or name == "function"


def test_the_recipe_compares_what_the_results_page_reports():
    stage = load_recipe(ROOT / "recipes" / "reasoning_search.yaml", []).stages["compare"]
    titles = {strategy.title for strategy in stage.strategies}
    assert {"weighted vote of 32", "MCTS, cap 16", "beam 1x4", "best of 4", "stop by score > 0.5, cap 32"} <= titles
    assert stage.judge != stage.reward
