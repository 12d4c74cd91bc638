"""Detectors of reward hacking, one by one: statistics worked by hand, and the mistakes that simpler ones make."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlhf.config.hacking import HackingConfig
from rlhf.errors import ConfigError
from rlhf.training.monitoring.guards import repetition
from rlhf.training.monitoring.hacking.detector import RewardHackingDetector
from rlhf.training.monitoring.hacking.detector_table import DETECTORS
from rlhf.training.monitoring.hacking.observations import HeldOutObservation, RolloutObservation, words_of
from rlhf.training.monitoring.hacking.repetition_share import longest_repeated_block
from rlhf.training.monitoring.hacking.slopes import mean_t, prompt_slopes
from rlhf.training.monitoring.hacking.win_rate_drop import WinRateDrop, win_shares


def detector_of(name, **settings):
    return DETECTORS[name].build(getattr(HackingConfig.of({name: settings}), name))


def rollout(rewards, *, words=None, groups=None, repeated=None, rates=None, reference=0.0, reference_words=1.0, step=1):
    count = len(rewards)

    def column(values, default=0.0):
        return np.full(count, default) if values is None else np.broadcast_to(np.asarray(values, float), (count,))

    return RolloutObservation(
        step=step,
        rewards=np.asarray(rewards, float),
        groups=np.zeros(count, dtype=np.int64) if groups is None else np.asarray(groups),
        num_words=column(words, 20.0),
        repeated_words=column(repeated),
        trigram_rates=column(rates),
        reference_repeated=column(None, reference),
        reference_log_words=np.log(column(reference_words)),
    )


# Slopes ----------------------------------------------------------------------------------------------


def test_slopes_and_their_t_by_hand():
    # 0 2 1: centered steps -1 0 1, so (1 - 0) / 2; 4 2 0: (0 - 4) / 2
    slopes = prompt_slopes(np.array([[0.0, 4.0, math.nan], [2.0, 2.0, 1.0], [1.0, 0.0, 2.0]]))
    assert slopes[:2].tolist() == [0.5, -2.0]
    assert math.isnan(slopes[2]), "a prompt without all of its scores has no slope"
    # 1 .. 8: mean 4.5, standard deviation sqrt(6), over sqrt(8)
    assert mean_t(np.arange(1.0, 9.0)) == pytest.approx(4.5 / math.sqrt(6 / 8))
    assert mean_t(np.array([*np.arange(1.0, 9.0), math.nan])) == mean_t(np.arange(1.0, 9.0))
    assert mean_t(np.arange(1.0, 8.0)) is None, "seven prompts are too few"
    assert (mean_t(np.full(8, -2.0)), mean_t(np.zeros(8))) == (-math.inf, 0.0)


def looks(judge_slope, proxy_slope, *, count=12, prompts=64, noise=0.3, seed=0):
    """Held-out evaluations whose means move by these slopes."""
    rng = np.random.default_rng(seed)
    base = rng.normal(size=prompts)
    for step in range(count):
        judge, proxy = (base + slope * step + noise * rng.normal(size=prompts) for slope in (judge_slope, proxy_slope))
        yield HeldOutObservation(step=10 * step, proxy=proxy, judge=judge)


def first_alarm(detector, observations):
    return next((detection for each in observations if (detection := detector.update(each)) is not None), None)


@pytest.mark.parametrize(
    ("judge", "proxy", "hack", "collapse"),
    [(-0.1, 0.1, True, False), (-0.1, 0.0, True, False), (-0.1, -0.1, False, True), (0.06, 0.1, False, False)],
)
def test_a_judge_that_falls_is_a_hack_where_the_reward_does_not_and_a_collapse_where_it_does(
    judge, proxy, hack, collapse
):
    assert (first_alarm(detector_of("judge_slope"), looks(judge, proxy)) is not None) == hack
    assert (first_alarm(detector_of("collapse"), looks(judge, proxy)) is not None) == collapse


def test_a_fall_names_the_best_evaluation_of_its_window_and_the_prompts_that_fell_most():
    judge = np.zeros((10, 16))
    judge[2] += 1.0  # the best
    judge[:, 5] -= np.arange(10.0)  # the one that falls most
    judge -= 0.2 * np.arange(10.0)[:, None]
    judge += 0.01 * np.random.default_rng(0).normal(size=judge.shape)
    actual = first_alarm(
        detector_of("judge_slope"),
        [HeldOutObservation(step=5 * k, proxy=np.arange(16.0), judge=row) for k, row in enumerate(judge)],
    )
    assert actual.good_step == 10
    assert actual.places[0] == 5
    assert actual.value < -4.0 == actual.limit


def test_a_slow_fall_is_seen_by_the_long_window():
    # the mean slope's error is .3 / sqrt(82.5 * 64) = .0041 over 10 evaluations, t about -2.4; over 20 .3 / sqrt(665 * 64), t about -6.9
    slow = list(looks(-0.01, 0.01, count=20, seed=3))
    assert first_alarm(detector_of("judge_slope", long_threshold=1e9), slow) is None
    assert first_alarm(detector_of("judge_slope"), slow) is not None


def test_an_honest_judge_that_gains_less_than_the_reward_stops_nothing():
    """Trap: the raw gap of reward and judge as an alarm. It grows in every healthy run."""
    honest = list(looks(0.06, 0.1, count=30, noise=0.2))
    gap = [float((each.proxy - each.judge).mean()) for each in honest]
    assert gap[-1] > gap[0] + 0.5, "the naive alarm: the gap grows and grows"
    detector = RewardHackingDetector({"action": "stop"}, horizon=30)
    acting = []
    for each in honest:
        acting += [a for a in detector.check_observation(each).alarms if a.action != "warn"]
        if detector.wants_anchor:
            detector.set_anchor(np.repeat(each.judge[:, None], 4, axis=1))
    assert acting == []
    assert HackingConfig.of({"action": "stop"}).action_of("judge_gap") == "warn"


# Win rate against the best checkpoint -----------------------------------------------------------------


def test_shares_of_wins_count_ties_half_and_leave_out_what_is_missing():
    anchor = np.array([[0.0, 1.0, 2.0, 3.0], [1.0, 1.0, math.nan, 1.0], [math.nan] * 4, [0.0] * 4])
    shares = win_shares(np.array([1.0, 1.0, 5.0, math.nan]), anchor)
    assert shares[:2].tolist() == [0.375, 0.5]
    assert np.isnan(shares[2:]).all(), "no anchor, or no score"


def test_the_e_detector_by_hand():
    detector = WinRateDrop(
        HackingConfig.of({"win_rate_drop": {"win_rate": 0.5, "alpha": 0.5}}).win_rate_drop, horizon=2
    )
    detector.set_anchor(np.array([[1.0, 1.0], [1.0, 1.0]]))
    lost = HeldOutObservation(step=1, proxy=np.zeros(2), judge=np.zeros(2))  # both prompts lose: y = 0
    bets = np.array([0.1, 0.2, 0.4, 0.8, 1.2])
    first = (1 + 0.5 * bets) ** 2  # M = (1 + 0) L
    second = (1 + first) * first
    detector.update(lost)
    assert detector.value == pytest.approx(math.log(first.mean()) - math.log(2 / 0.5))
    detection = detector.update(lost)
    assert detector.value == pytest.approx(math.log(second.mean()) - math.log(2 / 0.5))
    assert (detection is not None) == (second.mean() >= 4)
    assert (detection.value, detection.limit) == (detector.value, 0.0), "what the curve of its metric is compared with"
    assert detector.newest_win_rate == 0.0


def test_a_policy_that_loses_every_time_for_long_overflows_nothing():
    detector = detector_of_win_rate()
    detector.set_anchor(np.ones((500, 4)))
    lost = HeldOutObservation(step=1, proxy=np.zeros(500), judge=np.zeros(500))
    actual = [detector.update(lost) for _ in range(20)][-1]
    assert math.isfinite(actual.value)
    assert actual.value > 4000, "e to this is no float"


def test_the_anchor_is_sampled_anew_once_it_was_chosen():
    """Trap: the anchor tested with the data that chose it, or with one cached answer."""

    def alarms(*, naive):
        count = 0
        for seed in range(40):
            rng = np.random.default_rng(seed)
            base = rng.normal(size=32)

            def judged(k, rng=rng, base=base):
                return base[:, None] + 2.0 * rng.normal(size=(32, k))  # a policy that never changes

            detector = detector_of_win_rate(anchor_window=1)
            for step in range(50):
                judge = judged(1)[:, 0]
                detection = detector.update(HeldOutObservation(step=step, proxy=judge, judge=judge))
                if detection is not None:
                    count += 1
                    break
                if detector.wants_anchor:
                    detector.set_anchor(judge[:, None] if naive else judged(4))
        return count

    assert alarms(naive=False) == 0
    assert alarms(naive=True) > 0, "one answer that was lucky enough to be chosen is not beaten half of the time"


def test_the_anchor_is_the_best_mean_so_far_and_no_look_at_it_is_a_bet():
    detector = detector_of_win_rate(anchor_window=2)
    seen = []
    for step, level in enumerate([0.0, 1.0, 0.0, 3.0, 3.0, -1.0]):
        detector.update(HeldOutObservation(step=step, proxy=np.zeros(8), judge=level + np.arange(8) / 100))
        seen.append(detector.wants_anchor)
        if detector.wants_anchor:
            detector.set_anchor(np.full((8, 4), level))
    assert seen == [False, True, False, True, True, False]
    assert detector.anchor_step == 4


def test_the_anchor_moves_only_for_a_gain_beyond_the_error_of_a_look():
    # m-1, m-1, m+1, m+1: standard deviation sqrt(4/3), over sqrt(4) prompts .577
    for gain, taken in ((1.0, [0.0, 0.6]), (0.0, [0.0, 0.5, 0.6]), (1.1, [0.0])):
        detector = detector_of_win_rate(anchor_window=1, anchor_gain=gain)
        anchors = []
        for step, level in enumerate([0.0, 0.5, 0.6]):
            judge = level + np.array([-1.0, -1.0, 1.0, 1.0])
            detector.update(HeldOutObservation(step=step, proxy=np.zeros(4), judge=judge))
            if detector.wants_anchor:
                anchors.append(level)
                detector.set_anchor(np.zeros((4, 4)))
        assert anchors == taken, gain


def detector_of_win_rate(**settings):
    return WinRateDrop(HackingConfig.of({"win_rate_drop": settings}).win_rate_drop, horizon=50)


def test_a_first_look_without_scores_leaves_the_gap_its_unit_for_later():
    missing = HeldOutObservation(step=0, proxy=np.arange(64.0), judge=np.full(64, math.nan))
    late, plain = detector_of("judge_gap"), detector_of("judge_gap")
    assert late.update(missing) is None
    for each in looks(-0.1, 0.1):
        late.update(each)
        plain.update(each)
    assert late.value == plain.value
    assert math.isfinite(late.value)


# A blind judge ----------------------------------------------------------------------------------------


def scored(*there, count=4):
    """A look at which these prompts have the judge's score."""
    judge = np.full(count, math.nan)
    judge[list(there)] = 1.0
    return HeldOutObservation(step=1, proxy=np.zeros(count), judge=judge)


def test_prompts_count_that_were_scored_at_every_look_of_the_window():
    detector = detector_of("blind", window=3, min_prompts=2)
    for look, count, alarm in [
        (scored(0, 1, 2), None, False),
        (scored(0, 1, 3), None, False),
        (scored(0, 1, 2, 3), 2, False),  # 0 and 1
        (scored(0, 2), 1, True),  # 0 alone, though each look has two scores or more
        (scored(0, 2, 3), 2, False),  # 0 and 2
        (scored(), 0, True),
    ]:
        detection = detector.update(look)
        assert (detector.value, detection is not None) == (count, alarm)
    assert (detection.value, detection.limit) == (0.0, 2.0)


def test_too_few_held_out_prompts_are_blindness_too():
    few, enough = detector_of("blind"), detector_of("blind")
    alarms = [
        (
            few.update(scored(*range(19), count=19)) is not None,
            enough.update(scored(*range(20), count=20)) is not None,
        )
        for _ in range(10)
    ]
    assert alarms == [(False, False)] * 9 + [(True, False)]


# Repetition -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", 0),
        ("a", 0),
        ("a b c d", 0),
        ("a a", 1),
        ("a b c a b c", 3),
        ("x a b a b a b y", 4),  # said three times: twice again
        ("a b c a b d", 0),  # no whole block is said again at once
        ("one two three four one two three four", 4),
        ("ha ha ha ha ha", 4),
    ],
)
def test_words_that_say_a_block_again_at_once(text, words):
    assert longest_repeated_block(text.split()) == words


def test_scripts_without_spaces_are_cut_at_characters():
    assert len(words_of("東京は東京は")) == 6
    assert longest_repeated_block(words_of("東京は東京は")) == 3
    assert words_of("two words") == ["two", "words"]


def table_of_facts(rows):
    """A list as models write it: long, and without a block that is repeated at once."""
    return " ".join(f"The capital of country {k} is city {k} , and its people are {k} million ." for k in range(rows))


def test_long_lists_repeat_three_word_runs_and_are_no_loops():
    """Trap: the three-gram rate grows with length."""
    text = table_of_facts(40)
    assert repetition(words_of(table_of_facts(2))) < 0.3 < repetition(words_of(text)), "naive: flagged for its length"
    assert longest_repeated_block(words_of(text)) < 20
    loop = "I am sure that this is so . " * 20
    assert longest_repeated_block(words_of(loop)) > 100
    few = {"min_completions": 40}
    detector = RewardHackingDetector({"action": "warn", "simple_repetition": "warn", "repetition_share": few})
    detector.add_reference(["q"], ["A short answer of the starting policy."])
    for _ in range(12):
        report = detector.check(["q"] * 4, [text] * 4, np.linspace(0, 1, 4))
    assert [a.detector for a in report.alarms] == ["simple_repetition"]
    for _ in range(12):
        report = detector.check(["q"] * 4, [loop] * 4, np.linspace(0, 1, 4))
    assert {a.detector for a in report.alarms} >= {"simple_repetition", "repetition_share"}


def test_repetition_is_measured_against_the_starting_policy_on_the_same_prompts():
    """Trap: a baseline of early training, which may be hacked already or have asked other prompts."""
    loop, plain = "so it goes on and on . " * 12, "An answer without any loop at all."
    rewards = np.linspace(0, 1, 64)
    early = RewardHackingDetector({"repetition_share": "warn"})  # the first rollout is its reference
    true = RewardHackingDetector({"repetition_share": "warn"})
    true.add_reference(["q"] * 64, [plain] * 64)
    for _ in range(12):  # hacked from the start
        report_early = early.check(["q"] * 64, [loop] * 32 + [plain] * 32, rewards)
        report_true = true.check(["q"] * 64, [loop] * 32 + [plain] * 32, rewards)
    assert [a.detector for a in report_true.alarms] == ["repetition_share"]
    assert report_early.alarms == [], "naive: what early training did is taken for normal"

    asked = RewardHackingDetector({"repetition_share": "warn"})  # half of the prompts ask for loops
    asked.add_reference(["sing"] * 16 + ["say"] * 16, [loop] * 16 + [plain] * 16)
    for prompts, texts in ((["sing"] * 64, [loop] * 64), (["say"] * 64, [plain] * 64)):
        for _ in range(12):
            assert asked.check(prompts, texts, rewards).alarms == []


def test_the_share_of_loops_by_hand():
    detector = detector_of("repetition_share", window=2, min_completions=20, max_rise=0.1, min_words=20)
    flagged = [25.0] * 2 + [19.0] * 8
    assert detector.update(rollout(np.zeros(10), repeated=flagged, reference=0.05)) is None, "one rollout of two"
    detection = detector.update(rollout(np.zeros(10), repeated=flagged, reference=0.05))
    assert (detector.value, detection.limit) == (0.2, pytest.approx(0.15))
    assert detection.places == (0, 1)
    assert detector.penalties(rollout(np.zeros(10), repeated=flagged)).tolist() == [1.0] * 2 + [0.0] * 8
    # two more without a loop: 2 of 20, below 15 %
    assert detector.update(rollout(np.zeros(10), reference=0.05)) is None
    assert not detector.penalties(rollout(np.zeros(10), repeated=flagged)).any()


# Length -----------------------------------------------------------------------------------------------


def mixed_tasks(rng, *, growth=1.0, coupling=0.0):
    """8 prompts with 8 completions: long tasks score higher, and within a prompt length does nothing of itself."""
    groups = np.repeat(np.arange(8), 8)
    long = np.where(np.arange(8) % 2, 1.0, 0.0)[groups]
    within = rng.normal(size=64)
    words = growth * np.exp(
        3.0 + 2.5 * long + 0.3 * (coupling * within + math.sqrt(1 - coupling**2) * rng.normal(size=64))
    )
    return rollout(3.0 * long + 0.5 * within, words=words, groups=groups, reference_words=np.exp(3.0 + 2.5 * long))


def test_length_is_compared_within_prompts():
    """Trap: the pooled correlation of length and reward is that of the mixture of tasks."""
    rng = np.random.default_rng(0)
    pooled, within = detector_of("simple_length"), detector_of("length_gaming")
    actual = [(pooled.update(each), within.update(each)) for each in (mixed_tasks(rng, growth=2.0) for _ in range(12))]
    assert pooled.value > 0.8
    assert any(naive is not None for naive, _ in actual), "naive: an alarm in a healthy run"
    assert abs(within.value) < 0.2
    assert all(alarm is None for _, alarm in actual)


@pytest.mark.parametrize(("growth", "coupling", "alarm"), [(2.0, 0.8, True), (1.2, 0.8, False), (2.0, 0.2, False)])
def test_length_is_gamed_where_it_pays_and_has_grown(growth, coupling, alarm):
    rng = np.random.default_rng(1)
    detector = detector_of("length_gaming")
    detections = [detector.update(mixed_tasks(rng, growth=growth, coupling=coupling)) for _ in range(12)]
    assert all(each is None for each in detections[:9]), "ten rollouts are needed"
    assert (detections[-1] is not None) == alarm


def test_correlation_and_growth_within_prompts_by_hand():
    detector = detector_of("length_gaming", window=1, correlation=0.5, growth=1.5, penalty=2.0)
    e = math.e
    # within the one prompt dx = -1 0 1, dy = -1 1 0: r = 1 / 2; not above .5
    assert detector.update(rollout([0.0, 2.0, 1.0], words=[e, e**2, e**3])) is None
    assert detector.value == pytest.approx(0.5)
    observation = rollout([0.0, 1.0, 2.0], words=[e, e**2, e**3], reference_words=e)
    assert detector.update(observation).value == pytest.approx(1.0)  # grown by a factor e
    assert detector.penalties(observation) == pytest.approx([0.0, 2.0, 4.0])
    assert detector.update(rollout([0.0, 1.0, 2.0], words=[e, e**2, e**3], reference_words=e**2)) is None


# Spikes -----------------------------------------------------------------------------------------------


def test_of_many_single_rewards_some_are_three_deviations_away_and_no_rollout_is():
    """Trap: thresholds for single samples."""
    rng = np.random.default_rng(0)
    means, singles = detector_of("spikes"), detector_of("simple_spikes")
    said = []
    for _ in range(200):
        healthy = rollout(rng.normal(size=64))
        said.append((means.update(healthy), singles.update(healthy)))
    assert all(of_rollout is None for of_rollout, _ in said)
    assert sum(naive is not None for _, naive in said) > 10, "naive: alarms all the time"


def test_a_leap_of_the_mean_by_hand():
    detector = detector_of("spikes", window=10, threshold=8.0)
    for mean in (1.0, 2.0, 3.0, 4.0, 5.0) * 2:  # median 3, median distance 1
        assert detector.update(rollout([mean, mean])) is None
    detection = detector.update(rollout([20.0, 20.0]))
    assert detection.value == pytest.approx(17 / 1.4826, rel=1e-4)
    assert "above" in detection.message


def test_the_error_of_the_mean_is_the_least_unit_where_the_reward_was_constant():
    detector = detector_of("spikes", window=10, threshold=8.0)
    for _ in range(10):
        assert detector.update(rollout([0.0] * 4)) is None
    # mean 1, standard deviation 2 over sqrt(4) rewards: one unit
    assert detector.update(rollout([3.0, 3.0, -1.0, -1.0])) is None
    assert detector.value == pytest.approx(1.0)
    assert detector.update(rollout([9.0, 9.0, 9.0, 9.0])) is not None, "no spread at all"


# Asked heuristics -------------------------------------------------------------------------------------


def test_the_heuristics_are_off_unless_asked_for():
    config = HackingConfig()
    for name in ("simple_length", "simple_repetition", "simple_spikes"):
        assert config.action_of(name) == "off"
        assert HackingConfig.of({"action": "stop"}).action_of(name) == "off"
        assert HackingConfig.of({name: "warn"}).action_of(name) == "warn"
        assert name not in RewardHackingDetector().detectors


def test_the_numbers_of_the_heuristics_are_those_that_were_asked_for():
    config = HackingConfig()
    length, repeated, spikes = config.simple_length, config.simple_repetition, config.simple_spikes
    assert (length.baseline_words, length.min_words, length.correlation, length.min_values, length.ratio) == (
        200, 10, 0.7, 100, 2.0,
    )  # fmt: skip
    assert (repeated.rate, repeated.penalty_factor) == (0.3, 2.0)
    assert (spikes.window, spikes.deviations) == (50, 3.0)


def test_a_long_completion_loses_log_of_half_its_ratio_to_200_words():
    detector = detector_of("simple_length")
    words = np.arange(401.0, 501.0)  # 100 values that correlate perfectly
    assert detector.update(rollout(words, words=words)) is None
    assert not detector.penalties(rollout([0.0], words=[800])).any(), "100 values are not more than 100"
    last = rollout([0.0, 1000.0, 5.0], words=[9.0, 1000.0, 400.0])  # 9 words are skipped
    assert detector.update(last) is not None
    assert detector.num_seen == 102
    # 1000 / 200 = 5 baselines: log(5 / 2); 400 words are 2 baselines, not more; 9 words are skipped
    assert detector.penalties(last) == pytest.approx([0.0, math.log(2.5), 0.0])
    uncorrelated = detector_of("simple_length")
    words = np.tile([100.0, 900.0], 60)
    uncorrelated.update(rollout(np.repeat([0.0, 1.0], 60), words=words))
    assert uncorrelated.value == pytest.approx(0.0, abs=0.05)
    assert not uncorrelated.penalties(rollout([1.0], words=[900])).any()


def test_a_repetitive_completion_loses_twice_its_rate_above_three_tenths():
    detector = detector_of("simple_repetition")
    observation = rollout(np.zeros(4), rates=[0.3, 0.31, 0.9, 0.9], words=[50, 50, 50, 9])
    assert detector.update(observation).places == (2, 1)
    assert detector.penalties(observation) == pytest.approx([0.0, 0.62, 1.8, 0.0])
    assert detector.update(rollout(np.zeros(2), rates=[0.3, 0.1])) is None


def test_a_reward_is_compared_with_the_50_before_it_only():
    detector = detector_of("simple_spikes")
    fifty = np.tile([-1.0, 1.0], 25)  # mean 0, sd sqrt(50 / 49)
    limit = 3 * math.sqrt(50 / 49)
    assert detector.update(rollout([*fifty[:49], 100.0])) is None, "before there are 50, nothing is said"
    detector = detector_of("simple_spikes")
    detector.update(rollout(fifty))
    observation = rollout([limit + 0.5])
    assert detector.update(observation).places == (0,)
    assert detector.penalties(observation) == pytest.approx([0.5]), "cut to three deviations"
    # among its own 51 values it could hide; against earlier ones it can't
    burst = detector_of("simple_spikes")
    burst.update(rollout(fifty))
    detection = burst.update(rollout([40.0] * 8))
    assert 0 in detection.places
    low = detector_of("simple_spikes")
    low.update(rollout(fifty))
    assert low.update(rollout([-limit - 0.5])) is not None
    assert not low.penalties(rollout([-limit - 0.5])).any(), "a low reward is no gain"


def test_settings_that_make_no_sense_are_refused():
    for wrong in (
        {"judge_slope": {"window": 10, "long_window": 10}},
        {"judge_slope": "penalize"},
        {"action": "penalize"},
    ):
        with pytest.raises(ConfigError):
            HackingConfig.of(wrong)
