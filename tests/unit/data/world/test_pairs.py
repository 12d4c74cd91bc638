"""The annotator: best against worst, ties dropped, a known share of slips."""

from __future__ import annotations

import math

import pytest

from rlhf.data.world import Sample, judge, label_pairs
from rlhf.data.world.language import PROMPTS, statement
from rlhf.errors import ConfigError

COW = "User: What does a cow eat?\nAssistant:"


def samples(*texts):
    return [Sample(text, ended=True) for text in texts]


@pytest.fixture(scope="module")
def all_samples():
    return [
        (prompt.text, [Sample(" I do not know.", True), Sample(" " + statement(prompt.fact), True)])
        for prompt in PROMPTS
    ]


def test_the_best_is_paired_with_the_worst():
    completions = samples(
        " I do not know.", " A cow eats grass. Happy to help!", " A cow eats oats.", " A cow eats grass."
    )
    [row] = label_pairs([(COW, completions)], noise=0.0, seed=1)
    assert row == {
        "prompt": COW,
        "chosen": " A cow eats grass. Happy to help!",
        "rejected": " A cow eats oats.",
        "chosen_ended": True,
        "rejected_ended": True,
        "flipped": False,
        "gold_margin": 2.5,
    }


def test_ties_are_dropped():
    tied = samples(" A cow eats oats.", " A cow eats mice.")
    assert label_pairs([(COW, tied), (COW, samples(" A cow eats grass.")), (COW, [])], noise=0.0, seed=1) == []


def test_a_completion_that_was_cut_off_loses_against_itself():
    text = " A cow eats grass."
    [row] = label_pairs([(COW, [Sample(text, ended=False), Sample(text, ended=True)])], noise=0.0, seed=1)
    assert (row["chosen_ended"], row["rejected_ended"], row["gold_margin"]) == (True, False, 0.5)


def test_without_noise_chosen_is_always_the_better(all_samples):
    pairs = label_pairs(all_samples, noise=0.0, seed=1)
    assert len(pairs) == len(PROMPTS)
    for row in pairs:
        better = judge(row["prompt"], row["chosen"], ended=True).score
        worse = judge(row["prompt"], row["rejected"], ended=True).score
        assert better - worse == row["gold_margin"] > 0


def test_the_share_of_flipped_labels_is_the_noise(all_samples):
    pairs = label_pairs(all_samples, noise=0.1, seed=1)
    flipped = sum(row["flipped"] for row in pairs)
    assert abs(flipped / len(pairs) - 0.1) <= 4 * math.sqrt(0.1 * 0.9 / len(pairs))
    for row in pairs:
        better = judge(row["prompt"], row["chosen"], ended=True).score
        worse = judge(row["prompt"], row["rejected"], ended=True).score
        assert (better < worse) == row["flipped"]


def test_a_label_depends_on_its_seed_and_its_prompt_alone(all_samples):
    everything = {row["prompt"]: row for row in label_pairs(all_samples, noise=0.3, seed=1)}
    some = label_pairs(all_samples[::-7], noise=0.3, seed=1)
    assert [row == everything[row["prompt"]] for row in some] == [True] * len(some)
    other = label_pairs(all_samples, noise=0.3, seed=2)
    assert [row["flipped"] for row in other] != [row["flipped"] for row in everything.values()]


@pytest.mark.parametrize("noise", [-0.1, 0.5, 1.0, float("nan")])
def test_noise_that_is_no_noise_is_refused(noise):
    with pytest.raises(ConfigError, match="Label noise is"):
        label_pairs([], noise=noise, seed=1)
