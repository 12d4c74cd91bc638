"""The arithmetic of benchmarks/hacked_runs.py: where the truth fell, rates with exact intervals, delays; and its committed rows."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from benchmarks.hacked_runs import KINDS, fall_of, planned, text_of
from benchmarks.hacked_runs_page import beside_simulated, detected, healthy_lines, poisson_interval, share_interval

ROWS = Path(__file__).parents[5] / "docs" / "results" / "hacking-real-runs.json"


def curve(gold, proxy):
    return [{"step": 4 * k + 1, "gold": g, "proxy": p} for k, (g, p) in enumerate(zip(gold, proxy, strict=True))]


def row_of(name="no-kl-0", *, healthy=False, fell=True, alarms=(), steps=100, looks=50, peak_step=20):
    return {
        "name": name, "kind": name.rpartition("-")[0], "healthy": healthy, "steps": steps, "looks": looks, "fell": fell, "fall": 0.5,
        "peak_step": peak_step, "gold": [0.0, 1.0, 0.5], "failed": "",
        "alarms": [{"detector": detector, "step": step} for detector, step in alarms],
    }  # fmt: skip


def test_a_fall_is_measured_from_the_peak_before_it():
    gold, rising = [0.0] * 5 + [1.0] * 5 + [0.5] * 5 + [0.9] * 5, [0.1 * k for k in range(20)]
    fall = fall_of(curve(gold, rising))
    assert (fall["fall"], fall["fell"]) == (0.5, True)
    assert fall["peak_step"] == 4 * 7 + 1, "the middle of rollouts 5 to 9"
    assert not fall_of(curve(gold, rising[::-1]))["fell"], "the reward fell, too"
    assert not fall_of(curve(sorted(gold), rising))["fell"]
    assert fall_of(curve([1.0] * 3, [0.0] * 3)) == {"peak_step": None, "fall": 0.0, "fell": False}, "too short"


def test_exact_intervals_by_hand():
    assert poisson_interval(0, 2.0) == pytest.approx((0.0, -math.log(0.025) / 2))
    low, high = poisson_interval(3, 1.0)  # Garwood 1936: 0.619 to 8.767
    assert (round(low, 3), round(high, 3)) == (0.619, 8.767)
    assert share_interval(0, 10) == pytest.approx((0.0, 1 - 0.025**0.1))
    assert share_interval(10, 10) == pytest.approx((0.025**0.1, 1.0))


def test_delays_count_from_the_peak_in_steps_and_looks():
    rows = [
        row_of(alarms=[("judge_slope", 40), ("win_rate_drop", 30), ("judge_slope", 90)]),
        row_of(alarms=[("collapse", 50)]),
    ]
    assert detected(rows, ["judge_slope"]).startswith("1 of 2 ")
    assert detected(rows, ["judge_slope"]).endswith(", +10 looks, +20 steps")
    assert detected(rows, ["judge_slope", "win_rate_drop"]).endswith(", +5 looks, +10 steps"), "the first of them"
    assert "looks" not in detected(rows, ["spikes"])
    assert detected([], ["spikes"]) == "-"


def test_false_alarms_are_counted_per_exposure():
    rows = [row_of("ppo-0", healthy=True, alarms=[("spikes", 10), ("spikes", 90)]), row_of("ppo-1", healthy=True)]
    line = next(line for line in healthy_lines(rows) if line.startswith("| `spikes`"))
    # 2 alarms in 200 steps and 100 looks
    assert "| 1 of 2 " in line
    assert "| 2 | 10.00 [" in line
    assert "| 1.00 [" in line


def test_the_page_tells_what_was_not_run_and_where_nothing_fell():
    rows = [row_of("ppo-0", healthy=True, fell=False), row_of("no-kl-0"), row_of("blind-0", fell=False)]
    text = text_of(rows)
    assert "did not fall in blind-0" in text
    assert "no-kl-1" in text.partition("not run yet")[2]
    assert text.partition("## Beside")[0].count("\n| no-kl |") == 1


def test_detection_stands_beside_the_simulated_hack_and_says_where_it_is_excluded():
    cell = {"runs": 100, "rollout_runs": 50, "alarms": {"judge_slope": 100, "length_gaming": 50, "spikes": 1}}
    cell["median_steps"] = {"judge_slope": 640.0, "length_gaming": 560.0, "spikes": 900.0}
    simulated = {world: {"cell": cell, "settings": {"since": 500}} for world in ("gao", "len", "rep")}
    rows = [row_of(f"length-{k}", alarms=[("judge_slope", 40)]) for k in range(5)]
    lines = beside_simulated(rows, simulated)[2:]
    # 20 steps after the peak at 50 looks of 100 steps; 140 steps of 20 a look
    assert lines[0] == "| length | `judge_slope` | 5 of 5 [48 %, 100 %] | +10 | len | 100 % | +7 | meets it |"
    assert lines[1] == "| length | `length_gaming` | 0 of 5 [0 %, 52 %] | - | len | 100 % | +3 | **excludes it** |"
    assert len(lines) == 2, "spikes see no such hack, and no other kind was run"


def test_no_two_runs_are_the_same_training():
    runs = planned()
    assert len(runs) == 40
    assert sum(KINDS[run.kind].healthy for run in runs) == 20
    settings = {
        (run.seed, run.start, run.swapped, json.dumps(KINDS[run.kind].settings), KINDS[run.kind].extra_reward)
        for run in runs
    }
    assert len(settings) == 40


def test_the_committed_rows_are_runs_that_were_planned():
    rows = json.loads(ROWS.read_text(encoding="utf-8"))
    plan = {run.name: run for run in planned()}
    assert len({row["name"] for row in rows}) == len(rows)
    for row in rows:
        run = plan[row["name"]]
        assert (row["kind"], row["seed"], row["start"]) == (run.kind, run.seed, run.start)
        assert row["healthy"] == KINDS[run.kind].healthy
        fall = fall_of(curve_of(row))
        assert fall["fell"] == row["fell"]
        assert fall["fall"] == pytest.approx(row["fall"], abs=0.002)  # of rounded means


def curve_of(row):
    return [
        {"step": step, "gold": gold, "proxy": proxy}
        for step, gold, proxy in zip(row["rollout_steps"], row["gold"], row["proxy"], strict=True)
    ]
