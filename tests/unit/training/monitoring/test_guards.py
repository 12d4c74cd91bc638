from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlhf.config.guards import GuardsConfig
from rlhf.training.monitoring.guard_rules import WATCHES
from rlhf.training.monitoring.guards import Alarm, Evidence, Guards, gravest, repetition, worst_samples

HEALTHY = {
    "ppo/score_mean": 1.0,
    "ppo/score_std": 0.6,
    "ppo/ref_kl": 2.0,
    "ppo/length_mean": 12.0,
    "ppo/eos_frac": 0.95,
    "ppo/kl_mean": 0.02,
    "ppo/repetition": 0.02,
    "loss/entropy": 0.4,
    "ppo/clip_frac": 0.05,
    "ppo/ratio_max": 8.0,
    "ppo/ratio_overflow_frac": 0.0,
    "grad_norm": 0.5,
}


def guards(**settings: Any) -> Guards:
    return Guards(GuardsConfig(**settings), name="ppo")


def alarms_over(
    values: list[float], *, metric: str, others: dict[str, float] | None = None, **settings: Any
) -> list[Alarm]:
    """What is said about a metric over steps 1, 2, ..."""
    watching = guards(**settings)
    steps = enumerate(values, start=1)
    return [alarm for step, value in steps for alarm in watching.check(step, {**(others or {}), metric: value})]


def test_every_guard_of_the_settings_looks_at_something():
    assert [*WATCHES, "finite"] == list(GuardsConfig().of_each())


def test_what_is_healthy_and_what_is_absent_raises_nothing():
    watching = guards()
    assert [alarm for step in range(50) for alarm in watching.check(step, HEALTHY)] == []
    assert watching.quiet
    assert guards().check(1, {"loss/train": 0.3, "learning_rate": 1e-3}) == []
    assert guards().check(1, {"grpo/ref_kl": 1e9}) == [], "another algorithm's metric is none of ours"


def test_kl_above_its_limit_is_said_with_value_limit_and_advice():
    (alarm,) = alarms_over([2.0, 15.1, 15.0, 15.1, 15.5], metric="ppo/ref_kl", others={"ppo/length_mean": 12.0})
    assert (alarm.guard, alarm.step, alarm.metric, alarm.value, alarm.limit) == ("kl", 5, "ppo/ref_kl", 15.5, 15.0)
    assert alarm.action == "warn"
    assert alarm.evidence == Evidence("kl", largest=True)
    for words in ("15.5 nats per sequence", "limit of 15", "raise kl.coef"):
        assert words in alarm.message


def test_one_rollout_with_a_few_completions_that_ran_away_is_no_alarm_and_one_far_beyond_the_limit_is():
    # Of a healthy run of GRPO (benchmarks/seeds.py, seed 35): a tenth of one rollout's completions ran to the length limit.
    assert alarms_over([3.2, 4.1, 11.4, 3.1, 20.3, 3.2, 3.3], metric="ppo/ref_kl") == []
    assert [a.step for a in alarms_over([3.2, 4.1, 29.9, 3.1, 30.1], metric="ppo/ref_kl")] == [5]
    assert [a.step for a in alarms_over([20.0], metric="ppo/ref_kl")] == []


def test_long_completions_may_drift_a_quarter_of_a_nat_for_each_token_unless_the_limit_is_given():
    long = {"ppo/length_mean": 80.0}  # 20 nats
    assert alarms_over([19.9] * 3, metric="ppo/ref_kl", others=long) == []
    (alarm,) = alarms_over([20.1] * 3, metric="ppo/ref_kl", others=long)
    assert alarm.limit == 20.0
    assert "20.1 nats per sequence (0.25 per token)" in alarm.message
    assert [a.limit for a in alarms_over([40.5] * 3, metric="ppo/ref_kl", others=long, kl={"limit": 40})] == [40.0]
    assert [a.limit for a in alarms_over([40.5] * 3, metric="ppo/ref_kl", others=long, kl={"per_token": 0.5})] == [40.0]


def test_completions_that_grew_have_no_more_room_to_drift_than_at_first():
    watching = guards()
    actual = [
        watching.check(step, {"ppo/ref_kl": kl, "ppo/length_mean": length})
        for step, (kl, length) in enumerate([(1.0, 64.0)] * 5 + [(15.9, 90.0)] * 2 + [(16.1, 90.0)] * 2)
    ]
    assert [[alarm.limit for alarm in alarms] for alarms in actual] == [[]] * 8 + [[16.0]]


def test_a_run_whose_completions_stop_ending_is_told_of_long_before():
    # PPO on 54 to 96 tokens: 27 nats were below half a nat a token, while the share of answers that ended went from .88 to .36.
    share = np.linspace(0, 1, 40)
    watching, actual = guards(), []
    for step, x in enumerate(share.tolist(), start=1):
        length, ended = 60 + 25 * x, 0.88 - 0.52 * x
        metrics = {"ppo/ref_kl": 27 * x, "ppo/length_mean": length, "ppo/eos_frac": ended, "ppo/kl_mean": 0.8 * x}
        actual += watching.check(step, metrics | {"ppo/score_mean": 0.5, "ppo/score_std": 0.3})
    assert {alarm.guard: alarm.step for alarm in actual} == {"step_kl": 16, "kl": 25, "length": 28}


def test_entropy_may_fall_to_a_twentieth_of_what_it_was():
    start = [0.6, 0.5, 0.4, 0.5, 0.5]  # median 0.5: 0.025 is the limit
    assert alarms_over([*start, 0.026], metric="loss/entropy") == []
    (alarm,) = alarms_over([*start, 0.024], metric="loss/entropy")
    assert (alarm.guard, alarm.step, alarm.limit) == ("entropy", 6, pytest.approx(0.025))
    assert "Entropy fell to 0.024 nats per token, below the limit of 0.025 (it was 0.5 at first)" in alarm.message


def test_entropy_near_nothing_and_entropy_that_explodes_are_alarms_too():
    assert [a.limit for a in alarms_over([0.009], metric="loss/entropy")] == [0.01]
    rising = alarms_over([0.5] * 5 + [1.4, 1.6], metric="loss/entropy")
    assert [(a.step, a.limit) for a in rising] == [(7, 1.5)]
    assert "Entropy rose to 1.6" in rising[0].message


def test_a_single_large_gradient_needs_a_hundred_times_the_median_and_a_lasting_one_ten_times():
    usual = [0.4, 0.6] * 15
    assert alarms_over([*usual, 49.0, *usual], metric="grad_norm") == []
    (spike,) = alarms_over([*usual, 51.0], metric="grad_norm")
    assert (spike.step, spike.value, spike.limit) == (31, 51.0, pytest.approx(50.0))
    assert "jumped to 51" in spike.message
    lasting = alarms_over([*usual, 6.0, 6.0, 6.0, 6.0, 6.0, 6.0], metric="grad_norm")
    assert [(a.step, a.value, a.limit) for a in lasting] == [(33, 6.0, pytest.approx(5.0))]  # three of the last five
    assert "has been about 6 for 5 steps, 12 times its running median of 0.5 (limit 10 times)" in lasting[0].message


def test_gradients_of_warm_up_and_gradients_that_were_nothing_are_no_measure():
    assert alarms_over([0.01] * 15 + [100.0], metric="grad_norm") == []
    assert alarms_over([0.0] * 40 + [5.0], metric="grad_norm") == []


def test_a_score_that_leaps_is_measured_by_its_usual_changes():
    scores = [0.0, 0.1, 0.0, 0.1, 0.0, 0.1, 0.0, 0.1, 0.0]  # changes of 0.1: a deviation of 0.14826, eight are 1.186
    assert alarms_over([*scores, 1.18], metric="ppo/score_mean") == []
    (rose,) = alarms_over([*scores, 1.19], metric="ppo/score_mean")
    assert (rose.guard, rose.step, rose.limit) == ("reward_jump", 10, pytest.approx(1.18608))
    assert rose.evidence == Evidence("score", largest=True)
    assert "leapt from 0 to 1.19 between two rollouts, 8 times its usual change" in rose.message
    (fell,) = alarms_over([*scores, -1.19], metric="ppo/score_mean")
    assert fell.evidence == Evidence("score", largest=False)
    assert fell.limit == pytest.approx(-1.18608)


def test_no_change_within_the_spread_of_single_scores_is_a_leap():
    scores = [0.0] * 30
    assert alarms_over([*scores, 0.7], metric="ppo/score_mean", others={"ppo/score_std": 0.9}) == []
    assert len(alarms_over([*scores, 0.75], metric="ppo/score_mean", others={"ppo/score_std": 0.9})) == 1
    assert alarms_over([*scores, 0.7], metric="ppo/score_mean") == [], "without any spread nothing can be said"


def test_a_score_that_rises_steadily_is_what_training_is_for():
    assert (
        alarms_over([0.05 * step for step in range(60)], metric="ppo/score_mean", others={"ppo/score_std": 0.6}) == []
    )


@pytest.mark.parametrize(("far", "limit", "word", "largest"), [(25.0, 24.0, "grew", True), (5.0, 6.0, "shrank", False)])
def test_length_is_compared_with_the_first_rollouts_by_medians(far, limit, word, largest):
    start = [12.0, 11.0, 13.0, 12.0, 12.0]
    (alarm,) = alarms_over([*start, far, far, 12.0, far, far], metric="ppo/length_mean")
    assert (alarm.guard, alarm.step, alarm.value, alarm.limit) == ("length", 9, far, limit)  # three of the last five
    assert alarm.evidence == Evidence("length", largest=largest)
    assert f"Completions {word} to {far:g} tokens from 12 at first (limit {limit:g})" in alarm.message
    assert "kl.coef" not in alarm.message, "nothing is known of the score"


@pytest.mark.parametrize(("score", "drifts"), [(0.5, True), (0.2, True), (0.65, True), (0.75, False)])
def test_a_length_that_changes_without_the_score_is_drift_and_the_remedy_is_the_kl_penalty(score, drifts):
    watching, actual = guards(), []
    for step in range(20):
        late = step >= 5
        metrics = {"ppo/length_mean": 30.0 if late else 12.0, "ppo/score_mean": score if late else 0.5}
        actual += watching.check(step, metrics | {"ppo/score_std": 0.8})
    (alarm,) = actual
    assert ("Raise kl.coef" in alarm.message) == drifts
    assert ("penalize length" in alarm.message) != drifts
    assert (f"did not rise with it ({score:g}, 0.5 at first)" in alarm.message) == drifts


def test_completions_that_no_longer_end_are_a_matter_of_length():
    start = [0.9, 0.88, 0.86, 0.88, 0.88]
    assert alarms_over(start + [0.6] * 9, metric="ppo/eos_frac") == []
    (alarm,) = alarms_over(start + [0.36] * 9, metric="ppo/eos_frac")
    assert (alarm.guard, alarm.step) == ("length", 8)  # three of the last five
    assert (alarm.value, alarm.limit) == (pytest.approx(0.36), pytest.approx(0.58))
    assert (
        "64\u202f% of the completions are cut by max_new_tokens, against 12\u202f% at first (limit 42\u202f%)"
        in alarm.message
    )
    assert alarm.evidence == Evidence("length")
    assert alarms_over(start + [0.36] * 9, metric="ppo/eos_frac", length={"max_cut_rise": 0.6}) == []
    assert alarms_over([0.1] * 5 + [1.0] * 9, metric="ppo/eos_frac") == [], "ending more often is not a harm"


def test_the_distance_from_the_policy_that_sampled_counts_when_it_is_typical_and_not_in_one_step():
    assert alarms_over([0.0, 2.0, 0.0, 0.0, 2.0, 0.0, 0.0], metric="ppo/kl_mean") == []
    (alarm,) = alarms_over([0.0, 0.8, 0.0, 0.8, 0.8, 0.8], metric="ppo/kl_mean")
    assert (alarm.guard, alarm.step, alarm.value, alarm.limit) == ("step_kl", 5, 0.8, 0.25)
    for words in ("0.8 nats per token", "limit of 0.25", "stop_at_kl"):
        assert words in alarm.message


def test_repetition_may_rise_by_a_fifth_over_what_it_was():
    start = [0.3] * 5
    assert alarms_over(start + [0.49] * 9, metric="ppo/repetition") == []
    (alarm,) = alarms_over(start + [0.51] * 9, metric="ppo/repetition")
    assert (alarm.guard, alarm.step, alarm.value, alarm.limit) == ("repetition", 8, 0.51, pytest.approx(0.5))
    assert "51.0\u202f% of the completions' three-token runs are repeats, against 30.0\u202f% at first" in alarm.message


def test_clipping_counts_when_it_is_typical_and_not_in_one_step():
    assert alarms_over([0.0, 0.9, 0.0, 0.0, 0.9, 0.0, 0.0], metric="ppo/clip_frac") == []
    (alarm,) = alarms_over([0.0, 0.4, 0.0, 0.4, 0.4, 0.4], metric="ppo/clip_frac")
    assert (alarm.step, alarm.value, alarm.limit) == (5, 0.4, 0.3)


def test_a_ratio_of_ten_thousand_and_any_that_overflows_are_extremes():
    assert alarms_over([9_999.0], metric="ppo/ratio_max") == []
    (extreme,) = alarms_over([20_000.0], metric="ppo/ratio_max")
    assert (extreme.guard, extreme.limit) == ("ratio", 10_000.0)
    (overflow,) = alarms_over([0.0, 0.001], metric="ppo/ratio_overflow_frac")
    assert (overflow.guard, overflow.metric, overflow.limit) == ("ratio", "ppo/ratio_overflow_frac", 0.0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_an_alarm_of_its_own_and_teaches_nothing(value):
    watching = guards()
    (alarm,) = watching.check(7, {**HEALTHY, "ppo/ref_kl": value, "loss/kl": value})
    assert (alarm.guard, alarm.metric, alarm.limit) == ("finite", "ppo/ref_kl", None)
    assert f"ppo/ref_kl is {value}, where a number was expected (and so is loss/kl)" in alarm.message
    assert alarm.evidence == Evidence("kl")
    assert "ref_kl" not in watching.past
    assert watching.past["score_mean"].last == [1.0]


@pytest.mark.parametrize("name", ["loss/train", "grad_norm", "grad_norm/policy"])
def test_a_step_that_the_loop_left_out_is_its_own_to_report(name):
    watching = guards()
    assert watching.check(1, {**HEALTHY, name: math.nan, "loss/policy": math.nan, "ppo/clip_frac": math.nan}) == []
    assert len(watching.check(2, {**HEALTHY, "loss/policy": math.nan})) == 1


def test_an_excursion_is_said_once_and_again_only_after_ten_values_within_limits():
    def steps(values):
        return [alarm.step for alarm in alarms_over(values, metric="ppo/ref_kl")]

    assert steps([40.0] * 300) == [1]
    assert steps(([40.0] + [2.0] * 9) * 30) == [1]
    assert steps([40.0] + [2.0] * 10 + [40.0]) == [1, 12]


def test_a_metric_that_is_seldom_measured_is_not_well_in_between():
    watching = guards()
    actual = []
    for step in range(100):  # one rollout in ten steps
        actual += watching.check(step, {"grad_norm": 1.0} | ({"ppo/ref_kl": math.nan} if step % 10 == 0 else {}))
    assert [alarm.step for alarm in actual] == [0]
    assert not watching.quiet


def test_several_alarms_come_in_the_order_of_the_settings_and_stopping_goes_first():
    watching = guards(kl="restore", ratio="stop")
    alarms = watching.check(3, {"ppo/ratio_max": 1e5, "loss/kl": math.nan, "ppo/ref_kl": 99.0})
    assert [(alarm.guard, alarm.action) for alarm in alarms] == [
        ("kl", "restore"),
        ("ratio", "stop"),
        ("finite", "warn"),
    ]
    assert gravest(alarms) == "stop"
    assert gravest(alarms[:1]) == "restore"
    assert gravest([]) is None


def test_a_guard_that_is_off_says_nothing():
    assert alarms_over([1e9], metric="ppo/ref_kl", kl="off") == []
    assert alarms_over([math.nan], metric="ppo/ref_kl", finite="off") == []
    assert alarms_over([1e9, math.nan], metric="ppo/ref_kl", action="off") == []


def test_a_run_goes_back_twice_and_then_stops():
    watching = guards(kl="restore", max_restores=2)
    good = watching.state_dict()
    for _ in range(2):
        (alarm,) = watching.check(5, {"ppo/ref_kl": 99.0})
        assert alarm.action == "restore"
        watching.go_back(good)
    (last,) = watching.check(5, {"ppo/ref_kl": 99.0})
    assert last.action == "stop"
    assert "went back 2 times already (guards.max_restores), so it stops" in last.message


def test_a_resumed_run_raises_the_same_alarms():
    rng = np.random.default_rng(3)
    run = troubled(rng, 80)
    whole, whole_found = guards(), []
    for step, metrics in enumerate(run):
        whole_found += whole.check(step, metrics)
    assert len(whole_found) >= 4, "otherwise this would prove little"
    for cut in (1, 7, 30, 55):
        watching, actual = guards(), []
        for step, metrics in enumerate(run):
            if step == cut:
                state = json.loads(json.dumps(watching.state_dict()))
                watching = guards()
                watching.load_state_dict(state)
            actual += watching.check(step, metrics)
        assert actual == whole_found
        assert watching.state_dict() == whole.state_dict()


def troubled(rng: np.random.Generator, steps: int) -> list[dict[str, float]]:
    """Every metric leaves its limits at some time."""
    run = []
    for step in range(steps):
        metrics = {name: value * float(1 + 0.05 * rng.standard_normal()) for name, value in HEALTHY.items()}
        if step > 35:
            metrics |= {"ppo/ref_kl": 0.5 * step, "ppo/length_mean": 40.0, "grad_norm": 9.0}
        if step in (40, 60):
            metrics |= {"ppo/score_mean": 9.0, "loss/entropy": math.nan}
        run.append(metrics)
    return run


def made_up_runs(rng: np.random.Generator, runs: int, rollouts: int) -> dict[str, np.ndarray]:
    """[runs, rollouts] of each metric: scores that rise, lengths that drift, entropy that falls, and honest noise."""
    x, noise = np.linspace(0, 1, rollouts), rng.standard_normal
    rise = 1 - np.exp(-rng.uniform(2, 8, (runs, 1)) * x)
    error = 1 / np.sqrt(rng.choice([32, 64, 128, 256], (runs, 1)))  # of a mean over a rollout's completions

    def between(low: float, high: float) -> np.ndarray:
        return rng.uniform(low, high, (runs, 1))

    def noisy(size: float) -> np.ndarray:
        return size * error * noise((runs, rollouts))

    return {
        "ppo/score_mean": between(-1, 1) + between(0.3, 1.5) * rise + noisy(0.8),
        "ppo/score_std": np.full((runs, rollouts), 0.6),
        "ppo/ref_kl": between(1, 7) * rise + noisy(2.0),
        "ppo/length_mean": between(10, 400) * (1 + between(-0.35, 0.5) * rise) * (1 + noisy(0.5)),
        "ppo/eos_frac": np.clip(between(0.5, 1) + between(-0.1, 0.5) * rise + noisy(0.4), 0, 1),
        "ppo/kl_mean": between(0, 0.05) * np.exp(0.6 * noise((runs, rollouts))),
        "ppo/repetition": np.clip(between(0, 0.1) + 0.05 * rise + noisy(0.1), 0, 1),
        "loss/entropy": between(0.4, 2.5) * (1 - between(0, 0.85) * rise) * (1 + noisy(0.4)),
        "ppo/clip_frac": np.abs(0.05 + 0.04 * noise((runs, rollouts))),
        "ppo/ratio_max": np.exp(np.abs(1.2 * noise((runs, rollouts)))),
        "grad_norm": between(0.2, 3) * np.exp(0.6 * noise((runs, rollouts))),
    }


def first_alarms(metrics: dict[str, np.ndarray]) -> list[dict[str, int]]:
    """For each run, guard -> rollout of its first alarm."""
    columns = {name: values.tolist() for name, values in metrics.items()}
    by_run: list[dict[str, int]] = []
    for run in range(len(metrics["grad_norm"])):
        rows = zip(*(columns[name][run] for name in columns), strict=True)
        watching = guards()
        by_run.append({})
        for step, row in enumerate(rows):
            for alarm in watching.check(step, dict(zip(columns, row, strict=True))):
                by_run[-1].setdefault(alarm.guard, step)
    return by_run


@pytest.mark.slow
def test_fewer_than_one_healthy_run_in_a_hundred_raises_any_alarm():
    actual = first_alarms(made_up_runs(np.random.default_rng(0), 10_000, 30))
    assert sum(map(bool, actual)) < 100


@pytest.mark.parametrize(
    ("guard", "metric", "change", "within"),
    [
        ("kl", "ppo/ref_kl", lambda v, t: v * 2.0**t, 9),
        ("entropy", "loss/entropy", lambda v, t: v * 0.5**t, 9),
        ("grad_norm", "grad_norm", lambda v, t: v * 200, 4),
        ("reward_jump", "ppo/score_mean", lambda v, t: v + 2.5, 1),
        ("length", "ppo/length_mean", lambda v, t: v * 1.25**t, 10),
        ("repetition", "ppo/repetition", lambda v, t: np.minimum(v + 0.05 * t, 1), 8),
        ("clip_frac", "ppo/clip_frac", lambda v, t: v + 0.4, 3),
        ("length", "ppo/eos_frac", lambda v, t: v * 0.85**t, 15),
        ("step_kl", "ppo/kl_mean", lambda v, t: v + 0.4, 3),
        ("ratio", "ppo/ratio_max", lambda v, t: v * 20_000, 1),
    ],
)
def test_each_pathology_is_said_within_a_few_rollouts(guard, metric, change, within):
    begins, rollouts = 30, 100
    metrics = made_up_runs(np.random.default_rng(1), 100, rollouts)
    after = np.arange(1, rollouts - begins + 1)
    metrics[metric][:, begins:] = change(metrics[metric][:, begins:], after)
    delays = [actual[guard] - begins + 1 if guard in actual else math.inf for actual in first_alarms(metrics)]
    assert np.mean([0 < delay <= within for delay in delays]) > 0.97


def real_runs(*, healthy: bool) -> list[Any]:
    """Metrics of runs of this repository's recipes, to three digits, as events.jsonl had them.

    Healthy: quickstart with PPO and GRPO (seeds 1, 11 to 15), reward_hacking's `held`, stories and hh_rlhf. Not: its
    `hacked`, PPO without a penalty (seeds 1, 11, 14; docs/results/reward_hacking.md).
    """
    runs = json.loads((Path(__file__).parent / "guard_curves.json").read_text())
    return [pytest.param(run, id=run["run"]) for run in runs if run["healthy"] == healthy]


def alarms_of_run(run: dict[str, Any]) -> list[Alarm]:
    columns, gap = run["metrics"], run["steps_per_rollout"]
    watching, alarms = Guards(GuardsConfig(), name=run["algorithm"]), []
    steps = len(columns["grad_norm"])
    for step in range(steps):
        metrics = {name: values[step] for name, values in columns.items() if len(values) == steps}
        if step % gap == 0:
            metrics |= {name: values[step // gap] for name, values in columns.items() if len(values) < steps}
        alarms += watching.check(step + 1, metrics)
    return alarms


@pytest.mark.parametrize("run", real_runs(healthy=True))
def test_no_healthy_run_that_we_have_raises_an_alarm(run):
    assert alarms_of_run(run) == []


@pytest.mark.parametrize("run", real_runs(healthy=False))
def test_every_gamed_run_that_we_have_raises_one_about_kl_and_few_in_all(run):
    actual = alarms_of_run(run)
    assert actual[0].guard == "kl"
    assert len(actual) <= 3


def test_repetition_is_the_share_of_three_token_runs_that_stood_there_before():
    assert repetition([1, 2, 3, 4, 5]) == 0.0
    assert repetition([1, 2, 3, 1, 2, 3]) == 0.25  # 123 231 312 123
    assert repetition([7] * 12) == 0.9  # ten runs, one kind
    assert repetition([1, 2, 1, 2], size=2) == pytest.approx(1 / 3)  # 12 21 12
    assert repetition([]) == repetition([1, 2]) == repetition([1, 2, 3]) == 0.0


def test_the_samples_of_an_alarm_are_those_that_show_it_best():
    rows = [
        {"prompt": str(n), "score": s, "kl": k} for n, (s, k) in enumerate([(1.0, 5.0), (3.0, 9.0), (2.0, math.nan)])
    ]

    def chosen(evidence, count=2):
        alarm = Alarm("kl", 1, "ppo/ref_kl", 20.0, 15.0, "warn", "", evidence)
        return [row["prompt"] for row in worst_samples(alarm, rows, count=count)]

    assert chosen(Evidence("score")) == ["1", "2"]
    assert chosen(Evidence("score", largest=False)) == ["0", "2"]
    assert chosen(Evidence("kl"), count=3) == ["2", "1", "0"], "what is not a number is the worst"
    assert chosen(Evidence("ratio")) == ["0", "1"], "a column that is absent leaves the order"
    assert chosen(None) == ["0", "1"]


def test_what_goes_into_the_log_is_plain():
    (alarm,) = alarms_over([99.0], metric="ppo/ref_kl", kl="stop")
    assert alarm.fields() == {"guard": "kl", "metric": "ppo/ref_kl", "value": 99.0, "limit": 15.0, "action": "stop"}
    json.dumps(alarm.fields())


def test_nothing_depends_on_how_long_the_run_is():
    """State stays small: a checkpoint of a million steps holds no million numbers."""
    watching = guards()
    sizes = []
    for step in range(1200):
        watching.check(step, HEALTHY)
        if step % 300 == 299:
            sizes.append(len(json.dumps(watching.state_dict())))
    assert all(before == after for before, after in pairwise(sizes))
