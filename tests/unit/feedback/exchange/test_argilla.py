from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings

from rlhf.config.guidelines import STANDARD_GUIDELINES
from rlhf.errors import DataError
from rlhf.feedback.exchange import detect, read_as
from rlhf.feedback.exchange.argilla import write_argilla
from rlhf.store.items import Item, ItemJudgment
from rlhf.store.values import Response, Task, TaskKind
from tests.unit.feedback.strategies import items
from tests.unit.feedback.test_rows import plain

QUICK = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
PAIR = Task(id="t", kind=TaskKind.PAIRWISE, prompt="q", responses=[Response(text="x"), Response(text="y")])


def test_a_record_and_its_settings_have_the_shapes_argilla_reads(tmp_path):
    said = [ItemJudgment(annotator="ann", value={"preference": "b"}, comment="why")]
    write_argilla(tmp_path / "set", [Item(task=PAIR, judgments=said)], STANDARD_GUIDELINES, overlap=3)
    (record,) = json.loads((tmp_path / "set/records.json").read_text())
    user = record["responses"]["preference"][0]["user_id"]
    assert record["fields"] == {"prompt": "q", "completion_1": "x", "completion_2": "y"}
    assert record["responses"] == {
        "preference": [{"value": "b", "user_id": user, "status": "submitted"}],
        "comment": [{"value": "why", "user_id": user, "status": "submitted"}],
    }
    assert set(record) == {"id", "fields", "metadata", "suggestions", "responses", "vectors", "status", "_server_id"}
    made = json.loads((tmp_path / "set/.argilla/settings.json").read_text())
    assert [field["name"] for field in made["fields"]] == ["prompt", "completion_1", "completion_2"]
    question = made["questions"][0]
    assert (question["name"], question["settings"]["type"]) == ("preference", "label_selection")
    assert [option["value"] for option in question["settings"]["options"]] == ["a", "b", "tie"]
    assert made["distribution"] == {"strategy": "overlap", "min_submitted": 3}
    assert json.loads((tmp_path / "set/.argilla/dataset.json").read_text())["name"] == "set"


@QUICK
@given(item=items())
def test_what_goes_to_argilla_comes_back_as_it_was(item, tmp_path):
    write_argilla(tmp_path / "set", [item], STANDARD_GUIDELINES)
    assert detect(tmp_path / "set") == "argilla"
    assert plain(read_as("argilla", tmp_path / "set").items) == plain([item])


def test_discarded_and_draft_answers_are_no_answers(tmp_path):
    flat = {
        "id": "1", "prompt": "q", "response_a": "x", "response_b": "y", "status": "completed", "_server_id": None,
        "pref.responses": ["a", "b", "tie"], "pref.responses.users": ["u1", "u2", "u3"],
        "pref.responses.status": ["submitted", "discarded", "draft"], "pref.suggestion": "b", "pref.suggestion.score": 0.6,
    }  # fmt: skip
    (tmp_path / "flat.jsonl").write_text(json.dumps(flat) + "\n")
    assert detect(tmp_path / "flat.jsonl") == "argilla-flat"
    (item,) = read_as("argilla-flat", tmp_path / "flat.jsonl").items
    assert (item.task.id, [r.text for r in item.task.responses]) == ("1", ["x", "y"])
    assert [(s.annotator, s.value) for s in item.judgments] == [("argilla-u1", {"preference": "a"})]


@pytest.mark.parametrize(
    ("ranking", "ranks"),
    [
        (["completion_2", "completion_1"], [2, 1]),
        ([{"value": "completion_1", "rank": 1}, {"value": "completion_2", "rank": 1}], [1, 1]),
    ],
)
def test_rankings_are_read_as_the_sdk_and_as_the_wire_has_them(ranking, ranks, tmp_path):
    record = {
        "id": "1", "fields": {"prompt": "q", "completion_1": "x", "completion_2": "y"},
        "responses": {"order": [{"value": ranking, "user_id": "u"}]},
    }  # fmt: skip
    (tmp_path / "records.json").write_text(json.dumps([record]))
    (item,) = read_as("argilla", tmp_path).items
    assert (item.task.kind, item.judgments[0].value) == ("ranking", {"ranks": ranks})


def test_what_can_not_be_one_data_set_or_one_record_is_named(tmp_path):
    binary = Task(id="b", kind=TaskKind.BINARY, prompt="q", responses=[Response(text="x")])
    with pytest.raises(DataError, match="binary, pairwise"):
        write_argilla(tmp_path / "a", [Item(task=PAIR), Item(task=binary)], STANDARD_GUIDELINES)
    rankings = [
        Item(task=Task(id=t, kind=TaskKind.RANKING, prompt="q", responses=[Response(text=c) for c in t]))
        for t in ("xy", "xyz")
    ]
    with pytest.raises(DataError, match="these have 2, 3 completions"):
        write_argilla(tmp_path / "b", rankings, STANDARD_GUIDELINES)
    (tmp_path / "records.json").write_text(json.dumps([{"id": "1", "fields": {"prompt": "q"}, "responses": {}}]))
    with pytest.raises(DataError, match=r"row 1: .*'prompt'"):
        read_as("argilla", tmp_path)
