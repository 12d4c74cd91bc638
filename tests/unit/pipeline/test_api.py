"""The few-line face: each call runs one more stage of an ordinary recipe."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

import rlhf
from rlhf import RLHFConfig, RLHFTrainer
from rlhf.config.methods.grpo import GRPOStage
from rlhf.config.schema import stage_classes
from rlhf.config.training_stages import PPOStage
from rlhf.data.world import build_world
from rlhf.data.world.pairs import annotate
from rlhf.errors import ConfigError
from rlhf.pipeline.api import CALLS, SET_BY
from rlhf.pipeline.artifacts import Artifact
from tests.fixtures.cheap_stages import install
from tests.unit.rewards import helpers


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    build_world(5, folder, num_documents=0)
    documents = [json.loads(line) for line in (folder / "sft.jsonl").read_text(encoding="utf-8").splitlines()]
    distinct = list({row["prompt"]: row for row in documents}.values())
    rows, others = distinct[:60], distinct[60:120]
    (folder / "few.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    pairs = []
    for row in others:
        texts = [row["completion"], " I do not know. The weather is fine today."]
        [choice] = annotate([row["prompt"]], [texts], ended=[[True, True]], noise=0.0, seed=1)
        if choice is not None:
            pairs.append(
                {"prompt": row["prompt"], "chosen": texts[choice["chosen"]], "rejected": texts[choice["rejected"]]}
            )
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs), encoding="utf-8")
    return folder


@pytest.mark.slow
def test_three_calls_train_three_models_in_one_run_folder(files, tmp_path):
    trainer = RLHFTrainer(
        RLHFConfig(
            model_name="embedded",
            sft_dataset=str(files / "few.jsonl"),
            reward_dataset=str(files / "pairs.jsonl"),
            output_dir=str(tmp_path / "mine"),
            ppo_epochs=2,
            learning_rate=1.41e-5,
            sft_epochs=1,
            ppo_rollouts=2,
            batch_size=4,
            mini_batch_size=4,
            max_new_tokens=8,
        ),
        quiet=True,
    )
    sft = trainer.train_sft()
    reward = trainer.train_reward_model()
    ppo = trainer.train_ppo()
    dpo = trainer.train_dpo(max_steps=2)
    assert [a.kind for a in (sft, reward, ppo, dpo)] == ["sft", "reward", "ppo", "dpo"]
    assert 0 <= reward.metrics["eval/accuracy"] <= 1
    evaluation = trainer.evaluate(limit=4)
    assert 0 <= evaluation.metrics["win_rate"] <= 1
    assert ", win rate " in evaluation.headline
    assert {type(value) for value in evaluation.metrics.values()} <= {int, float, type(None), str, bool, list}
    assert (tmp_path / "mine" / "ppo" / "model" / "model.safetensors").exists()
    assert (tmp_path / "mine" / "report.html").exists()
    before = sft.finished
    again = RLHFTrainer(trainer.config, quiet=True)
    assert list(again.stages) == ["sft", "reward", "ppo", "dpo", "evaluate"], "another process knows what is there"
    grpo = again.train_grpo(rollouts=1, sampling={"max_new_tokens": 8}, group_size=2, minibatch_size=4)
    assert grpo.parents["reward.0.source"] == f"stage:reward@{reward.key}"
    assert Artifact.read(tmp_path / "mine" / "sft").finished == before, "and does nothing of it again"
    again.evaluate(limit=4)
    recipe = yaml.safe_load((tmp_path / "mine" / "recipe.yaml").read_text(encoding="utf-8"))
    assert recipe["stages"]["evaluate"]["policy"]["path"] == "stage:grpo", "the newest policy"
    assert recipe["stages"]["evaluate"]["baseline"]["path"] == "stage:sft", "and where it started"


def test_a_missing_input_is_named_with_the_argument_that_gives_it(tmp_path):
    trainer = RLHFTrainer(RLHFConfig(model_name="embedded", output_dir=str(tmp_path / "mine")), quiet=True)
    with pytest.raises(ConfigError, match="sft_dataset"):
        trainer.train_sft()
    with pytest.raises(ConfigError, match="train_reward_model"):
        trainer.train_ppo()
    with pytest.raises(ConfigError, match="train_sft"):
        trainer.evaluate()


def trainer_in(files, folder, *, quiet=True, **settings):
    data = {"sft_dataset": str(files / "few.jsonl"), "reward_dataset": str(files / "pairs.jsonl")}
    return RLHFTrainer(RLHFConfig(model_name="embedded", output_dir=str(folder), **data, **settings), quiet=quiet)


def test_each_call_in_its_own_process_goes_on_in_the_same_folder(files, tmp_path, monkeypatch):
    done = install(monkeypatch)
    trainer_in(files, tmp_path / "mine").train_sft()
    reward = trainer_in(files, tmp_path / "mine").train_reward_model()
    assert reward.parents["model"].startswith("stage:sft@")
    ppo = trainer_in(files, tmp_path / "mine").train_ppo()
    assert ppo.parents["reward.0.source"] == f"stage:reward@{reward.key}"
    assert done == ["sft", "reward", "ppo"]
    manifest = json.loads((tmp_path / "mine" / "manifest.json").read_text(encoding="utf-8"))
    assert list(manifest["artifacts"]) == ["sft", "reward", "ppo"]


def test_a_call_redoes_only_what_it_needs(files, tmp_path, monkeypatch):
    done = install(monkeypatch)
    trainer = trainer_in(files, tmp_path / "mine")
    trainer.train_sft()
    trainer.train_reward_model()
    trainer.train_dpo()
    done.clear()
    trainer_in(files, tmp_path / "mine").train_sft(epochs=9)
    assert done == ["sft"]
    trainer_in(files, tmp_path / "mine").train_dpo()
    assert done == ["sft", "dpo"], "the reward model waits until somebody needs it"


def test_calls_may_come_in_any_order(files, tmp_path, monkeypatch):
    done = install(monkeypatch)
    trainer = trainer_in(files, tmp_path / "mine")
    trainer.train_reward_model()
    trainer.train_sft()
    trainer.train_reward_model()
    assert done == ["reward", "sft", "reward"]
    assert trainer.train_ppo().parents["model"].startswith("stage:sft@")


def test_a_stage_that_failed_is_not_known_to_the_next_process(files, tmp_path, monkeypatch):
    def breaks(stage, at):
        raise KeyError("a bug")

    install(monkeypatch, sft=breaks)
    with pytest.raises(KeyError, match="a bug"):
        trainer_in(files, tmp_path / "mine").train_sft()
    assert trainer_in(files, tmp_path / "mine").stages == {}
    with pytest.raises(ConfigError, match="train_sft, train_ppo, train_grpo or train_dpo"):
        trainer_in(files, tmp_path / "mine").evaluate()


def test_a_folder_with_an_unreadable_recipe_is_refused_by_name(files, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "recipe.yaml").write_text("name: [", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"mine/recipe\.yaml"):
        trainer_in(files, tmp_path / "mine")


def told(capsys):
    return " ".join(capsys.readouterr().out.split())


def prompts_in(path):
    return {json.loads(line)["prompt"] for line in Path(path).read_text(encoding="utf-8").splitlines()}


def test_the_prompts_of_evaluate_are_kept_from_the_stages_that_train_the_policy(files, tmp_path, monkeypatch, capsys):
    install(monkeypatch)
    trainer = trainer_in(files, tmp_path / "mine", quiet=False)
    trainer.train_sft()
    trainer.train_reward_model()
    trainer.train_ppo()
    trainer.train_dpo()
    trainer.evaluate(judge="mine.judges:strict")
    stages = yaml.safe_load((tmp_path / "mine" / "recipe.yaml").read_text(encoding="utf-8"))["stages"]
    asked = prompts_in(stages["evaluate"]["prompts"])
    assert asked
    assert asked.isdisjoint(prompts_in(stages["ppo"]["prompts"]))
    assert stages["dpo"]["data"] == stages["ppo"]["prompts"], "else DPO would learn from what it is measured on"
    assert asked | prompts_in(stages["ppo"]["prompts"]) == prompts_in(files / "pairs.jsonl")
    text = told(capsys)
    assert "! The" not in text, "an independent judge needs no warning"
    assert "trained on" not in text, "and new prompts neither"


def test_evaluate_says_beside_its_result_what_training_saw_of_it(files, tmp_path, monkeypatch, capsys):
    install(monkeypatch)
    trainer = trainer_in(files, tmp_path / "mine", quiet=False)
    trainer.train_sft()
    trainer.train_reward_model()
    trainer.train_ppo(prompts=str(files / "pairs.jsonl"))
    told(capsys)
    trainer.evaluate(prompts=str(files / "pairs.jsonl"))
    text = told(capsys)
    assert "! The judge is the reward that stage ppo trained against" in text
    assert re.search(r"! All \d+ prompts were trained on, by stage ppo", text)
    alarms = json.loads((tmp_path / "mine" / "summary.json").read_text(encoding="utf-8"))["alarms"]
    assert [alarm["stage"] for alarm in alarms] == ["evaluate", "evaluate"]


def test_a_file_that_training_had_most_of_is_known_again(files, tmp_path, monkeypatch, capsys):
    install(monkeypatch)
    trainer = trainer_in(files, tmp_path / "mine", quiet=False)
    trainer.train_sft()
    trainer.train_ppo(reward="rules")
    told(capsys)
    trainer.evaluate(judge="mine.judges:strict", prompts=str(files / "pairs.jsonl"))
    assert re.search(r"! \d+ of \d+ prompts were trained on, by stage ppo", told(capsys))


def test_prompts_of_one_s_own_are_used_as_they_are(files, tmp_path, monkeypatch):
    install(monkeypatch)
    trainer = trainer_in(files, tmp_path / "mine", eval_prompts=str(files / "few.jsonl"))
    trainer.train_sft()
    trainer.train_ppo(reward="rules")
    trainer.evaluate(judge="mine.judges:strict")
    assert trainer.stages["ppo"]["prompts"] == str(files / "pairs.jsonl"), "nothing has to be held out"
    assert trainer.stages["evaluate"]["prompts"] == str(files / "few.jsonl")


def test_a_call_speaks_of_its_own_stage_only(files, tmp_path, monkeypatch, capsys):
    install(monkeypatch)
    trainer = trainer_in(files, tmp_path / "mine", quiet=False)
    trainer.train_sft()
    told(capsys)
    reward = trainer.train_reward_model()
    text = told(capsys)
    assert "sft" not in text.replace("stage:sft", "")
    assert text.count(str(tmp_path)) == 1, "one path: where the model is"
    assert repr(reward).startswith("Artifact('reward', 'made ")
    assert len(repr(reward)) < 200
    trainer.train_reward_model()
    assert "(kept)" in told(capsys), "and says so where there was nothing to do"


def test_help_says_what_the_fields_mean():
    assert "    kl_coef: Weight of PPO's KL penalty." in RLHFConfig.__doc__
    assert all(f"    {name}: " in RLHFConfig.__doc__ for name in RLHFConfig.model_fields)


def test_only_public_names_are_listed():
    assert {name for name in dir(rlhf) if not name.startswith("__")} == set(rlhf.__all__) - {"__version__"}
    assert "importlib" not in dir(rlhf)


def test_a_function_is_a_reward_and_its_stage_follows_its_source(files, tmp_path, monkeypatch, capsys):
    done = install(monkeypatch)

    def made_with(factor):
        def brief(prompts, completions, **columns):
            return [-factor * len(c) for c in completions]

        return brief

    trainer = trainer_in(files, tmp_path / "mine", quiet=False)
    record = trainer.train_grpo(reward=made_with(1.0))
    [reward] = record.settings["reward"]
    assert (reward["name"], reward["in_process"]) == ("brief", True)
    assert record.names["reward.0.function"] == reward["function"], "the record says that it was a function in memory"
    assert "'brief' exists in this process only" in capsys.readouterr().out
    trainer_in(files, tmp_path / "mine").train_grpo(reward=made_with(1.0))
    assert done == ["grpo"], "kept: the source is the same"
    trainer_in(files, tmp_path / "mine").train_grpo(reward=[made_with(2.0), "rules"])
    assert done == ["grpo", "grpo"]
    trainer.evaluate(judge=made_with(1.0))
    trainer.train_grpo(reward={"kind": "function", "function": made_with(1.0), "weight": 2.0, "name": "short"})
    assert trainer.stages["grpo"]["reward"]["name"] == "short"


def test_a_function_of_a_module_is_named_as_in_a_recipe(files, tmp_path, monkeypatch):
    install(monkeypatch)
    record = trainer_in(files, tmp_path / "mine").train_ppo(reward=helpers.length)
    assert record.settings["reward"][0]["function"] == "tests.unit.rewards.helpers:length"
    assert not record.settings["reward"][0]["in_process"]
    assert "reward.0.function" in record.parents, "the content of its file decides"
    with pytest.raises(ConfigError, match="RuleBasedReward"):
        trainer_in(files, tmp_path / "mine").train_ppo(reward=rlhf.RuleBasedReward())


@pytest.mark.slow
def test_a_lambda_judges_in_a_real_stage(files, tmp_path):
    trainer = trainer_in(files, tmp_path / "mine", batch_size=4, ppo_rollouts=1, max_new_tokens=4, group_size=2)
    record = trainer.train_grpo(reward=lambda prompts, completions: [float(len(c)) for c in completions])
    assert record.metrics["grpo/score_last"] > 0


def test_the_fields_reach_the_settings_of_their_stages(files, tmp_path, monkeypatch):
    install(monkeypatch)
    trainer = trainer_in(
        files, tmp_path / "mine", sft_model="org/tuned", reward_model="org/judge", clip_range=0.1, value_clip_range=None,
        gae_lambda=0.9, temperature=0.7, top_p=0.8, sft_batch_size=3, reward_batch_size=5, reward_epochs=2,
    )  # fmt: skip
    ppo = trainer.train_ppo().settings
    assert (ppo["model"]["path"], ppo["reward"][0]["source"]) == ("org/tuned", "org/judge")
    assert (ppo["clip_low"], ppo["clip_high"], ppo["clip_value"], ppo["gae_lambda"]) == (0.1, 0.1, None, 0.9)
    grpo = trainer.train_grpo().settings
    assert (grpo["clip_low"], grpo["clip_high"], grpo["reward"][0]["source"]) == (0.1, 0.1, "org/judge")
    evaluation = trainer.evaluate().settings
    assert evaluation["judge"]["source"] == "org/judge"
    for settings in (ppo, grpo, evaluation):
        assert (settings["sampling"]["temperature"], settings["sampling"]["top_p"]) == (0.7, 0.8)
    assert trainer.train_dpo().settings["learning_rate"] == 5e-7
    assert trainer.train_sft().settings["batch_size"] == 3
    reward = trainer.train_reward_model().settings
    assert (reward["batch_size"], reward["epochs"], reward["model"]["path"]) == (5, 2, "stage:sft")
    assert trainer.train_ppo().settings["reward"][0]["source"] == "stage:reward", "what was trained here comes first"


def test_the_defaults_are_those_of_the_stages(files, tmp_path, monkeypatch):
    install(monkeypatch)
    trainer = trainer_in(files, tmp_path / "mine", reward_model="org/judge")
    for settings, stage in ((trainer.train_ppo().settings, PPOStage), (trainer.train_grpo().settings, GRPOStage)):
        for key in ("clip_low", "clip_high", "clip_value", "gae_lambda"):
            if key in stage.model_fields:
                assert settings[key] == stage.model_fields[key].default, key


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("rm_learning_rate", "reward_learning_rate"),
        ("rm_epochs", "reward_epochs"),
        ("rm_batch_size", "reward_batch_size"),
        ("ppo_learning_rate", "learning_rate"),
        ("dpo_beta", "beta"),
        ("value_clip", "value_clip_range"),
        ("lam", "gae_lambda"),
        ("base_model", "model_name"),
        ("prompts", "prompt_dataset"),
    ],
)
def test_a_wrong_field_is_answered_with_the_right_one(wrong, right):
    with pytest.raises(ConfigError, match=rf"{wrong}: .*'{right}'"):
        RLHFConfig(model_name="embedded", **{wrong: 1})


@pytest.mark.parametrize(
    ("key", "name", "calls"),
    [
        ("max_grad_norm", "max_grad_norm", {"train_sft", "train_reward_model", "train_ppo", "train_grpo", "train_dpo"}),
        ("value_model", "value_model", {"train_ppo"}),
        ("critic_lr", "value_learning_rate", {"train_ppo"}),
        ("use_lora", "model.lora", {"train_sft", "train_reward_model", "train_ppo", "train_grpo", "train_dpo"}),
    ],
)
def test_a_key_of_single_stages_is_answered_with_the_calls_that_take_it(key, name, calls):
    with pytest.raises(ConfigError) as caught:
        RLHFConfig(model_name="embedded", **{key: 1})
    (answer,) = (line for line in str(caught.value).splitlines() if f" {key}: " in line)
    assert f"'{name}'" in answer
    assert set(re.findall(r"train_\w+|evaluate", answer)) == calls


def test_calls_and_fields_that_answers_name_are_there():
    assert all(callable(getattr(RLHFTrainer, call)) and kind in stage_classes() for call, kind in CALLS.items())
    keys = {key for kind in CALLS.values() for key in stage_classes()[kind].model_fields}
    assert SET_BY.keys() <= keys
    assert {field for fields in SET_BY.values() for field in fields} <= RLHFConfig.model_fields.keys()


def test_a_config_is_read_from_yaml(tmp_path):
    path = tmp_path / "rlhf.yaml"
    path.write_text("model_name: embedded\nlearning_rate: 1e-4\n", encoding="utf-8")
    assert RLHFConfig.from_yaml(path) == RLHFConfig(model_name="embedded", learning_rate=1e-4)
    path.write_text("model_name: embedded\nrm_epochs: 2\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"rlhf\.yaml.*\n.*reward_epochs"):
        RLHFConfig.from_yaml(path)
