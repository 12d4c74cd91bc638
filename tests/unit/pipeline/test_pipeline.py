"""What a run does the second time, after a change, and when something fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf.config.model import ModelConfig
from rlhf.config.recipe import RecipeConfig
from rlhf.data.chat import CHAT_TEMPLATES
from rlhf.data.datasets import GRPODataset
from rlhf.errors import ModelError, RewardError, RLHFError
from rlhf.models.policy import PolicyModel
from rlhf.models.reward import RewardModel
from rlhf.pipeline.artifacts import content_hash
from rlhf.pipeline.run import Pipeline

SAMPLING = {"max_new_tokens": 8}


def polite(prompts, completions, **columns):
    return [float("happy" in completion) for completion in completions]


def broken(prompts, completions, **columns):
    raise KeyError("label")


def tree(folder: Path, **changes):
    return {
        "name": "small",
        "output_dir": str(folder),
        "seed": 3,
        "threads": 1,
        "stages": {
            "world": {"kind": "world"},
            "sft": {"kind": "sft", "model": "embedded", "data": "stage:world/sft.jsonl", "max_steps": 2, "limit": 40},
            "grpo": {
                "kind": "grpo",
                "model": "stage:sft",
                "prompts": "stage:world/prompts.jsonl",
                "reward": {"kind": "function", "function": f"{__file__}:polite", "in_process": True},
                "rollouts": 1,
                "prompts_per_rollout": 2,
                "group_size": 2,
                "minibatch_size": 4,
                "sampling": SAMPLING,
            },
            **changes,
        },
    }


def run(folder: Path, *, without: str | None = None, **changes) -> Pipeline:
    recipe = tree(folder, **changes)
    recipe["stages"].pop(without, None)
    pipeline = Pipeline(RecipeConfig.of(recipe))
    pipeline.run()
    return pipeline


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Path, Pipeline]:
    """A folder with a finished run, and the pipeline that made it; a test may run it again, and change nothing."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, run(folder)


def starts(folder: Path) -> list[str]:
    lines = (folder / "small" / "events.jsonl").read_text(encoding="utf-8").splitlines()
    return [e["stage"] for e in map(json.loads, lines) if e["event"] == "stage_start"]


def test_a_second_run_does_nothing_again(whole):
    folder, first = whole
    second = run(folder)
    assert starts(folder) == ["world", "sft", "grpo"]
    assert first.artifacts == second.artifacts


@pytest.mark.slow  # test_plan.py shows it of every key, with stages that cost nothing
def test_a_change_redoes_what_depends_on_it_and_nothing_else(tmp_path):
    before = run(tmp_path).artifacts
    changed = {**tree(tmp_path)["stages"]["sft"], "learning_rate": 1e-3}
    after = run(tmp_path, sft=changed).artifacts
    assert starts(tmp_path) == ["world", "sft", "grpo", "sft", "grpo"]
    assert before["world"] == after["world"]
    assert before["sft"].files["model/model.safetensors"] != after["sft"].files["model/model.safetensors"]


def test_the_same_recipe_gives_the_same_bits(whole, tmp_path):
    one, two = whole[1].artifacts, run(tmp_path).artifacts
    for stage in ("sft", "grpo"):
        assert one[stage].files["model/model.safetensors"] == two[stage].files["model/model.safetensors"]
    assert one["world"].files == two["world"].files


def test_another_seed_gives_another_run(tmp_path):
    made = []
    for seed in (3, 4):
        recipe = {**tree(tmp_path / str(seed)), "seed": seed, "stages": {"world": {"kind": "world"}}}
        pipeline = Pipeline(RecipeConfig.of(recipe))
        pipeline.run()
        made.append(pipeline.artifacts["world"].files["sft.jsonl"])
    assert made[0] != made[1]


def test_a_failing_stage_keeps_what_was_finished_and_says_which_it_was(tmp_path):
    grpo = {
        **tree(tmp_path)["stages"]["grpo"],
        "reward": {"kind": "function", "function": f"{__file__}:broken", "in_process": True},
    }
    with pytest.raises(RewardError) as caught:
        run(tmp_path, grpo=grpo)
    assert any("stage 'grpo'" in note for note in caught.value.__notes__)
    assert (tmp_path / "small" / "sft" / "artifact.json").exists()
    assert not (tmp_path / "small" / "grpo" / "artifact.json").exists()
    run(tmp_path)  # mended
    assert starts(tmp_path) == ["world", "sft", "grpo", "grpo"]


def test_the_manifest_leads_from_a_weight_file_back_to_the_data(whole):
    folder, _ = whole
    artifacts = json.loads((folder / "small" / "manifest.json").read_text(encoding="utf-8"))["artifacts"]
    assert "model/model.safetensors" in artifacts["grpo"]["files"]
    assert artifacts["grpo"]["parents"]["model"] == f"stage:sft@{artifacts['sft']['key']}"
    assert artifacts["sft"]["parents"]["data"] == f"stage:world/sft.jsonl@{artifacts['world']['key']}"


def test_a_local_file_is_part_of_the_key(tmp_path):
    data = tmp_path / "rows.jsonl"
    data.write_text('{"prompt": "User: Hi\\nAssistant:", "completion": " Hello."}\n' * 4, encoding="utf-8")
    sft = {"kind": "sft", "model": "embedded", "data": str(data), "max_steps": 1}

    def keys():
        pipeline = Pipeline(RecipeConfig.of({"name": "files", "output_dir": str(tmp_path), "stages": {"sft": sft}}))
        pipeline.run()
        return pipeline.artifacts["sft"]

    before = keys()
    assert before.parents["data"] == f"{data}@{content_hash(data)}"
    data.write_text(data.read_text(encoding="utf-8").replace("Hello", "Hey"), encoding="utf-8")
    assert keys().key != before.key


def test_bad_data_is_one_error_that_names_the_line(tmp_path):
    data = tmp_path / "rows.jsonl"
    data.write_text('{"prompt": "a", "completion": "b"}\n{"prompt": "a", "completion": 3}\n', encoding="utf-8")
    sft = {"kind": "sft", "model": "embedded", "data": str(data), "max_steps": 1}
    with pytest.raises(RLHFError, match=r"rows\.jsonl:2"):
        Pipeline(RecipeConfig.of({"name": "bad", "output_dir": str(tmp_path), "stages": {"sft": sft}})).run()


def test_a_reward_model_is_refused_as_a_policy(tmp_path):
    RewardModel.from_policy("embedded", seed=1).save_pretrained(tmp_path / "rm")
    with pytest.raises(ModelError, match=r"not a language model.*a reward model"):
        PolicyModel.from_pretrained(str(tmp_path / "rm"))


@pytest.mark.slow
def test_a_changed_reward_model_is_evaluated_anew(tmp_path):
    RewardModel.from_policy("embedded", seed=1).save_pretrained(tmp_path / "rm")
    evaluate = {
        "kind": "evaluate",
        "policy": "stage:sft",
        "baseline": "embedded",
        "prompts": "stage:world/test_prompts.jsonl",
        "judge": "rlhf.evaluation.judges:world_judge",
        "reward_model": str(tmp_path / "rm"),
        "limit": 3,
        "sampling": SAMPLING,
    }
    before = run(tmp_path, without="grpo", evaluate=evaluate).artifacts["evaluate"]
    RewardModel.from_policy("embedded", seed=2).save_pretrained(tmp_path / "rm")
    assert run(tmp_path, without="grpo", evaluate=evaluate).artifacts["evaluate"].key != before.key


def test_dropout_of_a_policy_is_off_in_policy_stages(tmp_path):
    grpo = {
        **tree(tmp_path)["stages"]["grpo"],
        "learning_rate": 1e-12,
        "eval_prompts": "stage:world/test_prompts.jsonl",
    }
    grpo["limit"] = 4
    model = tmp_path / "noisy"
    policy = PolicyModel.from_pretrained("embedded")
    policy.model.config.attention_dropout = 0.3
    policy.save_pretrained(model)
    grpo["model"] = str(model)
    metrics = run(tmp_path, grpo=grpo).artifacts["grpo"].metrics
    assert metrics["grpo/ratio_mean"] == pytest.approx(1, abs=1e-5)
    assert "eval/score_mean" in metrics


def test_a_chat_template_by_name_is_saved_as_text_and_serves_later_stages(tmp_path):
    model = {"path": "embedded", "chat_template": "plain"}
    rows = tmp_path / "chat.jsonl"
    message = '{"role": "user", "content": "Hi"}'
    rows.write_text(f'{{"prompt": [{message}]}}\n' * 3, encoding="utf-8")
    policy = PolicyModel.from_pretrained(ModelConfig.of(model))
    policy.save_pretrained(tmp_path / "saved")
    again = PolicyModel.from_pretrained(str(tmp_path / "saved"))
    assert again.tokenizer.chat_template == CHAT_TEMPLATES["plain"]
    [first, *_] = GRPODataset(str(rows), again.tokenizer)
    assert "Human: Hi" in first.text
