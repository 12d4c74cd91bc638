"""Nothing that was made is lost before something newer is finished, whenever the process is killed."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from pathlib import Path

import pytest

from rlhf.config.recipe import RecipeConfig
from rlhf.files import write_json, write_text
from rlhf.pipeline.archive import FOLDER, GONE, OWN_EVENTS, events_of, move_aside, previous_of, settle
from rlhf.pipeline.artifacts import RECORD, Artifact
from rlhf.pipeline.run import Pipeline
from rlhf.training.log import read_jsonl
from tests.fixtures.cheap_stages import install, make, pipeline_of

OPERATIONS = ((os, "replace"), (os, "rename"), (os, "unlink"), (os, "mkdir"), (os, "rmdir"), (shutil, "rmtree"))


def losses(run: Path, stage: str) -> list[float]:
    return [e["metrics"]["loss/train"] for e in events_of(read_jsonl(run / "events.jsonl"), stage) if "metrics" in e]


def test_going_back_to_the_old_settings_brings_back_what_they_made(tmp_path, monkeypatch):
    done = install(monkeypatch)
    run = tmp_path / "runs" / "loop"
    before = pipeline_of(tmp_path)
    before.run()
    loss = losses(run, "reward")
    pipeline_of(tmp_path, reward__epochs=5).run()
    assert losses(run, "reward") != loss
    done.clear()
    back = pipeline_of(tmp_path)
    foreseen = {p.name: (str(p.action), "; ".join(p.reasons)) for p in back.plan()}
    made = before.artifacts["reward"].finished
    assert foreseen["reward"] == ("brought back", f"made from the same before, {made}")
    back.run()
    assert done == []
    assert back.artifacts == before.artifacts
    assert losses(run, "reward") == loss, "the curves of the report are those of what is there"
    assert [p.stage for p in previous_of(run)].count("reward") == 1, "and the other one is kept now"
    pipeline_of(tmp_path, reward__epochs=5).run()
    assert done == []


def test_a_stage_that_fails_leaves_the_old_result_for_the_old_settings(tmp_path, monkeypatch):
    def breaks(stage, at):
        if stage.epochs == 5:
            raise KeyError("a bug")
        return make(stage, at)

    done = install(monkeypatch, reward=breaks)
    pipeline_of(tmp_path).run()
    with pytest.raises(KeyError, match="a bug"):
        pipeline_of(tmp_path, reward__epochs=5).run()
    done.clear()
    pipeline_of(tmp_path).run()
    assert done == []


def test_an_unfinished_stage_waits_for_its_settings_too(tmp_path, monkeypatch):
    def breaks(stage, at):
        if stage.epochs == 5 and not (at.folder / "checkpoint-00000007").exists():
            (at.folder / "checkpoint-00000007").mkdir()
            raise KeyError("a bug")
        return make(stage, at)

    install(monkeypatch, reward=breaks)
    for epochs in (5, 6):
        try:
            pipeline_of(tmp_path, reward__epochs=epochs).run(until="reward")
        except KeyError:
            continue
    run = tmp_path / "runs" / "loop"
    assert previous_of(run, "reward") == [], "a finished stage needs its unfinished predecessors no more"
    install(monkeypatch, reward=breaks)
    with pytest.raises(KeyError, match="a bug"):
        pipeline_of(tmp_path, reward__epochs=5).run(until="reward")
    write_text(run / "reward" / "mark", "of the unfinished one")
    pipeline_of(tmp_path, reward__epochs=6).run(until="sft")
    move_aside(run, "reward")
    [plan] = [p for p in pipeline_of(tmp_path, reward__epochs=5).plan(until="reward") if p.name == "reward"]
    assert plan.line == "reward       goes on: begun from the same before; unfinished, from step 7"
    pipeline_of(tmp_path, reward__epochs=5).run(until="reward")
    assert (run / "reward" / "mark").exists()


def test_only_the_newest_result_of_a_stage_is_kept_aside(tmp_path, monkeypatch):
    install(monkeypatch)
    for epochs in (1, 2, 3, 4):
        pipeline_of(tmp_path, alone__epochs=epochs).run()
    [kept] = previous_of(tmp_path / "runs" / "loop", "alone")
    assert Artifact.read(kept.folder).settings["epochs"] == 3


def test_a_damaged_result_is_not_brought_back(tmp_path, monkeypatch):
    done = install(monkeypatch)
    pipeline_of(tmp_path).run()
    pipeline_of(tmp_path, alone__epochs=5).run()
    [kept] = previous_of(tmp_path / "runs" / "loop", "alone")
    (kept.folder / "model" / "model.safetensors").unlink()
    done.clear()
    pipeline_of(tmp_path).run()
    assert done == ["alone"]


def test_names_with_dashes_and_digits_are_told_apart(tmp_path):
    for stage in ("sft", "sft-2", "sft-0123456789abcdef-1"):
        write_text(tmp_path / stage / "x", stage)
        move_aside(tmp_path, stage)
    assert [p.stage for p in previous_of(tmp_path)] == ["sft-0123456789abcdef-1", "sft-2", "sft"]
    assert [p.folder.joinpath("x").read_text() for p in previous_of(tmp_path, "sft")] == ["sft"]
    assert move_aside(tmp_path, "absent") is None


def test_half_deleted_folders_are_never_taken_for_results(tmp_path):
    write_json(tmp_path / FOLDER / f"{GONE}sft-0123456789abcdef-1" / RECORD, {})
    assert previous_of(tmp_path) == []
    settle(tmp_path)
    assert list((tmp_path / FOLDER).iterdir()) == []


def killed_at(pipeline: Pipeline, number: int) -> bool:
    """Run in a child that ends, as by kill -9, before its ``number``th change of the disk; False where it came to its end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads of this process don't matter to the child
        child = os.fork()
    if child == 0:
        left = number

        def counted(function):
            def call(*args, **kwargs):
                nonlocal left
                left -= 1
                if left < 0:
                    os._exit(9)
                return function(*args, **kwargs)

            return call

        for module, name in OPERATIONS:
            setattr(module, name, counted(getattr(module, name)))
        try:
            pipeline.run()
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, 9), "the run failed of itself"
    return code == 9


def one_stage(folder: Path, epochs: int) -> Pipeline:
    data = folder.parent / "sft.jsonl"
    data.write_text('{"prompt": "a", "completion": "b"}\n')
    stage = {"kind": "sft", "model": "embedded", "data": str(data), "epochs": epochs}
    return Pipeline(RecipeConfig.of({"name": "one", "output_dir": str(folder), "stages": {"sft": stage}}))


def state(folder: Path) -> dict[str, bytes]:
    stage = folder / "one" / "sft"
    return {str(p.relative_to(stage)): p.read_bytes() for p in stage.rglob("*") if p.is_file() and p.name != RECORD}


@pytest.mark.slow
@pytest.mark.parametrize("history", [(1,), (1, 2)], ids=["made anew", "brought back"])
def test_killed_at_every_change_of_the_disk_the_same_command_goes_on(tmp_path, monkeypatch, history):
    done = install(monkeypatch)
    for epochs in history:
        one_stage(tmp_path / "start", epochs).run()
    old = history[-1]
    new = 3 - old  # 2 is made anew; 1 was made before and comes back
    results = {}
    for epochs in (old, new):
        one_stage(tmp_path / f"reference-{epochs}", epochs).run()
        results[epochs] = state(tmp_path / f"reference-{epochs}")
    number = 0
    while True:
        folder = tmp_path / f"at-{number}"
        shutil.copytree(tmp_path / "start", folder)
        if not killed_at(one_stage(folder, new), number):
            break
        places = [folder / "one" / "sft", *(p.folder for p in previous_of(folder / "one", "sft"))]
        made = {tensor.settings["epochs"] for place in places if (tensor := Artifact.read(place)) is not None}
        assert old in made, f"the old result is gone after change {number}"
        done.clear()
        one_stage(folder, new).run()
        assert state(folder) == results[new], f"killed at change {number}"
        assert losses(folder / "one", "sft") == losses(tmp_path / f"reference-{new}" / "one", "sft")
        if len(history) == 2:
            assert not done, "it was made before and is brought back"
        done.clear()
        one_stage(folder, old).run()
        assert not done, f"killed at change {number}: the old result could not be brought back"
        assert state(folder) == results[old]
        assert losses(folder / "one", "sft") == losses(tmp_path / f"reference-{old}" / "one", "sft")
        assert not list((folder / "one").glob(f"*/{OWN_EVENTS}"))
        assert not list((folder / "one").glob(f"**/{GONE}*"))
        shutil.rmtree(folder)
        number += 1
    assert number > (20 if len(history) == 1 else 12), "there were fewer changes to be killed at than there are"


def test_a_manifest_and_a_summary_stay_readable_through_it_all(tmp_path, monkeypatch):
    install(monkeypatch)
    one_stage(tmp_path / "runs", 1).run()
    for number in range(4, 40, 7):
        killed_at(one_stage(tmp_path / "runs", 2 + number), number)
        for name in ("manifest.json", "summary.json"):
            assert json.loads((tmp_path / "runs" / "one" / name).read_text(encoding="utf-8"))["run"] == "one"
