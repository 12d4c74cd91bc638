from __future__ import annotations

import json

import pytest

from rlhf.data import json_rows
from rlhf.data.raw import Unreadable
from rlhf.data.read import read_rows
from rlhf.errors import DataError

ROWS = [{"text": 'a "quoted", [bracketed] é'}, {"text": "😀\u2028"}, {"text": "b" * 30}, {"text": "\\"}]


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 7, 16, 33, 64, 1000])
@pytest.mark.parametrize("indent", [None, 2])
def test_an_array_is_read_the_same_in_pieces_of_any_size(tmp_path, monkeypatch, chunk, indent):
    path = tmp_path / "d.json"
    path.write_text("\n \n" + json.dumps(ROWS, ensure_ascii=False, indent=indent) + "\n")
    monkeypatch.setattr(json_rows, "CHUNK_BYTES", chunk)
    assert [row.value for row in json_rows.read_json(path, 0)] == ROWS
    assert [row.value for row in json_rows.read_json(path, 2)] == ROWS[2:]


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 8, 1000])
def test_bad_items_are_passed_over_in_pieces_of_any_size(tmp_path, monkeypatch, chunk):
    path = tmp_path / "d.json"
    deep = "[" * 3000 + "]" * 3000
    path.write_text('[{"text": "a"}, NaN, 123456, {"x": 1, "x": "]"},\n' + deep + ', {"text": "z"}]')
    monkeypatch.setattr(json_rows, "CHUNK_BYTES", chunk)
    values = [row.value for row in json_rows.read_json(path, 0)]
    assert [type(value) for value in values] == [dict, Unreadable, int, Unreadable, Unreadable, dict]
    assert values[2] == 123456, "a number is not cut where a piece ends"
    assert "on line 2" in values[4].reason


def test_a_line_that_is_too_long_is_passed_over_without_being_kept(tmp_path, monkeypatch):
    path = tmp_path / "d.jsonl"
    path.write_text('{"text": "a"}\n{"text": "' + "x" * 500 + '"}\n\n{"text": "b"}\n{"text": "' + "y" * 500)
    monkeypatch.setattr(json_rows, "MAX_ROW_BYTES", 100)
    monkeypatch.setattr(json_rows, "CHUNK_BYTES", 7)
    table = read_rows(path, on_bad_row="skip")
    assert [row.where for row in table] == [f"{path}:1", f"{path}:4"]
    assert [(bad.where, bad.reason.split(";")[0]) for bad in table.bad_rows] == [
        (f"{path}:2", "the line is 513 bytes long"),
        (f"{path}:5", "the line is 510 bytes long"),
    ]


def test_an_item_that_is_too_long_ends_the_reading(tmp_path, monkeypatch):
    path = tmp_path / "d.json"
    path.write_text('[{"text": "a"}, {"text": "' + "x" * 500 + '"}, {"text": "b"}]')
    monkeypatch.setattr(json_rows, "MAX_ROW_BYTES", 100)
    monkeypatch.setattr(json_rows, "CHUNK_BYTES", 7)
    with pytest.raises(DataError, match=r"d.json:row 2: .*Unterminated string.*line 1"):
        read_rows(path, on_bad_row="skip")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (json.dumps([{"text": "a"}, {"text": "b"}], indent=2), "is a JSON array over several lines"),
        ('[\n{"text": "a"}\n]\n', "is a JSON array over several lines"),
        ('\n[{"text": "a"},\n {"text": "b"}]\n', "is a JSON array over several lines"),
        ('[{"text": "a"}, {"text": "b"}]\n', "is a JSON array on one line"),
    ],
)
def test_an_array_under_the_name_of_json_lines_is_one_complaint_and_not_one_a_line(tmp_path, content, words):
    path = tmp_path / "d.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError) as caught:
        read_rows(path, on_bad_row="skip")
    assert str(caught.value).startswith(f"{path} {words}")
    assert str(caught.value).endswith("not one object on each line; name it .json.")


def test_objects_over_several_lines_are_one_complaint_with_the_command_that_mends_them(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_text("\n".join(json.dumps({"text": text, "n": 1}, indent=2) for text in "ab"), encoding="utf-8")
    with pytest.raises(DataError, match=r"several lines.*jq -c \. "):
        read_rows(path, on_bad_row="skip")


@pytest.mark.parametrize("first", ["{", "[", "[1, 2]", '{"text": "a"', "[[["])
def test_one_broken_line_at_the_beginning_does_not_hide_the_good_ones_behind_it(tmp_path, first):
    path = tmp_path / "d.jsonl"
    path.write_text(first + '\n{"text": "good"}\n{"text": "too"}\n', encoding="utf-8")
    table = read_rows(path, on_bad_row="skip")
    assert [row.text for row in table] == ["good", "too"]
    assert len(table.bad_rows) == 1
