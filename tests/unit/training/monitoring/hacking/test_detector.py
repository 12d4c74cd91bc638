"""All detectors together: what a user feeds, what comes back, and a memory that survives."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from rlhf import RewardHackingDetector
from rlhf.config.hacking import HackingConfig
from rlhf.errors import ConfigError
from rlhf.training.monitoring.hacking.detector_table import DETECTORS

EVERYTHING = {
    "action": "warn",
    "judge_slope": {"window": 4, "long_window": 6, "threshold": 2.0, "long_threshold": 2.0},
    "collapse": {"window": 4, "long_window": 6, "threshold": 1.0, "long_threshold": 1.0},
    "judge_gap": {"window": 4, "threshold": 1.0},
    "win_rate_drop": {"anchor_window": 2, "alpha": 0.5},
    "blind": {"window": 2, "min_prompts": 25},
    "repetition_share": {"window": 2, "min_completions": 8, "min_words": 3, "action": "penalize"},
    "length_gaming": {"window": 2, "correlation": 0.1, "growth": 1.1, "action": "penalize"},
    "spikes": {"window": 10, "threshold": 1.0},
    "simple_length": {"action": "penalize", "min_values": 10, "baseline_words": 5, "correlation": 0.1, "min_words": 1},
    "simple_repetition": {"action": "penalize", "min_words": 3},
    "simple_spikes": {"action": "penalize", "window": 10, "deviations": 1.0},
}
"""Every detector, at limits that are crossed all the time."""


def stream(detector, rounds, *, first=0):
    """Feed a detector; what it said, for JSON. Inputs depend on the round alone."""
    said = []
    for step in range(first, rounds):
        rng = np.random.default_rng(step)
        prompts = [f"prompt {k % 4}" for k in range(16)]
        counts = rng.integers(3, 20 + 3 * step, size=16)
        texts = [" ".join(rng.choice(["a", "b", "c d e"], size=count)) for count in counts]
        rewards = 0.1 * counts + rng.normal(size=16)
        report = detector.check(prompts, texts, rewards, step=step)
        falling = -0.3 * (step % 7) + rng.normal(size=24)
        held_out = detector.check_held_out(rng.normal(size=24) + 0.1 * step, falling, step=step)
        if detector.wants_anchor:
            detector.set_anchor(falling[:, None] + rng.normal(size=(24, detector.anchor_completions)))
        for each in (report, held_out):
            said.append([[a.detector, a.value, a.message, a.places] for a in each.alarms] + [each.adjusted_rewards])
    return json.loads(json.dumps(said))


def test_the_table_and_the_settings_name_the_same_detectors():
    assert list(DETECTORS) == list(HackingConfig().of_each())
    for name, entry in DETECTORS.items():
        assert (entry.looks_at == "held_out") == getattr(HackingConfig(), name).asks_judge
        assert entry.metric.startswith("hacking/"), name
        assert "%" in entry.false_alarms or "of" in entry.false_alarms, f"{name} says how often it is wrong"


@pytest.mark.parametrize("killed_at", [1, 7, 13])
def test_a_detector_that_was_saved_says_what_an_uninterrupted_one_says(killed_at):
    whole = RewardHackingDetector(EVERYTHING, horizon=20)
    expected = stream(whole, 20)
    raised = {alarm[0] for said in expected for alarm in said[:-1]}
    assert raised == set(DETECTORS), f"not tested: {set(DETECTORS) - raised}"
    first = RewardHackingDetector(EVERYTHING, horizon=20)
    said = stream(first, killed_at)
    kept = json.loads(json.dumps(first.state_dict()))
    second = RewardHackingDetector(EVERYTHING, horizon=20)
    second.load_state_dict(kept)
    said += stream(second, 20, first=killed_at)
    assert said == expected
    assert second.state_dict() == whole.state_dict()
    assert second.report() == whole.report()


def test_a_detector_that_was_off_when_the_state_was_saved_begins_afresh():
    before = RewardHackingDetector({"action": "off", "spikes": "warn"})
    stream(before, 3)
    after = RewardHackingDetector({"action": "off", "spikes": "warn", "repetition_share": "warn"})
    after.load_state_dict(before.state_dict())
    assert len(after.detectors["spikes"].means) == 3
    assert after.detectors["repetition_share"].counts == []


def test_rewards_lose_the_sum_of_the_penalties_and_nothing_else():
    settings = {"action": "off", "simple_repetition": "penalize"}
    said = RewardHackingDetector(settings).check(["q", "q"], ["no no no no no no no no no no no no", "x"], [1.0, 2.0])
    # 12 words: 10 runs of three, one of them distinct: rate .9, twice that
    assert said.adjusted_rewards == pytest.approx([1.0 - 1.8, 2.0])
    assert said.rewards == [1.0, 2.0]
    assert said.flags == [["simple_repetition"], []]
    assert said.penalties == {"simple_repetition": pytest.approx([1.8, 0.0])}
    warned = RewardHackingDetector({"action": "off", "simple_repetition": "warn"})
    assert warned.check(["q"], ["no " * 12], [1.0]).adjusted_rewards == [1.0]


def test_a_report_tells_actions_counts_and_false_alarm_rates():
    detector = RewardHackingDetector({"action": "stop", "simple_repetition": "warn"})
    detector.check(["q"], ["no " * 12], [1.0])
    told = detector.report()
    assert told["simple_repetition"]["alarms"] == 1
    assert told["judge_slope"] == {
        "action": "stop", "alarms": 0, "value": None, "false_alarms": DETECTORS["judge_slope"].false_alarms,
    }  # fmt: skip
    assert "simple_spikes" not in told


def test_missing_scores_are_left_out_and_never_0():
    detector = RewardHackingDetector({"action": "warn", "judge_slope": {"window": 4, "long_window": 5}})
    rng = np.random.default_rng(0)
    for step in range(8):
        judge = 5.0 + rng.normal(size=40)
        judge[step] = math.nan  # as 0 it would be a fall of five
        assert detector.check_held_out(rng.normal(size=40), judge, step=step).alarms == []


def test_a_judge_without_scores_is_an_alarm_and_not_a_calm_run():
    detector = RewardHackingDetector()
    said = [detector.check_held_out([1.0] * 128, [math.nan] * 128, step=step) for step in range(25)]
    assert [[alarm.detector for alarm in report.alarms] for report in said] == [[]] * 9 + [["blind"]] * 16
    (alarm,) = said[-1].alarms
    assert (alarm.action, alarm.value, alarm.limit) == ("warn", 0.0, 20.0)
    assert said[-1].values["hacking/judged_prompts"] == 0.0
    assert "hacking/judge_slope_t" not in said[-1].values
    off = RewardHackingDetector({"blind": "off"})
    assert all(not off.check_held_out([1.0] * 128, [math.nan] * 128, step=step).alarms for step in range(25))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda d: d.check(["q"], ["a", "b"], [1.0, 2.0]), "1 prompts"),
        (lambda d: d.check([], [], []), "0 prompts"),
        (lambda d: d.check(["q", "q"], ["a", "b"], [1.0, math.nan]), "Reward 1 of 2"),
        (lambda d: d.check_held_out([1.0], [1.0, 2.0]), "1 proxy"),
        (lambda d: [d.check_held_out([1.0] * n, [1.0] * n) for n in (20, 21)], "21 held-out prompts"),
        (lambda d: d.set_anchor([1.0, 2.0]), "axes"),
        (lambda d: d.add_reference(["q"], []), "0 completions"),
        (lambda d: RewardHackingDetector({"judge_slop": "warn"}), "judge_slop"),
        (lambda d: RewardHackingDetector(3), "config"),
    ],
)
def test_wrong_input_is_refused_by_name(call, said):
    with pytest.raises((ConfigError, TypeError), match=said):
        call(RewardHackingDetector())


def test_a_judge_that_falls_alike_on_every_prompt_is_watched_and_logged():
    """Equal slopes have t = -infinity, which a log of finite numbers would leave out as if nobody watched."""
    detector = RewardHackingDetector({"judge_slope": {"window": 4, "long_window": 6}, "collapse": "off"})
    for step in range(6):
        report = detector.check_held_out(np.full(12, float(step)), np.full(12, -float(step)), step=step)
    (alarm,) = (each for each in report.alarms if each.detector == "judge_slope")
    for value in (
        report.values[DETECTORS["judge_slope"].metric],
        alarm.value,
        detector.report()["judge_slope"]["value"],
    ):
        assert math.isfinite(value)
        assert value < -1e3
