"""What training saw of the judge and the prompts that measure it, and how that is said."""

from __future__ import annotations

import json
import shutil

import pytest

from rlhf.config.recipe import RecipeConfig
from rlhf.pipeline.leakage import Leakage, recorded_leakage
from rlhf.pipeline.report.run_data import read_run
from rlhf.pipeline.run import Pipeline
from rlhf.pipeline.validate import find_problems
from rlhf.pipeline.validate.independence import find_leakage, leakage_in_recipe
from rlhf.pipeline.validate.seen_prompts import count_seen_prompts
from rlhf.training.log import read_jsonl
from tests.fixtures.cheap_stages import install, pipeline_of

PAIRS = "pairs.jsonl"


def recipe_of(**evaluation):
    reward_model = {"kind": "learned", "source": "stage:reward"}
    return {
        "name": "seen",
        "stages": {
            "sft": {"kind": "sft", "model": "embedded", "data": "sft.jsonl"},
            "reward": {"kind": "reward", "model": "stage:sft", "data": PAIRS},
            "ppo": {
                "kind": "ppo", "model": "stage:sft", "prompts": PAIRS, "reward": [{**reward_model, "weight": 2.0}, "rules"],
            },
            "dpo": {"kind": "dpo", "model": "stage:ppo", "data": ["more.jsonl", PAIRS]},
            "evaluate": {
                "kind": "evaluate", "policy": "stage:ppo", "baseline": "stage:sft", "prompts": "new.jsonl", "judge": "mine.py:judge",
                **evaluation,
            },
        },
    }  # fmt: skip


def seen(**evaluation):
    recipe = RecipeConfig.of(recipe_of(**evaluation))
    return find_leakage(recipe.stages, recipe.stages["evaluate"])


def test_an_independent_evaluation_has_nothing_to_confess():
    leakage = seen()
    assert leakage == Leakage()
    assert leakage.warnings == []
    assert leakage.about_prompts == "prompts of a file that no stage learned from"
    assert leakage.about_judge == "which no policy was trained against"


@pytest.mark.parametrize(
    "judge", ["stage:reward", "rules", {"kind": "learned", "source": "stage:reward", "name": "other"}]
)
def test_a_judge_that_is_a_part_of_the_reward_is_told_whatever_its_weight_and_name(judge):
    leakage = seen(judge=judge)
    assert leakage.judge == ("ppo",)
    [warning] = leakage.warnings
    assert "The judge is the reward that stage ppo trained against" in warning
    assert "Judge by something that no stage has seen" in warning
    assert leakage.about_judge == "which is what stage ppo trained against"


def test_prompts_of_every_stage_behind_the_policy_are_told_by_name():
    leakage = seen(policy="stage:dpo", prompts=["new.jsonl", PAIRS])
    assert leakage.prompts == ("dpo", "ppo")
    [warning] = leakage.warnings
    assert "The prompts are those that stages dpo and ppo learned from" in warning
    assert "Hold prompts out" in warning
    assert leakage.about_prompts == "prompts that stages dpo and ppo learned from"


def test_a_reward_model_trained_on_the_pairs_that_the_policy_learned_from_is_no_independent_judge():
    leakage = seen(policy="stage:dpo", judge="stage:reward")
    assert (leakage.judge, leakage.judge_rows) == (("ppo",), ("dpo",))
    assert "shares their mistakes" in leakage.warnings[1]
    assert seen(judge="other/model").warnings == []


def test_a_written_recipe_says_the_same_and_half_of_one_says_nothing():
    written = recipe_of(judge="stage:reward")
    assert leakage_in_recipe(written, "evaluate").judge == ("ppo",)
    assert leakage_in_recipe(written, "ppo") is None
    assert leakage_in_recipe({}, "evaluate") is None
    written["stages"]["ppo"]["of_another_version"] = 1
    assert leakage_in_recipe(written, "evaluate") is None, "what the stage that can't be read trained on is not known"


# Policies, baselines and judges that are folders ---------------------------------------------------


@pytest.fixture
def old(tmp_path, monkeypatch):
    """A run that has been: sft, reward and ppo, all from files of this folder."""
    install(monkeypatch)
    write(tmp_path / "asked.jsonl", [{"prompt": f"Say {n}"} for n in range(4)])
    write(tmp_path / "pairs.jsonl", [{"prompt": "q", "chosen": "a", "rejected": "b"}])
    pipeline_of(tmp_path, ppo__prompts=str(tmp_path / "asked.jsonl"), reward__data=str(tmp_path / "pairs.jsonl")).run(
        until="ppo"
    )
    return tmp_path / "runs" / "loop"


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def measured(old, folder, *, run=True, **evaluation):
    """What a recipe of one evaluation, elsewhere, finds of the old run's folders."""
    stage = {
        "kind": "evaluate", "policy": str(old / "ppo" / "model"), "baseline": str(old / "sft" / "model"),
        "judge": "rlhf.evaluation.judges:world_judge", "prompts": write(folder / "new.jsonl", [{"prompt": "New"}]), **evaluation,
    }  # fmt: skip
    recipe = RecipeConfig.of({"name": "later", "output_dir": str(folder / "runs"), "stages": {"evaluate": stage}})
    if run:
        Pipeline(recipe).run()
        return recorded_leakage(folder / "runs" / "later" / "evaluate")
    return recipe


def test_a_policy_and_its_own_reward_given_as_folders_are_known_by_their_records(old, tmp_path):
    rows = [
        {"prompt": "Say 1"},
        {"prompt": [{"role": "user", "content": "Say 2"}]},
        {"prompt": "New"},
        {"prompt": "New"},
    ]
    given = {"judge": str(old / "reward" / "model"), "prompts": write(tmp_path / "renamed.jsonl", rows)}
    seen = measured(old, tmp_path, **given)
    assert seen.judge == (f"ppo of {old}",)
    assert seen.prompts == (f"ppo of {old}",)
    assert (seen.num_trained, seen.num_prompts, seen.num_repeated) == (2, 4, 1)
    assert seen.unknown == ()
    assert seen.spoils
    run = tmp_path / "runs" / "later"
    assert "2 of 4 prompts were trained on" in " ".join(seen.warnings)
    told = [e["message"] for e in read_jsonl(run / "events.jsonl") if e["event"] == "alarm"]
    assert told == seen.warnings, "on the console and among the report's alarms"
    checked = [p.message for p in find_problems(measured(old, tmp_path, run=False, **given)) if p.level == "warning"]
    assert set(seen.warnings) <= set(checked), "and from validate"
    (run / "evaluate" / "evaluation.json").write_text('{"win_rate": {"rate": 0.6}}')
    assert read_run(run).stages["evaluate"].seen == seen


def test_a_judge_that_began_from_the_policys_own_weights_is_told_by_lineage_and_by_copy(old, tmp_path, monkeypatch):
    other = {"kind": "reward", "model": str(old / "sft" / "model"), "data": write(tmp_path / "others.jsonl", [
        {"prompt": "o", "chosen": "a", "rejected": "b"}])}  # fmt: skip
    tree = {"name": "judging", "output_dir": str(tmp_path / "runs"), "stages": {"judge": other}}
    Pipeline(RecipeConfig.of(tree)).run()
    judge = tmp_path / "runs" / "judging" / "judge" / "model"
    seen = measured(old, tmp_path, judge=str(judge))
    assert (seen.judge, seen.judge_rows) == ((), ())
    assert seen.judge_as_policy == seen.judge_as_reward == f"stage sft of {old}"
    assert not seen.spoils
    (warning,) = seen.warnings
    assert "and so did the policy and its reward" in warning
    copy = shutil.copytree(judge, tmp_path / "copy")
    assert measured(old, tmp_path, judge=str(copy)) == seen, "found by its weights among the runs"


def test_a_judge_trained_on_the_rows_of_the_policys_reward_is_told(old, tmp_path):
    rows = shutil.copy(tmp_path / "pairs.jsonl", tmp_path / "same-rows.jsonl")
    other = {"kind": "reward", "model": {"init": {"model_type": "llama"}, "tokenizer": "embedded"}, "data": str(rows)}
    Pipeline(
        RecipeConfig.of({"name": "judging", "output_dir": str(tmp_path / "runs"), "stages": {"judge": other}})
    ).run()
    seen = measured(old, tmp_path, judge=str(tmp_path / "runs" / "judging" / "judge" / "model"))
    assert seen.judge_rows == (f"reward of {old}",)
    assert seen.judge_as_policy == ""


def test_what_has_no_record_is_unknown_and_is_said_to_be(old, tmp_path):
    place = tmp_path / "elsewhere"
    place.mkdir()
    for name in ("ppo", "reward"):
        shutil.copytree(old / name / "model", place / name)
    shutil.move(tmp_path / "runs", tmp_path / "gone")
    seen = measured(place.parent / "gone" / "loop", tmp_path, policy=str(place / "ppo"), judge=str(place / "reward"))
    assert [text.partition(" ")[0] for text in seen.unknown] == [str(place / "ppo"), str(place / "reward")]
    assert seen.warnings == []
    (note,) = seen.notes
    assert "unknown" in note
    assert seen.about_judge.endswith("as far as is recorded")
    events = read_jsonl(tmp_path / "runs" / "later" / "events.jsonl")
    assert note in [event["message"] for event in events if event["event"] == "note"]


def test_training_prompts_that_are_gone_are_unknown_unless_the_same_file_is_asked(old, tmp_path):
    same = shutil.copy(tmp_path / "asked.jsonl", tmp_path / "copy.jsonl")
    (tmp_path / "asked.jsonl").unlink()
    seen = measured(old, tmp_path, prompts=str(same))
    assert (seen.prompts, seen.num_trained, seen.num_prompts) == ((f"ppo of {old}",), 4, 4)
    assert "All 4 prompts" in seen.warnings[0]
    seen = measured(old, tmp_path)
    assert seen.prompts == ()
    assert "asked.jsonl" in seen.unknown[0]


def test_prompts_that_only_the_baseline_learned_from_are_told(old, tmp_path):
    given = {"policy": str(old / "sft" / "model"), "baseline": str(old / "ppo" / "model")}
    seen = measured(
        old, tmp_path, prompts=write(tmp_path / "half.jsonl", [{"prompt": "Say 1"}, {"prompt": "New"}]), **given
    )
    assert (seen.prompts, seen.baseline_prompts, seen.num_trained_baseline) == ((), (f"ppo of {old}",), 1)
    assert seen.warnings[0].startswith("1 of 2 prompts were trained on by the baseline")


def test_prompts_inside_dialogues_are_found(tmp_path):
    turns = [
        {"role": r, "content": c}
        for r, c in (("user", "Hi"), ("assistant", "Hello"), ("user", "Why?"), ("assistant", "So"))
    ]
    rows = write(tmp_path / "dialogues.jsonl", [{"messages": turns}])
    asked = write(tmp_path / "asked.jsonl", [{"prompt": "Hi"}, {"prompt": turns[:3]}, {"prompt": "Why?"}])
    stages = {
        "sft": {"kind": "sft", "model": "embedded", "data": rows},
        "evaluate": {
            "kind": "evaluate",
            "policy": "stage:sft",
            "baseline": "embedded",
            "prompts": asked,
            "judge": "rules",
        },
    }
    recipe = RecipeConfig.of({"name": "x", "stages": stages})
    seen = find_leakage(recipe.stages, recipe.stages["evaluate"], count=count_seen_prompts)
    assert (seen.prompts, seen.num_trained, seen.num_prompts) == (("sft",), 2, 3)
