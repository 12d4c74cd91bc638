"""Ratings of more than two models: every pair, one scale."""

from __future__ import annotations

import json
import math

import pytest

from rlhf.config.comparison import CompareConfig
from rlhf.errors import ConfigError
from rlhf.evaluation.ratings.bradley_terry import bradley_terry_ratings
from rlhf.formatting import percentage
from rlhf.pipeline.rated_models import rate_models


def write(path, texts):
    rows = [{"prompt": f"p{i}", "completion": text} for i, text in enumerate(texts)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def files(tmp_path):
    """Lengths: long beats middle on 3 of 4 prompts, middle beats short on 3 of 4, long beats short on 3 of 4."""
    n = 40
    return [
        write(tmp_path / "long.jsonl", ["aaaa" if i % 4 else "a" for i in range(n)]),
        write(tmp_path / "middle.jsonl", ["aaa" if (i + 1) % 4 else "a" for i in range(n)]),
        write(tmp_path / "short.jsonl", ["aa" for _ in range(n)]),
    ]


@pytest.fixture
def config(tmp_path, files):
    judge = tmp_path / "judge.py"
    judge.write_text("def longer(prompts, completions):\n    return [float(len(c)) for c in completions]\n")
    return CompareConfig.of({"a": files[0], "b": files[1], "judge": f"{judge}:longer"}, source="test")


def test_the_order_the_gaps_and_the_record(files, config, tmp_path):
    rated = rate_models(files, config, tmp_path / "out", runs=None)
    assert [name.rpartition("/")[2] for name in rated.order] == ["long.jsonl", "middle.jsonl", "short.jsonl"]
    assert len(rated.pairs) == 3
    gap = rated.behind_best(files[2])
    assert gap.value < 0
    assert gap.low < gap.value < gap.high
    record = json.loads((tmp_path / "out" / "ratings.json").read_text())
    assert sum(record["ratings"].values()) == pytest.approx(3000)
    assert record["behind_best"][files[0]] is None
    assert len(record["pairs"]) == 3
    page = (tmp_path / "out" / "ratings.md").read_text()
    assert page.index("long.jsonl |") < page.index("short.jsonl |")
    shown = (tmp_path / "out" / "ratings.html").read_text()
    assert f'<td class="n">{gap.low:+.0f} to {gap.high:+.0f}</td>' in shown
    rate = rated.pairs[files[0], files[2]].comparison.decided_on.value
    for part, other in ((rate, files[2]), (1 - rate, files[0])):
        assert f"<div>{percentage(part)} [" in shown
        assert f"against {other}</div>" in shown


def test_a_judge_that_always_prefers_a_place_is_named_for_each_pair(files, config, tmp_path):
    assert rate_models(files, config, tmp_path / "fair", runs=None).biases() == []
    judge = tmp_path / "first.py"
    judge.write_text("def first(prompts, first, second):\n    return [1.0 for _ in prompts]\n")
    biased = config.updated(judge={"type": "function", "function": f"{judge}:first"})
    rated = rate_models(files, biased, tmp_path / "out", runs=None)
    assert len(rated.biases()) == 3
    for (a, b), line in zip(rated.pairs, rated.biases(), strict=True):
        assert a in line
        assert b in line
        assert "first place" in line
        assert f"- {line}" in (tmp_path / "out" / "ratings.md").read_text()
    assert json.loads((tmp_path / "out" / "ratings.json").read_text())["biases"] == rated.biases()


def test_a_model_that_lost_everything_is_rated_with_a_prior_and_that_is_said(files, config, tmp_path):
    none = write(tmp_path / "none.jsonl", ["" for _ in range(40)])
    rated = rate_models([*files, none], config, tmp_path / "out", runs=None)
    assert rated.order[-1] == none
    assert "against an average model" in rated.note
    assert math.isfinite(rated.ratings.strengths[none])


def test_models_that_always_tie_have_no_interval_and_that_is_said(config, tmp_path):
    same = [write(tmp_path / f"{name}.jsonl", ["aa"] * 40) for name in "xyz"]
    rated = rate_models(same, config, tmp_path / "out", runs=None)
    gap = rated.behind_best(rated.order[1])
    assert gap.value == pytest.approx(0)
    assert math.isnan(gap.low)
    page = (tmp_path / "out" / "ratings.md").read_text()
    assert gap.reason in page
    assert "nan" not in page


@pytest.mark.parametrize("chosen", [(0, 1), (0, 1, 1)])
def test_too_few_models_or_one_twice(files, config, tmp_path, chosen):
    with pytest.raises(ConfigError, match="three"):
        rate_models([files[i] for i in chosen], config, tmp_path / "out", runs=None)


def test_the_command_takes_more_than_two(call, files, config, tmp_path):
    code, out, _ = call("compare", *files, f"judge={tmp_path}/judge.py:longer", "-o", tmp_path / "cli", "--json")
    assert code == 0
    assert len(json.loads(out)["pairs"]) == 3


def test_shares_are_outcomes_where_ties_are_half_wins():
    whole = [("a", "b", 1.0), ("a", "b", 0.0), ("a", "b", 1.0), ("a", "b", 1.0)]
    shares = [("a", "b", 0.75)] * 4
    one, other = bradley_terry_ratings(whole), bradley_terry_ratings(shares)
    assert one.strengths["a"] == pytest.approx(other.strengths["a"])
    with pytest.raises(Exception, match="outcome"):
        bradley_terry_ratings(shares, ties="davidson")
