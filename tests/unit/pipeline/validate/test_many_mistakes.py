"""Many mistakes in one recipe: all are reported, each once."""

from __future__ import annotations

import json

import pytest

from rlhf.config.methods.grpo import GRPOStage
from rlhf.config.recipe import RecipeConfig
from rlhf.errors import ConfigError
from rlhf.pipeline.validate import validate_file, validate_recipe
from rlhf.pipeline.validate.input_paths import BUILT_IN
from tests.unit.pipeline.validate.helpers import (
    DPO,
    Tree,
    changed,
    only_problem,
    problems_of,
    write,
)


def many_mistakes(tree: Tree) -> Tree:
    """Ten mistakes in four stages and in the recipe itself."""
    made = changed(tree, "sft", data="demo.jsonl", eval_every=3, log_to=["wandb"])
    made = changed(made, "reward", data="demos.jsonl", early_stopping={})
    made = changed(made, "grpo", model="stage:reward", reward="functions.py:polit", prompts_per_rollout=64)
    made = changed(made, "evaluate", baseline="stage:grpo", rollouts="stage:grpo/rollout.jsonl")
    return made


TEN = [
    ("sft", "data", "error"),
    ("sft", "log_to", "error"),
    ("sft", "eval_every", "warning"),
    ("reward", "data", "error"),
    ("reward", "early_stopping", "error"),
    ("grpo", "model", "error"),
    ("grpo", "reward", "error"),
    ("grpo", "prompts_per_rollout", "warning"),
    ("evaluate", "rollouts", "error"),
    ("evaluate", "baseline", "warning"),
]


def test_ten_mistakes_give_ten_complaints_in_one_go(tree):
    problems = problems_of(many_mistakes(tree))
    assert {(problem.stage, problem.key, problem.level) for problem in problems} == set(TEN)
    stages = [problem.stage for problem in problems]
    assert stages == sorted(stages, key=list(tree["stages"]).index)


def test_a_recipe_that_is_not_valid_is_looked_at_all_the_same(tree, tmp_path):
    broken = changed(tree, "sft", learning_rat=1e-3)
    broken = changed(broken, "evaluate", prompts="test_prompt.jsonl", policy="stage:grop")
    broken["nmae"] = "x"
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(broken), encoding="utf-8")
    review = validate_file(path, deep=False)
    complaints = {(problem.stage, problem.key): problem.message for problem in review.problems}
    assert "Did you mean 'name'" in complaints[None, "nmae"]
    assert "Did you mean 'learning_rate'" in complaints["sft", "learning_rat"]
    assert "Did you mean 'grpo'" in complaints["evaluate", "policy"]
    assert "Did you mean 'test_prompts.jsonl'" in complaints["evaluate", "prompts"]
    assert ("evaluate", "baseline") not in complaints  # it names a stage that is there and has its own complaint
    assert len(complaints) == len(review.problems), "nothing is said twice"
    assert review.exit_code == 2
    assert review.num_stages == 4


def test_what_a_wrong_setting_hides_is_said_and_what_a_key_too_many_does_not_hide_is_looked_at(tree, tmp_path):
    broken = changed(tree, "sft", learning_rate=-1, data="nothere.jsonl")
    broken = changed(broken, "grpo", packing=True, kl={"coff": 1}, prompts="nothere.jsonl", reward="nothere.py:f")
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(broken), encoding="utf-8")
    review = validate_file(path, deep=False)
    keys = {(problem.stage, problem.key) for problem in review.problems}
    assert keys == {
        ("sft", "learning_rate"), ("grpo", "packing"), ("grpo", "kl.coff"), ("grpo", "prompts"), ("grpo", "reward"),
    }  # fmt: skip
    assert "files, models and rewards of sft (fix the settings first" in review.to_text()


def test_a_complaint_about_an_override_names_it(tree, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(tree), encoding="utf-8")
    (problem,) = validate_file(path, ["grpo.kl.coef=0.2"], deep=False).problems
    assert problem.key == "grpo"
    assert "Did you mean 'stages.grpo.kl.coef'?" in problem.message
    assert problem.message.endswith("[override grpo.kl.coef=0.2]")


@pytest.mark.parametrize("given", [None, "/no/such/assets"])
def test_assets_that_are_not_there_are_one_complaint(tree, tmp_path, monkeypatch, given):
    if given is None:
        monkeypatch.delenv("RLHF_ASSETS", raising=False)
        monkeypatch.chdir(tmp_path / "runs" if (tmp_path / "runs").is_dir() else tmp_path)
        text = "RLHF_ASSETS is not set, and its default ../shared/assets is not there"
    else:
        monkeypatch.setenv("RLHF_ASSETS", given)
        text = f"RLHF_ASSETS is {given}, which is not a folder"
    sft = {"kind": "sft", "model": "${RLHF_ASSETS}/model", "data": "${RLHF_ASSETS}/rows.jsonl"}
    dpo = {"kind": "dpo", "model": "stage:sft", "data": ["${RLHF_ASSETS}/a.jsonl", "${RLHF_ASSETS}/b.jsonl"]}
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps({"name": "x", "stages": {"sft": sft, "dpo": dpo}}), encoding="utf-8")
    review = validate_file(path, deep=False)
    (problem,) = review.problems
    assert problem.level == "error"
    assert text in problem.message
    assert "stages.sft.data" in problem.message
    assert "export RLHF_ASSETS=" in problem.message
    assert review.to_text().count("the sizes of their models are not known") == 1
    assert "memory and disk that sft and dpo need" in review.to_text()


def test_assets_that_are_there_hide_no_complaint_about_one_of_them(tree, tmp_path, monkeypatch):
    (tmp_path / "assets").mkdir()
    monkeypatch.setenv("RLHF_ASSETS", str(tmp_path / "assets"))
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(changed(tree, "sft", data="${RLHF_ASSETS}/rows.jsonl")), encoding="utf-8")
    (problem,) = validate_file(path, deep=False).problems
    assert (problem.stage, problem.key) == ("sft", "data")
    assert f"There is no file or folder {tmp_path}/assets/rows.jsonl" in problem.message


def test_a_bare_word_is_no_reward_and_is_told_what_one_can_be(tree):
    problem = only_problem(changed(tree, "grpo", reward="lambda"))
    assert (problem.stage, problem.key, problem.kind) == ("grpo", "reward", ConfigError)
    for part in ("'lambda' names no reward", "stage:NAME", "package.module:function", "http://", "rules"):
        assert part in problem.message
    assert "Did you mean 'rules'?" in only_problem(changed(tree, "grpo", reward="rule")).message
    assert "Did you mean {kind: lexicon, ...}?" in only_problem(changed(tree, "grpo", reward="lexicon")).message


def test_the_words_that_are_rewards_are_those_that_recipes_know():
    stage = {"kind": "grpo", "model": "m", "prompts": "p.jsonl"}
    kinds = {word: GRPOStage(**stage, reward=word).reward[0].kind for word in (*BUILT_IN, "anything")}
    assert [word for word, kind in kinds.items() if kind == "learned"] == ["anything"]


def test_a_file_is_not_taken_for_another_because_both_end_alike(tree):
    problem = only_problem(changed(tree, "sft", data="nothere.jsonl"))
    assert problem.message == "There is no file or folder nothere.jsonl."
    assert "Did you mean 'demos.jsonl'?" in only_problem(changed(tree, "sft", data="demo.jsonl")).message


def test_every_wrong_reference_is_told_and_not_only_the_first(tree, tmp_path):
    broken = changed(changed(tree, "reward", model="stage:evaluate"), "grpo", model="stage:sftt")
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(broken), encoding="utf-8")
    problems = validate_file(path, deep=False).problems
    assert [(problem.stage, problem.key) for problem in problems] == [("reward", "model"), ("grpo", "model")]
    assert "does not come before it" in problems[0].message
    assert "Did you mean 'sft'" in problems[1].message


def test_what_is_true_of_several_stages_is_said_once(tree, tmp_path):
    path = write(
        tmp_path / "bad.jsonl", [{"prompt": "q", "chosen": "a"}, {"prompt": "q", "chosen": "a", "rejected": "b"}]
    )
    twice = changed(changed(tree, "reward", data=str(path)), "dpo", **{**DPO, "data": str(path)})
    review = validate_recipe(RecipeConfig.of(twice))
    (problem,) = review.errors
    assert (problem.stage, problem.also, problem.key) == ("reward", ("dpo",), "data")
    assert review.to_text().count("1 of 2 rows is bad") == 1
    assert "stage dpo" in problem.line
    assert problem.to_dict()["also"] == ["dpo"]


def test_text_and_json_say_the_same(tree):
    review = validate_recipe(RecipeConfig.of(many_mistakes(tree)), source="recipe.yaml")
    text, machine = review.to_text().splitlines(), review.to_dict()
    assert text[0] == "sft:"
    assert text[1].startswith("  error    data: There is no file or folder demo.jsonl.")
    assert text[-1].startswith("recipe.yaml: 7 errors and 3 warnings (4 stages")
    assert (machine["errors"], machine["warnings"], machine["exit_code"]) == (7, 3, 3)
    assert json.loads(json.dumps(machine)) == machine


def test_what_follows_from_a_stage_that_is_not_valid_is_not_said(tree, tmp_path):
    broken = changed(changed(tree, "sft", learning_rate="fast"), "grpo", modle="stage:evaluate")
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(broken), encoding="utf-8")
    review = validate_file(path)
    assert [(problem.stage, problem.key) for problem in review.errors] == [("sft", "learning_rate"), ("grpo", "modle")]
    assert "not known what these were trained on" not in review.to_text()
