from __future__ import annotations

import io
import json

import pytest

from rlhf.errors import DataError, UnknownNameError
from rlhf.feedback.tasks import read_items, tasks_of

CHAT = [{"role": "user", "content": "hi"}]
SAID = {"annotator_id": "ann"}


@pytest.mark.parametrize(
    ("row", "kind", "value"),
    [
        ({"prompt": "q", "completion_a": "x", "completion_b": "y", "preference": "b"}, "pairwise", {"preference": "b"}),
        ({"prompt": "q", "completion_a": "x", "completion_b": "y", "preference": "a_slightly"}, "graded5", {"grade": 1}),
        ({"prompt": "q", "completion_a": "x", "completion_b": "y", "preference": "b", "grade": -3}, "graded7", {"grade": -3}),
        ({"prompt": "q", "chosen": "x", "rejected": "y"}, "pairwise", {"preference": "a"}),
        ({"prompt": CHAT, "completions": ["x", "y", "z"], "ranks": [2, 1, 2]}, "ranking", {"ranks": [2, 1, 2]}),
        ({"prompt": "q", "completions": ["x", "y", "z"], "ranks": [1.5, 8, 1.5]}, "ranking", {"ranks": [1, 3, 1]}),
        ({"prompt": "q", "completions": ["x", "y"], "ratings": [5, 2]}, "rating", {"ratings": {"overall": [5, 2]}}),
        ({"prompt": "q", "completion": "x", "rating": 4}, "rating", {"ratings": {"overall": [4]}}),
        ({"prompt": "q", "completion": "x", "label": False}, "binary", {"label": False}),
    ],
)  # fmt: skip
def test_each_kind_of_row_is_asked_and_says_what_it_says(row, kind, value):
    (item,) = read_items([row | SAID]).items
    assert (item.task.kind, item.task.gold, [(s.annotator, s.value) for s in item.judgments]) == (
        kind,
        None,
        [("ann", value)],
    )
    (gold,) = read_items([row | {"gold": True}]).items
    assert (gold.task.gold, gold.judgments, "known" in gold.task.columns) == (value, (), False)
    (known,) = read_items([row]).items  # nobody said it, and nobody vouches for it
    assert known.task.gold is None
    assert known.judgments == ()
    assert isinstance(known.task.columns["known"], dict)


def test_two_samples_of_a_prompt_are_one_question_with_the_lineage_of_each():
    rows = [
        {"id": "p1", "prompt": "q", "completion": text, "model": "m", "sampling": {"seed": 0, "sample": n}, "finish_reason": "eos",
         "stage": "sft"}
        for n, text in enumerate(["x", "y"])
    ]  # fmt: skip
    (task,) = tasks_of(rows)
    assert (task.kind, [r.text for r in task.responses]) == ("pairwise", ["x", "y"])
    assert task.id.startswith("p1#"), "of the prompt, and of what was sampled"
    assert [r.model for r in task.responses] == ["m", "m"]
    assert [r.sampling for r in task.responses] == [{"seed": 0, "sample": 0}, {"seed": 0, "sample": 1}]
    assert [r.columns for r in task.responses] == [{"finish_reason": "eos", "stage": "sft"}] * 2
    assert task.columns == {}


def test_the_outputs_of_two_models_meet_by_prompt_wherever_they_stand(tmp_path):
    for name in ("one", "two"):
        rows = [{"prompt": f"q{n}", "completion": f"{name} {n}", "model": name, "topic": n} for n in range(3)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tasks = tasks_of([str(tmp_path / "one.jsonl"), str(tmp_path / "two.jsonl")])
    assert [[r.model for r in task.responses] for task in tasks] == [["one", "two"]] * 3
    assert [task.columns for task in tasks] == [{"topic": 0}, {"topic": 1}, {"topic": 2}]


def test_several_samples_are_ranked_or_compared_two_by_two():
    rows = [{"id": "p", "prompt": "q", "completion": text} for text in "xyz"]
    (ranking,) = tasks_of(rows)
    assert (ranking.kind, len(ranking.responses)) == ("ranking", 3)
    pairs = tasks_of(rows, kind="pairwise")
    assert [[r.text for r in task.responses] for task in pairs] == [["x", "y"], ["x", "z"], ["y", "z"]]
    assert len({task.id for task in pairs}) == 3
    assert [task.kind for task in tasks_of(rows, kind="binary")] == ["binary"] * 3
    with pytest.raises(DataError, match=r"row 1: .*7 completions.*at most 6"):
        tasks_of([{"prompt": "q", "completion": str(n)} for n in range(7)])


def test_a_model_that_says_the_same_twice_gives_no_question():
    rows = [{"prompt": "q", "completion": "x"}] * 2 + [{"prompt": "r", "completion": text} for text in "xxy"]
    source = read_items(rows, kind="pairwise")
    assert [[r.text for r in item.task.responses] for item in source.items] == [["x", "y"]]  # of both, one
    assert [(bad.where, bad.reason) for bad in source.left_out] == [
        ("row 1", "both completions say the same, so there is nothing to judge.")
    ]


def test_ids_come_from_the_row_or_from_what_it_says_and_never_from_its_place():
    row = {"prompt": "q", "chosen": "x", "rejected": "y"}
    (first,) = tasks_of([row])
    assert [task.id for task in tasks_of([{"prompt": "other", "chosen": "x", "rejected": "y"}, row])][1] == first.id
    assert [task.id for task in tasks_of([row | {"id": 7}])] == ["7"]
    (same,) = tasks_of([row, row])
    assert same == first


def test_two_questions_under_one_id_are_refused():
    rows = [{"id": "t", "prompt": "q", "chosen": "x", "rejected": end} for end in "yz"]
    with pytest.raises(DataError, match=r"id 't'.*completions"):
        tasks_of(rows)


def test_two_rows_that_know_another_right_answer_are_both_named():
    rows = [{"id": "t", "prompt": "q", "completion_a": "x", "completion_b": "y", "preference": p} for p in "ab"]
    with pytest.raises(DataError, match=r"'t': .*'a'.* in row 1 and .*'b'.* in row 2"):
        read_items(rows, all_gold=True)
    (task,) = [item.task for item in read_items([rows[0], rows[1] | {"gold": True}]).items]
    assert task.gold == {"preference": "b"}, "whichever row tells it"


def test_a_tie_among_graded_comparisons_is_the_middle_of_the_scale():
    rows = [
        {"id": n, "prompt": "q", "completion_a": "x", "completion_b": n, "preference": p}
        for n, p in (("1", "tie"), ("2", "a_slightly"))
    ]
    assert [task.kind for task in tasks_of(rows)] == ["graded5", "graded5"]
    assert [task.kind for task in tasks_of(rows[:1])] == ["pairwise"]
    assert [task.kind for task in tasks_of(rows, kind="pairwise")] == ["pairwise", "pairwise"]


@pytest.mark.parametrize(
    ("row", "how", "words"),
    [
        ({"prompt": "q"}, {}, "row 1: a row of kind prompt holds no completion to judge; sample some first: rlhf generate"),
        ({"prompt": "q", "completion": "x"}, {"kind": "pairwise"}, "row 1: its prompt has one completion, and pairwise compares"),
        ({"prompt": "q", "completion": "x", "label": True}, {"kind": "ranking"}, "a row of kind unpaired can be asked as binary or"),
        ({"prompt": "q", "completion": "x", "label": True} | SAID, {"kind": "rating"}, "of kind rating the row needs `ratings` for its"),
        ({"prompt": "q", "chosen": "x", "rejected": "y"}, {"kind": "graded7", "all_gold": True}, "needs `grade` for its gold value"),
        ({"prompt": "q", "chosen": "x", "rejected": "y", "gold": "maybe"}, {}, r"row 1: column 'gold' is a string \('maybe'\)"),
        ({"prompt": "q", "completions": ["x", 3]}, {}, "row 1: column 'completions' is a list"),
        ({"prompt": "q", "completions": list("abcdefg"), "ranks": [1, 2, 3, 4, 5, 6, 7]}, {}, "row 1: Task .* has 7 completion"),
        ({"prompt": "q", "completion": "x", "label": True, "annotator_id": "ann", "label_probability": 3}, {}, "'label_probability' is 3"),
        ({"prompt": "q", "completion": "x", "label": True, "annotator_id": "ann", "confidence": 0.5}, {}, "is now `label_probability`"),
        ({"prompt": "q", "completion": "x", "priority": 10**400}, {}, "row 1: column 'priority' is a number; wanted a finite"),
        ({"messages": CHAT}, {}, "row 1: the dialogue does not end with an assistant's turn"),
    ],
)  # fmt: skip
def test_a_row_that_can_not_be_asked_says_which_and_why(row, how, words):
    with pytest.raises(DataError, match=words):
        read_items([row], **how)
    good = {"prompt": "good", "completion": "x", "label": True}
    if not how:
        source = read_items([row, good], on_bad_row="skip")
        assert ([item.task.prompt for item in source.items], len(source.left_out)) == (["good"], 1)


@pytest.mark.parametrize("priority", ["inf", "nan"])
def test_a_priority_that_has_no_place_in_the_order_is_named_with_file_and_line(priority, tmp_path):
    (tmp_path / "rows.csv").write_text(f"prompt,completion,label,priority\nq,x,true,1.5\nr,x,true,{priority}\n")
    with pytest.raises(DataError, match=rf"rows\.csv:3: column 'priority' is {priority}"):
        read_items(tmp_path / "rows.csv")


def test_a_dialogue_is_judged_by_its_last_turn():
    turns = [*CHAT, {"role": "assistant", "content": "hello"}]
    (task,) = tasks_of([{"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]}])
    assert (task.kind, task.prompt, task.responses[0].text) == ("binary", CHAT, turns[1:])


def test_alpaca_rows_are_read_as_they_are():
    (task,) = tasks_of([{"instruction": "Add", "input": "2 and 2", "output": "4"}])
    assert (task.kind, task.prompt, task.responses[0].text) == ("binary", "Add\n\n2 and 2", "4")


def test_tasks_come_from_a_pipe(monkeypatch):
    lines = ['{"prompt": "q", "completion": "x"}', "", '{"prompt": "q", "completion": "y"}']
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
    (task,) = tasks_of("-")
    assert [r.text for r in task.responses] == ["x", "y"]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join([*lines, "{oops"])))
    with pytest.raises(DataError, match="standard input:4: not JSON"):
        tasks_of("-")


def test_a_kind_that_there_is_none_of_is_answered_with_the_nearest():
    with pytest.raises(UnknownNameError, match="Did you mean 'ranking'"):
        tasks_of([{"prompt": "q", "completion": "x"}], kind="rankin")
