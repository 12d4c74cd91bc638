from __future__ import annotations

import json
from dataclasses import replace
from hashlib import blake2b

import pytest

from rlhf.errors import DataError
from rlhf.feedback.consensus import consensus_rows
from rlhf.feedback.imports import import_items
from rlhf.feedback.tasks import read_items
from rlhf.store import AssignmentRules, PreferenceStore, Response, Submission, Task, TaskKind
from rlhf.store.items import items_of

ROW = {"id": "t", "prompt": "q", "completion_a": "x", "completion_b": "y", "preference": "a", "annotator_id": "ann"}


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def store(request, tmp_path):
    url = (
        request.getfixturevalue("postgres_server").new_database() if request.param == "postgres" else tmp_path / "s.db"
    )
    with PreferenceStore(url, rules=AssignmentRules(overlap=2)) as store:
        yield store


def bring(store, rows, *, kind=None, **how):
    return import_items(store, read_items(rows, kind=kind).items, **how)


def kept(store):
    """Task -> its texts, and what each annotator said of it."""
    return {
        item.task.id: ([r.text for r in item.task.responses], {said.annotator: said.value for said in item.judgments})
        for item in items_of(store)
    }


def samples(prompts, completions, *, file="prompts.jsonl", named=True):
    """As `rlhf generate` wrote them: named by the file and the line."""
    return [
        {"prompt": prompt, "completion": f"{text} {prompt}", "model": text} | ({"id": f"{file}:{n}"} if named else {})
        for n, prompt in enumerate(prompts, 1)
        for text in completions
    ]


def test_prompts_that_are_sampled_anew_are_asked_anew(store):
    prompts = [f"q{n}" for n in range(3)]
    assert bring(store, samples(prompts, ["one", "two"])).num_added == 3
    again = bring(store, samples(prompts, ["one", "two"]))
    assert (again.num_added, again.num_known) == (0, 3)
    assert bring(store, samples(prompts, ["three", "four"])).num_added == 3
    assert sorted(texts for texts, _ in kept(store).values()) == sorted(
        [f"{a} {prompt}", f"{b} {prompt}"] for prompt in prompts for a, b in (("one", "two"), ("three", "four"))
    )


def test_other_prompts_from_a_file_of_the_same_name_are_other_tasks(store):
    bring(store, samples(["q1", "q2"], ["one", "two"]))
    done = bring(store, samples(["q1", "other"], ["one", "two"]))
    assert (done.num_added, done.num_known) == (1, 1)
    assert {task.prompt for task in store.tasks()} == {"q1", "q2", "other"}
    both = read_items([*samples(["r1"], ["one", "two"]), *samples(["r2"], ["one", "two"])]).items
    assert [item.task.prompt for item in both] == ["r1", "r2"], "in one import, too"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prompt": "totally other"}, r"^row 1: the store knows the id 't' with another prompt \('q'\)"),
        ({"completion_b": "v"}, "^row 1: the store knows the id 't' with other completions of the same prompt"),
    ],
)
def test_a_judgment_of_other_texts_is_never_put_on_a_known_task(change, words, store):
    bring(store, [ROW])
    new = ROW | {"id": "new", "annotator_id": "cem"}
    with pytest.raises(DataError, match=rf"{words}.* Nothing was imported"):
        bring(store, [ROW | change | {"annotator_id": "zed", "preference": "b"}, new])
    assert kept(store) == {"t": (["x", "y"], {"ann": {"preference": "a"}})}
    done = bring(store, [ROW | change | {"annotator_id": "zed"}, new], on_other_texts="skip")
    assert [(bad.where, "another task" in bad.reason) for bad in done.left_out] == [("row 1", True)]
    assert kept(store)["t"] == (["x", "y"], {"ann": {"preference": "a"}})
    assert kept(store)["new"] == (["x", "y"], {"cem": {"preference": "a"}})


def test_what_was_said_of_the_completions_the_other_way_round_is_turned(store):
    bring(store, [ROW])
    other = {"completion_a": "y", "completion_b": "x", "annotator_id": "bob", "shown_first": "a"}
    done = bring(store, [ROW | other])
    assert (done.num_known, done.recorded.num_added) == (1, 1)
    assert kept(store) == {"t": (["x", "y"], {"ann": {"preference": "a"}, "bob": {"preference": "b"}})}
    (item,) = items_of(store)
    assert item.judgments[1].order == (1, 0), "`y` stood first, which is the store's second"


def test_people_who_disagree_in_rows_without_ids_judge_one_task_and_no_pair_is_exported_both_ways(store):
    pairs = [("x", "y", "ann"), ("x", "y", "bob"), ("y", "x", "cem")]
    rows = [{"prompt": "q", "chosen": better, "rejected": worse, "annotator_id": who} for better, worse, who in pairs]
    bring(store, rows[:2])
    assert bring(store, rows[2:]).num_added == 0
    ((texts, said),) = kept(store).values()
    assert texts == ["x", "y"]
    assert [value["preference"] for value in said.values()] == ["a", "a", "b"]
    (row,) = consensus_rows(items_of(store), aggregate="dawid-skene").rows
    assert (row["chosen"], row["rejected"], row["votes"]) == ("x", "y", {"chosen": 2, "tie": 0, "rejected": 1})


def test_a_gold_answer_is_compared_with_the_completions_in_the_stores_order(store):
    gold = {"prompt": "q", "chosen": "x", "rejected": "y", "gold": True}
    assert bring(store, [gold]).num_added == 1
    turned = {"prompt": "q", "completion_a": "y", "completion_b": "x", "preference": "b", "gold": True}
    assert bring(store, [turned]).gold_not_taken == []
    (name,) = bring(store, [turned | {"preference": "a"}]).gold_not_taken
    (task,) = store.tasks()
    assert (name, task.gold) == (task.id, {"preference": "a"})


def named_before(kind, prompt, texts):
    content = json.dumps([kind, prompt, texts], sort_keys=True, ensure_ascii=False)
    return f"task-{blake2b(content.encode(), digest_size=8).hexdigest()}"


def of_before(store, name, texts, judged=None):
    """A task as an earlier version kept it, and what `ann` said of it by hand."""
    store.add_tasks([Task(id=name, kind=TaskKind.PAIRWISE, prompt="q", responses=[Response(text=t) for t in texts])])
    if judged:
        store.add_annotator(judged[0])
        held = store.next_task(judged[0])
        assert held.task.id == name
        store.submit(judged[0], Submission(assignment=held.number, key=name[-16:], value={"preference": judged[1]}))


def test_a_store_of_before_knows_its_files_again(store):
    of_before(store, "prompts.jsonl:1", ["one q", "two q"], ("ann", "b"))
    done = bring(store, samples(["q"], ["one", "two"]))
    assert (done.num_added, done.num_known) == (0, 1)
    assert bring(store, samples(["q"], ["one", "three"])).num_added == 1, "another question of that name"


def test_pairs_of_several_samples_in_a_store_of_before_are_known_again(store):
    for places, texts in (("0-1", "xy"), ("0-2", "xz"), ("1-2", "yz")):
        of_before(store, f"p#{places}", list(texts))
    rows = [{"id": "p", "prompt": "q", "completion": text} for text in "xyz"]
    done = bring(store, rows, kind="pairwise")
    assert (done.num_added, done.num_known) == (0, 3)


def test_a_question_without_an_id_is_known_by_the_name_that_it_had(store):
    old = named_before("pairwise", "q", ["y", "x"])
    of_before(store, old, ["y", "x"], ("ann", "a"))
    rows = [
        {"prompt": "q", "chosen": "y", "rejected": "x", "annotator_id": "ann"},
        {"prompt": "q", "chosen": "x", "rejected": "y", "annotator_id": "bob"},
    ]
    done = bring(store, rows)
    assert (done.num_added, done.num_known, done.recorded.num_added, done.recorded.num_known) == (0, 1, 1, 1)
    assert kept(store) == {old: (["y", "x"], {"ann": {"preference": "a"}, "bob": {"preference": "b"}})}


def test_a_question_that_a_store_of_before_holds_twice_gets_nobodys_judgment_twice(store):
    first, second = (named_before("pairwise", "q", texts) for texts in (["y", "x"], ["x", "y"]))
    of_before(store, first, ["y", "x"], ("ann", "a"))
    of_before(store, second, ["x", "y"])
    said = [
        {"prompt": "q", "chosen": chosen, "rejected": rejected, "annotator_id": who}
        for chosen, rejected, who in (("y", "x", "ann"), ("x", "y", "bob"))
    ]
    store.add_annotator("bob")
    held = store.next_task("bob")
    store.skip("bob", held.number)
    held = store.next_task("bob")
    store.submit("bob", Submission(assignment=held.number, key="k" * 16, value={"preference": "a"}))
    done = bring(store, said)
    assert (done.num_added, done.recorded.num_added, done.recorded.num_known) == (0, 0, 2)
    assert done.recorded.other_answers == ()
    bring(store, [said[0] | {"annotator_id": "cem"}])
    assert kept(store) == {
        first: (["y", "x"], {"ann": {"preference": "a"}, "cem": {"preference": "a"}}),
        second: (["x", "y"], {"bob": {"preference": "a"}}),
    }


def test_all_comes_in_or_nothing(store):
    (item,) = read_items([ROW]).items
    bad = replace(item, task=replace(item.task, id="u"), judgments=(replace(item.judgments[0], seconds=-5),))
    with pytest.raises(DataError, match=r"^row 1: .*'u' by 'ann': seconds is -5"):
        import_items(store, [item, bad])
    half = replace(item, task=replace(item.task, id="u", prompt="\ud800"))
    with pytest.raises(DataError, match=r"^row 1: Task 'u'"):
        import_items(store, [item, half])
    assert kept(store) == {}


def test_a_later_answer_of_one_person_in_one_import_is_a_correction(store):
    done = bring(store, [ROW, ROW | {"preference": "b", "comment": "on second thoughts"}, ROW | {"preference": "b"}])
    assert (done.recorded.num_added, done.recorded.num_corrections, done.recorded.num_known) == (2, 1, 1)
    ((_, said),) = kept(store).values()
    assert said == {"ann": {"preference": "b"}}
    assert len(store.judgments()) == 1, "the first is replaced, and stays in the record"
    assert store.progress().num_done == 1
    again = bring(store, [ROW, ROW | {"preference": "b"}]).recorded
    assert (again.num_added, again.num_known, again.other_answers) == (0, 2, ()), "both are known"
    other = bring(store, [ROW | {"preference": "tie"}]).recorded
    assert (other.num_added, other.num_known, other.other_answers) == (0, 1, ("row 1",))
    assert kept(store)["t"][1] == {"ann": {"preference": "b"}}


def test_of_two_answers_whose_times_are_told_the_later_counts_wherever_it_stands(store):
    def at(hour, preference):
        return ROW | {
            "preference": preference,
            "feedback": {"kind": "pairwise", "made_at": f"2026-01-01T{hour}:00:00Z"},
        }

    done = bring(store, [at(12, "b"), ROW | {"annotator_id": "bob"}, at(11, "a")])
    assert done.recorded.num_corrections == 1
    assert kept(store)["t"][1] == {"ann": {"preference": "b"}, "bob": {"preference": "a"}}
