"""Capabilities before and after: what passes, what fails, and what decides nothing."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from rlhf.errors import ConfigError, DataError
from rlhf.evaluation.decision import Decision
from rlhf.evaluation.suites.capability import CapabilityTester
from rlhf.evaluation.suites.suite import load_suite
from rlhf.evaluation.suites.suite_run import SuiteRun
from rlhf.models.policy import PolicyModel
from tests.fixtures import tiny
from tests.fixtures.scripted_engine import ScriptedEngine, completion

N = 400


def suite(name="sums", n=N, **settings):
    items = [{"id": str(i), "prompt": f"{i}?", "answer": "yes"} for i in range(n)]
    return load_suite({"name": name, "scorer": "exact", "margin": 0.05, "items": items, **settings})


def run(of, right, *, model="m", seed=0, **changes):
    """Scores 1 for the first ``right`` items, 0 for the others."""
    scores = {item.id: [1.0 if place < right else 0.0] for place, item in enumerate(of.items)}
    fields = {
        "suite": of.name, "version": "1", "fingerprint": of.fingerprint, "model": model, "model_fingerprint": model, "seed": seed,
        "scores": scores, "groups": {item.id: item.group for item in of.items},
    }  # fmt: skip
    return SuiteRun(**fields | changes)


def compare(of, before, after, **again):
    return CapabilityTester([of]).compare({of.name: before}, {of.name: after}, **again).suites[of.name]


def test_an_unchanged_model_passes_and_a_large_loss_fails():
    of = suite()
    assert compare(of, run(of, 300), run(of, 300)).ruling.decision is Decision.PASS
    lost = compare(of, run(of, 300), run(of, 240))
    assert lost.ruling.decision is Decision.FAIL
    assert lost.gain.value == pytest.approx(-60 / N)
    assert lost.per_unit["299"] == (1.0, 0.0)


@pytest.mark.parametrize(("old", "new"), [(20, 0), (0, 0), (16, 16)])
def test_a_suite_on_which_there_is_nothing_to_lose_shows_no_loss(old, new):
    comparison = compare(suite(), run(suite(), old), run(suite(), new))
    assert comparison.ruling.decision is Decision.UNDECIDED
    assert comparison.before.value == old / N
    assert compare(suite(), run(suite(), 60), run(suite(), 60)).ruling.decision is Decision.PASS


def test_trap_16_too_little_evidence_is_no_pass():
    of = suite(n=12)
    comparison = compare(of, run(of, 9), run(of, 8))
    assert comparison.ruling.decision is Decision.UNDECIDED
    assert comparison.ruling.evidence["num_more"] > 0


def test_trap_17_failures_are_corrected_for_the_number_of_suites():
    """One suite of twenty that fails by itself at p = .03 fails no longer."""
    many = [suite(f"s{i}") for i in range(20)]
    before = {of.name: run(of, 300) for of in many}
    lost = 32  # a little beyond the margin of 20
    after = {of.name: run(of, 300 - (lost if of.name == "s3" else 0)) for of in many}
    alone = CapabilityTester([many[3]]).compare({"s3": before["s3"]}, {"s3": after["s3"]})
    together = CapabilityTester(many).compare(before, after)
    assert alone.decision is Decision.FAIL
    assert together.suites["s3"].ruling.decision is Decision.UNDECIDED
    assert together.decision is Decision.UNDECIDED


def test_trap_24_a_result_of_another_version_is_compared_with_nothing():
    of = suite()
    comparison = compare(of, run(of, 300, fingerprint="another"), run(of, 300))
    assert comparison.ruling.decision is Decision.UNDECIDED
    assert "version" in comparison.ruling.reason


def test_with_too_few_scores_nothing_is_decided():
    of = suite()
    scores = {name: [None] if int(name) < N / 10 else value for name, value in run(of, 300).scores.items()}
    comparison = compare(of, run(of, 300), run(of, 300, scores=scores, missing={"0": "unreadable"}))
    assert comparison.ruling.decision is Decision.UNDECIDED
    assert "unreadable" in comparison.ruling.reason


def test_a_model_that_differs_from_itself_decides_nothing():
    of = suite()
    comparison = compare(of, run(of, 300), run(of, 300), again={of.name: run(of, 200, seed=1)})
    assert comparison.ruling.decision is Decision.UNDECIDED
    assert comparison.repeat["flipped_frac"] == pytest.approx(100 / N)
    same = compare(of, run(of, 300), run(of, 300), again={of.name: run(of, 300, seed=1)})
    assert same.ruling.decision is Decision.PASS
    assert same.repeat["flipped_frac"] == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"scores": {str(place): [None] for place in range(N)}},
        {"scores": {str(place): [None if place < N / 10 else 1.0] for place in range(N)}},
        {
            "scores": {f"other{place}": [1.0] for place in range(N)},
            "groups": {f"other{place}": "g" for place in range(N)},
        },
        {"scores": {}},
        {"fingerprint": "another"},
    ],
    ids=["none scored", "a tenth not scored", "other items", "no items", "another version"],
)
def test_a_second_result_that_says_nothing_does_not_show_that_a_model_agrees_with_itself(changes):
    of = suite()
    comparison = compare(of, run(of, 300), run(of, 300), again={of.name: run(of, 300, seed=1, **changes)})
    assert comparison.ruling.decision is Decision.UNDECIDED


def test_what_the_model_after_can_not_be_scored_on_may_be_what_it_lost():
    """4.9 % of 1,000 without a score, which may all be lost: no pass at a margin of 2 points, and one at 10."""
    of = suite(n=1000, margin=0.02)
    before = run(of, 1000)
    holed = {name: [None] if int(name) < 49 else [1.0] for name in before.scores}
    ruling = compare(of, before, run(of, 1000, scores=holed)).ruling
    assert ruling.decision is Decision.UNDECIDED
    assert ruling.evidence["with_missing_as_worst"]["difference"] == pytest.approx(-0.049)
    assert ruling.evidence["num_missing"] == 49
    wide = suite(n=1000, margin=0.1)
    assert compare(wide, run(wide, 1000), run(wide, 1000, scores=holed)).ruling.decision is Decision.PASS
    raw = suite(n=1000, margin=0.5)
    numbers = {name: [10 + float(int(name) % 7)] for name in before.scores}
    drop = {name: [None] if int(name) < 200 / 5 else [value[0] - int(name) % 2 / 10] for name, value in numbers.items()}
    assert compare(raw, run(raw, 0, scores=numbers), run(raw, 0, scores=drop)).ruling.decision is Decision.PASS
    little = suite(n=1000, margin=0.1)
    assert (
        compare(little, run(little, 0, scores=numbers), run(little, 0, scores=drop)).ruling.decision
        is Decision.UNDECIDED
    )


def test_raw_rewards_that_happen_to_lie_between_0_and_1_are_no_shares():
    """A reward model's numbers from .4 to .6: with the statistics of shares, c = 3.3 prompts of a whole point would be added."""
    raw = suite(n=40, margin=0.05, scorer={"kind": "learned", "source": "a/model"})
    shares = suite(n=40, margin=0.05)
    old = {str(place): [0.4 + place / 200] for place in range(40)}
    new = {name: [value[0] + 0.01 * (-1) ** int(name)] for name, value in old.items()}
    of_raw = compare(raw, run(raw, 0, scores=old), run(raw, 0, scores=new))
    # differences of +.01 and -.01, 20 each: sd .01 sqrt(40 / 39), t_39(.95) = 1.684875
    assert of_raw.ruling.evidence["low"] == pytest.approx(-1.684875 * 0.01 / math.sqrt(39), rel=1e-5)
    assert of_raw.ruling.decision is Decision.PASS
    assert compare(shares, run(shares, 0, scores=old), run(shares, 0, scores=new)).ruling.decision is Decision.UNDECIDED
    wide, narrow = run(raw, 0, scores=old), run(raw, 0, scores=old, unbounded=True)
    assert narrow.estimate().high - narrow.estimate().low < wide.estimate().high - wide.estimate().low
    assert [load_suite({"name": "s", "scorer": kind, "items": [{"prompt": "a"}]}).config.unbounded for kind in (
        "exact", "choices", "refusal", "rules", {"kind": "lexicon", "path": "words.txt"}, "a.b:function",
        {"kind": "ensemble", "sources": ["a", "b"]},
    )] == [False, False, False, True, True, False, True]  # fmt: skip


def test_a_result_without_items_decides_nothing_and_a_missing_one_is_named():
    of = suite()
    empty = run(of, 300, scores={}, groups={})
    for before, after in ((empty, run(of, 300)), (run(of, 300), empty)):
        comparison = compare(of, before, after)
        assert comparison.ruling.decision is Decision.UNDECIDED
        assert not comparison.gain.measured
    for before, after in (({}, {of.name: empty}), ({of.name: empty}, {"other": empty})):
        with pytest.raises(DataError, match="sums"):
            CapabilityTester([of]).compare(before, after)


def test_the_gain_of_an_unchanged_model_is_not_known_exactly():
    of = suite()
    gain = compare(of, run(of, 300), run(of, 300)).gain
    assert gain.value == 0
    assert gain.low < 0 < gain.high
    scores = {name: [10.0] for name in run(of, 300).scores}
    raw = compare(of, run(of, 300, scores=scores), run(of, 300, scores=scores)).gain
    assert raw.value == 0
    assert math.isnan(raw.low)
    assert raw.reason


def test_scores_beyond_one_are_judged_in_their_own_units():
    of = suite(margin=3.0)
    before = run(of, 300)
    scores = {name: [10 + float(int(name) % 7)] for name in before.scores}
    after = {name: [value[0] - 5 - (int(name) % 3)] for name, value in scores.items()}
    comparison = compare(of, replace(before, scores=scores), replace(before, scores=after))
    assert comparison.ruling.decision is Decision.FAIL


def test_one_failure_fails_all_and_names_are_unique():
    good, bad = suite("good"), suite("bad")
    before = {"good": run(good, 300), "bad": run(bad, 300)}
    report = CapabilityTester([good, bad]).compare(before, {"good": run(good, 300), "bad": run(bad, 100)})
    assert report.decision is Decision.FAIL
    assert "bad: fail" in str(report)
    assert json.loads(json.dumps(report.to_dict()))["suites"]["good"]["ruling"]["decision"] == "pass"
    with pytest.raises(ConfigError, match="good"):
        CapabilityTester([good, good])
    with pytest.raises(ConfigError, match="suite"):
        CapabilityTester([])


def test_models_are_asked_and_only_sampled_suites_are_repeated():
    tokenizer = tiny.build_tokenizer()
    policy = PolicyModel(tiny.build_llama(vocab_size=len(tokenizer), seed=0), tokenizer)
    engines = []

    def build(policy):
        engines.append(ScriptedEngine({str(i): "yes" if i < 3 else "no" for i in range(4)}))
        return engines[-1]

    greedy, drawn = suite("greedy", n=4), suite("drawn", n=4, sampling={"temperature": 1.0})
    report = CapabilityTester([greedy, drawn], build_engine=build).test(policy, policy)
    assert report.suites["greedy"].after.value == 0.75
    assert report.suites["greedy"].repeat == {}
    assert report.suites["drawn"].repeat["flipped_frac"] == 0
    assert len(engines) == 5
    assert len({seed for engine in engines for seed in engine.seeds}) == 3, "a name and a seed each"
    assert completion("a", 0, "x").text == "x"
