"""What a run does with each stage and why: after every kind of change, and with every option."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

from rlhf.errors import ConfigError, UnknownNameError
from rlhf.pipeline import code_hash, plan
from rlhf.pipeline.artifacts import RECORD, STARTED, Artifact
from rlhf.pipeline.plan import Action
from tests.fixtures.cheap_stages import dependants, install, make, pipeline_of, restored

ORDER = ["world", "sft", "pairs", "reward", "ppo", "alone", "evaluation"]


@pytest.fixture
def done(monkeypatch):
    return install(monkeypatch)


@pytest.fixture(scope="module")
def again(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        install(patch)
        pipeline_of(folder).run()
    return restored(folder)


@pytest.fixture
def finished(again, done) -> Path:
    """A folder with a finished run."""
    return again()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def planned(pipeline, **options) -> dict[str, tuple[str, str]]:
    return {p.name: (str(p.action), "; ".join(p.reasons)) for p in pipeline.plan(**options)}


def test_everything_is_new_the_first_time_and_kept_the_second(tmp_path, done):
    assert {action for action, _ in planned(pipeline_of(tmp_path)).values()} == {"new"}
    pipeline_of(tmp_path).run()
    assert done == ORDER
    assert planned(pipeline_of(tmp_path)) == dict.fromkeys(ORDER, ("kept", ""))


def test_planning_changes_nothing_on_disk(tmp_path, done):
    pipeline_of(tmp_path).plan(force=True)
    assert not (tmp_path / "runs").exists()
    pipeline_of(tmp_path).run()
    before = contents(tmp_path)
    pipeline_of(tmp_path, sft__epochs=9).plan()
    pipeline_of(tmp_path).plan(force=True)
    pipeline_of(tmp_path).plan(from_stage="sft")
    assert contents(tmp_path) == before


def test_a_second_run_leaves_every_file_as_it_is(tmp_path, done):
    first = pipeline_of(tmp_path).run()
    before = contents(tmp_path)
    second = pipeline_of(tmp_path)
    assert second.run() == first
    before.pop("runs/loop/.lock"), (after := contents(tmp_path)).pop("runs/loop/.lock")
    assert after == before
    assert done == ORDER
    assert list(second.artifacts) == ORDER


def test_a_run_plans_each_stage_once(tmp_path, done, monkeypatch):
    planned_stages = []
    kept = plan.made_from
    monkeypatch.setattr(plan, "made_from", lambda name, *given: planned_stages.append(name) or kept(name, *given))
    pipeline_of(tmp_path).run()
    assert planned_stages == ORDER
    planned_stages.clear()
    pipeline_of(tmp_path, evaluation__limit=3).run()
    assert planned_stages == ORDER


@pytest.mark.parametrize("name", ["report.html", "summary.json", "manifest.json", "recipe.yaml"])
def test_what_is_absent_is_written_again_without_running_anything(finished, done, name):
    (finished / "runs" / "loop" / name).unlink()
    pipeline_of(finished).run()
    assert (finished / "runs" / "loop" / name).stat().st_size > 0
    assert done == []


CHANGES = {
    "world__split_seed": (1, "split_seed was 0, is 1"),
    "world__seed": (5, "seed was 0, is 5"),
    "sft__learning_rate": (1e-3, "learning_rate was 2e-05, is 0.001"),
    "sft__betas": ([0.9, 0.95], "betas was [0.9, 0.999], is [0.9, 0.95]"),
    "sft__model": ({"path": "embedded", "lora": {"rank": 4}}, "model.lora was null, is {'rank': 4, 'alpha': 32.0"),
    "pairs__noise": (0.2, "noise was 0.1, is 0.2"),
    "pairs__annotator": ("json:loads", "annotator was rlhf.data.world.pairs:annotate, is json:loads"),
    "reward__num_heads": (2, "num_heads was 1, is 2"),
    "reward__model": ("embedded", "model.path was stage:sft, is embedded"),
    "ppo__kl__coef": (0.2, "kl.coef was 0.1, is 0.2"),
    "ppo__reward": (["stage:reward", "rules"], "reward.1 was not there, is {"),
    "alone__epochs": (2, "epochs was 1.0, is 2.0"),
    "evaluation__limit": (3, "limit was null, is 3"),
    "evaluation__judge": ("rules", "judge.kind was function, is rules"),
}


@pytest.mark.parametrize("place", CHANGES)
def test_one_changed_key_redoes_its_stage_and_what_depends_on_it(finished, done, place):
    value, reason = CHANGES[place]
    changed = pipeline_of(finished, **{place: value})
    stage = place.partition("__")[0]
    planned_stages = planned(changed)
    affected = dependants(changed.recipe, stage)
    assert {name for name, (action, _) in planned_stages.items() if action == "done again"} == affected
    assert {name for name, (action, _) in planned_stages.items() if action == "kept"} == set(ORDER) - affected
    assert reason in planned_stages[stage][1]
    for name in affected - {stage}:
        assert "is done again" in planned_stages[name][1]
        assert planned_stages[name][1].startswith("stage ")
    changed.run()
    assert done == [name for name in ORDER if name in affected]


@pytest.mark.parametrize(
    "change",
    [
        {"sft__save_every": 3},
        {"sft__keep_checkpoints": 5},
        {"ppo__microbatch_tokens": 99},
        {"description": "other"},
    ],
    ids=str,
)
def test_what_decides_nothing_redoes_nothing_but_is_written_down(finished, done, change):
    pipeline_of(finished, **change).run()
    assert done == []
    assert str(next(iter(change.values()))) in (finished / "runs" / "loop" / "recipe.yaml").read_text(encoding="utf-8")


def test_another_content_of_a_data_file_is_told_with_both_hashes(finished, done):
    data = finished / "sft.jsonl"
    before = hashlib.sha256(data.read_bytes()).hexdigest()[:6]
    data.write_text('{"prompt": "a", "completion": "c"}\n')
    after = hashlib.sha256(data.read_bytes()).hexdigest()[:6]
    why = f"{data} has other content (sha256 {before}.. -> {after}..)"
    planned_stages = planned(pipeline_of(finished))
    assert planned_stages["sft"] == ("done again", why)
    assert planned_stages["alone"] == ("done again", why)
    assert planned_stages["world"] == ("kept", "")
    pipeline = pipeline_of(finished)
    data.unlink()
    assert planned(pipeline)["sft"] == ("done again", f"{data} is not there any more")


def test_a_missing_or_shortened_file_of_a_result_is_a_reason(finished, done):
    model = finished / "runs" / "loop" / "reward" / "model" / "model.safetensors"
    whole = model.read_bytes()
    model.write_bytes(whole[:10])
    assert planned(pipeline_of(finished))["reward"] == (
        "done again",
        "model/model.safetensors has 10 bytes and was written with 64",
    )
    model.unlink()
    planned_stages = planned(pipeline_of(finished))
    assert planned_stages["reward"] == ("done again", "a file is missing: model/model.safetensors")
    assert planned_stages["ppo"] == ("kept", "if stage reward comes out as it was")
    pipeline_of(finished).run()
    assert done == ["reward"], "it came out as it was, so nothing that was made from it is done again"
    assert model.read_bytes() == whole


def test_a_repaired_stage_that_came_out_otherwise_takes_its_dependants_with_it(tmp_path, monkeypatch):
    install(monkeypatch)
    pipeline_of(tmp_path).run()
    (tmp_path / "runs" / "loop" / "reward" / "model" / "model.safetensors").unlink()

    def otherwise(stage, at):
        outcome = make(stage, at)
        (at.folder / "model" / "weights").write_text("other bits")
        return outcome

    done = install(monkeypatch, reward=otherwise)
    pipeline_of(tmp_path).run()
    assert done == ["reward", "ppo", "evaluation"]


@pytest.fixture(scope="module")
def copied_library(tmp_path_factory):
    copy = tmp_path_factory.mktemp("library") / "rlhf"
    shutil.copytree(code_hash.ROOT, copy, ignore=shutil.ignore_patterns("__pycache__", "assets"))
    return copy


@pytest.fixture
def library(copied_library, monkeypatch):
    """A copy of the library's source, where a file can be changed; the running code stays, and the changes go afterwards."""
    monkeypatch.setattr(code_hash, "ROOT", copied_library)
    code_hash.code_of_modules.cache_clear()
    yield copied_library
    for file in copied_library.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        if text.endswith(EDIT):
            file.write_text(text[: text.index(EDIT)], encoding="utf-8")
    code_hash.code_of_modules.cache_clear()


EDIT = "\nCHANGED = True\n"


def edit(library: Path, *names: str) -> None:
    for name in names:
        with (library / name).open("a", encoding="utf-8") as file:
            file.write(EDIT)
    code_hash.code_of_modules.cache_clear()


@pytest.mark.parametrize(
    ("file", "affected"),
    [
        ("losses/policy.py", {"ppo"}),
        ("losses/reward.py", {"reward"}),
        ("data/world/judge.py", {"world", "pairs", "reward", "evaluation"}),
        ("training/sft.py", {"sft", "alone"}),
        ("models/score.py", {"sft", "pairs", "reward", "ppo", "alone", "evaluation"}),
    ],
)
def test_changed_code_redoes_the_stages_that_use_it(tmp_path, done, library, file, affected):
    pipeline_of(tmp_path).run()
    edit(library, file)
    planned_stages = planned(pipeline_of(tmp_path))
    for name in ORDER:
        assert (f"code changed: {file}" in planned_stages[name][1]) is (name in affected), (name, planned_stages[name])
    again = planned(pipeline_of(tmp_path), ignore_code=True)
    assert {action for action, _ in again.values()} == {"kept"}
    assert all((f"code changed: {file}, which --ignore-code lets pass" in again[name][1]) for name in affected)


def test_changed_code_that_decides_no_result_redoes_nothing(tmp_path, done, library):
    pipeline_of(tmp_path).run()
    edit(
        library,
        "losses/preference.py",  # of no stage of the recipe
        "pipeline/report/page.py",
        "cli/run.py",
        "config/training.py",
        "training/progress.py",
    )
    assert planned(pipeline_of(tmp_path)) == dict.fromkeys(ORDER, ("kept", ""))


def test_ignored_code_keeps_the_stage_and_its_dependants_run_after_run(tmp_path, done, library):
    pipeline_of(tmp_path).run()
    edit(library, "losses/reward.py", "losses/policy.py")
    pipeline_of(tmp_path).run(ignore_code=True)
    pipeline_of(tmp_path, evaluation__limit=2).run(ignore_code=True)
    assert done == [*ORDER, "evaluation"]
    pipeline_of(tmp_path, evaluation__limit=2).run()
    assert done[len(ORDER) + 1 :] == ["reward", "ppo", "evaluation"]


def test_a_setting_that_a_new_version_brings_counts_as_code(finished, done):
    path = finished / "runs" / "loop" / "alone" / RECORD
    record = json.loads(path.read_text())
    del record["settings"]["ema_decay"]
    record["settings"]["gone"] = 3
    path.write_text(json.dumps(record))
    why = "this version has no setting gone any more", "this version has a new setting ema_decay, null by default"
    alone = planned(pipeline_of(finished))["alone"]
    assert alone[0] == "done again"
    assert all(words in alone[1] for words in why)
    assert planned(pipeline_of(finished), ignore_code=True)["alone"][0] == "kept"
    assert planned(pipeline_of(finished, alone__ema_decay=0.5), ignore_code=True)["alone"][0] == "done again"


def test_a_record_of_an_older_version_says_so(finished, done):
    path = finished / "runs" / "loop" / "alone" / RECORD
    record = json.loads(path.read_text())
    for key in ("settings", "sizes", "code", "contents", "asked", "finished", "versions"):
        del record[key]
    path.write_text(json.dumps(record))
    alone = planned(pipeline_of(finished))["alone"]
    assert alone == ("done again", "it was made by an older version, which did not record what from")


def test_a_broken_off_stage_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    def breaks(stage, at):
        if not (at.folder / "checkpoint-00000120").exists():
            (at.folder / "checkpoint-00000040").mkdir()
            (at.folder / "checkpoint-00000120").mkdir()
            raise KeyError("a bug")
        return make(stage, at)

    done = install(monkeypatch, reward=breaks)
    with pytest.raises(KeyError, match="a bug"):
        pipeline_of(tmp_path).run()
    planned_stages = planned(pipeline_of(tmp_path))
    assert planned_stages["reward"] == ("goes on", "unfinished, from step 120")
    assert planned_stages["ppo"][0] == "new"
    assert {p.name: p.key for p in pipeline_of(tmp_path).plan()}.keys() == set(ORDER)
    assert planned(pipeline_of(tmp_path, reward__epochs=7))["reward"] == ("done again", "epochs was 1.0, is 7.0")
    foreseen = {p.name: p.key for p in pipeline_of(tmp_path).plan()}
    pipeline_of(tmp_path).run()
    assert done[done.index("reward") :] == ["reward", "reward", "ppo", "alone", "evaluation"]
    assert {name: Artifact.read(tmp_path / "runs" / "loop" / name).key for name in ORDER} == foreseen
    folder = tmp_path / "runs" / "loop" / "reward"
    assert not list(folder.glob("checkpoint-*"))
    assert not (folder / STARTED).exists()


def test_checkpoints_at_multiples_of_keep_every_stay(tmp_path, monkeypatch):
    def saves(stage, at):
        for step in (50, 100, 130):
            (at.folder / f"checkpoint-{step:08d}").mkdir()
        return make(stage, at)

    install(monkeypatch, sft=saves)
    pipeline_of(tmp_path, sft__keep_every=50).run()
    left = [p.name for p in sorted((tmp_path / "runs" / "loop" / "sft").glob("checkpoint-*"))]
    assert left == ["checkpoint-00000050", "checkpoint-00000100"]
    assert not list((tmp_path / "runs" / "loop" / "alone").glob("checkpoint-*"))


def test_from_a_stage_redoes_it_and_what_depends_on_it_and_says_so(finished, done):
    planned_stages = planned(pipeline_of(finished), from_stage="reward")
    assert planned_stages["reward"] == ("done again", "asked for by --from reward")
    assert planned_stages["ppo"] == ("done again", "stage reward is done again")
    assert {name for name, (action, _) in planned_stages.items() if action == "kept"} == {
        "world",
        "sft",
        "pairs",
        "alone",
    }
    pipeline_of(finished).run(from_stage="reward")
    assert done == ["reward", "ppo", "evaluation"]
    assert not (finished / "runs" / "loop" / plan.REQUEST).exists()


def test_force_redoes_everything_every_time(tmp_path, done):
    pipeline_of(tmp_path).run(force=True)
    pipeline_of(tmp_path).run(force=True)
    assert done == ORDER * 2
    assert planned(pipeline_of(tmp_path), force=True)["world"] == ("done again", "asked for by --force")
    assert planned(pipeline_of(tmp_path))["world"] == ("kept", "")


def test_until_stops_after_a_stage_and_leaves_later_ones_alone(tmp_path, done):
    pipeline_of(tmp_path).run(until="pairs")
    assert done == ["world", "sft", "pairs"]
    assert list(planned(pipeline_of(tmp_path), until="pairs")) == ["world", "sft", "pairs"]
    pipeline_of(tmp_path).run()
    assert done == ORDER
    pipeline = pipeline_of(tmp_path, sft__epochs=5)
    pipeline.run(until="sft")
    assert done == [*ORDER, "sft"]
    manifest = json.loads((tmp_path / "runs" / "loop" / "manifest.json").read_text())
    assert list(manifest["artifacts"]) == ORDER, "what was not looked at is there as it was"


def test_only_for_a_stage_runs_what_it_needs(tmp_path, done):
    pipeline_of(tmp_path).run(only_for="reward")
    assert done == ["world", "sft", "pairs", "reward"]


def test_stages_that_do_not_exist_are_refused_by_name(tmp_path, done):
    with pytest.raises(UnknownNameError, match=r"'rewrd'.*'reward' or"):
        pipeline_of(tmp_path).run(from_stage="rewrd")
    with pytest.raises(UnknownNameError, match="'everything'"):
        pipeline_of(tmp_path).run(until="everything")
    with pytest.raises(ConfigError, match=r"--from ppo .*--until sft"):
        pipeline_of(tmp_path).run(from_stage="ppo", until="sft")
    assert not done


def test_a_broken_off_force_goes_on_with_the_same_command(tmp_path, monkeypatch):
    broken = True

    def breaks(stage, at):
        if broken:
            raise KeyError("a bug")
        return make(stage, at)

    install(monkeypatch)
    pipeline_of(tmp_path).run()
    done = install(monkeypatch, ppo=breaks)
    with pytest.raises(KeyError, match="a bug"):
        pipeline_of(tmp_path).run(force=True)
    planned_stages = planned(pipeline_of(tmp_path), force=True)
    assert [planned_stages[name][0] for name in ORDER] == ["kept"] * 4 + ["goes on", "done again", "done again"]
    assert planned(pipeline_of(tmp_path))["ppo"][0] == "brought back", "without --force, what is there is good enough"
    broken = False
    done.clear()
    pipeline_of(tmp_path).run(force=True)
    assert done == ["ppo", "alone", "evaluation"]
    done.clear()
    pipeline_of(tmp_path).run(force=True)
    assert done == ORDER, "the request was answered; this is another one"


def test_a_user_s_file_function_and_argument_are_inputs(tmp_path, done):
    function, words = tmp_path / "mine.py", tmp_path / "words.txt"
    function.write_text("def score(prompts, completions, words):\n    return [0.0] * len(prompts)\n")
    words.write_text("good\n")
    reward = {"kind": "function", "function": f"{function}:score", "arguments": {"words": str(words), "mode": "runs"}}
    os.makedirs(tmp_path / "runs", exist_ok=True)
    pipeline_of(tmp_path, ppo__reward=reward).run()
    parents = Artifact.read(tmp_path / "runs" / "loop" / "ppo").parents
    assert {"reward.0.function", "reward.0.arguments.words"} <= parents.keys()
    assert "reward.0.arguments.mode" not in parents, "a folder of that name is not an input of a function"
    words.write_text("bad\n")
    action, why = planned(pipeline_of(tmp_path, ppo__reward=reward))["ppo"]
    assert action == "done again"
    assert f"{words} has other content" in why


def test_the_line_of_a_stage_is_what_a_run_prints(tmp_path, done):
    from io import StringIO

    from rich.console import Console

    pipeline_of(tmp_path).run()
    changed = pipeline_of(tmp_path, reward__betas=[0.8, 0.9])
    lines = [p.line for p in changed.plan()]
    out = StringIO()
    changed.log.console = Console(file=out, width=300)
    changed.run()
    printed = [line.rstrip() for line in out.getvalue().splitlines()]
    assert printed[: len(lines)] == lines
    assert "reward       done again: betas was [0.9, 0.999], is [0.8, 0.9]" in lines
    out.truncate(0)
    changed.run()
    assert "Nothing to do: all 7 stages are as the recipe asks." in out.getvalue()


def test_actions_have_words():
    assert {str(action) for action in Action} == {"kept", "brought back", "goes on", "done again", "new"}
