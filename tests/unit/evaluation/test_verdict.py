"""What a verdict says of evidence: green only where nothing that the run knows speaks against it, and the reason with its numbers."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from rlhf.evaluation.verdict import FALLS, RISES, Tone, surprise, verdict
from rlhf.evaluation.verdict_inputs import Evidence, HeldAlarm, Independence, Training

WON = {"rate": 0.9, "low": 0.87, "high": 0.92, "wins": 170, "losses": 10, "ties": 20, "num_prompts": 200}


def change(before, after, *, unit="share", half=0.01):
    gain = after - before
    ends = {"low": None, "high": None} if half is None else {"low": gain - half, "high": gain + half}
    return {"before": {"value": before}, "after": {"value": after}, "gain": {"value": gain, **ends}, "unit": unit}


def healthy(**changes):
    """As runs of the embedded world come out: surer, a little shorter, fewer different answers."""
    return Evidence(
        policy="grpo",
        baseline="sft",
        judge="some:judge",
        win_rate=WON,
        changes={
            "gold": change(0.18, 1.37, unit="points"),
            "entropy": change(0.515, 0.096, unit="nats per token"),
            "unended_frac": change(0.01, 0.02, half=0.015),
            "empty_frac": change(0.0, 0.0),
            "repetition": change(0.03, 0.02),
            "distinct_completions": change(0.87, 0.41, half=None),
            "variety": change(177.0, 115.0, unit="pairs of letters", half=None),
            "judge_unseen_frac": change(0.3, 0.33),
            "judge_overlong_frac": change(0.01, 0.0),
            **changes,
        },
        kl_per_token=0.232,
        hacking={"verdict": "none", "sentence": "No sign."},
    )


def test_a_healthy_run_is_green_and_says_who_was_compared_by_whom():
    conclusion = verdict(healthy())
    assert (conclusion.tone, conclusion.title, conclusion.reasons) == (
        Tone.GOOD,
        "The model became better",
        ("better",),
    )
    told = " ".join(conclusion.sentences)
    for name in ("grpo", "sft", "`some:judge`", "No sign."):
        assert name in told


@pytest.mark.parametrize(
    ("changes", "code", "numbers"),
    [
        ({"unended_frac": change(0.05, 0.99)}, "cut", ["99.0", "5.0"]),
        ({"empty_frac": change(0.0, 0.4)}, "empty", ["40.0", "0.0"]),
        ({"repetition": change(0.1, 0.93)}, "repetition", ["93.0", "10.0"]),
        ({"variety": change(210.0, 3.1, unit="pairs of letters", half=None)}, "variety", ["3.10", "210"]),
        ({"distinct_completions": change(0.9, 0.01, half=None)}, "same_answers", ["1.0", "90.0"]),
        ({"judge_unseen_frac": change(0.4, 1.0)}, "unfamiliar", ["100.0", "40.0"]),
        ({"judge_overlong_frac": change(0.01, 0.6)}, "overlong", ["60.0", "1.0"]),
    ],
)
def test_anything_wrong_with_the_answers_forbids_green_and_is_told_with_both_numbers(changes, code, numbers):
    conclusion = verdict(healthy(**changes))
    assert conclusion.tone is Tone.MIXED
    assert code in conclusion.reasons
    assert "became better" not in conclusion.title
    (sentence,) = [each for each in conclusion.sentences if all(number in each for number in numbers)]
    assert "sft" in sentence


def test_distance_is_measured_by_what_surprises_the_baseline_and_not_by_nats_alone():
    near = healthy()
    assert surprise(near) == pytest.approx((0.515, 0.328))
    far = replace(near, kl_per_token=6.0)
    conclusion = verdict(far)
    assert "kl" in conclusion.reasons
    assert conclusion.tone is Tone.MIXED
    assert any("6.10" in sentence and "0.52" in sentence for sentence in conclusion.sentences)
    # A model that was sure of everything is easily surprised: half again as much of next to nothing is nothing
    sure = replace(healthy(entropy=change(0.05, 0.04, unit="nats per token")), kl_per_token=0.1)
    assert verdict(sure).tone is Tone.GOOD


def test_two_faults_make_a_win_a_bad_one():
    conclusion = verdict(
        replace(healthy(unended_frac=change(0.05, 0.99), repetition=change(0.1, 0.93)), kl_per_token=6.0)
    )
    assert conclusion.tone is Tone.BAD
    assert {"kl", "cut", "repetition"} <= set(conclusion.reasons)
    for words in ("KL", "cut answers", "repetition"):
        assert words in conclusion.title


@pytest.mark.parametrize("rise", [0.04, 0.2])
def test_a_rise_within_its_interval_or_limit_is_no_fault(rise):
    noisy = change(0.05, 0.05 + rise, half=0.25)
    assert verdict(healthy(unended_frac=noisy)).tone is Tone.GOOD


def test_an_alarm_that_still_held_at_the_end_forbids_green():
    alarm = HeldAlarm(guard="kl", metric="grpo/ref_kl", step=5, limit=48.0, value=386.0)
    conclusion = verdict(replace(healthy(), training=(Training(stage="grpo", rollouts=30, alarms=(alarm,)),)))
    assert conclusion.tone is Tone.MIXED
    assert "alarm" in conclusion.reasons
    (sentence,) = [each for each in conclusion.sentences if "386" in each]
    for word in ("grpo", "kl", "48.00", "step 5"):
        assert word in sentence


def test_the_last_rollouts_speak_where_the_evaluation_samples_otherwise():
    first = {"entropy": 1.2, "kl_per_token": 0.0, "cut": 0.1, "repetition": 0.1}
    last = {"entropy": 0.1, "kl_per_token": 5.0, "cut": 0.6, "repetition": 0.5}
    conclusion = verdict(replace(healthy(), training=(Training(stage="grpo", rollouts=30, first=first, last=last),)))
    assert {"kl", "cut", "repetition"} <= set(conclusion.reasons)
    calm = Training(stage="grpo", rollouts=30, first=first, last={**first, "cut": 0.15, "kl_per_token": 0.3})
    assert verdict(replace(healthy(), training=(calm,))).tone is Tone.GOOD


@pytest.mark.parametrize(
    ("low", "high", "tone", "reason"),
    [(0.45, 0.55, Tone.UNKNOWN, "no_difference"), (0.2, 0.3, Tone.BAD, "worse"), (None, None, Tone.UNKNOWN, "not_measured")],
)  # fmt: skip
def test_what_could_not_be_told_is_not_told(low, high, tone, reason):
    conclusion = verdict(
        replace(healthy(), win_rate={**WON, "low": low, "high": high, "reason": "nothing was compared"})
    )
    assert (conclusion.tone, conclusion.reasons) == (tone, (reason,))


def test_a_hacking_check_that_could_not_tell_is_a_reason_for_machines_and_a_sentence_for_people():
    conclusion = verdict(replace(healthy(), hacking={"verdict": "undecided", "sentence": "It could not be told."}))
    assert conclusion.reasons == ("better", "hacking_unknown")
    assert "It could not be told." in conclusion.sentences


@pytest.mark.parametrize(
    ("kind", "low", "tone"), [("reward_hacking", 0.55, Tone.MIXED), ("collapse", 0.2, Tone.BAD)]
)  # fmt: skip
def test_a_gamed_reward_is_no_plain_success(kind, low, tone):
    conclusion = verdict(
        replace(
            healthy(), hacking={"verdict": kind, "sentence": "So."}, win_rate={**WON, "low": low, "high": low + 0.1}
        )
    )
    assert conclusion.tone is tone
    assert set(conclusion.reasons) & {"gamed", "collapse"}


def test_what_training_saw_of_the_judge_stands_first_and_takes_the_green_away():
    told = Independence(
        warnings=("The judge is the reward.",), better_only="Better by its own reward", about_judge="so"
    )
    conclusion = verdict(replace(healthy(), independence=told))
    assert (conclusion.tone, conclusion.title) == (Tone.MIXED, "Better by its own reward")
    assert conclusion.sentences[0] == "The judge is the reward."
    assert "not_independent" in conclusion.reasons
    # shared ancestry is said, and does not make a success false by itself
    conclusion = verdict(replace(healthy(), independence=Independence(warnings=("The judge began as stage sft.",))))
    assert (conclusion.tone, conclusion.sentences[0]) == (Tone.GOOD, "The judge began as stage sft.")


@pytest.mark.parametrize(
    ("before", "after", "half", "words"),
    [
        (-0.082, -0.078, 0.05, "did not change measurably"),
        (-0.082, -0.078, 0.001, "rose from -0.082 to -0.078"),
        (0.2, 1.4, 0.1, "rose from 0.20 to 1.40"),
        (1.4, 0.2, 0.1, "fell from 1.40 to 0.20"),
        (0.2, 0.2, None, "was 0.20 before and is 0.20 now"),
    ],
)
def test_a_score_rose_only_where_that_can_be_seen_in_what_is_printed(before, after, half, words):
    conclusion = verdict(healthy(gold=change(before, after, unit="points", half=half)))
    assert any(words in sentence for sentence in conclusion.sentences)
    assert ("score_fell" in conclusion.reasons) == ("fell" in words)
    assert (conclusion.tone is Tone.GOOD) == ("fell" not in words)


def test_two_alarms_are_two_reasons_and_late_empty_answers_are_one():
    alarms = [HeldAlarm(guard=guard, metric=f"grpo/{guard}", step=5) for guard in ("kl", "repetition")]
    one, two = (
        verdict(replace(healthy(), training=(Training(stage="grpo", rollouts=9, alarms=tuple(alarms[:count])),)))
        for count in (1, 2)
    )
    assert (one.tone, two.tone) == (Tone.MIXED, Tone.BAD)
    late = Training(stage="grpo", rollouts=9, first={"empty": 0.0}, last={"empty": 0.5})
    assert "empty" in verdict(replace(healthy(), training=(late,))).reasons


def test_a_training_that_nothing_recorded_is_said():
    document = {"missing": {"training": "No run has a record of it."}, "win_rate": WON}
    assert "No run has a record of it." in verdict(Evidence.of(document)).sentences


def test_what_is_not_known_of_a_learned_judge_is_said():
    document = {"missing": {"judge_unseen_frac": "no rlhf run recorded it"}, "win_rate": WON}
    assert any("no rlhf run recorded it" in sentence for sentence in verdict(Evidence.of(document)).sentences)
    assert verdict(Evidence.of({"win_rate": WON})).tone is Tone.GOOD


def test_rollouts_that_nobody_judged_are_told():
    conclusion = verdict(replace(healthy(), hacking={}, training=(Training(stage="ppo", rollouts=60),)))
    assert any("not checked" in sentence for sentence in conclusion.sentences)


def test_training_and_verdict_go_through_json_unchanged():
    alarm = HeldAlarm(guard="kl", metric="grpo/ref_kl", step=5, limit=48.0, value=386.0)
    training = Training(stage="grpo", rollouts=30, alarms=(alarm,), first={"cut": 0.1}, last={"cut": 0.9})
    assert Training.of(json.loads(json.dumps(training.to_dict()))) == training
    assert json.loads(json.dumps(verdict(healthy()).to_dict()))["tone"] == "good"


def test_a_judge_that_the_answers_contradict_is_no_witness_that_nothing_happened():
    said = {"verdict": "none", "sentence": "No sign of reward hacking: the judge's score went up."}
    assert said["sentence"] in verdict(replace(healthy(), hacking=said)).sentences
    conclusion = verdict(replace(healthy(repetition=change(0.1, 0.93)), hacking=said))
    assert said["sentence"] not in conclusion.sentences
    assert any("By the judge alone" in sentence for sentence in conclusion.sentences)
    assert conclusion.doubts_the_judge
    assert not verdict(healthy()).doubts_the_judge


def test_a_gamed_reward_and_one_fault_of_the_answers_make_a_win_a_bad_one():
    faulty = healthy(unended_frac=change(0.05, 0.99))
    assert verdict(faulty).tone is Tone.MIXED
    conclusion = verdict(replace(faulty, hacking={"verdict": "reward_hacking", "sentence": "So."}))
    assert conclusion.tone is Tone.BAD
    assert {"better", "gamed", "cut"} <= set(conclusion.reasons)


def test_a_title_names_four_reasons_and_counts_the_others():
    rises = {rule.quantity: change(0.0, 0.9) for rule in RISES}
    falls = {rule.quantity: change(0.9, 0.01, half=None) for rule in FALLS}
    conclusion = verdict(healthy(**rises, **falls))
    rules = [*RISES, *FALLS]
    assert {rule.code for rule in rules} <= set(conclusion.reasons)
    assert [rule.title in conclusion.title for rule in rules] == [True] * 4 + [False] * (len(rules) - 4)
    assert f"{len(rules) - 4} more" in conclusion.title


@pytest.mark.parametrize(
    ("quantity", "inside", "outside", "code"),
    [
        ("unended_frac", (0.1, 0.149), (0.1, 0.151), "cut"),
        ("empty_frac", (0.1, 0.149), (0.1, 0.151), "empty"),
        ("repetition", (0.1, 0.199), (0.1, 0.201), "repetition"),
        ("judge_unseen_frac", (0.1, 0.249), (0.1, 0.251), "unfamiliar"),
        ("judge_overlong_frac", (0.1, 0.199), (0.1, 0.201), "overlong"),
        ("variety", (100.0, 33.5), (100.0, 33.0), "variety"),
        ("distinct_completions", (1.0, 0.201), (1.0, 0.199), "same_answers"),
    ],
)
def test_each_limit_lies_where_it_is_said_to_lie(quantity, inside, outside, code):
    # an interval so narrow that the limit decides
    kept, broken = (verdict(healthy(**{quantity: change(*ends, half=0.0001)})) for ends in (inside, outside))
    assert (kept.tone, kept.reasons) == (Tone.GOOD, ("better",))
    assert (broken.tone, broken.reasons) == (Tone.MIXED, ("better", code))


@pytest.mark.parametrize(
    ("entropy", "inside", "outside"),
    [
        ((1.0, 0.5), 0.99, 1.01),  # half again as much decides: 1.5
        ((0.1, 0.05), 0.29, 0.31),  # a quarter of a nat more decides: 0.35
    ],
)
def test_the_limits_of_surprise_lie_where_they_are_said_to_lie(entropy, inside, outside):
    near, far = (
        verdict(replace(healthy(entropy=change(*entropy, unit="nats per token")), kl_per_token=kl))
        for kl in (inside, outside)
    )
    assert near.reasons == ("better",)
    assert far.reasons == ("better", "kl")


@pytest.mark.parametrize("name", ["cut", "empty", "repetition"])
def test_the_limit_of_late_rollouts_lies_where_it_is_said_to_lie(name):
    near, far = (
        verdict(
            replace(
                healthy(), training=(Training(stage="grpo", rollouts=9, first={name: 0.1}, last={name: 0.1 + rise}),)
            )
        )
        for rise in (0.099, 0.101)
    )
    assert near.reasons == ("better",)
    assert far.reasons == ("better", name)


def test_one_answer_in_twenty_that_is_cut_is_mentioned_though_it_is_no_fault():
    few, some, risen = (
        verdict(healthy(unended_frac=change(*ends))) for ends in ((0.04, 0.049), (0.04, 0.08), (0.04, 0.2))
    )
    assert few.reasons == some.reasons == ("better",)
    (told,) = set(some.sentences) - set(few.sentences)
    assert "8" in told
    assert "4" in told
    assert risen.reasons == ("better", "cut")
    assert len(risen.sentences) == len(some.sentences), "the fault's own sentence, and no second one"


def test_a_change_of_the_score_is_its_size_with_an_interval():
    gold = {"before": {"value": 1.43}, "after": {"value": 0.18}, "gain": {"value": -1.25, "low": -1.36, "high": -1.15}}
    conclusion = verdict(replace(healthy(), changes={"gold": gold}))
    assert any("by 1.25 (95 % interval 1.15 to 1.36)" in sentence for sentence in conclusion.sentences)


def test_sentences_read_well_for_one_prompt_no_loss_and_a_rate_near_one_half():
    win = {"rate": 0.6, "low": 0.50001, "high": 0.7, "wins": 1, "losses": 0, "ties": 0, "num_prompts": 1}
    (sentence, *_) = verdict(replace(healthy(), win_rate=win, judge="the reward model judge")).sentences
    assert "same 1 prompt," in sentence
    assert "worse never" in sentence
    assert "by the reward model judge:" in sentence
    assert "from 50.001" in sentence


def test_what_is_not_yet_known_says_how_many_more_prompts_would_tell():
    near = {**WON, "rate": 0.53, "low": 0.46, "high": 0.60, "more_prompts": 1983}
    conclusion = verdict(replace(healthy(), win_rate=near))
    assert any("1,983 more prompts" in sentence for sentence in conclusion.sentences)
    assert not any("more prompts" in sentence for sentence in verdict(healthy()).sentences)


def test_two_answers_contradict_nothing():
    """Two samples of the same model: one is shorter and another word is likelier, by chance."""
    entropy = {"before": {"value": 0.4}, "after": {"value": 2.0}, "gain": {"value": 1.6}}
    few = {"rate": 0.4, "low": 0.1, "high": 0.8, "num_prompts": 2}
    conclusion = verdict(replace(healthy(), changes={"entropy": entropy}, win_rate=few))
    assert conclusion.reasons == ("no_difference",)
    assert (
        "kl" in verdict(replace(healthy(), changes={"entropy": entropy}, win_rate={**few, "num_prompts": 50})).reasons
    )
