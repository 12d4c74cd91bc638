"""From a conversation to the weights that learned from it and back, over stages that go on from each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf.feedback.trace_files import Trace, list_path, read_trace_list, traces_of_file, write_traces
from rlhf.files import sha256
from rlhf.pipeline.artifacts import Artifact, MadeFrom, Started, content_hash
from rlhf.pipeline.lineage import lineage
from rlhf.pipeline.trace_lineage import learned_from
from rlhf.pipeline.trace_lists import keep_trace_lists

ROWS = [
    {"prompt": "p", "chosen": "a", "rejected": "b", "trace": {"tool": "open-webui", "trace_id": "chat-1", "message_id": "m1",
     "rejected": {"trace_id": "chat-2", "message_id": "m2"}}},
    {"prompt": "p", "chosen": "a", "rejected": "b", "traces": [{"tool": "langfuse", "trace_id": "tr-1"}]},
]  # fmt: skip
ALL = [Trace("langfuse", "tr-1"), Trace("open-webui", "chat-1", "m1"), Trace("open-webui", "chat-2", "m2")]


def rows_file(path, rows=ROWS):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def stage(folder, key, parents, *, weights=True, finished=True):
    folder.mkdir(parents=True)
    keep_trace_lists(folder, parents)
    if weights:
        (folder / "model").mkdir()
        (folder / "model" / "model.safetensors").write_bytes(key.encode())
    if not finished:
        Started(MadeFrom({"kind": "dpo"}, parents, {}), {}).write(folder)
        return folder
    files = {"model/model.safetensors": sha256(folder / "model" / "model.safetensors")} if weights else {}
    Artifact(folder.name, "dpo", key, 1.0, "done", {}, parents, files=files, settings={"kind": "dpo"}).write(folder)
    return folder


@pytest.fixture
def runs(tmp_path):
    """A run whose `dpo` reads a file of traces, `ppo` goes on from it, and `sft` has nothing to do with it."""
    file = rows_file(tmp_path / "pairs.jsonl")
    write_traces(file, ROWS)
    other = rows_file(tmp_path / "other.jsonl", [{"prompt": "p", "completion": "c"}])
    run = tmp_path / "runs" / "one"
    run.mkdir(parents=True)
    (run / "recipe.yaml").write_text("name: one\n")
    (run / "events.jsonl").write_text("{}\n")
    stage(run / "sft", "k0", {"data": f"{other}@{content_hash(other)}"})
    dpo = stage(run / "dpo", "k1", {"model": "stage:sft@k0", "data": f"{file}@{content_hash(file)}"})
    stage(run / "ppo", "k2", {"model": "stage:dpo@k1"})
    stage(run / "judged", "k3", {"policy": "stage:ppo@k2"}, weights=False)
    elsewhere = tmp_path / "runs" / "two"
    elsewhere.mkdir()
    (elsewhere / "recipe.yaml").write_text("name: two\n")
    (elsewhere / "events.jsonl").write_text("{}\n")
    stage(elsewhere / "grpo", "k4", {"model": f"{dpo / 'model'}@{content_hash(dpo / 'model')}"}, finished=False)
    return tmp_path / "runs"


def test_weights_that_learned_from_a_trace_and_those_made_of_them(runs):
    for name in ("chat-1", "m2", "tr-1"):
        actual = {one.stage.name: one for one in learned_from(runs, name=name)}
        assert actual.keys() == {"dpo", "ppo", "judged", "grpo"}
        assert actual["dpo"].weights == ("model/model.safetensors",)
        assert actual["dpo"].through.endswith("pairs.jsonl")
        assert actual["judged"].weights == ()
        assert actual["grpo"].through.endswith("dpo")
    assert learned_from(runs, name="chat-9") == [] == learned_from(runs, name="")
    assert {one.stage.name for one in learned_from(runs, traces=[ALL[1]])} == {"dpo", "ppo", "judged", "grpo"}


def test_runs_are_found_by_the_content_of_a_file_whatever_it_is_now(runs, tmp_path):
    before = sha256(tmp_path / "pairs.jsonl")
    (tmp_path / "pairs.jsonl").unlink()
    assert learned_from(runs, hashes=[before])[0].stage.name == "dpo"
    assert learned_from(runs, name="chat-1")[0].stage.name == "dpo"


def test_lineage_names_the_list_of_traces(runs):
    text = lineage(runs / "one" / "ppo" / "model", runs=runs).to_text()
    assert "3 traces: " in text
    path = text.split("3 traces: ")[1].split(")")[0]
    assert json.loads(Path(path).read_text())["traces"][1] == {
        "tool": "open-webui",
        "trace_id": "chat-1",
        "message_id": "m1",
    }


def test_a_list_of_another_content_is_not_believed_and_a_copy_is_read_by_its_columns(tmp_path):
    file = rows_file(tmp_path / "a.jsonl")
    assert read_trace_list(write_traces(file, ROWS)) == ALL == traces_of_file(file)
    copy = rows_file(tmp_path / "copy.jsonl", ROWS[1:])
    assert traces_of_file(copy) == ALL[:1]
    rows_file(file, ROWS[:1])
    assert traces_of_file(file) == ALL[1:]
    assert write_traces(file, [{"prompt": "p"}]) is None
    assert not list_path(file).exists()


@pytest.mark.parametrize("column", ["x", 3, None, [], {}, [[]], {"trace_id": None}, "{broken", '{"tool": 1}'])
def test_somebodys_own_column_of_that_name_is_no_trace(tmp_path, column):
    assert traces_of_file(rows_file(tmp_path / "a.jsonl", [{"prompt": "p", "trace": column, "traces": column}])) == []


def test_a_stage_keeps_no_folder_where_no_file_has_a_trace(runs):
    assert not (runs / "one" / "sft" / "traces").exists()
