"""`by: COLUMN`: every metric for each value of a column, against the rest, corrected for their number."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlhf.errors import ConfigError
from rlhf.evaluation.evaluate_model import evaluate_model
from rlhf.models.policy import PolicyModel
from tests.fixtures import tiny
from tests.fixtures.metric_inputs import inputs_of, length_judge, measured, pairs


@pytest.fixture(scope="module")
def policy():
    tokenizer = tiny.build_tokenizer()
    return PolicyModel(tiny.build_llama(vocab_size=len(tokenizer), seed=0), tokenizer)


def test_groups_are_compared_with_the_rest_and_corrected(policy):
    rng = np.random.default_rng(0)
    rows, texts = [], []
    for i in range(60):
        group = "abc"[i % 3]
        rows.append({"prompt": str(i), "topic": group})
        texts.append([" ".join(["w"] * int(rng.integers(2, 6) + (6 if group == "a" else 0)))])
    judge_score = measured(inputs_of(policy, rows, texts, judge=length_judge), "judge_score", by="topic").groups[
        "judge_score"
    ]
    assert list(judge_score) == ["a", "b", "c"]
    assert judge_score["a"].p_corrected < 0.001
    assert judge_score["a"].difference.value == pytest.approx(
        judge_score["a"].estimate.value - (judge_score["b"].estimate.value + judge_score["c"].estimate.value) / 2
    )
    assert judge_score["a"].p_corrected >= judge_score["a"].p_value


def test_small_groups_are_shown_and_compared_with_nothing(policy):
    rows = [{"prompt": str(i), "topic": "ab"[i >= 2]} for i in range(10)]
    measurement = measured(inputs_of(policy, rows, [["w"]] * 10, judge=length_judge), "judge_score", by="topic")
    small = measurement.groups["judge_score"]["a"]
    assert small.estimate.value == 1.0
    assert math.isnan(small.p_value)
    assert not small.difference.measured


def test_an_unknown_column_is_named(policy):
    rows = [{"prompt": "x", "topic": "a"}]
    with pytest.raises(ConfigError, match="topic"):
        measured(inputs_of(policy, rows, [["w"]], judge=length_judge), "judge_score", by="topics")


def test_every_metric_has_groups_whatever_its_units_are(policy):
    """Prompts without a reference, pairs of one prompt, and texts of a file of their own."""
    rows = [{"prompt": f"p{i}", "topic": "ab"[i % 2], **({"reference": "w w"} if i % 3 else {})} for i in range(12)]
    measurement = measured(inputs_of(policy, rows, [["w w w"]] * 12), "bleu", "vendi_score", "rouge", by="topic")
    assert {name: sorted(groups) for name, groups in measurement.groups.items()} == {
        name: ["a", "b"] for name in ("bleu", "vendi_score", "rouge")
    }
    assert measurement.groups["bleu"]["a"].estimate.n == 4, "of six prompts two have no reference"
    given = [row | {"topic": "ab"[i // 2]} for i, row in enumerate(pairs((3, 1), (4, 1), (1, 3), (1, 4)))]
    for row, prompt in zip(given, "xxyz", strict=True):
        row["prompt"] = prompt
    measurement = evaluate_model(
        policy, given, metrics=["reward_accuracy", "calibration"], reward_model=length_judge, by="topic"
    )
    assert (measurement.interval("reward_accuracy").n, measurement.interval("calibration").n) == (3, 3), (
        "two pairs of one prompt"
    )
    accuracy = measurement.groups["reward_accuracy"]
    assert (accuracy["a"].estimate.value, accuracy["a"].estimate.n, accuracy["b"].estimate.value) == (1.0, 1, 0.0)


def test_texts_of_their_own_file_are_grouped_by_their_own_rows(policy, tmp_path):
    """Trap: as many prompts as texts, and the prompts' column taken for the texts'."""
    texts = [{"text": "the cat sat", "topic": "c"}, {"text": "a dog", "topic": "d"}]
    prompts = [{"prompt": "x", "topic": "p"}, {"prompt": "y", "topic": "p"}]
    evaluation = evaluate_model(policy, prompts, metrics=["perplexity"], texts=texts, by="topic")
    assert list(evaluation.groups["perplexity"]) == ["c", "d"]
    assert evaluation.groups["perplexity"]["d"].estimate.value == pytest.approx(
        evaluate_model(policy, ["a dog"], metrics="perplexity")["perplexity"]
    )
    bare = evaluate_model(policy, prompts, metrics=["length", "perplexity"], texts=["the cat", "a dog"], by="topic")
    assert "perplexity" not in bare.groups
    assert "column" in bare.to_dict()["ungrouped"]["perplexity"]


def test_names_of_groups_are_texts_and_what_is_empty_is_no_group(policy):
    rows = [{"prompt": str(i), "topic": value} for i, value in enumerate([1, "1", True, None, "", 2.5])]
    groups = measured(inputs_of(policy, rows, [["w"]] * 6, judge=length_judge), "judge_score", by="topic").groups
    assert {name: value.estimate.n for name, value in groups["judge_score"].items()} == {"1": 2, "True": 1, "2.5": 1}


def test_one_group_alone_is_shown_and_compared_with_nothing(policy):
    rows = [{"prompt": str(i), "topic": "a"} for i in range(8)]
    measurement = measured(inputs_of(policy, rows, [["w"]] * 8, judge=length_judge), "judge_score", by="topic")
    (only,) = measurement.groups["judge_score"].values()
    assert only.estimate.value == 1.0
    assert not only.difference.measured


def test_equal_groups_are_told_apart_as_rarely_as_said(policy):
    """Three metrics of three equal groups are nine tests; uncorrected, one of them would lie below 5 % in many evaluations. Different
    words among all texts are fewer among more texts: a group against twice as many others would always differ."""
    rng, naive, corrected = np.random.default_rng(0), 0, 0
    for _ in range(60):
        rows = [{"prompt": str(i), "topic": "abc"[i % 3]} for i in range(45)]
        texts = [[" ".join(rng.choice(list("uvwxyz"), size=rng.integers(2, 9)))] for _ in range(45)]
        measurement = measured(
            inputs_of(policy, rows, texts, judge=length_judge), "judge_score", "length", "distinct_n", by="topic"
        )
        values = [value for groups in measurement.groups.values() for value in groups.values()]
        naive += np.nanmin([value.p_value for value in values]) < 0.05
        corrected += np.nanmin([value.p_corrected for value in values]) < 0.05
    assert "30" in measurement.groups["distinct_n"]["a"].difference.reason
    assert corrected <= 7, "5 % of 60 and three standard errors"
    assert naive > corrected
