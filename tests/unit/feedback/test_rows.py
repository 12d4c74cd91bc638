from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings

from rlhf.config.guidelines import AnnotationGuideline
from rlhf.data.read import read_rows
from rlhf.data.write import write_rows
from rlhf.errors import DataError
from rlhf.feedback.rows import guideline_version, rows_of
from rlhf.feedback.tasks import read_items
from rlhf.store.items import Item, ItemJudgment
from rlhf.store.values import Response, Task, TaskKind
from tests.unit.feedback.strategies import files

QUICK = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)


def pair(value, kind=TaskKind.PAIRWISE, **said):
    task = Task(
        id="t1", kind=kind, prompt="2+2?", columns={"topic": "sums"}, batch="first",
        responses=[Response(text="4", model="new"), Response(text="5", model="old")],
    )  # fmt: skip
    return Item(task=task, judgments=[ItemJudgment(annotator="ann", value=value, **said)])


def test_a_judgment_becomes_a_comparison_with_where_it_came_from():
    item = pair(
        {"preference": "a"}, order=(1, 0), seconds=4.5, label_probability=0.0, comment="carried", flags=("unclear",)
    )
    (row,) = rows_of([item])
    assert row == {
        "prompt": "2+2?", "completion_a": "4", "completion_b": "5", "preference": "a", "topic": "sums",
        "id": "t1#ann", "task_id": "t1", "annotator_id": "ann", "label_probability": 0.0, "seconds": 4.5, "shown_first": "b",
        "comment": "carried", "flags": ["unclear"], "guideline_version": row["guideline_version"], "batch": "first",
        "model_a": "new", "model_b": "old", "feedback": {"kind": "pairwise", "order": [1, 0]},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "grade", "preference", "strength"),
    [("graded7", 3, "a", "significantly"), ("graded7", 1, "a", "slightly"), ("graded5", -2, "b", "significantly"),
     ("graded5", 0, "tie", None)],
)  # fmt: skip
def test_a_grade_is_also_a_side_and_a_strength(kind, grade, preference, strength):
    (row,) = rows_of([pair({"grade": grade}, TaskKind(kind))])
    assert (row["preference"], row.get("strength"), row["grade"]) == (preference, strength, grade)


def test_overall_ratings_weigh_dimensions_as_the_guidelines_do():
    guidelines = [
        AnnotationGuideline(name="true", description="", weight=3),
        AnnotationGuideline(name="kind", description=""),
    ]
    task = Task(id="t", kind=TaskKind.RATING, prompt="q", responses=[Response(text="x"), Response(text="y")])
    said = [ItemJudgment(annotator="ann", value={"ratings": {"true": [5, 1], "kind": [1, 5]}})]
    (row,) = rows_of([Item(task=task, judgments=said)], guidelines=guidelines)
    assert row["ratings"] == [4.0, 2.0]  # (3*5 + 1*1) / 4 and (3*1 + 1*5) / 4
    (row,) = rows_of(
        [Item(task=task, judgments=said)], guidelines=guidelines[:1]
    )  # `kind` has no weight there: plain means
    assert row["ratings"] == [3.0, 3.0]


def test_the_version_of_guidelines_changes_with_them():
    first = [AnnotationGuideline(name="true", description="Is it?")]
    assert guideline_version(first) == guideline_version(list(first))
    assert guideline_version(first) != guideline_version([AnnotationGuideline(name="true", description="Is it so?")])


@QUICK
@given(made=files())
def test_what_is_exported_comes_back_as_it_was(made):
    rows = json.loads(json.dumps(list(rows_of(made, with_unjudged=True))))
    assert plain(read_items(rows).items) == plain(made)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv", "rows.parquet"])
@QUICK
@given(made=files(kinds=(TaskKind.PAIRWISE, TaskKind.GRADED7), judged=True))
def test_files_of_every_format_give_back_what_was_written(name, made, tmp_path):
    flat = not name.endswith(".jsonl")
    if name.endswith(".parquet") and len({type(item.task.prompt) for item in made}) > 1:
        made = made[:1]  # a column of a table holds texts or dialogues, and write_rows refuses both together
    write_rows(tmp_path / name, rows_of(made, flat=flat))
    assert plain(read_items(tmp_path / name).items) == plain(made)


TURN = '[{"role": "user", "content": "hi"}]'


@pytest.mark.parametrize(
    "text", ['[{"a": 1}]', '[{"a": NaN}]', ' [{"a": 1, "a": 2}]', '[{"role": broken', '[{"a": [', "[]"]
)
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv", "rows.parquet"])
def test_an_answer_in_json_stays_a_text_in_every_format(text, name, tmp_path):
    task = Task(id="t", kind=TaskKind.PAIRWISE, prompt=text, responses=[Response(text=text), Response(text="none")])
    made = [Item(task=task, judgments=[ItemJudgment(annotator="ann", value={"preference": "a"})])]
    write_rows(tmp_path / name, rows_of(made, flat=not name.endswith(".jsonl")))
    assert plain(read_items(tmp_path / name).items) == plain(made)


@pytest.mark.parametrize("text", [TURN, f" {TURN}", '[{"role": "user", "role": "user", "content": ""}]'])
def test_a_text_that_csv_could_not_tell_from_a_dialogue_is_refused_there(text, tmp_path):
    task = Task(
        id="t", kind=TaskKind.PAIRWISE, prompt="Give me JSON.", responses=[Response(text="no"), Response(text=text)]
    )
    made = [Item(task=task, judgments=[ItemJudgment(annotator="ann", value={"preference": "b"}, comment=text)])]
    with pytest.raises(DataError, match=r"rows\.csv: column 'completion_b' of row 1 "):
        write_rows(tmp_path / "rows.csv", rows_of(made, flat=True))
    assert list(tmp_path.iterdir()) == []
    write_rows(tmp_path / "rows.parquet", rows_of(made, flat=True))
    assert plain(read_items(tmp_path / "rows.parquet").items) == plain(made)


def test_a_dialogue_still_goes_through_csv(tmp_path):
    turns = json.loads(TURN)
    task = Task(
        id="t", kind=TaskKind.PAIRWISE, prompt=turns, responses=[Response(text=turns), Response(text=turns * 2)]
    )
    made = [Item(task=task, judgments=[ItemJudgment(annotator="ann", value={"preference": "a"}, comment=TURN)])]
    write_rows(tmp_path / "rows.csv", rows_of(made, flat=True))
    assert plain(read_items(tmp_path / "rows.csv").items) == plain(made), "and a comment is a comment, whatever it says"


@QUICK
@given(made=files(judged=True))
def test_the_data_room_reads_every_exported_row(made):
    rows = list(rows_of(made))
    assert len(read_rows(rows)) == sum(len(item.judgments) for item in made)


def plain(items):
    """As values: lists and tuples alike."""
    return [(*map(plain_task, [item.task]), [plain_said(said) for said in item.judgments]) for item in items]


def plain_task(task):
    responses = [(r.text, r.model, r.sampling, r.columns) for r in task.responses]
    return (task.id, task.kind, task.prompt, responses, task.gold, task.priority, task.batch, task.columns)


def plain_said(said):
    order = None if said.order is None else list(said.order)
    beside = (
        said.comment,
        list(said.flags),
        list(said.spans),
        said.label_probability,
        said.seconds,
        said.made_at,
        said.diff_viewed,
    )
    return (said.annotator, said.value, order, *beside)
