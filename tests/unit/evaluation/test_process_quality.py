"""First wrong steps found: by hand, against models that know nothing, and with intervals over prompts."""

from __future__ import annotations

import json
import math
import random

import pytest

from rlhf.data.reasoning.problems import draw_problem
from rlhf.data.reasoning.traces import DEMONSTRATOR, write_trace
from rlhf.data.reasoning.verify import label_steps
from rlhf.errors import ConfigError
from rlhf.evaluation.process_quality import process_quality


def completions(count, seed=1):
    draw = random.Random(seed)
    problems = [draw_problem(2 + number % 7, draw) for number in range(count)]
    return [list(label_steps(problem, write_trace(problem, DEMONSTRATOR, draw))) for problem in problems]


def test_by_hand():
    labels = [[True, False, True], [False, False], [True, True, False], [True, True], [True], [True, True]]
    scores = [
        [0.9, 0.1, 0.2],  # found, and what is said behind it does not matter
        [0.9, 0.1],  # one step late
        [0.9, 0.4, 0.1],  # one step early
        [0.9, 0.5],  # left alone: 0.5 is not below the threshold
        [0.2],  # a false alarm
        [0.6, 0.7],
    ]
    quality = process_quality(labels, scores, seed=0)
    assert quality.first_wrong.value == pytest.approx(1 / 3)
    assert quality.sound.value == pytest.approx(2 / 3)
    assert quality.f1.value == pytest.approx(2 * (1 / 3) * (2 / 3) / (1 / 3 + 2 / 3))  # 4/9
    assert quality.steps.value == pytest.approx((2 / 3 + 1 / 2 + 2 / 3 + 1 + 0 + 1) / 6)
    assert quality.always_last == pytest.approx(1 / 3)
    assert quality.chance == pytest.approx((1 / 3 + 1 / 2 + 1 / 3) / 3)
    assert (quality.first_wrong.n, quality.sound.n, quality.f1.n) == (3, 3, 6)


def test_who_knows_the_labels_finds_everything():
    labels = completions(200)
    quality = process_quality(labels, [[float(right) for right in each] for each in labels], seed=0)
    for estimate in (quality.first_wrong, quality.sound, quality.f1, quality.steps):
        assert estimate.value == 1.0
    assert quality.f1.high == 1.0


@pytest.mark.parametrize(("score", "sound"), [(0.0, 0.0), (1.0, 1.0)])
def test_who_says_always_the_same_has_no_f1(score, sound):
    labels = completions(300)
    quality = process_quality(labels, [[score] * len(each) for each in labels], seed=0)
    assert quality.sound.value == sound
    assert quality.f1.value == 0.0
    assert (quality.f1.low, quality.f1.high) == (0.0, 0.0)
    # Who never cries wolf judges most steps rightly, which is why that share is not the measure.
    assert (quality.steps.value > 0.8) == (score == 1.0)


def test_the_baselines_are_what_such_models_would_score():
    labels = completions(2000)
    last = [[1.0] * (len(each) - 1) + [0.0] for each in labels]
    quality = process_quality(labels, last, seed=0)
    assert quality.first_wrong.value == pytest.approx(quality.always_last)
    draw = random.Random(2)
    anywhere = []
    for each in labels:
        scores = [1.0] * len(each)
        scores[draw.randrange(len(each))] = 0.0
        anywhere.append(scores)
    assert process_quality(labels, anywhere, seed=0).first_wrong.value == pytest.approx(quality.chance, abs=0.03)


def test_the_threshold_says_what_is_wrong():
    labels, scores = [[True, False], [True, True]], [[0.8, 0.6], [0.9, 0.75]]
    assert process_quality(labels, scores, seed=0).f1.value == 0.0
    assert process_quality(labels, scores, seed=0, threshold=0.7).f1.value == 1.0
    assert process_quality(labels, scores, seed=0, threshold=0.76).sound.value == 0.0


def test_labels_behind_the_first_wrong_step_do_not_matter_to_f1():
    labels = [[True, False, True, False], [True, True, True, True]]
    masked = [[True, False, False, False], [True, True, True, True]]
    scores = [[0.9, 0.1, 0.9, 0.1], [0.9, 0.9, 0.9, 0.2]]
    one, other = (process_quality(each, scores, seed=0) for each in (labels, masked))
    assert one.f1 == other.f1
    assert one.first_wrong == other.first_wrong


def test_completions_of_one_prompt_count_once():
    labels = [[False]] * 8 + [[False], [True], [True]]
    scores = [[0.1]] * 8 + [[0.9], [0.9], [0.9]]
    units = ["a"] * 8 + ["b", "b", "c"]
    quality = process_quality(labels, scores, seed=0, units=units)
    assert quality.first_wrong.value == 0.5  # all of a, none of b; 8 of 9 without units
    assert quality.first_wrong.n == 2
    assert quality.sound.value == 1.0
    assert quality.f1.value == pytest.approx(2 * 0.5 / 1.5)
    assert quality.f1.n == 3
    assert process_quality(labels, scores, seed=0).first_wrong.value == pytest.approx(8 / 9)


def test_samples_of_the_same_prompt_do_not_narrow_the_interval():
    labels = completions(60)
    draw = random.Random(3)
    scores = [[float(right) if draw.random() < 0.85 else draw.random() for right in each] for each in labels]
    once = process_quality(labels, scores, seed=0)
    again = process_quality(labels * 5, scores * 5, seed=0, units=list(range(60)) * 5)
    assert again.f1.value == pytest.approx(once.f1.value)
    assert again.f1.low == pytest.approx(once.f1.low)
    assert again.f1.high == pytest.approx(once.f1.high)
    narrow = process_quality(labels * 5, scores * 5, seed=0)
    assert narrow.f1.high - narrow.f1.low < 0.7 * (once.f1.high - once.f1.low)


def test_the_interval_of_f1_holds_the_truth_about_as_often_as_it_says():
    truth, held = 2 * 0.8 * 0.6 / 1.4, 0
    draw = random.Random(4)
    for trial in range(100):
        labels = [[number % 2 == 0] for number in range(120)]
        # a wrong step is found with 0.8, a right one left alone with 0.6
        scores = [[float(draw.random() < 0.6) if right else float(draw.random() > 0.8)] for (right,) in labels]
        estimate = process_quality(labels, scores, seed=trial).f1
        held += estimate.low <= truth <= estimate.high
    assert 88 <= held <= 100


def test_few_completions_of_one_kind_still_give_an_interval():
    labels = [[True]] * 30 + [[False]] * 2
    scores = [[0.9]] * 30 + [[0.1], [0.9]]
    f1 = process_quality(labels, scores, seed=0).f1
    assert f1.value == pytest.approx(2 * 0.5 / 1.5)
    assert 0.0 <= f1.low < f1.value < f1.high <= 1.0


def test_what_is_not_there_is_missing_with_the_reason_and_never_zero():
    quality = process_quality([[True, True]], [[0.9, 0.9]], seed=0)
    assert quality.sound.value == 1.0
    assert quality.first_wrong.reason == "no completion has a wrong step"
    assert quality.f1.reason == "there are no completions with a wrong step"
    assert math.isnan(quality.always_last)
    quality = process_quality([[False, True]], [[0.9, 0.9]], seed=0)
    assert quality.f1.reason == "there are no sound completions"
    assert not quality.sound.measured
    assert not process_quality([], [], seed=0).f1.measured


def test_scores_that_are_not_finite_are_told():
    quality = process_quality([[True, False], [True]], [[0.9, math.nan], [math.inf]], seed=0)
    for estimate in (quality.first_wrong, quality.sound, quality.f1, quality.steps):
        assert not estimate.measured
        assert estimate.reason == "2 step scores are not finite"
    assert quality.always_last == 1.0, "this rests on the labels alone"


def test_it_can_be_written_as_json():
    document = process_quality([[True, True]], [[0.9, 0.9]], seed=0).to_dict()
    assert json.loads(json.dumps(document, allow_nan=False))["always_last"] is None
    assert document["f1"]["value"] is None
    assert document["f1"]["reason"]


@pytest.mark.parametrize(
    ("labels", "scores", "units", "told"),
    [
        ([[True]], [], None, "step scores of 0 completions and labels of 1"),
        ([[True], [True, False]], [[0.9], [0.9]], None, "Completion 1 has 1 step scores and 2 labels"),
        ([[True], []], [[0.9], []], None, "Completion 1 has 0 step scores and 0 labels"),
        ([[True]], [[0.9]], ["a", "b"], "2 units for 1 completions"),
    ],
)
def test_what_does_not_fit_together_is_refused(labels, scores, units, told):
    with pytest.raises(ConfigError) as caught:
        process_quality(labels, scores, seed=0, units=units)
    assert told in str(caught.value)
