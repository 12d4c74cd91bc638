"""Completions that are the same to the letter: nobody is asked which is better, and the results count them as ties."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from rlhf.errors import ConfigError, DataError
from rlhf.evaluation.intervals import share_interval, share_with_ties_interval
from rlhf.feedback.human_evaluation.analysis import evaluate
from rlhf.feedback.human_evaluation.criteria import CRITERIA, Judged
from rlhf.feedback.human_evaluation.identical import Alike, alike_of
from rlhf.feedback.human_evaluation.protocol import IDENTICAL, HumanEvalProtocol
from rlhf.store import PreferenceStore, Submission

PROMPTS = [f"Question {number}?" for number in range(12)]
NEW = [f"new says {number}" for number in range(12)]
OLD = [f"old says {number}" for number in range(8)] + NEW[8:]


def judged_by(store, protocol, num):
    """Ann prefers `new`, wherever it stands, in so many tasks."""
    store.add_annotator("ann")
    for number in range(num):
        given = store.next_task("ann")
        side = "ab"[[response.model for response in given.task.responses].index("new")]
        store.submit("ann", Submission(assignment=given.number, key=f"k-{number}", value={"preference": side}))
    return protocol.analyze(store, resamples=5)


def test_nobody_is_asked_and_the_rate_over_all_prompts_counts_them_as_ties(tmp_path):
    protocol = HumanEvalProtocol(criteria=(), name="spring")
    with PreferenceStore(tmp_path / "s.db") as store:
        tasks = protocol.build_tasks(PROMPTS, {"new": NEW, "old": OLD})
        assert len(tasks) == 12
        assert protocol.open(store, tasks) == 8
        assert protocol.open(store, tasks) == 0
        assert len(list(store.tasks())) == 8
        actual = judged_by(store, protocol, 8)
    (versus,) = actual.win_rates
    assert versus.rate.rate == 1
    assert versus.rate.n == 8
    assert versus.alike == Alike(num_same=4, num_prompts=12)
    # 8 of 12 prompts won, 4 tied: (8 + 4 / 2) / 12
    assert versus.over_all.value == pytest.approx(10 / 12)
    everything = share_interval([1] * 8 + [0.5] * 4)
    assert (versus.over_all.low, versus.over_all.high) == pytest.approx((everything.low, everything.high))
    assert actual.num_identical == 4
    assert "On 4 prompts completions of some models are the same to the letter: nobody is asked" in actual.to_text()
    assert "over all 12 prompts 0.833" in actual.to_text()
    assert "counting 4 prompts with identical completions as tied" in actual.to_text()
    told = json.loads(json.dumps(actual.to_dict()))["win_rates"][0]
    assert told["identical"] == {"num_same": 4, "num_prompts": 12}
    assert told["over_all_prompts"]["value"] == pytest.approx(10 / 12)


def test_the_rate_over_all_prompts_is_right_while_half_is_still_to_be_judged(tmp_path):
    protocol = HumanEvalProtocol(criteria=())
    with PreferenceStore(tmp_path / "s.db") as store:
        protocol.open(store, protocol.build_tasks(PROMPTS, {"new": NEW, "old": OLD}))
        actual = judged_by(store, protocol, 2)
    # thrown in with two judgments, the four ties would make it (2 + 4 / 2) / 6 = 0.67
    assert actual.win_rates[0].over_all.value == pytest.approx(10 / 12)


@pytest.mark.parametrize(
    ("same", "right", "prompts", "part"),
    [(0.5, 0.95, 200, 1.0), (0.5, 0.9, 100, 1.0), (0.7, 0.9, 200, 1.0), (0.5, 0.95, 200, 0.3), (0.8, 0.9, 60, 0.5)],
)
def test_the_interval_over_all_prompts_holds_the_truth_however_many_are_the_same(same, right, prompts, part):
    # every prompt is one of those with identical completions by chance, too: an interval that takes their share for known
    # holds the truth in 70 to 82 % of these
    rng, runs, held = np.random.default_rng(5), 600, 0
    truth = (1 - same) * right + same / 2
    for _ in range(runs):
        differing = int((rng.random(prompts) >= same).sum())
        judged = (rng.random(max(1, int(part * differing))) < right).astype(float)
        interval = share_with_ties_interval(judged, num_tied=prompts - differing, num_open=differing)
        held += interval.low <= truth <= interval.high
    assert held / runs > 0.92, "the standard error is 0.009"


def test_a_part_that_is_judged_says_less_and_without_any_there_is_nothing():
    whole = share_with_ties_interval([1, 0, 1, 1] * 10, num_tied=40, num_open=40)
    part = share_with_ties_interval([1, 0, 1, 1] * 5, num_tied=40, num_open=40)
    assert whole.value == part.value == pytest.approx((30 + 20) / 80)
    assert part.high - part.low > 1.2 * (whole.high - whole.low)
    assert not share_with_ties_interval([], num_tied=3, num_open=2).measured
    assert share_with_ties_interval([], num_tied=3, num_open=0).value == 0.5
    with pytest.raises(ConfigError, match="3 outcomes of 2 units"):
        share_with_ties_interval([1, 0, 1], num_tied=1, num_open=2)


def test_two_models_that_say_the_same_everywhere_are_in_the_report_beside_a_third(tmp_path):
    protocol = HumanEvalProtocol(criteria=CRITERIA[:2], name="three")
    with PreferenceStore(tmp_path / "s.db") as store:
        protocol.open(store, protocol.build_tasks(PROMPTS, {"new": NEW, "x": OLD, "y": OLD}))
        actual = judged_by(store, protocol, 3)
    assert actual.models == ("new", "x", "y")
    (alike,) = [versus for versus in actual.win_rates if (versus.first, versus.second) == ("x", "y")]
    assert alike.alike == Alike(num_same=12, num_prompts=12)
    assert not math.isfinite(alike.rate.rate)
    assert alike.over_all.value == 0.5
    assert (
        "x over y: not measured: their completions are the same everywhere; over all 12 prompts 0.500"
        in actual.to_text()
    )
    # prompts, not prompts times criteria or times pairs: on all of them x and y say the same
    assert actual.num_identical == 12
    json.dumps(actual.to_dict(), allow_nan=False)


def test_a_pair_that_nobody_judged_yet_is_named(tmp_path):
    key = [{"item": str(n), "models": ["new", other], "identical": n == 3} for n in range(4) for other in ("old", "x")]
    metrics = evaluate([judged("ann", "new", "old")], (), key=key, seed=0, resamples=0)
    assert "new over x: not measured: nobody judged them yet" in metrics.to_text()
    assert metrics.power.num_prompts == 1


def opened(store, completions, prompts=PROMPTS, **settings):
    protocol = HumanEvalProtocol(criteria=(), **settings)
    return protocol.open(store, protocol.build_tasks(prompts, completions))


def test_other_prompts_of_the_same_models_are_added_and_not_taken_for_known(tmp_path):
    with PreferenceStore(tmp_path / "s.db") as store:
        assert opened(store, {"new": NEW, "old": OLD}) == 8
        others = [f"Another {number}?" for number in range(12)]
        assert opened(store, {"new": NEW, "old": OLD}, others) == 8
        assert opened(store, {"new": NEW[::-1], "old": OLD[::-1]}, others[::-1]) == 0, "the order does not matter"
        assert len(HumanEvalProtocol.of_store(store).identical(store)) == 8


def test_completions_made_anew_are_refused_and_change_nothing(tmp_path):
    with PreferenceStore(tmp_path / "s.db") as store:
        opened(store, {"new": NEW, "old": OLD})
        before = store.setting(IDENTICAL), list(store.tasks())
        for anew, said in (
            (
                ["again", *OLD[1:]],
                r"\('Question 0\?'\) was opened in this evaluation before, with other completions of old\. ",
            ),
            ([*NEW[:2], *OLD[2:]], "other completions of old, and so was 1 other"),
            ([*OLD[:11], "again"], r"Question 11\?.* before, with other completions\. "),
        ):
            with pytest.raises(DataError, match=said):
                opened(store, {"new": NEW, "old": anew})
        assert (store.setting(IDENTICAL), list(store.tasks())) == before
        assert opened(store, {"new": NEW, "old": ["again", *OLD[1:]]}, name="second") == 8


def test_an_id_that_named_another_prompt_is_refused(tmp_path):
    protocol, models = HumanEvalProtocol(criteria=()), {"new": NEW[:1], "old": OLD[:1]}
    with PreferenceStore(tmp_path / "s.db") as store:
        protocol.open(store, protocol.build_tasks(["One?"], models, ids=["q"]))
        with pytest.raises(DataError, match=r"'q' \('Two\?'\).*\('One\?'\)"):
            protocol.open(store, protocol.build_tasks(["Two?"], models, ids=["q"]))


def test_a_comparison_that_a_store_both_asks_and_calls_identical_is_one_that_is_asked(tmp_path):
    protocol = HumanEvalProtocol(criteria=())
    tasks = protocol.build_tasks(PROMPTS, {"new": NEW, "old": OLD})
    with PreferenceStore(tmp_path / "s.db") as store:
        protocol.open(store, tasks)
        rows = store.setting(IDENTICAL)["human-eval"]
        asked = protocol.asked(tasks)[0]
        old = {
            "id": asked.id,
            "item": asked.columns["item"],
            "criterion": "overall",
            "kind": "pairwise",
            "models": ["new", "old"],
        }
        store.set_setting(IDENTICAL, {"human-eval": {**rows, asked.id: old}})
        assert asked.id not in {row["id"] for row in protocol.identical(store)}
        assert judged_by(store, protocol, 8).win_rates[0].alike == Alike(num_same=4, num_prompts=12)


def test_a_prompt_that_is_asked_is_not_among_the_identical_whatever_a_key_says_beside():
    row = {"item": "q", "models": ["old", "new"]}
    assert alike_of([row, {**row, "identical": True}]) == {("new", "old"): Alike(num_same=0, num_prompts=1)}


def test_of_those_that_are_asked_each_model_is_first_equally_often():
    protocol = HumanEvalProtocol(criteria=())
    asked = protocol.asked(protocol.build_tasks(PROMPTS, {"new": NEW, "old": OLD}))
    assert [task.responses[0].model for task in asked].count("new") == 4
    assert len(asked) == 8


def test_the_key_of_an_export_tells_them_and_the_tasks_do_not(tmp_path):
    protocol = HumanEvalProtocol(criteria=())
    tasks = protocol.build_tasks(PROMPTS, {"new": NEW, "old": OLD})
    with PreferenceStore(tmp_path / "s.db") as store:
        protocol.open(store, tasks)
        from_store, identical = protocol.tasks(store), protocol.identical(store)
    for given, rest in ((tasks, ()), (from_store, identical)):
        protocol.export(given, tmp_path / "tasks.jsonl", tmp_path / "key.jsonl", identical=rest)
        rows = [json.loads(line) for line in (tmp_path / "tasks.jsonl").read_text().splitlines()]
        key = [json.loads(line) for line in (tmp_path / "key.jsonl").read_text().splitlines()]
        assert len(rows) == 8
        assert sum(bool(row.get("identical")) for row in key) == 4
        assert len(key) == 12
        side = {row["id"]: "ab"[row["models"].index("new")] for row in key}
        lines = [{"id": row["id"], "annotator": "ann", "value": {"preference": side[row["id"]]}} for row in rows]
        (tmp_path / "back.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        judged = protocol.read(tmp_path / "back.jsonl", tmp_path / "key.jsonl")
        analysis = protocol.analyze(judged, key_file=tmp_path / "key.jsonl", resamples=5)
        assert analysis.win_rates[0].over_all.value == pytest.approx(10 / 12)


def test_ratings_are_asked_all_the_same():
    protocol = HumanEvalProtocol(kind="rating", criteria=CRITERIA[:1])
    tasks = protocol.build_tasks(PROMPTS, {"new": NEW, "old": NEW})
    assert len(protocol.asked(tasks)) == 12


def test_models_that_say_the_same_everywhere_are_not_compared(tmp_path):
    protocol = HumanEvalProtocol(criteria=())
    with (
        PreferenceStore(tmp_path / "s.db") as store,
        pytest.raises(DataError, match="all 12 tasks"),
    ):
        protocol.open(store, protocol.build_tasks(PROMPTS, {"new": NEW, "old": NEW}))


def judged(who, first, second, item=0):
    return Judged(
        item=str(item),
        criterion="overall",
        kind="pairwise",
        models=(first, second),
        annotator=who,
        value={"preference": "a"},
    )


def test_one_annotator_has_no_reliability_for_there_is_nobody_to_compare_with():
    metrics = evaluate([judged("ann", "new", "old", n) for n in range(4)], (), key=(), seed=0, resamples=0)
    assert metrics.reliability == {}
    assert (
        "reliability of annotators (how often they report what is better): not measured: ann alone judged, and there is nobody"
        in metrics.to_text()
    )
    assert metrics.to_dict()["reliability_reason"].startswith("not measured")


def test_who_judged_models_that_nobody_else_did_has_no_reliability():
    said = [judged(who, "new", "old", n) for n in range(4) for who in ("ann", "bob")]
    metrics = evaluate([*said, judged("cem", "new", "other")], (), key=(), seed=0, resamples=0)
    assert set(metrics.reliability) == {"ann", "bob"}
    assert metrics.reliability_reason == "not measured of cem: nobody else judged the same models"
    everybody = evaluate(said, (), key=(), seed=0, resamples=0)
    assert set(everybody.reliability) == {"ann", "bob"}
    assert everybody.reliability_reason == ""
