from __future__ import annotations

import json

import pytest

from rlhf.errors import DataError, UnknownNameError
from rlhf.feedback.exchange import FORMATS, OURS, detect, read_as
from rlhf.feedback.layouts import LAYOUTS


def saved(folder, *rows):
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "rows.jsonl"


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "q", "chosen": "x", "rejected": "y"},
        {"prompt": "q", "completions": ["x", "y"], "ranks": [1, 2]},
        {"instruction": "q", "input": "", "output": "x"},
        {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "x"}]},
        {"prompt": "q", "completion": "x"},
        {"prompt": "q", "prompt_id": "1", "chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "x"}],
         "rejected": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "y"}], "score_chosen": 8.0},
    ],
)  # fmt: skip
def test_rows_that_this_library_reads_are_its_own(row, tmp_path):
    assert detect(saved(tmp_path, row)) == OURS


def test_columns_that_nearly_fit_are_told_what_they_lack(tmp_path):
    row = {"prompt": "q", "response_1": "x", "response_2": "y", "preference_strenght": 1}
    with pytest.raises(
        DataError,
        match=r"rows.jsonl:1: .*'helpsteer2-preference'.*lacks 'preference_strength'.*'preference_strenght'",
    ):
        detect(saved(tmp_path, row))
    with pytest.raises(DataError, match=r"--format: rows, datasets, .*, label-studio"):
        detect(saved(tmp_path, {"foo": 1}))


def test_a_bad_first_line_does_not_hide_the_format(tmp_path):
    path = saved(tmp_path, {"history": "q", "human_ref_A": "x", "human_ref_B": "y", "labels": 1})
    path.write_text("{oops\n" + path.read_text())
    assert detect(path) == "shp"
    with pytest.raises(DataError, match=r"rows\.jsonl:1: "):
        read_as("shp", path)
    converted = read_as("shp", path, on_bad_row="skip")
    assert (len(converted.items), [bad.where.rpartition(":")[2] for bad in converted.left_out]) == (1, ["1"])
    path.write_text("{oops\n")
    with pytest.raises(DataError, match="no row"):
        detect(path)


def test_a_format_that_there_is_none_of_is_answered_with_the_nearest(tmp_path):
    with pytest.raises(UnknownNameError, match="Did you mean 'ultrafeedback'"):
        read_as("ultra-feedback", saved(tmp_path, {"prompt": "q"}))
    with pytest.raises(DataError, match="no reader"):
        read_as("trl", saved(tmp_path, {"prompt": "q"}))
    with pytest.raises(DataError, match=r"standard input.*'rows'"):
        read_as("shp", "-")


def test_formats_say_what_they_are():
    assert all(known.about for known in LAYOUTS.values())
    assert all(known.read is None or known.columns for known in FORMATS.values())
