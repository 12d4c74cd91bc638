"""Bias: names swapped in templates, and the paired difference between groups."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlhf.errors import ConfigError, DataError
from rlhf.evaluation.suites.capability import CapabilityTester
from rlhf.evaluation.suites.suite import load_suite
from rlhf.evaluation.suites.swaps import fill_swaps, group_differences
from rlhf.models.policy import PolicyModel
from tests.fixtures import tiny

SWAPS = {"women": {"name": ["Anna", "Eve"], "pronoun": ["she"]}, "men": {"name": ["Tom"], "pronoun": ["he"]}}


def test_every_text_of_every_group_is_filled_in_wherever_it_is_named():
    row = {"id": "a", "prompt": "{name} said that {pronoun} won.", "choices": [" {name}", " none"], "answer": 0}
    filled = fill_swaps([row], SWAPS, source="S")
    assert [each["prompt"] for each in filled] == [
        "Anna said that she won.", "Eve said that she won.", "Tom said that he won."
    ]  # fmt: skip
    assert [each["choices"][0] for each in filled] == [" Anna", " Eve", " Tom"]
    assert [each["id"] for each in filled] == ["a/women/1", "a/women/2", "a/men/1"]
    assert {each["group"] for each in filled} == {"a"}


def test_a_placeholder_that_an_item_does_not_use_makes_no_copies():
    assert len(fill_swaps([{"prompt": "Has {pronoun} won?"}], SWAPS, source="S")) == 2


def test_messages_are_filled_in_too():
    filled = fill_swaps([{"prompt": [{"role": "user", "content": "Hi {name}"}]}], SWAPS, source="S")
    assert filled[-1]["prompt"][0]["content"] == "Hi Tom"


def test_an_item_that_could_show_nothing_is_named():
    with pytest.raises(DataError, match="item 2"):
        fill_swaps([{"prompt": "{name}"}, {"prompt": "{nmae}"}], SWAPS, source="S")


@pytest.mark.parametrize(
    "swaps",
    [
        {"women": {"name": ["Anna"]}},
        {"women": {"name": ["Anna"]}, "men": {"nom": ["Tom"]}},
        {"women": {"name": ["Anna"]}, "men": {"name": []}},
        {"women": {}, "men": {}},
    ],
)
def test_groups_that_cannot_be_compared_are_refused(swaps):
    with pytest.raises(ConfigError, match="swaps"):
        load_suite({"name": "s", "scorer": "numeric", "items": [{"prompt": "{name}"}], "swaps": swaps})


def by_hand():
    """Two templates; women have two texts in each. Means by template: women .5, .8; men .2, .7."""
    scores = {"a/w/1": [0.4], "a/w/2": [0.6], "a/m/1": [0.2], "b/w/1": [0.8], "b/w/2": [None], "b/m/1": [0.6, 0.8]}
    units = {item: item[0] for item in scores}
    return scores, units, {item: item[2] for item in scores}


def test_the_difference_is_the_mean_over_templates_of_means_over_texts():
    (pair,) = group_differences(*by_hand())
    assert pair.groups == ("w", "m")
    assert pair.means == pytest.approx((0.65, 0.45))
    assert pair.difference.value == pytest.approx(0.2)
    assert pair.difference.n == 2
    assert pair.p_value == pytest.approx(0.5), "two differences of one sign: 2 of 4 flips are as large"


def test_a_difference_within_every_template_is_found_though_templates_differ_more():
    """Unpaired, the spread of the templates would hide it."""
    rng = np.random.default_rng(0)
    scores, units, groups = {}, {}, {}
    for template in range(40):
        level = rng.uniform()
        for group, shift in (("w", 0.05), ("m", 0.0)):
            item = f"{template}/{group}"
            scores[item], units[item], groups[item] = [level + shift + rng.normal(0, 0.01)], str(template), group
    (pair,) = group_differences(scores, units, groups)
    assert pair.is_shown
    assert pair.difference.low > 0.03


def test_pairs_of_groups_are_corrected_for_their_number():
    """Of 6 equal groups, 15 pairs: at 5 % each, more than a third of such suites would show some difference."""
    rng, shown = np.random.default_rng(1), 0
    for _ in range(30):
        scores, units, groups = {}, {}, {}
        for template in range(12):
            for group in "abcdef":
                item = f"{template}/{group}"
                scores[item], units[item], groups[item] = [rng.normal()], str(template), group
        shown += any(pair.is_shown for pair in group_differences(scores, units, groups))
    assert shown <= 5, "P(Bin(30, .05) > 5) = .3 %"


def test_without_a_common_template_nothing_is_measured():
    (pair,) = group_differences({"a": [1.0], "b": [0.0]}, {"a": "1", "b": "2"}, {"a": "w", "b": "m"})
    assert math.isnan(pair.p_value)
    assert not pair.is_shown
    assert pair.to_dict()["means"] is None


def test_a_model_is_asked_and_the_report_says_how_groups_differ():
    tokenizer = tiny.build_tokenizer()
    policy = PolicyModel(tiny.build_llama(vocab_size=len(tokenizer), seed=0), tokenizer)
    report = CapabilityTester(["name_bias"]).test(policy, policy)
    (pair,) = report.suites["name_bias"].group_differences
    assert pair.groups == ("women", "men")
    assert pair.difference.n == 16
    assert report.to_dict()["suites"]["name_bias"]["group_differences"][0]["groups"] == ["women", "men"]
    assert "women against men" in str(report)


def test_groups_that_never_differed_in_few_templates_are_not_certainly_equal():
    scores = {f"{n}/{group}": [0.0] for n in range(6) for group in "wm"}
    (pair,) = group_differences(scores, {item: item[0] for item in scores}, {item: item[2] for item in scores})
    assert (pair.difference.value, pair.p_value) == (0.0, 1.0)
    assert pair.difference.high > 0.3, "of six refusals none says little of the next one"
