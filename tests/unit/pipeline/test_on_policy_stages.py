"""VAPO, TRPO, online DPO and distillation as stages: a tiny model, runs of a few steps."""

from __future__ import annotations

import pytest

from rlhf.config.recipe import RecipeConfig
from rlhf.errors import ConfigError, ModelError
from rlhf.files import write_jsonl
from rlhf.pipeline.run import Pipeline
from rlhf.pipeline.validate import check_quickly
from tests.fixtures import tiny

SMALL = {"rollouts": 2, "prompts_per_rollout": 4, "minibatch_size": 4, "sampling": {"max_new_tokens": 4}}
REWARD = {"kind": "rules", "target_words": 3}
ROWS = [{"prompt": f"Question: What is {n}?\nAnswer:", "completion": f" It is {n}."} for n in range(6)]


@pytest.fixture
def given(tmp_path, tiny_model_folder):
    """What every stage reads: a model, prompts, and a folder for its run."""
    write_jsonl(tmp_path / "sft.jsonl", ROWS)
    write_jsonl(tmp_path / "prompts.jsonl", [{"prompt": row["prompt"]} for row in ROWS])
    return {"model": str(tiny_model_folder), "prompts": str(tmp_path / "prompts.jsonl")}


def recipe_of(tmp_path, **stage):
    tree = {"name": "run", "output_dir": str(tmp_path / "runs"), "seed": 3, "threads": 1}
    return RecipeConfig.of({**tree, "stages": {"method": stage}})


def run_stage(tmp_path, **stage):
    pipeline = Pipeline(recipe_of(tmp_path, **stage))
    pipeline.run()
    return pipeline.artifacts["method"], tmp_path / "runs" / "run" / "method"


@pytest.mark.parametrize(
    ("kind", "settings", "measured"),
    [
        ("vapo", {"group_size": 2, "value_warmup_rollouts": 1, "positive_score": -5.0}, "loss/positive_nll"),
        ("trpo", {"cg_iterations": 2, "epochs_per_rollout": 1, "eval_prompts": "prompts"}, "eval/score_mean"),
        ("online_dpo", {"group_size": 2}, "online_dpo/score_last"),
    ],
)
def test_a_stage_of_each_kind_runs_and_leaves_a_policy(given, tmp_path, kind, settings, measured):
    settings = {key: given.get(value, value) if isinstance(value, str) else value for key, value in settings.items()}
    artifact, folder = run_stage(tmp_path, kind=kind, reward=REWARD, **given, **SMALL, **settings)
    assert (folder / "model" / "config.json").is_file()
    assert measured in artifact.metrics


def test_the_natural_gradient_of_an_adapter_is_an_adapter(given, tmp_path):
    lora = {"path": given["model"], "lora": {"rank": 2, "alpha": 4}}
    _, folder = run_stage(
        tmp_path, kind="trpo", reward=REWARD, **{**given, "model": lora}, **SMALL, cg_iterations=2, epochs_per_rollout=1
    )
    assert (folder / "model" / "adapter_config.json").is_file()


def test_a_student_learns_from_its_teacher_and_from_what_is_written(given, tmp_path):
    artifact, folder = run_stage(
        tmp_path, kind="distill", teacher=given["model"], data=str(tmp_path / "sft.jsonl"), on_policy_frac=0.0,
        eval_prompts=given["prompts"], **given, **SMALL,
    )  # fmt: skip
    assert (folder / "model" / "config.json").is_file()
    rows = (folder / "rollouts.jsonl").read_text(encoding="utf-8")
    assert all(f" It is {n}." in rows for n in range(6))  # a row belongs to the prompt with the same ids
    assert artifact.metrics.keys() >= {"eval/teacher_kl", "eval/divergence", "distill/divergence_first"}
    assert not [name for name in artifact.metrics if "score" in name]


def test_a_teacher_with_other_tokens_is_refused(given, tmp_path):
    other = tmp_path / "other"
    tokenizer = tiny.build_tokenizer(("zyx zyx zyx zyx",))
    tiny.build_llama(vocab_size=len(tokenizer)).save_pretrained(other)
    tokenizer.save_pretrained(other)
    with pytest.raises(ModelError, match=r"teacher.*token ids"):
        run_stage(tmp_path, kind="distill", teacher=str(other), **given, **SMALL)


@pytest.mark.parametrize("changes", [{"data": "sft.jsonl"}, {"on_policy_frac": 0.5}])
def test_data_and_its_share_come_together(given, tmp_path, changes):
    with pytest.raises(ConfigError, match=r"data .*prompts"):
        recipe_of(tmp_path, kind="distill", teacher=given["model"], **given, **changes)


def test_what_is_watched_must_be_measured(given, tmp_path):
    stage = {"kind": "distill", "teacher": given["model"], "eval_prompts": given["prompts"], **given, **SMALL}
    recipe = recipe_of(tmp_path, **stage, early_stopping={"metric": "eval/score_mean"})
    with pytest.raises(ConfigError, match=r"distill .*'eval/score_mean'"):
        check_quickly(recipe)
    assert (
        check_quickly(recipe_of(tmp_path, **stage, early_stopping={"metric": "eval/teacher_kl"}, learning_rate=1e-3))
        == []
    )


def test_pairs_of_ones_own_need_no_ratio(given, tmp_path):
    """Several steps to a rollout are not a mistake: the loss of online DPO is that of pairs, whoever wrote them."""
    recipe = recipe_of(tmp_path, kind="online_dpo", reward=REWARD, epochs_per_rollout=4, **given, **SMALL)
    assert not [warning for warning in check_quickly(recipe) if "reinforce" in warning.line]
