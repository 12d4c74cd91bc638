"""Runs seen from outside: what there is, how two differ, where a file came from, and what may go."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from rlhf.errors import ConfigError
from rlhf.files import write_text
from rlhf.models.adapter_base import record_base, weights_hash
from rlhf.pipeline.archive import FOLDER, GONE, previous_of
from rlhf.pipeline.artifacts import RECORD, Artifact
from rlhf.pipeline.lineage import State, lineage
from rlhf.pipeline.lock import locked
from rlhf.pipeline.manifest import summary
from rlhf.pipeline.run_comparison import compare_runs, words_for
from rlhf.pipeline.runs import LEFT, find_run, look_at, prune, run_folders, size_of
from tests.fixtures.cheap_stages import install, make, pipeline_of, restored


@pytest.fixture(scope="module")
def again(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        install(patch)
        pipeline_of(folder).run()
        pipeline_of(folder, name="other", sft__epochs=9, seed=4).run()
    return restored(folder)


@pytest.fixture
def runs(again, monkeypatch) -> Path:
    """Two finished runs, ``loop`` and ``other``; more of them train nothing either."""
    install(monkeypatch)
    return again() / "runs"


def test_runs_are_found_by_folder_and_by_name(runs):
    (runs / "notes").mkdir()
    (runs / f"{GONE}old" / "x").mkdir(parents=True)
    (runs / f"{GONE}old" / "recipe.yaml").touch()
    assert [run.name for run in run_folders(runs)] == ["loop", "other"]
    assert run_folders(runs / "loop") == [runs / "loop"]
    assert find_run("loop", runs) == find_run(str(runs / "loop"), Path("elsewhere")) == runs / "loop"
    with pytest.raises(ConfigError, match=r"'lop' .*'loop'.*loop, other"):
        find_run("lop", runs)
    with pytest.raises(ConfigError, match=r"absent.*--runs"):
        run_folders(runs / "absent")


def test_a_run_is_told_stage_by_stage(runs):
    (runs / "loop" / "ppo" / RECORD).unlink()
    (runs / "loop" / "ppo" / "checkpoint-00000012").mkdir()
    shutil.rmtree(runs / "loop" / "evaluation")
    run_summary = look_at(runs / "loop")
    assert {stage.name: stage.status for stage in run_summary.stages} == {
        **dict.fromkeys(("world", "sft", "pairs", "reward", "alone"), "finished"),
        "ppo": "unfinished",
        "evaluation": "not begun",
    }
    assert (run_summary.num_finished, len(run_summary.stages), run_summary.running) == (5, 7, False)
    assert next(stage for stage in run_summary.stages if stage.name == "ppo").checkpoints == ("checkpoint-00000012",)
    assert run_summary.result.startswith("made "), "without an evaluation the last finished stage speaks"
    assert run_summary.bytes == size_of(runs / "loop") > 1000
    with locked(runs / "loop"):
        assert look_at(runs / "loop").running
    assert json.loads(json.dumps(run_summary.to_dict()))["stages"][0]["name"] == "world"


def evaluated(policy: str, judge: str, title: str, rate: float) -> dict:
    return {
        "policy": policy, "baseline": "sft", "judge": judge, "verdict": "good", "verdict_title": title,
        "win_rate": rate, "win_rate_low": rate - 0.03, "win_rate_high": rate + 0.03, "kl": 1.0,
    }  # fmt: skip


def test_every_evaluation_speaks_for_a_run_and_says_of_what_it_speaks(runs):
    path = runs / "loop" / "summary.json"
    told = {
        "one": evaluated("ppo", "a:judge", "The model became better", 0.91),
        "two": evaluated("dpo", "b:judge", "No difference could be shown", 0.51),
    }
    path.write_text(json.dumps(json.loads(path.read_text()) | {"evaluations": told, "win_rate": 0.91}))
    assert look_at(runs / "loop").result == (
        "ppo against sft by a:judge: The model became better, win rate 0.910 [0.880, 0.940]; "
        "dpo against sft by b:judge: No difference could be shown, win rate 0.510 [0.480, 0.540]"
    )
    shown = {name: a for name, a, _ in compare_runs(runs / "loop", runs / "other").headlines}
    assert (shown["one: win_rate"], shown["two: win_rate"]) == (0.91, 0.51)
    assert shown["two: verdict_title"] == "No difference could be shown"
    assert shown["one: compared"] == "ppo / sft / a:judge"
    assert words_for("two: win_rate") == "two: win rate"
    assert "win_rate" not in shown, "it would stand twice"


def test_what_several_evaluations_measured_is_nobodys_at_the_top_of_a_summary(runs):
    def evaluation(policy, rate):
        metrics = evaluated(policy, "a:judge", "The model became better", rate)
        return replace(Artifact.read(runs / "loop" / "evaluation"), kind="evaluate", metrics=metrics)

    one = summary(runs / "loop", {"evaluation": evaluation("ppo", 0.9)})
    assert (one["win_rate"], one["evaluations"]["evaluation"]["policy"]) == (0.9, "ppo")
    two = summary(runs / "loop", {"evaluation": evaluation("ppo", 0.9), "last": evaluation("dpo", 0.6)})
    assert [two[name] for name in ("win_rate", "win_rate_low", "kl", "gold_after")] == [None] * 4
    assert {name: each["win_rate"] for name, each in two["evaluations"].items()} == {"evaluation": 0.9, "last": 0.6}
    assert two["evaluations"]["last"]["verdict_title"] == "The model became better"


@pytest.mark.parametrize("name", ["recipe.yaml", "summary.json", "events.jsonl", f"sft/{RECORD}"])
@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"[1]", b"stages: 3"])
def test_a_damaged_run_can_still_be_looked_at(runs, name, content):
    path = runs / "loop" / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert look_at(runs / "loop").name == "loop"
    assert compare_runs(runs / "loop", runs / "other").runs == ("loop", "other")


def test_two_runs_differ_in_settings_and_results(runs):
    comparison = compare_runs(runs / "loop", runs / "other")
    assert ("stages.sft.epochs", "3.0", "9.0") in comparison.settings
    assert ("seed", "0", "4") in comparison.settings
    assert not [place for place, *_ in comparison.settings if place in ("name", "output_dir")]
    results = {name: (a, b) for name, a, b in comparison.results}
    assert results["sft: digest"][0] != results["sft: digest"][1]
    assert comparison.to_dict()["settings"]["stages.sft.epochs"] == ["3.0", "9.0"]
    assert compare_runs(runs / "loop", runs / "loop").settings == ()


def test_the_same_settings_on_other_data_are_a_difference(runs):
    (runs.parent / "b").mkdir()
    write_text(runs.parent / "sft.jsonl", '{"prompt": "a", "completion": "other"}\n')
    pipeline_of(runs.parent, output_dir=str(runs.parent / "b")).run()
    comparison = compare_runs(runs / "loop", runs.parent / "b" / "loop")
    assert comparison.settings == ()
    assert [place for place, *_ in comparison.inputs] == ["stages.alone.data", "stages.sft.data"]
    (_, first, second), *_ = comparison.inputs
    assert first == Artifact.read(runs / "loop" / "alone").parents["data"].rpartition("@")[2] != second
    assert comparison.runs == (str(runs / "loop"), str(runs.parent / "b" / "loop")), (
        "one name, so the folders tell them apart"
    )
    assert comparison.to_dict()["inputs"]["stages.sft.data"] == [first, second]
    assert compare_runs(runs / "loop", runs / "other").inputs == ()


def test_scores_of_any_algorithm_have_words():
    assert words_for("grpo: grpo/score_first") == "grpo: mean score of the first rollout"
    assert words_for("reward: eval/accuracy") == "reward: eval/accuracy"


def test_pruning_tells_first_and_deletes_what_nobody_needs(runs):
    run = runs / "loop"
    pipeline_of(runs.parent, reward__epochs=7).run()
    aside = [p.folder for p in previous_of(run)]
    (run / "reward" / "checkpoint-00000010").mkdir()
    write_text(run / "reward" / "checkpoint-00000010" / "state.pt", "x" * 100)
    (run / ".manifest.json.abcd.tmp").write_text("half")
    write_text(run / f"{GONE}thing" / "file", "half")
    (run / "alone" / RECORD).unlink()
    (run / "alone" / "checkpoint-00000010").mkdir()
    told = prune([run])
    assert {item.path for item in told.removable} == {
        *aside,
        run / "reward" / "checkpoint-00000010",
        run / ".manifest.json.abcd.tmp",
        run / f"{GONE}thing",
    }
    assert sum(item.why == LEFT for item in told.removable) == 2
    assert all(item.path.exists() for item in told.removable), "nothing was asked to go"
    before = size_of(run)
    gone = prune([run], delete=True)
    assert gone.removable == told.removable
    assert gone.bytes == told.bytes
    assert before - size_of(run) >= gone.bytes
    assert not (run / FOLDER).exists()
    assert (run / "alone" / "checkpoint-00000010").exists(), "an unfinished stage goes on from it"
    assert prune([run]).removable == ()
    assert (run / "reward" / "model" / "model.safetensors").exists()


def test_whole_runs_go_only_when_asked_and_never_one_in_use(runs):
    with locked(runs / "other"):
        pruning = prune([runs / "loop", runs / "other"], whole=True, delete=True)
    assert pruning.busy == ("other",)
    assert sorted(path.name for path in runs.iterdir()) == ["other"]


def test_what_a_killed_pruning_left_is_pruned_later(runs):
    write_text(runs / f"{GONE}old" / "recipe.yaml", "x")
    prune([runs / "loop"], delete=True)
    assert not (runs / f"{GONE}old").exists()


def places(origin) -> set[str]:
    return {f"{origin.what} {Path(origin.name).name}"}.union(*map(places, origin.made_from))


def test_a_weight_file_leads_back_to_data_files_and_recipe(runs):
    origins = lineage(runs / "loop" / "ppo" / "model" / "model.safetensors")
    assert origins.is_whole
    assert places(origins) >= {
        "file model.safetensors",
        "stage ppo",
        "stage reward",
        "stage pairs",
        "stage sft",
        "stage world",
        "input sft.jsonl",
        "recipe recipe.yaml",
    }
    assert "stage alone" not in places(origins)
    text = origins.to_text()
    assert "data: input" in text
    assert str(runs.parent / "sft.jsonl") in text
    assert json.loads(json.dumps(origins.to_dict()))["made_from"][0]["name"] == "ppo"


def test_a_copy_elsewhere_is_known_by_its_content(runs):
    copy = runs.parent / "elsewhere" / "renamed.safetensors"
    copy.parent.mkdir()
    shutil.copy(runs / "loop" / "reward" / "model" / "model.safetensors", copy)
    origins = lineage(copy, runs=runs)
    assert origins.about == "a copy of model/model.safetensors"
    assert origins.made_from[0].name == "reward"
    assert lineage(copy.parent, runs=runs).made_from[0].name == "reward"
    copy.write_text("trained elsewhere")
    with pytest.raises(ConfigError, match=r"renamed\.safetensors .*runs .*--runs"):
        lineage(copy, runs=runs)
    with pytest.raises(ConfigError, match="no file or folder"):
        lineage(runs.parent / "absent")
    (runs.parent / "empty").mkdir()
    with pytest.raises(ConfigError, match="holds no weight files"):
        lineage(runs.parent / "empty", runs=runs)


def test_what_changed_since_is_said(runs):
    weights = runs / "loop" / "reward" / "model" / "model.safetensors"
    (runs.parent / "sft.jsonl").write_text("other rows")
    origins = lineage(weights)
    assert not origins.is_whole
    assert f"input {runs.parent / 'sft.jsonl'}" in origins.to_text()
    assert origins.state is State.SAME
    weights.write_text("other bits")
    origins = lineage(weights)
    assert origins.state is State.CHANGED
    assert "changed: model/model.safetensors" in origins.made_from[0].about
    (runs.parent / "sft.jsonl").unlink()
    assert "NOT THERE any more" in lineage(weights).to_text()


def test_an_adapter_s_base_is_held_against_the_hash_beside_the_adapter(tmp_path, monkeypatch):
    def make_adapter(stage, at):
        outcome = make(stage, at)
        write_text(at.folder / "model" / "adapter_config.json", '{"base_model_name_or_path": "somewhere"}')
        record_base(at.folder / "model", str(at.path("stage:sft")))
        return outcome

    install(monkeypatch, ppo=make_adapter)
    pipeline_of(tmp_path).run()
    copy = shutil.copytree(tmp_path / "runs" / "loop", tmp_path / "moved" / "loop")
    shutil.rmtree(tmp_path / "runs")
    origins = lineage(copy / "ppo" / "model")
    assert f"base {copy / 'sft' / 'model'}" in origins.to_text(), "the one that moved with it"
    assert origins.is_whole
    write_text(copy / "sft" / "model" / "model.safetensors", "other weights")
    [base] = [origin for origin in lineage(copy / "ppo" / "model").made_from[0].made_from if origin.what == "base"]
    assert base.state is State.CHANGED
    shutil.rmtree(copy / "sft" / "model")
    [base] = [origin for origin in lineage(copy / "ppo" / "model").made_from[0].made_from if origin.what == "base"]
    assert base.state is State.GONE
    (copy / "ppo" / "model" / "rlhf_base.json").unlink()
    [base] = [origin for origin in lineage(copy / "ppo" / "model").made_from[0].made_from if origin.what == "base"]
    assert base.state is State.UNKNOWN


def test_a_base_outside_the_run_that_is_gone_is_told_with_its_hash(tmp_path, monkeypatch):
    base = tmp_path / "base"
    write_text(base / "model.safetensors", "weights")
    digest = weights_hash(base)

    def make_adapter(stage, at):
        outcome = make(stage, at)
        write_text(at.folder / "model" / "adapter_config.json", "{}")
        record_base(at.folder / "model", str(base))
        return outcome

    install(monkeypatch, ppo=make_adapter)
    pipeline_of(tmp_path).run()
    model = tmp_path / "runs" / "loop" / "ppo" / "model"
    for state in (State.SAME, State.GONE):
        [actual] = [origin for origin in lineage(model).made_from[0].made_from if origin.what == "base"]
        assert (actual.name, actual.state, actual.sha256) == (str(base), state, digest)
        shutil.rmtree(base, ignore_errors=True)
    assert not lineage(model).is_whole


def test_what_was_moved_aside_has_its_own_lineage(runs):
    pipeline_of(runs.parent, sft__epochs=5).run()
    [aside] = previous_of(runs / "loop", "reward")
    origins = lineage(aside.folder / "model")
    assert origins.is_whole
    [model] = [origin for origin in origins.made_from[0].made_from if origin.place == "model"]
    assert "sft-" in model.name, "the model it came from was moved aside too, and is found there"
    shutil.rmtree(previous_of(runs / "loop", "sft")[0].folder)
    assert "stage sft" in lineage(aside.folder / "model").to_text()
    assert not lineage(aside.folder / "model").is_whole


def test_a_checkpoint_of_an_unfinished_stage_has_an_origin(tmp_path, monkeypatch):
    def breaks(stage, at):
        write_text(at.folder / "checkpoint-00000004" / "state.pt", "state")
        raise KeyError("a bug")

    install(monkeypatch, reward=breaks)
    with pytest.raises(KeyError, match="a bug"):
        pipeline_of(tmp_path).run()
    origins = lineage(tmp_path / "runs" / "loop" / "reward" / "checkpoint-00000004" / "state.pt")
    assert origins.state is State.UNKNOWN
    assert "unfinished" in origins.made_from[0].about
    assert {"stage pairs", "stage sft", "input sft.jsonl"} <= places(origins)


def test_a_stage_that_is_read_twice_is_told_once(runs):
    text = lineage(runs / "loop" / "ppo").to_text()
    assert text.count("input " + str(runs.parent / "sft.jsonl")) == 1
    assert text.count("see above") == 3
    assert text.count("recipe.yaml") == 1


def test_an_input_of_which_only_the_name_is_known_is_told_too(tmp_path, monkeypatch):
    install(monkeypatch)
    pipeline_of(tmp_path, alone__model="org/some-model").run(only_for="alone")
    origins = lineage(tmp_path / "runs" / "loop" / "alone")
    [hub] = [origin for origin in origins.made_from if origin.name == "org/some-model"]
    assert hub.state is State.UNKNOWN
    assert hub.place == "model.path"


def test_prune_keeps_the_only_finished_result_of_a_stage_that_is_being_made_anew(runs):
    pipeline_of(runs.parent, sft__epochs=2).run()
    (earlier,) = previous_of(runs / "loop", "sft")
    (runs / "loop" / "sft" / RECORD).unlink()  # as if it were under way
    prune([runs / "loop"], delete=True)
    assert earlier.folder.is_dir()


def test_prune_keeps_checkpoints_that_were_asked_for(tmp_path, monkeypatch):
    install(monkeypatch)
    for name, settings in (("kept", {"sft__keep_every": 5}), ("plain", {})):
        pipeline_of(tmp_path, name=name, **settings).run()
        (tmp_path / "runs" / name / "sft" / "checkpoint-00000010").mkdir()
    gone = {
        item.path for item in prune([tmp_path / "runs" / name for name in ("kept", "plain")], delete=True).removable
    }
    assert tmp_path / "runs" / "plain" / "sft" / "checkpoint-00000010" in gone
    assert (tmp_path / "runs" / "kept" / "sft" / "checkpoint-00000010").is_dir()
