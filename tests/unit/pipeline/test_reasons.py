"""Differences between settings, named as far inside as they lie."""

from __future__ import annotations

import pytest

from rlhf.config.recipe import RecipeConfig
from rlhf.pipeline.artifacts import MadeFrom
from rlhf.pipeline.reasons import MISSING, changed_settings, differences, shown_both

BASE = {"kind": "grpo", "model": "embedded", "prompts": "p.jsonl"}
OWN = {"kind": "function", "function": "mine.py:score", "arguments": {"words": 3}}


def stage_of(**settings):
    return RecipeConfig.of({"name": "r", "seed": 0, "stages": {"grpo": {**BASE, **settings}}}).stages["grpo"]


def reasons(before, after):
    was, now = stage_of(**before), stage_of(**after)
    made = [MadeFrom(stage.model_dump(mode="json"), {}, {}) for stage in (was, now)]
    return differences(made[0], made[1], stage=now, redone=set())


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ({"kind": "rules", "target_words": 40}, {"kind": "rules", "target_words": 60}, "reward.0.target_words was 40, is 60"),
        ("rules", OWN, "reward.0.kind was rules, is function"),
        (OWN, {**OWN, "arguments": {"words": 4}}, "reward.0.arguments.words was 3, is 4"),
        (OWN, {**OWN, "arguments": {}}, "reward.0.arguments.words was 3, is not there"),
        (OWN, {**OWN, "arguments": {"words": 3, "mode": "x"}}, "reward.0.arguments.mode was not there, is x"),
    ],
)  # fmt: skip
def test_the_innermost_setting_that_differs_is_named(before, after, reason):
    actual = reasons({"reward": [before]}, {"reward": [after]})
    assert actual.reasons == [reason]
    assert actual.code == [], "no new version of this library did that: --ignore-code must not let it pass"


def test_a_reward_more_or_less_is_a_difference_of_the_recipe():
    more = reasons({"reward": ["rules"]}, {"reward": ["rules", OWN]})
    assert len(more.reasons) == 1
    assert more.reasons[0].startswith("reward.1 was not there, is {")
    less = reasons({"reward": ["rules", OWN]}, {"reward": ["rules"]})
    assert less.reasons[0].endswith("}, is not there") or less.reasons[0].endswith("..., is not there")
    assert more.code == less.code == []


def test_equal_settings_and_lists_of_values_stay_whole():
    assert list(changed_settings({"a": [1, 2]}, {"a": [1, 2]})) == []
    assert list(changed_settings({"a": [1, 2]}, {"a": [1, 3]})) == [("a", [1, 2], [1, 3])]
    assert list(changed_settings({"a": 1}, {})) == [("a", 1, MISSING)]


def test_long_values_are_cut_where_they_are_the_same():
    first, second = shown_both(f"/data/{'x' * 200}/one/pairs.jsonl", f"/data/{'x' * 200}/two/pairs.jsonl")
    assert first != second
    assert "/one/pairs.jsonl" in first
    assert "/two/pairs.jsonl" in second
    assert first.startswith("...")
    assert len(first) <= 60
    assert shown_both(True, None) == ("true", "null")
