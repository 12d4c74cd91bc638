"""Completions that are the same to the letter: nobody is asked which is better, and the results count them as ties."""

from __future__ import annotations

import json

import pytest

from rlhf.errors import DataError
from rlhf.feedback.evaluation import CRITERIA, HumanEvalProtocol, Judged
from rlhf.feedback.evaluation_results import Alike, evaluate
from rlhf.feedback.store import PreferenceStore, Submission

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
    return protocol.analyse(store, resamples=5)


def test_nobody_is_asked_and_the_rate_over_all_prompts_counts_them_as_ties(tmp_path):
    protocol = HumanEvalProtocol(criteria=(), name="spring")
    with PreferenceStore(tmp_path / "s.db") as store:
        tasks = protocol.build_tasks(PROMPTS, {"new": NEW, "old": OLD})
        assert len(tasks) == 12
        assert protocol.open(store, tasks) == 8
        assert protocol.open(store, tasks) == 0
        assert len(list(store.tasks())) == 8
        found = judged_by(store, protocol, 8)
    (versus,) = found.win_rates
    assert versus.rate.rate == 1
    assert versus.rate.n == 8
    assert versus.alike == Alike(num_same=4, num_prompts=12)
    # 8 of 12 prompts won, 4 tied: (8 + 4 / 2) / 12
    assert versus.over_all.value == pytest.approx(10 / 12)
    assert versus.over_all.low == pytest.approx(versus.rate.low * 8 / 12 + 2 / 12)
    assert found.num_identical == 4
    assert "over all 12 prompts 0.833" in found.to_text()
    assert "counting 4 prompts with identical completions as tied" in found.to_text()
    told = json.loads(json.dumps(found.to_dict()))["win_rates"][0]
    assert told["identical"] == {"num_same": 4, "num_prompts": 12}
    assert told["over_all_prompts"]["value"] == pytest.approx(10 / 12)


def test_the_rate_over_all_prompts_is_right_while_half_is_still_to_be_judged(tmp_path):
    protocol = HumanEvalProtocol(criteria=())
    with PreferenceStore(tmp_path / "s.db") as store:
        protocol.open(store, protocol.build_tasks(PROMPTS, {"new": NEW, "old": OLD}))
        found = judged_by(store, protocol, 2)
    # thrown in with two judgements, the four ties would make it (2 + 4 / 2) / 6 = 0.67
    assert found.win_rates[0].over_all.value == pytest.approx(10 / 12)


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
        found = protocol.analyse(judged, key_file=tmp_path / "key.jsonl", resamples=5)
        assert found.win_rates[0].over_all.value == pytest.approx(10 / 12)


def test_ratings_are_asked_all_the_same():
    protocol = HumanEvalProtocol(kind="rating", criteria=CRITERIA[:1])
    tasks = protocol.build_tasks(PROMPTS, {"new": NEW, "old": NEW})
    assert len(protocol.asked(tasks)) == 12


def test_models_that_say_the_same_everywhere_are_not_compared(tmp_path):
    protocol = HumanEvalProtocol(criteria=())
    with (
        PreferenceStore(tmp_path / "s.db") as store,
        pytest.raises(DataError, match="the same in all 12 tasks; there is nothing to"),
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
    found = evaluate([judged("ann", "new", "old", n) for n in range(4)], (), alike={}, seed=0, resamples=0)
    assert found.reliability == {}
    assert (
        "reliability of annotators: not measured: ann alone judged, and there is nobody to compare with"
        in found.to_text()
    )
    assert found.to_dict()["reliability_reason"].startswith("not measured")


def test_who_judged_models_that_nobody_else_did_has_no_reliability():
    said = [judged(who, "new", "old", n) for n in range(4) for who in ("ann", "bob")]
    found = evaluate([*said, judged("cem", "new", "other")], (), alike={}, seed=0, resamples=0)
    assert set(found.reliability) == {"ann", "bob"}
    assert found.reliability_reason == "not measured of cem: nobody else judged the same models"
    everybody = evaluate(said, (), alike={}, seed=0, resamples=0)
    assert set(everybody.reliability) == {"ann", "bob"}
    assert everybody.reliability_reason == ""
