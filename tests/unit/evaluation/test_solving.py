"""How many problems a policy solves: scripted completions, so that every number can be counted by hand."""

from __future__ import annotations

import json

import pytest

from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.errors import ConfigError, DataError, RewardError
from rlhf.evaluation.solving import check_tries, evaluate_solving
from rlhf.models.policy import PolicyModel
from rlhf.rollout.types import Completion
from tests.fixtures import tiny

SAMPLING = SamplingConfig(max_new_tokens=6)
PROMPTS = [Prompt(id=name, ids=[1], text=f"{name}?", columns={"answer": "yes"}) for name in ("one", "two", "three")]
POLICY = {"one": ["yes", "no", "yes", "no"], "two": ["no", "no", "no", "yes"], "three": ["no", "no", "no", "..."]}
BASELINE = {"one": ["no", "no", "yes", "no"], "two": ["no", "no", "no", "no"], "three": ["yes", "yes", "yes", "yes"]}
GREEDY = {"one": "yes", "two": "no", "three": "yes!"}


def judge(prompts, completions, *, ended, answer):
    """Right where the text is the answer; ``loud`` says nothing of a text that is no word."""
    return [
        {"score": float(text == right), "loud": None if text == "..." else text.endswith("!"), "whole": whole}
        for text, right, whole in zip(completions, answer, ended, strict=True)
    ]


class Script:
    """An engine that says what it was told to."""

    def __init__(self, lines):
        self.lines = lines
        self.asked = []

    def generate(self, prompts, *, num_samples, sampling, seed, rollout_index):
        self.asked.append((sampling.temperature, seed))
        said = [[GREEDY[p.id]] if sampling.temperature == 0 else self.lines[p.id][:num_samples] for p in prompts]
        return [
            [
                Completion(
                    prompt_id=prompt.id, sample=number, tokens=[5], logprobs=[-1.0], weight_version=0, text=text,
                    finish_reason="length" if text == "..." else "eos",
                )
                for number, text in enumerate(texts)
            ]
            for prompt, texts in zip(prompts, said, strict=True)
        ]  # fmt: skip


def solve(**settings):
    engines = [Script(BASELINE), Script(POLICY)] if settings.get("baseline") else [Script(POLICY)]
    waiting = iter(engines)
    settings = {"num_samples": 4, "sampling": SAMPLING, "seed": 3, **settings}
    solving = evaluate_solving("the policy", PROMPTS, judge, build_engine=lambda model: next(waiting), **settings)
    return solving, engines


def test_by_hand():
    actual, _ = solve()
    after = {name: change.after.value for name, change in actual.changes.items()}
    # 2, 1 and 0 of 4 are right; of the 6 pairs 5, 3 and 0 hold a right one
    assert after["pass@1"] == pytest.approx((2 / 4 + 1 / 4 + 0) / 3)
    assert after["pass@2"] == pytest.approx((5 / 6 + 3 / 6 + 0) / 3)
    assert after["pass@4"] == pytest.approx(2 / 3)
    assert after["greedy"] == pytest.approx(1 / 3)
    assert after["greedy/loud"] == pytest.approx(1 / 3)
    assert after["loud"] == 0.0
    assert after["whole"] == pytest.approx((4 / 4 + 4 / 4 + 3 / 4) / 3)
    assert after["distinct_frac"] == pytest.approx((2 / 4 + 2 / 4 + 2 / 4) / 3)
    assert after["unended_frac"] == pytest.approx((0 + 0 + 1 / 4) / 3)
    assert not actual.changes["pass@1"].before.measured
    assert actual.missing == {"baseline": "there is no baseline"}


def test_a_gain_is_paired_by_problem():
    actual, _ = solve(baseline="the baseline")
    change = actual.changes["pass@1"]
    assert change.before.value == pytest.approx((1 / 4 + 0 + 1) / 3)
    assert change.gain.value == pytest.approx((1 / 4 + 1 / 4 - 1) / 3)
    assert change.gain.n == change.after.n == 3
    assert change.gain.low < change.gain.value < change.gain.high
    assert actual.changes["greedy"].gain.value == 0.0
    assert actual.missing == {}


def test_a_metric_that_does_not_apply_is_left_out_and_not_counted_as_0():
    lines = {"one": ["...", "yes!"], "two": ["...", "..."], "three": ["yes!", "no"]}
    solving = evaluate_solving(
        "p", PROMPTS, judge, num_samples=2, sampling=SAMPLING, seed=1, build_engine=lambda m: Script(lines)
    )
    loud = solving.changes["loud"].after
    assert loud.value == pytest.approx((1 / 1 + 1 / 2) / 2)
    assert loud.n == 2


def test_policy_and_baseline_share_no_luck_and_greedy_is_asked_at_temperature_0():
    _, (baseline, policy) = solve(baseline="the baseline")
    assert [temperature for temperature, _ in policy.asked] == [1.0, 0.0]
    assert {seed for _, seed in policy.asked}.isdisjoint(seed for _, seed in baseline.asked)
    _, (alone,) = solve(greedy=False)
    assert [temperature for temperature, _ in alone.asked] == [1.0]
    assert alone.asked[0] == policy.asked[0]  # whether there is a baseline changes nothing of what the policy says


def test_a_score_of_points_is_cut_where_asked():
    def points(prompts, completions, **columns):
        return [{"yes": 0.6, "no": 0.2, "yes!": 0.9, "...": 0.0}[text] for text in completions]

    def share(solved_at):
        return evaluate_solving(
            "p", PROMPTS, points, num_samples=4, sampling=SAMPLING, seed=1, solved_at=solved_at,
            build_engine=lambda m: Script(POLICY),
        ).changes  # fmt: skip

    assert share(0.6)["pass@1"].after.value == pytest.approx(3 / 12)
    assert share(0.2)["pass@1"].after.value == pytest.approx(11 / 12)
    assert share(0.9)["greedy"].after.value == pytest.approx(1 / 3)
    assert share(1.0)["pass@4"].after.value == 0.0


def test_what_is_written_is_whole_and_the_headline_says_the_ends_of_the_curve(tmp_path):
    actual, _ = solve(baseline="the baseline", names=("ours", "theirs"))
    actual.write(tmp_path / "evaluation.json")
    document = json.loads((tmp_path / "evaluation.json").read_text(encoding="utf-8"))
    assert document["schema"] == 1
    part = document["solving"]
    assert (part["settings"]["policy"], part["settings"]["baseline"]) == ("ours", "theirs")
    assert part["settings"]["num_samples"] == 4
    assert set(part["changes"]["pass@4"]) == {"before", "after", "gain", "unit"}
    assert actual.headline().startswith("pass@1 0.417 -> 0.250 (-0.167 [")
    assert "greedy 0.333 -> 0.333" in actual.headline()
    assert "pass@4" in actual.headline()
    assert actual.headline().endswith("on 3 problems")
    flat = actual.summary()
    assert flat["pass@1"] == pytest.approx(0.25)
    assert flat["pass@1_gain"] == pytest.approx(-1 / 6)
    assert flat["pass@1_low"] < flat["pass@1"] < flat["pass@1_high"]
    alone, _ = solve()
    assert "pass@1_gain" not in alone.summary()


@pytest.mark.parametrize(
    ("ks", "num_samples", "tries"),
    [(None, 1, [1]), (None, 4, [1, 2, 4]), (None, 6, [1, 2, 4, 6]), ([4, 1, 4], 6, [1, 4]), ([3], 3, [3])],
)
def test_tries(ks, num_samples, tries):
    assert check_tries(ks, num_samples, SAMPLING) == tries


@pytest.mark.parametrize(
    ("ks", "num_samples", "temperature", "told"),
    [
        ([0], 4, 1.0, "ks are [0], and each problem has 4 samples; wanted numbers from 1 to 4"),
        ([5], 4, 1.0, "wanted numbers from 1 to 4"),
        ([], 4, 1.0, "ks are []"),
        (None, 0, 1.0, "num_samples is 0; wanted at least 1"),
        (None, 4, 0.0, "At sampling.temperature 0 all 4 samples of a problem are the same"),
    ],
)
def test_tries_that_can_not_be_told_are_refused(ks, num_samples, temperature, told):
    with pytest.raises(ConfigError) as caught:
        check_tries(ks, num_samples, SAMPLING.updated(temperature=temperature))
    assert told in str(caught.value)


def test_without_problems_it_is_refused_and_a_judge_that_fails_is_named():
    with pytest.raises(DataError, match="no problem"):
        evaluate_solving("p", [], judge, num_samples=1, sampling=SAMPLING, seed=0)

    def broken(prompts, completions, **columns):
        raise ZeroDivisionError("by nothing")

    with pytest.raises(RewardError, match=r"broken .*sample 'one'"):
        evaluate_solving(
            "p", PROMPTS, broken, num_samples=4, sampling=SAMPLING, seed=0, build_engine=lambda m: Script(POLICY)
        )


def test_a_real_policy_is_asked_the_same_whatever_is_asked_beside_it():
    tokenizer = tiny.build_tokenizer()
    policy = PolicyModel(tiny.build_llama(vocab_size=len(tokenizer), seed=0), tokenizer)
    texts = ["Question: a?", "Question: b?", "Question: c?"]
    prompts = [
        Prompt(id=f"p{i}", ids=tokenizer(text)["input_ids"], text=text, columns={}) for i, text in enumerate(texts)
    ]
    heard: dict[str, list[str]] = {}

    def listening(prompts, completions, *, ended):
        for prompt, text in zip(prompts, completions, strict=True):
            heard.setdefault(prompt, []).append(text)
        return [float("e" in text) for text in completions]

    settings = {"num_samples": 3, "sampling": SAMPLING, "seed": 2}
    evaluate_solving(policy, prompts, listening, **settings)
    together, heard = heard, {}
    evaluate_solving(policy, prompts[1:2], listening, **settings)
    assert heard == {texts[1]: together[texts[1]]}
