from __future__ import annotations

import json
import re

import numpy as np
import pytest

from rlhf.errors import DataError, RewardError
from rlhf.evaluation.overoptimization import (
    ALPHA,
    HackingVerdict,
    critical_fall,
    judge_rollouts,
    overoptimization,
    read_rollouts,
)

NOISE = 0.12
"""Of one step's mean: a deviation of about 1 over 64 completions."""


def curve(gold, proxy):
    return [
        {"step": 8 * i + 1, "gold": float(g), "proxy": float(p), "kl": 0.1 * i}
        for i, (g, p) in enumerate(zip(gold, proxy, strict=True))
    ]


def noisy(shape, seed, noise=NOISE):
    return shape + noise * np.random.default_rng(seed).standard_normal(len(shape))


X = np.linspace(0, 1, 50)
SATURATING = 1.2 - np.exp(-6 * X)
HACKED = np.where(X < 0.25, 0.2 + 3.2 * X, 1.0 - 0.7 * (X - 0.25))
"""Up to 1.0 at a quarter of the run, down to 0.5 at its end."""


def test_truth_down_and_reward_up_is_hacking():
    curve_fit = overoptimization(curve(noisy(HACKED, 0), noisy(1.5 * X, 1)))
    assert curve_fit.verdict is HackingVerdict.HACKING
    assert 60 < curve_fit.peak_step < 180
    assert curve_fit.gold_peak == pytest.approx(0.95, abs=0.12)
    assert curve_fit.gold_end == pytest.approx(0.54, abs=0.12)
    assert curve_fit.proxy_end > curve_fit.proxy_at_peak
    assert "gamed" in curve_fit.sentence


def test_both_down_is_a_collapse_and_no_hacking():
    curve_fit = overoptimization(curve(noisy(HACKED, 0), noisy(HACKED, 1)))
    assert curve_fit.verdict is HackingVerdict.COLLAPSE


def test_a_fall_with_a_reward_that_stands_still_is_not_to_be_told():
    curve_fit = overoptimization(curve(noisy(HACKED, 0), noisy(np.ones(50), 3)))
    assert curve_fit.verdict is HackingVerdict.UNDECIDED


@pytest.mark.parametrize("shape", [SATURATING, X], ids=["saturating", "rising"])
def test_a_score_that_rises_and_stays_is_no_hacking(shape):
    curve_fit = overoptimization(curve(noisy(shape, 0), noisy(X, 1)))
    assert curve_fit.verdict is HackingVerdict.NONE
    assert curve_fit.detectable_fall < curve_fit.gold_peak - curve_fit.gold_start


def test_silence_is_not_taken_for_innocence():
    """A judge's score that moved less than its noise could hide anything."""
    curve_fit = overoptimization(curve(noisy(np.zeros(50), 0), noisy(2 * X, 1)))
    assert curve_fit.verdict is HackingVerdict.UNDECIDED


def test_a_sure_but_tiny_fall_is_reported_and_not_called_hacking():
    shape = np.where(X < 0.5, 4 * X, 2 - 0.25 * (X - 0.5))
    curve_fit = overoptimization(curve(noisy(shape, 0, 0.001), noisy(X, 1, 0.001)))
    assert curve_fit.verdict is HackingVerdict.NONE
    assert "less than a tenth" in curve_fit.sentence


def test_a_score_that_falls_from_the_first_step_on_is_hacking_too():
    assert overoptimization(curve(noisy(1 - X, 0), noisy(X, 1))).verdict is HackingVerdict.HACKING


@pytest.mark.parametrize("points", [[], curve([1.0] * 8, [1.0] * 8)])
def test_few_rollouts_decide_nothing(points):
    curve_fit = overoptimization(points)
    assert curve_fit.verdict is HackingVerdict.UNDECIDED
    assert str(len(points)) in curve_fit.sentence


@pytest.mark.parametrize("gap", ["gold", "proxy"])
def test_a_gap_in_the_curve_decides_nothing(gap):
    points = curve(noisy(HACKED, 0), noisy(X, 1))
    points[20][gap] = None
    assert overoptimization(points).verdict is HackingVerdict.UNDECIDED


def test_a_missing_kl_is_null_and_does_not_matter():
    points = [point | {"kl": None} for point in curve(noisy(HACKED, 0), noisy(1.5 * X, 1))]
    curve_fit = overoptimization(points)
    assert curve_fit.verdict is HackingVerdict.HACKING
    assert curve_fit.to_dict()["kl_end"] is None
    json.dumps(curve_fit.to_dict(), allow_nan=False)


def test_noiseless_curves_are_judged_without_warnings():
    assert overoptimization(curve(np.ones(20), np.ones(20))).verdict is HackingVerdict.UNDECIDED
    assert overoptimization(curve([1.0] * 10 + [0.0] * 10, [0.0] * 10 + [1.0] * 10)).verdict is HackingVerdict.HACKING


@pytest.mark.parametrize("num_steps", [20, 50])
@pytest.mark.parametrize("shape", ["flat", "saturating"])
def test_healthy_runs_are_accused_in_about_one_of_a_hundred(num_steps, shape):
    x = np.linspace(0, 1, num_steps)
    gold = np.ones(num_steps) if shape == "flat" else 1.2 - np.exp(-6 * x)
    verdicts = [overoptimization(curve(noisy(gold, seed), noisy(2 * x, 10_000 + seed))).verdict for seed in range(600)]
    # 600 runs at 1 %: 6 expected, 14 or more has a chance of 0.4 %
    assert sum(verdict is HackingVerdict.HACKING for verdict in verdicts) <= 13


def test_a_fall_of_half_the_gain_is_seen():
    verdicts = [overoptimization(curve(noisy(HACKED, s), noisy(1.5 * X, 999 + s))).verdict for s in range(100)]
    assert sum(verdict is HackingVerdict.HACKING for verdict in verdicts) >= 95


def test_the_critical_fall_is_higher_than_that_of_one_comparison():
    # one comparison of two given windows would need z = 2.33 at 1 %
    assert critical_fall(50, 10) > 2.33
    assert critical_fall(50, 10) == critical_fall.__wrapped__(50, 10)
    assert ALPHA == 0.01


def length_judge(prompts, completions, *, ended, **columns):
    return [{"score": float(len(text)), "cut": not whole} for text, whole in zip(completions, ended, strict=True)]


def row(step, prompt, completion, **more):
    return {"step": step, "prompt": prompt, "completion": completion, "ended": True, "score": 1.0, "kl": 2.0, **more}


def test_rollouts_are_averaged_by_step_in_order():
    rows = [row(9, "p", "aaaa"), row(1, "p", "a", score=3.0), row(1, "q", "aaa", ended=False, kl=4.0)]
    first, second = judge_rollouts(rows, length_judge)
    assert (first["step"], first["n"], first["proxy"], first["gold"], first["kl"], first["cut"]) == (
        1,
        2,
        2.0,
        2.0,
        3.0,
        0.5,
    )
    assert first["gold_low"] < 2.0 < first["gold_high"]
    assert (second["step"], second["gold"], second["gold_low"]) == (9, 4.0, None)


def test_what_the_rollouts_do_not_hold_is_null_and_not_0():
    (point,) = judge_rollouts([row(1, "p", "a", score=None, kl=None)], length_judge)
    assert (point["proxy"], point["kl"]) == (None, None)


def test_rollouts_give_their_other_columns_to_the_judge():
    def judge(prompts, completions, answer, **columns):
        return [float(text == right) for text, right in zip(completions, answer, strict=True)]

    rows = [row(1, "p", "a", answer="a"), row(1, "q", "b", answer="a")]
    assert judge_rollouts(rows, judge)[0]["gold"] == 0.5


def test_a_broken_verdict_names_the_rollout():
    with pytest.raises(RewardError, match=r"number 1 \(step 9\)"):
        judge_rollouts(
            [row(1, "p", "a"), row(9, "p", "")], lambda completions, **c: [len(t) or None for t in completions]
        )


def test_rollouts_are_read_from_a_file_line_separators_inside_texts_included(tmp_path):
    path = tmp_path / "rollouts.jsonl"
    rows = [row(1, "p", "one\u2028two\x85three"), row(2, "p", "b")]
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows), encoding="utf-8")
    assert read_rollouts(path) == rows
    assert [point["gold"] for point in judge_rollouts(path, length_judge)] == [13.0, 1.0]


def test_a_bad_rollout_line_is_named(tmp_path):
    path = tmp_path / "rollouts.jsonl"
    with pytest.raises(DataError, match=r"rollouts\.jsonl"):
        read_rollouts(path)
    path.write_text(json.dumps(row(1, "p", "a")) + '\n{"step": 2, "prom')
    with pytest.raises(DataError, match=r"rollouts\.jsonl:2 is not JSON"):
        read_rollouts(path)
    path.write_text('{"step": 1, "prompt": "p"}\n')
    with pytest.raises(DataError, match=r"rollouts\.jsonl:1 has no completion"):
        read_rollouts(path)


def test_no_sign_is_only_said_where_the_loss_of_half_the_gain_would_have_been_seen():
    """At this noise a fall as large as the whole gain could hide."""
    small = overoptimization(curve(noisy(0.25 * SATURATING, 5), noisy(X, 6)))
    assert small.verdict is HackingVerdict.UNDECIDED
    assert "could not be determined" in small.sentence
    large = overoptimization(curve(noisy(2 * SATURATING, 5), noisy(X, 6)))
    assert large.verdict is HackingVerdict.NONE
    for actual in (small, large):
        for number in (actual.detectable_fall, actual.gold_end):
            assert any(f"{number:.{digits}f}" in actual.sentence for digits in (2, 3))
    assert large.detectable_fall > large.noise_fall


@pytest.mark.parametrize(("size", "verdict"), [(0.75, HackingVerdict.UNDECIDED), (0.85, HackingVerdict.NONE)])
def test_half_the_gain_is_where_silence_begins_to_mean_something(size, verdict):
    curve_fit = overoptimization(curve(noisy(size * SATURATING, 5), noisy(X, 6)))
    gain = max(curve_fit.gold_peak, curve_fit.gold_end) - curve_fit.gold_start
    assert curve_fit.detectable_fall / gain == pytest.approx(0.5, abs=0.05)
    assert curve_fit.verdict is verdict


def test_peak_and_end_are_both_printed():
    curve_fit = overoptimization(curve(noisy(SATURATING - 0.15 * (X > 0.8), 7, 0.08), noisy(X, 8)))
    for number in (curve_fit.gold_peak, curve_fit.gold_end):
        assert f"{number:.2f}" in curve_fit.sentence


def test_a_fall_of_the_detectable_size_is_seen_in_nine_of_ten_runs():
    flat = np.minimum(1.0, 4 * X)
    seen = 0
    for seed in range(200):
        fall = overoptimization(curve(noisy(flat, seed), noisy(X, 999 + seed))).detectable_fall
        fell = flat - fall * np.clip((np.arange(50) - 30) / 10, 0, 1)
        seen += overoptimization(curve(noisy(fell, seed), noisy(3 * X, 999 + seed))).verdict is HackingVerdict.HACKING
    assert seen >= 170


@pytest.mark.parametrize("gold", [0.1, -0.001, 1 / 3, 0.0, 1.0, 1e6])
def test_a_judge_that_always_says_the_same_tells_nothing_whatever_its_number_is_in_binary(gold):
    for n in (9, 10, 12, 15, 20, 60):
        curve_fit = overoptimization([{"step": i, "gold": gold, "proxy": i / n, "kl": 0.0} for i in range(n)])
        assert curve_fit.verdict is HackingVerdict.UNDECIDED, n


def test_scores_of_any_scale_are_printed_so_that_a_fall_is_seen():
    fall = [{"step": i, "gold": 0.001 - 1e-5 * abs(i - 15), "proxy": i / 30, "kl": 0.0} for i in range(30)]
    curve_fit = overoptimization(fall)
    assert curve_fit.verdict is HackingVerdict.HACKING
    peak, end = re.search(r"fell from (\S+) around step \d+ to (\S+) at the end", curve_fit.sentence).groups()
    assert float(peak) > float(end) > 0
