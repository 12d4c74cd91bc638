"""The loop from Python with models handed over: folders, objects in memory, and what another process finished."""

from __future__ import annotations

import json

import pytest

from rlhf import RLHFOrchestrator, TrainingStage
from rlhf.errors import ConfigError, UnknownNameError
from rlhf.models.policy import PolicyModel
from rlhf.models.reference import ReferenceModel
from rlhf.models.reward import RewardModel
from tests.fixtures.cheap_stages import install


@pytest.fixture
def data(tmp_path):
    rows = [{"prompt": f"p{n}", "completion": " c", "chosen": " c", "rejected": " r"} for n in range(4)]
    for name in ("sft", "pairs", "prompts", "steps"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return {name: tmp_path / f"{name}.jsonl" for name in ("sft", "pairs", "prompts", "steps")}


@pytest.fixture
def done(monkeypatch):
    return install(monkeypatch)


def loop_in(tmp_path, model="embedded"):
    return RLHFOrchestrator(model, output_dir=tmp_path / "run", quiet=True)


def test_stages_start_from_what_came_before_and_another_process_knows_them(data, tmp_path, done):
    loop = loop_in(tmp_path)
    assert loop.stage is TrainingStage.NOT_STARTED
    sft = loop.run_sft(data["sft"], epochs=1)
    assert sft.settings["epochs"] == 1
    reward = loop.run_reward_model_training(data["pairs"])
    assert loop.stage is TrainingStage.REWARD_MODEL
    grpo = loop_in(tmp_path).run_policy_optimization(data["prompts"], method="grpo")
    assert grpo.parents["model"] == f"stage:sft@{sft.key}"
    assert grpo.parents["reward.0.source"] == f"stage:reward@{reward.key}"
    again = loop_in(tmp_path)
    assert [record.stage for record in again.history] == ["sft", "reward", "grpo"] == done
    assert again.stage is TrainingStage.POLICY_OPTIMIZATION


def test_a_method_brings_its_settings_and_reads_rows_or_prompts(data, tmp_path, done):
    loop = loop_in(tmp_path)
    ipo = loop.run_policy_optimization(data["pairs"], method="ipo", beta=0.2, reference="embedded")
    assert (ipo.kind, ipo.settings["loss"], ipo.settings["beta"]) == ("dpo", "ipo", 0.2)
    with pytest.raises(ConfigError, match=r"reward="):
        loop.run_policy_optimization(data["pairs"], method="ipo", reward="rules")
    with pytest.raises(ConfigError, match="run_reward_model_training"):
        loop.run_policy_optimization(data["prompts"], method="ppo")
    with pytest.raises(ConfigError, match="'prm'"):
        loop.run_policy_optimization(data["prompts"], method="prm")
    with pytest.raises(UnknownNameError, match="ppoo"):
        loop.run_policy_optimization(data["prompts"], method="ppoo")


def test_a_process_reward_model_judges_where_there_is_no_other(data, tmp_path, done):
    loop = loop_in(tmp_path)
    loop.run_process_reward_model_training(data["steps"])
    assert loop.stage is TrainingStage.PROCESS_REWARD_MODEL
    rloo = loop.run_policy_optimization(data["prompts"], method="rloo")
    assert rloo.settings["reward"][0]["kind"] == "process"


def test_methods_that_sample_take_prompts_and_a_reward_or_a_teacher(data, tmp_path, done):
    loop = loop_in(tmp_path)
    online = loop.run_policy_optimization(data["prompts"], method="online_dpo", reward="rules")
    assert online.settings["reward"][0]["kind"] == "rules"
    distilled = loop.run_policy_optimization(data["prompts"], method="distill", teacher="embedded")
    assert distilled.settings["prompts"] == str(data["prompts"])
    with pytest.raises(ConfigError, match="teacher"):
        loop.run_policy_optimization(data["prompts"], method="distill")


def test_models_in_memory_are_saved_once_under_the_hash_of_their_weights(
    data, tmp_path, done, tiny_llama, tiny_tokenizer
):
    policy = PolicyModel(tiny_llama, tiny_tokenizer)
    loop = loop_in(tmp_path, policy)
    assert loop_in(tmp_path, policy).model == loop.model
    judge = RewardModel.from_policy(policy)
    loop.run_policy_optimization(data["prompts"], reward=judge, reference=ReferenceModel(policy))
    settings = loop.history[-1].settings
    assert settings["reference"]["path"] == settings["model"]["path"] == loop.model
    assert PolicyModel.from_pretrained(loop.model).fingerprint() == policy.fingerprint()
    assert RewardModel.from_pretrained(settings["reward"][0]["source"]).fingerprint() == judge.fingerprint()


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="model is an int"):
        loop_in(tmp_path, 7)


def test_the_full_pipeline_runs_the_stages_that_have_data(data, tmp_path, done):
    records = loop_in(tmp_path).run_full_pipeline(
        sft_data=data["sft"],
        reward_data=data["pairs"],
        settings={TrainingStage.SFT: {"epochs": 1}, "policy_optimization": {"rollouts": 2}},
    )
    assert list(records) == [TrainingStage.SFT, TrainingStage.REWARD_MODEL, TrainingStage.POLICY_OPTIMIZATION]
    assert records[TrainingStage.POLICY_OPTIMIZATION].settings["rollouts"] == 2
    done.clear()
    loop_in(tmp_path).run_full_pipeline(reward_data=data["pairs"], method="dpo")
    assert done == ["dpo"], "which needs no reward model"
    with pytest.raises(ConfigError, match="policy_data"):
        loop_in(tmp_path).run_full_pipeline(sft_data=data["sft"])


def test_a_finished_stage_saves_its_model(data, tmp_path, done):
    sft = loop_in(tmp_path).run_sft(data["sft"])
    folder = sft.save_pretrained(tmp_path / "mine")
    assert (folder / "weights").read_bytes() == (tmp_path / "run" / "sft" / "model" / "weights").read_bytes()
    assert sft.save_pretrained(folder) == folder, "again"
    loop = loop_in(tmp_path)
    loop.run_stage("world", {"kind": "world"})
    (tmp_path / "run" / "world" / "model").rename(tmp_path / "gone")
    with pytest.raises(ConfigError, match="leaves no model"):
        loop.history[-1].save_pretrained(tmp_path / "other")


def test_saved_models_are_loaded_into_another_run(data, tmp_path, done):
    loop = loop_in(tmp_path)
    with pytest.raises(ConfigError, match="nothing to save"):
        loop.save_models(tmp_path / "models")
    loop.run_sft(data["sft"])
    loop.run_reward_model_training(data["pairs"])
    saved = loop.save_models(tmp_path / "models")
    assert {role: folder.name for role, folder in saved.items()} == {"sft": "sft", "reward_model": "reward_model"}
    assert (saved["sft"] / "weights").read_bytes() == (loop.folder_of("sft") / "weights").read_bytes()

    other = RLHFOrchestrator("embedded", output_dir=tmp_path / "other", quiet=True)
    with pytest.raises(ConfigError, match="holds no model"):
        other.load_models(tmp_path)
    assert other.load_models(tmp_path / "models") == saved
    settings = other.run_policy_optimization(data["prompts"]).settings
    assert settings["model"]["path"] == str(saved["sft"])
    assert settings["reward"][0]["source"] == str(saved["reward_model"])


def test_a_function_judges_where_a_name_can(data, tmp_path, done):
    loop = loop_in(tmp_path)
    record = loop.run_policy_optimization(data["prompts"], method="grpo", reward=lambda prompts, completions: [1.0])
    assert record.settings["reward"][0]["function"].startswith("rlhf.rewards.in_memory:lambda_")
    assert loop_in(tmp_path).history[-1].stage == "grpo", "another process reads the run without the function"
