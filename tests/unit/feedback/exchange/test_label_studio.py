from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from rlhf.errors import DataError
from rlhf.feedback.exchange import detect, read_as
from rlhf.feedback.exchange.label_studio import config_path, labeling_config, write_label_studio
from rlhf.store.items import Item, ItemJudgment
from rlhf.store.values import Response, Task, TaskKind
from tests.unit.feedback.strategies import items
from tests.unit.feedback.test_rows import plain

QUICK = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
PAIR = Task(id="t", kind=TaskKind.PAIRWISE, prompt="q", responses=[Response(text="x", model="m"), Response(text="y")])


def written(item, folder):
    write_label_studio(folder / "ls.json", [item])
    return json.loads((folder / "ls.json").read_text())


def test_a_pair_is_a_pairwise_region_and_a_tie_a_choice(tmp_path):
    said = [
        ItemJudgment(annotator="ann", value={"preference": "b"}, seconds=3.5, comment="why"),
        ItemJudgment(annotator="bob", value={"preference": "tie"}),
    ]
    (task,) = written(Item(task=PAIR, judgments=said), tmp_path)
    assert {key: task["data"][key] for key in ("prompt", "answer1", "answer2")} == {
        "prompt": "q",
        "answer1": "x",
        "answer2": "y",
    }
    assert task["annotations"] == [
        {
            "completed_by": 1, "was_cancelled": False, "ground_truth": False, "lead_time": 3.5,
            "result": [
                {"id": "r1", "from_name": "preference", "to_name": "left", "type": "pairwise", "value": {"selected": "right"}},
                {"id": "r2", "from_name": "comment", "to_name": "prompt", "type": "textarea", "value": {"text": ["why"]}},
            ],
        },
        {
            "completed_by": 2, "was_cancelled": False, "ground_truth": False,
            "result": [{"id": "r1", "from_name": "tie", "to_name": "left", "type": "choices", "value": {"choices": ["tie"]}}],
        },
    ]  # fmt: skip


@QUICK
@given(item=items())
def test_what_goes_to_label_studio_comes_back_as_it_was(item, tmp_path):
    write_label_studio(tmp_path / "ls.json", [item])
    assert detect(tmp_path / "ls.json") == "label-studio"
    assert plain(read_as("label-studio", tmp_path / "ls.json").items) == plain([item])


@QUICK
@given(item=items(judged=True))
def test_every_region_names_a_control_and_an_object_of_the_configuration(item, tmp_path):
    (task,) = written(item, tmp_path)
    config = ET.fromstring(config_path(tmp_path / "ls.json").read_text())
    tags = {tag.get("name"): tag for tag in config if tag.get("name")}
    for tag in config:
        if tag.get("value"):
            assert tag.get("value").removeprefix("$") in task["data"]
    for annotation in task["annotations"]:
        for region in annotation["result"]:
            assert tags[region["from_name"]].tag.lower() == region["type"]
            assert region["to_name"] in tags[region["from_name"]].get("toName").split(",")
            assert "value" in tags[region["to_name"]].attrib


def test_what_was_changed_or_added_there_counts(tmp_path):
    (task,) = written(
        Item(task=PAIR, judgments=[ItemJudgment(annotator="ann", value={"preference": "b"}, order=(1, 0))]), tmp_path
    )
    task["annotations"][0]["result"][0]["value"]["selected"] = "left"
    other = json.loads(json.dumps(task["annotations"][0])) | {"completed_by": {"id": 9, "email": "new@example.org"}}
    cancelled = other | {"completed_by": 10, "was_cancelled": True}
    task["annotations"] += [other, cancelled]
    (tmp_path / "ls.json").write_text(json.dumps([task]))
    (item,) = read_as("label-studio", tmp_path / "ls.json").items
    assert [(s.annotator, s.value, s.order) for s in item.judgments] == [
        ("ann", {"preference": "a"}, (1, 0)), ("new@example.org", {"preference": "a"}, None),
    ]  # fmt: skip
    assert item.task.responses[0].model == "m"


def test_a_file_that_went_out_before_the_update_comes_back_with_how_sure_people_were(tmp_path):
    said = ItemJudgment(annotator="ann", value={"preference": "b"}, label_probability=0.75)
    (task,) = written(Item(task=PAIR, judgments=[said]), tmp_path)
    before = json.dumps([task]).replace('"label_probability": 0.75', '"confidence": 0.5')
    assert "confidence" in before
    (tmp_path / "ls.json").write_text(before)
    assert read_as("label-studio", tmp_path / "ls.json").items[0].judgments[0].label_probability == 0.75


def test_a_ranking_keeps_its_ties_until_somebody_reorders_it(tmp_path):
    task = Task(id="r", kind=TaskKind.RANKING, prompt="q", responses=[Response(text=t) for t in "xyz"])
    (row,) = written(Item(task=task, judgments=[ItemJudgment(annotator="ann", value={"ranks": [2, 1, 2]})]), tmp_path)
    region = row["annotations"][0]["result"][0]
    assert (region["type"], region["to_name"], region["value"]) == (
        "ranker",
        "answers",
        {"ranker": {"rank": ["2", "1", "3"]}},
    )
    assert row["data"]["items"][1] == {"id": "2", "title": "Answer 2", "body": "y"}
    (item,) = read_as("label-studio", tmp_path / "ls.json").items
    assert item.judgments[0].value == {"ranks": [2, 1, 2]}
    region["value"] = {"ranker": ["3", "1", "2"]}  # as the tag's page shows it
    (tmp_path / "ls.json").write_text(json.dumps([row]))
    (item,) = read_as("label-studio", tmp_path / "ls.json").items
    assert item.judgments[0].value == {"ranks": [2, 3, 1]}


def test_anybodys_project_with_the_usual_names_is_read(tmp_path):
    data = {"prompt": "q", "left": "x", "right": "y", "topic": "sums"}
    region = {"id": "x1", "from_name": "pw", "to_name": "left", "type": "pairwise", "value": {"selected": "left"}}
    annotation = {
        "id": 7,
        "completed_by": 3,
        "was_cancelled": False,
        "lead_time": 3.2,
        "created_at": "2026-01-02T03:04:05Z",
        "result": [region],
    }
    old = [{"id": 1, "data": data, "completions": [annotation]}]  # as exports once called them
    (tmp_path / "old.json").write_text(json.dumps(old))
    (item,) = read_as("label-studio", tmp_path / "old.json").items
    assert (item.task.kind, item.task.prompt, item.task.columns) == ("pairwise", "q", {"topic": "sums"})
    (said,) = item.judgments
    assert (said.annotator, said.value, said.seconds, said.made_at.year) == (
        "label-studio-3",
        {"preference": "a"},
        3.2,
        2026,
    )


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ({"id": 1}, "its `data` is null"),
        ({"id": 1, "data": {"prompt": "q"}}, "no answers in `data`, which has 'prompt'"),
        ({"id": 1, "data": {"left": "x", "right": "y"}, "annotations": [{"completed_by": 1, "result": [
            {"from_name": "pw", "to_name": "left", "type": "pairwise", "value": {"selected": "zzz"}}]}]},
         "an annotation answers pairwise: .*, which says nothing of a task of kind pairwise"),
    ],
)  # fmt: skip
def test_a_task_that_can_not_be_read_says_where_and_why(task, words, tmp_path):
    (tmp_path / "ls.json").write_text(json.dumps([task]))
    with pytest.raises(DataError, match=rf"ls.json:row 1: .*{words}|ls.json: row 1.*{words}"):
        read_as("label-studio", tmp_path / "ls.json")


def test_a_project_holds_one_kind_and_rates_every_dimension_of_every_completion(tmp_path):
    rating = Task(id="q", kind=TaskKind.RATING, prompt="q", responses=[Response(text="x"), Response(text="y")])
    single = replace(rating, id="s", responses=[Response(text="x")])
    said = [ItemJudgment(annotator="ann", value={"ratings": {"tone & style": [1, 5]}})]
    config = labeling_config([Item(task=rating, judgments=said), Item(task=single)])
    names = [tag.get("name") for tag in ET.fromstring(config) if tag.tag == "Rating"]
    assert names == ["tone & style_1", "tone & style_2"]
    write_label_studio(tmp_path / "ls.json", [Item(task=rating, judgments=said), Item(task=single)])
    assert plain(read_as("label-studio", tmp_path / "ls.json").items) == plain(
        [Item(task=rating, judgments=said), Item(task=single)]
    )
    with pytest.raises(DataError, match="pairwise, rating"):
        write_label_studio(tmp_path / "no.json", [Item(task=PAIR), Item(task=rating)])
