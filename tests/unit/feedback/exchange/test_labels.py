"""One (item, annotator, label) a row: what is read, what names what, and what is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings

from rlhf.errors import ConfigError, DataError
from rlhf.feedback.classes import check_classes, parsed_classes
from rlhf.feedback.exchange import detect, read_as
from rlhf.feedback.rows import rows_of
from rlhf.store.values import TaskKind
from tests.unit.feedback.strategies import files
from tests.unit.feedback.test_rows import plain


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def said(source):
    return {item.task.id: {one.annotator: one.value["class"] for one in item.judgments} for item in source.items}


def test_rows_of_json_and_csv_are_the_same_labels_whatever_their_columns_are_called(tmp_path):
    wanted = {"s1": {"ann": "2", "bob": "0"}, "s2": {"ann": "1"}}
    lines = write(
        tmp_path / "a.jsonl",
        {"item": "s1", "annotator": "ann", "label": 2},
        {"item": "s1", "annotator": "bob", "label": 0.0},
        {"item": "s2", "annotator": "ann", "label": "1"},
    )
    (tmp_path / "b.csv").write_text("worker_id,class,item_id\nann,2,s1\nbob,0,s1\nann,1,s2\n")
    for path in (lines, tmp_path / "b.csv"):
        assert detect(path) == "labels"
        assert said(read_as("labels", path)) == wanted


def test_an_item_without_an_id_is_named_by_its_text(tmp_path):
    rows = [{"text": "So good.", "annotator": who, "label": label} for who, label in (("ann", "pos"), ("bob", "neg"))]
    converted = read_as("labels", write(tmp_path / "a.jsonl", *rows))
    (item,) = converted.items
    assert item.task.responses[0].text == "So good."
    assert [one.value["class"] for one in item.judgments] == ["pos", "neg"]


def test_several_files_are_one_project(tmp_path):
    one = write(tmp_path / "ann.jsonl", {"item": "s1", "annotator": "ann", "label": "x"})
    two = write(tmp_path / "bob.jsonl", {"item": "s1", "annotator": "bob", "label": "y"})
    assert said(read_as("labels", one, two)) == {"s1": {"ann": "x", "bob": "y"}}


def test_good_and_bad_completions_stay_rows_of_ours_and_other_labels_do_not(tmp_path):
    row = {"prompt": "Q", "completion": "A", "annotator_id": "ann"}
    assert detect(write(tmp_path / "a.jsonl", {**row, "label": True})) == "rows"
    assert detect(write(tmp_path / "b.jsonl", {**row, "label": "bad"})) == "rows"
    assert detect(write(tmp_path / "c.jsonl", {**row, "label": "off-topic"})) == "labels"


def test_a_gold_label_needs_no_annotator(tmp_path):
    converted = read_as("labels", write(tmp_path / "a.jsonl", {"item": "s1", "label": "pos", "gold": True}))
    assert converted.items[0].task.gold == {"class": "pos"}
    assert not converted.items[0].judgments


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"item": "s1", "annotator": "ann", "label": None}, "label"),
        ({"item": "s1", "annotator": "ann", "label": " "}, "class"),
        ({"item": "s1", "annotator": "ann", "label": ["x"]}, "label"),
        ({"item": "s1", "annotator": "ann", "label": 0.5}, "label"),
        ({"item": "s1", "annotator": "", "label": "x"}, "annotator"),
        ({"annotator": "ann", "label": "x"}, "what was labeled"),
    ],
)
def test_a_bad_row_is_named_with_what_it_lacks(row, words, tmp_path):
    good = {"item": "s0", "annotator": "ann", "label": "x"}
    path = write(tmp_path / "a.jsonl", good, row)
    with pytest.raises(DataError, match=rf"a.jsonl:2.*{words}"):
        read_as("labels", path)
    converted = read_as("labels", path, on_bad_row="skip")
    assert said(converted) == {"s0": {"ann": "x"}}
    assert [bad.where for bad in converted.left_out] == [f"{path}:2"]


def test_a_label_that_is_none_of_the_classes_is_named_with_the_nearest(tmp_path):
    good = {"item": "s0", "annotator": "ann", "label": "neutral"}
    path = write(tmp_path / "a.jsonl", good, {**good, "annotator": "bob", "label": "nuetral"})
    classes = ("negative", "neutral", "positive")
    with pytest.raises(DataError, match=r"a.jsonl:2.*'nuetral'.*'neutral'"):
        check_classes(read_as("labels", path), classes, "error")
    converted = read_as("labels", path)
    check_classes(converted, classes, "skip")
    assert said(converted) == {"s0": {"ann": "neutral"}}
    assert len(converted.left_out) == 1


@pytest.mark.parametrize("text", ["a", "a,a", "a,,b", ""])
def test_classes_are_two_or_more_different_names(text):
    assert parsed_classes("a, b,c") == ("a", "b", "c")
    with pytest.raises(ConfigError, match="--classes"):
        parsed_classes(text)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(made=files(kinds=(TaskKind.MULTICLASS,), judged=True))
def test_exported_labels_come_back_as_they_were(made, tmp_path):
    path = write(tmp_path / "rows.jsonl", *rows_of(made))
    assert detect(path) == "labels"
    assert plain(read_as("labels", path).items) == plain(made)
