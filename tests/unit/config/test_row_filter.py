"""`data: {path, dedup, min_length, max_length}` in the place of a file's name."""

from __future__ import annotations

import pytest

from rlhf.config.recipe import RecipeConfig
from rlhf.config.row_filter import RowFilter
from rlhf.errors import ConfigError


def stage_of(**settings):
    stage = {"kind": "sft", "model": "embedded", **settings}
    return RecipeConfig.of({"name": "a", "stages": {"s": stage}}).stages["s"]


def test_a_section_is_the_file_and_a_filter():
    stage = stage_of(data={"path": "rows.jsonl", "dedup": True, "min_length": 2, "max_length": 5})
    assert (stage.data, stage.row_filter) == ("rows.jsonl", RowFilter(dedup=True, min_length=2, max_length=5))
    assert stage == stage_of(**stage.model_dump(mode="json")), "a recipe that was written out is read again"
    assert stage_of(data="rows.jsonl").row_filter is None
    asked = stage_of(kind="grpo", reward="rules", prompts={"path": ["a.jsonl"], "dedup": 0.8})
    assert (asked.prompts, asked.row_filter) == (["a.jsonl"], RowFilter(dedup=0.8))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"data": {"path": "f", "dedupe": True}}, r"stages\.s\.data: dedupe: .*'dedup'"),
        ({"data": {"dedup": True}}, r"stages\.s\.data: .*path"),
        ({"data": {"path": "f", "dedup": 2}}, r"stages\.s\.data: dedup"),
        ({"data": {"path": "f", "min_length": 9, "max_length": 2}}, "min_length"),
        ({"data": {"path": "f", "dedup": True}, "row_filter": {"dedup": True}}, "row_filter"),
        ({"data": {"path": "stage:nope/x", "dedup": True}}, r"stages\.s\.data names stage:nope"),
    ],
)
def test_a_wrong_filter_is_named_where_it_was_written(settings, words):
    with pytest.raises(ConfigError, match=words):
        stage_of(**settings)


def test_workers_stand_next_to_the_path():
    stage = stage_of(data={"path": "rows.jsonl", "workers": 4})
    assert (stage.data, stage.data_workers, stage.row_filter) == ("rows.jsonl", 4, None)
    stage = stage_of(data={"path": "rows.jsonl", "workers": 2, "dedup": True})
    assert (stage.data_workers, stage.row_filter) == (2, RowFilter(dedup=True))
    with pytest.raises(ConfigError, match=r"stages\.s\.data: workers"):
        stage_of(data={"path": "rows.jsonl", "workers": 0})
    with pytest.raises(ConfigError, match="data_workers"):
        stage_of(data={"path": "rows.jsonl", "workers": 2}, data_workers=3)
