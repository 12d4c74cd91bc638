"""Settings of stages reach what they set: adapters, heads, streams, precision, critics; each in a run of a few steps."""

from __future__ import annotations

import json
import math

import pytest
import torch
from transformers import AutoModelForCausalLM

from rlhf.config.recipe import RecipeConfig
from rlhf.data.world import build_world
from rlhf.errors import ConfigError, DataError
from rlhf.files import write_jsonl
from rlhf.models.reward import RewardModel
from rlhf.pipeline.run import Pipeline
from rlhf.training.log import EVENTS, read_jsonl

LORA = {"path": "embedded", "lora": {"rank": 4, "alpha": 8}}
SAMPLING = {"max_new_tokens": 8}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    build_world(5, folder, num_documents=0)
    rows = [json.loads(line) for line in (folder / "sft.jsonl").read_text(encoding="utf-8").splitlines()[:40]]
    pairs = [{"prompt": r["prompt"], "chosen": r["completion"], "rejected": " I do not know."} for r in rows]
    (folder / "few.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    (folder / "pairs.jsonl").write_text("".join(json.dumps(p) + "\n" for p in pairs), encoding="utf-8")
    return folder


def run_stage(tmp_path, **stage):
    recipe = {"name": "one", "output_dir": str(tmp_path), "seed": 2, "threads": 1, "stages": {stage["kind"]: stage}}
    pipeline = Pipeline(RecipeConfig.of(recipe))
    pipeline.run()
    return pipeline.artifacts[stage["kind"]], tmp_path / "one" / stage["kind"]


def test_lora_trains_an_adapter_that_is_saved_alone(files, tmp_path):
    _, folder = run_stage(tmp_path, kind="sft", model=LORA, data=str(files / "few.jsonl"), max_steps=2)
    assert (folder / "model" / "adapter_config.json").exists()
    assert not (folder / "model" / "model.safetensors").exists()


def test_checkpointed_activations_and_bfloat16_train_the_same_model(files, tmp_path):
    plain, _ = run_stage(tmp_path / "a", kind="sft", model="embedded", data=str(files / "few.jsonl"), max_steps=2)
    model = {"path": "embedded", "gradient_checkpointing": True}
    spared, _ = run_stage(tmp_path / "b", kind="sft", model=model, data=str(files / "few.jsonl"), max_steps=2)
    half, _ = run_stage(
        tmp_path / "c", kind="sft", model="embedded", data=str(files / "few.jsonl"), max_steps=2, autocast="bfloat16"
    )
    assert spared.metrics["loss/train"] == pytest.approx(plain.metrics["loss/train"], abs=1e-5)
    assert half.metrics["loss/train"] == pytest.approx(plain.metrics["loss/train"], rel=2e-2)


def test_a_stream_trains_on_its_first_rows_too(files, tmp_path):
    whole, _ = run_stage(
        tmp_path / "a", kind="sft", model="embedded", data=str(files / "few.jsonl"), max_steps=1, batch_size=40
    )
    streamed, _ = run_stage(
        tmp_path / "b", kind="sft", model="embedded", data=str(files / "few.jsonl"), max_steps=1, batch_size=40,
        streaming=True, shuffle_buffer=0,
    )  # fmt: skip
    assert streamed.metrics["loss/train"] == pytest.approx(whole.metrics["loss/train"], abs=1e-5)


@pytest.mark.parametrize("settings", [{"num_models": 2}, {"num_heads": 2}, {"head": "mlp"}], ids=str)
def test_a_reward_model_of_any_form_is_trained_normalized_and_loaded_again(files, tmp_path, settings):
    artifact, folder = run_stage(
        tmp_path,
        kind="reward",
        model="embedded",
        data=str(files / "pairs.jsonl"),
        eval_frac=0.2,
        max_steps=2,
        **settings,
    )
    model = RewardModel.from_pretrained(str(folder / "model"))
    assert model.num_scores == settings.get("num_models", 1) * settings.get("num_heads", 1)
    assert not torch.equal(model.std, torch.ones_like(model.std))
    card = (folder / "model" / "README.md").read_text(encoding="utf-8")
    loads_elsewhere = "num_heads" in settings  # several outputs of one linear head are transformers' own form
    assert ("AutoModelForSequenceClassification" in card) == loads_elsewhere
    assert (
        artifact.metrics["eval/accuracy_low"]
        <= artifact.metrics["eval/accuracy"]
        <= artifact.metrics["eval/accuracy_high"]
    )


def test_a_reward_model_that_is_no_better_than_a_coin_is_an_alarm(files, tmp_path):
    settings = {"kind": "reward", "model": "embedded", "data": str(files / "pairs.jsonl"), "eval_frac": 0.2}
    artifact, folder = run_stage(tmp_path / "few", **settings, max_steps=1, learning_rate=1e-9)
    assert artifact.metrics["eval/accuracy_low"] <= 0.5
    told = [event for event in read_jsonl(folder.parent / EVENTS) if event.get("guard") == "reward_accuracy"]
    assert len(told) == 1
    assert "no better than a coin" in told[0]["message"]
    assert "It took 1 step on" in told[0]["message"]
    assert "1e-09 is 1/1,000,000 of what is usual for reward" in told[0]["message"]
    assert "set learning_rate=0.001, then train longer" in told[0]["message"]


def test_held_out_rows_that_are_learned_from_are_an_alarm_and_notes_count_both_sides(files, tmp_path):
    lines = (files / "few.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "train.jsonl").write_text("".join(lines[:30]), encoding="utf-8")
    (tmp_path / "held_out.jsonl").write_text("".join(lines[27:35]), encoding="utf-8")
    settings = {"kind": "sft", "model": "embedded", "data": str(tmp_path / "train.jsonl"), "max_steps": 1}

    def told(name, event, **more):
        _, folder = run_stage(tmp_path / name, **settings, **more)
        return [row["message"] for row in read_jsonl(folder.parent / EVENTS) if row["event"] == event]

    same = [text for text in told("same", "alarm", eval_data=str(tmp_path / "held_out.jsonl")) if "eval_data" in text]
    assert len(same) == 1
    assert "sft: 3 of 8 rows of eval_data are in data too and learned from" in same[0]
    assert "eval_data: 3 of these held out (eval_frac 0.1), 27 learned from" in told("split", "note", eval_frac=0.1)


@pytest.mark.parametrize("kind", ["sft", "reward", "dpo"])
def test_rows_of_one_prompt_are_held_out_by_row(files, tmp_path, kind):
    name = "few.jsonl" if kind == "sft" else "pairs.jsonl"
    rows = [
        json.loads(line) | {"prompt": "Say it."} for line in (files / name).read_text(encoding="utf-8").splitlines()
    ]
    (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    settings = {"kind": kind, "model": "embedded", "data": str(tmp_path / name), "max_steps": 1, "eval_frac": 0.2}
    with pytest.raises(DataError, match=rf"stages\.{kind}\.eval_frac: .*`eval_split: row`"):
        run_stage(tmp_path / "prompt", **settings)
    artifact, folder = run_stage(tmp_path / "row", **settings, eval_split="row")
    assert math.isfinite(artifact.metrics["eval/loss"])
    notes = [event["message"] for event in read_jsonl(folder.parent / EVENTS) if event["event"] == "note"]
    assert any("of these held out (eval_frac 0.2)" in note for note in notes)


@pytest.mark.slow
@pytest.mark.parametrize("value_model", ["separate", "shared"])
@pytest.mark.parametrize("model", ["embedded", LORA], ids=["all weights", "lora"])
def test_ppo_runs_with_either_critic_and_with_adapters(files, tmp_path, value_model, model):
    artifact, folder = run_stage(
        tmp_path, kind="ppo", model=model, prompts=str(files / "prompts.jsonl"), reward="rules", rollouts=2,
        prompts_per_rollout=4, minibatch_size=4, value_model=value_model, sampling=SAMPLING,
        eval_prompts=str(files / "test_prompts.jsonl"), limit=8,
    )  # fmt: skip
    assert artifact.metrics["ppo/ratio_mean"] == pytest.approx(1, abs=0.1)
    assert "adapter_config.json" in {file.name for file in (folder / "model").iterdir()} or model == "embedded"


def test_a_trained_folder_loads_in_plain_transformers(files, tmp_path):
    _, folder = run_stage(tmp_path, kind="sft", model="embedded", data=str(files / "few.jsonl"), max_steps=1)
    card = (folder / "model" / "README.md").read_text(encoding="utf-8")
    assert "AutoModelForCausalLM" in card
    assert "max_steps: 1" in card
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    assert model(torch.tensor([[0, 5, 6]])).logits.shape[:2] == (1, 3)


def test_columns_of_another_name_are_read_by_a_map(files, tmp_path):
    rows = [json.loads(line) for line in (files / "few.jsonl").read_text(encoding="utf-8").splitlines()]
    renamed = [{"question": row["prompt"], "answer": row["completion"]} for row in rows]
    (tmp_path / "qa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in renamed), encoding="utf-8")
    artifact, _ = run_stage(
        tmp_path, kind="sft", model="embedded", data=str(tmp_path / "qa.jsonl"), max_steps=1,
        columns={"question": "prompt", "answer": "completion"},
    )  # fmt: skip
    assert artifact.metrics["loss/train"] > 0


def test_rows_that_a_filter_leaves_out_are_not_learned_from(files, tmp_path):
    rows = [json.loads(line) for line in (files / "few.jsonl").read_text(encoding="utf-8").splitlines()]
    distinct = list({json.dumps(row): row for row in rows}.values())[:8]
    long = {"prompt": distinct[0]["prompt"], "completion": " far too long" * 40}
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [*distinct, *distinct[:3], long]), encoding="utf-8")
    data = {"path": str(path), "dedup": True, "max_length": 100}
    run_stage(tmp_path / "a", kind="sft", model="embedded", data=data, max_steps=1)
    notes = [event.get("message", "") for event in read_jsonl(tmp_path / "a" / "one" / EVENTS)]
    assert any("3 duplicates and 1 too short or too long left out, 8 of 12 rows kept" in note for note in notes)
    with pytest.raises(ConfigError, match="row_filter"):
        run_stage(tmp_path / "b", kind="sft", model="embedded", data=data, max_steps=1, streaming=True)


@pytest.mark.parametrize("kind", ["best_of_n", "evaluate", "pass_at_k", "preferences"])
def test_prompts_that_a_filter_leaves_out_are_not_asked(files, tmp_path, kind):
    prompts = [{"prompt": f"Say {number % 4}"} for number in range(6)] + [{"prompt": "Say " + "a long story " * 30}]
    write_jsonl(tmp_path / "prompts.jsonl", prompts)
    how: dict = {"sampling": {"max_new_tokens": 4}}
    who = {
        "best_of_n": {"model": "embedded", "reward": "rules", "num_samples": 1},
        "evaluate": {"policy": "embedded", "baseline": "embedded", "judge": "rules"},
        "pass_at_k": {"policy": "embedded", "judge": "rules", "num_samples": 1, "greedy": False},
        "preferences": {"model": "embedded", "annotator": f"{__name__}:by_length", "num_pairs": 2},
    }[kind]
    data = {"path": str(tmp_path / "prompts.jsonl"), "dedup": True, "max_length": 40}
    run_stage(tmp_path / "a", kind=kind, prompts=data, **who, **how)
    notes = [event.get("message", "") for event in read_jsonl(tmp_path / "a" / "one" / EVENTS)]
    told = "prompts: 2 duplicates and 1 too short or too long left out, 4 of 7 rows kept"
    assert any(told in note for note in notes)


def by_length(prompts, completions, *, ended, noise, seed):
    """The first completion of each prompt before the second."""
    return [{"chosen": 0, "rejected": 1} for _ in prompts]
